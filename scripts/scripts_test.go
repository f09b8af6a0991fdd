// Package scripts holds what runs beside the program. Its tests try each script
// as far as a machine without a GPU and without PyTorch lets it go.
package scripts

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// program builds remat and says how scripts find it and its library.
func program(t *testing.T) (path string, env []string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the program")
	}
	library, err := install.Find("")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "remat")
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/remat").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path, append(os.Environ(), "REMAT_ORT="+library)
}

func run(t *testing.T, env []string, want int, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Env = env
	out, _ := c.CombinedOutput()
	if code := c.ProcessState.ExitCode(); code != want {
		t.Fatalf("%s %s: exit code %d, want %d\n%s", name, strings.Join(args, " "), code, want, out)
	}
	return string(out)
}

// TestGPUDryRun: every variant that the validation promises is among its
// commands, and printing them leaves nothing behind.
func TestGPUDryRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	out := run(t, os.Environ(), 0, "./gpu-validate.sh", "--dry-run", "--out", dir)
	for _, model := range []string{"gpt2", "gpt2-medium"} {
		for _, precision := range []string{"fp32", "fp16", "bf16"} {
			for _, strategy := range []string{"none", "sqrt", "full", "optimal"} {
				if file := "/" + model + "-" + precision + "-" + strategy + ".onnx"; strings.Count(out, file) < 2 {
					t.Errorf("%s is not written and compared", file)
				}
			}
		}
	}
	for _, part := range []string{"tables.py mlp heavy encoder", "torchside.py --device cuda"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %s", part)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a dry run made the folder")
	}
}

// TestGPURehearsal runs the whole validation without a GPU, with tiny models: every
// part but arithmetic is done, and no figure is a time or a difference.
func TestGPURehearsal(t *testing.T) {
	build, err := install.FindRehearsal("")
	if err == nil {
		err = nulldevice.Check(build)
	}
	if err != nil {
		t.Skipf("no rehearsal: %v; make test-rehearse gets what it needs", err)
	}
	remat, env := program(t)
	dir := filepath.Join(t.TempDir(), "out")
	out := run(t, append(env, "REMAT_ORT="+build), 0, "./gpu-validate.sh", "--rehearse", "--small", "--remat", remat, "--out", dir)
	if !strings.Contains(out, "no numbers were computed") {
		t.Error("it does not say what is missing")
	}
	var summary struct {
		Parts    []struct{ Part, State string }
		Variants []map[string]any
	}
	read(t, filepath.Join(dir, "summary.json"), &summary)
	for _, p := range summary.Parts {
		if want := map[string]string{"arithmetic": "missing"}[p.Part]; p.State != cmp.Or(want, "done") {
			t.Errorf("%s %s", p.Part, p.State)
		}
	}
	if n := len(summary.Variants); n != 12 {
		t.Errorf("%d variants, want 3 precisions of 4 strategies", n)
	}
	for _, v := range summary.Variants {
		if v["rehearsed"] != "no numbers were computed" || v["error"] != nil || v["live peak MB"] == nil {
			t.Errorf("%v", v)
		}
		for _, number := range []string{"step s", "overhead", "loss difference", "gradient difference"} {
			if _, there := v[number]; there {
				t.Errorf("%s has a %s", v["variant"], number)
			}
		}
	}
}

// TestGPUSmoke runs the whole validation on the CPU with tiny models.
func TestGPUSmoke(t *testing.T) {
	remat, env := program(t)
	dir := filepath.Join(t.TempDir(), "out")
	run(t, env, 0, "./gpu-validate.sh", "--cpu-smoke", "--remat", remat, "--out", dir)
	var summary struct {
		Parts    []struct{ Part, State string }
		Variants []struct {
			Variant string
			Error   *string
			Peak    float64 `json:"live peak MB"`
			Guess   float64 `json:"predicted MB"`
		}
	}
	read(t, filepath.Join(dir, "summary.json"), &summary)
	for _, p := range summary.Parts {
		if p.State != "done" && p.Part != "pytorch" {
			t.Errorf("%s %s", p.Part, p.State)
		}
	}
	if n := len(summary.Variants); n != 12 {
		t.Errorf("%d variants, want 3 precisions of 4 strategies", n)
	}
	for _, v := range summary.Variants {
		if v.Error != nil || v.Peak <= 0 || v.Peak != v.Guess {
			t.Errorf("%s: error %v, peak %v MB, predicted %v", v.Variant, v.Error, v.Peak, v.Guess)
		}
	}
	for _, file := range []string{"index.html", "gpt2-tiny-fp32.html", "gpt2-tiny-bf16.json", "mlp.md", "doctor.json"} {
		if s, err := os.Stat(filepath.Join(dir, file)); err != nil || s.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestGPUMissing: without a GPU the validation says so and what to do.
func TestGPUMissing(t *testing.T) {
	remat, env := program(t)
	if exec.Command("nvidia-smi").Run() == nil {
		t.Skip("there is a GPU")
	}
	out := run(t, env, 2, "./gpu-validate.sh", "--remat", remat, "--out", t.TempDir())
	if !strings.Contains(out, "provider cuda does not run here") || !strings.Contains(out, "--cpu-smoke") {
		t.Errorf("says %q", out)
	}
}

func TestUnknownOption(t *testing.T) {
	run(t, os.Environ(), 2, "./gpu-validate.sh", "--frobnicate")
	run(t, os.Environ(), 2, "./validate_exports.sh", t.TempDir())
	run(t, os.Environ(), 2, "./test_ort.sh")
	run(t, os.Environ(), 2, "./test_ort.sh", "newest")
}

// TestOtherReleaseRunsTests: every part of a pattern in test_ort.sh names a test.
func TestOtherReleaseRunsTests(t *testing.T) {
	script, err := os.ReadFile("test_ort.sh")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`go test .* \./(\S+).* -run '?([^'\n]+)'?`).FindAllSubmatch(script, -1)
	if len(lines) < 4 {
		t.Fatalf("%d lines with a pattern", len(lines))
	}
	for _, line := range lines {
		folder, pattern := filepath.Join("..", string(line[1])), string(line[2])
		names := ""
		files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllSubmatch(text, -1) {
				names += string(f[1]) + "\n"
			}
		}
		test, archives, _ := strings.Cut(pattern, "/")
		for part := range strings.SplitSeq(test, "|") {
			if !strings.Contains(names, part) {
				t.Errorf("%s has no test %s", folder, part)
			}
		}
		for part := range strings.SplitSeq(strings.Trim(archives, "()$"), "|") {
			if _, err := os.Stat(filepath.Join(folder, "testdata", "script", part+".txt")); archives != "" && err != nil {
				t.Error(err)
			}
		}
	}
}

