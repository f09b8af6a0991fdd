package grad

import (
	"github.com/onnx-remat/remat/onnx"
)

// layerNormRules: from the statistics that the forward node saves.
var layerNormRules = []Rule{
	{Op: "LayerNormalization", Since: 17, Doc: "x̂ = (x-mean)*invstd, h = g*scale: dx = invstd*(h - mean(h) - x̂*mean(h*x̂)); dscale = Σ g*x̂, dbias = Σ g", Grad: gradLayerNorm},
}

func gradLayerNorm(c *Context) {
	x, g := c.In(0), c.Grad(0)
	axis := c.Axis("axis", -1, x)
	if c.e.b.Err() != nil {
		return
	}
	if c.Out(1) != nil && c.e.grads[c.Out(1)] != nil || c.Out(2) != nil && c.e.grads[c.Out(2)] != nil {
		c.Fail("a gradient of its saved statistics")
		return
	}
	if c.Needs(2) {
		c.Add(2, c.overRows(g, axis, c.In(2)))
	}
	if !c.Needs(0) && !c.Needs(1) {
		return
	}
	mean, inv := c.CastTo(c.AddOut(1), x), c.CastTo(c.AddOut(2), x)
	c.lastNormBackward(g, c.Do("Mul", c.Minus(x, mean), inv), inv, axis, true)
}

// lastNormBackward hands over dx and dscale of a norm over the axes from one on,
// from x̂ and what x was multiplied by; centred says that the mean was taken off.
func (c *Context) lastNormBackward(g, xhat, inv *onnx.Value, axis int, centred bool) {
	x, scale := c.In(0), c.In(1)
	inner := c.axesFrom(x, axis)
	if c.Needs(1) {
		c.Add(1, c.overRows(c.Do("Mul", g, xhat), axis, scale))
	}
	if c.Needs(0) {
		h := c.Do("Mul", g, scale)
		dot := c.Mean(c.Do("Mul", h, xhat), true, inner...)
		if centred {
			h = c.Minus(h, c.Mean(h, true, inner...))
		}
		c.Add(0, c.Do("Mul", c.Minus(h, c.Do("Mul", xhat, dot)), inv))
	}
}

// overRows sums v, of the shape of x, over the axes before the given one; where a
// weight has places of its own along those, over what it is spread over.
func (c *Context) overRows(v *onnx.Value, axis int, weight *onnx.Value) *onnx.Value {
	if v == nil || weight == nil {
		return nil
	}
	x := c.In(0)
	own := len(weight.Type.Shape) - (c.Rank(x) - axis)
	for i := range max(own, 0) {
		if !weight.Type.Shape[i].Is(1) {
			return c.Unbroadcast(v, c.Out(0), weight)
		}
	}
	return c.shaped(c.Sum(v, false, c.axesFrom(x, 0)[:axis]...), weight)
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
