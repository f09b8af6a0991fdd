package grad

// Images taken apart and sampled. Sampling is written out as what it is, a sum
// over the neighbours (taps) of each place, each gathered by its index and
// weighted by its distance:
//
//	grid ─▶ places ─┬─floor─▶ indices ──Gather──┐
//	                └─frac──▶ weights ───────────┴─▶ Σ
//
// so that the gradient reaches image and grid by the rules of the parts. The
// formulas are those of PyTorch's grid_sample; cubic weights have A = -0.75.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"slices"
)

var imageRules = []Rule{
	{Op: "GridSample", Since: 16, Doc: "made of Floor, GatherElements, Mul and Add", Inputs: []int{0, 1}, Grad: decomposition(gridSample)},
	{Op: "DeformConv", Since: 19, Doc: "made of Floor, GatherElements, Mul and MatMul", Inputs: []int{0, 1, 2, 3, 4}, Grad: decomposition(deformConv)},
	{Op: "AffineGrid", Since: 20, Doc: "made of Gemm with the grid's places", Inputs: []int{0}, Grad: decomposition(affineGrid)},
	{Op: "Col2Im", Since: 18, Doc: "g gathered at each block's elements", Inputs: []int{0}, Grad: gradCol2Im},
	{Op: "MaxUnpool", Since: 9, Doc: "g gathered at the indices", Inputs: []int{0}, Grad: func(c *Context) {
		if c.In(2) != nil {
			c.Fail("an output_shape is given")
			return
		}
		g := c.Do("Gather", c.ReshapeTo(c.Grad(0), -1), c.ReshapeTo(c.In(1), -1))
		c.Add(0, c.Reshape(g, c.In(0)))
	}},
}

// A tap is one neighbour along one axis: its index as a float [n,1,places], and
// its weight of that shape, nil for one.
type tap struct{ index, weight *onnx.Value }

// sampler is a GridSample: the padding and the spatial extents.
type sampler struct {
	c       *Context
	padding string
	corners bool
	sizes   []int64
}

func gridSample(c *Context) *onnx.Value {
	x, grid := c.In(0), c.In(1)
	rank := c.Rank(x)
	if c.e.b.Err() != nil {
		return nil
	}
	s := sampler{c: c, padding: c.Node.Str("padding_mode", "zeros"), corners: c.Node.Int("align_corners", 0) != 0}
	for _, d := range x.Type.Shape[2:] {
		n, ok := d.Int()
		if !ok {
			c.Fail("an image of shape %s: give --dim", x.Type.Shape)
			return nil
		}
		s.sizes = append(s.sizes, n)
	}
	axes := rank - 2
	out := grid.Type.Shape[1 : rank-1]
	n, places := x.Type.Shape[0], out.Elements()
	flat := c.ReshapeDims(grid, onnx.Shape{n, places, onnx.Static(int64(axes))})
	taps := make([][]tap, axes)
	for d := range axes {
		// The grid's last axis names the image's axes backwards.
		at := int64(axes - 1 - d)
		place := c.ReshapeDims(c.sliceOf(flat, 2, at, at+1), onnx.Shape{n, onnx.Static(1), places})
		taps[d] = s.taps(place, s.sizes[d])
	}
	size := int64(1)
	for _, k := range s.sizes {
		size *= k
	}
	image := c.ReshapeDims(x, onnx.Shape{n, x.Type.Shape[1], onnx.Static(size)})
	full := c.e.shapeValue(onnx.Shape{n, x.Type.Shape[1], places})
	if full == nil { // as many places as data asks for
		full = c.Op("Concat", build.In(c.lengthOf(x, 0), c.lengthOf(x, 1), c.lengthOf(flat, 1)), onnx.IntAttr("axis", 0))
	}
	y := s.sum(image, full, taps, nil, nil)
	return c.ReshapeDims(y, append(onnx.Shape{n, x.Type.Shape[1]}, out...))
}

