package planner

// A search is as good as the order that it keeps to, and which order that should be is told
// by two plans, which may be like none that the search finds: where a graph has no layers,
// keeping their boundaries alone holds more than keeping everything. Who asks for little
// memory has the search go further:
//
//	orders with control edges, for the boundaries ─┐
//	                           and for a minimum cut ─▶ begun: seeds, cuts ─▶ the best few finished
//	what backward views kept too ───────────────────────────────────────────▶ a search of its own
//
// and all better points are added.

import (
	"cmp"
	"math"
	"slices"
)

// SearchFurther has "optimal" search further, once: up to twice as much again, for a frontier
// that lies 2 % lower in the mean, and much lower where the first order was a bad one.
func (p *Problem) SearchFurther() {
	if ix := p.indexed(); p.HasBackward() {
		e := ix.explored()
		ix.furtherOnce.Do(func() {
			if !e.stopped() {
				e.searchNarrowed()
			}
			if !e.stopped() {
				e.searchByOrders()
			}
		})
	}
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
		e.base, e.low, e.sim.eraseShapes = base, base.lowerer(ix), q.eraseShapes
		peak := e.sim.run(e.low.scheduleIn(keep, q.mode))
		found := &point{peak: peak, work: e.low.work, mode: q.mode, base: base, eraseShapes: q.eraseShapes, keep: keep}
		e.narrow = append(e.narrow, found)
		e.front.take(found)
	}
}

// searchByOrders adds what searches find by other orders. All of them are begun, and those
// whose frontiers lie lowest by then are finished.
func (e *explorer) searchByOrders() {
	ix := e.ix
	if e.exhausted || !ix.tune.runs(stageFurther) {
		return
	}
	orders := [][]int{ix.lean().order}
	var searches []*explorer
	for _, little := range []kept{cutKept, boundariesKept} {
		for _, base := range ix.edged(aim{ix.erases(), little}).bases {
			if slices.ContainsFunc(orders, func(o []int) bool { return slices.Equal(o, base.order) }) {
				continue
			}
			orders = append(orders, base.order)
			if s := begun(ix, base); len(s.front.points) > 0 {
				searches = append(searches, s)
			}
		}
	}
	slices.SortStableFunc(searches, func(a, b *explorer) int { return cmp.Compare(a.level(), b.level()) })
	for k, s := range searches {
		if k < ix.tune.furtherOrders {
			s.finish()
		}
		for _, q := range s.front.points {
			e.front.take(q)
		}
	}
}

// workLevels are the amounts of work, as shares of the plain step's, by which frontiers are
// compared.
var workLevels = []float64{0, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5}

// level says how low a frontier lies: the mean logarithm of its peaks at these amounts of work,
// its highest where it has no plan of so little.
func (e *explorer) level() float64 {
	points := e.front.points
	sum := 0.
	for _, w := range workLevels {
		sum += math.Log(float64(min(e.front.limit(int64(w*float64(e.ix.total))), points[len(points)-1].peak)))
	}
	return sum / float64(len(workLevels))
}
