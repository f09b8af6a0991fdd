package grad

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// convRules: a convolution's derivatives are convolutions. With x [n,c,…] read
// as c images of n channels, and g [n,m,…] as m kernels, the weight's gradient
// is one plain convolution in which stride and dilation trade places:
//
//	dw[m,c,k] = Σ_n Σ_o g[n,m,o] x[n,c,k*dilation + o*stride]
//
// Weakness: it makes a copy of both operands. Kernels of extent one, half of
// all layers in mobile networks, are one matrix product instead.
var convRules = []Rule{
	{Op: "Conv", Since: 1, Doc: "dx = ConvTranspose(g, w); dw = Conv(xᵀ, gᵀ)ᵀ with stride and dilation exchanged; db = Σ g", Grad: gradConv},
	{Op: "ConvTranspose", Since: 1, Doc: "dx = Conv(g, w); dw as Conv's with x and g exchanged; db = Σ g", Grad: gradConvTranspose},
}

func gradConv(c *Context) {
	x, w, g := c.In(0), c.In(1), c.Grad(0)
	kernel := c.kernelExtents(w)
	if c.e.b.Err() != nil {
		return
	}
	list := c.windows(x, c.Out(0), kernel)
	if c.e.b.Err() != nil {
		return
	}
	group := c.Node.Int("group", 1)
	if c.Needs(2) {
		c.Add(2, c.Sum(g, false, c.allBut(g, 1)...))
	}
	if c.Needs(1) {
		c.Add(1, c.kernelGradient(x, g, w, list, group))
	}
	if c.Needs(0) {
		c.Add(0, c.spreadBack(g, w, list, group))
	}
}

func gradConvTranspose(c *Context) {
	x, w, g := c.In(0), c.In(1), c.Grad(0)
	kernel := c.kernelExtents(w)
	if c.e.b.Err() != nil {
		return
	}
	// The kernel slides over the output here, one step an input element.
	list := c.windows(c.Out(0), x, kernel)
	if c.e.b.Err() != nil {
		return
	}
	for i, rest := range c.Node.Ints("output_padding") {
		if i < len(list) && rest >= list[i].stride { // a dilation allows it in PyTorch
			c.Fail("output_padding %d along axis %d, whose stride is %d: ONNX Runtime refuses a rest as long as a stride", rest, i+2, list[i].stride)
			return
		}
	}
	if c.Node.Has("output_shape") || c.Node.Str("auto_pad", "NOTSET") != "NOTSET" {
		c.placeOutput(list)
	}
	group := c.Node.Int("group", 1)
	if c.Needs(2) {
		c.Add(2, c.Sum(g, false, c.allBut(g, 1)...))
	}
	if c.Needs(1) {
		c.Add(1, c.kernelGradient(g, x, w, list, group))
	}
	if c.Needs(0) {
		after := make([]int64, len(list))
		for i := range list {
			after[i] = list[i].after
		}
		attrs := append(strideAttrs(list, after, false), onnx.IntsAttr("kernel_shape", kernel...), onnx.IntAttr("group", group))
		c.Add(0, c.Op("Conv", build.In(g, w), attrs...))
	}
}

// placeOutput finds the pads of a ConvTranspose that is given its output's
// extents, or how they follow from the input's, in place of pads.
func (c *Context) placeOutput(list []window) {
	mode := c.Node.Str("auto_pad", "NOTSET")
	if mode == "VALID" && !c.Node.Has("output_shape") {
		for i := range list {
			list[i].before, list[i].after = 0, 0
		}
		return
	}
	pads := traits.TransposedPads(c.Node)
	if pads == nil {
		c.Fail("%s along axes %s, of which an extent is unknown: give --dim", mode, c.In(0).Type.Shape[2:])
		return
	}
	for i := range list {
		list[i].before, list[i].after = pads[i], max(pads[len(list)+i], 0)
	}
}

// kernelGradient is the gradient of a weight like w [m,c/group,k...] that slides
// over x [n,c,in...] to make something of the shape of g [n,m,out...].
func (c *Context) kernelGradient(x, g, w *onnx.Value, list []window, group int64) *onnx.Value {
	if x == nil || g == nil {
		return nil
	}
	m, perGroup := w.Type.Shape[0], w.Type.Shape[1]
	if group == 1 && pointwise(list) {
		return c.pointGradient(x, g, w, list)
	}
	after := make([]int64, len(list))
	cut := false
	for i, p := range list {
		var rest int64
		var exact bool
		after[i], rest, exact = p.trim()
		cut = cut || !exact || rest > 0
	}
	images := c.groupImages(x, perGroup, group)
	attrs := append(strideAttrs(list, after, true), onnx.IntAttr("group", group))
	dw := c.Op("Conv", build.In(images, c.swapLeading(g)), attrs...)
	if dw == nil {
		return nil
	}
	if cut {
		ends, axes := make([]int64, len(list)), make([]int64, len(list))
		for i, p := range list {
			ends[i], axes[i] = p.kernel, int64(i+2)
		}
		dw = c.Do("Slice", dw, c.IntList(make([]int64, len(list))...), c.IntList(ends...), c.IntList(axes...))
	}
	if dw != nil {
		shape := append(onnx.Shape{perGroup, m}, w.Type.Shape[2:]...)
		dw.Type = onnx.TensorOf(dw.Type.DType, shape)
	}
	return c.swapLeading(dw)
}

// groupImages reads x [n, group*per, ...] as per images [group*n, ...].
func (c *Context) groupImages(x *onnx.Value, per onnx.Dim, group int64) *onnx.Value {
	if group == 1 {
		return c.swapLeading(x)
	}
	s := x.Type.Shape
	five := c.ReshapeDims(x, append(onnx.Shape{s[0], onnx.Static(group), per}, s[2:]...))
	perm := []int{2, 1, 0}
	for i := 2; i < len(s); i++ {
		perm = append(perm, i+1)
	}
	joined := append(onnx.Shape{per, s[0].Mul(onnx.Static(group))}, s[2:]...)
	return c.ReshapeDims(c.Transpose(five, perm...), joined)
}

// pointwise reports kernels of extent one without borders.
func pointwise(list []window) bool {
	return !slices.ContainsFunc(list, func(w window) bool { return w.kernel != 1 || w.before != 0 || w.after != 0 })
}

// pointGradient is dw = g xᵀ over all places of all images at once.
func (c *Context) pointGradient(x, g, w *onnx.Value, list []window) *onnx.Value {
	var steps, axes []int64
	for i, p := range list {
		if p.stride != 1 {
			steps, axes = append(steps, p.stride), append(axes, int64(i+2))
		}
	}
	if len(steps) > 0 {
		ends := slices.Repeat([]int64{math.MaxInt64}, len(steps))
		x = c.Do("Slice", x, c.IntList(make([]int64, len(steps))...), c.IntList(ends...), c.IntList(axes...), c.IntList(steps...))
	}
	rows := func(v *onnx.Value) *onnx.Value {
		t := c.swapLeading(v)
		if t == nil {
			return nil
		}
		n, ok := t.Type.Shape[0].Int()
		if !ok {
			c.Fail("the number of channels of %q is unknown", v.Name)
		}
		return c.ReshapeTo(t, n, -1)
	}
	return c.Reshape(c.Op("Gemm", build.In(rows(g), rows(x)), onnx.IntAttr("transB", 1)), w)
}
