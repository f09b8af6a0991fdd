package infer

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// unify combines two accounts of one extent: a number wins over a symbol, a
// symbol over nothing, the first of two symbols over the second. Two different
// numbers are an error.
func unify(a, b onnx.Dim) (onnx.Dim, error) {
	switch {
	case a == b || !b.Known():
		return a, nil
	case !a.Known():
		return b, nil
	case a.IsStatic() && b.IsStatic():
		return a, fmt.Errorf("extents %s and %s differ", a, b)
	case b.IsStatic():
		return b, nil
	}
	return a, nil
}

// unifyShapes unifies extents of two shapes of the same rank.
func unifyShapes(a, b onnx.Shape) (onnx.Shape, error) {
	if slices.Equal(a, b) {
		return a, nil
	}
	out := make(onnx.Shape, len(a))
	for i := range a {
		d, err := unify(a[i], b[i])
		if err != nil {
			return a, fmt.Errorf("dimension %d: %w", i, err)
		}
		out[i] = d
	}
	return out, nil
}

// broadcastDim is the extent that two broadcast to. Two different symbols stay
// unknown, since either may be 1; what is provably 2 or more decides.
func broadcastDim(a, b onnx.Dim) (onnx.Dim, error) {
	switch {
	case a == b || b.Is(1):
		return a, nil
	case a.Is(1):
		return b, nil
	case a.IsStatic() && b.IsStatic():
		return a, fmt.Errorf("extents %s and %s do not broadcast", a, b)
	case a.IsStatic():
		return a, nil
	case b.IsStatic():
		return b, nil
	case a.AtLeast(2):
		return a, nil
	case b.AtLeast(2):
		return b, nil
	}
	return onnx.Dim{}, nil
}

// broadcast aligns shapes at their last dimension, as NumPy does.
func broadcast(a, b onnx.Shape) (onnx.Shape, error) {
	if len(a) < len(b) {
		a, b = b, a
	}
	if len(b) == 0 || slices.Equal(a, b) {
		return a, nil
	}
	out := make(onnx.Shape, len(a))
	lead := copy(out, a[:len(a)-len(b)])
	for i, d := range b {
		e, err := broadcastDim(a[lead+i], d)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", a, b, err)
		}
		out[lead+i] = e
	}
	return out, nil
}

// unknowns is a shape of that rank with no extent known.
func unknowns(rank int) onnx.Shape { return make(onnx.Shape, rank) }

// ceilDiv is d/k rounded up.
func ceilDiv(d onnx.Dim, k int64) onnx.Dim {
	if k == 1 {
		return d
	}
	if n, ok := d.Int(); ok {
		q := n / k
		if n%k != 0 && (n < 0) == (k < 0) {
			q++
		}
		return onnx.Static(q)
	}
	by := onnx.Static(k)
	if q := d.Div(by); q.Mul(by) == d {
		return q
	}
	return d.Add(onnx.Static(k - 1)).Div(by)
}

// atLeastZero is max(d, 0) for numbers.
func atLeastZero(d onnx.Dim) onnx.Dim {
	if n, ok := d.Int(); ok && n < 0 {
		return onnx.Static(0)
	}
	return d
}

// splice is a with its dimensions [from, to) replaced by mid.
func splice(a onnx.Shape, from, to int, mid ...onnx.Dim) onnx.Shape {
	out := make(onnx.Shape, 0, len(a)-(to-from)+len(mid))
	out = append(out, a[:from]...)
	out = append(out, mid...)
	return append(out, a[to:]...)
}
