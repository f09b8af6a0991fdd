package analysis

import (
	"fmt"
	"sort"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
)

// Where layers end, by structure.
//
// Only values on the way from the data through the weights count (the main
// part): parameters, masks, position tables and shapes live anyway. Walking
// the main part in forward order, a moment at which a single value is alive is
// a cut: all that comes later depends on the past through it alone.
//
//	emb ─●─ attention ─●─ mlp ─●─ attention ─●─ mlp ─●─ norm ─●─ loss
//	     └─────┘ + ────┘ └─ + ─┘                (● cuts: after the additions)
//
// The pieces between cuts have signatures (the operators inside); the longest
// repetition in their sequence is the stack of layers, and its period one
// layer. An encoder's output, alive through a whole decoder, would hide the
// decoder's cuts: a value that is alive through a large part without cuts is
// set aside, and the walk repeated.
//
// Weakness: stages that differ (a CNN's) do not repeat; then the layers are
// the pieces that hold at least one product.

type cutFinder struct {
	a     *Analysis
	order []int        // main operators in forward order
	main  []bool       // value
	aside map[int]bool // values set aside
	reads [][]int      // main operator (place in order) -> main values
	last  map[int]int  // main value -> last place that reads it
	cuts  []cut
}

// A cut is a value and the place in the main order after which it is alone.
type cut struct{ value, place int }

func (a *Analysis) findLayers() {
	if a.Problem.Loss == ortmodel.None {
		return
	}
	c := &cutFinder{a: a, aside: map[int]bool{}}
	c.findMain()
	var cuts []cut
	var layers []int
	best := -1
	for range 4 {
		c.scan()
		if list, cover := c.layers(); cover > best {
			cuts, layers, best = c.cuts, list, cover
		}
		v := c.hider()
		if 2*best >= c.products(0, len(c.order)) || v == ortmodel.None {
			break
		}
		c.aside[v] = true
	}
	for _, cut := range cuts {
		if cut.value != ortmodel.None {
			a.Problem.Cuts = append(a.Problem.Cuts, cut.value)
		}
	}
	a.Problem.Layers = layers
}

// findMain finds what depends on data and on weights.
func (c *cutFinder) findMain() {
	a := c.a
	p := a.Problem
	data, weights := make([]bool, len(a.Values)), make([]bool, len(a.Values))
	for v, value := range a.Values {
		kind := p.Graph.Values[v].Kind
		if kind != ortmodel.Feed && kind != ortmodel.Constant || value.Producer != nil {
			continue
		}
		trained := a.Roles.Grad[value.Name] != "" || a.Roles.New[value.Name] != ""
		weights[v] = trained || kind == ortmodel.Constant && value.Type.DType.IsFloat() && a.elements(value) > 1 &&
			(!a.Roles.loaded() || multiplied(value)) // perhaps a weight that an exporter transposed
		data[v] = kind == ortmodel.Feed && !weights[v]
	}
	c.main = make([]bool, len(a.Values))
	for _, op := range c.forwardOrder() {
		d, w := false, false
		for _, v := range a.reads(op) {
			d, w = d || data[v], w || weights[v]
		}
		for _, v := range p.Graph.Nodes[op].Outputs {
			if v == ortmodel.None {
				continue
			}
			data[v], weights[v] = d, w
			c.main[v] = d && w && v != p.Loss && a.Values[v].Type.DType.IsFloat()
		}
		if d && w {
			c.order = append(c.order, op)
		}
	}
	for _, op := range c.order {
		var list []int
		for _, v := range a.reads(op) {
			if c.main[v] {
				list = append(list, v)
			}
		}
		c.reads = append(c.reads, list)
	}
}

// multiplied reports a value that some product reads.
func multiplied(v *onnx.Value) bool {
	for _, u := range v.Uses() {
		if t, _ := traits.Of(u.Node); heavy(t) {
			return true
		}
	}
	return false
}

// forwardOrder lists the forward operators, each after what it reads, each
// branch in one piece.
func (c *cutFinder) forwardOrder() []int {
	a := c.a
	maker := a.makers()
	done := make([]bool, len(a.Nodes))
	var order []int
	var visit func(op int)
	visit = func(op int) {
		if done[op] {
			return
		}
		done[op] = true
		list := a.reads(op)
		sort.Slice(list, func(i, j int) bool { return maker[list[i]] < maker[list[j]] })
		for _, v := range list {
			if maker[v] != ortmodel.None {
				visit(maker[v])
			}
		}
		order = append(order, op)
	}
	if op := maker[a.Problem.Loss]; op != ortmodel.None {
		visit(op)
	}
	return order
}

// scan finds the cuts, values set aside left out.
func (c *cutFinder) scan() {
	c.last = map[int]int{}
	for place, list := range c.reads {
		for _, v := range list {
			c.last[v] = place
		}
	}
	c.cuts = nil
	alive := map[int]bool{}
	for place, op := range c.order {
		for _, v := range c.a.Problem.Graph.Nodes[op].Outputs {
			if v != ortmodel.None && c.main[v] && !c.aside[v] && c.last[v] > place {
				alive[v] = true
			}
		}
		for _, v := range c.reads[place] {
			if c.last[v] == place {
				delete(alive, v)
			}
		}
		if len(alive) == 1 {
			for v := range alive {
				if len(c.cuts) == 0 || c.cuts[len(c.cuts)-1].value != v {
					c.cuts = append(c.cuts, cut{v, place})
				}
			}
		}
	}
}

