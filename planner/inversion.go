package planner

import (
	"cmp"
	"slices"
	"sort"

	"github.com/onnx-remat/remat/ortmodel"
)

// Inversions: what runs long before it is wanted.
//
//	wanted:  logits₀ … dlogits₀ dW₀ | logits₁ … dlogits₁ dW₁ | …
//	lazy:    logits₀ logits₁ logits₂ … (the loss asks for all) … dW₀ dW₁ …
//
// At the peak of the lazy order, a large buffer is there whose maker the
// wanted order runs only after the operator at the peak. Its maker gets a control edge
// on what the wanted order runs right before it and the lazy one after it.

// inversions returns two batches of control edges: against the peak with only the
// boundaries kept, and against the plain peak.
func (ix *index) inversions(w *lazyWalk, order []int, sim *liveSim) [][]ControlEdge {
	key := [2]uint64{w.hash, hashOf(order, false)}
	return once(ix.inverting, key, func() [][]ControlEdge { return ix.findInversions(w, order, sim) })
}

func (ix *index) findInversions(w *lazyWalk, order []int, sim *liveSim) [][]ControlEdge {
	var batches [][]ControlEdge
	for _, schedule := range [][]int{newLowerer(ix, order).schedule(ix.leastKeep()), order} {
		if batch := ix.inverted(w, order, schedule, sim); len(batch) > 0 {
			batches = append(batches, batch)
		}
	}
	return batches
}

// leastKeep keeps the layers' boundaries alone, or nothing; it is not to be changed.
func (ix *index) leastKeep() []bool {
	switch {
	case ix.leastKept != nil:
	case len(ix.p.Layers) >= 2:
		ix.leastKept = ix.segmentKeep(ix.p.Layers)
	default:
		ix.leastKept = make([]bool, len(ix.root))
	}
	return ix.leastKept
}

// inverted returns control edges for the makers of the large buffers at a schedule's
// peak that the wanted order makes only later.
func (ix *index) inverted(w *lazyWalk, order, schedule []int, sim *liveSim) []ControlEdge {
	sim.run(schedule)
	at := int32(sim.peakAt)
	place := places(order)
	var batch []ControlEdge
	seen := make([]bool, len(order))
	var live []*instance // there before the peak, as they are made
	for i := range sim.insts {
		if b := &sim.insts[i]; b.birth >= 0 && b.birth < at && (b.death < 0 || b.death >= at) {
			live = append(live, b)
		}
	}
	slices.SortStableFunc(live, func(a, b *instance) int { return cmp.Compare(a.birth, b.birth) })
	for _, b := range live {
		maker := schedule[b.birth]
		if seen[maker] || b.bytes < part(ix.tune.largeShare, sim.peak) || w.pos[maker] <= w.pos[schedule[at]] || !ix.guardable(maker) {
			continue
		}
		seen[maker] = true
		batch = append(batch, ix.waits(w, place, maker, part(ix.tune.largeShare, sim.peak))...)
	}
	return batch
}

// waits returns what maker is to wait for: of the operators that the wanted
// order runs shortly before it, and the lazy one after it, those that read
// something large and that no other of them depends on.
func (ix *index) waits(w *lazyWalk, place []int, maker int, large int64) []ControlEdge {
	var late []int
	for pos := w.pos[maker] - 1; pos >= max(w.pos[maker]-ix.tune.inversionWindow, 0); pos-- {
		if op := w.wanted[pos]; place[op] > place[maker] {
			late = append(late, op)
		}
	}
	inner := make(map[int]bool) // read by a later one of them
	var controlEdges []ControlEdge
	for _, op := range late {
		reads := false
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j >= 0 {
				inner[j] = true
				reads = reads || ix.p.Graph.Values[ix.root[v]].Bytes >= large
			}
		}
		if inner[op] || !reads || len(ix.outs[op]) == 0 || ix.p.Values[ix.outs[op][0]].Role == Index {
			continue
		}
		if controlEdges = append(controlEdges, ControlEdge{Op: maker, After: ix.outs[op][0]}); len(controlEdges) == ix.tune.inversionEdges {
			break
		}
	}
	return controlEdges
}

