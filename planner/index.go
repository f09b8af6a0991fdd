package planner

import (
	"slices"
	"sync"

	"github.com/onnx-remat/remat/ortmodel"
)

// An index holds what every solver asks of a Problem, found once.
type index struct {
	p    *Problem
	tune *tuning
	flat *flat
	// producer[v] is the op that computes v, or None.
	producer []int
	// root[v] is the value that owns v's buffer: v itself, or what v is a
	// view of.
	root []int
	// reads[op] lists the values an op reads, each once.
	reads [][]int
	// outs[op] lists its outputs, None left out.
	outs [][]int
	// readers[v] lists the ops that read v, each once, ascending.
	readers [][]int
	// touched lists the roots that a forward op reads or makes, views included, and asked what
	// a backward op reads of forward that a plan may drop.
	touched, asked rows
	// cost[op] is what solvers minimize: FLOPs, and a little for traffic, so
	// that of two equal plans the one that moves less is taken.
	cost []int64
	// total is the cost of the plain step.
	total int64
	// pinned[v], v a root: never dropped (fed, returned, tiny, random, …).
	pinned []bool
	// viewed: backward views a root that is not pinned. narrow is the index that pins those, nil
	// before it is asked for.
	viewed     bool
	narrow     *index
	narrowOnce sync.Once
	// keepViewed: what backward views is never dropped.
	keepViewed bool
	// rolledAs is what rolled returns.
	rolledAs *rolled
	rollOnce sync.Once
	// stash lists the roots that a plan may drop: forward values, not pinned,
	// that some backward op reads or a recomputation could need.
	stash []int
	// topo is the graph's order, made topological where it is not.
	topo []int
	// plainBase and leanBase are the orders that plans are built on: see order.go.
	plainBase, leanBase *baseOrder
	// orders are all that were tried for them.
	orders []*baseOrder
	// wanted are the orders that both begin with.
	wanted [][]int
	// weighed are the peaks of the orders tried for them.
	weighed map[weighing]weight
	// deferred are the control edges that deferrals finds for an order, by its hash, and inverting
	// those of inversions, by the hashes of the wanted order and of the one that runs.
	deferred  map[uint64][][]ControlEdge
	inverting map[[2]uint64][][]ControlEdge
	// leastKept is what leastKeep returns.
	leastKept []bool
	// kindsOf groups the droppable roots, and opKindsOf the operators: see kinds.
	kindsOf, opKindsOf [][]int
	// exploredAs is the result of the search behind optimal.
	exploredAs  *explorer
	exploreOnce sync.Once
	reachOnce   sync.Once
	reached     float64
	// tradeoffs are the bounds of mostOf, nil before they are asked for.
	tradeoffs    []*tradeoff
	tradeoffLock sync.Mutex
	// noneIs is the best order without recomputation.
	noneIs     *legalized
	noneErr    error
	noneOnce   sync.Once
	boundOnce  sync.Once
	lowerBound int64
	// bounds are what boundAt returns.
	bounds []int64
	// events counts the executions that were simulated for this problem: the
	// measure of the search's work.
	events int64
	// captured[op]: a subgraph reads an output, so it has one instance only.
	captured []bool
}

// indexed returns p's index, building it at the first call.
func (p *Problem) indexed() *index {
	p.once.Do(func() { p.ix = newIndex(p, false) })
	return p.ix
}

// narrowed is the index in which what backward views is never dropped.
func (ix *index) narrowed() *index {
	ix.narrowOnce.Do(func() { ix.narrow = newIndex(ix.p, true) })
	return ix.narrow
}

// newIndex finds, in one walk over the graph, what solvers ask of it. With keepViewed, what
// backward views is never dropped.
func newIndex(p *Problem, keepViewed bool) *index {
	nv, no := len(p.Values), len(p.Ops)
	ix := &index{
		p: p, keepViewed: keepViewed, tune: p.tuning(), flat: newFlat(&p.Graph), producer: make([]int, nv), root: make([]int, nv), readers: make([][]int, nv),
		reads: make([][]int, no), outs: make([][]int, no), cost: make([]int64, no), pinned: make([]bool, nv), weighed: map[weighing]weight{},
		deferred: map[uint64][][]ControlEdge{}, inverting: map[[2]uint64][][]ControlEdge{},
	}
	for v := range ix.producer {
		ix.producer[v], ix.root[v] = ortmodel.None, v
	}
	for i := range p.Graph.Nodes {
		n := &p.Graph.Nodes[i]
		for _, list := range [][]int{n.Inputs, n.Captures} {
			for _, v := range list {
				if v != ortmodel.None && !slices.Contains(ix.reads[i], v) {
					ix.reads[i] = append(ix.reads[i], v)
					ix.readers[v] = append(ix.readers[v], i)
				}
			}
		}
		for _, v := range n.Outputs {
			if v != ortmodel.None {
				ix.outs[i] = append(ix.outs[i], v)
				ix.producer[v] = i
			}
		}
		ix.cost[i] = p.Ops[i].FLOPs + part(ix.tune.movedWork, p.Ops[i].Moved)
		ix.total += ix.cost[i]
	}
	ix.captured = make([]bool, no)
	for i := range p.Graph.Nodes {
		for _, v := range p.Graph.Nodes[i].Captures {
			if v != ortmodel.None && ix.producer[v] != ortmodel.None {
				ix.captured[ix.producer[v]] = true
			}
		}
	}
	ix.topo = topological(&p.Graph, ix.producer, ortmodel.FileSchedule(no))
	ix.findRoots()
	ix.pin(keepViewed)
	ix.findTouched()
	return ix
}

