package planner

import (
	"iter"
	"sort"
)

// The search behind "optimal", at the level of single operators.
//
//  1. Seeds: everything kept; the boundaries of the layers; and the minimum
//     cuts at a sweep of prices of memory (mincut.go), which are the best
//     sets if only what crosses from forward to backward counted.
//  2. Pareto local search: from each point of the frontier flip one value, or
//     one kind of value in all layers alike, where it bears on the peak; what
//     no visited plan beats joins the frontier. Kinds come from the structure
//     (a hash of the neighbourhood), so twelve layers cost hardly more than
//     one.
//     Each in three modes of holding what is computed again (lower.go), with
//     shapes known to ONNX Runtime and concealed from it (Plan.Conceal).
//  3. Paths: between neighbours on the frontier, the farthest apart first, the
//     difference is applied layer by layer, which fills the gaps.
//
// Nothing of this depends on the budget, so the plan for a smaller budget can
// never cost less than the one for a larger: the frontier is computed once,
// and a budget picks the cheapest plan on it that the judge finds within.
//
// Weakness: the base order of backward is fixed during the search.

// What bounds one search: operators simulated in all, and visits, each of which
// simulates every operator of the graph once or more.
const (
	searchOps            = 2_000_000
	minVisits, maxVisits = 400, 4000
	maxSeedSpacing       = 16  // layers between the boundaries of a seed
	leastShare           = 100 // see solveOptimal
)

// searchVisits bounds the evaluations of one search.
func (ix *index) searchVisits() int {
	return min(maxVisits, max(minVisits, searchOps/max(len(ix.reads), 1)))
}

// exhaustiveStash is the number of droppable values up to which all sets are
// visited.
const exhaustiveStash = 12

// explored returns the frontier of the problem, searching it at the first
// call.
func (ix *index) explored() *explorer {
	ix.exploreOnce.Do(func() { ix.exploredAs = explore(ix, ix.plainOrder()) })
	return ix.exploredAs
}

// explore runs the search.
func explore(ix *index, base []int) *explorer {
	e := newExplorer(ix, base, ix.searchVisits())
	if ix.p.stop != nil {
		e.stopped = ix.p.stop
	}
	if len(ix.stash) <= exhaustiveStash {
		e.exhaust()
		return e
	}
	for _, conceal := range []bool{false, ix.p.Static} {
		e.sim.conceal = conceal
		e.seeds()
		e.sweep()
		if !ix.p.Static || e.visits <= 0 {
			break
		}
	}
	e.localSearch()
	e.paths()
	return e
}

// seeds visits what everybody knows: everything, nothing, each k-th boundary,
// as it is and, the closest ones, polished; in every mode.
func (e *explorer) seeds() {
	ix := e.ix
	e.visit(ix.keepAll())
	e.visit(make([]bool, len(ix.root)))
	layers, err := layersOf(ix.p)
	if err != nil {
		return
	}
	for k := 1; k < len(layers) && k <= maxSeedSpacing && e.visits > 0; k += 1 + k/3 {
		bounds := every(layers, k)
		keep := ix.segmentKeep(computed(bounds))
		for m := range modes {
			e.visitIn(keep, m)
		}
		if k > 2 || ix.p.Static && !e.sim.conceal {
			continue
		}
		ix.polish(keep, bounds, tailOf(bounds), e.sim.conceal, true)
		for m := range modes {
			e.visitIn(keep, m)
		}
	}
}

// exhaust visits every keep set, and has each judged.
func (e *explorer) exhaust() {
	keep := make([]bool, len(e.ix.root))
	for set := 0; set < 1<<len(e.ix.stash) && (set == 0 || !e.stopped()); set++ {
		for i, r := range e.ix.stash {
			keep[r] = set>>i&1 != 0
		}
		for _, conceal := range []bool{false, e.ix.p.Static} {
			q := &point{keep: keep, conceal: conceal}
			v, err := Judge(e.ix.p, e.ix.planAt("", q))
			if err != nil {
				continue
			}
			q.peak, q.work = max(v.Peak, 1), v.RecomputeFLOPs
			if !e.front.covered(q.peak, q.work) {
				q.keep = append([]bool(nil), keep...)
				e.front.add(q)
			}
		}
	}
}

