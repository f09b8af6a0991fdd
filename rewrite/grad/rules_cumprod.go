package grad

// The gradient of running products. With y_j the product of all x_k, k ≤ j,
//
//	dx_i = e_i r_i,  e_i = product of x_k, k < i
//	r_i  = g_i + x_{i+1} r_{i+1}
//
// which divides by nothing, so that it holds where elements are 0. The recurrence is
// linear, so it is composed of pairs (a, b), r_i = b_i + a_i r_{i+d}, whose reach d
// doubles: log₂ n rounds over all elements at once (Hillis and Steele 1986). Exclusive
// products are those before, so g comes one place earlier; reversed ones run the other way.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func gradCumProd(c *Context) {
	x, g := c.In(0), c.Grad(0)
	at, known := c.Ints(c.In(1))
	if !known || len(at) != 1 {
		c.Fail("the axis of its products is computed when the graph runs")
		return
	}
	axis := c.axis(at[0], x)
	if c.e.b.Err() != nil {
		return
	}
	n, known := x.Type.Shape[axis].Int()
	if !known {
		c.Fail("running products along axis %d, whose extent is unknown: give --dim", axis)
		return
	}
	reverse := c.Node.Int("reverse", 0)
	after := func(v *onnx.Value, d int64) *onnx.Value { return c.shifted(v, axis, n, d, reverse != 0) }
	if c.Node.Int("exclusive", 0) != 0 {
		g = after(g, 1)
	}
	a, r := x, g
	for d := int64(1); d < n; d *= 2 {
		if d == 1 {
			a = after(x, 1)
		} else {
			a = c.Do("Mul", a, after(a, d/2))
		}
		r = c.Plus(r, c.Do("Mul", a, after(r, d)))
	}
	before := c.Op("CumProd", build.In(x, c.In(1)), onnx.IntAttr("exclusive", 1), onnx.IntAttr("reverse", reverse))
	c.Add(0, c.Do("Mul", before, r))
}

// shifted moves v, of n places along an axis, d places to the front, or to the back, and
// fills what is left with zeros.
func (c *Context) shifted(v *onnx.Value, axis int, n, d int64, back bool) *onnx.Value {
	d = min(d, n)
	pads := make([]int64, 2*c.Rank(v))
	from, to := d, n
	if back {
		from, to = 0, n-d
		pads[axis] = d
	} else {
		pads[len(pads)/2+axis] = d
	}
	return c.Do("Pad", c.sliceOf(v, axis, from, to), c.IntList(pads...))
}