func (ix *index) findTouched() {
	ix.touched.end()
	ix.asked.end()
	for op := range ix.reads {
		forward := ix.p.Ops[op].Forward
		for _, v := range ix.reads[op] {
			r := ix.root[v]
			if forward {
				ix.touched.items = append(ix.touched.items, int32(r))
			} else if j := ix.producer[v]; j >= 0 && ix.p.Ops[j].Forward && !ix.pinned[r] {
				ix.asked.items = append(ix.asked.items, int32(v))
			}
		}
		if forward {
			for _, v := range ix.outs[op] {
				ix.touched.items = append(ix.touched.items, int32(ix.root[v]))
			}
		}
		ix.touched.end()
		ix.asked.end()
	}
}

// topological returns the topological order nearest to wanted: each node as soon as wanted
// says, after what it depends on. Nil if there is a cycle.
func topological(g *ortmodel.Graph, producer, wanted []int) []int {
	state := make([]uint8, len(g.Nodes))
	order := make([]int, 0, len(g.Nodes))
	var visit func(i int) bool
	visit = func(i int) bool {
		if state[i] != 0 {
			return state[i] == 2
		}
		state[i] = 1
		for _, list := range [2][]int{g.Nodes[i].Inputs, g.Nodes[i].Captures} {
			for _, v := range list {
				if v >= 0 && producer[v] >= 0 && !visit(producer[v]) {
					return false
				}
			}
		}
		state[i] = 2
		order = append(order, i)
		return true
	}
	for _, i := range wanted {
		if !visit(i) {
			return nil
		}
	}
	return order
}

// places are those of operators in an order.
func places(order []int) []int {
	place := make([]int, len(order))
	for pos, op := range order {
		place[op] = pos
	}
	return place
}

// grouped lists together what has one key, in the order in which keys come first.
func grouped[T any, K comparable](list []T, key func(T) K) [][]T {
	group := make(map[K]int)
	var groups [][]T
	for _, x := range list {
		k, ok := group[key(x)]
		if !ok {
			k = len(groups)
			group[key(x)] = k
			groups = append(groups, nil)
		}
		groups[k] = append(groups[k], x)
	}
	return groups
}

func (ix *index) findRoots() {
	for _, op := range ix.topo {
		n := &ix.p.Graph.Nodes[op]
		for _, a := range n.Alias {
			in, out := n.Inputs[a.Input], n.Outputs[a.Output]
			if in == ortmodel.None || out == ortmodel.None {
				continue
			}
			if k := ix.p.Graph.Values[out].Kind; k == ortmodel.Inner {
				ix.root[out] = ix.root[in]
			}
		}
	}
}

func (ix *index) pin(keepViewed bool) {
	p := ix.p
	small := ix.small()
	var viewed []int
	for v := range p.Values {
		val := &p.Graph.Values[v]
		op := ix.producer[v]
		switch {
		case !keepViewed && op >= 0 && !p.Ops[op].Forward && ix.root[v] != v && val.Kind == ortmodel.Inner:
			viewed = append(viewed, ix.root[v]) // it is there then: it was kept, or is computed again
		case val.Kind != ortmodel.Inner, op == ortmodel.None, val.Bytes <= small,
			p.Values[v].Role == Index, !ix.canRepeat(op):
			ix.pinned[ix.root[v]] = true
		}
	}
	ix.viewed = slices.ContainsFunc(viewed, func(r int) bool { return !ix.pinned[r] })
	// A view of something droppable is as droppable as its root; a view that
	// cannot be computed again pins the root (done above through root[v]).
	for v := range p.Values {
		if ix.root[v] == v && !ix.pinned[v] && len(ix.readers[v]) > 0 {
			ix.stash = append(ix.stash, v)
		}
	}
}

// small returns the size up to which values are kept without a question.
func (ix *index) small() int64 {
	var total int64
	var sizes []int64
	for v := range ix.p.Values {
		if op := ix.producer[v]; op >= 0 && ix.p.Ops[op].Forward && ix.root[v] == v {
			total += ix.p.Graph.Values[v].Bytes
			sizes = append(sizes, ix.p.Graph.Values[v].Bytes)
		}
	}
	slices.Sort(sizes)
	limit := min(ix.tune.smallBytes, part(ix.tune.smallOne, total))
	var sum int64
	for _, size := range sizes {
		if sum += size; size > limit || sum > part(ix.tune.smallAll, total) {
			return min(limit, size-1)
		}
	}
	return limit
}

// kept reports whether v can be read at any time: its buffer is one of those kept,
// or is never dropped.
func (ix *index) kept(keep []bool, v int) bool {
	r := ix.root[v]
	return keep[r] || ix.pinned[r]
}

// keepAll returns a keep set that holds every root.
func (ix *index) keepAll() []bool {
	keep := slices.Repeat([]bool{true}, len(ix.root))
	return keep
}
