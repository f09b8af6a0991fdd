package grad

// Regions of an image, sampled (He et al. 2017, "Mask R-CNN", RoIAlign). A region's
// output is a mean of bilinear samples on a regular grid, so it is linear in the
// image and falls apart by axis: for region r of image n = batch[r]
//
//	y[r,c] = V[r] · x[n,c] · W[r]ᵀ       V [r,out_h,h], W [r,out_w,w]
//	dx[n,c] = Σ V[r]ᵀ · g[r,c] · W[r]    over the regions of n
//
// where a row of V holds what each row of pixels weighs in a row of the output: the
// mean of the hat function max(0, 1-|place - pixel|) over its samples. The sum over
// regions and their rows is one product, so no image a region is ever made.
//
// The regions themselves get no gradient, as in torchvision, which detaches them.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

const roiDoc = "Vᵀ·g·W summed over an image's regions, V and W the weights of its rows and columns; none to the regions"

var regionRules = []Rule{
	{Op: "RoiAlign", Since: 10, Doc: roiDoc, Inputs: []int{0}, Fixed: []int{1}, Grad: func(c *Context) { gradRoiAlign(c, "output_half_pixel") }},
	{Op: "RoiAlign", Since: 16, Doc: roiDoc, Inputs: []int{0}, Fixed: []int{1}, Grad: func(c *Context) { gradRoiAlign(c, "half_pixel") }},
}

func gradRoiAlign(c *Context, standard string) {
	x, g := c.In(0), c.Grad(0)
	dims, ok := x.Type.Shape.Ints()
	if !ok || len(dims) != 4 {
		c.Fail("an image of shape %s: give --dim", x.Type.Shape)
		return
	}
	if mode := c.Node.Str("mode", "avg"); mode != "avg" {
		c.Fail("mode %q: only avg has a gradient here", mode)
		return
	}
	samples := c.Node.Int("sampling_ratio", 0)
	if samples < 1 {
		c.Fail("sampling_ratio %d takes as many samples as a region is large: export it with a fixed number, as 2", samples)
		return
	}
	r := regions{c: c, samples: samples, whole: c.Node.Str("coordinate_transformation_mode", standard) == "half_pixel"}
	r.corners = c.Scale(c.In(1), c.Node.Float("spatial_scale", 1))
	if r.whole {
		r.corners = c.Minus(r.corners, c.Scalar(x, 0.5))
	}
	n, channels, h, w := dims[0], dims[1], dims[2], dims[3]
	height, width := c.Node.Int("output_height", 1), c.Node.Int("output_width", 1)
	columns := c.ReshapeTo(r.weights(0, width, w), -1, 1, width, w)
	rows := c.ReshapeTo(c.Transpose(c.Do("MatMul", g, columns), 0, 2, 1, 3), -1, channels*w) // [r·out_h, c·w]
	dx := c.Do("MatMul", c.Transpose(r.byImage(r.weights(1, height, h), n, height*h, h), 0, 2, 1), rows)
	c.Add(0, c.Transpose(c.ReshapeTo(dx, n, h, channels, w), 0, 2, 1, 3))
}

// regions are those of a RoiAlign: their corners x1, y1, x2, y2 in pixels, [r,4].
type regions struct {
	c       *Context
	corners *onnx.Value
	samples int64 // along an axis of each output
	whole   bool  // half_pixel: a region may be smaller than a pixel
}

// weights is what each of an axis's pixels weighs in each output along it,
// [r·outputs, pixels]; axis 0 is x, 1 is y. Places more than a pixel outside the
// image weigh nothing, others outside count as its border.
func (r *regions) weights(axis, outputs, pixels int64) *onnx.Value {
	c := r.c
	corner := func(i int64) *onnx.Value {
		return c.Op("Gather", build.In(r.corners, c.IntList(i)), onnx.IntAttr("axis", 1))
	}
	start := corner(axis)
	size := c.Minus(corner(axis+2), start)
	if size == nil {
		return nil
	}
	if !r.whole {
		size = c.Do("Max", size, c.Scalar(size, 1))
	}
	if !c.table(outputs, r.samples) || !c.table(pixels) {
		return nil
	}
	shares := make([]float64, outputs*r.samples) // of the size, at which samples lie
	for i := range shares {
		shares[i] = (float64(i) + 0.5) / float64(len(shares))
	}
	d := size.Type.DType
	place := c.Plus(start, c.Do("Mul", size, c.Const(onnx.FloatTensor(d, shares, 1, int64(len(shares))))))
	if place == nil {
		return nil
	}
	inside := c.Do("And", c.Do("GreaterOrEqual", place, c.Scalar(place, -1)), c.Do("LessOrEqual", place, c.Scalar(place, float64(pixels))))
	place = c.Do("Clip", place, c.Scalar(place, 0), c.Scalar(place, float64(pixels-1)))
	at := make([]float64, pixels)
	for i := range at {
		at[i] = float64(i)
	}
	far := c.Do("Abs", c.Minus(c.Unsqueeze(place, 2), c.Const(onnx.FloatTensor(d, at, 1, 1, pixels))))
	if far == nil {
		return nil
	}
	hat := c.Do("Relu", c.Minus(c.Scalar(far, 1), far))
	hat = c.Do("Mul", hat, c.Unsqueeze(c.Mask(inside, hat), 2))
	return c.Scale(c.Sum(c.ReshapeTo(hat, -1, r.samples, pixels), false, 1), 1/float64(r.samples))
}

// byImage gives weights [r·outputs, pixels] an axis of n images before, [n, r·outputs,
// pixels], and zeros where a region is of another image; a region has that many
// weights.
func (r *regions) byImage(weights *onnx.Value, n, each, pixels int64) *onnx.Value {
	c := r.c
	if n == 1 {
		return c.ReshapeTo(weights, 1, -1, pixels)
	}
	of := c.Do("Equal", c.CastTo(c.Unsqueeze(c.In(2), 0), c.IntList(0)), c.Unsqueeze(c.counted(n), 1))
	mask := c.Unsqueeze(c.Mask(of, weights), 2) // [n, r, 1]
	return c.ReshapeTo(c.Do("Mul", c.ReshapeTo(weights, 1, -1, each), mask), n, -1, pixels)
}
