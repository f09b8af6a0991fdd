package planner

import (
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// Orders of a graph that need little memory.
//
// Greedy: of the nodes that could run, run any that does not raise memory
// (the one first in the file), else the one that raises it least. It puts
// weight gradients where they free most, because the gradient they read dies
// with them. ONNX Runtime runs a node only when somebody needs it, so every
// order is drawn near to such a lazy one before it is judged; that also undoes
// the one thing greedy does badly, running what shrinks nothing too early.
//
// Weakness: no look-ahead; where two branches both rise before they fall, the
// wrong one may go first. So the file's own order competes.

// Deep is greedy with another choice where memory must rise: the node that
// reads what was made last, so that a branch is followed to its end (one slice
// of a loss computed in slices, before the next begins). Side nodes (masks,
// labels, transposed weights) wait for their first reader.

// greedy returns a topological order of the nodes; deep if side is given: the
// nodes that are not on the way from the data through the weights. Of equals,
// the first in the file is taken, or the last.
func (ix *index) greedy(side []bool, last bool) []int {
	w := newGreedy(ix)
	w.last = last
	w.deep = side != nil
	if w.deep {
		w.setAside(side)
	}
	order := make([]int, 0, len(ix.topo))
	for len(w.ready) > 0 {
		k := w.pick()
		node := w.ready[k]
		w.ready = append(w.ready[:k], w.ready[k+1:]...)
		order = append(order, node)
		w.finish(node)
	}
	if w.deep {
		return topological(w.g, ix.producer, order)
	}
	return order
}

// setAside takes side nodes out of the queue as if they had run. The bytes of
// what they make count for the first reader that is no side node.
func (w *greedyState) setAside(side []bool) {
	w.pending = make([]bool, len(w.root))
	for k := 0; k < len(w.ready); {
		i := w.ready[k]
		if !side[i] || len(w.next[i]) == 0 {
			k++
			continue
		}
		w.ready = append(w.ready[:k], w.ready[k+1:]...)
		for _, v := range w.g.Nodes[i].Outputs {
			if v < 0 || w.root[v] != v || w.owned(v) == 0 {
				continue
			}
			w.pending[v] = true
			for _, j := range w.readers[v] {
				w.rise[j] += w.owned(v)
			}
		}
		w.finish(i)
		k = 0
	}
	w.clock = 0
	clear(w.fresh)
}

type greedyState struct {
	g       *ortmodel.Graph
	root    []int
	readers [][]int // root -> nodes that read it or a view of it, each once
	left    []int   // root -> readers that have not run
	reads   [][]int // node -> roots it reads, each once
	next    [][]int // node -> nodes that depend on it, each once
	need    []int   // node -> producers that have not run
	rise    []int64 // node -> bytes it would add
	done    []bool
	ready   []int // ascending
	deep    bool
	last    bool   // of equals, take the last
	pending []bool // root made by a side node, no reader has run
	fresh   []int  // node -> when its newest input was made
	clock   int
}

// newGreedy counts for every node what must run before it and what its running adds.
func newGreedy(ix *index) *greedyState {
	g := &ix.p.Graph
	nn, nv := len(g.Nodes), len(g.Values)
	w := &greedyState{g: g, root: ix.root, readers: make([][]int, nv), left: make([]int, nv),
		reads: make([][]int, nn), next: make([][]int, nn), need: make([]int, nn), rise: make([]int64, nn), done: make([]bool, nn), fresh: make([]int, nn)}
	for _, i := range ix.topo {
		w.enter(i, ix.producer)
	}
	for v, list := range w.readers {
		if w.left[v] = len(list); len(list) == 1 {
			w.rise[list[0]] -= w.owned(v)
		}
	}
	for i, n := range w.need {
		if n == 0 {
			w.ready = append(w.ready, i)
		}
	}
	return w
}

// enter records node i; its producers were entered before.
func (w *greedyState) enter(i int, producer []int) {
	n := &w.g.Nodes[i]
	for _, v := range n.Outputs {
		if v >= 0 && w.root[v] == v && w.g.Values[v].Kind != ortmodel.Bound {
			w.rise[i] += w.g.Values[v].Bytes
		}
	}
	for _, list := range [2][]int{n.Inputs, n.Captures} {
		for _, v := range list {
			if v < 0 {
				continue
			}
			if r := w.root[v]; !slices.Contains(w.reads[i], r) {
				w.reads[i] = append(w.reads[i], r)
				w.readers[r] = append(w.readers[r], i)
			}
			if j := producer[v]; j >= 0 && !slices.Contains(w.next[j], i) {
				w.next[j] = append(w.next[j], i)
				w.need[i]++
			}
		}
	}
}

// owned returns the bytes that v's death frees.
func (w *greedyState) owned(v int) int64 {
	if val := &w.g.Values[v]; val.Kind == ortmodel.Inner {
		return val.Bytes
	}
	return 0
}

// pick returns the place in ready of the node to run.
func (w *greedyState) pick() int {
	best := -1
	for k, i := range w.ready {
		if !w.raises(i) && !w.last {
			return k
		}
		if best < 0 || w.before(i, w.ready[best]) || w.last && !w.before(w.ready[best], i) {
			best = k
		}
	}
	return best
}

// raises reports a node that adds more than a trifle.
func (w *greedyState) raises(i int) bool { return w.rise[i] > trifle }

// before orders two nodes: what does not raise memory first.
func (w *greedyState) before(i, j int) bool {
	if a, b := !w.raises(i), !w.raises(j); a || b {
		return a && !b
	}
	if w.deep && w.fresh[i] != w.fresh[j] {
		return w.fresh[i] > w.fresh[j]
	}
	return w.rise[i] < w.rise[j]
}

// finish notes that node i ran: what it read last is one reader nearer to its
// release, and what waited for it alone is ready, in ascending order.
func (w *greedyState) finish(i int) {
	w.done[i] = true
	w.clock++
	if w.pending != nil {
		for _, r := range w.reads[i] {
			if !w.pending[r] {
				continue
			}
			w.pending[r] = false
			for _, j := range w.readers[r] {
				if j != i {
					w.rise[j] -= w.owned(r)
				}
			}
		}
	}
	for _, r := range w.reads[i] {
		if w.left[r]--; w.left[r] != 1 {
			continue
		}
		for _, j := range w.readers[r] { // the last reader will free it
			if !w.done[j] {
				w.rise[j] -= w.owned(r)
				break
			}
		}
	}
	for _, j := range w.next[i] {
		w.fresh[j] = w.clock
		if w.need[j]--; w.need[j] == 0 {
			k := len(w.ready)
			w.ready = append(w.ready, 0)
			for ; k > 0 && w.ready[k-1] > j; k-- {
				w.ready[k] = w.ready[k-1]
			}
			w.ready[k] = j
		}
	}
}
