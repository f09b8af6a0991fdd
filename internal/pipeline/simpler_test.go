package pipeline

import (
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestOptimalHoldsNoMoreThanSimpler takes a step of a few kilobytes, in which shapes
// and waiting buffers outweigh activations: of no simpler strategy does the file hold
// less than that of optimal, and a plan file leads to the same one.
func TestOptimalHoldsNoMoreThanSimpler(t *testing.T) {
	m := zooStep(t, "encoder", optim.AdamW, func(c *models.Config) {
		smallZoo(c)
		c.Layers, c.Hidden, c.Batch, c.Seq, c.Vocab = 3, 8, 2, 4, 7
	})
	p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	plan := func(strategy string) *File {
		r, err := p.Plan(strategy, 0)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	best := plan("optimal")
	if best.Plan.Strategy != "optimal" {
		t.Errorf("strategy %q, want optimal (%q)", best.Plan.Strategy, best.Plan.Notes)
	}
	for _, strategy := range simpler {
		if r := plan(strategy); r.Peak < best.Peak {
			t.Errorf("%s holds %d bytes, optimal %d", strategy, r.Peak, best.Peak)
		}
	}
	if again := throughFile(t, best, p); again.Peak != best.Peak {
		t.Errorf("the plan promises %d bytes, its file holds %d", best.Peak, again.Peak)
	}
}
