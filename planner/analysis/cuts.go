package analysis

import (
	"maps"
	"slices"
	"sort"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
)

// Single-value cuts of the forward graph.
//
// Only values on the way from the data through the weights count (the main
// part): parameters, masks, position tables and shapes live anyway, and what is tiny
// beside the stream, as a sum of losses is, counts for nothing. Walking
// the main part in forward order, the longest branch of what an operator reads
// first, a moment at which a single value is alive is a cut: all that comes
// later depends on the past through it alone.
//
//	emb ─●─ attention ─●─ mlp ─●─ attention ─●─ mlp ─●─ norm ─●─ loss
//	     └─────┘ + ────┘ └─ + ─┘                (● cuts: after the additions)
//
// Some values are alive through many layers: what an encoder hands to every
// layer of its decoder, the position bias that all layers of a T5 add, the
// skips of a U-Net, the features that a dense block collects, the outputs of
// an unrolled recurrence. They hide the cuts of what lies below. Where no cut
// falls over a long stretch, the value that spans most of it is set aside as
// one that lives anyway, with all that the same Concat collects or the same
// Split hands out, and the walk repeated:
//
//	encoder ─●─●─●─ e ──────┬────────┬────────┐
//	                decoder ─+─●──────+─●──────+─●─ loss    (e set aside)

type cutFinder struct {
	a     *Analysis
	maker []int        // producer of each value
	given []int        // forward operators, nearest to the file's order
	depth []int        // of each value with nothing set aside
	order []int        // main operators in forward order
	main  []bool       // value
	aside map[int]bool // values set aside
	reads [][]int      // main operator (place in order) -> main values
	last  map[int]int  // main value -> last place that reads it
	made  map[int]int  // main value -> place that makes it
	cuts  []cut
}

// A cut is a value and the place in the main order after which it is alone.
type cut struct{ value, place int }

// findMain finds what depends on data and on weights.
func (c *cutFinder) findMain() {
	c.maker = c.a.Problem.Graph.Producers()
	c.given = c.forwardOrder(nil, func(v, u int) bool { return c.maker[v] < c.maker[u] })
	c.markMain(c.given)
	c.depth = c.depths()
	c.arrange()
}

// arrange brings the main operators in order. What was set aside comes first;
// to what reads it, it is as if it were given.
func (c *cutFinder) arrange() {
	a := c.a
	first := slices.Collect(maps.Keys(c.aside))
	less := func(depth []int) func(v, u int) bool {
		return func(v, u int) bool {
			if depth[v] != depth[u] {
				return depth[v] > depth[u]
			}
			return c.maker[v] < c.maker[u]
		}
	}
	sort.Slice(first, func(i, j int) bool { return less(c.depth)(first[j], first[i]) })
	c.order, c.reads = nil, nil
	for _, op := range c.forwardOrder(first, less(c.depths())) {
		if c.mainOutput(op) {
			c.order = append(c.order, op)
		}
	}
	c.made, c.last = map[int]int{}, map[int]int{}
	for place, op := range c.order {
		var list []int
		for _, v := range a.reads(op) {
			if c.main[v] {
				list = append(list, v)
				c.last[v] = place
			}
		}
		c.reads = append(c.reads, list)
		for _, v := range a.Problem.Graph.Nodes[op].Outputs {
			if v != ortmodel.None && c.main[v] {
				c.made[v] = place
			}
		}
	}
}

