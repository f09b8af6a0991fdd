#!/bin/bash
# Holds what is predicted to another release of ONNX Runtime, on the CPU, which pip brings:
# test_ort.sh 1.32.0. First that release takes the place of the installed one, then files are
# handed from one to the other. Where all passes, the release may be ortversion.Newest.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-}
if ! [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
	echo "name a release of onnxruntime: $0 X.Y.Z (make test-ort VERSION=X.Y.Z)" >&2
	exit 2
fi
packages=${XDG_CACHE_HOME:-$HOME/.cache}/remat/test-ort/$version
if ! [ -d "$packages" ]; then
	mkdir -p "$(dirname "$packages")"
	new=$(mktemp -d "$packages.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	python3 -m pip install --quiet --disable-pip-version-check --no-input --only-binary=:all: \
		--target "$new" "onnxruntime==$version" 'numpy>=1.26,<3'
	chmod 755 "$new"
	mv -T "$new" "$packages"
fi
library=$packages/onnxruntime/capi

# With it alone: every allocation of single operators and whole graphs, the order, the arena.
export REMAT_PYTHON_PACKAGES=$packages
REMAT_ORT=$library go test -count=1 -timeout 30m ./ortmodel/... ./runtime/... ./internal/corpus/... ./rewrite/grad
# Files of samples, the zoo, random steps, half types and optimizers, here and in Python.
REMAT_ORT=$library go test -count=1 -timeout 60m ./internal/pipeline -run 'AsPredicted|AsPromised|EverySample|EveryZooModel|OrderIs|Random|Python|Slab|Bound|Frozen|Outputs|UpdateGraphs|Foreign|Stages|Parts|MicroBatches|Recurrence|Hidden|Half'
REMAT_ORT=$library go test -count=1 -timeout 60m ./cmd/remat -run 'TestEveryOptimizer|TestTraceOfEveryVariant|TestSlabIsLive|TestBundlePeak|TestRunningCounted|TestTrainWithin|TestScripts/(run|rows|sums|returned|precision|quantize|lora|train|trains|micro|zoo|foreign|update|dims|split)$'
# From one to the other.
go test -count=1 -timeout 30m ./internal/pipeline -run 'TestPeakInPlainPython|TestSlabInPlainPython'
REMAT_OTHER_ORT=$library go test -count=1 -timeout 3h ./cmd/remat -v -run TestFilesInOtherRelease
