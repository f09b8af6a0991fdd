package planner

import (
	"cmp"
	"math"
	"slices"
)

// The moves of the search: see optimal.go.

// sweep visits the minimum cuts over a range of prices, with memory priced at
// the moment of the plain peak and, in turn, evenly over the step.
func (e *explorer) sweep() {
	if e.visits <= 0 {
		return
	}
	if e.cuts == nil {
		e.findCuts()
	}
	for _, keep := range e.cuts {
		e.try(keep, held)
	}
}

// findCuts finds the minimum cuts for both ways of pricing memory.
func (e *explorer) findCuts() {
	ix := e.ix
	cut := newKeepCut(ix)
	gap, steps := e.gaps(), ix.tune.sweepSteps
	e.visit(ix.keepAll())
	at := e.sim.peakAt
	price := make([]int64, len(ix.stash))
	for _, even := range []bool{false, true} {
		if even && !ix.tune.runs(stageSweepEven) || !even && !ix.tune.runs(stageSweepPeak) {
			continue
		}
		cutAt := func(step int) []bool {
			lambda := ix.tune.sweepFrom * math.Pow(2, float64(step)/2)
			for i, r := range ix.stash {
				price[i] = 0
				if g := gap[i]; g.to > g.from+1 && (even || g.from < at && at < g.to) {
					price[i] = int64(lambda*float64(ix.p.Graph.Values[r].Bytes))*ix.standsFor(r) + 1
				}
			}
			return cut.tighten(price)
		}
		first := cutAt(0)
		e.cuts = append(e.cuts, first)
		e.between(cutAt, 0, steps-1, first, cutAt(steps-1))
	}
}

// between adds the cuts of the prices behind low up to high, each other one
// once. A dearer byte never keeps more: where both ends are the same, so is
// what lies between.
func (e *explorer) between(cutAt func(step int) []bool, low, high int, a, b []bool) {
	switch {
	case slices.Equal(a, b), e.stopped():
	case high == low+1:
		e.cuts = append(e.cuts, b)
	default:
		mid := (low + high) / 2
		m := cutAt(mid)
		e.between(cutAt, low, mid, a, m)
		e.between(cutAt, mid, high, m, b)
	}
}

type interval struct{ from, to int }

// gaps returns for each droppable root the places in the base order of its
// last forward use and of its first backward use.
func (e *explorer) gaps() []interval {
	ix, base := e.ix, e.low.base
	first := slices.Repeat([]int{len(base)}, len(ix.root))
	for pos := len(base) - 1; pos >= 0; pos-- {
		if op := base[pos]; !ix.p.Ops[op].Forward {
			for _, v := range ix.reads[op] {
				first[ix.root[v]] = pos
			}
		}
	}
	// A value that only recomputation reads is wanted with what it leads to.
	for k := len(ix.topo) - 1; k >= 0; k-- {
		op := ix.topo[k]
		if !ix.p.Ops[op].Forward {
			continue
		}
		soonest := len(base)
		for _, v := range ix.outs[op] {
			soonest = min(soonest, first[ix.root[v]])
		}
		for _, v := range ix.reads[op] {
			if r := ix.root[v]; first[r] == len(base) || !ix.readByBackward(r) {
				first[r] = min(first[r], soonest)
			}
		}
	}
	list := make([]interval, len(ix.stash))
	for i, r := range ix.stash {
		list[i] = interval{int(e.low.lastForward[r]), first[r]}
	}
	return list
}

// localSearch flips whole kinds, then single values, from frontier points.
func (e *explorer) localSearch() {
	if e.ix.tune.runs(stageKinds) {
		e.descend(e.ix.kinds(), int(e.ix.tune.kindsReserve*float64(e.visits)))
	}
	single := each(e.ix.stash)
	for _, p := range e.front.points {
		p.tried = false
	}
	if len(single) <= e.ix.tune.maxSingles && e.ix.tune.runs(stageSingles) {
		e.descend(single, int(e.ix.tune.singlesReserve*float64(e.visits)))
	}
}

