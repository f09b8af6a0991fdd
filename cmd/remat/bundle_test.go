package main

// The examples train from bundles: each program as it stands in examples/, in its own
// runtime. Python, C and Go are tested wherever the tests run; `make test-runtimes`
// installs the others, without which they are skipped.

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/pyort"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// A trainer trains five steps from a bundle and returns what its program printed.
type trainer func(t testing.TB, bundle string) string

// trainers are the examples by the target that they are for.
var trainers = map[string]trainer{
	"python": trainPython, "node": trainNode, "web": trainWeb, "java": trainJava,
	"c": func(t testing.TB, bundle string) string { return trainC(t, bundle) }, "go": trainGo,
}

// bundled are the graphs: what updates all, what holds frozen weights in files, what holds
// its state in eight bits, and what scales its loss.
var bundled = []struct {
	name          string
	grad, rewrite []string
}{
	{"adamw", []string{"--optimizer", "adamw", "--clip-norm", "1", "--clip-by", "previous"}, []string{"--strategy", "full"}},
	{"lora", []string{"--optimizer", "sgd", "--lora", "*.weight:r=2,alpha=4"}, []string{"--strategy", "optimal", "--budget", "80%"}},
	{"eight bits", []string{"--optimizer", "adamw8bit"}, []string{"--strategy", "none"}},
	{"half", []string{"--optimizer", "adamw"}, []string{"--strategy", "full", "--precision", "fp16", "--stash-only"}},
}

// near is how far losses of two runtimes may be apart, as a share of the loss. Where values
// wait in half, the last bit of another float32 kernel becomes one of half.
func near(graph string) float64 {
	if graph == "half" {
		return 1e-4
	}
	return 1e-5
}

func TestBundles(t *testing.T) {
	dir := newFolder(t)
	dir.do("model", "gpt2-tiny", "--batch", "2", "--seq", "32", "-o", dir.at("forward.onnx"), "--quiet")
	want := map[string][]float64{} // by graph: C's
	for _, g := range bundled {
		step := dir.at(g.name + ".onnx")
		dir.do(append([]string{"grad", dir.at("forward.onnx"), "-o", step, "--quiet"}, g.grad...)...)
		for _, target := range append([]string{"c"}, others("c")...) {
			bundle := dir.at(g.name + "-" + target)
			dir.do(append([]string{"rewrite", step, "--bundle", bundle, "--for", target, "--quiet"}, g.rewrite...)...)
			t.Run(g.name+" in "+target, func(t *testing.T) {
				got := printed(t, trainers[target](t, bundle))
				if target == "c" {
					want[g.name] = got
				}
				for i, loss := range want[g.name] {
					if math.Abs(got[i]-loss) > near(g.name)*loss {
						t.Errorf("step %d: loss %.9g, in C %.9g", i+1, got[i], loss)
					}
				}
				if got[4] >= got[0] {
					t.Errorf("losses %v: nothing was learned", got)
				}
			})
		}
	}
}

// TestUpdatesApart: what trains in the browser by graphs of updates of their own has the
// losses of the same optimizer within the graph.
func TestUpdatesApart(t *testing.T) {
	dir := newFolder(t)
	dir.do("model", "gpt2-tiny", "--layers", "2", "--batch", "2", "--seq", "16", "-o", dir.at("forward.onnx"), "--quiet")
	dir.do("grad", dir.at("forward.onnx"), "--optimizer", "none", "-o", dir.at("gradients.onnx"), "--quiet")
	web, err := pipeline.FindTarget("web")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range optim.Kinds() {
		if web.CanUpdateApart(kind) != nil {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			name := string(kind)
			dir.do("grad", dir.at("forward.onnx"), "--optimizer", name, "-o", dir.at(name+".onnx"), "--quiet")
			dir.do("rewrite", dir.at(name+".onnx"), "--strategy", "none", "--bundle", dir.at(name+"-within"), "--for", "c", "--quiet")
			dir.do("rewrite", dir.at("gradients.onnx"), "--strategy", "full", "--bundle", dir.at(name+"-apart"), "--for", "web", "--updates", name, "--quiet")
			want, got := printed(t, trainC(t, dir.at(name+"-within"))), printed(t, trainWeb(t, dir.at(name+"-apart")))
			for i := range want {
				if math.Abs(got[i]-want[i]) > near(name)*want[i] {
					t.Errorf("step %d: loss %.9g, %.9g with the optimizer in the graph", i+1, got[i], want[i])
				}
			}
		})
	}
}

