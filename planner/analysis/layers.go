package analysis

import (
	"slices"
	"sort"

	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
)

// Where layers end, by structure.
//
// The pieces between cuts (cuts.go) have signatures (the operators inside);
// the longest repetition in their sequence is the stack of layers, and its
// period one layer. What is left before and after it is searched in turn: an
// encoder and a decoder are two stacks, the towers of CLIP as well.
//
//	pieces:  e | n a + n m + | n a + n m + | … | n | h
//	             └─ layer 1 ─┘ └─ layer 2 ─┘
//
// Between and beside stacks, pieces are joined to layers of about as many
// products; what has less than half of that (an embedding, a norm, a head)
// belongs to its neighbour, or to none at the ends. Where most products are
// convolutions, the pieces themselves are the layers: residual blocks, or
// single convolutions.
//
// Stacks are first sought with nothing set aside, then with more and more, as
// long as the stacks leave out a layer's products or more. So in a
// stack of recurrent layers, unrolled, a layer is what one of them does over
// all steps; in a single one it is a step.
//
// Weakness: where nothing repeats, the layers are the pieces that hold at
// least one product.

// asideRounds bounds the values, or groups of them, that are set aside.
const asideRounds = 32

func (a *Analysis) findLayers() {
	if a.Problem.Loss == ortmodel.None {
		return
	}
	c := &cutFinder{a: a, aside: map[int]bool{}}
	c.findMain()
	total := c.products(0, len(c.order))
	var best division
	var groups [][]int
	for round := range asideRounds {
		c.scan()
		if d := c.divide(); round == 0 || d.cover >= best.cover+max(d.layer, 2) && c.through(d.layers, groups) {
			d.cuts, d.groups = c.cuts, len(groups)
			best = d
		}
		if best.cover > 0 && total-best.cover < max(best.layer, 2) {
			break
		}
		group := c.setAside()
		if group == nil {
			break
		}
		groups = append(groups, group)
	}
	for _, cut := range best.cuts {
		if cut.value != ortmodel.None {
			a.Problem.Cuts = append(a.Problem.Cuts, planner.Cut{cut.value})
		}
	}
	for _, cut := range best.layers {
		var at planner.Cut
		if cut.value != ortmodel.None {
			at = planner.Cut{cut.value}
		}
		a.Problem.Layers = append(a.Problem.Layers, at)
	}
	clear(c.aside)
	for _, v := range slices.Concat(groups[:best.groups]...) {
		c.aside[v] = true
	}
	c.arrange() // places are those of the division again
	a.Problem.Beside = c.beside(best.layers, groups[:best.groups])
}

// A division is a list of boundaries, the start of the first layer and the end
// of each, how many products its stacks hold, how many one of their layers, and
// what was set aside for it.
type division struct {
	layers []cut
	cover  int
	layer  int
	cuts   []cut
	groups int
}

// at reports whether v is alive at a cut, as another value than the cut's.
func (c *cutFinder) at(v int, at cut) bool {
	return v != at.value && c.made[v] <= at.place && c.last[v] > at.place
}

// through reports whether what was set aside lives through layers, and was not
// just in the way of cuts inside of them: of each group at whose values some
// boundary is crossed, one is there at the start of a layer and after its end.
func (c *cutFinder) through(layers []cut, groups [][]int) bool {
	for _, g := range groups {
		crossed, whole := false, false
		for k, at := range layers {
			for _, v := range g {
				crossed = crossed || c.at(v, at)
				whole = whole || k > 0 && c.at(v, at) && c.made[v] <= layers[k-1].place
			}
		}
		if crossed && !whole {
			return false
		}
	}
	return true
}

// beside lists the values set aside, and the tiny ones, that are alive at other
// boundaries of layers.
func (c *cutFinder) beside(layers []cut, groups [][]int) []int {
	var list []int
	seen := map[int]bool{}
	for _, at := range layers {
		for _, v := range slices.Concat(groups...) {
			if !seen[v] && c.at(v, at) {
				seen[v] = true
				list = append(list, v)
			}
		}
		for v := range c.made {
			if !seen[v] && at.value != ortmodel.None && c.tiny(v, at.value) && c.at(v, at) {
				seen[v] = true
				list = append(list, v)
			}
		}
	}
	sort.Slice(list, func(i, j int) bool { return c.made[list[i]] < c.made[list[j]] })
	return list
}

// divide divides the main part as the cuts of the last scan allow.
func (c *cutFinder) divide() division {
	if len(c.cuts) < 3 {
		return division{}
	}
	p := c.measure()
	if n := c.convolutions(); p.total() > 0 && 2*n >= p.total() {
		return c.blocks(p)
	}
	runs := p.runs()
	p.productsOnly = true
	if more := p.runs(); cover(more) >= cover(runs)+max(layer(more), layer(runs)) {
		runs = more
	}
	if len(runs) > 0 {
		return c.joined(p, runs)
	}
	list := c.fill(p, 0, len(c.cuts)-1, 1)
	if len(list) > 0 {
		list = append([]cut{c.cuts[0]}, list...)
	}
	return division{layers: list}
}

