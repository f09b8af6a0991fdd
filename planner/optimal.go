package planner

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// The search behind "optimal", at the level of single operators.
//
//  1. Seeds: everything kept; the boundaries of the layers; and the minimum
//     cuts at a sweep of prices of memory (mincut.go), which are the best
//     sets if only what crosses from forward to backward counted. Of the orders
//     that were tried for the base order (order.go) each is begun so: which one
//     suits a set depends on the set, so every point keeps the order it was found by.
//  2. Pareto local search: from each point of the frontier flip one value, or
//     one kind of value in all layers alike, where it bears on the peak; what
//     no visited plan beats joins the frontier. Kinds come from the structure
//     (a hash of the neighbourhood), so twelve layers cost hardly more than
//     one.
//     Each in three modes of holding what is computed again (lower.go), with
//     shapes known to ONNX Runtime and erased (Plan.EraseShapes).
//  3. Paths: between neighbours on the frontier, and on its lower convex hull, the farthest
//     apart first, the difference is applied layer by layer, and value by value, which fills
//     the gaps.
//
// Nothing of this depends on the budget, so the plan for a smaller budget can
// never cost less than the one for a larger: the frontier is computed once,
// and a budget picks the cheapest plan on it that the judge finds within.
//
// Weakness: the orders of backward are those that suit a step with everything kept, or
// little; none is made for a point of the frontier.

// searchVisits bounds the evaluations of one search.
func (ix *index) searchVisits() int {
	t := ix.tune
	return min(t.maxVisits, max(t.minVisits, t.searchOps/max(len(ix.reads), 1)))
}

// explored returns the frontier of the problem, searching it at the first
// call.
func (ix *index) explored() *explorer {
	ix.exploreOnce.Do(func() {
		if r := ix.rolled(); r != nil {
			ix.exploredAs = r.explored()
		} else {
			ix.exploredAs = explore(ix, ix.lean())
		}
		if len(ix.reads) <= ix.tune.narrowOps {
			ix.exploredAs.searchNarrowed()
		}
		if len(ix.exploredAs.front.points) == 0 { // no set keeps the limits, which whoever asked finds
			ix.exploredAs.concede()
		}
	})
	return ix.exploredAs
}

// SearchTwice has "optimal" search with what backward views kept too, however large the graph:
// about a quarter more time, for plans that seldom hold less, then by up to a tenth.
func (p *Problem) SearchTwice() {
	if p.HasBackward() {
		p.indexed().explored().searchNarrowed()
	}
}

// Searched reports that the search behind "optimal" has run for the problem.
func (p *Problem) Searched() bool { return p.indexed().exploredAs != nil }

// explore runs the search.
func explore(ix *index, base *baseOrder) *explorer {
	e := newExplorer(ix, base, ix.searchVisits())
	if ix.p.stop != nil {
		e.stopped = ix.p.stop
	}
	if bases := e.bases(); ix.exhaustible(len(bases)) {
		e.exhaust(bases)
		return e
	}
	e.begin()
	if plain := ix.plain(); plain != base { // which may hold less where all is kept
		e.on(plain, false)
		e.visit(ix.keepAll())
	}
	if ix.tune.runs(stageOrders) {
		spare := ix.searchVisits()
		for _, other := range ix.orders {
			if other != base && spare > 0 {
				spare -= e.beginBy(other)
			}
		}
	}
	e.on(base, false)
	e.localSearch()
	if ix.tune.runs(stagePaths) {
		e.paths()
	}
	return e
}

// on has the explorer visit plans on a base order.
func (e *explorer) on(base *baseOrder, eraseShapes bool) {
	e.base, e.low, e.sim.eraseShapes = base, base.lowerer(e.ix), eraseShapes
}

// begin visits what a search by its base order begins with.
func (e *explorer) begin() {
	for _, e.sim.eraseShapes = range e.erasing() {
		if e.visits <= 0 {
			return
		}
		e.seeds(true)
		e.sweep()
	}
}

// beginBy visits the like by another order, as long as that adds points to the frontier, and
// returns how many visits it made. It takes none from what follows.
func (e *explorer) beginBy(other *baseOrder) int {
	left := e.visits
	for _, eraseShapes := range slices.Backward(e.erasing()) {
		e.on(other, eraseShapes)
		before := e.added
		e.seeds(false)
		e.sweep()
		if e.added == before {
			break
		}
	}
	made := left - e.visits
	if !e.stopped() {
		e.visits = left
	}
	return made
}

