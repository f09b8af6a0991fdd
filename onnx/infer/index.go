package infer

// Operators that take parts of tensors, put parts together, or repeat them.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// concat: extents add up along the axis, the others are equal.
func concat(c *ctx) error {
	d, err := c.sameDType()
	if err != nil {
		return err
	}
	var out onnx.Shape
	var axis int
	known := true
	for i := range c.n.Inputs {
		t := c.in(i)
		switch {
		case !t.Ranked:
			known = false
		case out == nil:
			if axis, err = normAxis(c.n.Int("axis", 0), len(t.Shape)); err != nil {
				return err
			}
			out = append(onnx.Shape{}, t.Shape...)
			if i > 0 {
				out[axis] = onnx.Dim{}
			}
		case len(t.Shape) != len(out):
			return fmt.Errorf("inputs of rank %d and %d", len(out), len(t.Shape))
		default:
			for k, e := range t.Shape {
				if k == axis {
					out[k] = out[k].Add(e)
					continue
				}
				u, err := unify(out[k], e)
				if err != nil {
					return fmt.Errorf("input %d, dimension %d: %w", i, k, err)
				}
				out[k] = u
			}
		}
	}
	if out == nil {
		c.setDType(0, d)
		return nil
	}
	if !known {
		out[axis] = onnx.Dim{}
	}
	c.set(0, d, out)
	return nil
}

// split: sizes from input or attribute "split", else even parts, the last one
// smaller where num_outputs (opset 18) does not divide.
func split(c *ctx) error {
	d := c.dtype(0)
	s, ok := c.shape(0)
	if !ok {
		for i := range c.types {
			c.setDType(i, d)
		}
		return nil
	}
	axis, err := normAxis(c.n.Int("axis", 0), len(s))
	if err != nil {
		return err
	}
	parts, err := c.splitParts(s[axis])
	if err != nil {
		return err
	}
	for i := range c.types {
		c.set(i, d, splice(s, axis, axis+1, parts[i]))
	}
	return nil
}

func (c *ctx) splitParts(whole onnx.Dim) ([]onnx.Dim, error) {
	n := len(c.types)
	var sizes []onnx.Dim
	if c.has(1) {
		dims, ok := c.elems(1)
		if !ok {
			return unknowns(n), nil
		}
		sizes = dims
	} else if c.n.Has("split") {
		sizes = onnx.StaticShape(c.n.Ints("split")...)
	}
	if sizes != nil {
		if len(sizes) != n {
			return nil, fmt.Errorf("%d sizes for %d outputs", len(sizes), n)
		}
		sum := onnx.Static(0)
		for _, k := range sizes {
			if v, ok := k.Int(); ok && v < 0 {
				return nil, fmt.Errorf("sizes %s are negative", onnx.Shape(sizes))
			}
			sum = sum.Add(k)
		}
		a, ok1 := sum.Int()
		b, ok2 := whole.Int()
		if ok1 && ok2 && a != b {
			return nil, fmt.Errorf("sizes %s do not sum to %d", onnx.Shape(sizes), b)
		}
		return sizes, nil
	}
	if k := c.n.Int("num_outputs", int64(n)); k != int64(n) {
		return nil, fmt.Errorf("num_outputs is %d, there are %d outputs", k, n)
	}
	if n == 0 {
		return nil, nil
	}
	part := ceilDiv(whole, int64(n))
	parts := make([]onnx.Dim, n)
	left := whole
	for i := range parts {
		if p, ok := part.Int(); ok {
			l, _ := left.Int()
			if l < p {
				parts[i] = atLeastZero(left)
				left = onnx.Static(0)
				continue
			}
		}
		parts[i] = part
		left = left.Sub(part)
	}
	if p, ok := whole.Int(); ok && p%int64(n) != 0 && c.opset < 18 {
		return nil, fmt.Errorf("%d does not split into %d even parts", p, n)
	}
	return parts, nil
}

// gather: the axis is replaced by the shape of the indices.
func gather(c *ctx) error {
	if err := c.indices(1); err != nil {
		return err
	}
	s, ok1 := c.shape(0)
	index, ok2 := c.shape(1)
	if !ok1 || !ok2 {
		c.setDType(0, c.dtype(0))
		return nil
	}
	axis, err := normAxis(c.n.Int("axis", 0), len(s))
	if err != nil {
		return err
	}
	c.set(0, c.dtype(0), splice(s, axis, axis+1, index...))
	return nil
}

