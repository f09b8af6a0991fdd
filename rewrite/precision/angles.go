package precision

// Angles stay float32. The sine of an angle needs its absolute value: between 512 and 1024
// neighbours lie 0.5 apart in float16 and 4 in bfloat16, so what a timestep or a position
// times a frequency is rounded to is another angle. What computes one from inputs and
// constants, sine and cosine included, runs in float32, and no angle waits in half for
// backward; PyTorch's autocast, and models by hand, do the same.
//
//	forwards    exact: made of inputs and constants, through no product but of few terms
//	backwards   from each sine or cosine over what is exact
//
// What a layer in half made is rounded already, to the same relative unit, so sines of
// activations follow their neighbours.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

const whyAngle = "an angle: rounded, it would be another one"

// angles gives float32 to what computes the argument of a sine or cosine exactly.
func (p *pass) angles() {
	exact := p.exact()
	for i := len(p.g.Nodes) - 1; i >= 0; i-- {
		n := p.g.Nodes[i]
		of := n.Is("Sin", "Cos") && exact[n.Out(0)] || slices.ContainsFunc(n.Outputs, func(o *onnx.Value) bool { return p.angle[o] })
		if !of {
			continue
		}
		for k, v := range n.Inputs {
			if in(n, k) && exact[v] {
				p.angle[v] = true
			}
		}
		if k := p.verdicts[n].kind; k == undecided || k == half {
			p.verdicts[n] = verdict{full, whyAngle}
		}
	}
}

// exact are the float32 values that nodes make of inputs and constants, through no product
// but of few terms, and that nobody asked to have in half.
func (p *pass) exact() map[*onnx.Value]bool {
	exact := map[*onnx.Value]bool{}
	for _, n := range p.g.Nodes {
		ok := !matches(p.o.Half, n) && (p.verdicts[n].kind != half || terms(n) <= mostTerms)
		for _, v := range n.Inputs {
			ok = ok && (!isFloat(v) || v.Producer == nil || exact[v])
		}
		for _, o := range n.Outputs {
			if ok && isFloat(o) {
				exact[o] = true
			}
		}
	}
	return exact
}

// mostTerms is what a product of positions or coordinates with frequencies sums up at most:
// three of space and one of time.
const mostTerms = 4

// terms is how many terms each element of a matrix product sums up, where that is known.
func terms(n *onnx.Node) int64 {
	v := n.In(0)
	if !n.Is("MatMul", "Gemm") || v == nil || !v.Type.Ranked || len(v.Type.Shape) < 2 {
		return math.MaxInt64
	}
	_, summed := traits.MatrixAxes(n, 0)
	if k, ok := v.Type.Shape[summed].Int(); ok {
		return k
	}
	return math.MaxInt64
}