// erasing lists whether shapes are erased, in turn.
func (e *explorer) erasing() []bool {
	if e.ix.erases() {
		return []bool{false, true}
	}
	return []bool{false}
}

// searchNarrowed adds, once, what a second search finds that keeps all that backward views. It
// has fewer values to choose from, so it may come further, and by other base orders. In a large
// graph it seldom does and takes a quarter of the time, so there only who asks for little memory
// has it.
func (e *explorer) searchNarrowed() {
	ix := e.ix
	if e.narrow != nil || !ix.viewed {
		return
	}
	if r := ix.rolled(); r != nil {
		r.searchNarrowed(e)
		return
	}
	narrow := ix.narrowed()
	bases := map[*baseOrder]*baseOrder{}
	for _, q := range explore(narrow, narrow.lean()).front.points {
		base := bases[q.base]
		if base == nil {
			base = &baseOrder{order: q.base.order, controlEdges: q.base.controlEdges}
			bases[q.base] = base
		}
		keep := slices.Clone(q.keep)
		for r := range keep {
			keep[r] = keep[r] || narrow.pinned[r]
		}
		e.narrow = append(e.narrow, e.adopt(q, keep, base))
	}
}

// adopt adds what another search found, by the keep set and the base order that it is of in this one,
// unless some point is as good.
func (e *explorer) adopt(q *point, keep []bool, base *baseOrder) *point {
	e.on(base, q.eraseShapes)
	peak := e.sim.run(e.low.scheduleIn(keep, q.mode))
	found := &point{peak: peak, work: e.low.work, mode: q.mode, base: base, eraseShapes: q.eraseShapes, keep: keep}
	if !e.front.covered(peak, e.low.work) {
		e.front.add(found)
	}
	return found
}

// leastPoints are the n points of either search that hold least.
func (e *explorer) leastPoints(n int) []*point {
	list := slices.Clone(e.front.points[:min(n, len(e.front.points))])
	for _, q := range e.narrow[:min(n, len(e.narrow))] {
		if !slices.Contains(list, q) {
			list = append(list, q)
		}
	}
	slices.SortStableFunc(list, func(a, b *point) int { return cmp.Or(cmp.Compare(a.peak, b.peak), cmp.Compare(a.work, b.work)) })
	return list[:min(n, len(list))]
}

// concede leaves the set that keeps least of what limits count.
func (e *explorer) concede() {
	keep := e.ix.keepNone()
	peak := e.sim.run(e.low.scheduleIn(keep, held))
	e.front.add(&point{peak: peak, work: e.low.work, mode: held, base: e.base, eraseShapes: e.sim.eraseShapes, keep: keep})
}

// seeds visits what everybody knows: everything, nothing, each k-th boundary,
// as it is and, where that is asked for, the closest ones polished; in every mode.
func (e *explorer) seeds(polished bool) {
	ix := e.ix
	e.visit(ix.keepAll())
	e.visit(make([]bool, len(ix.root)))
	if len(ix.p.Limits) > 0 {
		e.visit(ix.keepNone())
		e.visit(newKeepCut(ix).tighten(make([]int64, len(ix.stash))))
	}
	layers, err := layersOf(ix.p)
	if err != nil || !ix.tune.runs(stageSeeds) {
		return
	}
	for k := 1; k < len(layers) && k <= ix.tune.seedSpacing && e.visits > 0; k += 1 + k/3 {
		bounds := every(layers, k)
		keep := ix.segmentKeep(computed(bounds))
		for m := range e.modes() {
			e.try(keep, m)
		}
		if !polished || k > ix.tune.polishSpacing || !ix.tune.runs(stageSeedPolish) || ix.p.Static && !e.sim.eraseShapes {
			continue
		}
		e.polish(keep, bounds, tailOf(bounds), true)
		for m := range e.modes() {
			e.try(keep, m)
		}
	}
}

// erases reports that plans may erase shapes.
func (ix *index) erases() bool { return ix.p.Static && ix.tune.runs(stageErase) }

// modes are the modes that are tried.
func (e *explorer) modes() mode {
	if !e.ix.tune.runs(stageBrief) {
		return held + 1
	}
	return modes
}

// bases are the base orders: the plain one, and that which the search found to hold less.
func (e *explorer) bases() []*baseOrder {
	if plain := e.ix.plain(); e.base != plain {
		return []*baseOrder{plain, e.base}
	}
	return []*baseOrder{e.base}
}

