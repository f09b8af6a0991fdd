package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// poolRules: an average spreads its gradient over its window, a maximum hands it
// to the element that won.
var poolRules = []Rule{
	{Op: "MaxPool", Since: 8, Doc: "g added at the saved indices", Grad: gradMaxPool},
	{Op: "AveragePool", Since: 7, Doc: "g/count spread over each window: ConvTranspose with ones, an Expand where windows do not overlap", Grad: gradAveragePool},
	{Op: "LpPool", Since: 2, Doc: "g*y^(1-p) spread over each window, times sign(x)|x|^(p-1)", Grad: func(c *Context) {
		list := c.poolWindows()
		p := float64(c.Node.Int("p", 2))
		h := c.poolSpread(lpOuter(c, c.Grad(0), c.Out(0), p), list, 1)
		c.Add(0, lpInner(c, h, c.In(0), p))
	}},
	{Op: "GlobalAveragePool", Since: 1, Doc: "g/n", Grad: func(c *Context) {
		c.Add(0, c.perElement(c.Loose(0), c.In(0), c.axesFrom(c.In(0), 2)))
	}},
	{Op: "GlobalMaxPool", Since: 1, Doc: "g to the elements equal to y, shared evenly", Grad: func(c *Context) {
		x := c.In(0)
		c.Add(0, gradReduceExtreme(c, reduced{c.Loose(0), c.Out(0), c.axesFrom(x, 2)}))
	}},
	{Op: "GlobalLpPool", Since: 2, Doc: "g*y^(1-p)*sign(x)|x|^(p-1)", Grad: func(c *Context) {
		p := float64(c.Node.Int("p", 2))
		c.Add(0, lpInner(c, lpOuter(c, c.Loose(0), c.Out(0), p), c.In(0), p))
	}},
}

// gradMaxPool scatters into zeros. ONNX counts the indices over the whole input
// in its own order, so that no extent need be known.
func gradMaxPool(c *Context) {
	if c.Node.Int("storage_order", 0) != 0 {
		c.Fail("storage_order 1")
		return
	}
	list := c.poolWindows()
	if c.e.b.Err() != nil {
		return
	}
	if o := c.Out(1); o != nil && c.e.grads[o] != nil {
		c.Fail("a gradient of its indices")
		return
	}
	flat := func(v *onnx.Value) *onnx.Value { return c.ReshapeTo(v, -1) }
	indices, g := c.AddOut(1), c.Grad(0)
	if c.e.b.Err() != nil {
		return
	}
	twice := slices.ContainsFunc(list, func(w window) bool { return w.stride < w.reach() }) // an element may win more than once
	zeros := flat(c.e.zerosAfter(c.In(0), indices, scatteredType(g.Type.DType, twice)))
	c.Add(0, c.Reshape(c.e.scatter(zeros, flat(indices), flat(g), 0, twice), c.In(0)))
}

// poolWindows cuts a window that is larger than the padded input, as ceil_mode
// allows, to what there is.
func (c *Context) poolWindows() []window {
	list := c.windows(c.In(0), c.Out(0), c.Node.Ints("kernel_shape"))
	mode := c.Node.Str("auto_pad", "NOTSET")
	for i, w := range list {
		if w.dilation != 1 && traits.KeepsExtents(mode) {
			c.Fail("auto_pad %s with dilations: ONNX Runtime pads a pool as if it had none, and makes fewer elements than the axis has; export with pads", mode)
			return nil
		}
		if w.out == 1 && w.in >= 0 && w.dilation == 1 {
			list[i].kernel = min(w.kernel, w.in+w.before+w.after)
		}
	}
	return list
}

func gradAveragePool(c *Context) {
	list := c.poolWindows()
	if c.e.b.Err() != nil {
		return
	}
	g := c.Grad(0)
	count := 1.0
	for _, w := range list {
		count *= float64(w.kernel)
	}
	if !fullWindows(list) {
		share := c.shares(list, c.Node.Int("count_include_pad", 0) != 0)
		if share == nil {
			c.Fail("a border with extents that are unknown: give --dim")
			return
		}
		g, count = c.Do("Mul", g, c.CastTo(share, g)), 1
	}
	c.Add(0, c.poolSpread(g, list, 1/count))
}

