package rewrite

// Products that ONNX Runtime's CUDA kernel leaves unfinished (traits.ShortOnCUDA) get
// the smaller operand broadcast ahead: then one side has more matrices than the other,
// and the kernel goes by addresses.
//
//	[2,1,m,k] ─▶ Expand ─▶ [2,2,m,k] ─┐
//	                      [1,2,k,n] ─▶ MatMul ─▶ [2,2,m,n]

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Broadcast broadcasts an operand of each product of a typed graph that CUDA would
// leave unfinished.
func Broadcast(g *onnx.Graph, types build.Typer) (Report, error) {
	r := Report{Pass: "broadcast"}
	b := build.New(g, types, r.Pass)
	for _, n := range g.Nodes {
		why := traits.WhyShort(n)
		if why == "" {
			continue
		}
		r.Requested++
		shape, input := traits.Spread(n)
		if shape == nil {
			r.skip(n.Label(), "%s", why)
			continue
		}
		b.From(n, "")
		if v := b.Op("Expand", build.In(n.Inputs[input], b.Ints(shape...))); v != nil {
			n.SetInput(input, v)
			r.Applied++
		}
	}
	b.Flush()
	if err := b.Err(); err != nil {
		return r, err
	}
	return r, g.SortTopologically()
}
