package grad

import (
	"github.com/onnx-remat/remat/onnx"
)

// layerNormRules: from the statistics that the forward node saves.
var layerNormRules = []Rule{
	{Op: "LayerNormalization", Since: 17, Doc: "x̂ = (x-mean)*invstd, h = g*scale: dx = invstd*(h - mean(h) - x̂*mean(h*x̂)); dscale = Σ g*x̂, dbias = Σ g", Grad: gradLayerNorm},
}

func gradLayerNorm(c *Context) {
	x, scale, g := c.In(0), c.In(1), c.Grad(0)
	rank := c.Rank(x)
	axis := c.Axis("axis", -1, x)
	if c.e.b.Err() != nil {
		return
	}
	if c.Out(1) != nil && c.e.grads[c.Out(1)] != nil || c.Out(2) != nil && c.e.grads[c.Out(2)] != nil {
		c.Fail("a gradient of its saved statistics")
		return
	}
	var outer, inner []int
	for i := range rank {
		if i < axis {
			outer = append(outer, i)
		} else {
			inner = append(inner, i)
		}
	}
	if c.Needs(2) {
		c.Add(2, c.shaped(c.Sum(g, false, outer...), c.In(2)))
	}
	if !c.Needs(0) && !c.Needs(1) {
		return
	}
	mean, inv := c.CastTo(c.AddOut(1), x), c.CastTo(c.AddOut(2), x)
	xhat := c.Do("Mul", c.Minus(x, mean), inv)
	if c.Needs(1) {
		c.Add(1, c.shaped(c.Sum(c.Do("Mul", g, xhat), false, outer...), scale))
	}
	if c.Needs(0) {
		h := c.Do("Mul", g, scale)
		dot := c.Mean(c.Do("Mul", h, xhat), true, inner...)
		centred := c.Minus(h, c.Mean(h, true, inner...))
		c.Add(0, c.Do("Mul", c.Minus(centred, c.Do("Mul", xhat, dot)), inv))
	}
}

// shaped gives v the shape of a parameter that may have leading ones, or that
// broadcasts to it.
func (c *Context) shaped(v, like *onnx.Value) *onnx.Value {
	if v == nil || like == nil {
		return nil
	}
	if n, m := v.Type.Shape.Elements(), like.Type.Shape.Elements(); n != m {
		return c.Unbroadcast(v, v, like)
	}
	return c.Reshape(v, like)
}