// exhaustible reports few values that may be dropped, and a graph in which judging all their
// sets takes no longer than a search may: each judgement goes over the whole step.
func (ix *index) exhaustible(bases int) bool {
	if len(ix.stash) > ix.tune.exhaustiveStash {
		return false
	}
	judged := bases << len(ix.stash)
	if ix.p.Static {
		judged *= 2
	}
	return judged*len(ix.reads) <= ix.tune.searchOps
}

// exhaust visits every keep set on the bases, and has each judged.
func (e *explorer) exhaust(bases []*baseOrder) {
	keep := make([]bool, len(e.ix.root))
	for set := 0; set < 1<<len(e.ix.stash) && (set == 0 || !e.stopped()); set++ {
		for i, r := range e.ix.stash {
			keep[r] = set>>i&1 != 0
		}
		for _, base := range bases {
			e.judge(&point{keep: keep, base: base})
			e.judge(&point{keep: keep, base: base, eraseShapes: e.ix.p.Static})
		}
	}
}

// judge adds a point with the judge's peak, if none is as good.
func (e *explorer) judge(q *point) {
	if !e.ix.keepsLimits(q.keep) {
		return
	}
	v, err := Judge(e.ix.p, Legalize(e.ix.p, e.ix.unlegalized("", q), nil))
	if err != nil {
		return
	}
	if q.peak, q.work = max(v.Peak, 1), v.RecomputeFLOPs; !e.front.covered(q.peak, q.work) {
		q.keep = slices.Clone(q.keep)
		e.front.add(q)
	}
}

// solveSearch returns the first of what leastPlans returns.
func solveSearch(p *Problem, o Options) (*Plan, error) {
	plans, err := leastPlans(p, o.strategy())
	if err != nil {
		return nil, err
	}
	return plans[0], nil
}

// leastPlans returns the plans that hold least, by what the judge counts; first of all, of those
// whose peak lies above the least by at most nearLeast of it, the one that costs least as work is
// priced by leastWork, as the last bytes may cost much work. In a small graph they are several: moves take a tenth and more
// off some plans, and nothing off others, so the least by the search's count may not be the
// least. In a large one the search's count decides alone.
func leastPlans(p *Problem, strategy string) ([]*Plan, error) {
	ix := p.indexed()
	p.SearchTwice()
	e := ix.explored()
	points := e.front.points
	best := points[ix.tune.worthLeast(len(points), func(k int) (int64, float64) { return points[k].peak, overhead(p, points[k].work) })]
	tried := e.leastPoints(min(ix.tune.leastTries, ix.tune.leastOps/max(len(ix.reads), 1)))
	if !slices.Contains(tried, best) {
		tried = append(tried, best)
	}
	if len(tried) == 1 {
		return []*Plan{ix.planAt(strategy, best)}, nil
	}
	plans, verdicts := make([]*Plan, 0, len(tried)), map[*Plan]Verdict{}
	for _, q := range tried {
		plan := ix.planAt(strategy, q)
		v, err := Judge(p, plan)
		if err != nil {
			return nil, err
		}
		plans, verdicts[plan] = append(plans, plan), v
	}
	slices.SortStableFunc(plans, func(a, b *Plan) int {
		v, w := verdicts[a], verdicts[b]
		return cmp.Or(cmp.Compare(v.Peak, w.Peak), cmp.Compare(v.RecomputeFLOPs, w.RecomputeFLOPs))
	})
	first := ix.tune.worthLeast(len(plans), func(k int) (int64, float64) { return verdicts[plans[k]].Peak, verdicts[plans[k]].Overhead })
	cheapest := plans[first]
	return slices.Insert(slices.Delete(plans, first, first+1), 0, cheapest), nil
}

// worthLeast is the number of the plan that costs least of those whose peak lies above that of the first
// by at most nearLeast of it: see tuning. They come by ascending peak.
func (t *tuning) worthLeast(n int, plan func(k int) (peak int64, work float64)) (best int) {
	least, _ := plan(0)
	lowest := math.Inf(1)
	for k := range n {
		peak, work := plan(k)
		if peak > least+part(t.nearLeast, least) {
			break
		}
		if cost := float64(peak) * (1 + t.leastWork*work); cost < lowest {
			best, lowest = k, cost
		}
	}
	return best
}

