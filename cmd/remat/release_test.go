package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/install"
)

// otherEnv names the library of another release of ONNX Runtime, of which
// TestFilesInOtherRelease asks what this one promised (make test-ort).
const otherEnv = "REMAT_OTHER_ORT"

// passed are the strategies and types whose files are handed to another release.
var passed = sweep{
	strategies: []string{"none", "full", "optimal"},
	types:      []string{"fp32", "fp16", "bf16"},
	levels:     []string{"0", "1", "99"},
}

// TestFilesInOtherRelease: a file that was written with one release of ONNX Runtime takes
// the same memory in the other, to the byte, live, for the session and in an arena, in
// three steps at every level; there it is what the other's library is predicted to take.
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
	for name, step := range givenSteps(t, here) {
		t.Run(name, func(t *testing.T) {
			for _, strategy := range passed.strategies {
				for _, precision := range passed.types {
					p.cell(t, here, step, strategy, precision)
				}
			}
			p.cell(t, &there, step, "optimal", "fp32")
		})
	}
	t.Logf("%d runs of files in both releases, %d with the same bits of the loss", p.runs, p.alike)
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
		forward := fmt.Sprintf("%s.%d.onnx", model[0], i)
		c.must(t, append([]string{"model", model[0], "-o", forward}, model[1:]...)...)
		for _, optimizer := range whole.optimizers {
			grad(fmt.Sprintf("%s.%d.%s", model[0], i, optimizer), forward, optimizer)
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
	runs, alike int
}

// cell has one of the two write a file, and runs it in both.
func (p *pair) cell(t *testing.T, by *cells, step, strategy, precision string) {
	t.Helper()
	const file = "file.onnx"
	rewrite := []string{"rewrite", step, "--strategy", strategy, "--precision", precision, "-o", file}
	if strategy == "optimal" {
		rewrite = append(rewrite, "--time-limit", "2s")
	}
	by.must(t, rewrite...)
	release := "this"
	if by == p.there {
		release = "the other"
	}
	for _, level := range passed.levels {
		name := fmt.Sprintf("%s %s at level %s, written with %s release", strategy, precision, level, release)
		a, err := p.here.ran(file, level)
		if err != nil {
			t.Errorf("%s, here: %v", name, err)
		}
		b, err := p.there.ran(file, level)
		if err != nil {
			t.Errorf("%s, there: %v", name, err)
		}
		if a == nil || b == nil {
			continue
		}
		p.runs++
		if said(a.Steps) == said(b.Steps) {
			p.alike++
		}
		for what, sizes := range map[string][2]*int64{
			"live peak": {a.Memory.LivePeakBytes, b.Memory.LivePeakBytes},
			"session":   {a.Memory.SessionBytes, b.Memory.SessionBytes},
			"arena":     {a.Memory.ArenaReservedBytes, b.Memory.ArenaReservedBytes},
		} {
			if *sizes[0] != *sizes[1] {
				t.Errorf("%s: %s of %d bytes here, %d there", name, what, *sizes[0], *sizes[1])
			}
		}
	}
}

// said are the numbers of steps, in words.
func said(steps []report.Step) string {
	var b strings.Builder
	for _, s := range steps {
		text, _ := json.Marshal(s.Outputs)
		b.Write(text)
	}
	return b.String()
}
