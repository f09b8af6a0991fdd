package infer

// Operators that give the same elements another shape.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// reshape: input 1 holds the shape; 0 copies an extent (unless allowzero), -1
// is what is left.
func reshape(c *ctx) error {
	d := c.dtype(0)
	target, ok := c.elems(1)
	if !ok {
		return c.setFromInput(d, 1)
	}
	s, ranked := c.shape(0)
	out, err := reshaped(s, ranked, target, c.n.Int("allowzero", 0) == 1)
	if err != nil {
		return err
	}
	c.set(0, d, out)
	return nil
}

// reshaped works out a Reshape's output. Extents copied by 0 cancel out of the
// division, so that they may be unknown. A single element of the target that
// is not known is what is left, as if it were -1: whatever it holds at run
// time, the number of elements forces it.
func reshaped(s onnx.Shape, ranked bool, target []onnx.Dim, allowZero bool) (onnx.Shape, error) {
	out := make(onnx.Shape, len(target))
	rest, open, explicit := -1, 0, false
	copied := make([]bool, len(s))
	have, want := onnx.Static(1), onnx.Static(1)
	for i, t := range target {
		n, num := t.Int()
		switch {
		case num && n == 0 && !allowZero:
			if ranked && i >= len(s) {
				return nil, fmt.Errorf("shape %s copies dimension %d of a tensor of rank %d", onnx.Shape(target), i, len(s))
			}
			if ranked {
				out[i], copied[i] = s[i], true
			}
			if !ranked {
				open++
			}
		case num && n == -1:
			if explicit {
				return nil, fmt.Errorf("shape %s holds -1 twice", onnx.Shape(target))
			}
			rest, explicit = i, true
		case num && n < 0:
			return nil, fmt.Errorf("shape %s holds %d", onnx.Shape(target), n)
		case !t.Known():
			open++
			if !explicit {
				rest = i
			}
		default:
			out[i] = t
			want = want.Mul(t)
		}
	}
	for i, d := range s {
		if !copied[i] {
			have = have.Mul(d)
		}
	}
	if !ranked {
		have = onnx.Dim{}
	}
	if rest < 0 && open == 0 {
		a, ok1 := have.Int()
		b, ok2 := want.Int()
		if ok1 && ok2 && a != b {
			return nil, fmt.Errorf("%s does not reshape to %s", s, onnx.Shape(target))
		}
		return out, nil
	}
	if rest < 0 || open > 1 || open == 1 && explicit {
		return out, nil
	}
	left, err := leftOver(have, want)
	if err != nil {
		return nil, fmt.Errorf("%s does not reshape to %s", s, onnx.Shape(target))
	}
	out[rest] = left
	return out, nil
}

// leftOver is have/want, which must come out even.
func leftOver(have, want onnx.Dim) (onnx.Dim, error) {
	a, ok1 := have.Int()
	b, ok2 := want.Int()
	switch {
	case ok2 && b == 0:
		return onnx.Dim{}, nil
	case ok1 && ok2 && a%b != 0:
		return onnx.Dim{}, fmt.Errorf("%d elements over %d", a, b)
	}
	return have.Div(want), nil
}

// flatten: two dimensions, before and from the axis on.
func flatten(c *ctx) error {
	s, ok := c.shape(0)
	if !ok {
		c.set(0, c.dtype(0), unknowns(2))
		return nil
	}
	axis := c.n.Int("axis", 1)
	if axis != int64(len(s)) {
		k, err := normAxis(axis, len(s))
		if err != nil {
			return err
		}
		axis = int64(k)
	}
	c.set(0, c.dtype(0), onnx.Shape{s[:axis].Elements(), s[axis:].Elements()})
	return nil
}