// sum adds up the products of taps, one of each axis.
func (s *sampler) sum(image, full *onnx.Value, taps [][]tap, index, weight *onnx.Value) *onnx.Value {
	c := s.c
	if len(taps) == 0 {
		y := c.Op("GatherElements", build.In(image, c.Do("Expand", index, full)), onnx.IntAttr("axis", 2))
		if weight != nil { // of the grid's type, which may be another one
			y = c.Do("Mul", y, c.cast(weight, y.Type.DType))
		}
		return y
	}
	size := s.sizes[len(s.sizes)-len(taps)]
	var sum *onnx.Value
	for _, t := range taps[0] {
		i, w := c.cast(t.index, onnx.Int64), weight
		if index != nil {
			i = c.Do("Add", c.Do("Mul", index, c.IntList(size)), i)
		}
		switch {
		case w == nil:
			w = t.weight
		case t.weight != nil:
			w = c.Do("Mul", w, t.weight)
		}
		y := s.sum(image, full, taps[1:], i, w)
		if sum != nil {
			y = c.Do("Add", sum, y)
		}
		sum = y
	}
	return sum
}

// taps finds the neighbours of places in [-1,1] along an axis of that size.
func (s *sampler) taps(place *onnx.Value, size int64) []tap {
	c, n := s.c, float64(size)
	v := c.Plus(place, c.Scalar(place, 1))
	if s.corners {
		v = c.Scale(v, (n-1)/2)
	} else {
		v = c.Minus(c.Scale(v, n/2), c.Scalar(place, 0.5))
	}
	switch c.Node.Str("mode", "linear") {
	case "nearest":
		// ONNX Runtime rounds first, which is another pixel where a place lies between two
		// outside of the image; whole numbers are reflected exactly.
		return []tap{s.inside(s.fold(c.Do("Round", v), n), nil, n)}
	case "cubic", "bicubic":
		low := c.Do("Floor", v)
		t := c.Minus(v, low)
		var list []tap
		for k, w := range cubicNeighbours(c, t) {
			i := c.Plus(low, c.Scalar(v, float64(k-1)))
			list = append(list, s.inside(s.fold(i, n), w, n))
		}
		return list
	}
	return s.linear(s.fold(v, n), n)
}

// linear are the two neighbours of places in pixels.
func (s *sampler) linear(v *onnx.Value, n float64) []tap {
	c := s.c
	low := c.Do("Floor", v)
	t := c.Minus(v, low)
	return []tap{s.inside(low, c.rest(t), n), s.inside(c.Plus(low, c.Scalar(v, 1)), t, n)}
}

// fold brings places outside of the image back into it, as the padding says.
func (s *sampler) fold(v *onnx.Value, n float64) *onnx.Value {
	c := s.c
	switch s.padding {
	case "zeros":
		return v
	case "reflection":
		low, span := -0.5, n
		if s.corners {
			low, span = 0, n-1
		}
		if span == 0 {
			return c.Scale(v, 0)
		}
		off := c.Do("Abs", c.Minus(v, c.Scalar(v, low)))
		turn := c.Op("Mod", build.In(off, c.Scalar(v, 2*span)), onnx.IntAttr("fmod", 1))
		v = c.Minus(c.Scalar(v, span+low), c.Do("Abs", c.Minus(turn, c.Scalar(v, span))))
	}
	return c.Do("Clip", v, c.Scalar(v, 0), c.Scalar(v, n-1))
}

// inside keeps an index within the image; outside it weighs nothing, which only
// padding with zeros can come to.
func (s *sampler) inside(i, w *onnx.Value, n float64) tap {
	c := s.c
	kept := c.Do("Clip", i, c.Scalar(i, 0), c.Scalar(i, n-1))
	if s.padding == "zeros" {
		in := c.Mask(c.Do("Equal", kept, i), i)
		if w != nil {
			in = c.Do("Mul", w, in)
		}
		w = in
	}
	return tap{kept, w}
}

// cubicNeighbours are those of the neighbours -1, 0, 1, 2 of a place t in [0,1).
func cubicNeighbours(c *Context, t *onnx.Value) [4]*onnx.Value {
	const a = -0.75
	poly := func(x *onnx.Value, k3, k2, k1, k0 float64) *onnx.Value {
		y := c.Plus(c.Scale(x, k3), c.Scalar(x, k2))
		y = c.Do("Mul", y, x)
		if k1 != 0 {
			y = c.Plus(y, c.Scalar(x, k1))
		}
		return c.Plus(c.Do("Mul", y, x), c.Scalar(x, k0))
	}
	near := func(x *onnx.Value) *onnx.Value { return poly(x, a+2, -(a + 3), 0, 1) }
	far := func(x *onnx.Value) *onnx.Value { return poly(x, a, -5*a, 8*a, -4*a) }
	one := c.Scalar(t, 1)
	rest := c.rest(t)
	return [4]*onnx.Value{far(c.Plus(t, one)), near(t), near(rest), far(c.Plus(rest, one))}
}