// TestWebGPU: a bundle for the browser trains there by WebGPU as by WebAssembly: no kernel
// refuses what holds the order. The adapter is one in software. Rows are logged;
// scripts/runtimes.py keeps them.
func TestWebGPU(t *testing.T) {
	dir := newFolder(t)
	dir.do("model", "gpt2-tiny", "--layers", "2", "--batch", "2", "--seq", "16", "-o", dir.at("forward.onnx"), "--quiet")
	for optimizer, flags := range map[string][]string{"sgd": {"--strategy", "full"}, "adamw": {"--strategy", "optimal"}} {
		dir.do("grad", dir.at("forward.onnx"), "--optimizer", optimizer, "-o", dir.at("step.onnx"), "--quiet")
		bundle := dir.at(optimizer)
		dir.do(append([]string{"rewrite", dir.at("step.onnx"), "--bundle", bundle, "--for", "web", "--quiet"}, flags...)...)
		t.Run(optimizer, func(t *testing.T) {
			got := printed(t, pageSays(t, bundle, "?provider=webgpu", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"))
			row := gpuRow{Name: optimizer, Strategy: flags[1], Losses: got, CPU: printed(t, trainC(t, bundle))}
			for i, loss := range row.CPU {
				row.Apart = max(row.Apart, math.Abs(got[i]/loss-1))
			}
			if row.Apart > near(optimizer) || got[4] >= got[0] {
				t.Errorf("losses %v, in C %v", got, row.CPU)
			}
			line, _ := json.Marshal(row)
			t.Logf("row %s", line)
		})
	}
}

// gpuRow is what WebGPU did with a bundle.
type gpuRow struct {
	Name     string    `json:"name"`
	Strategy string    `json:"strategy"`
	Losses   []float64 `json:"losses"`
	CPU      []float64 `json:"cpu"`
	Apart    float64   `json:"apart"` // from C's
}

// TestNothingUpdated: a program says so where a bundle's graph updates nothing, in place of
// the same loss five times.
func TestNothingUpdated(t *testing.T) {
	dir := newFolder(t)
	dir.do("model", "gpt2-tiny", "--layers", "1", "--batch", "1", "--seq", "8", "-o", dir.at("forward.onnx"), "--quiet")
	dir.do("grad", dir.at("forward.onnx"), "--optimizer", "none", "-o", dir.at("gradients.onnx"), "--quiet")
	for target, train := range trainers {
		dir.do("rewrite", dir.at("gradients.onnx"), "--strategy", "none", "--bundle", dir.at(target), "--for", target, "--quiet")
		t.Run(target, func(t *testing.T) {
			e, done := &expecting{TB: t}, make(chan bool)
			go func() {
				defer close(done)
				train(e, dir.at(target))
			}()
			<-done
			if !strings.Contains(e.failed, "updates nothing") && !t.Skipped() {
				t.Errorf("it says %q", e.failed)
			}
		})
	}
}

// expecting notes a failure in place of failing.
type expecting struct {
	testing.TB
	failed string
}

func (e *expecting) Fatalf(format string, args ...any) {
	e.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// others are the targets but one.
func others(but string) (names []string) {
	for _, target := range pipeline.Targets {
		if target.Name != but {
			names = append(names, target.Name)
		}
	}
	return names
}

// TestEveryTargetHasAnExample: and a section of its own in no table is forgotten.
func TestEveryTargetHasAnExample(t *testing.T) {
	for _, target := range pipeline.Targets {
		if trainers[target.Name] == nil {
			t.Errorf("no example trains from a bundle for %s", target.Name)
		}
		if _, err := os.Stat(exampleFile(target.Name)); err != nil {
			t.Error(err)
		}
	}
	if len(trainers) != len(pipeline.Targets) {
		t.Errorf("%d examples for %d targets", len(trainers), len(pipeline.Targets))
	}
}

// TestBundlePeak: a bundle's live peak, counted in a C program by a stock session of ONNX
// Runtime, is the manifest's to the byte, for each way of outputs and strategy.
func TestBundlePeak(t *testing.T) {
	dir := newFolder(t)
	dir.do("model", "gpt2-tiny", "--layers", "3", "--batch", "2", "--seq", "24", "-o", dir.at("forward.onnx"), "--quiet")
	dir.do("grad", dir.at("forward.onnx"), "--optimizer", "adamw", "-o", dir.at("step.onnx"), "--quiet")
	peaks := map[string]int64{}
	for _, way := range []string{"bound", "returned"} {
		for _, strategy := range []string{"none", "full", "least"} {
			bundle := dir.at(way + strategy)
			dir.do("rewrite", dir.at("step.onnx"), "--strategy", strategy, "--outputs", way, "--bundle", bundle, "--for", "c", "--quiet")
			m := readManifest(t, bundle)
			_, peak, _ := strings.Cut(trainC(t, bundle, "count"), "live peak ")
			if got := strings.TrimSpace(peak); got != fmt.Sprint(m.Predicted.LivePeak) {
				t.Errorf("%s, %s: live peak %s in C, predicted %d", way, strategy, got, m.Predicted.LivePeak)
			}
			peaks[way+strategy] = m.Predicted.LivePeak
		}
	}
	if peaks["returnedfull"] > peaks["returnednone"]+4096 || peaks["boundfull"] >= peaks["returnedfull"] {
		t.Errorf("peaks %v: full takes more than none where outputs are returned, or they take nothing", peaks)
	}
}

// TestBundleHeld: the same bundle, as it is for the browser, trains in every runtime to the
// same losses; the live peak in each that is a process is the manifest's, to the byte, and so
// where next values are bound. A library counts that is loaded
// before ONNX Runtime's; the arena, of which it would see the reservation, is off. In the
// browser the heap is measured. Each row is logged; scripts/runtimes.py makes its page of them.
func TestBundleHeld(t *testing.T) {
	counting := filepath.Join(t.TempDir(), "counting.so")
	runs(t, nil, "cc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", filepath.Join("..", "..", "scripts", "counting", "counting.c"), "-o", counting, "-ldl", "-lpthread")
	dir := newFolder(t)
	dir.do("model", "gpt2-tiny", "--layers", "6", "--batch", "8", "--seq", "64", "-o", dir.at("forward.onnx"), "--quiet")
	dir.do("grad", dir.at("forward.onnx"), "--optimizer", "adamw", "-o", dir.at("step.onnx"), "--quiet")
	for _, b := range []struct {
		way     step.Outputs
		made    string // for it
		targets []string
	}{
		{step.Returned, "web", []string{"c", "python", "node", "java", "go", "web"}},
		{step.Bound, "c", []string{"c", "python", "node", "java", "go"}},
	} {
		bundle := dir.at(string(b.way))
		dir.do("rewrite", dir.at("step.onnx"), "--budget", "60%", "--bundle", bundle, "--for", b.made, "--quiet")
		m := readManifest(t, bundle)
		m.Session.Arena = false
		writeManifest(t, bundle, m)
		var want []float64 // C's losses
		for _, target := range b.targets {
			t.Run(string(b.way)+" in "+target, func(t *testing.T) {
				row := heldRow{Target: target, Way: b.way, Predicted: predictedIn(m, target)}
				file := filepath.Join(t.TempDir(), "counted")
				if target != "web" {
					t.Setenv("COUNTED", file)
					t.Setenv("LD_PRELOAD", counting)
				}
				text := trainers[target](t, bundle)
				row.Losses = printed(t, text)
				if target == "c" {
					want = row.Losses
				}
				for i, loss := range want {
					row.Apart = max(row.Apart, math.Abs(row.Losses[i]/loss-1))
				}
				if row.Apart > near("adamw") {
					t.Errorf("losses %v, in C %v", row.Losses, want)
				}
				row.counted(t, file, text)
				if row.Live != row.Predicted && target != "web" || row.Live < row.Predicted {
					t.Errorf("%d bytes at the peak, predicted %d", row.Live, row.Predicted)
				}
				line, _ := json.Marshal(row)
				t.Logf("row %s", line)
			})
		}
	}
}

// heldRow is what a runtime did with a bundle. In the browser Live is the heap, and Predicted
// everything.
type heldRow struct {
	Target    string       `json:"target"`
	Way       step.Outputs `json:"way"`
	Losses    []float64    `json:"losses"`
	Apart     float64      `json:"apart"` // from C's
	Predicted int64        `json:"predicted"`
	Live      int64        `json:"live"`
	Rest      int64        `json:"rest"` // held between two steps
}

// predictedIn predicts Live for the example of a target.
func predictedIn(m *pipeline.Manifest, target string) int64 {
	p := m.Predicted
	if target == "web" {
		return p.Parameters + p.State + p.Feeds + p.Session + p.LivePeak
	}
	most, next := p.LivePeak, map[string]bool{}
	for _, in := range m.Inputs {
		next[in.Next] = true
	}
	for _, out := range m.Outputs {
		if target == "go" && len(out.Shape) == 0 && !next[out.Name] {
			most -= map[string]int64{"float32": 4, "bool": 1}[out.Type] // in memory of the program's
		}
	}
	return most
}

// counted reads what scripts/counting/counting.c left, or the heap that the page said.
func (r *heldRow) counted(t *testing.T, file, printed string) {
	t.Helper()
	if _, heap, ok := strings.Cut(printed, "heap "); ok {
		fmt.Sscan(heap, &r.Live)
		return
	}
	raw, err := os.ReadFile(file)
	if err != nil || len(raw) != 16 {
		t.Fatalf("nothing was counted: %v", err)
	}
	r.Rest = int64(binary.LittleEndian.Uint64(raw[8:]))
	r.Live = int64(binary.LittleEndian.Uint64(raw)) - r.Rest
	if r.Rest == 0 {
		t.Fatal("no two steps had the same peak")
	}
}

func readManifest(t *testing.T, bundle string) *pipeline.Manifest {
	t.Helper()
	var m pipeline.Manifest
	text, err := os.ReadFile(filepath.Join(bundle, pipeline.ManifestFile))
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &m
}

func writeManifest(t *testing.T, bundle string, m *pipeline.Manifest) {
	t.Helper()
	text, err := json.Marshal(m)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, pipeline.ManifestFile), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// printed reads lines such as "1 6.2578445".
func printed(t *testing.T, text string) []float64 {
	t.Helper()
	var list []float64
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var step int
		var loss float64
		if n, _ := fmt.Sscan(line, &step, &loss); n == 2 && step == len(list)+1 {
			list = append(list, loss)
		}
	}
	if len(list) != 5 {
		t.Fatalf("no five losses:\n%s", text)
	}
	return list
}

func exampleFile(parts ...string) string {
	return filepath.Join(append([]string{"..", "..", "examples"}, parts...)...)
}

// runs executes a program for at most a few minutes.
func runs(t testing.TB, env []string, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	var diag strings.Builder
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", program, err, out, &diag)
	}
	return string(out)
}

// installed is a folder of what `make test-runtimes` installs, and the test is skipped
// without it, or without the program that runs what is in it.
func installed(t testing.TB, name, program string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cmp.Or(os.Getenv("REMAT_RUNTIMES"), filepath.Join(cache, "remat", "runtimes")), name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("%s is not installed: make test-runtimes", name)
	}
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("no %s here", program)
	}
	return dir
}

