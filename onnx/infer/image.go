package infer

// Operators on images: resizing, sampling, cropping.

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// resize: X, roi, scales, sizes; opset 18 adds axes and an aspect policy.
func resize(c *ctx, s onnx.Shape) error {
	d := c.dtype(0)
	scales, sizes := 2, 3
	if c.opset < 11 {
		scales, sizes = 1, -1
	}
	axes, _, err := c.axesOrAll(-1, len(s))
	if err != nil {
		return err
	}
	out := append(onnx.Shape{}, s...)
	if c.has(sizes) {
		want, ok := c.elems(sizes)
		if !ok {
			want = unknowns(len(axes))
		}
		if len(want) != len(axes) {
			return fmt.Errorf("%d sizes for %d axes", len(want), len(axes))
		}
		want = fitAspect(c.n.Str("keep_aspect_ratio_policy", "stretch"), s, axes, want)
		for i, a := range axes {
			out[a] = want[i]
		}
		c.set(0, d, out)
		return nil
	}
	factors, ok := c.floats(scales)
	if ok && len(factors) != len(axes) {
		return fmt.Errorf("%d scales for %d axes", len(factors), len(axes))
	}
	for i, a := range axes {
		switch n, num := s[a].Int(); {
		case !ok:
			out[a] = onnx.Dim{}
		case num:
			out[a] = floored(float64(float32(n) * float32(factors[i])))
		case factors[i] == math.Trunc(factors[i]) && math.Abs(factors[i]) < 1<<20:
			out[a] = s[a].Mul(onnx.Static(int64(factors[i])))
		default:
			out[a] = onnx.Dim{}
		}
	}
	c.set(0, d, out)
	return nil
}

// floored is the extent of floor(f), unknown where that is not an extent.
func floored(f float64) onnx.Dim {
	if f = math.Floor(f); f >= 0 && f < 1<<53 {
		return onnx.Static(int64(f))
	}
	return onnx.Dim{}
}

// fitAspect scales all axes by one factor, such that the image fits inside the
// wanted sizes or covers them.
func fitAspect(policy string, s onnx.Shape, axes []int, want []onnx.Dim) []onnx.Dim {
	if policy == "stretch" {
		return want
	}
	scale := math.Inf(1)
	if policy == "not_smaller" {
		scale = 0
	}
	for i, a := range axes {
		w, ok1 := want[i].Int()
		n, ok2 := s[a].Int()
		if !ok1 || !ok2 || n == 0 {
			return unknowns(len(want))
		}
		f := float64(w) / float64(n)
		if policy == "not_smaller" {
			scale = max(scale, f)
		} else {
			scale = min(scale, f)
		}
	}
	out := unknowns(len(want))
	for i, a := range axes {
		n, _ := s[a].Int()
		out[i] = floored(scale*float64(n) + 0.5)
	}
	return out
}

// floats are the elements of an input as numbers where all are known.
func (c *ctx) floats(i int) ([]float64, bool) {
	x, ok := c.operand(i)
	if !ok {
		return nil, false
	}
	out := make([]float64, len(x.elems))
	for k, e := range x.elems {
		if out[k], ok = e.number(); !ok {
			return nil, false
		}
	}
	return out, true
}

// gridSample: X [n, c, in...], grid [n, out..., dims] → [n, c, out...].
func gridSample(c *ctx) error {
	x, ok1 := c.shape(0)
	g, ok2 := c.shape(1)
	if !ok1 || !ok2 {
		c.setDType(0, c.dtype(0))
		return nil
	}
	if len(x) < 3 || len(g) != len(x) {
		return fmt.Errorf("input of rank %d, grid of rank %d", len(x), len(g))
	}
	out := onnx.Shape{x[0], x[1]}
	c.set(0, c.dtype(0), append(out, g[1:len(g)-1]...))
	return nil
}

// affineGrid: theta [n, d, d+1], size [n, c, ...] → [n, ..., d].
func affineGrid(c *ctx) error {
	size, ok := c.elems(1)
	if !ok {
		if n, ok := c.length(1); ok && n >= 3 {
			c.set(0, c.dtype(0), unknowns(n))
		} else {
			c.setDType(0, c.dtype(0))
		}
		return nil
	}
	if len(size) < 3 || len(size) > maxRank {
		return fmt.Errorf("size of %d elements", len(size))
	}
	out := onnx.Shape{size[0]}
	out = append(out, size[2:]...)
	c.set(0, c.dtype(0), append(out, onnx.Static(int64(len(size)-2))))
	return nil
}

// centerCropPad: the extents of the axes are the elements of input 1.
func centerCropPad(c *ctx, s onnx.Shape) error {
	axes, _, err := c.axesOrAll(-1, len(s))
	if err != nil {
		return err
	}
	want, ok := c.elems(1)
	if !ok {
		want = unknowns(len(axes))
	}
	if len(want) != len(axes) {
		return fmt.Errorf("%d extents for %d axes", len(want), len(axes))
	}
	out := append(onnx.Shape{}, s...)
	for i, a := range axes {
		out[a] = want[i]
	}
	c.set(0, c.dtype(0), out)
	return nil
}

// col2Im: X [n, c*block, places], image_shape, block_shape → [n, c, image...].
func col2Im(c *ctx) error {
	x, ok1, err := c.need(0, 3)
	if err != nil {
		return err
	}
	image, ok2 := c.elems(1)
	block, ok3 := c.elems(2)
	if !ok2 || len(image) > maxRank {
		c.setDType(0, c.dtype(0))
		return nil
	}
	extents, known := onnx.Shape(block).Ints()
	if !known || !ok3 {
		extents = nil
	}
	if _, err := c.window(len(image), extents); err != nil {
		return err
	}
	out := onnx.Shape{{}, {}}
	if ok1 {
		out[0] = x[0]
	}
	if ok1 && ok3 {
		out[1] = x[1].Div(onnx.Shape(block).Elements())
	}
	c.set(0, c.dtype(0), append(out, image...))
	return nil
}

// roiAlign: X [n, c, h, w], rois [k, 4] → [k, c, output_height, output_width].
func roiAlign(c *ctx) error {
	for _, name := range []string{"output_height", "output_width"} {
		if n := c.n.Int(name, 1); n < 1 {
			return fmt.Errorf("%s %d", name, n)
		}
	}
	return c.rois(onnx.Static(c.n.Int("output_height", 1)), onnx.Static(c.n.Int("output_width", 1)))
}

// maxRoiPool: X [n, c, h, w], rois [k, 5] → [k, c, pooled_shape].
func maxRoiPool(c *ctx) error {
	p := c.n.Ints("pooled_shape")
	if len(p) != 2 {
		return fmt.Errorf("pooled_shape %v", p)
	}
	return c.rois(onnx.Static(p[0]), onnx.Static(p[1]))
}

func (c *ctx) rois(h, w onnx.Dim) error {
	x, _, err := c.need(0, 4)
	if err != nil {
		return err
	}
	r, _, err := c.need(1, 2)
	if err != nil {
		return err
	}
	out := onnx.Shape{{}, {}, h, w}
	if r != nil {
		out[0] = r[0]
	}
	if x != nil {
		out[1] = x[1]
	}
	c.set(0, c.dtype(0), out)
	return nil
}
