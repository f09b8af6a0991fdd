package planner

import (
	"errors"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"testing"
)

// within is the plan with the least work that the search finds within a budget; an
// InfeasibleError has the least peak that it finds.
func within(p *Problem, budget int64) (*Plan, error) {
	for c, err := range optimalFrontier(p, budget, nil) {
		if err != nil {
			return nil, err
		}
		return c.Plan()
	}
	ix := p.indexed()
	least, err := ix.leastPeak(ix.explored().front.points)
	if err != nil {
		return nil, err
	}
	none, err := ix.none() // an order may do more than any recomputation
	if err != nil {
		return nil, err
	}
	least = min(least, none.peak)
	return nil, &InfeasibleError{Budget: budget, Least: least, LowerBound: LowerBound(p)}
}

// leastPeak is the least peak of the frontier's plans, moved where a budget would have it.
func (ix *index) leastPeak(points []*point) (int64, error) {
	least := int64(math.MaxInt64)
	for _, q := range points {
		if _, err := ix.settledAt(q); err != nil {
			return 0, err
		}
		least = min(least, q.counted, q.judged)
		if !ix.outOfReach(max(q.peak, q.counted, q.judged), q.moved) {
			least = min(least, q.moved)
		}
	}
	return least, nil
}

// budgets returns n budgets from most down to least.
func budgets(most, least int64, n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = most - (most-least)*int64(i)/int64(n-1)
	}
	return list
}

func TestBudgetIsMonotone(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	problems := map[string]*Problem{"chain": chain(40), "transformer": transformer(6, 1024, 256, 256, 8)}
	for i := range 5 {
		problems[fmt.Sprint("random", i)] = random(r, 30)
	}
	for name, p := range problems {
		var infeasible *InfeasibleError
		if _, err := within(p, 1); !errors.As(err, &infeasible) {
			t.Fatalf("%s: one byte is enough: %v", name, err)
		}
		plain := peaks(t, p, "none")
		last := -1.0
		for _, budget := range budgets(plain.Peak, infeasible.Least, 20) {
			plan, err := within(p, budget)
			if err != nil {
				t.Fatalf("%s: budget %d: %v", name, budget, err)
			}
			v, err := Judge(p, plan)
			if err != nil {
				t.Fatal(err)
			}
			if v.Peak > budget {
				t.Errorf("%s: budget %d: peak %d", name, budget, v.Peak)
			}
			if v.Overhead < last-1e-3 { // in the order of the search, bytes moved are work too
				t.Errorf("%s: budget %d: overhead falls from %g to %g", name, budget, last, v.Overhead)
			}
			last = v.Overhead
		}
		if _, err := within(p, infeasible.Least-1); !errors.As(err, &infeasible) {
			t.Errorf("%s: less than the least peak is met: %v", name, err)
		}
		if infeasible.LowerBound > infeasible.Least {
			t.Errorf("%s: %v", name, infeasible)
		}
	}
}

// TestBudgetCountsMoves: within a budget that only moves bring a plan of the frontier to,
// nothing that repeats more is taken.
func TestBudgetCountsMoves(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	moved := 0
	for i := range 8 {
		p := random(r, 40)
		ix := p.indexed()
		for _, q := range ix.explored().front.points {
			if _, err := ix.settledAt(q); err != nil {
				t.Fatal(err)
			}
			if q.moved >= min(q.counted, q.judged) || ix.outOfReach(q.judged, q.moved) {
				continue
			}
			moved++
			plan, err := within(p, q.moved)
			if err != nil {
				t.Fatalf("random%d: %d bytes: %v", i, q.moved, err)
			}
			if v, err := Judge(p, plan); err != nil || v.Peak > q.moved || v.Overhead > q.overhead {
				t.Errorf("random%d: %d bytes at %g more work: %+v, %v", i, q.moved, q.overhead, v, err)
			}
		}
	}
	if moved < 10 {
		t.Errorf("%d plans are moved", moved)
	}
}

func TestOptimalBeatsTheOthers(t *testing.T) {
	for name, p := range map[string]*Problem{"chain": chain(40), "transformer": transformer(12, 8192, 768, 1024, 12)} {
		for _, strategy := range []string{"sqrt", "full", "every=2", "selective"} {
			other := peaks(t, p, strategy)
			plan, err := within(p, other.Peak)
			if err != nil {
				t.Errorf("%s: %s reaches %d: %v", name, strategy, other.Peak, err)
				continue
			}
			v, err := Judge(p, plan)
			if err != nil {
				t.Fatal(err)
			}
			if v.Overhead > other.Overhead+1e-9 {
				t.Errorf("%s: %s costs %.4f, optimal %.4f at the same peak", name, strategy, other.Overhead, v.Overhead)
			}
		}
	}
}

func TestTransformerTargets(t *testing.T) {
	p := transformer(12, 8192, 768, 1024, 12)
	plain := peaks(t, p, "none")
	for _, target := range []struct{ share, overhead float64 }{{0.31, 0.08}, {0.2, 0.2}} {
		plan, err := within(p, int64(target.share*float64(plain.Peak)))
		if err != nil {
			t.Errorf("%+v: %v", target, err)
			continue
		}
		v, err := Judge(p, plan)
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("%+v: %.4f", target, v.Overhead); v.Overhead > target.overhead {
			t.Errorf("%+v: overhead %.4f", target, v.Overhead)
		}
	}
}

