package precision

// Backward finds where an extreme came from by comparing for equality:
//
//	forward      y = ReduceMax(x)
//	backward     mask = Equal(x, y);  dx = mask * dy / Sum(mask)
//
// In half the two sides need not be of one rounding: what ONNX Runtime computes in
// float32 between casts that it inserted is not rounded everywhere, so an x that is
// computed again may differ from the one whose extreme y is. Then nothing equals y, and
// the gradient is 0/0. So backward takes the extreme of the x that it compares.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// extremes puts a copy of each node that takes an extreme before those of backward that
// compare it with what it is of.
func (p *pass) extremes() {
	if p.forward == nil {
		return
	}
	edit, place := p.g.Insertions(), map[*onnx.Node]int{}
	for i, n := range p.g.Nodes {
		place[n] = i
	}
	for _, n := range p.g.Nodes {
		if !p.forward.Has(n) || !extreme(n) {
			continue
		}
		readers := p.comparisons(n)
		if len(readers) == 0 {
			continue
		}
		again := p.g.CloneNode(n, n.Inputs, func(name string) string { return "remat/compare/" + name })
		again.SetModule(n.Module())
		again.SetOrigin(onnx.Origin{Pass: CastPass, Of: n.Label()})
		for _, r := range readers {
			for i, v := range r.Inputs {
				if v == n.Out(0) {
					r.SetInput(i, again.Out(0))
				}
			}
		}
		first := slices.MinFunc(readers, func(a, b *onnx.Node) int { return place[a] - place[b] })
		edit.Before(first, again)
	}
	edit.Apply()
}

// extreme reports a node whose output is one of its inputs' elements.
func extreme(n *onnx.Node) bool {
	return n.Is("ReduceMax", "ReduceMin", "Max", "Min", "GlobalMaxPool") ||
		n.Is("ScatterElements", "ScatterND") && slices.Contains([]string{"max", "min"}, n.Str("reduction", "none"))
}

// comparisons are the readers of an extreme in backward that compare it with an input of
// its node, or move it to where it is compared.
func (p *pass) comparisons(n *onnx.Node) []*onnx.Node {
	var list []*onnx.Node
	for _, u := range n.Out(0).Uses() {
		if r := u.Node; u.Index >= 0 && !p.forward.Has(r) && (compares(r, n) || moves(r) && slices.ContainsFunc(r.Out(0).Uses(), func(w onnx.Use) bool { return compares(w.Node, n) })) {
			list = append(list, r)
		}
	}
	return list
}

// compares reports a comparison for equality with an input of a node.
func compares(r, n *onnx.Node) bool {
	return r.Is("Equal") && slices.ContainsFunc(r.Inputs, func(v *onnx.Value) bool { return v != nil && slices.Contains(n.Inputs, v) })
}