// markMain marks the values that depend on data and on weights. Weights reach
// a value through floats alone, where gradients flow: an index or a mask made
// of activations does not make what it selects an activation. A shape depends
// on nothing.
func (c *cutFinder) markMain(order []int) {
	a, p := c.a, c.a.Problem
	data, weights := make([]bool, len(a.Values)), make([]bool, len(a.Values))
	for v, value := range a.Values {
		kind := p.Graph.Values[v].Kind
		if kind != ortmodel.Feed && kind != ortmodel.Constant || value.Producer != nil {
			continue
		}
		trained := a.Roles.Grad[value.Name] != "" || a.Roles.New[value.Name] != ""
		held := kind == ortmodel.Constant || value.Init != nil // also one that a caller may replace
		weights[v] = trained || held && value.Type.DType.IsFloat() && a.elements(value) > 1 &&
			(!a.Roles.Training() || multiplied(value)) // perhaps a weight that an exporter transposed
		data[v] = kind == ortmodel.Feed && !held && !weights[v]
	}
	c.main = make([]bool, len(a.Values))
	for _, op := range order {
		d, w := false, false
		for _, value := range a.deps.Reads(a.Nodes[op], step.Data) { // a weight behind a barrier is one
			v := a.Index[value]
			d, w = d || data[v], w || weights[v]
		}
		for _, v := range p.Graph.Nodes[op].Outputs {
			if v != ortmodel.None {
				float := a.Values[v].Type.DType.IsFloat()
				data[v], weights[v] = d, w && float
				c.main[v] = d && w && float && v != p.Loss
			}
		}
	}
}

// mainOutput reports an operator of the main part; the loss's maker is one.
func (c *cutFinder) mainOutput(op int) bool {
	outputs, reads := c.a.Problem.Graph.Nodes[op].Outputs, c.a.reads(op)
	for _, v := range outputs {
		if v == ortmodel.None {
			continue
		}
		if c.main[v] {
			return true
		}
		for _, u := range reads {
			if v == c.a.Problem.Loss && c.main[u] {
				return true
			}
		}
	}
	return false
}

// multiplied reports a value that some product reads, perhaps behind a barrier.
func multiplied(v *onnx.Value) bool {
	for _, u := range v.Uses() {
		if t, _ := traits.Of(u.Node); t.Product() {
			return true
		}
		if view := u.Node.Out(0); traits.IsView(u.Node) && u.Index == 0 && view != nil && multiplied(view) {
			return true
		}
	}
	return false
}

// forwardOrder lists the forward operators, each after what it reads, each
// branch in one piece, branches in the given order of what is read; first what
// some values need.
func (c *cutFinder) forwardOrder(first []int, before func(v, u int) bool) []int {
	a := c.a
	done := make([]bool, len(a.Nodes))
	var order []int
	var visit func(op int)
	visit = func(op int) {
		if done[op] {
			return
		}
		done[op] = true
		list := a.reads(op)
		sort.SliceStable(list, func(i, j int) bool { return before(list[i], list[j]) })
		for _, v := range list {
			if c.maker[v] != ortmodel.None {
				visit(c.maker[v])
			}
		}
		order = append(order, op)
	}
	for _, v := range append(first, a.Problem.Loss) {
		if op := c.maker[v]; op != ortmodel.None {
			visit(op)
		}
	}
	return order
}

// depths returns for each value the length of the longest way of main values
// to it, from the step's inputs or what was set aside.
func (c *cutFinder) depths() []int {
	depth := make([]int, len(c.a.Values))
	for _, op := range c.given {
		most := 0
		for _, v := range c.a.reads(op) {
			if c.main[v] {
				most = max(most, depth[v])
			}
		}
		for _, v := range c.a.Problem.Graph.Nodes[op].Outputs {
			if v != ortmodel.None && c.main[v] && !c.aside[v] {
				depth[v] = most + 1
			}
		}
	}
	return depth
}

// scan finds the cuts: where one value is alive beside those set aside, or
// where one of those has just been made and nothing else is.
func (c *cutFinder) scan() {
	c.cuts = []cut{{ortmodel.None, -1}} // the step's inputs
	alive := map[int]bool{}
	add := func(v, place int) {
		if c.cuts[len(c.cuts)-1].value != v {
			c.cuts = append(c.cuts, cut{v, place})
		}
	}
	for place, op := range c.order {
		fresh := ortmodel.None
		for _, v := range c.a.Problem.Graph.Nodes[op].Outputs {
			switch {
			case v == ortmodel.None || !c.main[v] || c.last[v] <= place:
			case c.aside[v]:
				fresh = v
			default:
				alive[v] = true
			}
		}
		for _, v := range c.reads[place] {
			if c.last[v] == place {
				delete(alive, v)
			}
		}
		stream := c.stream(alive)
		switch {
		case stream != ortmodel.None:
			add(stream, place)
		case len(alive) == 0 && fresh != ortmodel.None:
			add(fresh, place)
		}
	}
}