// fullWindows reports that every window lies inside the input.
func fullWindows(list []window) bool {
	for _, w := range list {
		if w.before != 0 || w.after != 0 {
			return false
		}
		if w.in >= 0 && w.out >= 0 && (w.out-1)*w.stride+w.reach() > w.in {
			return false
		}
	}
	return true
}

// shares is 1/count for each window, [out...]: how many elements it averages.
// It is put together from a vector an axis.
func (c *Context) shares(list []window, padded bool) *onnx.Value {
	var share *onnx.Value
	for i, w := range list {
		if w.in < 0 || w.out < 0 || w.out > maxTable {
			return nil
		}
		values := make([]float64, w.out)
		for o := range values {
			values[o] = 1 / float64(max(w.inside(int64(o), padded), 1))
		}
		dims := []int64{w.out}
		for range list[i+1:] {
			dims = append(dims, 1)
		}
		along := c.Const(onnx.FloatTensor(c.In(0).Type.DType, values, dims...))
		if share == nil {
			share = along
		} else {
			share = c.Do("Mul", share, along)
		}
	}
	return share
}

// inside counts the elements of window o that lie in the input, or in the
// padded input.
func (w window) inside(o int64, padded bool) int64 {
	lo, hi := int64(0), w.in
	if padded {
		lo, hi = -w.before, w.in+w.after
	}
	first := o*w.stride - w.before
	reached := func(to int64) int64 { // how many places lie before it
		if to <= first {
			return 0
		}
		return min((to-first+w.dilation-1)/w.dilation, w.kernel)
	}
	return reached(hi) - reached(lo)
}

// poolSpread adds g times scale to every element of each window.
func (c *Context) poolSpread(g *onnx.Value, list []window, scale float64) *onnx.Value {
	if g == nil || len(list) == 0 {
		return nil
	}
	x := c.In(0)
	if tiling(list) {
		return c.tileSpread(c.Scale(g, scale), list)
	}
	s := g.Type.Shape
	planes := c.ReshapeDims(g, append(onnx.Shape{s[0].Mul(s[1]), onnx.Static(1)}, s[2:]...))
	dims := []int64{1, 1}
	for _, w := range list {
		dims = append(dims, w.kernel)
	}
	if !c.table(dims...) {
		return nil
	}
	n, _ := onnx.Elements(dims)
	kernel := c.Const(onnx.FloatTensor(g.Type.DType, slices.Repeat([]float64{scale}, int(n)), dims...))
	return c.Reshape(c.spreadBack(planes, kernel, list, 1), x)
}

// tiling reports windows that lie side by side and cover the input.
func tiling(list []window) bool {
	return !slices.ContainsFunc(list, func(w window) bool {
		return w.stride != w.kernel || w.dilation != 1 || w.before != 0 || w.after != 0 || w.in < 0 || w.in != w.out*w.kernel
	})
}

// tileSpread repeats each element of g over its window.
func (c *Context) tileSpread(g *onnx.Value, list []window) *onnx.Value {
	if g == nil {
		return nil
	}
	s := g.Type.Shape
	var axes []int
	shape := onnx.Shape{s[0], s[1]}
	for i, w := range list {
		shape = append(shape, s[i+2], onnx.Static(w.kernel))
		axes = append(axes, 3+2*i)
	}
	target := c.e.shapeValue(shape)
	if target == nil {
		target = c.Op("Concat", build.In(c.Op("Shape", build.In(g), onnx.IntAttr("end", 2)), c.e.shapeValue(shape[2:])), onnx.IntAttr("axis", 0))
	}
	out := c.Do("Expand", c.Unsqueeze(g, axes...), target)
	if out != nil {
		out.Type = onnx.TensorOf(g.Type.DType, shape)
	}
	return c.Reshape(out, c.In(0))
}

// lpOuter is g*y^(1-p), lpInner h*sign(x)|x|^(p-1).
func lpOuter(c *Context, g, y *onnx.Value, p float64) *onnx.Value {
	switch p {
	case 1:
		return g
	case 2:
		return c.Over(g, y)
	}
	return c.Times(g, c.Do("Pow", y, c.Scalar(y, 1-p)))
}

func lpInner(c *Context, h, x *onnx.Value, p float64) *onnx.Value {
	switch p {
	case 1:
		return c.Times(h, c.Do("Sign", x))
	case 2:
		return c.Times(h, x)
	}
	power := c.Do("Pow", c.Do("Abs", x), c.Scalar(x, p-1))
	return c.Times(h, c.Times(c.Do("Sign", x), power))
}
