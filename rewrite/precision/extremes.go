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
		uses := p.comparisons(n)
		if len(uses) == 0 {
			continue
		}
		again := p.g.CloneNode(n, n.Inputs, func(name string) string { return "remat/compare/" + name })
		again.SetModule(n.Module())
		again.SetOrigin(onnx.Origin{Pass: CastPass, Of: n.Label()})
		for _, u := range uses {
			u.Node.SetInput(u.Index, again.Out(0))
		}
		first := slices.MinFunc(uses, func(a, b onnx.Use) int { return place[a.Node] - place[b.Node] })
		edit.Before(first.Node, again)
	}
	edit.Apply()
}

// extreme reports a node whose output is one of its inputs' elements.
func extreme(n *onnx.Node) bool {
	return n.Is("ReduceMax", "ReduceMin", "Max", "Min", "GlobalMaxPool") ||
		n.Is("ScatterElements", "ScatterND") && slices.Contains([]string{"max", "min"}, n.Str("reduction", "none"))
}

// comparisons are the uses of an extreme in backward that compare it with an input of
// its node, or move it to where it is compared.
func (p *pass) comparisons(n *onnx.Node) []onnx.Use {
	compared := func(u onnx.Use) bool { return compares(u.Node, n) }
	return slices.DeleteFunc(slices.Clone(n.Out(0).Uses()), func(u onnx.Use) bool {
		return u.Index < 0 || p.forward.Has(u.Node) || !compared(u) && !(moves(u.Node) && slices.ContainsFunc(u.Node.Out(0).Uses(), compared))
	})
}

// compares reports a comparison for equality with an input of a node.
func compares(r, n *onnx.Node) bool {
	return r.Is("Equal") && slices.ContainsFunc(r.Inputs, func(v *onnx.Value) bool { return v != nil && slices.Contains(n.Inputs, v) })
}
