package infer

// Operators that make indices and positions.

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// rangeOf: [start, limit) by delta.
func rangeOf(c *ctx) error {
	d, err := c.sameDType(0, 1, 2)
	if err != nil {
		return err
	}
	n, err := c.rangeLength()
	if err != nil {
		return err
	}
	c.set(0, d, onnx.Shape{n})
	return nil
}

func (c *ctx) rangeLength() (onnx.Dim, error) {
	var e [3]elem
	for i := range e {
		var ok bool
		if e[i], ok = c.element(i); !ok {
			return onnx.Dim{}, nil
		}
	}
	start, ok1 := e[0].integral()
	limit, ok2 := e[1].integral()
	delta, ok3 := e[2].integral()
	if step, ok := delta.Int(); ok1 && ok2 && ok3 && ok {
		switch {
		case step == 0 || step == math.MinInt64:
			return onnx.Dim{}, fmt.Errorf("delta is %d", step)
		case step < 0:
			return atLeastZero(ceilDiv(start.Sub(limit), -step)), nil
		}
		return atLeastZero(ceilDiv(limit.Sub(start), step)), nil
	}
	a, ok1 := e[0].number()
	b, ok2 := e[1].number()
	by, ok3 := e[2].number()
	n := math.Ceil((b - a) / by)
	if !ok1 || !ok2 || !ok3 || math.IsNaN(n) || n > 1<<62 {
		return onnx.Dim{}, nil
	}
	return onnx.Static(int64(max(n, 0))), nil
}

// oneHot: a dimension of "depth" at the axis.
func oneHot(c *ctx) error {
	s, ok := c.shape(0)
	if !ok {
		c.setDType(0, c.dtype(2))
		return nil
	}
	axis, err := normAxis(c.n.Int("axis", -1), len(s)+1)
	if err != nil {
		return err
	}
	number, _ := c.element(1)
	depth, _ := number.integral()
	c.set(0, c.dtype(2), splice(s, axis, axis, depth))
	return nil
}

// nonZero: int64 [rank, n], n from the data.
func nonZero(c *ctx) error {
	s, ok := c.shape(0)
	if !ok {
		c.set(0, onnx.Int64, unknowns(2))
		return nil
	}
	n := onnx.Dim{}
	if places, ok := c.nonZero(); ok && len(s) > 0 {
		n = onnx.Static(int64(len(places)))
	}
	c.set(0, onnx.Int64, onnx.Shape{onnx.Static(int64(len(s))), n})
	return nil
}

// eyeLike: the shape of input 0, element type "dtype" or that of input 0.
func eyeLike(c *ctx) error {
	if _, _, err := c.need(0, 2); err != nil {
		return err
	}
	return randomLike(c)
}
