package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/install"
)

// otherEnv names the library of another release of ONNX Runtime, of which
// TestFilesInOtherRelease asks what this one promised (make test-ort).
const otherEnv = "REMAT_OTHER_ORT"

// passed are the files that are handed from release to release, and the levels of ONNX
// Runtime's optimizers at which they run: remat's own, and everybody's default.
var passed = struct {
	models, optimizers, levels []string
	files                      [][2]string // by strategy and precision
}{
	models:     []string{"gpt2-tiny.1", "encoder.2", "mlp.3", "heavy.4"}, // of the sweep on CUDA
	optimizers: []string{"none", "adamw"},
	files:      [][2]string{{"none", "fp32"}, {"optimal", "fp32"}, {"full", "fp16"}, {"full", "bf16"}},
	levels:     []string{"1", "99"},
}

// TestFilesInOtherRelease: a file that was written with one release of ONNX Runtime takes
// what it promises in the other, to the byte, live and in an arena, in three steps; and
// what is predicted with that release, for the session too.
func TestFilesInOtherRelease(t *testing.T) {
	other := os.Getenv(otherEnv)
	if other == "" {
		t.Skipf("%s names no library of another release", otherEnv)
	}
	library, err := install.Find("")
	if err != nil {
		t.Fatal(err)
	}
	here := &cells{program: built(t), dir: t.TempDir(), flags: []string{"--quiet", "--provider", "cpu"}, env: append(os.Environ(), "REMAT_ORT="+library)}
	there := *here
	there.env = append(os.Environ(), "REMAT_ORT="+other)
	p := pair{here: here, there: &there}
	steps := givenSteps(t, here)
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		step := steps[name]
		t.Run(name, func(t *testing.T) {
			for _, f := range passed.files {
				p.cell(t, here, &there, step, f[0], f[1])
			}
			p.cell(t, &there, here, step, "full", "fp32")
		})
	}
	t.Logf("%d runs of files in another release than wrote them", p.runs)
}

// givenSteps are training graphs by name: the zoo made small, every exported sample, and
// every optimizer.
func givenSteps(t *testing.T, c *cells) map[string]string {
	t.Helper()
	steps := map[string]string{}
	grad := func(name, forward, optimizer string) {
		args := []string{"grad", forward, "-o", name + ".onnx", "--optimizer", optimizer}
		if strings.Contains(name, "dynaxes") {
			args = append(args, "--dim", "batch=2,seq=16")
		}
		c.must(t, args...)
		steps[name] = name + ".onnx"
	}
	for i, model := range whole.models {
		name := fmt.Sprintf("%s.%d", model[0], i)
		if !slices.Contains(passed.models, name) {
			continue
		}
		c.must(t, append([]string{"model", model[0], "-o", name + ".onnx"}, model[1:]...)...)
		for _, optimizer := range passed.optimizers {
			grad(name+"."+optimizer, name+".onnx", optimizer)
		}
	}
	for _, kind := range optim.Kinds() {
		grad("by."+string(kind), "gpt2-tiny.1.onnx", string(kind))
	}
	samples, err := filepath.Abs(filepath.Join("..", "..", "testdata", "models"))
	if err != nil {
		t.Fatal(err)
	}
	forward, err := filepath.Glob(filepath.Join(samples, "*.onnx"))
	if err != nil || len(forward) < 10 {
		t.Fatalf("found %d samples: %v", len(forward), err)
	}
	for _, path := range forward {
		grad("sample."+filepath.Base(path), path, "adamw")
	}
	for _, joint := range []string{"mlp20.EMA", "gpt2_tiny_eager.step_adamw"} {
		steps["joint."+joint] = filepath.Join(samples, "joint", joint+".onnx")
	}
	return steps
}

// A pair is the program with two releases, and what was compared.
type pair struct {
	here, there *cells
	runs        int
}

// cell has one of the two write a file, and runs it in the other.
func (p *pair) cell(t *testing.T, by, in *cells, step, strategy, precision string) {
	t.Helper()
	const file = "file.onnx"
	out, err := by.remat("rewrite", step, "--strategy", strategy, "--precision", precision, "--time-limit", "2s", "-o", file, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var doc report.Plan
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	promised := doc.Total
	if promised == nil {
		t.Fatalf("%s %s of %s is not predicted", strategy, precision, step)
	}
	for _, level := range passed.levels {
		name := fmt.Sprintf("%s %s at level %s", strategy, precision, level)
		if in == p.here {
			name += ", of the other release"
		}
		m, err := in.measured(file, level)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p.runs++
		if *m.LivePeakBytes == promised.LivePeakBytes && *m.ArenaReservedBytes == promised.ArenaReservedBytes {
			continue
		}
		// Another level may take something else; not so another release.
		own, err := by.measured(file, level)
		if err != nil {
			t.Errorf("%s, in the release that wrote it: %v", name, err)
		} else if *own.LivePeakBytes != *m.LivePeakBytes || *own.ArenaReservedBytes != *m.ArenaReservedBytes {
			t.Errorf("%s: live peak %d, arena %d; in the release that wrote it %d and %d", name,
				*m.LivePeakBytes, *m.ArenaReservedBytes, *own.LivePeakBytes, *own.ArenaReservedBytes)
		}
	}
}
