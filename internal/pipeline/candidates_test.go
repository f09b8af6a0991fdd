package pipeline

import (
	"iter"
	"testing"

	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestAscending: candidates of all variants come by ascending work, each within the
// budget by its own count, and no variant is prepared that a free candidate makes
// needless.
func TestAscending(t *testing.T) {
	m := trainingGraph(t, "gpt2", wideGPT)
	p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := planner.Find("optimal")
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range p.ascending(s, Budget{Live: 2 * p.Before.LivePeak}, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Overhead > 0 || c.Variant != p.base() || len(p.asked.variants) > 1 {
			t.Errorf("the first candidate of a budget that all keep repeats %g, of %d variants", c.Overhead, len(p.asked.variants))
		}
		break
	}
	budget, last, variants := p.Scheduled*6/10, 0.0, map[*Variant]int{}
	for c, err := range p.ascending(s, Budget{Live: budget}, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Overhead < last || c.Peak > budget {
			t.Errorf("overhead %g after %g, peak %d of %d", c.Overhead, last, c.Peak, budget)
		}
		last = c.Overhead
		variants[c.Variant]++
	}
	if len(variants) < 3 {
		t.Errorf("candidates of %d variants, want more to merge", len(variants))
	}
}

// TestSolverIsAsked: a budget is planned for with the frontier of the solver that was
// named, whichever it is.
func TestSolverIsAsked(t *testing.T) {
	optimal, _, err := planner.Find("optimal")
	if err != nil {
		t.Fatal(err)
	}
	rows, asked := planner.Solvers, 0
	defer func() { planner.Solvers = rows }()
	planner.Solvers = append(rows[:len(rows):len(rows)], planner.Solver{Name: "dearest", Solve: optimal.Solve,
		Frontier: func(p *planner.Problem, budget int64, known func() int64) iter.Seq2[planner.Candidate, error] {
			asked++
			return func(yield func(planner.Candidate, error) bool) {
				var last *planner.Candidate
				for c, err := range optimal.Frontier(p, budget, known) {
					if err != nil {
						yield(c, err)
						return
					}
					last = &c
				}
				if last != nil {
					yield(*last, nil)
				}
			}
		}})
	m := trainingGraph(t, "gpt2", wideGPT)
	p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, AsIs: true})
	if err != nil {
		t.Fatal(err)
	}
	budget := p.Scheduled * 8 / 10
	least, err := p.Plan("optimal", budget)
	if err != nil {
		t.Fatal(err)
	}
	most, err := p.Plan("dearest", budget)
	if err != nil {
		t.Fatal(err)
	}
	if asked != 1 || most.Peak > budget || most.overhead() <= least.overhead() {
		t.Errorf("asked %d times: live peak %d of %d, overhead %g, that of optimal %g", asked, most.Peak, budget, most.overhead(), least.overhead())
	}
}
