package infer

// Convolutions and pools: one window over the spatial dimensions.

import (
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A window is the attributes that convolutions and pools share, one entry per
// spatial dimension.
type window struct {
	kernel, strides, dilations []int64
	pads                       []int64 // begins, then ends
	auto                       string
	ceil                       bool
}

// window reads the attributes for k spatial dimensions; kernel is what the
// weights say, and may be overridden by kernel_shape.
func (c *ctx) window(k int, kernel []int64) (window, error) {
	w := window{kernel: kernel, auto: c.n.Str("auto_pad", "NOTSET"), ceil: c.n.Int("ceil_mode", 0) != 0}
	if c.n.Has("kernel_shape") {
		w.kernel = c.n.Ints("kernel_shape")
	}
	w.strides, w.dilations, w.pads = c.n.Ints("strides"), c.n.Ints("dilations"), c.n.Ints("pads")
	if len(w.strides) == 0 {
		w.strides = filled(k, 1)
	}
	if len(w.dilations) == 0 {
		w.dilations = filled(k, 1)
	}
	if len(w.pads) == 0 || w.auto != "NOTSET" && w.auto != "" {
		w.pads = filled(2*k, 0)
	}
	if len(w.strides) != k || len(w.dilations) != k || len(w.pads) != 2*k || w.kernel != nil && len(w.kernel) != k {
		return w, fmt.Errorf("kernel_shape %v, strides %v, dilations %v, pads %v for %d spatial dimensions", w.kernel, w.strides, w.dilations, w.pads, k)
	}
	for i := range k {
		if w.strides[i] < 1 || w.dilations[i] < 1 || w.kernel != nil && w.kernel[i] < 1 {
			return w, fmt.Errorf("kernel_shape %v, strides %v and dilations %v must be positive", w.kernel, w.strides, w.dilations)
		}
		for _, v := range []int64{w.strides[i], w.dilations[i], w.pads[i], w.pads[i+k]} {
			if v > math.MaxInt32 || v < math.MinInt32 {
				return w, fmt.Errorf("a stride, dilation or pad of %d", v)
			}
		}
		if w.kernel != nil && w.kernel[i] > math.MaxInt32 {
			return w, fmt.Errorf("a kernel extent of %d", w.kernel[i])
		}
	}
	return w, nil
}

func filled(n int, v int64) []int64 {
	return slices.Repeat([]int64{v}, n)
}

// extent is the window's number of places along spatial dimension i of size d.
func (w window) extent(i int, d onnx.Dim) (onnx.Dim, error) {
	k := len(w.strides)
	stride := w.strides[i]
	if traits.KeepsExtents(w.auto) {
		return ceilDiv(d, stride), nil
	}
	if w.kernel == nil {
		return onnx.Dim{}, nil
	}
	reach := (w.kernel[i]-1)*w.dilations[i] + 1
	room := d.Add(onnx.Static(w.pads[i] + w.pads[i+k] - reach))
	if n, ok := room.Int(); ok && n < 0 {
		if w.ceil && n > -stride { // one window, cut off at the end
			return onnx.Static(1), nil
		}
		return room, fmt.Errorf("a window of %d over %s with pads %d and %d", reach, d, w.pads[i], w.pads[i+k])
	}
	if !w.ceil {
		return room.Div(onnx.Static(stride)).Add(onnx.Static(1)), nil
	}
	out := ceilDiv(room, stride).Add(onnx.Static(1))
	// The last window must start inside the input or its leading pad.
	n, ok1 := out.Int()
	size, ok2 := d.Int()
	if ok1 && ok2 && (n-1)*stride >= size+w.pads[i] {
		out = onnx.Static(n - 1)
	}
	return out, nil
}

// spatial is the output of the window over s, whose first two dimensions are
// replaced by lead.
func (w window) spatial(s onnx.Shape, lead ...onnx.Dim) (onnx.Shape, error) {
	out := append(onnx.Shape{}, lead...)
	for i, d := range s[2:] {
		e, err := w.extent(i, d)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// conv: X [n, c, ...], W [m, c/group, kernel...] → [n, m, ...].
func conv(c *ctx) error {
	d, err := c.sameDType(0, 1)
	if err != nil {
		return err
	}
	return c.convolve(d, 0, 1)
}

// deformConv: conv with offsets, of channels in groups of their own.
func deformConv(c *ctx) error {
	if group, sets := c.n.Int("group", 1), c.n.Int("offset_group", 1); group < 1 || sets < 1 {
		return fmt.Errorf("group %d, offset_group %d", group, sets)
	}
	return conv(c)
}

// convInteger: int32 from 8-bit inputs.
func convInteger(c *ctx) error {
	return c.convolve(onnx.Int32, 0, 1)
}

// qlinearConv: inputs 0 and 3, element type of the output's zero point.
func qlinearConv(c *ctx) error {
	return c.convolve(c.dtype(7), 0, 3)
}

func (c *ctx) convolve(d onnx.DType, xi, wi int) error {
	x, f, w, err := c.filtered(xi, wi)
	if err != nil || f == nil {
		c.setDType(0, d)
		return err
	}
	if _, err := unify(x[1], f[1].Mul(onnx.Static(c.n.Int("group", 1)))); err != nil {
		return fmt.Errorf("%s channels, weights %s, group %d: %w", x[1], f, c.n.Int("group", 1), err)
	}
	out, err := w.spatial(x, x[0], f[0])
	if err != nil {
		return err
	}
	c.set(0, d, out)
	return nil
}

// filtered is what a convolution reads: the shapes of its input and of its filters, nil where
// not both ranks are known, and the window.
func (c *ctx) filtered(xi, wi int) (x, f onnx.Shape, w window, err error) {
	x, ok1 := c.shape(xi)
	f, ok2 := c.shape(wi)
	if ok1 && len(x) < 3 || ok1 && ok2 && len(x) != len(f) {
		return nil, nil, w, fmt.Errorf("input of rank %d, weights of rank %d", len(x), len(f))
	}
	if !ok1 || !ok2 {
		return nil, nil, w, nil
	}
	kernel, _ := f[2:].Ints()
	w, err = c.window(len(x)-2, kernel)
	return x, f, w, err
}

// convTranspose: X [n, c, ...], W [c, m/group, kernel...] → [n, m, ...].
func convTranspose(c *ctx) error {
	d, err := c.sameDType(0, 1)
	if err != nil {
		return err
	}
	x, f, w, err := c.filtered(0, 1)
	if err != nil || f == nil {
		c.setDType(0, d)
		return err
	}
	k := len(x) - 2
	extra, wanted := c.n.Ints("output_padding"), c.n.Ints("output_shape")
	if len(extra) == 0 {
		extra = filled(k, 0)
	}
	if len(extra) != k || len(wanted) != 0 && len(wanted) != k && len(wanted) != k+2 {
		return fmt.Errorf("output_padding %v, output_shape %v for %d spatial dimensions", extra, wanted, k)
	}
	out := onnx.Shape{x[0], f[1].Mul(onnx.Static(c.n.Int("group", 1)))}
	for i, e := range x[2:] {
		out = append(out, w.grown(i, e, extra[i]))
		if len(wanted) > 0 {
			out[2+i] = onnx.Static(wanted[len(wanted)-k+i])
		}
	}
	c.set(0, d, out)
	return nil
}

// grown is what a transposed window makes of spatial dimension i.
func (w window) grown(i int, d onnx.Dim, extra int64) onnx.Dim {
	if w.kernel == nil {
		return onnx.Dim{}
	}
	reach := (w.kernel[i]-1)*w.dilations[i] + 1
	if traits.KeepsExtents(w.auto) {
		// ONNX Runtime never pads the output: behind a kernel shorter than the stride it ends.
		return d.Mul(onnx.Static(w.strides[i])).Add(onnx.Static(min(extra+reach-w.strides[i], 0)))
	}
	k := len(w.strides)
	grid := d.Sub(onnx.Static(1)).Mul(onnx.Static(w.strides[i]))
	return grid.Add(onnx.Static(extra)).Add(onnx.Static(reach - w.pads[i] - w.pads[i+k]))
}

// pool: MaxPool (with int64 indices), AveragePool, LpPool.
func pool(c *ctx) error {
	d := c.dtype(0)
	s, ok := c.shape(0)
	if !ok {
		c.setDType(0, d)
		c.setDType(1, onnx.Int64)
		return nil
	}
	w, err := c.pooling(s)
	if err != nil {
		return err
	}
	out, err := w.spatial(s, s[0], s[1])
	if err != nil {
		return err
	}
	c.set(0, d, out)
	c.set(1, onnx.Int64, out)
	return nil
}

// pooling is the window of a pool over an input of shape s.
func (c *ctx) pooling(s onnx.Shape) (window, error) {
	if len(s) < 3 || !c.n.Has("kernel_shape") {
		return window{}, fmt.Errorf("input of rank %d, kernel_shape %v", len(s), c.n.Ints("kernel_shape"))
	}
	return c.window(len(s)-2, nil)
}

// globalPool: every spatial extent becomes 1.
func globalPool(c *ctx, s onnx.Shape) error {
	if len(s) < 2 {
		return fmt.Errorf("input of rank %d", len(s))
	}
	out := append(onnx.Shape{}, s...)
	for i := 2; i < len(out); i++ {
		out[i] = onnx.Static(1)
	}
	c.set(0, c.dtype(0), out)
	return nil
}

// maxUnpool: undoes a pool's shape, or takes the shape from input 2.
func maxUnpool(c *ctx) error {
	if c.has(2) {
		return c.setFromInput(c.dtype(0), 2)
	}
	s, ok := c.shape(0)
	if !ok {
		c.setDType(0, c.dtype(0))
		return nil
	}
	w, err := c.pooling(s)
	if err != nil {
		return err
	}
	out := append(onnx.Shape{}, s[:2]...)
	for i, e := range s[2:] {
		out = append(out, w.grown(i, e, 0))
	}
	c.set(0, c.dtype(0), out)
	return nil
}

// depthToSpace: channels over block², space times block.
func depthToSpace(c *ctx) error { return c.blocks(false) }

// spaceToDepth is the inverse of depthToSpace.
func spaceToDepth(c *ctx) error { return c.blocks(true) }

func (c *ctx) blocks(gather bool) error {
	s, ok, err := c.need(0, 4)
	if err != nil {
		return err
	}
	size := c.n.Int("blocksize", 0)
	if size < 1 || size > math.MaxInt32 {
		return fmt.Errorf("blocksize is %d", size)
	}
	if !ok {
		c.set(0, c.dtype(0), unknowns(4))
		return nil
	}
	b := onnx.Static(size)
	if gather {
		c.set(0, c.dtype(0), onnx.Shape{s[0], s[1].Mul(b).Mul(b), s[2].Div(b), s[3].Div(b)})
	} else {
		c.set(0, c.dtype(0), onnx.Shape{s[0], s[1].Div(b.Mul(b)), s[2].Mul(b), s[3].Mul(b)})
	}
	return nil
}
