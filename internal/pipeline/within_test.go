package pipeline

import (
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestWithinWork: a file with a bound on its work keeps it and holds no more than with a
// tighter one, and what it holds cannot be had for less work: a budget of its peak finds
// no plan that repeats more.
func TestWithinWork(t *testing.T) {
	e := engine(t)
	small := func(c *models.Config) {
		if c.Layers = 4; c.Seq > 0 {
			c.Seq = 32
		}
		if c.Vocab > 0 {
			c.Vocab = 300
		}
		c.Hidden, c.Batch = 32, 4
		if c.Heads > 0 {
			c.Heads = 2
		}
	}
	graphs := map[string]func(t *testing.T) (*onnx.Model, map[string]int64){}
	for _, g := range []struct {
		name   string
		update optim.Kind
		change func(*models.Config)
	}{{"gpt2", optim.AdamW, wideGPT}, {"gpt2", optim.SGD, small}, {"mlp", optim.AdamW, small}, {"heavy", optim.SGD, small}, {"encoder", optim.AdamW, small}} {
		graphs[fmt.Sprint(g.name, " ", g.update)] = func(t *testing.T) (*onnx.Model, map[string]int64) {
			return zooStep(t, g.name, g.update, g.change), nil
		}
	}
	for _, name := range []string{"llama_tiny.dyn", "bert_tiny.ts", "resnet18_like.ts", "seq20_relu.dyn", "nanogpt_tril.ts_op17"} {
		graphs[name] = func(t *testing.T) (*onnx.Model, map[string]int64) {
			m, _, dims := derived(t, sample(name+".onnx"))
			return m, dims
		}
	}
	for name, graph := range graphs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, dims := graph(t)
			p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Dims: dims, Normalize: Auto})
			if err != nil {
				t.Fatal(err)
			}
			last := p.Scheduled + shapesBytes
			for _, work := range []float64{0, 0.05, 0.1, 0.2, 100} {
				f, err := p.PlanWithin("optimal", Budget{Work: &work})
				if err != nil {
					t.Fatal(err)
				}
				if f.overhead() > work || f.Peak > last {
					t.Errorf("at most %g: %g more work, %d bytes, %d before", work, f.overhead(), f.Peak, last)
				}
				last = f.Peak
				dual, err := p.PlanWithin("optimal", Budget{Live: f.Peak})
				if err != nil {
					t.Fatal(err)
				}
				if dual.overhead() > f.overhead()+1e-3 {
					t.Errorf("at most %g: %d bytes for %g, by a budget for %g", work, f.Peak, f.overhead(), dual.overhead())
				}
				if d := p.Document(f, Budget{Work: &work}); d.OverheadLimit == nil || !d.Feasible {
					t.Errorf("%+v", d)
				}
			}
			least, err := p.Plan("optimal", 0)
			if err != nil {
				t.Fatal(err)
			}
			if last > least.Peak+least.Peak/rough {
				t.Errorf("without a real bound %d bytes, by the search for the least %d", last, least.Peak)
			}
		})
	}
	half := 0.5
	p, err := NewPlanner(e, trainingGraph(t, "gpt2", wideGPT), Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.PlanWithin("full", Budget{Work: &half}); err == nil {
		t.Error("a strategy with one plan takes a bound on its work")
	}
	if _, err := p.PlanWithin("optimal", Budget{Work: &half, Live: 1 << 20}); err == nil {
		t.Error("a bound on the work goes with one on the memory")
	}
}