// A lazyWalk finds, for one wanted order, the order that ONNX Runtime runs
// under different control edges: the depth-first post-order of ortmodel, with each
// group in the wanted order. (That a file can be laid out so is nearly always
// true; the judge asks ortmodel itself.)
type lazyWalk struct {
	ix     *index
	wanted []int
	hash   uint64  // of wanted
	pos    []int   // op -> place in wanted
	deps   [][]int // op -> producers, latest wanted first
	waits  [][]int // op -> deps and what its control edges wait for, while an order is made; else nil
	leaves []int   // latest wanted first
	state  []uint8
	stack  []int
	// begun and ended are of the last order, by operator: the places at which its
	// producers begin to be visited, and at which it runs.
	begun, ended []int32
}

// newLazyWalk sorts every operator's producers, and the leaves, by the wanted order.
func newLazyWalk(ix *index, wanted []int) *lazyWalk {
	w := &lazyWalk{ix: ix, wanted: wanted, hash: hashOf(wanted, false), pos: places(wanted), deps: make([][]int, len(wanted)), waits: make([][]int, len(wanted)), state: make([]uint8, len(wanted)),
		begun: make([]int32, len(wanted)), ended: make([]int32, len(wanted))}
	read := make([]bool, len(wanted))
	for op := range ix.reads {
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j != ortmodel.None {
				read[j] = true
				if !slices.Contains(w.deps[op], j) {
					w.deps[op] = append(w.deps[op], j)
				}
			}
		}
		w.sort(w.deps[op])
	}
	for op := range read {
		if !read[op] {
			w.leaves = append(w.leaves, op)
		}
	}
	w.sort(w.leaves)
	return w
}

func (w *lazyWalk) sort(ops []int) {
	sort.Slice(ops, func(a, b int) bool { return w.pos[ops[a]] > w.pos[ops[b]] })
}

// flip reverses the order in which the producers of some operators are
// visited.
func (w *lazyWalk) flip(ops []int) {
	for _, op := range ops {
		for i, j := 0, len(w.deps[op])-1; i < j; i, j = i+1, j-1 {
			w.deps[op][i], w.deps[op][j] = w.deps[op][j], w.deps[op][i]
		}
	}
}

// order returns the order under the given control edges, nil if they make a cycle.
func (w *lazyWalk) order(controlEdges []ControlEdge) []int {
	for _, a := range controlEdges { // what is waited for is visited first
		if w.waits[a.Op] == nil {
			w.waits[a.Op] = slices.Clone(w.deps[a.Op])
		}
		w.waits[a.Op] = append(w.waits[a.Op], w.ix.producer[a.After])
	}
	defer func() {
		for _, a := range controlEdges {
			w.waits[a.Op] = nil
		}
	}()
	clear(w.state)
	order := make([]int, 0, len(w.wanted))
	w.stack = append(w.stack[:0], w.leaves...)
	for len(w.stack) > 0 {
		op := w.stack[len(w.stack)-1]
		switch w.state[op] {
		case 0:
			w.state[op], w.begun[op] = 1, int32(len(order))
			deps := w.deps[op]
			if with := w.waits[op]; with != nil {
				deps = with
			}
			for _, j := range deps {
				if w.state[j] == 1 {
					return nil // a cycle
				}
				if w.state[j] == 0 {
					w.stack = append(w.stack, j)
				}
			}
			continue
		case 1:
			w.state[op], w.ended[op] = 2, int32(len(order))
			order = append(order, op)
		}
		w.stack = w.stack[:len(w.stack)-1]
	}
	return order
}

// visits are places of one order: see begun.
type visits struct{ begun, ended []int32 }

// keep notes the places of the last order.
func (v *visits) keep(w *lazyWalk) {
	v.begun, v.ended = append(v.begun[:0], w.begun...), append(v.ended[:0], w.ended...)
}

// turns reports that to flip some operators may change the order: one of them finds two
// of its producers not visited yet. Else each of them visits one at most, whichever
// comes first.
func (v *visits) turns(w *lazyWalk, ops []int) bool {
	for _, op := range ops {
		waiting := 0
		for _, j := range w.deps[op] {
			if v.ended[j] >= v.begun[op] {
				waiting++
			}
		}
		if waiting > 1 {
			return true
		}
	}
	return false
}
