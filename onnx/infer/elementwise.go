package infer

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// same: output 0 has the type of input 0.
func same(c *ctx) error {
	c.like(0, 0)
	return nil
}

// sameFloat is same for operators that are defined for floats only.
func sameFloat(c *ctx) error {
	if d := c.dtype(0); d != onnx.Undefined && !d.IsFloat() {
		return fmt.Errorf("the input is %s and ONNX takes floats, so ONNX Runtime refuses the file; TorchScript's exporter casts to whole numbers where torch.outer is given some: export with dynamo=True", d)
	}
	return same(c)
}

// sameAs: output 0 has the shape of input 0 and another element type.
func sameAs(d onnx.DType) func(*ctx) error {
	return func(c *ctx) error {
		c.likeAs(0, 0, d)
		return nil
	}
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

// elementwise broadcasts two inputs of one element type; result Undefined means
// that type.
func elementwise(result onnx.DType) func(*ctx) error {
	return func(c *ctx) error {
		d, err := c.sameDType(0, 1)
		if err != nil {
			return err
		}
		if result != onnx.Undefined {
			d = result
		}
		return c.setBroadcast(d, 2)
	}
}

// setBroadcast types output 0 as the broadcast of the first n inputs.
func (c *ctx) setBroadcast(d onnx.DType, n int) error {
	var out onnx.Shape
	for i := range n {
		s, ok := c.shape(i)
		if !ok {
			c.setDType(0, d)
			return nil
		}
		if i == 0 {
			out = s
			continue
		}
		var err error
		if out, err = broadcast(out, s); err != nil {
			return err
		}
	}
	c.set(0, d, out)
	return nil
}

// logical broadcasts two bool inputs.
func logical(c *ctx) error {
	for i := range 2 {
		if d := c.dtype(i); d != onnx.Undefined && d != onnx.Bool {
			return fmt.Errorf("input %d is %s, want bool", i, d)
		}
	}
	return elementwise(onnx.Bool)(c)
}

// firstType broadcasts two inputs and keeps the element type of the first
// (Pow, BitShift).
func firstType(c *ctx) error {
	return c.setBroadcast(c.dtype(0), 2)
}

// variadic broadcasts all inputs.
func variadic(c *ctx) error {
	d, err := c.sameDType()
	if err != nil {
		return err
	}
	return c.setBroadcast(d, len(c.n.Inputs))
}

// where: output 0 = condition ? X : Y, all broadcast.
func where(c *ctx) error {
	if d := c.dtype(0); d != onnx.Undefined && d != onnx.Bool {
		return fmt.Errorf("the condition is %s, want bool", d)
	}
	d, err := c.sameDType(1, 2)
	if err != nil {
		return err
	}
	return c.setBroadcast(d, 3)
}

// cast: input 0 as element type "to".
func cast(c *ctx) error {
	d, err := c.dtypeAttr("to", onnx.Undefined)
	if err != nil {
		return err
	}
	c.likeAs(0, 0, d)
	return nil
}

// castLike: input 0 as the element type of input 1.
func castLike(c *ctx) error {
	c.likeAs(0, 0, c.dtype(1))
	return nil
}

// bitCast: the same bits as another element type of the same size.
func bitCast(c *ctx) error {
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
	c.set(0, d, onnx.StaticShape(c.n.Ints("shape")...))
	return nil
}
