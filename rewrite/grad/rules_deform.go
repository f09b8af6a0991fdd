package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// deformConv samples the image where each place of the kernel, moved by its offset,
// lies for each output, times the mask, and multiplies these columns by the weights:
//
//	y[m,p] = Σ_{c,k} W[m,c,k] · mask[k,p] · x[c, p·stride - pad + k·dilation + offset[k,p]]
//
// with x between pixels linear and zero outside. Channels are in groups with offsets
// of their own, and in groups for the product. Source: J. Dai et al., "Deformable
// Convolutional Networks", 2017; the order of offsets, down before right, is ONNX's.
// Weakness: the columns are as many as the kernel has places, of the image's size.
func deformConv(c *Context) *onnx.Value {
	x, w, y := c.In(0), c.In(1), c.Out(0)
	if c.Rank(x) != 4 || c.Rank(w) != 4 || c.Rank(y) != 4 {
		c.Fail("rank %d", c.Rank(x))
		return nil
	}
	extents := append(append(onnx.Shape{}, x.Type.Shape[1:]...), append(w.Type.Shape[:4:4], y.Type.Shape[2:]...)...)
	known, ok := extents.Ints()
	if !ok {
		c.Fail("an image of shape %s: give --dim", x.Type.Shape)
		return nil
	}
	channels, sizes, out := known[0], known[1:3], known[7:]
	kernel, filters := known[5:7], known[3]
	n, groups, sets := x.Type.Shape[0], c.Node.Int("group", 1), c.Node.Int("offset_group", 1)
	taken, places := kernel[0]*kernel[1], out[0]*out[1]
	if !c.table(kernel[0], kernel[1], out[0], out[1]) {
		return nil
	}
	rows, all := n.Mul(onnx.Static(sets)), onnx.Static(taken*places)

	s := sampler{c: c, padding: "zeros", sizes: slices.Clone(sizes)}
	moved := c.ReshapeDims(c.In(2), onnx.Shape{rows, onnx.Static(taken), onnx.Static(2), onnx.Static(places)})
	taps := make([][]tap, 2)
	for d := range taps {
		at := int64(d)
		offset := c.ReshapeDims(c.sliceOf(moved, 2, at, at+1), onnx.Shape{rows, onnx.Static(1), all})
		taps[d] = s.linear(c.Plus(offset, c.Const(onnx.FloatTensor(x.Type.DType, c.kernelPlaces(d, kernel, out), 1, 1, taken*places))), float64(sizes[d]))
	}
	shape := onnx.Shape{rows, onnx.Static(channels / sets), all}
	image := c.ReshapeDims(x, onnx.Shape{rows, onnx.Static(channels / sets), onnx.Static(sizes[0] * sizes[1])})
	full := c.e.shapeValue(shape)
	if full == nil {
		c.Fail("an image of shape %s: give --dim", x.Type.Shape)
		return nil
	}
	columns := s.sum(image, full, taps, nil, nil)
	if mask := c.In(4); mask != nil {
		columns = c.Do("Mul", columns, c.ReshapeDims(mask, onnx.Shape{rows, onnx.Static(1), all}))
	}
	columns = c.ReshapeDims(columns, onnx.Shape{n, onnx.Static(groups), onnx.Static(channels / groups * taken), onnx.Static(places)})
	weights := c.ReshapeTo(w, groups, filters/groups, channels/groups*taken)
	v := c.ReshapeDims(c.Op("MatMul", build.In(weights, columns)), onnx.Shape{n, onnx.Static(filters), onnx.Static(out[0]), onnx.Static(out[1])})
	if bias := c.In(3); bias != nil {
		v = c.Plus(v, c.channelShape(bias, v))
	}
	return v
}

// kernelPlaces are where the places of the kernel lie without offsets, along an axis.
func (c *Context) kernelPlaces(axis int, kernel, out []int64) []float64 {
	at := func(name string, i int, otherwise int64) int64 {
		if list := c.Node.Ints(name); len(list) > i {
			return list[i]
		}
		return otherwise
	}
	stride, pad, dilation := at("strides", axis, 1), at("pads", axis, 0), at("dilations", axis, 1)
	var list []float64
	for k := range kernel[0] * kernel[1] {
		for p := range out[0] * out[1] {
			place, tap := p/out[1], k/kernel[1]
			if axis == 1 {
				place, tap = p%out[1], k%kernel[1]
			}
			list = append(list, float64(place*stride-pad+tap*dilation))
		}
	}
	return list
}