func trainPython(t testing.TB, bundle string) string {
	p, err := pyort.Find(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return runs(t, []string{"PYTHONPATH=" + p.Packages}, p.Executable, exampleFile("python", "train.py"), bundle)
}

func trainNode(t testing.TB, bundle string) string {
	npm := installed(t, "npm", "node")
	dir := t.TempDir() // where the program finds the package
	text, err := os.ReadFile(exampleFile("node", "train.mjs"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "train.mjs"), text, 0o644)
	}
	if err == nil {
		err = os.Symlink(filepath.Join(npm, "node_modules"), filepath.Join(dir, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return runs(t, nil, "node", filepath.Join(dir, "train.mjs"), bundle)
}

func trainJava(t testing.TB, bundle string) string {
	return runs(t, nil, "java", "-cp", filepath.Join(installed(t, "java", "java"), "*"), exampleFile("java", "Train.java"), bundle)
}

// libraries is a folder with ONNX Runtime's library under the name that programs load.
func libraries(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(os.Getenv("REMAT_ORT"), filepath.Join(dir, "libonnxruntime.so.1")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func trainC(t testing.TB, bundle string, more ...string) string {
	header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/yalue/onnxruntime_go").Output()
	if err != nil {
		t.Fatal(err)
	}
	lib, program := libraries(t), filepath.Join(t.TempDir(), "train")
	runs(t, nil, "cc", "-O2", "-Wall", "-Wextra", "-Werror", "-I", strings.TrimSpace(string(header)), exampleFile("c", "train.c"),
		filepath.Join(lib, "libonnxruntime.so.1"), "-Wl,-rpath,"+lib, "-o", program)
	return runs(t, nil, program, append([]string{bundle}, more...)...)
}

func trainGo(t testing.TB, bundle string) string {
	program := filepath.Join(t.TempDir(), "train")
	runs(t, []string{"GOWORK=off"}, "go", "build", "-C", exampleFile("go"), "-o", program, ".")
	return runs(t, nil, program, bundle, filepath.Join(libraries(t), "libonnxruntime.so.1"))
}

// trainWeb trains in headless Chromium.
func trainWeb(t testing.TB, bundle string) string { return pageSays(t, bundle, "", "--disable-gpu") }

// pageSays opens the page with a query in headless Chromium, and reads what it reports to the
// server.
func pageSays(t testing.TB, bundle, query string, flags ...string) string {
	npm := installed(t, "npm", "node")
	chromium, err := exec.LookPath(cmp.Or(os.Getenv("REMAT_CHROMIUM"), "chromium"))
	if err != nil {
		t.Skip("no chromium here")
	}
	serve := exec.Command("node", exampleFile("web", "serve.mjs"), "--port", "0", "--ort", filepath.Join(npm, "node_modules", "onnxruntime-web", "dist"), bundle)
	results, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	address, err := serve.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { serve.Process.Kill(); serve.Wait() }()
	url, err := bufio.NewReader(address).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	profile, err := os.MkdirTemp("", "profile")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(profile) // processes of the browser may outlive it by a moment
	page := exec.CommandContext(ctx, chromium, slices.Concat([]string{"--headless", "--no-sandbox", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir=" + profile}, flags, []string{strings.TrimSpace(url) + query})...)
	page.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := page.Start(); err != nil {
		t.Fatal(err)
	}
	stop := context.AfterFunc(ctx, func() { serve.Process.Kill() }) // so that nobody waits for a page that says nothing
	defer stop()
	line, err := bufio.NewReader(results).ReadString('\n')
	syscall.Kill(-page.Process.Pid, syscall.SIGKILL)
	page.Wait()
	if err != nil {
		t.Fatalf("the page reported nothing: %v", err)
	}
	var got []struct {
		Losses []float64 `json:"losses"`
		Error  *string   `json:"error"`
		Heap   int64     `json:"heap"`
	}
	if err := json.Unmarshal([]byte(line), &got); err != nil || len(got) != 1 {
		t.Fatalf("the page reported %s: %v", line, err)
	}
	if e := got[0].Error; e != nil && strings.Contains(*e, "GPU adapter") {
		t.Skipf("the browser has no adapter for WebGPU: %s", *e)
	}
	if got[0].Error != nil || got[0].Heap == 0 {
		t.Fatalf("the page reported %s", line)
	}
	var text strings.Builder
	for i, loss := range got[0].Losses {
		fmt.Fprintln(&text, i+1, loss)
	}
	fmt.Fprintln(&text, "heap", got[0].Heap)
	return text.String()
}
