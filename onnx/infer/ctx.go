package infer

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// maxRank bounds the rank that a rule makes from data; a bomb of a shape input
// is unranked instead. ONNX Runtime's own kernels stop far below.
const maxRank = 64

// A ctx is one node while its rule runs.
type ctx struct {
	r     *Result
	n     *onnx.Node
	opset int64 // of the node's domain
	types []onnx.Type
	buf   [4]onnx.Type
}

// ranked is a rule that reads the axes of input 0, s; where their number is not
// known, output 0 has its element type alone.
func ranked(rule func(c *ctx, s onnx.Shape) error) func(*ctx) error {
	return func(c *ctx) error {
		s, ok := c.shape(0)
		if !ok {
			c.setDType(0, c.dtype(0))
			return nil
		}
		return rule(c, s)
	}
}

// in is the type of input i; the zero Type where it is left out.
func (c *ctx) in(i int) onnx.Type {
	if v := c.n.In(i); v != nil {
		return v.Type
	}
	return onnx.Type{}
}

// has reports that input i is given.
func (c *ctx) has(i int) bool { return c.n.In(i) != nil }

func (c *ctx) dtype(i int) onnx.DType { return c.in(i).DType }

// shape is the shape of input i, and whether at least its rank is known.
func (c *ctx) shape(i int) (onnx.Shape, bool) {
	t := c.in(i)
	return t.Shape, t.Ranked
}

// need is shape with a check of the rank; ok is false where it is unknown.
func (c *ctx) need(i, rank int) (s onnx.Shape, ok bool, err error) {
	s, ok = c.shape(i)
	if ok && len(s) != rank {
		return nil, false, fmt.Errorf("input %d has rank %d, want %d", i, len(s), rank)
	}
	return s, ok, nil
}

// infer types the outputs by a row, whose inputs must be there.
func (c *ctx) infer(r *row) error {
	if err := given(c.n, r.inputs); err != nil {
		return err
	}
	return r.infer(c)
}

// given checks that the node has the inputs that its operator must have, as in row.inputs.
func given(n *onnx.Node, count int) error {
	if count == all {
		count = max(1, len(n.Inputs))
	}
	for i := range count {
		if n.In(i) == nil {
			return fmt.Errorf("input %d is missing", i)
		}
	}
	return nil
}

// set types output i as a tensor of known rank.
func (c *ctx) set(i int, d onnx.DType, s onnx.Shape) {
	if i < len(c.types) {
		c.types[i] = onnx.TensorOf(d, s)
	}
}

// setDType types output i as a tensor of unknown rank.
func (c *ctx) setDType(i int, d onnx.DType) {
	if i < len(c.types) {
		c.types[i] = onnx.Type{DType: d}
	}
}

// like gives output o the type of input i.
func (c *ctx) like(o, i int) {
	if o < len(c.types) {
		c.types[o] = c.in(i)
	}
}

// likeAs gives output o the shape of input i with another element type.
func (c *ctx) likeAs(o, i int, d onnx.DType) {
	if o < len(c.types) {
		t := c.in(i)
		t.DType, t.Other = d, nil
		c.types[o] = t
	}
}

// sameDType checks that the given inputs, all where none is given, have one
// element type and returns it.
func (c *ctx) sameDType(inputs ...int) (onnx.DType, error) {
	d := onnx.Undefined
	for i := range c.n.Inputs {
		t := c.in(i)
		if t.DType == onnx.Undefined || len(inputs) > 0 && !slices.Contains(inputs, i) {
			continue
		}
		if d != onnx.Undefined && d != t.DType {
			if d.IsHalf() || t.DType.IsHalf() {
				return d, fmt.Errorf("inputs have types %s and %s, and ONNX Runtime wants one type: exporters mix types in some models in half, fewer with dynamo=True; export in float32, and compute in half with --precision", d, t.DType)
			}
			return d, fmt.Errorf("inputs have types %s and %s, want one type", d, t.DType)
		}
		d = t.DType
	}
	return d, nil
}

// dtypeAttr reads an attribute that holds an element type.
func (c *ctx) dtypeAttr(name string, def onnx.DType) (onnx.DType, error) {
	raw := c.n.Int(name, int64(def))
	d := onnx.DType(raw)
	if raw < 1 || raw > 1<<20 || d.Bits() == 0 && d != onnx.String {
		return d, fmt.Errorf("%s: invalid element type %d", name, raw)
	}
	return d, nil
}

// normAxis maps an axis of [-rank, rank) to [0, rank).
func normAxis(axis int64, rank int) (int, error) {
	if k, ok := onnx.Axis(axis, rank); ok {
		return k, nil
	}
	return 0, fmt.Errorf("axis %d is outside rank %d", axis, rank)
}

// axes reads a list of axes from input i where that is given, else from the
// attribute "axes". given is false where there is neither, known is false
// where the input's elements are not known.
func (c *ctx) axes(i, rank int) (axes []int, given, known bool, err error) {
	var raw []int64
	switch {
	case c.has(i):
		if raw, known = c.numbers(i); !known {
			return nil, true, false, nil
		}
	case c.n.Has("axes"):
		raw = c.n.Ints("axes")
	default:
		return nil, false, true, nil
	}
	seen := make([]bool, rank)
	for _, a := range raw {
		k, err := normAxis(a, rank)
		if err != nil {
			return nil, true, true, err
		}
		if seen[k] {
			return nil, true, true, fmt.Errorf("axis %d is given twice", a)
		}
		seen[k] = true
		axes = append(axes, k)
	}
	return axes, true, true, nil
}

// axesOrAll is axes where one or more are given, else all of them in order.
func (c *ctx) axesOrAll(i, rank int) (axes []int, known bool, err error) {
	axes, given, known, err := c.axes(i, rank)
	if given || err != nil {
		return axes, known, err
	}
	axes = make([]int, rank)
	for k := range axes {
		axes[k] = k
	}
	return axes, true, nil
}

// elems are the elements of an integer input as far as they are known; each
// may be unknown.
func (c *ctx) elems(i int) ([]onnx.Dim, bool) {
	return c.r.Ints(c.n.In(i))
}

// numbers are the elements of an integer input where all are known numbers.
func (c *ctx) numbers(i int) ([]int64, bool) {
	return c.r.Int64s(c.n.In(i))
}

// scalar is the element of an integer input of one element; unknown where it
// is not known.
func (c *ctx) scalar(i int) onnx.Dim {
	if dims, ok := c.elems(i); ok && len(dims) == 1 {
		return dims[0]
	}
	return onnx.Dim{}
}

// length is the number of elements of a rank-1 input, where it is a number
// that can be a rank.
func (c *ctx) length(i int) (int, bool) {
	s, ok := c.shape(i)
	if !ok || len(s) != 1 {
		return 0, false
	}
	n, ok := s[0].Int()
	return int(n), ok && n <= maxRank
}
