package planner

import (
	"math"
	"slices"
	"sort"
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
	single := make([][]int, len(e.ix.stash))
	for i, r := range e.ix.stash {
		single[i] = []int{r}
	}
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

// paths visits sets between neighbours on the frontier, the farthest apart
// first: from either end the difference is applied in forward order, that is
// layer by layer.
func (e *explorer) paths() {
	steps := e.ix.tune.pathSteps
	points := append([]*point(nil), e.front.points...)
	pairs := make([]int, 0, len(points))
	for i := 1; i < len(points); i++ {
		pairs = append(pairs, i)
	}
	gap := func(i int) float64 {
		return float64(points[i].peak-points[i-1].peak) * float64(points[i-1].work-points[i].work)
	}
	sort.SliceStable(pairs, func(a, b int) bool { return gap(pairs[a]) > gap(pairs[b]) })
	for _, i := range pairs {
		if e.visits <= 0 {
			return
		}
		var diff []int
		for _, r := range e.ix.stash {
			if points[i].keep[r] != points[i-1].keep[r] {
				diff = append(diff, r)
			}
		}
		for _, from := range []*point{points[i], points[i-1]} {
			e.on(from.base, from.eraseShapes)
			set := append([]bool(nil), from.keep...)
			for k, r := range diff {
				set[r] = !set[r]
				if k+1 < len(diff) && (k+1)*steps/len(diff) != k*steps/len(diff) {
					e.try(set, from.mode)
				}
			}
		}
	}
}
