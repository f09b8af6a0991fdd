package infer

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// same: output 0 has the type of input 0.
func same(c *ctx) error {
	if err := c.inputs(1); err != nil {
		return err
	}
	c.like(0, 0)
	return nil
}

// sameBool: output 0 is a bool tensor of the shape of input 0.
func sameBool(c *ctx) error {
	if err := c.inputs(1); err != nil {
		return err
	}
	c.likeAs(0, 0, onnx.Bool)
	return nil
}

// axisSame is same for operators with one axis attribute, which is checked.
func axisSame(def int64) func(*ctx) error {
	return func(c *ctx) error {
		if s, ok := c.shape(0); ok && len(s) > 0 {
			if _, err := normAxis(c.n.Int("axis", def), len(s)); err != nil {
				return err
			}
		}
		return same(c)
	}
}

// broadcastInputs broadcasts the shapes of inputs [from, to); ok is false where
// one of them has no known rank.
func (c *ctx) broadcastInputs(from, to int) (s onnx.Shape, ok bool, err error) {
	for i := from; i < to; i++ {
		t, known := c.shape(i)
		if !known {
			return nil, false, nil
		}
		if i == from {
			s = t
			continue
		}
		if s, err = broadcast(s, t); err != nil {
			return nil, false, err
		}
	}
	return s, true, nil
}

// elementwise broadcasts n inputs of one element type; result Undefined means
// that type.
func elementwise(n int, result onnx.DType) func(*ctx) error {
	return func(c *ctx) error {
		if err := c.inputs(n); err != nil {
			return err
		}
		inputs := []int{0, 1, 2}[:n]
		d, err := c.sameDType(inputs...)
		if err != nil {
			return err
		}
		if result != onnx.Undefined {
			d = result
		}
		return c.setBroadcast(d, 0, n)
	}
}

// setBroadcast types output 0 as the broadcast of inputs [from, to).
func (c *ctx) setBroadcast(d onnx.DType, from, to int) error {
	s, ok, err := c.broadcastInputs(from, to)
	if err != nil {
		return err
	}
	if ok {
		c.set(0, d, s)
	} else {
		c.setDType(0, d)
	}
	return nil
}

// logical broadcasts two bool inputs.
func logical(c *ctx) error {
	for i := range 2 {
		if d := c.dtype(i); d != onnx.Undefined && d != onnx.Bool {
			return fmt.Errorf("input %d is %s, want bool", i, d)
		}
	}
	return elementwise(2, onnx.Bool)(c)
}

// firstType broadcasts two inputs and keeps the element type of the first
// (Pow, BitShift).
func firstType(c *ctx) error {
	if err := c.inputs(2); err != nil {
		return err
	}
	return c.setBroadcast(c.dtype(0), 0, 2)
}

// variadic broadcasts all inputs.
func variadic(c *ctx) error {
	if err := c.inputs(max(1, len(c.n.Inputs))); err != nil {
		return err
	}
	d := c.dtype(0)
	for i := 1; i < len(c.n.Inputs); i++ {
		if e := c.dtype(i); d == onnx.Undefined {
			d = e
		} else if e != onnx.Undefined && e != d {
			return fmt.Errorf("inputs have types %s and %s, want one type", d, e)
		}
	}
	return c.setBroadcast(d, 0, len(c.n.Inputs))
}

// where: output 0 = condition ? X : Y, all broadcast.
func where(c *ctx) error {
	if err := c.inputs(3); err != nil {
		return err
	}
	if d := c.dtype(0); d != onnx.Undefined && d != onnx.Bool {
		return fmt.Errorf("the condition is %s, want bool", d)
	}
	d, err := c.sameDType(1, 2)
	if err != nil {
		return err
	}
	return c.setBroadcast(d, 0, 3)
}

// prelu: the slope broadcasts to the shape of X.
func prelu(c *ctx) error {
	if err := c.inputs(2); err != nil {
		return err
	}
	c.like(0, 0)
	return nil
}

// cast: input 0 as element type "to".
func cast(c *ctx) error {
	if err := c.inputs(1); err != nil {
		return err
	}
	d, err := c.dtypeAttr("to", onnx.Undefined)
	if err != nil {
		return err
	}
	c.likeAs(0, 0, d)
	return nil
}

// castLike: input 0 as the element type of input 1.
func castLike(c *ctx) error {
	if err := c.inputs(2); err != nil {
		return err
	}
	c.likeAs(0, 0, c.dtype(1))
	return nil
}

// bitCast: the same bits as another element type of the same size.
func bitCast(c *ctx) error {
	if err := c.inputs(1); err != nil {
		return err
	}
	d, err := c.dtypeAttr("to", onnx.Undefined)
	if err != nil {
		return err
	}
	if from := c.dtype(0); from != onnx.Undefined && from.Bits() != d.Bits() {
		return fmt.Errorf("%s and %s differ in size", from, d)
	}
	c.likeAs(0, 0, d)
	return nil
}

// clip: min and max are scalars.
func clip(c *ctx) error {
	for i := 1; i < 3; i++ {
		if s, ok := c.shape(i); ok && len(s) > 1 {
			return fmt.Errorf("input %d has rank %d, want a scalar", i, len(s))
		}
	}
	return same(c)
}

// dropout: Y like X, and a bool mask of that shape, which before opset 10 had
// the element type of X.
func dropout(c *ctx) error {
	c.likeAs(1, 0, onnx.Bool)
	if c.n.Domain() == "" && c.opset < 10 {
		c.like(1, 0)
	}
	return same(c)
}

// randomLike: the shape of input 0, element type "dtype" or that of input 0.
func randomLike(c *ctx) error {
	if err := c.inputs(1); err != nil {
		return err
	}
	d := c.dtype(0)
	if c.n.Has("dtype") {
		var err error
		if d, err = c.dtypeAttr("dtype", d); err != nil {
			return err
		}
	}
	c.likeAs(0, 0, d)
	return nil
}

// random: attributes "shape" and "dtype".
func random(c *ctx) error {
	d, err := c.dtypeAttr("dtype", onnx.Float32)
	if err != nil {
		return err
	}
	dims := c.n.Ints("shape")
	for _, k := range dims {
		if k < 0 {
			return fmt.Errorf("shape %v is negative", dims)
		}
	}
	c.set(0, d, onnx.StaticShape(dims...))
	return nil
}
