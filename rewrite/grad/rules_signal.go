package grad

// Fourier transforms. With F the matrix of the transform over n places, complex
// numbers as pairs of reals, and g the gradient of y:
//
//	y = F x           dx = conj(F)ᵀ g = n · F⁻¹ g
//	y = F⁻¹ x         dx = conj(F⁻¹)ᵀ g = 1/n · F g
//
// A transform of reals leaves the real part of dx; what it does not return of a
// spectrum that mirrors itself is zero in g, to which DFT fills g up by itself. An
// inverse of half a spectrum returns reals, to which a place that stands for its
// mirror image adds twice:
//
//	y = F⁻¹ of half x   dx_k = w_k/n · (F g)_k      w: 1 for k = 0 and n/2, else 2

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var signalRules = []Rule{
	{Op: "DFT", Since: 17, Doc: "n times the inverse transform of g, or 1/n of the transform where DFT is inverse; of half a spectrum, twice that but at its ends", Inputs: []int{0}, Grad: gradDFT},
	{Op: "STFT", Since: 17, Doc: "made of Gather, Mul and DFT", Inputs: []int{0, 2}, Grad: decomposition(shortTime)},
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
	if !ok {
		c.Fail("a transform of unknown length: give --dim")
		return
	}
	var dx *onnx.Value
	read := n
	switch {
	case inverse && c.Node.Int("onesided", 0) != 0:
		if c.In(1) == nil {
			n = 2 * (have - 1)
		}
		if read = n/2 + 1; read != have { // ONNX Runtime mirrors what it was given
			c.Fail("an inverse transform to %d places of %d that stand for half a spectrum", n, have)
			return
		}
		dx = c.Do("Mul", c.transform(g, n, axis, onnx.IntAttr("onesided", 1)), c.mirrorWeights(x, axis, n))
	case inverse:
		dx = c.Scale(c.transform(g, n, axis), 1/float64(n))
	default:
		dx = c.Scale(c.transform(g, n, axis, onnx.IntAttr("inverse", 1)), float64(n))
	}
	last := c.Rank(x) - 1
	if parts, known := x.Type.Shape[last].Int(); known && parts == 1 {
		dx = c.sliceOf(dx, last, 0, 1)
	}
	if read > have {
		dx = c.sliceOf(dx, axis, 0, have)
	}
	if read < have { // only the first places were read
		c.AddSlice(0, axis, 0, read, dx)
		return
	}
	c.Add(0, dx)
}

// shortTime cuts the signal into frames, which may overlap, and transforms each.
func shortTime(c *Context) *onnx.Value {
	x, window := c.In(0), c.In(2)
	rank := c.Rank(x)
	if rank == 2 {
		x = c.Unsqueeze(x, 2)
	} else if rank != 3 {
		c.Fail("a signal of rank %d", rank)
		return nil
	}
	length, ok := c.In(0).Type.Shape[1].Int()
	step, known := c.Ints(c.In(1))
	var n int64
	if v := c.In(3); v != nil {
		size, constant := c.Ints(v)
		if ok = ok && constant && len(size) == 1; ok {
			n = size[0]
		}
	} else if window != nil && window.Type.Ranked {
		var fixed bool
		n, fixed = window.Type.Shape[0].Int()
		ok = ok && fixed
	}
	if !ok || !known || len(step) != 1 || step[0] < 1 || n < 1 || length < n {
		c.Fail("frames of unknown number or size: give --dim")
		return nil
	}
	frames := (length-n)/step[0] + 1
	if !c.table(frames, n) {
		return nil
	}
	places := make([]int64, 0, frames*n)
	for f := range frames {
		for i := range n {
			places = append(places, f*step[0]+i)
		}
	}
	v := c.Op("Gather", build.In(x, c.Const(onnx.Int64Tensor(places, frames, n))), onnx.IntAttr("axis", 1))
	if window != nil {
		v = c.Do("Mul", v, c.Unsqueeze(window, 1))
	}
	return c.transform(v, n, 2, onnx.IntAttr("onesided", c.Node.Int("onesided", 1)))
}

// mirrorWeights are w/n of half a spectrum, along the axis of x.
func (c *Context) mirrorWeights(x *onnx.Value, axis int, n int64) *onnx.Value {
	w := make([]float64, n/2+1)
	for k := range w {
		w[k] = 2 / float64(n)
		if k == 0 || int64(2*k) == n {
			w[k] = 1 / float64(n)
		}
	}
	shape := slices.Repeat([]int64{1}, c.Rank(x)-axis)
	shape[0] = int64(len(w))
	return c.Const(onnx.FloatTensor(x.Type.DType, w, shape...))
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
func (c *Context) transform(v *onnx.Value, n int64, axis int, attrs ...onnx.Attribute) *onnx.Value {
	length := c.Const(onnx.Int64Tensor([]int64{n}))
	if c.opset() < 20 {
		return c.Op("DFT", build.In(v, length), append(attrs, onnx.IntAttr("axis", int64(axis)))...)
	}
	return c.Op("DFT", build.In(v, length, c.Const(onnx.Int64Tensor([]int64{int64(axis)}))), attrs...)
}
