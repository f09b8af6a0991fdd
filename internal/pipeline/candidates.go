package pipeline

// Candidates by ascending work, over all variants of a graph.
//
//	plain   ── 4 % ──────── 9 % ─────────────▶
//	slices  ── 2 % ──── 6 % ──── 11 % ───────▶   work
//	parts   ──── 3 % ── 5 % ─────────────────▶
//
// Each variant's solver yields its frontier by ascending work; this is their
// merge, the variant that changes the graph least first where two are equal. A
// variant is prepared and searched only when the merge comes to the work that its parts
// add, which all of its plans do, and within a budget to the least that may keep it: what costs
// less, it cannot undercut. It is not searched
// where none of its plans can hold less than one of no more work does. Where a price counts
// (knee.go), the variant that is divided most is searched before: the price leaves others out.
//
// What a candidate's file holds does not depend on the budget, and a smaller
// budget leaves fewer candidates. So overhead never falls when the budget does.

import (
	"iter"
	"math"
	"slices"

	"github.com/onnx-remat/remat/planner"
)

// A Candidate is a variant and a plan for it that is not written yet.
type Candidate struct {
	Variant *Variant
	// Overhead is the share of the plain step's work that the plan repeats.
	Overhead float64
	// Peak is the live peak by the judge, in bytes, which the file hardly undercuts.
	Peak int64
	// Plan spells the plan out.
	Plan func() (*planner.Plan, error)
}

// with is the variant with a plan that is spelled out.
func (v *Variant) with(plan *planner.Plan) Candidate {
	return Candidate{Variant: v, Plan: func() (*planner.Plan, error) { return plan, nil }}
}

// judged is with, for who asks what the plan costs.
func (v *Variant) judged(plan *planner.Plan) (Candidate, error) {
	is, err := planner.Judge(v.Problem(), plan)
	c := v.with(plan)
	c.Overhead, c.Peak = is.Overhead, is.Peak
	return c, err
}

// ascending yields the candidates whose own peak keeps the budget, by ascending
// work, until planning is stopped. The bargain says which are of use; nil: all are.
func (p *Planner) ascending(s *planner.Solver, budget Budget, b *bargain) iter.Seq2[Candidate, error] {
	return func(yield func(Candidate, error) bool) {
		m := &merge{p: p, solver: s, budget: budget, bargain: b}
		var stop func()
		m.family, stop = iter.Pull2(p.families(s))
		defer stop()
		defer m.close()
		for {
			best, err := m.cheapest()
			switch {
			case err != nil:
				yield(Candidate{}, err)
				return
			case best == nil || p.stopped():
				return
			case !yield(Candidate{best.variant, best.head.Overhead, best.head.Peak, best.head.Plan}, nil):
				return
			}
			m.at = best.head.Overhead
			if err := m.advance(best); err != nil {
				yield(Candidate{}, err)
				return
			}
		}
	}
}

// A frontier is what one planning problem of a variant offers.
type frontier struct {
	family  *family
	choice  int
	variant *Variant // nil before it is prepared
	problem *planner.Problem
	rank    int     // in the order of variants
	floor   float64 // the least work of a plan, as a share of the plain step's
	next    func() (planner.Candidate, error, bool)
	stop    func()
	head    *planner.Candidate // the cheapest that is left, nil where none is
}

// before orders frontiers by work, then by rank.
func (f *frontier) before(work float64, g *frontier, other float64) bool {
	return work < other || work == other && f.rank < g.rank
}

// A merge takes the cheapest of several frontiers.
type merge struct {
	p       *Planner
	solver  *planner.Solver
	budget  Budget
	bargain *bargain
	at      float64                       // the work that the merge has come to
	family  func() (*family, error, bool) // the next one to open
	all     bool                          // are open
	scouted bool                          // see scout
	ranks   int                           // given to frontiers
	waiting []*frontier                   // not searched yet
	open    []*frontier
}

// cheapest returns the frontier with the cheapest head, the first of equals; nil
// where all are used up. Unless one's head is free, it opens all families, and prepares
// and searches those variants whose plans may be cheaper.
func (m *merge) cheapest() (*frontier, error) {
	for {
		best := m.head()
		if best != nil && best.head.Overhead == 0 || len(m.open) > 0 && m.p.stopped() {
			return best, nil
		}
		next := m.nextWaiting()
		if !m.all && (next < 0 || m.waiting[next].floor > 0) {
			if err := m.openFamily(); err != nil {
				return nil, err
			}
			continue
		}
		if next < 0 || best != nil && best.before(best.head.Overhead, m.waiting[next], m.waiting[next].floor) {
			return best, nil
		}
		f := m.waiting[next]
		m.waiting = slices.Delete(m.waiting, next, next+1)
		open := m.search
		if f.variant == nil {
			open = m.prepare
		}
		if err := open(f); err != nil {
			return nil, err
		}
	}
}