// descend tries every move from every frontier point that has not been tried,
// until nothing is new or only the given number of visits is left.
func (e *explorer) descend(moves [][]int, reserve int) {
	scratch := make([]bool, len(e.ix.root))
	for e.visits > reserve {
		p := e.untried()
		if p == nil {
			return
		}
		p.tried = true
		for _, move := range moves {
			copy(scratch, p.keep)
			on := 0
			for _, r := range move {
				if scratch[r] {
					on++
				}
			}
			for _, r := range move {
				scratch[r] = 2*on < len(move)
			}
			e.on(p.base, p.eraseShapes)
			e.try(scratch, p.mode)
			if e.visits <= reserve {
				return
			}
		}
	}
}

// untried returns the untried frontier point in the widest gap.
func (e *explorer) untried() *point {
	var best *point
	var bestGap float64 = -1
	points := e.front.points
	for i, p := range points {
		if p.tried {
			continue
		}
		gap := 1.0
		if i > 0 {
			gap = float64(p.peak-points[i-1].peak) / float64(p.peak)
		}
		if gap > bestGap {
			best, bestGap = p, gap
		}
	}
	return best
}

// paths visits sets between neighbours on the frontier, and between neighbours on its lower convex hull,
// the farthest apart first. Layers that are alike are as good at one corner of the hull as at the next
// one, so what lies between the two is as good layer by layer; a point of whole kinds between them is
// not, but makes them no neighbours on the frontier.
func (e *explorer) paths() {
	if e.visits <= 0 {
		return
	}
	e.visits += int(e.ix.tune.pathShare * float64(e.ix.searchVisits()))
	pairs := neighbours(e.front.points)
	gap := func(p pair) float64 { return float64(p.high.peak-p.low.peak) * float64(p.low.work-p.high.work) }
	slices.SortStableFunc(pairs, func(p, q pair) int { return cmp.Compare(gap(q), gap(p)) })
	layer := e.ix.p.LayerOf()
	for _, p := range pairs {
		if e.visits <= 0 {
			return
		}
		e.path(p, layer)
	}
}

// A pair is two points of a frontier, by their peaks.
type pair struct{ low, high *point }

// neighbours are the pairs that are next to each other on a frontier, or on its lower convex hull.
func neighbours(points []*point) (pairs []pair) {
	var hull []*point
	for i, q := range points {
		for len(hull) > 1 && !(pair{hull[len(hull)-2], q}).above(hull[len(hull)-1]) {
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, q)
		if i > 0 {
			pairs = append(pairs, pair{points[i-1], q})
		}
	}
	for i := 1; i < len(hull); i++ {
		if p := (pair{hull[i-1], hull[i]}); !slices.Contains(pairs, p) {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// above reports that the line between the two lies above a point between them.
func (p pair) above(q *point) bool {
	return float64(p.low.work-q.work)*float64(p.high.peak-p.low.peak) > float64(p.low.work-p.high.work)*float64(q.peak-p.low.peak)
}

// path applies what two points differ in from either end: layer by layer, since what is dropped there and
// what is kept in its place belong together, and then value by value, in forward order.
func (e *explorer) path(ends pair, layer []int) {
	var diff []int
	for _, r := range e.ix.stash {
		if ends.low.keep[r] != ends.high.keep[r] {
			diff = append(diff, r)
		}
	}
	of := func(r int) uint { return uint(layer[e.ix.producer[r]]) } // what belongs to none comes last
	layers := grouped(diff, of)
	slices.SortFunc(layers, func(a, b []int) int { return cmp.Compare(of(a[0]), of(b[0])) })
	for _, steps := range [][][]int{layers, each(diff)} {
		e.walk(ends.high, steps)
		e.walk(ends.low, steps)
	}
}

// walk visits the sets that some steps lead to from a point, pathSteps of them.
func (e *explorer) walk(from *point, steps [][]int) {
	most := e.ix.tune.pathSteps
	e.on(from.base, from.eraseShapes)
	set := slices.Clone(from.keep)
	for k, step := range steps {
		for _, r := range step {
			set[r] = !set[r]
		}
		if k+1 < len(steps) && (k+1)*most/len(steps) != k*most/len(steps) {
			e.try(set, from.mode)
		}
	}
}

// each lists roots one by one.
func each(roots []int) [][]int {
	list := make([][]int, len(roots))
	for i, r := range roots {
		list[i] = []int{r}
	}
	return list
}
