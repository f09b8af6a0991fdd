package infer

// Constants, and operators that ask for or are given a shape.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// constant: the attribute's own type.
func constant(c *ctx) error {
	n := c.n
	if t := n.ConstantTensor(); t != nil {
		c.set(0, t.DType(), t.Type().Shape)
		_, err := t.Elements()
		return err
	}
	switch {
	case n.Has("value"):
		return fmt.Errorf("attribute value holds no tensor")
	case n.Has("value_string"):
		c.set(0, onnx.String, nil)
	case n.Has("value_strings"):
		c.set(0, onnx.String, onnx.StaticShape(int64(len(n.Attr("value_strings").GetStrings()))))
	case n.Has("sparse_value"):
		return fmt.Errorf("sparse constants are not supported")
	default:
		return fmt.Errorf("no value attribute")
	}
	return nil
}

// constantOfShape: input 0 holds the shape, "value" the element.
func constantOfShape(c *ctx) error {
	d := onnx.Float32
	if t := c.n.TensorAttr("value"); t != nil {
		d = t.DType()
	}
	return c.setFromInput(d, 0)
}

// setFromInput types the first output with the shape that input i holds as elements.
func (c *ctx) setFromInput(d onnx.DType, i int) error {
	dims, ok := c.elems(i)
	if !ok {
		if n, ok := c.length(i); ok {
			c.set(0, d, unknowns(n))
		} else {
			c.setDType(0, d)
		}
		return nil
	}
	c.set(0, d, dims)
	return nil
}

// shapeWindow is the range of dimensions that a Shape node returns.
func shapeWindow(n *onnx.Node, rank int) (from, to int) {
	clamp := func(v int64) int {
		if v < 0 {
			v += int64(rank)
		}
		return int(min(max(v, 0), int64(rank)))
	}
	from, to = clamp(n.Int("start", 0)), rank
	if n.Has("end") {
		to = clamp(n.Int("end", 0))
	}
	return from, max(from, to)
}

// shape: int64 [rank], or the window that start and end give.
func shape(c *ctx) error {
	s, ok := c.shape(0)
	if !ok {
		c.set(0, onnx.Int64, unknowns(1))
		return nil
	}
	from, to := shapeWindow(c.n, len(s))
	c.set(0, onnx.Int64, onnx.StaticShape(int64(to-from)))
	return nil
}

// size: int64 scalar.
func size(c *ctx) error {
	c.set(0, onnx.Int64, nil)
	return nil
}
