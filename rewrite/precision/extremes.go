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
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// extremes has backward compare with extremes of its own, in float32 where the CPU is to
// compute: between casts of its own, ONNX Runtime rounds where a kernel of the half type
// reads, so that what reads y by way of one that moves it sees another number.
func (p *pass) extremes() {
	if p.forward == nil {
		return
	}
	edit, made := p.g.Insertions(), map[*onnx.Node]*onnx.Node{}
	for _, n := range p.g.Nodes {
		if !n.Is("Equal") || p.forward.Has(n) {
			continue
		}
		for i := range n.Inputs {
			var y *onnx.Value
			for _, of := range p.extremeOf(n, i) {
				if made[of] == nil {
					made[of] = p.anew(of, y)
					edit.Before(n, made[of])
				}
				y = made[of].Out(0)
			}
			if y != nil {
				n.SetInput(i, y)
				p.exactly(n)
			}
		}
	}
	edit.Apply()
}

// anew is a copy of a node for a comparison, of y where that is not nil.
func (p *pass) anew(n *onnx.Node, y *onnx.Value) *onnx.Node {
	again := p.g.CloneNode(n, n.Inputs, func(name string) string { return "remat/compare/" + name })
	again.SetModule(n.Module())
	again.SetOrigin(onnx.Origin{Pass: CastPass, Of: n.Label()})
	if y != nil {
		again.SetInput(0, y)
	}
	p.exactly(again)
	return again
}

// exactly has a node of a comparison run in float32, where the CPU is to run it.
func (p *pass) exactly(n *onnx.Node) {
	if p.o.Provider != kernels.CUDA {
		p.forced[n] = "a comparison with an extreme"
	}
}

// extremeOf lists the node of forward that takes an extreme of the other input of a
// comparison, and those that move it to input i; nil where that is no extreme of it.
func (p *pass) extremeOf(equal *onnx.Node, i int) []*onnx.Node {
	of := equal.In(1 - i)
	var chain []*onnx.Node
	for v := equal.In(i); v != nil && v.Producer != nil; v = v.Producer.In(0) {
		n := v.Producer
		chain = append(chain, n)
		switch {
		case extreme(n) && p.forward.Has(n) && slices.Contains(n.Inputs, of):
			slices.Reverse(chain)
			return chain
		case !moves(n) || len(n.Outputs) != 1:
			return nil
		}
	}
	return nil
}

// extreme reports a node whose output is one of its inputs' elements.
func extreme(n *onnx.Node) bool {
	return n.Is("ReduceMax", "ReduceMin", "Max", "Min", "GlobalMaxPool") ||
		n.Is("ScatterElements", "ScatterND") && slices.Contains([]string{"max", "min"}, n.Str("reduction", "none"))
}
