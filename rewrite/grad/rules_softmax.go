package grad

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// softmaxRules: from the output alone.
var softmaxRules = []Rule{
	{Op: "Softmax", Since: 13, Doc: "(g - Σ g*y)*y, of rows that are NaN 0", Grad: func(c *Context) {
		y := c.Out(0)
		if c.blankRows() {
			y = c.Where(c.Do("IsNaN", y), c.Scalar(y, 0), y)
		}
		c.Add(0, softmaxBackward(c, c.Grad(0), y, c.Axis("axis", -1, c.In(0))))
	}},
	{Op: "LogSoftmax", Since: 13, Doc: "g - exp(y)*Σ g; where g is a few picked elements they are added in place", Grad: gradLogSoftmax},
}

// blankRows reports a softmax of rows that may be masked as a whole, by -∞: they are NaN, and
// what reads them takes something else in their place, as masked_fill(softmax(masked_fill(z,
// m, -∞)), m, 0) does. No gradient arrives then, and 0·NaN is none.
func (c *Context) blankRows() bool {
	return c.replaced(c.Out(0)) && c.lowest(c.In(0), map[*onnx.Value]bool{})
}

// replaced reports a value in whose place a Where takes something else.
func (c *Context) replaced(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		return !c.e.own[u.Node] && (u.Node.Is("Where") && u.Index > 0 || u.Node.Is("Cast", "Identity") && c.replaced(u.Node.Out(0)))
	})
}

// lowest reports a value that may hold -∞ by way of a mask: of a constant, or of what is fed.
func (c *Context) lowest(v *onnx.Value, seen map[*onnx.Value]bool) bool {
	if v == nil || seen[v] || !v.Type.DType.IsFloat() {
		return false
	}
	seen[v] = true
	if t := v.Constant(); t != nil {
		data, err := t.Float64s()
		return err == nil && slices.ContainsFunc(data, func(x float64) bool { return math.IsInf(x, -1) })
	}
	n := v.Producer
	switch {
	case n == nil:
		return v.IsInput() && !c.e.needs[v]
	case n.Is("ConstantOfShape"):
		x, ok := n.TensorAttr("value").Scalar()
		return ok && math.IsInf(x, -1)
	case n.Is("Log"):
		return !c.e.needs[v]
	case n.Domain() != "" || !passing[n.OpType()] && !n.Is("Trilu", "Tile"):
		return false
	}
	return slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return c.lowest(v, seen) })
}

// gradLogSoftmax takes the gradient of a cross entropy, which arrives as one
// element a row, without making a full-size one of it.
func gradLogSoftmax(c *Context) {
	y := c.Out(0)
	axis := c.Axis("axis", -1, c.In(0))
	if p := c.e.grads[y]; p != nil && p.dense == nil && len(p.slices) == 0 && len(p.scatters) == 1 && p.scatters[0].flat == 0 && p.scatters[0].axis == axis {
		s := p.scatters[0]
		sum := s.grad
		if s.grad.Type.Shape[axis].Is(1) && axis == c.Rank(y)-1 {
			c.AddFactored(0, onesOff(c, y, s.indices), c.Scale(sum, -1))
			return
		}
		if !s.grad.Type.Shape[axis].Is(1) {
			sum = c.Sum(s.grad, true, axis)
		}
		c.Add(0, c.Times(c.Do("Exp", y), c.Scale(sum, -1)))
		c.AddScatter(0, axis, s.indices, s.grad)
		return
	}
	g := c.Grad(0)
	c.Add(0, c.Minus(g, c.Times(c.Sum(g, true, axis), c.Do("Exp", y))))
}

// onesOff is the softmax of z along the last axis less one at the index that each
// row has. Both steps run in place: of log probabilities the softmax is the
// exponential, which does not.
func onesOff(c *Context, z, index *onnx.Value) *onnx.Value {
	p := c.Op("Softmax", build.In(z), onnx.IntAttr("axis", -1))
	off := c.Expand(c.Scalar(z, -1), index)
	return c.e.scatterAdd(p, index, off, len(z.Type.Shape)-1)
}

// softmaxBackward subtracts before it multiplies: the product with y dies in
// the sum, so at most three buffers of the shape are alive, y and g included.
func softmaxBackward(c *Context, g, y *onnx.Value, axis int) *onnx.Value {
	sum := c.Sum(c.Do("Mul", g, y), true, axis)
	return c.Do("Mul", c.Minus(g, sum), y)
}
