package tile

// Attention scores are the widest values inside a layer: heads × tokens ×
// tokens. They are made by a product of narrow factors and reduced again by
// another one, batch by batch and head by head. Computed in parts, they never
// exist whole:
//
//	forward    q_i, k_i ─▶ scores_i ─▶ softmax_i ─▶ context_i   i = 1 … parts
//	backward   dcontext_i, softmax_i ─▶ dscores_i ─▶ dq_i, dk_i, dv_i
//
// A part of the softmax that waits for backward is a value of its own, so a
// planner can drop and recompute part by part: with one part alive at a time
// this is what FlashAttention does (Dao et al. 2022), in ordinary operators.
//
// Forward and backward are separate regions, since the rest of the model lies
// between them; what crosses from one to the other is handed over in parts.

import (
	"errors"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Widening is how many times larger than its larger factor a product has to be
// to count as wide.
const Widening = 2

// Wide computes every wide product of the graph, and what works on it, in at
// least the wanted number of parts (at most what the axis that is cut allows);
// regions that hand values over in parts, in the largest number up to it that
// divides what both are cut along.
// forward tells the two sides of a training graph apart. It returns how many
// wide products there are, how many were divided, and why the others were not.
// The graph must be typed and sorted, and is so afterwards.
func Wide(m *onnx.Model, types build.Typer, forward func(*onnx.Node) bool, want int) (found, applied int, skipped []*SkipError, err error) {
	if inner(m.Graph, want) {
		if err := unjoin(m, types); err != nil {
			return 0, 0, nil, err
		}
	}
	plan := findWide(m, forward, want)
	shared := plan.crossing()
	for i, p := range plan.regions {
		if err := p.region.apply(types, p.parts(want), shared); err != nil {
			var skip *SkipError
			if !errors.As(err, &skip) {
				return plan.found, applied, plan.skipped, err
			}
			plan.skipped = append(plan.skipped, skip)
			continue
		}
		for _, later := range plan.regions[i+1:] { // reads by new names what it decided to cut
			for old, whole := range p.region.joined {
				if c, ok := later.region.shardings[old]; ok {
					later.region.shardings[whole] = c
				}
			}
		}
		applied++
	}
	m.Graph.RemoveDead()
	return plan.found, applied, plan.skipped, m.Graph.SortTopologically()
}

type wideRegion struct {
	region *Region
	n      int // parts that all regions it shares values with can be cut into
}

func (w *wideRegion) parts(want int) int {
	if w.n > 0 {
		return w.n
	}
	return w.region.Parts(want)
}

type widePlan struct {
	want    int // parts
	found   int
	regions []*wideRegion
	skipped []*SkipError
	of      map[*onnx.Node]*wideRegion
}

// findWide finds the regions around all wide products, cut where axisFor says; if some cannot
// be, cut along their outermost axes where that divides more of them.
func findWide(m *onnx.Model, forward func(*onnx.Node) bool, want int) *widePlan {
	p := findAlong(m, forward, want, axisFor)
	if len(p.skipped) > 0 {
		if other := findAlong(m, forward, want, func(_ *onnx.Node, dims []int64, _ int) int { return outermost(dims) }); len(other.regions) > len(p.regions) {
			return other
		}
	}
	return p
}

// findAlong finds the regions; a region that overlaps another one is that one.
func findAlong(m *onnx.Model, forward func(*onnx.Node) bool, want int, axis func(n *onnx.Node, dims []int64, want int) int) *widePlan {
	p := &widePlan{want: want, of: map[*onnx.Node]*wideRegion{}}
	place, deps := onnx.Places(m.Graph.Nodes), dependencies(m.Graph)
	for _, n := range m.Graph.Nodes {
		if !isWide(n) || p.of[n] != nil {
			continue
		}
		p.found++
		out := n.Outputs[0]
		dims, _ := out.Type.Shape.Ints()
		r := newRegion(m, "tile", place, out, dims, axis(n, dims, want))
		r.deps = deps
		isForward := forward(n)
		r.side = func(m *onnx.Node) bool { return forward(m) == isForward && p.of[m] == nil }
		r.given, r.beside = p.handsTo(r), p.beside
		if err := r.grow(); err != nil {
			if skip, ok := errors.AsType[*SkipError](err); ok {
				p.skipped = append(p.skipped, skip)
			}
			continue
		}
		r.collectExtents()
		w := &wideRegion{region: r}
		p.regions = append(p.regions, w)
		for _, m := range r.Nodes {
			p.of[m] = w
		}
	}
	return p
}

// handsTo returns how the regions that r reads from already cut what they make.
func (p *widePlan) handsTo(r *Region) func(*onnx.Value) sharding {
	return func(v *onnx.Value) sharding {
		from := p.of[v.Producer]
		if from == nil {
			return unknown
		}
		for n := range r.in {
			for _, in := range n.Reads() {
				if in.Producer != nil && p.of[in.Producer] == from {
					return from.region.shardingOf(v)
				}
			}
		}
		return unknown
	}
}

// beside lists the nodes of the regions that a node reads from.
func (p *widePlan) beside(n *onnx.Node) (nodes []*onnx.Node) {
	for _, v := range n.Reads() {
		if v.Producer == nil {
			continue
		}
		if from := p.of[v.Producer]; from != nil {
			nodes = append(nodes, from.region.Nodes...)
		}
	}
	return nodes
}

// isWide reports a batched product that is much larger than its factors.
func isWide(n *onnx.Node) bool {
	if !traits.IsMatrixProduct(n) || rank(n.Outputs[0]) < 3 || n.Outputs[0].IsOutput() {
		return false
	}
	dims, ok := n.Outputs[0].Type.Shape.Ints()
	if !ok || outermost(dims) >= len(dims)-2 {
		return false
	}
	return widens(n) >= Widening
}

// widens is how many times larger a product is than its larger factor, rounded down.
func widens(n *onnx.Node) int64 {
	size := func(v *onnx.Value) int64 {
		e, _ := v.Type.Shape.Elements().Int()
		return e
	}
	return size(n.Outputs[0]) / max(size(n.Inputs[0]), size(n.Inputs[1]), 1)
}

// crossing finds the values that one region makes and others read in the same
// parts; both regions then have to be cut into the same number.
func (p *widePlan) crossing() pieces {
	shared := pieces{}
	for _, w := range p.regions {
		for _, n := range w.region.Nodes {
			for _, o := range n.Returns() {
				if p.handedOver(w, o) {
					shared[o] = nil
				}
			}
		}
	}
	return shared
}

// handedOver reports a value all of whose outside readers belong to regions
// that read it cut along the same axis, and joins the number of parts.
func (p *widePlan) handedOver(w *wideRegion, o *onnx.Value) bool {
	c := w.region.shardingOf(o)
	if c < 0 || o.IsOutput() {
		return false
	}
	var readers []*wideRegion
	for _, u := range o.Uses() {
		to := p.of[u.Node]
		if to == w {
			continue
		}
		if to == nil || to.region.shardingOf(o) != c {
			return false
		}
		readers = append(readers, to)
	}
	return len(readers) > 0 && p.sameParts(append(readers, w))
}

// sameParts gives regions one number of parts: the largest up to the wanted one
// that divides what each of them is cut along, else the next one.
func (p *widePlan) sameParts(regions []*wideRegion) bool {
	all := &Region{}
	for _, w := range regions {
		all.extents = append(all.extents, w.region.extents...)
	}
	n := all.Parts(p.want)
	for k := p.want; k > 1 && n > p.want; k-- {
		if all.Parts(k) == k {
			n = k
		}
	}
	for _, w := range regions {
		if w.n != 0 && w.n != n {
			return false
		}
	}
	for _, w := range regions {
		w.n = n
	}
	return n > 1
}
