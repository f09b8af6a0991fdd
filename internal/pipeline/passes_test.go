package pipeline

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestPassOrder: what a pass must come after stands before it in the table, with
// a reason.
func TestPassOrder(t *testing.T) {
	var names []string
	for _, p := range passes {
		if p.doc == "" || p.run == nil || slices.Contains(names, p.name) {
			t.Errorf("pass %q has no doc or no function, or its name is taken", p.name)
		}
		if (len(p.after) > 0) != (p.why != "") {
			t.Errorf("pass %q: an order and its reason go together", p.name)
		}
		for _, earlier := range p.after {
			if !slices.Contains(names, earlier) {
				t.Errorf("pass %q must come after %q, which is not before it in the table", p.name, earlier)
			}
		}
		names = append(names, p.name)
	}
}

// TestEveryPassLeavesAValidGraph prepares and rewrites GPT-2 with every pass
// asked for.
func TestEveryPassLeavesAValidGraph(t *testing.T) {
	m := trainingGraph(t, "gpt2", wideGPT)
	var seen []string
	o := Options{
		Provider: ort.CPU, OptLevel: 1, Threads: 1, Normalize: ORT99, Divisions: Divisions{auto, auto, auto},
		DropOutputs: []string{"*ln_f*.grad"}, Precision: &precision.Options{To: onnx.BFloat16, StashOnly: true},
		After: func(pass string, m *onnx.Model) error {
			seen = append(seen, pass)
			if err := m.Check(); err != nil {
				return fmt.Errorf("pass %s: %w", pass, err)
			}
			return nil
		},
	}
	p, err := NewPlanner(engine(t), m, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Plan("selective", 0); err != nil {
		t.Fatal(err)
	}
	// What is for CUDA alone, and what the first would leave nothing of.
	o = Options{Provider: ort.CPU, CUDA: true, OptLevel: 1, Threads: 1, Batch: Division{Mode: InParts, N: 2}, WebGPU: true, After: o.After}
	if p, err = NewPlanner(engine(t), trainingGraph(t, "gpt2", wideGPT), o); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Plan("none", 0); err != nil {
		t.Fatal(err)
	}
	for _, pass := range passes {
		if !slices.Contains(seen, pass.name) {
			t.Errorf("pass %q did not run", pass.name)
		}
	}
	for _, name := range []string{"recompute", "schedule"} {
		if !slices.Contains(seen, name) {
			t.Errorf("pass %q did not run", name)
		}
	}
}
