package planner

import (
	"slices"
	"sort"

	"github.com/onnx-remat/remat/ortmodel"
)

// The plain order, on which every plan is built.
//
//	file's own ─┐
//	greedy      ├─▶ sunk ─▶ lazy, as ONNX Runtime would ─▶ anchored ─▶ best
//	deep, twice ┘                                                       │
//	                              visiting order flipped, kind by kind ◀┘
//
// What is judged is the sum of two peaks: with everything kept, and with only
// the layers' boundaries kept.

// sunk returns the order with every backward operator that reads forward
// values only, and has one reader, moved right before that reader. It holds
// nothing less by running early, and what it reads may be computed again.
func (ix *index) sunk(wanted []int) []int {
	key := make([]float64, len(wanted))
	for pos, op := range wanted {
		key[op] = float64(pos)
	}
	for k := len(wanted) - 1; k >= 0; k-- {
		op := wanted[k]
		if ix.p.Ops[op].Forward || !ix.readsForwardOnly(op) || len(ix.outs[op]) != 1 {
			continue
		}
		if readers := ix.readers[ix.outs[op][0]]; len(readers) == 1 {
			key[op] = key[readers[0]] - 0.5
		}
	}
	order := append([]int(nil), wanted...)
	sort.SliceStable(order, func(a, b int) bool { return key[order[a]] < key[order[b]] })
	return topologicalFrom(&ix.p.Graph, order)
}

func (ix *index) readsForwardOnly(op int) bool {
	for _, v := range ix.reads[op] {
		if j := ix.producer[v]; j >= 0 && !ix.p.Ops[j].Forward {
			return false
		}
	}
	return true
}

// side marks the operators that do not depend on both a weight and data.
func (ix *index) side() []bool {
	type origin struct{ weight, data bool }
	from := make([]origin, len(ix.root))
	for v := range from {
		if ix.producer[v] < 0 {
			role := ix.p.Values[v].Role
			from[v] = origin{role == Parameter || role == State, role == Feed && ix.p.Graph.Values[v].Kind == ortmodel.Feed}
		}
	}
	side := make([]bool, len(ix.reads))
	for _, op := range ix.topo {
		var o origin
		for _, v := range ix.reads[op] {
			o.weight, o.data = o.weight || from[v].weight, o.data || from[v].data
		}
		for _, v := range ix.outs[op] {
			from[v] = o
		}
		side[op] = !o.weight || !o.data
	}
	return side
}

// plainOrder returns the plain step's best order found, as ONNX Runtime could
// run it with the index's anchors. The index keeps both.
func (ix *index) plainOrder() []int {
	if ix.base != nil {
		return ix.base
	}
	var best *orderSearch
	var tried [][]int
	for _, wanted := range ix.candidates() {
		if ix.tune.runs(stageSunk) {
			wanted = ix.sunk(wanted)
		}
		if slices.ContainsFunc(tried, func(o []int) bool { return slices.Equal(o, wanted) }) {
			continue
		}
		tried = append(tried, wanted)
		s := newOrderSearch(ix, wanted)
		s.anchor()
		if best == nil || s.worth < best.worth {
			best = s
		}
	}
	if ix.tune.runs(stageFlips) {
		best.flip()
	}
	if ix.tune.runs(stagePrune) {
		best.prune()
	}
	ix.base, ix.anchors = best.order, best.anchors
	return ix.base
}

// candidates are the orders to begin with: the graph's own, and greedy ones.
func (ix *index) candidates() [][]int {
	g, list := &ix.p.Graph, [][]int{ix.topo}
	if ix.tune.runs(stageGreedy) {
		list = append(list, greedy(g, nil, false))
	}
	side := ix.side()
	if ix.tune.runs(stageDeep) {
		list = append(list, greedy(g, side, false))
	}
	if ix.tune.runs(stageDeepLast) {
		list = append(list, greedy(g, side, true))
	}
	return list
}

// An orderSearch improves the order that ONNX Runtime would run for one
// wanted order, by anchors and by the order in which producers are visited.
type orderSearch struct {
	ix      *index
	walk    *lazyWalk
	sim     *liveSim
	order   []int
	worth   int64
	anchors []Anchor
}

func newOrderSearch(ix *index, wanted []int) *orderSearch {
	s := &orderSearch{ix: ix, walk: newLazyWalk(ix, wanted), sim: newLiveSim(ix)}
	s.order = s.walk.order(nil)
	s.worth = ix.worth(s.sim, s.order)
	return s
}

// try takes an order with these anchors if it is worth at most limit, and
// another than the one there is.
func (s *orderSearch) try(anchors []Anchor, limit int64) bool {
	order := s.walk.order(anchors)
	if order == nil {
		return false
	}
	if slices.Equal(order, s.order) {
		if s.worth <= limit {
			s.anchors = anchors
		}
		return s.worth <= limit
	}
	worth := s.ix.worth(s.sim, order)
	if worth > limit {
		return false
	}
	s.order, s.worth, s.anchors = order, worth, anchors
	return true
}

// anchor adds anchors as long as they help.
func (s *orderSearch) anchor() {
	for tries, better := 0, true; better && tries < s.ix.tune.anchorTries; {
		better = false
		var batches [][]Anchor
		if s.ix.tune.runs(stageInversions) {
			batches = s.ix.inversions(s.walk, s.order, s.sim)
		}
		if s.ix.tune.runs(stageDeferrals) {
			batches = append(batches, s.ix.deferrals(s.order, s.sim)...)
		}
		for _, batch := range batches {
			if tries++; tries > s.ix.tune.anchorTries {
				break
			}
			if s.try(append(append([]Anchor(nil), s.anchors...), batch...), s.worth-part(s.ix.tune.anchorGain, s.worth)-1) {
				better = true
				break
			}
		}
	}
}

// prune leaves out anchors that do not help.
func (s *orderSearch) prune() {
	for k := len(s.anchors) - 1; k >= 0 && k >= len(s.anchors)-s.ix.tune.anchorTries; k-- {
		s.try(append(append([]Anchor(nil), s.anchors[:k]...), s.anchors[k+1:]...), s.worth)
	}
}

// flip visits the producers of one kind of operator in the other order, in
// all layers alike: which of two operands is computed first decides what
// waits beside the other. Most of the time nothing comes of it, because one of
// them is needed before.
func (s *orderSearch) flip() {
	if len(s.order) == 0 {
		return
	}
	for _, ops := range s.ix.opKinds() {
		if len(s.walk.deps[ops[0]]) < 2 {
			continue
		}
		s.walk.flip(ops)
		if !s.try(s.anchors, s.worth-1) {
			s.walk.flip(ops)
		}
	}
}