func TestPareto(t *testing.T) {
	curve, err := Pareto(transformer(4, 1024, 256, 256, 8))
	if err != nil || len(curve) < 10 {
		t.Fatalf("%d points, %v", len(curve), err)
	}
	for i := 1; i < len(curve); i++ {
		if curve[i].Peak <= curve[i-1].Peak || curve[i].Overhead >= curve[i-1].Overhead {
			t.Errorf("point %d: %d %g after %d %g", i, curve[i].Peak, curve[i].Overhead, curve[i-1].Peak, curve[i-1].Overhead)
		}
	}
}

// A search simulates so many executions of operators and no more, whatever the
// machine: a number that does not grow, and for each operator of a large graph
// so many.
const (
	searchExecutions      = 2_600_000
	searchExecutionsPerOp = 450
)

func TestSearchGrowsWithTheGraph(t *testing.T) {
	for _, layers := range sweptLayers {
		p := transformer(layers, 8192, 768, 1024, 12)
		if _, err := Solve(p, "optimal"); err != nil {
			t.Fatal(err)
		}
		done, limit := p.indexed().events, int64(searchExecutions+searchExecutionsPerOp*len(p.Ops))
		if t.Logf("%d layers, %d operators: %d executions simulated", layers, len(p.Ops), done); done > limit {
			t.Errorf("%d layers, %d operators: %d executions simulated, %d are allowed", layers, len(p.Ops), done, limit)
		}
	}
}

// Of the early nodes of random orders most can wait, and none that waits costs
// memory.
func TestLegalizingLeavesFewEarlyNodes(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	before, after := 0, 0
	for i := range 100 {
		p := random(r, 30)
		order := topological(&p.Graph, p.Graph.Producers(), r.Perm(len(p.Ops)))
		s, err := p.count(&Plan{Schedule: order})
		if err != nil {
			t.Fatal(err)
		}
		e := p.legalized(s)
		if e.peak > s.peak || len(e.early) > len(s.early) {
			t.Errorf("problem %d: %d early nodes at %d bytes, legalized %d at %d", i, len(s.early), s.peak, len(e.early), e.peak)
		}
		before, after = before+len(s.early), after+len(e.early)
	}
	if t.Logf("%d early nodes, %d legalized", before, after); before < 100 || after > before/4 {
		t.Errorf("of %d early nodes %d are left", before, after)
	}
}

var sweptLayers = []int{2, 6, 12, 24, 48, 96}

func BenchmarkOptimal(b *testing.B) {
	for _, layers := range sweptLayers {
		b.Run(fmt.Sprint(layers), func(b *testing.B) {
			for b.Loop() {
				p := transformer(layers, 8192, 768, 1024, 12)
				if _, err := Solve(p, "optimal"); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(p.Ops)), "ops")
				b.ReportMetric(float64(p.indexed().events), "executions")
			}
		})
	}
}

// What holds clearly more than a plan known from elsewhere is not judged; of the rest, the
// frontier is the same. The plan of least work is looked at in any case.
func TestWhatIsKnownIsNotJudged(t *testing.T) {
	frontier := func(known func() int64) (list []Candidate, judged int) {
		p := transformer(6, 8192, 768, 1024, 12)
		for c, err := range optimalFrontier(p, math.MaxInt64, known) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, c)
		}
		for _, q := range p.indexed().explored().front.points {
			if q.counted > 0 {
				judged++
			}
		}
		return list, judged
	}
	all, most := frontier(nil)
	half := all[len(all)/2].Peak
	some, judged := frontier(func() int64 { return half })
	if t.Logf("%d plans, %d judged; half of the curve known: %d plans, %d judged", len(all), most, len(some), judged); judged > len(some)+1 || judged > most*3/4 {
		t.Errorf("%d of %d plans judged where half of the curve is known, %d yielded", judged, most, len(some))
	}
	below := func(list []Candidate) (peaks []int64) {
		for _, c := range list {
			if c.Peak <= half {
				peaks = append(peaks, c.Peak)
			}
		}
		return peaks
	}
	if !slices.Equal(below(all), below(some)) {
		t.Errorf("below what is known the peaks are %d, and were %d", below(some), below(all))
	}
}

// Both base orders begin with the same orders: what runs late or early in one is found once.
func TestOrdersAreLookedAtOnce(t *testing.T) {
	ix := transformer(4, 8192, 768, 1024, 12).indexed()
	ix.lean()
	for k, wanted := range ix.candidates() {
		s := newOrderSearch(ix, wanted, true)
		before := ix.events
		ix.inversions(s.walk, s.order, s.sim)
		ix.deferrals(s.order, s.sim)
		if again := ix.events - before; again > 0 {
			t.Errorf("order %d: %d executions simulated again", k, again)
		}
	}
}

// TestLeastPricesWork: of the plans that hold nearly the least, none is taken that holds more for
// work that is not worth it, nor one that repeats much for a few bytes.
func TestLeastPricesWork(t *testing.T) {
	for _, c := range []struct {
		want  int
		plans [][2]float64 // bytes, work
	}{
		{0, [][2]float64{{1000, 0.1}}},
		{1, [][2]float64{{100_000, 0.13}, {100_200, 0.02}, {100_600, 0.013}, {103_000, 0}}}, // the last bytes are dear, the next ones are not
		{2, [][2]float64{{100_000, 0.13}, {100_200, 0.12}, {100_600, 0.01}}},
		{0, [][2]float64{{100_000, 0.5}, {101_001, 0}}}, // not near
		{0, [][2]float64{{100_000, 0.02}, {100_200, 0.02}}},
	} {
		got := standard.worthLeast(len(c.plans), func(k int) (int64, float64) { return int64(c.plans[k][0]), c.plans[k][1] })
		if got != c.want {
			t.Errorf("of %v number %d is taken, want %d", c.plans, got, c.want)
		}
	}
}
