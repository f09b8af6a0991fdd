package pipeline

import (
	"context"
	"errors"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestBudgetTotal plans under bounds on all that a step takes and runs what was
// written, in an arena set up as run does it: what is measured, with what the
// arena reserves, is what was predicted, and within the bound. A bound under the
// least is refused with a total that can be had.
func TestBudgetTotal(t *testing.T) {
	e := engine(t)
	tiny := trainingGraph(t, "gpt2-tiny", func(c *models.Config) {})
	// Two of its tensors take most of it, so that the arena holds much unused.
	wide := zooStep(t, "gpt2", optim.AdamW, func(c *models.Config) {
		wideGPT(c)
		c.Layers, c.Hidden, c.Vocab, c.Seq = 1, 64, 2000, 64
	})
	for name, m := range map[string]*onnx.Model{"gpt2-tiny": tiny, "gpt2 with adamw": wide} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			none, err := p.PlanWithin("none", Budget{})
			if err != nil {
				t.Fatal(err)
			}
			most := TotalOf(none.Prediction).Bytes()
			var refused *TotalError
			if _, err := p.PlanWithin("optimal", Budget{Total: most / 8}); !errors.As(err, &refused) {
				t.Fatalf("an eighth of %d: %v", most, err)
			}
			least := refused.Least.Bytes()
			last := 0.0
			for _, total := range []int64{most, (most + least) / 2, least} {
				r, err := p.PlanWithin("optimal", Budget{Total: total})
				if err != nil {
					t.Fatal(err)
				}
				want, got := TotalOf(r.Prediction), measuredTotal(t, e, r)
				t.Logf("bound %d: %+v, overhead %.3f", total, want, r.overhead())
				if !want.Exact || want.Bytes() != got || got > total {
					t.Errorf("bound %d: measured %d, predicted %d", total, got, want.Bytes())
				}
				if r.overhead() < last {
					t.Errorf("bound %d: overhead %g, a larger bound took %g", total, r.overhead(), last)
				}
				last = r.overhead()
			}
			// Both bounds at once: the tighter one says which error it is.
			if _, err := p.PlanWithin("none", Budget{Live: none.Peak, Total: most - 1}); !errors.As(err, &refused) {
				t.Errorf("a byte less than the total of none: %v", err)
			}
		})
	}
}

// measuredTotal runs a written file as run does and adds up what it took, with
// all that its allocator reserved in place of what was live.
func measuredTotal(t *testing.T, e *runtime.Engine, r *File) int64 {
	t.Helper()
	roles := runtime.Roles{Loss: r.Roles().Loss, Grad: r.Roles().Grad, New: r.Roles().New}
	s, err := e.Open(r.Model, runtime.Options{Level: 1, Threads: 2, Provider: ort.CPU, Roles: &roles})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	allocated := s.Memory().SessionBytes // so far
	if err := s.Place(r.Prediction.Slab()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.MeasureConstants(); err != nil {
		t.Fatal(err)
	}
	m := s.Memory()
	return m.ParameterBytes + m.StateBytes + m.FeedBytes + m.SessionBytes - allocated + m.ReservedBytes
}
