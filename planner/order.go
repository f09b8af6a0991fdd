package planner

import (
	"math"
	"slices"
	"sort"

	"github.com/onnx-remat/remat/ortmodel"
)

// The plain order, on which every plan is built.
//
//	file's own ─┐
//	greedy      ├─▶ sunk ─▶ lazy, as ONNX Runtime would ─▶ with edges ─▶ best
//	deep, twice ┘                                                       │
//	                              visiting order flipped, kind by kind ◀┘
//
// What is judged is the sum of two peaks: with everything kept, and with only
// the layers' boundaries kept. An order may be good for one way of running and
// bad for another, so there are two of them: in the plain one ONNX Runtime knows
// all shapes, as in the files of fixed strategies; in the lean one shapes are
// erased where anything is dropped, as in most plans that the search finds. The search
// begins by all of them (optimal.go).

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
	return topological(&ix.p.Graph, ix.producer, order)
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

// A baseOrder is an order that plans are built on, as ONNX Runtime could run it
// with these control edges.
type baseOrder struct {
	order        []int
	controlEdges []ControlEdge
	lowers       *lowerer // nil before it is asked for
}

// lowerer is that of the order, whose schedules are valid until the next one.
func (b *baseOrder) lowerer(ix *index) *lowerer {
	if b.lowers == nil {
		b.lowers = newLowerer(ix, b.order)
	}
	return b.lowers
}

// plain is the base of plans that keep whole layers, or everything.
func (ix *index) plain() *baseOrder {
	if ix.plainBase == nil {
		if r := ix.rolled(); r != nil {
			ix.plainBase = r.unroll(r.small.indexed().plain())
		} else {
			ix.plainBase, _ = ix.bestOrder(false)
		}
	}
	return ix.plainBase
}

// lean is the base of plans that drop what they can: the plain one where shapes
// cannot be erased, or no other is better by leanGain.
func (ix *index) lean() *baseOrder {
	if ix.leanBase != nil {
		return ix.leanBase
	}
	if r := ix.rolled(); r != nil {
		ix.leanBase = r.unroll(r.small.indexed().lean())
		return ix.leanBase
	}
	ix.leanBase = ix.plain()
	if !ix.erases() || !ix.tune.runs(stageLean) {
		return ix.leanBase
	}
	s := newOrderSearch(ix, ix.leanBase.order, true)
	s.order = ix.leanBase.order
	s.worth = s.value(s.order)
	limit := s.worth + s.leanPeak()
	if base, worth := ix.bestOrder(true); worth < limit-part(ix.tune.leanGain, limit) {
		ix.leanBase = base
	}
	return ix.leanBase
}

// bestOrder adds control edges to each of the wanted orders and returns the best.
func (ix *index) bestOrder(lean bool) (*baseOrder, int64) {
	var best *orderSearch
	var worth int64
	for _, order := range ix.candidates() {
		s := newOrderSearch(ix, order, lean)
		ix.addOrder(s.base())
		s.addEdges()
		w := s.worth
		if lean {
			w += s.leanPeak()
		}
		if best == nil || w < worth {
			best, worth = s, w
		}
		ix.addOrder(s.base())
	}
	if ix.tune.runs(stageFlips) {
		best.flip()
	}
	if ix.tune.runs(stagePrune) {
		best.prune()
	}
	return ix.addOrder(best.base()), worth
}

// base is the order as plans are built on it.
func (s *orderSearch) base() *baseOrder {
	return &baseOrder{order: s.order, controlEdges: s.controlEdges}
}

// addOrder adds an order to those that the search begins by, and returns it, or the one that
// is the same.
func (ix *index) addOrder(b *baseOrder) *baseOrder {
	for _, o := range ix.orders {
		if slices.Equal(o.order, b.order) && slices.Equal(o.controlEdges, b.controlEdges) {
			return o
		}
	}
	ix.orders = append(ix.orders, b)
	return b
}

// value sums the peaks of an order with everything kept, and with only the
// layers' boundaries (or nothing) kept: what is good for both is a good base.
func (s *orderSearch) value(order []int) int64 { return s.valueBelow(order, math.MaxInt64) }

// valueBelow is value for who does not take limit or more: it may end early, and return
// limit.
func (s *orderSearch) valueBelow(order []int, limit int64) int64 {
	hash := hashOf(order, false)
	kept := s.once(weighing{hash, false, false}, limit, func() int64 { return s.sim.below(order, limit) })
	if kept >= limit {
		return limit
	}
	return kept + s.once(weighing{hash, true, s.lean}, limit-kept, func() int64 {
		if s.low == nil {
			s.low = newLowerer(s.ix, order)
		} else {
			s.low.rebase(order)
		}
		s.sim.eraseShapes = s.lean
		defer func() { s.sim.eraseShapes = false }()
		return s.sim.below(s.low.schedule(s.ix.leastKeep()), limit-kept)
	})
}

// A weighing is what an order, by its hash, was simulated for: with everything kept, or
// dropped, with shapes known or erased.
type weighing struct {
	order           uint64
	dropped, erased bool
}

// A weight is a peak in bytes, or what it reaches at least.
type weight struct {
	peak  int64
	exact bool
}