// squeeze: drops the axes given, or all extents of 1.
func squeeze(c *ctx, s onnx.Shape) error {
	d := c.dtype(0)
	axes, given, known, err := c.axes(1, len(s))
	if err != nil {
		return err
	}
	if !known {
		if n, ok := c.length(1); ok && n <= len(s) {
			c.set(0, d, unknowns(len(s)-n))
		} else {
			c.setDType(0, d)
		}
		return nil
	}
	drop := make([]bool, len(s))
	for _, a := range axes {
		if n, ok := s[a].Int(); ok && n != 1 {
			return fmt.Errorf("axis %d of %s is not 1", a, s)
		}
		drop[a] = true
	}
	out := make(onnx.Shape, 0, len(s))
	for i, k := range s {
		if !given && !k.IsStatic() && !k.AtLeast(2) {
			c.setDType(0, d) // it may be 1
			return nil
		}
		if !drop[i] && (given || !k.Is(1)) {
			out = append(out, k)
		}
	}
	c.set(0, d, out)
	return nil
}

// unsqueeze: puts extents of 1 at the axes of the output.
func unsqueeze(c *ctx) error {
	d := c.dtype(0)
	s, ok := c.shape(0)
	n, lenOK := c.length(1)
	if !c.has(1) {
		n, lenOK = len(c.n.Ints("axes")), true
	} else if t, isRanked := c.shape(1); isRanked && len(t) == 0 {
		n, lenOK = 1, true // a scalar axis, as some exporters write it
	}
	if !ok || !lenOK {
		c.setDType(0, d)
		return nil
	}
	rank := len(s) + n
	axes, given, known, err := c.axes(1, rank)
	if err != nil {
		return err
	}
	if !given {
		return fmt.Errorf("no axes")
	}
	if !known {
		c.set(0, d, unknowns(rank))
		return nil
	}
	out := make(onnx.Shape, rank)
	for _, a := range axes {
		out[a] = onnx.Static(1)
	}
	k := 0
	for i := range out {
		if !out[i].Is(1) && k < len(s) {
			out[i] = s[k]
			k++
		}
	}
	c.set(0, d, out)
	return nil
}

// permOf is the permutation of a Transpose: the reverse where none is given.
func permOf(n *onnx.Node, rank int) ([]int, error) {
	perm, given := traits.Permutation(n, rank), n.Ints("perm")
	ok := rank == 0 || !n.Has("perm") || len(given) == rank
	for i, p := range slices.Sorted(slices.Values(perm)) {
		ok = ok && p == i
	}
	switch {
	case !ok && slices.ContainsFunc(given, func(p int64) bool { return p < 0 }):
		return nil, fmt.Errorf("perm %v counts axes from the end, which ONNX does not: PyTorch's older exporter writes movedim(-1, 1) so; export with dynamo=True, or count from the front there", given)
	case !ok:
		return nil, fmt.Errorf("perm %v is not a permutation of %d axes", given, rank)
	}
	return perm, nil
}

// transpose: dimension i of the output is dimension perm[i] of the input.
func transpose(c *ctx) error {
	s, ok := c.shape(0)
	if !ok {
		if c.n.Has("perm") {
			c.set(0, c.dtype(0), unknowns(len(c.n.Ints("perm"))))
		} else {
			c.setDType(0, c.dtype(0))
		}
		return nil
	}
	perm, err := permOf(c.n, len(s))
	if err != nil {
		return err
	}
	out := make(onnx.Shape, len(s))
	for i, p := range perm {
		out[i] = s[p]
	}
	c.set(0, c.dtype(0), out)
	return nil
}

// expand: input 0 broadcast with the shape that input 1 holds.
func expand(c *ctx) error {
	d := c.dtype(0)
	target, ok := c.elems(1)
	if !ok {
		n, ok := c.length(1)
		s, ranked := c.shape(0)
		if !ok || !ranked {
			c.setDType(0, d)
			return nil
		}
		target = unknowns(n)
		if out, err := broadcast(s, target); err == nil {
			c.set(0, d, out)
		}
		return nil
	}
	s, ranked := c.shape(0)
	if !ranked {
		c.setDType(0, d)
		return nil
	}
	out, err := broadcast(s, target)
	if err != nil {
		return err
	}
	c.set(0, d, out)
	return nil
}
