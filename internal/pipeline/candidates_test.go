package pipeline

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/optim"
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
		if c.Overhead > 0 || c.Variant != p.base() || len(p.asked.prepared()) > 1 {
			t.Errorf("the first candidate of a budget that all keep repeats %g, of %d variants", c.Overhead, len(p.asked.prepared()))
		}
		break
	}
	budget, last, variants := p.Scheduled*6/10, 0.0, map[*Variant]int{}
	var all []Candidate
	for c, err := range p.ascending(s, Budget{Live: budget}, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Overhead < last || c.Peak > budget {
			t.Errorf("overhead %g after %g, peak %d of %d", c.Overhead, last, c.Peak, budget)
		}
		if len(all) == 0 && !slices.ContainsFunc(p.asked.divided[:], func(q *preparation) bool { return q != nil }) {
			t.Error("for the first candidate all that is divided is prepared, too")
		}
		last = c.Overhead
		variants[c.Variant]++
		all = append(all, c)
	}
	n := 0
	for _, v := range p.asked.prepared() {
		for c, err := range s.Frontier(v.Problem(), budget, nil) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; !slices.ContainsFunc(all, func(d Candidate) bool { return d.Variant == v && d.Overhead == c.Overhead && d.Peak == c.Peak }) {
				t.Errorf("%g more work for %d bytes is left out", c.Overhead, c.Peak)
			}
		}
	}
	if n != len(all) {
		t.Errorf("%d candidates, want %d", len(all), n)
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

// TestSearchedWhereItCounts: a variant whose parts add more work than is asked for is not
// searched, and the curve is that of all variants searched to their end, point by point.
func TestSearchedWhereItCounts(t *testing.T) {
	e, m := engine(t), zooStep(t, "gpt2", optim.AdamW, func(c *models.Config) { wideGPT(c); c.Layers = 2 })
	s, _, err := planner.Find("optimal")
	if err != nil {
		t.Fatal(err)
	}
	curve := func(work float64) (*Planner, []Candidate) {
		p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		list, err := p.curve(s, work)
		if err != nil {
			t.Fatal(err)
		}
		return p, list
	}
	p, few := curve(0.01)
	idle := 0
	for i, q := range p.asked.divided {
		if v := p.asked.variants[i]; v != nil && v.Problem().Searched() != (v.Problem().Floor() <= 0.01) || q != nil && p.asked.adds[i] <= 0.01 {
			t.Errorf("choice %d adds at least %g: prepared %t, and searched, for 0.01", i, p.asked.adds[i], v != nil)
		} else if q != nil {
			idle++
		}
	}
	if idle == 0 || len(few) == 0 {
		t.Errorf("%d variants are not prepared, %d points: nothing is told", idle, len(few))
	}
	p, list := curve(math.Inf(1))
	var want []Candidate
	for _, v := range p.asked.prepared() {
		for c, err := range s.Frontier(v.Problem(), math.MaxInt64, nil) {
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, Candidate{Variant: v, Overhead: c.Overhead, Peak: c.Peak})
		}
	}
	slices.SortStableFunc(want, func(a, b Candidate) int { return cmp.Compare(a.Overhead, b.Overhead) })
	least, n := int64(math.MaxInt64), 0
	for _, c := range want {
		if c.Peak >= least {
			continue
		}
		if least = c.Peak; n == len(list) || list[n].Variant != c.Variant || list[n].Overhead != c.Overhead || list[n].Peak != c.Peak {
			t.Fatalf("point %d of %d is not that of %g more work and %d bytes", n, len(list), c.Overhead, c.Peak)
		}
		n++
	}
	if n != len(list) {
		t.Errorf("%d points, want %d", len(list), n)
	}
}

// TestSlicedHopeless: a variant with updates in slices is not even prepared where the one
// without them says that no plan of it can cost less; and none that was left out so does.
func TestSlicedHopeless(t *testing.T) {
	s, _, err := planner.Find("optimal")
	if err != nil {
		t.Fatal(err)
	}
	m := zooStep(t, "gpt2", optim.AdamW, func(c *models.Config) { c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 8, 96, 4, 4000, 64, 8 })
	p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := newBargain(p.Before.TotalPeak-p.Before.LivePeak, math.MaxInt64)
	if err := p.follow(s, math.Inf(1), b); err != nil {
		t.Fatal(err)
	}
	if at := b.of(b.curve[b.knee(math.MaxInt64)]); at > b.price {
		t.Errorf("the curve comes to a price of %g, and a variant to %g", at, b.price)
	}
	left := 0
	for choice := range choices {
		if choices[choice].Rows == (Division{}) || p.asked.asked[choice] {
			continue
		}
		v, err := p.variant(s, p.asked, choice)
		if err != nil {
			t.Fatal(err)
		}
		if v == nil {
			continue
		}
		left++
		for c, err := range s.Frontier(v.Problem(), math.MaxInt64, nil) {
			if err != nil {
				t.Fatal(err)
			}
			if price := b.of(Candidate{Overhead: c.Overhead, Peak: c.Peak}); price < b.price {
				t.Errorf("choice %d was left out: %g more work and %d bytes cost %g, what was found %g", choice, c.Overhead, c.Peak, price, b.price)
			}
		}
	}
	if left == 0 {
		t.Error("all variants were prepared: nothing is told")
	}
}