// solveOptimal returns the cheapest of the plans whose peak lies above the least
// by at most one part in leastShare: the last bytes may cost much work.
func solveOptimal(p *Problem, o Options) (*Plan, error) {
	ix := p.indexed()
	points := ix.explored().front.points
	least := points[0].peak
	best := points[0]
	for _, q := range points {
		if q.peak <= least+least/leastShare {
			best = q
		}
	}
	return ix.planAt(o.name("optimal"), best), nil
}

// optimalFrontier yields the plans that the search found: see Solver.Frontier.
func optimalFrontier(p *Problem, budget int64) iter.Seq2[Candidate, error] {
	return func(yield func(Candidate, error) bool) {
		if !p.HasBackward() {
			yield(Candidate{}, ErrNoBackward)
			return
		}
		ix := p.indexed()
		points := ix.explored().front.points
		for k := len(points) - 1; k >= 0; k-- {
			q := points[k]
			if beyond(q.peak, budget) {
				continue
			}
			peak, err := ix.judged(q, budget)
			if err == nil && peak > budget {
				continue
			}
			if !yield(Candidate{q.overhead, peak, func() (*Plan, error) { return ix.settledAt(q) }}, err) {
				return
			}
		}
	}
}

// beyond reports a peak that lies so far above a budget that neither counting
// barriers nor settling would bring it down: the first shuffles which dead
// buffer is taken, the second moves a few values.
func beyond(peak, budget int64) bool { return peak-peak/64-2*smallBytes > budget }

// planAt makes the plan of a point.
func (ix *index) planAt(strategy string, q *point) *Plan {
	return ix.p.settle(ix.unsettled(strategy, q))
}

func (ix *index) unsettled(strategy string, q *point) *Plan {
	schedule := newLowerer(ix, ix.plainOrder()).scheduleIn(q.keep, q.mode)
	return &Plan{Strategy: strategy, Schedule: schedule, Anchors: ix.anchors, Conceal: q.conceal}
}

// judged returns the judge's peak of a point: of its own order, or of the
// settled one where the first lies a little above the limit.
func (ix *index) judged(q *point, limit int64) (int64, error) {
	if q.counted > 0 && (q.counted <= limit || beyond(q.counted, limit)) {
		return q.counted, nil
	}
	if q.plan == nil {
		s, err := ix.p.count(ix.unsettled("optimal", q))
		if err != nil {
			return 0, err
		}
		if q.counted, q.overhead = s.peak, s.plan.Overhead(ix.p); s.peak <= limit || beyond(s.peak, limit) {
			return s.peak, nil
		}
		s = ix.p.settled(s)
		q.plan, q.judged = s.plan, s.peak
	}
	return q.judged, nil
}

// settledAt returns the plan of a point.
func (ix *index) settledAt(q *point) (*Plan, error) {
	if q.plan == nil {
		s, err := ix.p.count(ix.unsettled("optimal", q))
		if err != nil {
			return nil, err
		}
		s = ix.p.settled(s)
		q.plan, q.judged = s.plan, s.peak
	}
	return q.plan, nil
}

// A ParetoPoint is one plan of the curve of peak against overhead.
type ParetoPoint struct {
	Peak     int64
	Overhead float64
	Plan     *Plan
}

// Pareto returns the curve of the plans found, by ascending peak and
// descending overhead, at most points of them (0: 64), each judged.
func Pareto(p *Problem, points int) ([]ParetoPoint, error) {
	if !p.HasBackward() {
		return nil, ErrNoBackward
	}
	if points <= 0 {
		points = 64
	}
	ix := p.indexed()
	all := ix.explored().front.points
	var curve []ParetoPoint
	for i := range min(points, len(all)) {
		k := i
		if len(all) > points {
			k = i * (len(all) - 1) / max(points-1, 1)
		}
		plan := ix.planAt("optimal", all[k])
		v, err := Judge(p, plan)
		if err != nil {
			return nil, err
		}
		curve = append(curve, ParetoPoint{v.Peak, v.Overhead, plan})
	}
	sort.SliceStable(curve, func(a, b int) bool { return curve[a].Peak < curve[b].Peak })
	kept := curve[:0]
	for _, c := range curve {
		if len(kept) == 0 || c.Overhead < kept[len(kept)-1].Overhead {
			kept = append(kept, c)
		}
	}
	return kept, nil
}