// blockProducts is the most products of a block that its own residual may hide;
// over more of them, what hides the cuts is a skip connection or the like.
const blockProducts = 6

// blocks divides a convolutional network, whose stages repeat by accident and
// differ in size: a layer is a piece, as a residual block, joined with those
// before it that have up to half the products of the piece that the middle
// product lies in. Layers end where little is alive, not inside of what a
// block widens.
func (c *cutFinder) blocks(p *pieces) division {
	d := division{}
	var sizes []int // of the piece of each product
	for i := range len(c.cuts) - 1 {
		n := p.products(i, i+1)
		for range n {
			sizes = append(sizes, n)
		}
		if n <= blockProducts {
			d.cover += n
		}
	}
	slices.Sort(sizes)
	d.layer = sizes[len(sizes)/2]/2 + 1
	least := c.narrowest(p)
	d.layers = []cut{c.cuts[0]}
	ended := 0
	for k, at := range least {
		if wide := c.falls(least, k, -1) && c.falls(least, k, 1); p.prods[at]-ended >= d.layer && !wide {
			d.layers = append(d.layers, c.cuts[at])
			ended = p.prods[at]
		}
	}
	if len(d.layers) < 2 {
		d.layers = nil
	}
	return d
}

// narrowest lists the smallest of the cuts between one product and the next.
func (c *cutFinder) narrowest(p *pieces) []int {
	bytes := func(at int) int64 { return c.a.Problem.Graph.Values[c.cuts[at].value].Bytes }
	var list []int
	for at := 1; at < len(c.cuts); at++ {
		switch n := len(list); {
		case p.prods[at] == 0:
		case n == 0 || p.prods[at] > p.prods[list[n-1]]:
			list = append(list, at)
		case bytes(at) < bytes(list[n-1]):
			list[n-1] = at
		}
	}
	return list
}

// falls reports whether, from cut k of a list on in one direction, less than
// half as much is alive before anything more is.
func (c *cutFinder) falls(list []int, k, direction int) bool {
	bytes := func(k int) int64 { return c.a.Problem.Graph.Values[c.cuts[list[k]].value].Bytes }
	for i := k + direction; i >= 0 && i < len(list); i += direction {
		if bytes(i) > bytes(k) || 2*bytes(i) < bytes(k) {
			return bytes(i) < bytes(k)
		}
	}
	return false
}

// convolutions counts those among the main operators.
func (c *cutFinder) convolutions() int {
	count := 0
	for _, op := range c.order {
		if t, _ := traits.Of(c.a.Nodes[op]); t.Cost == traits.Convolution {
			count++
		}
	}
	return count
}

// joined lists the boundaries of the runs, and of what lies between them.
func (c *cutFinder) joined(p *pieces, runs []run) division {
	d := division{cover: cover(runs), layer: layer(runs)}
	layer, end := layer(runs), 0 // cut up to which all is divided
	for k, r := range runs {
		if 2*p.products(end, r.at[0]) >= layer {
			if k == 0 {
				d.layers = append(d.layers, c.cuts[0])
			}
			d.layers = append(d.layers, c.fill(p, end, r.at[0], layer)...)
		}
		switch {
		case len(d.layers) == 0:
			d.layers = append(d.layers, c.cuts[r.at[0]])
		case d.layers[len(d.layers)-1] != c.cuts[r.at[0]]:
			d.layers[len(d.layers)-1] = c.handedOn(end, r.at[0])
		}
		for _, at := range r.at[1:] {
			d.layers = append(d.layers, c.cuts[at])
		}
		end = r.at[r.count()]
	}
	if n := len(c.cuts) - 1; p.products(end, n) > layer || p.alike(end, n, runs[len(runs)-1]) {
		d.layers = append(d.layers, c.fill(p, end, n, layer)...)
	}
	return d
}

// handedOn returns the boundary between two stacks: what was set aside between
// them, as an encoder's output behind its last norm, else the end of the first.
func (c *cutFinder) handedOn(from, to int) cut {
	for k := to; k > from; k-- {
		if c.aside[c.cuts[k].value] {
			return c.cuts[k]
		}
	}
	return c.cuts[from]
}

// fill joins the pieces between two cuts until each layer holds that many products;
// what is left at the end, and less than half of it, belongs to the last. It
// returns the layers' ends.
func (c *cutFinder) fill(p *pieces, from, to, layer int) []cut {
	var list []cut
	held := 0
	for i := from; i < to; i++ {
		if held += p.products(i, i+1); held >= layer {
			list = append(list, c.cuts[i+1])
			held = 0
		}
	}
	switch {
	case to == len(c.cuts)-1: // a head is no layer: the last one ends at its own product
	case 2*held >= layer:
		list = append(list, c.cuts[to])
	case len(list) > 0:
		list[len(list)-1] = c.cuts[to]
	}
	return list
}