// head is the open frontier with the cheapest head, nil where all are used up.
func (m *merge) head() (best *frontier) {
	for _, f := range m.open {
		if f.head != nil && (best == nil || f.before(f.head.Overhead, best, best.head.Overhead)) {
			best = f
		}
	}
	return best
}

// nextWaiting is the place of the waiting frontier with the least floor, -1 where none
// waits.
func (m *merge) nextWaiting() int {
	best := -1
	for i, f := range m.waiting {
		if best < 0 || f.before(f.floor, m.waiting[best], m.waiting[best].floor) {
			best = i
		}
	}
	return best
}

// openFamily has the variants of the next family wait.
func (m *merge) openFamily() error {
	f, err, ok := m.family()
	if !ok || err != nil {
		m.all = true
		return err
	}
	for i := range choices {
		if c := &choices[i]; !m.p.offers(m.solver, i) || (c.within || c.far) && m.bargain != nil && !m.bargain.thorough {
			continue
		}
		m.waiting = append(m.waiting, &frontier{family: f, choice: i, rank: m.ranks})
		m.ranks += perVariant
	}
	return nil
}

// perVariant is how many problems a variant has at most.
const perVariant = 2

// prepare has the problems of a frontier's variant wait, or it, if it turns out to add
// work; what adds so much that no plan of it is of use is not prepared.
func (m *merge) prepare(f *frontier) error {
	if !f.family.asked[f.choice] {
		floor, err := m.floor(f)
		if err != nil {
			return err
		}
		if floor > f.floor {
			f.floor = floor
			if !math.IsInf(floor, 1) {
				m.waiting = append(m.waiting, f)
			}
			return nil
		}
	}
	if b := m.bargain; b != nil && (b.useful(f.floor) <= 0 || b.hopelessSliced(f.family.whole(f.choice), f.floor)) {
		return nil
	}
	v, err := m.p.variant(m.solver, f.family, f.choice)
	if v == nil {
		return err
	}
	for i, problem := range v.problems() {
		floor := problem.Floor()
		if live := m.p.live(m.budget); live < math.MaxInt64 {
			floor = planner.LeastWork(problem, live)
		}
		m.waiting = append(m.waiting, &frontier{variant: v, problem: problem, rank: f.rank + i, floor: max(f.floor, floor)})
	}
	return nil
}

// floor is the least work of the plans of a frontier whose variant is not prepared yet. Who
// scouts wants to know all variants first, and only updates in slices add enough to wait.
func (m *merge) floor(f *frontier) (float64, error) {
	if m.bargain != nil && !m.bargain.thorough && choices[f.choice].Rows == (Division{}) {
		return 0, nil
	}
	return m.p.floor(f.family, f.choice, f.floor)
}

// search opens a frontier, unless none of its plans is of use.
func (m *merge) search(f *frontier) error {
	var known func() int64
	if b := m.bargain; b != nil {
		if err := m.scout(f); err != nil {
			return err
		}
		known = func() int64 { return b.useful(max(f.floor, m.at)) }
		if !f.problem.Searched() && b.hopeless(f.problem) || planner.HoldsAtLeast(f.problem, known()) {
			return nil
		}
		if b.thorough {
			f.problem.SearchTwice()
		}
	}
	f.next, f.stop = iter.Pull2(m.solver.Frontier(f.problem, m.p.live(m.budget), known))
	m.open = append(m.open, f)
	return m.advance(f)
}

// scout finds, once, a price that the curve comes to: that of the waiting problem that is divided
// most, which holds least as a rule, is known before those of less work are searched. Of these,
// plans that cost more are then left out, and problems that have no others.
func (m *merge) scout(next *frontier) error {
	b := m.bargain
	if m.scouted || b.thorough || len(m.open) == 0 {
		return nil
	}
	m.scouted = true
	most := next
	for _, f := range m.waiting {
		if f.problem != nil && f.rank > most.rank {
			most = f
		}
	}
	if most == next || b.hopeless(most.problem) {
		return nil
	}
	defer m.p.solving()()
	c, err := planner.Cheapest(most.problem, func(work float64, peak int64) float64 {
		if peak > b.ceiling {
			return math.Inf(1)
		}
		return b.of(Candidate{Overhead: work, Peak: peak})
	})
	if err == nil && c.Peak <= b.ceiling {
		b.price = min(b.price, b.of(Candidate{Overhead: c.Overhead, Peak: c.Peak}))
	}
	return err
}

// advance goes on to a frontier's next plan.
func (m *merge) advance(f *frontier) error {
	defer m.p.solving()()
	c, err, ok := f.next()
	if f.head = &c; !ok || err != nil {
		f.head = nil
	}
	return err
}

func (m *merge) close() {
	for _, f := range m.open {
		f.stop()
	}
}
