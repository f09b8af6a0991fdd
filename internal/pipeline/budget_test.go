package pipeline

import (
	"errors"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestBudgetIsMonotone plans for 20 budgets from the plain graph's peak down to
// the least: each is kept, and the overhead never falls when the budget does.
// Half of the least is refused, with the least in the error.
func TestBudgetIsMonotone(t *testing.T) {
	e := engine(t)
	foreign, err := Open(sample("joint/gpt2_tiny_eager.EMA.onnx"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	for _, c := range []struct {
		name  string
		model *onnx.Model
	}{{"gpt2_tiny_eager.EMA", foreign}, {"gpt2 of the zoo", trainingGraph(t, "gpt2", func(c *models.Config) { wideGPT(c); c.Layers = 2 })}} {
		t.Run(c.name, func(t *testing.T) {
			p, err := NewPlanner(e, c.model, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			plan := func(strategy string, budget int64) *File {
				r, err := p.Plan(strategy, budget)
				if err != nil {
					t.Fatalf("%s, budget %d: %v", strategy, budget, err)
				}
				return r
			}
			most, least := plan("none", 0).Peak, plan("least", 0).Peak
			const budgets = 20
			last := 0.0
			for i := range int64(budgets) {
				budget := most - (most-least)*i/(budgets-1)
				r := plan("optimal", budget)
				overhead := float64(r.Plan.RecomputeFLOPs(r.Problem())) / float64(r.Problem().FLOPs())
				t.Logf("budget %9d: peak %9d, overhead %.4f", budget, r.Peak, overhead)
				if r.Peak > budget {
					t.Errorf("budget %d: peak %d", budget, r.Peak)
				}
				if overhead < last {
					t.Errorf("budget %d: overhead %g, a larger budget took %g", budget, overhead, last)
				}
				last = overhead
			}
			var inf *planner.InfeasibleError
			if _, err := p.Plan("optimal", least/2); !errors.As(err, &inf) || inf.Least < inf.LowerBound || inf.Least > least {
				t.Errorf("half of the least peak %d: %v", least, err)
			}
		})
	}
}

// TestBudgetOfLastLayer: each layer of the graph that was given can have a budget, if it is none
// in a graph that is divided, too; a layer that there is not is an error.
func TestBudgetOfLastLayer(t *testing.T) {
	given := trainingGraph(t, "gpt2-tiny", func(*models.Config) {})
	for layer, want := range map[string]bool{"transformer.h.0": true, "transformer.h.1": true, "transformer.h.2": false} {
		b, _, err := ParseLayerBudget(layer + "=50%")
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPlanner(engine(t), given, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Layers: []LayerBudget{b}})
		var f *File
		if err == nil {
			f, err = p.Plan("optimal", 0)
		}
		if (err == nil) != want {
			t.Errorf("%s: %v", layer, err)
		}
		if err != nil {
			continue
		}
		for _, l := range f.LayerBudgets() {
			if l.KeptBytes > l.BudgetBytes || l.BudgetBytes != l.PlainBytes/2 {
				t.Errorf("%s keeps %d, budget %d of %d", layer, l.KeptBytes, l.BudgetBytes, l.PlainBytes)
			}
		}
	}
}

// TestLayerBudgetOutOfTime: a search within budgets of layers that ends before it has a plan gives
// the least that there is, or says which layers keep too much, never a budget that nobody gave.
func TestLayerBudgetOutOfTime(t *testing.T) {
	given := trainingGraph(t, "gpt2-tiny", func(*models.Config) {})
	for size, want := range map[string]bool{"99%": true, "1B": false} {
		b, _, err := ParseLayerBudget("*=" + size)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Layers: []LayerBudget{b}, TimeLimited: true, Stop: func() bool { return true }}
		p, err := NewPlanner(engine(t), given, o)
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Plan("optimal", 0)
		if limit, ok := errors.AsType[*planner.LimitError](err); f == nil || (err == nil) != want || err != nil && (!ok || limit.Name != "*") {
			t.Errorf("%s: %v, %v", size, f != nil, err)
		}
	}
}
