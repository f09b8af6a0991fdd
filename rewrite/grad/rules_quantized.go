package grad

// Training with the rounding that inference will do: exporters write PyTorch's
// fake_quantize as QuantizeLinear and DequantizeLinear. Its gradient is PyTorch's, the
// straight-through estimator: that of the identity for what lies within the range of
// the type, none beyond it, and none for scale and zero point. So the quantized value,
// an integer, carries the gradient from the one to the other; to other readers none
// flows, nor to quantized weights that the file holds.
//
//	dx = g where qmin ≤ round(x/scale) + zero ≤ qmax
//
// Source: Y. Bengio et al., "Estimating or Propagating Gradients Through Stochastic
// Neurons", 2013.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var quantizedRules = []Rule{
	{Op: "QuantizeLinear", Since: 10, Doc: "g within the range of the type, straight through", Inputs: []int{0}, Fixed: []int{1}, Grad: gradQuantize},
	{Op: "DequantizeLinear", Since: 10, Doc: "g, to what a QuantizeLinear made; quantized weights are not trained", Inputs: []int{0}, Fixed: []int{1}, Grad: func(c *Context) {
		c.Add(0, c.Grad(0))
	}},
}

// straightThrough reports that n dequantizes v, which was quantized in the graph, or
// bounds it first to a narrower range.
func straightThrough(n *onnx.Node, v *onnx.Value) bool {
	return n.Is("DequantizeLinear", "Clip") && v == n.In(0) && quantized(v)
}

// quantized reports an integer that carries a gradient.
func quantized(v *onnx.Value) bool {
	p := v.Producer
	return p != nil && (p.Is("QuantizeLinear") || p.Is("Clip") && straightThrough(p, p.In(0)))
}

func gradQuantize(c *Context) {
	x, scale, zero := c.In(0), c.In(1), c.In(2)
	d := c.Out(0).Type.DType
	if !d.IsInt() && d != onnx.Int4 && d != onnx.Uint4 || c.Node.Int("block_size", 0) != 0 {
		c.Fail("blocks, or the type %s", d)
		return
	}
	least, most := d.IntRange()
	rounded := c.Do("Round", c.Do("Div", x, c.perAxis(c.CastTo(scale, x), x)))
	if zero != nil {
		wide := c.Op("Cast", build.In(zero), onnx.IntAttr("to", int64(x.Type.DType)))
		rounded = c.Plus(rounded, c.perAxis(wide, x))
	}
	g := c.Times(c.CastTo(c.Grad(0), x), c.Mask(c.Do("GreaterOrEqual", rounded, c.Scalar(x, float64(least))), x))
	c.Add(0, c.Times(g, c.Mask(c.Do("LessOrEqual", rounded, c.Scalar(x, float64(most))), x)))
}

// perAxis gives a vector over the node's axis the form that broadcasts to x.
func (c *Context) perAxis(v, x *onnx.Value) *onnx.Value {
	if v == nil || c.Rank(v) == 0 || v.Type.Shape.Elements().Is(1) {
		return v
	}
	return c.broadcastAlong(v, c.Axis("axis", 1, x), x)
}