// affineGrid multiplies each theta [d,d+1] with the places of the grid, written
// (x, y, 1) or (x, y, z, 1).
func affineGrid(c *Context) *onnx.Value {
	theta := c.In(0)
	size, ok := c.Ints(c.In(1))
	if !ok || len(size) < 4 {
		c.Fail("the size of the grid is unknown: give --dim")
		return nil
	}
	extents := size[2:]
	d := int64(len(extents))
	if !c.table(append([]int64{d + 1}, extents...)...) {
		return nil
	}
	places, _ := onnx.Elements(extents)
	base := make([]float64, (d+1)*places)
	for p := range places {
		rest := p
		for k := len(extents) - 1; k >= 0; k-- {
			n := float64(extents[k])
			at := 2*(float64(rest%extents[k])+0.5)/n - 1
			if c.Node.Int("align_corners", 0) != 0 {
				at = 1 // of one place, as ONNX Runtime has it; the standard divides by zero
				if n > 1 {
					at = 2*float64(rest%extents[k])/(n-1) - 1
				}
			}
			base[int64(len(extents)-1-k)*places+p] = at
			rest /= extents[k]
		}
		base[d*places+p] = 1
	}
	rows := c.ReshapeTo(theta, -1, d+1)
	flat := c.Do("Gemm", rows, c.Const(onnx.FloatTensor(theta.Type.DType, base, d+1, places)))
	moved := c.Transpose(c.ReshapeTo(flat, -1, d, places), 0, 2, 1)
	return c.ReshapeTo(moved, append(append([]int64{-1}, extents...), d)...)
}

// gradCol2Im reads each block's elements from the padded gradient.
func gradCol2Im(c *Context) {
	image, ok1 := c.Ints(c.In(1))
	block, ok2 := c.Ints(c.In(2))
	d := len(image)
	if !ok1 || !ok2 || len(block) != d {
		c.Fail("image and block are unknown before the run")
		return
	}
	fill := func(name string, n int, v int64) []int64 {
		list := c.Node.Ints(name)
		for len(list) < n {
			list = append(list, v)
		}
		return list
	}
	strides, dilations, pads := fill("strides", d, 1), fill("dilations", d, 1), fill("pads", 2*d, 0)
	index := []int64{0}
	padded := int64(1)
	for i := range d {
		padded *= image[i] + pads[i] + pads[d+i]
	}
	count := make([]int64, d)
	for i := range d {
		count[i] = (image[i]+pads[i]+pads[d+i]-dilations[i]*(block[i]-1)-1)/strides[i] + 1
	}
	if slices.Min(count) < 1 || !c.table(append(slices.Clone(count), block...)...) {
		c.Fail("blocks of %v in an image of %v", block, image)
		return
	}
	// Blocks' elements vary slowest, then their places; rows before columns.
	for _, part := range []struct{ counts, steps []int64 }{{block, dilations}, {count, strides}} {
		stride := padded
		for i := range d {
			stride /= image[i] + pads[i] + pads[d+i]
			next := make([]int64, 0, int64(len(index))*part.counts[i])
			for _, at := range index {
				for k := range part.counts[i] {
					next = append(next, at+k*part.steps[i]*stride)
				}
			}
			index = next
		}
	}
	g := c.Grad(0)
	list := make([]int64, 2*(d+2))
	padding := false
	for i := range d {
		list[2+i], list[d+4+i] = pads[i], pads[d+i]
		padding = padding || pads[i] != 0 || pads[d+i] != 0
	}
	if padding {
		g = c.Do("Pad", g, c.IntList(list...))
	}
	if g == nil {
		return
	}
	s := g.Type.Shape
	flat := c.ReshapeDims(g, onnx.Shape{s[0], s[1], onnx.Static(padded)})
	c.Add(0, c.Reshape(c.Op("Gather", build.In(flat, c.IntList(index...)), onnx.IntAttr("axis", 2)), c.In(0)))
}