// hider returns the value that is alive through the largest stretch without
// cuts, if that stretch is at least a quarter of the whole; else None.
func (c *cutFinder) hider() int {
	from, length, before := 0, 0, 0
	places := make([]int, 0, len(c.cuts)+1)
	for _, cut := range c.cuts {
		places = append(places, cut.place)
	}
	for _, place := range append(places, len(c.order)-1) {
		if place-before > length {
			from, length = before, place-before
		}
		before = place
	}
	if 4*length < len(c.order) || length < 8 {
		return ortmodel.None
	}
	best, bestSpan := ortmodel.None, 0
	for place := 0; place < from+length/2; place++ {
		for _, v := range c.a.Problem.Graph.Nodes[c.order[place]].Outputs {
			if v == ortmodel.None || !c.main[v] || c.aside[v] {
				continue
			}
			span := min(c.last[v], from+length) - max(place, from)
			if 2*span >= length && span > bestSpan {
				best, bestSpan = v, span
			}
		}
	}
	return best
}

// layers returns the boundaries of the layers, the start of the first and the
// end of each, and how many products lie between them.
func (c *cutFinder) layers() (list []int, cover int) {
	if len(c.cuts) < 2 {
		return nil, 0
	}
	if c.cuts[0].value != ortmodel.None {
		c.cuts = append([]cut{{ortmodel.None, -1}}, c.cuts...) // the step's inputs
	}
	for _, describe := range []func(from, to int) string{c.signature, c.heavySignature} {
		if list, cover := c.repetitions(describe); list != nil {
			return list, cover
		}
	}
	return c.withProducts(), 0
}

// signature lists the operators of a piece.
func (c *cutFinder) signature(from, to int) string { return c.describe(from, to, false) }

// heavySignature lists its products alone.
func (c *cutFinder) heavySignature(from, to int) string { return c.describe(from, to, true) }

func (c *cutFinder) describe(from, to int, heavyOnly bool) string {
	var types []string
	for _, op := range c.order[from:to] {
		if t, _ := traits.Of(c.a.Nodes[op]); t.Cost != traits.View && (!heavyOnly || heavy(t)) {
			types = append(types, c.a.Problem.Ops[op].Type)
		}
	}
	sort.Strings(types)
	return fmt.Sprint(types)
}

func heavy(t traits.Traits) bool {
	return t.Cost == traits.Contraction || t.Cost == traits.Convolution || t.Cost == traits.Recurrent
}

// A run is a repetition in the sequence of pieces: count times period pieces
// from piece start on, up to piece end, with cover products.
type run struct{ start, end, period, count, cover int }

// pieces are the stretches between cuts: what is in them, and how many
// products. Piece i lies between cuts i and i+1.
type pieces struct {
	sig    []string
	weight []int
}

// repetitions finds the stacks of layers, the largest first (an encoder and a
// decoder are two), and returns their boundaries in forward order; nil where
// nothing repeats over a third of the products.
func (c *cutFinder) repetitions(describe func(from, to int) string) (list []int, cover int) {
	n := len(c.cuts) - 1
	var p pieces
	for i := range n {
		from, to := c.cuts[i].place+1, c.cuts[i+1].place+1
		p.sig, p.weight = append(p.sig, describe(from, to)), append(p.weight, c.products(from, to))
	}
	total := c.products(0, len(c.order))
	var runs []run
	var search func(from, to int)
	search = func(from, to int) {
		r := p.longest(from, to)
		if r.cover == 0 || len(runs) == 0 && 3*r.cover < total || 8*r.cover < total {
			return
		}
		runs = append(runs, r)
		cover += r.cover
		search(from, r.start)
		search(r.end, to)
	}
	search(0, n)
	sort.Slice(runs, func(a, b int) bool { return runs[a].start < runs[b].start })
	for _, r := range runs {
		for i := range r.count + 1 {
			at := min(r.start+i*r.period, r.end)
			if v := c.cuts[at].value; len(list) == 0 || list[len(list)-1] != v {
				list = append(list, v)
			}
		}
	}
	return list, cover
}

// longest finds the run with most products among pieces [from, to), of those
// the one with the shortest period.
func (p *pieces) longest(from, to int) run {
	var best run
	for period := 1; 2*period <= to-from; period++ {
		for start := from; start+2*period <= to; start++ {
			end := start + period
			for end < to && p.sig[end] == p.sig[end-period] {
				end++
			}
			r := run{start: start, end: end, period: period, count: (end - start) / period}
			if rest := (end - start) % period; r.count >= 2 && 2*rest >= period {
				r.count++ // a last layer without its tail, as an MLP's
			} else {
				r.end = end - rest
			}
			for i := start; i < r.end; i++ {
				r.cover += p.weight[i]
			}
			if r.count >= 2 && r.cover > best.cover {
				best = r
			}
			if end > start+2*period {
				start = end - 2*period // no better start inside a run
			}
		}
	}
	return best
}

// products counts the products among the main operators of a piece.
func (c *cutFinder) products(from, to int) int {
	count := 0
	for _, op := range c.order[from:to] {
		if t, _ := traits.Of(c.a.Nodes[op]); heavy(t) {
			count++
		}
	}
	return count
}

// withProducts joins pieces until each holds a product.
func (c *cutFinder) withProducts() []int {
	list := []int{c.cuts[0].value}
	from := c.cuts[0].place + 1
	for _, cut := range c.cuts[1:] {
		if c.products(from, cut.place+1) > 0 {
			list = append(list, cut.value)
			from = cut.place + 1
		}
	}
	if len(list) < 2 {
		return nil
	}
	return list
}