// once simulates an order below a limit, if that is not known: other searches come to
// the same orders.
func (s *orderSearch) once(what weighing, limit int64, simulate func() int64) int64 {
	if w, ok := s.ix.weighed[what]; ok && (w.exact || w.peak >= limit) {
		return w.peak
	}
	peak := simulate()
	s.ix.weighed[what] = weight{peak, peak != limit}
	return peak
}

// leanPeak is the least peak with only the boundaries kept and shapes erased,
// in any mode.
func (s *orderSearch) leanPeak() int64 {
	low := newLowerer(s.ix, s.order)
	s.sim.eraseShapes = true
	defer func() { s.sim.eraseShapes = false }()
	least := int64(math.MaxInt64)
	for m := range modes {
		least = min(least, s.sim.run(low.scheduleIn(s.ix.leastKeep(), m)))
	}
	return least
}

// candidates are the orders to begin with: the graph's own, and greedy ones.
func (ix *index) candidates() [][]int {
	if ix.wanted != nil {
		return ix.wanted
	}
	list := [][]int{ix.topo}
	if ix.tune.runs(stageGreedy) {
		list = append(list, ix.greedy(nil, false))
	}
	side := ix.side()
	if ix.tune.runs(stageDeep) {
		list = append(list, ix.greedy(side, false))
	}
	if ix.tune.runs(stageDeepLast) {
		list = append(list, ix.greedy(side, true))
	}
	for _, order := range list {
		if ix.tune.runs(stageSunk) {
			order = ix.sunk(order)
		}
		if !slices.ContainsFunc(ix.wanted, func(o []int) bool { return slices.Equal(o, order) }) {
			ix.wanted = append(ix.wanted, order)
		}
	}
	return ix.wanted
}

// An orderSearch improves the order that ONNX Runtime would run for one
// wanted order, by control edges and by the order in which producers are visited.
type orderSearch struct {
	ix           *index
	walk         *lazyWalk
	sim          *liveSim
	low          *lowerer // of the order that was looked at last; nil: of none
	order        []int
	worth        int64
	controlEdges []ControlEdge
	// lean: shapes are erased where anything is dropped.
	lean bool
	// at are the places of the order.
	at visits
}

func newOrderSearch(ix *index, wanted []int, lean bool) *orderSearch {
	s := &orderSearch{ix: ix, lean: lean, walk: newLazyWalk(ix, wanted), sim: newLiveSim(ix)}
	s.order = s.walk.order(nil)
	s.at.keep(s.walk)
	s.worth = s.value(s.order)
	return s
}

// try takes an order with these control edges if it is worth at most limit, and
// another than the one there is.
func (s *orderSearch) try(controlEdges []ControlEdge, limit int64) bool {
	order := s.walk.order(controlEdges)
	if order == nil {
		return false
	}
	if slices.Equal(order, s.order) {
		if s.worth <= limit {
			s.controlEdges = controlEdges
			s.at.keep(s.walk)
		}
		return s.worth <= limit
	}
	worth := s.valueBelow(order, limit+1)
	if worth > limit {
		return false
	}
	s.order, s.worth, s.controlEdges = order, worth, controlEdges
	s.at.keep(s.walk)
	return true
}

// addEdges adds control edges as long as they help.
func (s *orderSearch) addEdges() {
	most := s.ix.tune.edgeTries
	if s.lean {
		most = s.ix.tune.leanTries
	}
	for tries, better := 0, true; better && tries < most; {
		better = false
		var batches [][]ControlEdge
		if s.ix.tune.runs(stageInversions) {
			batches = s.ix.inversions(s.walk, s.order, s.sim)
		}
		if s.ix.tune.runs(stageDeferrals) {
			batches = append(batches, s.ix.deferrals(s.order, s.sim)...)
		}
		for _, batch := range batches {
			if tries++; tries > most {
				break
			}
			if s.try(append(append([]ControlEdge(nil), s.controlEdges...), batch...), s.worth-part(s.ix.tune.edgeGain, s.worth)-1) {
				better = true
				break
			}
		}
	}
}

// prune leaves out control edges that do not help.
func (s *orderSearch) prune() {
	for k := len(s.controlEdges) - 1; k >= 0 && k >= len(s.controlEdges)-s.ix.tune.edgeTries; k-- {
		s.try(append(append([]ControlEdge(nil), s.controlEdges[:k]...), s.controlEdges[k+1:]...), s.worth)
	}
}

// large reports operators one of which reads something large.
func (s *orderSearch) large(ops []int) bool {
	for _, op := range ops {
		for _, v := range s.ix.reads[op] {
			if s.ix.producer[v] >= 0 && s.ix.p.Graph.Values[v].Bytes >= part(s.ix.tune.largeShare, s.worth)/2 {
				return true
			}
		}
	}
	return false
}

// flip visits the producers of one kind of operator in the other order, in
// all layers alike: which of two operands is computed first decides what
// waits beside the other. Most of the time nothing comes of it, because one of
// them is needed before, which the last walk tells.
func (s *orderSearch) flip() {
	if len(s.order) == 0 {
		return
	}
	for _, ops := range s.ix.opKinds() {
		if len(s.walk.deps[ops[0]]) < 2 || s.lean && !s.large(ops) || !s.at.turns(s.walk, ops) {
			continue
		}
		s.walk.flip(ops)
		if !s.try(s.controlEdges, s.worth-1) {
			s.walk.flip(ops)
		}
	}
}
