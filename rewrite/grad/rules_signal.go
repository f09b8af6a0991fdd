package grad

// Fourier transforms. With F the matrix of the transform over n places, complex
// numbers as pairs of reals, and g the gradient of y:
//
//	y = F x           dx = conj(F)ᵀ g = n · F⁻¹ g
//	y = F⁻¹ x         dx = conj(F⁻¹)ᵀ g = 1/n · F g
//
// A transform of reals leaves the real part of dx; what it does not return of a
// spectrum that mirrors itself is zero in g, to which DFT fills g up by itself.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var signalRules = []Rule{
	{Op: "DFT", Since: 17, Doc: "n times the inverse transform of g, or 1/n of the transform where DFT is inverse", Inputs: []int{0}, Grad: gradDFT},
}

func gradDFT(c *Context) {
	x, g := c.In(0), c.Grad(0)
	axis, ok := transformed(c)
	if !ok {
		return
	}
	have, ok := x.Type.Shape[axis].Int()
	n := have
	if length := c.In(1); length != nil && ok {
		var v []int64
		if v, ok = c.Ints(length); ok {
			n = v[0]
		}
	}
	inverse := c.Node.Int("inverse", 0) != 0
	switch {
	case !ok:
		c.Fail("a transform of unknown length: give --dim")
		return
	case inverse && c.Node.Int("onesided", 0) != 0:
		c.Fail("an inverse transform of half a spectrum")
		return
	}
	scale := float64(n)
	if inverse {
		scale = 1 / scale
	}
	dx := c.Scale(c.transform(g, n, axis, !inverse), scale)
	last := c.Rank(x) - 1
	if parts, known := x.Type.Shape[last].Int(); known && parts == 1 {
		dx = c.sliceOf(dx, last, 0, 1)
	}
	if n > have {
		dx = c.sliceOf(dx, axis, 0, have)
	}
	if n < have { // only the first n places were read
		c.AddSlice(0, axis, 0, n, dx)
		return
	}
	c.Add(0, dx)
}

// transformed returns the axis of a DFT: an input since opset 20, the last but
// one where it is left out, and before an attribute, 1 where it is left out.
func transformed(c *Context) (int, bool) {
	a := []int64{-2}
	switch {
	case c.opset() < 20:
		a[0] = c.Node.Int("axis", 1)
	case c.In(2) != nil:
		var ok bool
		if a, ok = c.Ints(c.In(2)); !ok {
			c.Fail("the axis is not constant")
			return 0, false
		}
	}
	axis := c.axis(a[0], c.In(0))
	return axis, c.e.b.Err() == nil
}

func (c *Context) opset() int64 { return c.e.m.Opset("") }

// transform is DFT of v to n places along the axis.
func (c *Context) transform(v *onnx.Value, n int64, axis int, inverse bool) *onnx.Value {
	length, way := c.Const(onnx.Int64Tensor([]int64{n})), onnx.IntAttr("inverse", 0)
	if inverse {
		way = onnx.IntAttr("inverse", 1)
	}
	if c.opset() < 20 {
		return c.Op("DFT", build.In(v, length), onnx.IntAttr("axis", int64(axis)), way)
	}
	return c.Op("DFT", build.In(v, length, c.Const(onnx.Int64Tensor([]int64{int64(axis)}))), way)
}
