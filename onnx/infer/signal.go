package infer

// Signals, quantization, and operators whose extents depend on data.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// windowFunction: HannWindow and its like, as many elements as input 0 says.
func windowFunction(c *ctx) error {
	d, err := c.dtypeAttr("output_datatype", onnx.Float32)
	if err != nil {
		return err
	}
	c.set(0, d, onnx.Shape{c.scalar(0)})
	return nil
}

// dft: [..., 1 or 2]; the axis may be given a length, and onesided keeps half
// of it. Opset 20 has the axis as an input.
func dft(c *ctx, s onnx.Shape) error {
	d := c.dtype(0)
	if len(s) < 2 {
		return fmt.Errorf("input of rank %d", len(s))
	}
	raw := onnx.Static(c.n.Int("axis", 1))
	if c.opset >= 20 {
		raw = onnx.Static(-2)
		if c.has(2) {
			raw = c.scalar(2)
		}
	}
	out := append(onnx.Shape{}, s...)
	inverse, half := c.n.Int("inverse", 0) != 0, c.n.Int("onesided", 0) != 0
	out[len(s)-1] = onnx.Static(2)
	if inverse && half {
		out[len(s)-1] = onnx.Static(1)
	}
	a, ok := raw.Int()
	if !ok {
		c.set(0, d, append(unknowns(len(s)-1), out[len(s)-1]))
		return nil
	}
	axis, err := normAxis(a, len(s))
	if err != nil {
		return err
	}
	length := s[axis]
	if c.has(1) {
		length = c.scalar(1)
	}
	switch {
	case half && inverse && !c.has(1):
		length = length.Sub(onnx.Static(1)).Mul(onnx.Static(2))
	case half && !inverse:
		length = length.Div(onnx.Static(2)).Add(onnx.Static(1))
	}
	out[axis] = length
	c.set(0, d, out)
	return nil
}

// stft: signal [batch, length, 1 or 2] → [batch, frames, bins, 2].
func stft(c *ctx) error {
	s, ok := c.shape(0)
	if !ok || len(s) < 2 {
		c.set(0, c.dtype(0), append(unknowns(3), onnx.Static(2)))
		return nil
	}
	frame := onnx.Dim{}
	if c.has(3) {
		frame = c.scalar(3)
	} else if w, ok := c.shape(2); ok && len(w) == 1 {
		frame = w[0]
	}
	bins, frames := frame, onnx.Dim{}
	if c.n.Int("onesided", 1) != 0 {
		bins = frame.Div(onnx.Static(2)).Add(onnx.Static(1))
	}
	if step, ok := c.scalar(1).Int(); ok && step > 0 {
		frames = s[1].Sub(frame).Div(onnx.Static(step)).Add(onnx.Static(1))
	}
	c.set(0, c.dtype(0), onnx.Shape{s[0], frames, bins, onnx.Static(2)})
	return nil
}

// melWeights: [dft_length/2+1, mel bins].
func melWeights(c *ctx) error {
	d, err := c.dtypeAttr("output_datatype", onnx.Float32)
	if err != nil {
		return err
	}
	c.set(0, d, onnx.Shape{c.scalar(1).Div(onnx.Static(2)).Add(onnx.Static(1)), c.scalar(0)})
	return nil
}

// det: the last two dimensions go.
func det(c *ctx, s onnx.Shape) error {
	if len(s) < 2 {
		return fmt.Errorf("input of rank %d", len(s))
	}
	if _, err := unify(s[len(s)-1], s[len(s)-2]); err != nil {
		return err
	}
	c.set(0, c.dtype(0), s[:len(s)-2])
	return nil
}

// quantize: element type of the zero point, else output_dtype, else uint8.
func quantize(c *ctx) error {
	d := onnx.Uint8
	if c.has(2) {
		d = c.dtype(2)
	} else if c.n.Int("output_dtype", 0) != 0 {
		var err error
		if d, err = c.dtypeAttr("output_dtype", d); err != nil {
			return err
		}
	}
	c.likeAs(0, 0, d)
	return nil
}

// dequantize: element type of the scale, or output_dtype.
func dequantize(c *ctx) error {
	d := c.dtype(1)
	if c.n.Int("output_dtype", 0) != 0 {
		var err error
		if d, err = c.dtypeAttr("output_dtype", d); err != nil {
			return err
		}
	}
	c.likeAs(0, 0, d)
	return nil
}

// dynamicQuantize: uint8 like X, a float scale and a uint8 zero point.
func dynamicQuantize(c *ctx) error {
	c.likeAs(0, 0, onnx.Uint8)
	c.set(1, onnx.Float32, nil)
	c.set(2, onnx.Uint8, nil)
	return nil
}

// unique: the elements or slices that differ, and int64 indices.
func unique(c *ctx) error {
	if err := compress(c); err != nil {
		return err
	}
	c.set(1, onnx.Int64, unknowns(1))
	c.set(2, onnx.Int64, unknowns(1))
	c.set(3, onnx.Int64, unknowns(1))
	if s, ok := c.shape(0); ok {
		inverse := s.Elements()
		if c.n.Has("axis") {
			axis, err := normAxis(c.n.Int("axis", 0), len(s))
			if err != nil {
				return err
			}
			inverse = s[axis]
		}
		c.set(2, onnx.Int64, onnx.Shape{inverse})
	}
	return nil
}

// compress: an unknown extent along the axis, or flat where no axis is given.
func compress(c *ctx) error {
	s, ok := c.shape(0)
	switch {
	case !c.n.Has("axis"):
		c.set(0, c.dtype(0), unknowns(1))
	case !ok:
		c.setDType(0, c.dtype(0))
	default:
		axis, err := normAxis(c.n.Int("axis", 0), len(s))
		if err != nil {
			return err
		}
		c.set(0, c.dtype(0), splice(s, axis, axis+1, onnx.Dim{}))
	}
	return nil
}

// nonMaxSuppression: int64 [selected, 3].
func nonMaxSuppression(c *ctx) error {
	c.set(0, onnx.Int64, onnx.Shape{{}, onnx.Static(3)})
	return nil
}

// multinomial: X [batch, classes] → [batch, sample_size].
func multinomial(c *ctx) error {
	s, ok, err := c.need(0, 2)
	if err != nil {
		return err
	}
	d, err := c.dtypeAttr("dtype", onnx.Int32)
	if err != nil {
		return err
	}
	if !ok {
		s = unknowns(2)
	}
	c.set(0, d, onnx.Shape{s[0], onnx.Static(c.n.Int("sample_size", 1))})
	return nil
}
