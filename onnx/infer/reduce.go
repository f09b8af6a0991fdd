package infer

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// reducedAxes says for each axis whether the node reduces it; nil where the
// axes input is not known.
func (c *ctx) reducedAxes(rank int) ([]bool, error) {
	axes, given, known, err := c.axes(1, rank)
	if err != nil || !known {
		return nil, err
	}
	reduced := make([]bool, rank)
	for _, a := range axes {
		reduced[a] = true
	}
	if !given || len(axes) == 0 {
		all := c.n.Int("noop_with_empty_axes", 0) != 1
		for i := range reduced {
			reduced[i] = all
		}
	}
	return reduced, nil
}

// reduce: the axes of attribute or input "axes" become 1, or go with
// keepdims=0; none given means all, unless noop_with_empty_axes.
func reduce(c *ctx, s onnx.Shape) error {
	d := c.dtype(0)
	keep := c.n.Int("keepdims", 1) == 1
	reduced, err := c.reducedAxes(len(s))
	switch {
	case err != nil:
		return err
	case reduced == nil && keep:
		c.set(0, d, unknowns(len(s)))
		return nil
	case reduced == nil:
		if n, ok := c.length(1); ok && n > 0 && n <= len(s) {
			c.set(0, d, unknowns(len(s)-n))
		} else {
			c.setDType(0, d)
		}
		return nil
	}
	out := make(onnx.Shape, 0, len(s))
	for i, k := range s {
		switch {
		case !reduced[i]:
			out = append(out, k)
		case keep:
			out = append(out, onnx.Static(1))
		}
	}
	c.set(0, d, out)
	return nil
}

// argReduce: ArgMax and ArgMin, int64 indices along one axis.
func argReduce(c *ctx) error {
	s, ok := c.shape(0)
	if !ok {
		c.setDType(0, onnx.Int64)
		return nil
	}
	axis, err := normAxis(c.n.Int("axis", 0), len(s))
	if err != nil {
		return err
	}
	if c.n.Int("keepdims", 1) == 1 {
		c.set(0, onnx.Int64, splice(s, axis, axis+1, onnx.Static(1)))
	} else {
		c.set(0, onnx.Int64, splice(s, axis, axis+1))
	}
	return nil
}

// topK: values and int64 indices, k along the axis.
func topK(c *ctx) error {
	s, ok := c.shape(0)
	if !ok {
		c.setDType(0, c.dtype(0))
		c.setDType(1, onnx.Int64)
		return nil
	}
	axis, err := normAxis(c.n.Int("axis", -1), len(s))
	if err != nil {
		return err
	}
	k := c.scalar(1)
	kn, isNum := k.Int()
	if n, ok := s[axis].Int(); isNum && (kn < 0 || ok && kn > n) {
		return fmt.Errorf("k is %d for an axis of %s", kn, s[axis])
	}
	out := splice(s, axis, axis+1, k)
	c.set(0, c.dtype(0), out)
	c.set(1, onnx.Int64, out)
	return nil
}