// indices refuses an input that is no list of places.
func (c *ctx) indices(i int) error {
	switch d := c.dtype(i); d {
	case onnx.Undefined, onnx.Int32, onnx.Int64:
		return nil
	default:
		return fmt.Errorf("input %d, the indices, is %s, and ONNX Runtime wants int64 or int32: TorchScript's exporter writes this of a torch.full without dtype=torch.long", i, d)
	}
}

// gatherElements: the shape of the indices.
func gatherElements(c *ctx) error {
	if err := c.indices(1); err != nil {
		return err
	}
	s, ok1 := c.shape(0)
	index, ok2 := c.shape(1)
	if ok1 && ok2 && len(s) != len(index) {
		return fmt.Errorf("data of rank %d, indices of rank %d", len(s), len(index))
	}
	c.likeAs(0, 1, c.dtype(0))
	return nil
}

// gatherND: indices[:-1] + data[batch_dims + indices[-1]:].
func gatherND(c *ctx) error {
	if err := c.indices(1); err != nil {
		return err
	}
	s, ok1 := c.shape(0)
	index, ok2 := c.shape(1)
	if !ok1 || !ok2 {
		c.setDType(0, c.dtype(0))
		return nil
	}
	if len(index) == 0 {
		return fmt.Errorf("indices are a scalar")
	}
	k, ok := index[len(index)-1].Int()
	if !ok {
		c.setDType(0, c.dtype(0))
		return nil
	}
	batch := c.n.Int("batch_dims", 0)
	if batch < 0 || k < 0 || batch > int64(len(s)) || k > int64(len(s))-batch {
		return fmt.Errorf("indices of length %d with batch_dims %d into rank %d", k, batch, len(s))
	}
	out := append(onnx.Shape{}, index[:len(index)-1]...)
	c.set(0, c.dtype(0), append(out, s[batch+k:]...))
	return nil
}

// scatter: the type of the data; updates have its element type.
func scatter(c *ctx) error {
	if err := c.indices(1); err != nil {
		return err
	}
	if _, err := c.sameDType(0, 2); err != nil {
		return err
	}
	return same(c)
}

// tile: each extent times its repeats.
func tile(c *ctx, s onnx.Shape) error {
	reps, ok := c.elems(1)
	if !ok {
		c.set(0, c.dtype(0), unknowns(len(s)))
		return nil
	}
	if len(reps) != len(s) {
		return fmt.Errorf("%d repeats for rank %d", len(reps), len(s))
	}
	out := make(onnx.Shape, len(s))
	for i := range s {
		if n, ok := reps[i].Int(); ok && n < 0 {
			return fmt.Errorf("repeats %s are negative", onnx.Shape(reps))
		}
		out[i] = s[i].Mul(reps[i])
	}
	c.set(0, c.dtype(0), out)
	return nil
}

// pad: begins then ends, of all axes or of those that input 3 gives.
func pad(c *ctx, s onnx.Shape) error {
	pads, ok, err := c.pads(len(s))
	if err != nil {
		return err
	}
	if !ok {
		c.set(0, c.dtype(0), unknowns(len(s)))
		return nil
	}
	out := append(onnx.Shape{}, s...)
	for k := range out {
		out[k] = s[k].Add(pads[k]).Add(pads[len(s)+k])
	}
	c.set(0, c.dtype(0), out)
	return nil
}

// pads are a Pad's, of all axes: those before, and those after; ok is false where they or their
// axes are not known.
func (c *ctx) pads(rank int) (pads []onnx.Dim, ok bool, err error) {
	given, ok := c.elems(1)
	if !c.has(1) && c.n.Has("pads") {
		given, ok = onnx.StaticShape(c.n.Ints("pads")...), true
	}
	axes, known, err := c.axesOrAll(3, rank)
	if err != nil || !ok || !known {
		return nil, false, err
	}
	if len(given) != 2*len(axes) {
		return nil, false, fmt.Errorf("%d pads for %d axes", len(given), len(axes))
	}
	pads = onnx.StaticShape(make([]int64, 2*rank)...)
	for i, k := range axes {
		pads[k], pads[rank+k] = given[i], given[i+len(axes)]
	}
	return pads, true, nil
}

// Pads are how many places a Pad adds before each axis, and then after each; fewer than none are
// cut off. False where that is not known before a run.
func (r *Result) Pads(n *onnx.Node) ([]int64, bool) {
	if n.In(0) == nil || !n.In(0).Type.Ranked {
		return nil, false
	}
	c := &ctx{r: r, n: n}
	pads, ok, err := c.pads(len(n.In(0).Type.Shape))
	if !ok || err != nil {
		return nil, false
	}
	return onnx.Shape(pads).Ints()
}
