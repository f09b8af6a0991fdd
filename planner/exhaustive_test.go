package planner

import (
	"errors"
	"math/rand"
	"testing"
)

// Small problems: optimal against every keep set in the plain order, each judged. A gap can come
// from the search's simulation alone, which leaves out barriers.
func TestOptimalEqualsExhaustive(t *testing.T) {
	r := rand.New(rand.NewSource(7))
	problems, gaps, budgetsTried := 500, 0, 0
	if testing.Short() {
		problems = 50
	}
	for i := range problems {
		p := randomOf(r, 3+r.Intn(10), 6+i%2) // up to 12 forward operators
		ix := p.indexed()
		type found struct {
			peak     int64
			overhead float64
		}
		var all []found
		keep := make([]bool, len(ix.root))
		bound, tradeoff := LowerBound(p), ix.tradeoff()
		for set := 0; set < 1<<len(ix.stash); set++ {
			for k, root := range ix.stash {
				keep[root] = set>>k&1 != 0
			}
			v, err := Judge(p, Legalize(p, ix.built("", keep, false), nil))
			if err != nil {
				t.Fatal(err)
			}
			if v.Peak < bound {
				t.Fatalf("problem %d: peak %d below the lower bound %d", i, v.Peak, bound)
			}
			if least := tradeoff(float64(v.RecomputeFLOPs)); v.Peak < least {
				t.Fatalf("problem %d: peak %d below the lower bound %d for its work", i, v.Peak, least)
			}
			all = append(all, found{v.Peak, v.Overhead})
		}
		least, most := all[0].peak, all[0].peak
		for _, f := range all {
			least, most = min(least, f.peak), max(most, f.peak)
		}
		for _, budget := range budgets(most, least, 4) {
			budgetsTried++
			best := -1.0
			for _, f := range all {
				if f.peak <= budget && (best < 0 || f.overhead < best) {
					best = f.overhead
				}
			}
			plan, err := within(p, budget)
			var infeasible *InfeasibleError
			if errors.As(err, &infeasible) {
				gaps++
				t.Logf("problem %d, budget %d: least %d found, %d there is", i, budget, infeasible.Least, least)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			v, err := Judge(p, plan)
			if err != nil {
				t.Fatal(err)
			}
			if v.Peak > budget {
				t.Errorf("problem %d: budget %d: peak %d", i, budget, v.Peak)
			}
			if v.Overhead > best+0.001 {
				gaps++
				t.Logf("problem %d, budget %d: overhead %.4f, best %.4f", i, budget, v.Overhead, best)
			}
		}
	}
	t.Logf("%d gaps in %d budgets of %d problems", gaps, budgetsTried, problems)
	if 100*gaps > 2*budgetsTried {
		t.Errorf("%d gaps in %d budgets", gaps, budgetsTried)
	}
}

// TestExhaustsSmallGraphsOnly: all sets of few values are judged only where the step is
// short too. A recurrence has few values that may be dropped, and thousands of operators in
// its backward.
func TestExhaustsSmallGraphsOnly(t *testing.T) {
	recurrence := func(steps int) *index {
		b := newBuilder()
		w, x := b.weight("w", 1<<13), b.feed("x", 1<<14)
		for range 4 {
			x = b.unary("Tanh", b.matmul(x, w, 1<<14, 1<<16), true)
		}
		b.tape = append(b.tape, func() {
			for range steps {
				b.flow(w, "Step", 1<<10, x)
			}
		})
		return b.finish(x, nil).indexed()
	}
	for steps, want := range map[int]bool{10: true, 4000: false} {
		ix := recurrence(steps)
		if n := len(ix.stash); n < 7 || n > ix.tune.exhaustiveStash {
			t.Fatalf("%d values may be dropped", n)
		}
		if got := ix.exhaustible(2); got != want {
			t.Errorf("%d steps: all of 2^%d sets are judged: %v", steps, len(ix.stash), got)
		}
		if len(ix.explored().front.points) == 0 {
			t.Errorf("%d steps: nothing was found", steps)
		}
	}
}
