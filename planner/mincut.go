package planner

import (
	"math"

	"github.com/onnx-remat/remat/ortmodel"
)

// Which values to keep at a given price of memory, exactly.
//
// Give every droppable value r a price p(r) for being held until backward and
// every operator o its cost c(o). Choose what to keep and what to run again:
//
//	minimize  Σ p(r) over kept r  +  Σ c(o) over repeated o
//
// such that every value that backward reads, or a repeated operator reads, is
// kept or its producer repeated. That is a minimum cut:
//
//	source ──∞──▶ need(r)            backward reads r
//	need(r) ──p(r)──▶ again(o)       r is kept unless its producer o repeats
//	again(o) ──c(o)──▶ sink          repeating o costs its work
//	again(o) ──∞──▶ need(u)          and needs what o reads
//
// Sweeping the price walks along the lower convex hull of kept bytes against
// repeated work. (The min-cut partitioner of PyTorch's AOTAutograd cuts a
// similar graph, with work ignored; here both sides are priced.)
//
// Weakness: it sees what lives across from forward to backward, not the room
// that recomputation itself takes. So its sets are judged, and then improved.

const infinite = math.MaxInt64 / 4

// A flowGraph is a network for Dinic's maximum flow.
type flowGraph struct {
	head []int32 // node -> last arc, -1
	next []int32
	to   []int32
	room []int64 // arc -> capacity left; arc^1 is its reverse
	// level and at belong to one phase.
	level, at, queue []int32
}

func newFlowGraph(nodes int) *flowGraph {
	f := &flowGraph{head: make([]int32, nodes), level: make([]int32, nodes), at: make([]int32, nodes)}
	for i := range f.head {
		f.head[i] = -1
	}
	return f
}

// arc adds an arc and returns its number.
func (f *flowGraph) arc(from, to int32, capacity int64) int32 {
	id := int32(len(f.to))
	f.to = append(f.to, to, from)
	f.room = append(f.room, capacity, 0)
	f.next = append(f.next, f.head[from], f.head[to])
	f.head[from], f.head[to] = id, id+1
	return id
}

// run pushes a maximum flow, and returns it; afterwards level is -1 exactly for the nodes
// on the sink's side of the minimum cut.
func (f *flowGraph) run(source, sink int32) (flow int64) {
	for f.layer(source, sink) {
		copy(f.at, f.head)
		for sent := f.push(source, sink, infinite); sent > 0; sent = f.push(source, sink, infinite) {
			flow += sent
		}
	}
	return flow
}

// layer numbers the nodes by their distance from the source.
func (f *flowGraph) layer(source, sink int32) bool {
	for i := range f.level {
		f.level[i] = -1
	}
	f.level[source] = 0
	f.queue = append(f.queue[:0], source)
	for k := 0; k < len(f.queue); k++ {
		x := f.queue[k]
		for a := f.head[x]; a >= 0; a = f.next[a] {
			if y := f.to[a]; f.room[a] > 0 && f.level[y] < 0 {
				f.level[y] = f.level[x] + 1
				f.queue = append(f.queue, y)
			}
		}
	}
	return f.level[sink] >= 0
}

// push sends up to limit along arcs to the next layer, and returns what arrived.
func (f *flowGraph) push(x, sink int32, limit int64) int64 {
	if x == sink {
		return limit
	}
	var sent int64
	for ; f.at[x] >= 0; f.at[x] = f.next[f.at[x]] {
		a := f.at[x]
		y := f.to[a]
		if f.room[a] <= 0 || f.level[y] != f.level[x]+1 {
			continue
		}
		d := f.push(y, sink, min(limit-sent, f.room[a]))
		f.room[a] -= d
		f.room[a^1] += d
		if sent += d; sent == limit {
			return sent
		}
	}
	return sent
}

