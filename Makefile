# make demo   the main job from nothing to the report
# make test   every test that needs no GPU and no PyTorch
SHELL := /bin/bash
GO    ?= go
FUZZTIME ?= 1h
# What `make test` gives each fuzz target.
TESTFUZZTIME ?= 2m
PKGS  := ./...
export GOFLAGS ?= -buildvcs=false

# How often every documented command is rehearsed.
REHEARSALS ?= 100

.PHONY: build ort rehearse-deps test test-rehearse test-mpi test-runtimes test-ort page cuda-sweep advice rehearsals kills asan demo vet fuzz bench race browser tables pytorch clean

build:
	$(GO) build -o bin/remat ./cmd/remat

# ONNX Runtime's library from its Python package, by the same code as
# `remat doctor --install`.
ort: build
	bin/remat doctor --install cpu

# ONNX Runtime's GPU build, a quarter of a gigabyte: with it `make test` also
# tests what runs on CUDA without a GPU. Half a minute where the network is quick.
rehearse-deps: build
	bin/remat --provider cuda --rehearse doctor --install cuda

test: vet ort
	$(GO) test -timeout 50m $(PKGS)
	scripts/fuzz.sh $(TESTFUZZTIME)

# The tests of rehearsals (docs/gpu.md), with the GPU build of ONNX Runtime that
# they need, 300 MB in the cache. Without it they are skipped.
test-rehearse: rehearse-deps
	$(GO) test -count=1 ./runtime ./runtime/ort/... -run 'Rehearsed|NullDevice'
	REHEARSALS=1 $(GO) test -count=1 ./cmd/remat -run 'TestScripts/rehearse|TestDocExamples/gpu|TestRehearsalsEnd'
	$(GO) test -count=1 ./scripts -run TestGPURehearsal
	$(GO) test -count=1 ./runtime/predict -run 'CUDA|ShortProducts'
	$(GO) test -count=1 ./cmd/remat -run 'TestExactOnCUDA|TestHalfHoldsLess|TestShortProducts'

# The tests under mpirun, which apt-get install openmpi-bin brings. Without it they are
# skipped; the same ranks in one process are tested in any case.
test-mpi: ort
	$(GO) test -count=1 -v ./runtime/mpi ./cmd/remat -run 'UnderMPI|RankKilled|Launched|NoLibrary'

# The examples in every runtime, with Node's, the browser's and Java's, 250 MB in the cache.
# Without them their tests are skipped.
test-runtimes: ort
	scripts/runtimes.sh
	$(GO) test -count=1 -timeout 40m -v ./cmd/remat -run 'TestBundle|TestUpdatesApart|TestWebGPU|TestNothingUpdated'

# Predicted = measured with another release of ONNX Runtime, and of files that go from one to
# the other: make test-ort VERSION=X.Y.Z.
test-ort: ort
	scripts/test_ort.sh $(VERSION)

# A page that trains in the browser, plain and rewritten side by side, and GPT-2 124M; needs
# what test-runtimes installs.
page: ort
	scripts/page.sh

# Predicted = measured on the CUDA provider, for the whole zoo with every strategy,
# optimizer, type and level: some half an hour of one core.
cuda-sweep: rehearse-deps
	$(GO) test -count=1 -v ./runtime/predict -run CUDA
	REMAT_SWEEP=1 $(GO) test -count=1 -timeout 3h -v ./cmd/remat -run TestExactOnCUDA

# Advice on 20 models, every command that is said to fit executed, and every combination
# of measures where nothing is said to fit.
advice: ort
	REMAT_SWEEP=1 $(GO) test -count=1 -timeout 2h -v ./cmd/remat -run 'TestAdvise$$'
	REMAT_SWEEP=1 $(GO) test -count=1 -timeout 2h -v ./internal/pipeline -run TestNothingFits

# Every command of README and docs/gpu.md that runs a step, again and again, and
# interrupted at random moments.
rehearsals: rehearse-deps
	REHEARSALS=$(REHEARSALS) $(GO) test -count=1 -timeout 10h -v ./cmd/remat -run TestRehearsalsEnd

# Trainings of every mode, killed KILLS times each and resumed, and one rank of several
# under mpirun: a quarter of an hour.
KILLS ?= 20
kills: ort
	REMAT_KILLS=$(KILLS) $(GO) test -count=1 -timeout 2h -v ./cmd/remat -run 'TestKilled|TestRankKilled'

vet:
	@fmt=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$fmt" ]; then echo "gofmt: $$fmt"; exit 1; fi
	$(GO) vet $(PKGS)
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 $(PKGS)

# The race detector over the packages that hold goroutines or C memory.
race: ort
	$(GO) test -race -short -timeout 20m ./runtime/ort/... ./runtime ./models

# The address sanitizer over the packages that hold C memory, with ONNX Runtime
# loaded. libstdc++ comes first, so that exceptions of libraries that are loaded
# later pass; the tests of a process's size are left out, since the sanitizer
# keeps what is freed.
asan: ort rehearse-deps
	ASAN_OPTIONS=verify_asan_link_order=0 CGO_LDFLAGS="-O2 -g -Wl,--no-as-needed -lstdc++" \
		$(GO) test -asan -short -timeout 20m -skip 'Leaks|LeaveNothing' ./runtime/ort/... ./runtime

demo: ort
	bin/remat demo

fuzz: ort
	scripts/fuzz.sh $(FUZZTIME)

bench: ort
	$(GO) test -run '^$$' -bench . -benchtime 1x $(PKGS)

browser: build
	$(GO) test -tags browser ./internal/report

# The tables under docs/results, and the comparison with PyTorch (which needs
# bench/requirements.txt).
tables: ort
	scripts/tables.py all --out docs/results

pytorch: ort
	bench/compare.py
	bench/compare.py --batch 1 --seq 1024 --rewrite "--strategy optimal --budget 700MB" --rewrite "--strategy least" --by-operator

clean:
	rm -rf bin out