// optimalFrontier yields the plans that the search found: see Solver.Frontier.
func optimalFrontier(p *Problem, budget int64, known func() int64) iter.Seq2[Candidate, error] {
	return func(yield func(Candidate, error) bool) {
		if !p.HasBackward() {
			yield(Candidate{}, ErrNoBackward)
			return
		}
		if known == nil {
			known = func() int64 { return math.MaxInt64 }
		}
		if budget < math.MaxInt64 && LowerBound(p) > budget { // a bound takes longer than a plan
			return
		}
		ix := p.indexed()
		free := budget == math.MaxInt64 || LeastWork(p, budget) <= p.Floor()+noWork // a plan without recomputation may keep it
		if free && budget < math.MaxInt64 && len(ix.reads) > ix.tune.narrowOps && !ix.yieldPlain(budget, yield) {
			return
		}
		points := ix.explored().front.points
		if free && !ix.yieldNone(points[len(points)-1], budget, yield) {
			return
		}
		for k := len(points) - 1; k >= 0; k-- {
			q := points[k]
			if ix.beyond(q.peak, known()) || ix.outOfReach(q.peak, budget) {
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

// Cheapest returns the plan that costs least of those that the search behind "optimal" finds,
// as its work, a share of the plain step's, and its peak are priced: by what the search counts,
// and it is judged.
func Cheapest(p *Problem, cost func(work float64, peak int64) float64) (Candidate, error) {
	if !p.HasBackward() {
		return Candidate{}, ErrNoBackward
	}
	ix := p.indexed()
	var best *point
	least := math.Inf(1)
	for _, q := range ix.explored().front.points {
		if c := cost(p.Floor()+overhead(p, q.work), q.peak); best == nil || c < least {
			best, least = q, c
		}
	}
	peak, err := ix.judged(best, math.MaxInt64)
	return Candidate{best.overhead, peak, func() (*Plan, error) { return ix.settledAt(best) }}, err
}

// yieldPlain yields the plain order with everything kept where that keeps a budget: nothing repeats
// less, and a large graph takes long to search. False: no more is wanted.
func (ix *index) yieldPlain(budget int64, yield func(Candidate, error) bool) bool {
	q := &point{keep: ix.keepAll(), base: ix.plain()}
	if !ix.keepsLimits(q.keep) {
		return true
	}
	if _, err := ix.spelledAt(q); err != nil || q.counted > budget {
		return true
	}
	return yield(Candidate{q.overhead, q.counted, func() (*Plan, error) { return ix.settledAt(q) }}, nil)
}

// yieldNone yields the best order without recomputation where only that keeps the
// budget, by the peak of the point of least work. False: no more is wanted.
func (ix *index) yieldNone(q *point, budget int64, yield func(Candidate, error) bool) bool {
	if !ix.tune.runs(stageMoves) || q.peak-part(ix.tune.orderShare, q.peak) > budget {
		return true
	}
	if peak, err := ix.judged(q, budget); err != nil || peak <= budget {
		return true
	}
	s, err := ix.none()
	switch {
	case err != nil:
		return yield(Candidate{}, err)
	case s.peak > budget || s.plan.Limited(ix.p) != nil:
		return true
	}
	plan := *s.plan
	plan.Strategy = "optimal"
	return yield(Candidate{plan.Overhead(ix.p), s.peak, func() (*Plan, error) { return &plan, nil }}, nil)
}

// beyond reports a peak that lies so far above a budget that neither counting
// barriers nor legalizing would bring it down: the first shuffles which dead
// buffer is taken, the second moves a few values.
func (ix *index) beyond(peak, budget int64) bool {
	return peak-part(ix.tune.beyondShare, peak)-2*ix.tune.smallBytes > budget
}

// planAt makes the plan of a point.
func (ix *index) planAt(strategy string, q *point) *Plan {
	return ix.p.settle(ix.unlegalized(strategy, q))
}

func (ix *index) unlegalized(strategy string, q *point) *Plan {
	schedule := slices.Clone(q.base.lowerer(ix).scheduleIn(q.keep, q.mode))
	return &Plan{Strategy: strategy, Schedule: schedule, ControlEdges: q.base.controlEdges, EraseShapes: q.eraseShapes}
}

// outOfReach reports a peak that neither counting barriers, nor legalizing, nor moves bring
// within a budget.
func (ix *index) outOfReach(peak, budget int64) bool {
	less := func(share float64) int64 { return peak - part(share, peak) }
	return ix.beyond(peak, budget) && // else nobody has to ask how far moves reach
		(ix.beyond(less(ix.tune.reachMost), budget) || ix.beyond(less(ix.reach()), budget))
}

// reach is the share of a peak that moves may take off a plan of the frontier: more than they
// take off any of a few that lie spread on it. It does not depend on a budget, so a larger one
// never leaves out a plan that a smaller one has.
func (ix *index) reach() float64 {
	ix.reachOnce.Do(func() {
		tries := min(ix.tune.reachOps/max(len(ix.reads), 1), ix.tune.reachTries)
		if !ix.tune.runs(stageMoves) || tries < ix.tune.reachLeast {
			return
		}
		points := ix.explored().front.points
		for k := range tries {
			q := points[(2*k+1)*len(points)/(2*tries)]
			if _, err := ix.settledAt(q); err != nil {
				return
			}
			ix.reached = max(ix.reached, 1-float64(q.moved)/float64(q.judged))
		}
		ix.reached = min(ix.tune.reachFactor*ix.reached, ix.tune.reachMost)
	})
	return ix.reached
}

// judged returns the judge's peak of a point: of its own order, or, where that lies above the
// limit but within reach of it, of the legalized one, or of that one moved.
func (ix *index) judged(q *point, limit int64) (int64, error) {
	if q.counted > 0 && (q.counted <= limit || ix.outOfReach(q.counted, limit)) {
		return q.counted, nil
	}
	var s *legalized
	if q.legal == nil {
		var err error
		if s, err = ix.spelledAt(q); err != nil {
			return 0, err
		}
		if q.counted <= limit || ix.outOfReach(q.counted, limit) {
			return q.counted, nil
		}
		s = ix.legalizedAt(q, s)
	}
	switch {
	case q.judged <= limit || ix.outOfReach(q.judged, limit) || ix.reach() == 0:
		return q.judged, nil
	case s != nil && q.plan == nil:
		ix.movedAt(q, s)
		return q.moved, nil
	}
	_, err := ix.settledAt(q)
	return q.moved, err
}

// spelledAt counts the plan of a point in its own order.
func (ix *index) spelledAt(q *point) (*legalized, error) {
	s, err := ix.p.spell(ix.unlegalized("optimal", q))
	if err == nil {
		q.counted, q.overhead = s.peak, s.plan.Overhead(ix.p)
	}
	return s, err
}

// legalizedAt legalizes the plan of a point.
func (ix *index) legalizedAt(q *point, s *legalized) *legalized {
	s.findEarly()
	s = ix.p.legalized(s)
	q.legal, q.judged = s.plan, s.peak
	return s
}

// settledAt returns the plan of a point, legalized and moved.
func (ix *index) settledAt(q *point) (*Plan, error) {
	if q.plan != nil {
		return q.plan, nil
	}
	var s *legalized
	var err error
	if q.legal != nil {
		s, err = ix.p.count(q.legal)
	} else if s, err = ix.spelledAt(q); err == nil {
		s = ix.legalizedAt(q, s)
	}
	if err != nil {
		return nil, err
	}
	ix.movedAt(q, s)
	return q.plan, nil
}

// movedAt moves the legalized plan of a point.
func (ix *index) movedAt(q *point, s *legalized) {
	s = ix.p.moved(s)
	q.plan, q.moved = s.plan, s.peak
}

// A ParetoPoint is one plan of the curve of peak against overhead.
type ParetoPoint struct {
	Peak     int64
	Overhead float64
	Plan     *Plan
}

// paretoPoints is the most points of a curve.
const paretoPoints = 64

// Pareto returns the curve of the plans found, by ascending peak and descending overhead,
// each judged.
func Pareto(p *Problem) ([]ParetoPoint, error) {
	if !p.HasBackward() {
		return nil, ErrNoBackward
	}
	ix := p.indexed()
	all := ix.explored().front.points
	var curve []ParetoPoint
	for i := range min(paretoPoints, len(all)) {
		k := i
		if len(all) > paretoPoints {
			k = i * (len(all) - 1) / (paretoPoints - 1)
		}
		plan := ix.planAt("optimal", all[k])
		v, err := Judge(p, plan)
		if err != nil {
			return nil, err
		}
		curve = append(curve, ParetoPoint{v.Peak, v.Overhead, plan})
	}
	slices.SortStableFunc(curve, func(a, b ParetoPoint) int {
		return cmp.Or(cmp.Compare(a.Peak, b.Peak), cmp.Compare(a.Overhead, b.Overhead))
	})
	kept := curve[:0]
	for _, c := range curve {
		if len(kept) == 0 || c.Overhead < kept[len(kept)-1].Overhead {
			kept = append(kept, c)
		}
	}
	return kept, nil
}
