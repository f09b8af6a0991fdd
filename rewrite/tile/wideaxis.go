package tile

// Along which axis a wide product is cut, a batch or a head at a time:
//
//	[8,12,t,t]  8 parts, each one piece
//	[2,16,t,t]  16 parts along the heads, as 2 are too few where t is long
//
// A Reshape that joins batches and heads lets none of the heads be cut behind it, so the axes
// are taken apart again first.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// axisFor is the axis along which a wide product of these extents is cut: of those left of its
// matrices the outermost that gives as many parts as are wanted, or enough, since a part of it
// is one piece; else the longest.
func axisFor(n *onnx.Node, dims []int64, want int) int {
	best, least := outermost(dims), min(int64(want), enough, widens(n))
	for axis := best; axis < len(dims)-2; axis++ {
		if dims[best] < least && dims[axis] > dims[best] {
			best = axis
		}
	}
	return best
}

// enough parts of an outer axis are better than more of an inner one: eight are small beside
// most steps, and so are those no larger than the product's larger factor.
const enough = 8

// inner reports that some wide product is to be cut along an inner axis.
func inner(g *onnx.Graph, want int) bool {
	return slices.ContainsFunc(g.Nodes, func(n *onnx.Node) bool {
		if !isWide(n) {
			return false
		}
		dims, _ := n.Outputs[0].Type.Shape.Ints()
		if lead := joinedLeading(n); lead != nil {
			dims = append(lead, dims[1:]...)
		}
		return axisFor(n, dims, want) != outermost(dims)
	})
}

// unjoin takes the leading axes of a product's factors apart again that a Reshape joined, so
// that an inner one of them can be cut; one axis more in front keeps the Reshape, which is
// there so that ONNX Runtime does not join the product with a Transpose:
//
//	[b,h,m,k] ─▶ [b·h,m,k] ─┐                           [b,h,m,k] ─▶ [1,b,h,m,k] ─┐
//	[b,h,k,n] ─▶ [b·h,k,n] ─┴▶ product ─▶ [b,h,m,n]     [b,h,k,n] ─▶ [1,b,h,k,n] ─┴▶ product ─▶ [b,h,m,n]
func unjoin(m *onnx.Model, types build.Typer) error {
	b := build.New(m.Graph, types, "tile")
	for _, n := range slices.Clone(m.Graph.Nodes) {
		if joinedLeading(n) == nil {
			continue
		}
		b.From(n, n.Label())
		var factors [2]*onnx.Value
		for i := range factors {
			from := n.Inputs[i].Producer.Inputs[0]
			factors[i] = b.ReshapeTo(from, append(onnx.Shape{onnx.Static(1)}, from.Type.Shape...))
		}
		y := b.Op("MatMul", factors[:])
		var back *onnx.Value
		for _, u := range slices.Clone(n.Outputs[0].Uses()) {
			to, ok := u.Node.Outputs[0].Type.Shape.Ints()
			switch {
			case ok && u.Node.Is("Reshape"):
				u.Node.SetInput(0, y)
				u.Node.SetInput(1, b.Ints(to...))
				continue
			case back == nil:
				back = b.ReshapeTo(y, n.Outputs[0].Type.Shape)
			}
			u.Node.SetInput(u.Index, back)
		}
		if b.Err() != nil {
			return b.Err()
		}
		m.Graph.InsertBefore(n, b.Take()...)
	}
	m.Graph.RemoveDead()
	return nil
}

// joinedLeading are the extents that both factors of a product have left of their matrices
// before a Reshape joins them to one; nil where there is no such thing.
func joinedLeading(n *onnx.Node) (lead []int64) {
	captured := func(u onnx.Use) bool { return u.Index == onnx.Captured }
	if !n.Is("MatMul") || rank(n.Outputs[0]) != 3 || n.Outputs[0].IsOutput() || slices.ContainsFunc(n.Outputs[0].Uses(), captured) {
		return nil
	}
	for _, v := range n.Inputs {
		p := v.Producer
		if p == nil || !p.Is("Reshape") || rank(v) != 3 || rank(p.Inputs[0]) < 4 || !traits.JoinsLeading(p.Inputs[0], v) {
			return nil
		}
		from, static := p.Inputs[0].Type.Shape.Ints()
		k := rank(p.Inputs[0]) - 2
		if !static || slices.Contains(from, 0) || lead != nil && !slices.Equal(lead, from[:k]) {
			return nil
		}
		lead = from[:k:k]
	}
	return lead
}
