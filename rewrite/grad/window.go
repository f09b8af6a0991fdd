package grad

// Convolutions and pools slide a window along each spatial axis. Backward they
// slide the same window, from the output to the input, and must land on exactly
// the input's extent:
//
//	forward   out = ⌊(in + before + after - k)/stride⌋ + 1     k = dilation*(kernel-1)+1
//	backward  in  = (out-1)*stride + k - before - after' + rest
//
// Where the division was not exact, after' shrinks or rest (output_padding) is
// what the window never reached.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A window is one spatial axis; in and out are -1 where they are not known.
type window struct {
	kernel, stride, dilation int64
	before, after            int64
	in, out                  int64
}

// reach is the extent of the dilated kernel.
func (w window) reach() int64 { return w.dilation*(w.kernel-1) + 1 }

// trim returns the padding behind the input, and the rest that no window
// reached, with which the backward window lands on the input's extent.
func (w window) trim() (after, rest int64, ok bool) {
	if w.in < 0 || w.out < 0 {
		return w.after, 0, w.stride == 1
	}
	total := (w.out-1)*w.stride + w.reach() - w.before - w.in
	return max(total, 0), max(-total, 0), true
}

// windows reads the attributes that convolutions and pools share. x is on the
// side that the kernel reads, y on the side with one element a window.
func (c *Context) windows(x, y *onnx.Value, kernel []int64) []window {
	rank := c.Rank(x) - 2
	if rank < 1 || len(kernel) != rank || c.Rank(y) != rank+2 {
		c.Fail("%d kernel extents for a value of rank %d", len(kernel), rank+2)
		return nil
	}
	n := c.Node
	strides, dilations, pads := n.Ints("strides"), n.Ints("dilations"), n.Ints("pads")
	mode := n.Str("auto_pad", "NOTSET")
	list := make([]window, rank)
	for i := range list {
		w := window{kernel: kernel[i], stride: 1, dilation: 1, in: -1, out: -1}
		if len(strides) == rank {
			w.stride = strides[i]
		}
		if len(dilations) == rank {
			w.dilation = dilations[i]
		}
		if d, ok := x.Type.Shape[i+2].Int(); ok {
			w.in = d
		}
		if d, ok := y.Type.Shape[i+2].Int(); ok {
			w.out = d
		}
		if w.kernel < 1 || w.stride < 1 || w.dilation < 1 {
			c.Fail("kernel, stride and dilation must be positive")
			return nil
		}
		switch {
		case mode == "NOTSET" && len(pads) == 2*rank:
			w.before, w.after = pads[i], pads[rank+i]
		case traits.KeepsExtents(mode):
			if w.in < 0 || w.out < 0 {
				c.Fail("auto_pad %s along axis %d, whose extent is unknown: give --dim", mode, i+2)
				return nil
			}
			total := (w.out-1)*w.stride + w.reach() - w.in
			if least := map[string]int64{"Conv": -2, "ConvTranspose": -w.stride}[n.OpType()]; total < min(least, -1) {
				c.Fail("auto_pad %s with windows of %d elements every %d of the %d along axis %d: ONNX Runtime begins such windows behind the first element; export with pads", mode, w.reach(), w.stride, w.in, i+2)
				return nil
			}
			w.before, w.after = traits.SplitPads(max(total, 0), mode)
		}
		list[i] = w
	}
	return list
}

// kernelExtents are those of a weight [m,c,k...].
func (c *Context) kernelExtents(w *onnx.Value) []int64 {
	dims, ok := w.Type.Shape.Ints()
	if !ok || len(dims) < 3 {
		c.Fail("the weight's shape %s is unknown", w.Type.Shape)
		return nil
	}
	return dims[2:]
}

// strideAttrs are the attributes of a backward window; swap exchanges stride
// and dilation, as the gradient of a weight does.
func strideAttrs(list []window, after []int64, swap bool) []onnx.Attribute {
	rank := len(list)
	strides, dilations, pads := make([]int64, rank), make([]int64, rank), make([]int64, 2*rank)
	for i, w := range list {
		strides[i], dilations[i] = w.stride, w.dilation
		if swap {
			strides[i], dilations[i] = w.dilation, w.stride
		}
		pads[i], pads[rank+i] = w.before, after[i]
	}
	return []onnx.Attribute{onnx.IntsAttr("strides", strides...), onnx.IntsAttr("dilations", dilations...), onnx.IntsAttr("pads", pads...)}
}

// spreadBack is ConvTranspose of g [n,m,out...] with weight [m,c/group,k...],
// cut to the windows' input extents. It pads both sides alike where it can, and makes up
// for the difference with output_padding: the CUDA provider has no kernel for uneven
// padding, and leaves the node to the host.
func (c *Context) spreadBack(g, weight *onnx.Value, list []window, group int64) *onnx.Value {
	after, rests, kernel := make([]int64, len(list)), make([]int64, len(list)), make([]int64, len(list))
	any := false
	for i, w := range list {
		var ok bool
		if after[i], rests[i], ok = w.trim(); !ok {
			c.Fail("stride %d along axis %d, whose extent is unknown: give --dim", w.stride, i+2)
			return nil
		}
		if rest, ok := traits.EvenRest(w.before, after[i], rests[i], w.stride); ok {
			after[i], rests[i] = w.before, rest
		}
		kernel[i] = w.kernel
		any = any || rests[i] > 0
	}
	attrs := append(strideAttrs(list, after, false), onnx.IntsAttr("kernel_shape", kernel...), onnx.IntAttr("group", group))
	if any {
		attrs = append(attrs, onnx.IntsAttr("output_padding", rests...))
	}
	return c.Op("ConvTranspose", []*onnx.Value{g, weight}, attrs...)
}

// axesFrom lists the axes of v from that one on.
func (c *Context) axesFrom(v *onnx.Value, from int) []int {
	var axes []int
	for i := from; i < c.Rank(v); i++ {
		axes = append(axes, i)
	}
	return axes
}

// allBut lists the axes of v except one.
func (c *Context) allBut(v *onnx.Value, axis int) []int {
	var axes []int
	for i := range c.Rank(v) {
		if i != axis {
			axes = append(axes, i)
		}
	}
	return axes
}

// swapLeading exchanges the first two axes; where one of them has extent one
// that is only another shape.
func (c *Context) swapLeading(v *onnx.Value) *onnx.Value {
	if v == nil {
		return nil
	}
	s := v.Type.Shape
	if s[0].Is(1) || s[1].Is(1) {
		return c.ReshapeDims(v, append(onnx.Shape{s[1], s[0]}, s[2:]...))
	}
	perm := []int{1, 0}
	for i := 2; i < len(s); i++ {
		perm = append(perm, i)
	}
	return c.Transpose(v, perm...)
}