// A value of at most tinyBytes, and of tinyShare of the stream's bytes, beside the
// stream hides no cut: a router's loss that is summed up from layer to layer.
const (
	tinyBytes = 256
	tinyShare = 1. / 64
)

// stream returns the one value of those alive that carries the past, None if there
// is none or several do.
func (c *cutFinder) stream(alive map[int]bool) int {
	best := ortmodel.None
	for v := range alive {
		if best == ortmodel.None || c.bytes(v) > c.bytes(best) {
			best = v
		}
	}
	for v := range alive {
		if v != best && !c.tiny(v, best) {
			return ortmodel.None
		}
	}
	return best
}

func (c *cutFinder) tiny(v, stream int) bool {
	return c.bytes(v) <= tinyBytes && float64(c.bytes(v)) <= tinyShare*float64(c.bytes(stream))
}

func (c *cutFinder) bytes(v int) int64 { return c.a.Problem.Graph.Values[v].Bytes }

// A span is a stretch of the main order, from its first place to its last.
type span struct{ from, to int }

// hidden lists the stretches without cuts that hold at least two products, the
// one with most products first.
func (c *cutFinder) hidden() []span {
	var list []span
	for k, at := range c.cuts {
		s := span{at.place + 1, len(c.order) - 1}
		if k+1 < len(c.cuts) {
			s.to = c.cuts[k+1].place
		}
		if c.products(s.from, s.to+1) >= 2 {
			list = append(list, s)
		}
	}
	sort.SliceStable(list, func(i, j int) bool {
		return c.products(list[i].from, list[i].to+1) > c.products(list[j].from, list[j].to+1)
	})
	return list
}

// setAside sets aside what hides the cuts of the stretch with most products
// that something spans at least half of, and returns it; nil where nothing
// does.
func (c *cutFinder) setAside() []int {
	for _, s := range c.hidden() {
		best, bestSpan := ortmodel.None, 0
		for v, made := range c.made {
			if c.aside[v] || made > s.to || c.last[v] <= s.from {
				continue
			}
			n := min(c.last[v], s.to) - max(made, s.from)
			if 2*n >= s.to-s.from && (n > bestSpan || n == bestSpan && v < best) {
				best, bestSpan = v, n
			}
		}
		if best != ortmodel.None {
			return c.putAside(best)
		}
	}
	return nil
}

// collected is the number of inputs (outputs) from which on a Concat (Split)
// counts as one that collects what many layers make (hands out).
const collected = 3

// putAside sets v aside and what the same Concat collects or the same Split
// hands out.
func (c *cutFinder) putAside(v int) []int {
	group := []int{v}
	reader := c.last[v]
	for c.view(c.order[reader]) {
		u := c.a.Problem.Graph.Nodes[c.order[reader]].Outputs[0]
		if !c.main[u] || c.last[u] <= reader {
			break
		}
		reader = c.last[u]
	}
	if c.a.Nodes[c.order[reader]].Is("Concat") && len(c.reads[reader]) >= collected {
		group = append(group, c.reads[reader]...)
	}
	if op := c.maker[v]; c.a.Nodes[op].Is("Split") && len(c.a.Nodes[op].Outputs) >= collected {
		for _, u := range c.a.Problem.Graph.Nodes[op].Outputs {
			if u != ortmodel.None && c.main[u] {
				group = append(group, u)
			}
		}
	}
	for k := 0; k < len(group); k++ { // what it is a view of as well
		if c.view(c.maker[group[k]]) {
			for _, u := range c.a.reads(c.maker[group[k]]) {
				if c.main[u] {
					group = append(group, u)
				}
			}
		}
		c.aside[group[k]] = true
	}
	c.arrange()
	return group
}

func (c *cutFinder) view(op int) bool {
	return traits.IsView(c.a.Nodes[op])
}

// products counts the products among the main operators of a piece.
func (c *cutFinder) products(from, to int) int {
	count := 0
	for _, op := range c.order[from:to] {
		if t, _ := traits.Of(c.a.Nodes[op]); t.Product() {
			count++
		}
	}
	return count
}