// TestComparison: our half of the comparison with PyTorch needs Python's
// onnxruntime only.
func TestComparison(t *testing.T) {
	if exec.Command("python3", "-c", "import onnxruntime, numpy, safetensors").Run() != nil {
		t.Skip("python3 lacks onnxruntime, numpy or safetensors")
	}
	remat, env := program(t)
	file := filepath.Join(t.TempDir(), "c.json")
	run(t, env, 0, "python3", "-B", "../bench/compare.py", "--no-torch", "--remat", remat, "--json", file, "--by-operator",
		"--layers=2", "--hidden=48", "--heads=4", "--vocab=301", "--batch=2", "--seq=32", "--rounds=1")
	var document struct {
		Variants []struct {
			Name string
			Peak int64 `json:"live_peak_bytes"`
		}
	}
	read(t, file, &document)
	if len(document.Variants) != 2 || document.Variants[0].Peak <= 0 {
		t.Errorf("variants %v", document.Variants)
	}
}

// TestBeforeAfter: a program set beside itself writes the same files, which reach
// their predictions, and a case's verdict is that of its strategy's goal.
func TestBeforeAfter(t *testing.T) {
	remat, env := program(t)
	dir := t.TempDir()
	out := run(t, env, 0, "python3", "-B", "before_after.py", remat, remat, "--quick", "--only", "mlp small", "--share", "1", "--out", dir)
	var document struct {
		Rows []struct {
			Strategy, Verdict string
			After             struct {
				Peak int64 `json:"live_peak"`
				Bits map[string]any
				Off  []string
			}
		}
	}
	read(t, filepath.Join(dir, "before_after.json"), &document)
	if len(document.Rows) < 5 {
		t.Errorf("%d cases: %s", len(document.Rows), out)
	}
	for _, r := range document.Rows {
		if r.Verdict != "equal" || r.After.Peak <= 0 || len(r.After.Off) > 0 || r.Strategy != "as derived" && len(r.After.Bits) < 10 {
			t.Errorf("%+v", r)
		}
	}
	const verdicts = `
from before_after import compare
was = {"live_peak": 100, "session": 4, "reserved": 120, "work": 7, "bits": {"loss": [1.5], "w.grad": "00ff"}, "off": []}
for want, strategy, change in [
    ("equal", "sqrt", {}), ("better", "sqrt", {"live_peak": 99}), ("worse", "sqrt", {"live_peak": 101, "work": 0}), ("worse", "sqrt", {"work": 8}),
    ("traded", "least", {"live_peak": 99, "work": 8}), ("better", "optimal, budget", {"work": 6}), ("traded", "optimal, budget", {"work": 6, "live_peak": 101}),
    ("worse", "optimal, budget", {"work": 8, "live_peak": 90}), ("worse", "none", {"bits": {"loss": [1.5], "w.grad": "00fe"}}), ("worse", "none", {"off": ["session"]}),
    ("worse", "none", {"session": None}), ("worse", "none", {"refused": "no"}),
]:
    got, why = compare(was, {**was, **change}, strategy)
    assert got == want and bool(why) == bool(change), (strategy, change, got, why)
assert compare({"refused": "no"}, was, "none")[0] == "better"
assert compare({"refused": "no"}, {"refused": "no"}, "none") == ("equal", "")
`
	run(t, env, 0, "python3", "-B", "-c", verdicts)
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