// A keepCut finds keep sets of one problem.
type keepCut struct {
	ix      *index
	f       *flowGraph
	stash   []int   // droppable roots that may matter
	keepArc []int32 // parallel to stash
	again   []int32 // op -> node, or -1
	need    []int32 // root -> node, or -1
	initial []int64
	source  int32
	sink    int32
}

// newKeepCut builds the network of a problem; prices are set with each cut.
func newKeepCut(ix *index) *keepCut {
	return newNetwork(ix, network{
		cost:   func(op int) int64 { return ix.cost[op] + 1 },
		reads:  func(int) bool { return true },
		counts: func(int) bool { return true },
		waits:  func(int) bool { return false },
	})
}

// A network says what repeating an operator costs, which backward operators' reads count,
// and of which droppable roots; others are there anyway. What waits may run later, once, which costs
// nothing: of what it makes either that is held or what it reads.
type network struct {
	cost          func(op int) int64
	reads, counts func(of int) bool
	waits         func(op int) bool
}

// newNetwork builds such a network.
func newNetwork(ix *index, of network) *keepCut {
	c := &keepCut{ix: ix, again: make([]int32, len(ix.reads)), need: make([]int32, len(ix.root)), sink: 1}
	for _, r := range ix.stash {
		if of.counts(r) {
			c.stash = append(c.stash, r)
		}
	}
	for op := range ix.reads {
		if !of.waits(op) {
			continue
		}
		for _, v := range ix.outs[op] {
			if ix.root[v] == v && ix.p.Graph.Values[v].Kind == ortmodel.Inner {
				c.stash = append(c.stash, v)
			}
		}
	}
	nodes := int32(2)
	for op := range c.again {
		c.again[op] = -1
		if ix.canRepeat(op) || of.waits(op) {
			c.again[op] = nodes
			nodes++
		}
	}
	for r := range c.need {
		c.need[r] = -1
	}
	for _, r := range c.stash {
		c.need[r] = nodes
		nodes++
	}
	c.f = newFlowGraph(int(nodes))
	for _, r := range c.stash {
		c.keepArc = append(c.keepArc, c.f.arc(c.need[r], c.again[ix.producer[r]], 0))
	}
	wanted := make([]bool, len(ix.root))
	for op := range ix.reads {
		for _, v := range ix.reads[op] {
			r := ix.root[v]
			if c.need[r] < 0 {
				continue
			}
			if c.again[op] >= 0 {
				if ix.root[v] != ix.rootOfOutput(op) {
					c.f.arc(c.again[op], c.need[r], infinite)
				}
			} else if !ix.p.Ops[op].Forward {
				if !wanted[r] && of.reads(op) {
					wanted[r] = true
					c.f.arc(c.source, c.need[r], infinite)
				}
			}
		}
		if c.again[op] >= 0 && !of.waits(op) {
			c.f.arc(c.again[op], c.sink, of.cost(op))
		}
	}
	c.initial = append([]int64(nil), c.f.room...)
	return c
}

// rootOfOutput returns the root that op's output is a view of, or None.
func (ix *index) rootOfOutput(op int) int {
	for _, v := range ix.outs[op] {
		if ix.root[v] != v {
			return ix.root[v]
		}
	}
	return -1
}

// keep returns the best keep set under the given prices (parallel to stash),
// and the work that it repeats according to the cut.
func (c *keepCut) keep(price []int64) []bool {
	c.cut(price)
	set := make([]bool, len(c.ix.root))
	for _, r := range c.stash {
		o := c.again[c.ix.producer[r]]
		set[r] = c.f.level[c.need[r]] >= 0 && c.f.level[o] < 0
	}
	return set
}

// cut finds the minimum cut under the given prices (parallel to stash), and returns it.
func (c *keepCut) cut(price []int64) int64 {
	copy(c.f.room, c.initial)
	for i, a := range c.keepArc {
		c.f.room[a] = price[i]
	}
	return c.f.run(c.source, c.sink)
}
