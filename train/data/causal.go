package data

// Whether a graph shows that a position sees only those before it: by an operator
// that is causal, by one that makes or compares a triangle, or by a constant that is
// one. Without any of these a model that is asked for the next token may see it.

import (
	"bytes"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// mostTriangle bounds the side of a constant that is looked at.
const mostTriangle = 8192

// causal reports that the graph shows an order of positions.
func (r *graphReading) causal() bool {
	for _, n := range r.graph.Nodes {
		if r.forward != nil && !r.forward.Has(n) {
			continue
		}
		switch {
		case n.OpType() == "Trilu", n.Int("is_causal", 0) != 0, n.Int("unidirectional", 0) != 0:
			return true
		case n.Is("Greater", "GreaterOrEqual", "Less", "LessOrEqual") && n.In(0) != nil && n.In(0).Type.DType.IsInt() && isSquare(n.Out(0)):
			return true // of positions with positions, as exporters write a mask
		case n.Is("LSTM", "GRU", "RNN") && n.Str("direction", "forward") != "bidirectional", n.Is("Scan", "Loop"):
			return true
		}
		if slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return isTriangle(v.Constant()) }) {
			return true
		}
	}
	return false
}

// isSquare reports a value whose last two axes are equal, and longer than 1.
func isSquare(v *onnx.Value) bool {
	if v == nil || !v.Type.Ranked || len(v.Type.Shape) < 2 {
		return false
	}
	a, b := v.Type.Shape[len(v.Type.Shape)-2], v.Type.Shape[len(v.Type.Shape)-1]
	n, known := a.Int()
	return a == b && known && n > 1
}

// isTriangle reports a constant whose last two axes are a square with one value above
// the diagonal and another on and below it.
func isTriangle(t *onnx.Tensor) bool {
	if t == nil || len(t.Dims()) < 2 {
		return false
	}
	dims := t.Dims()
	side := dims[len(dims)-1]
	if side < 2 || side > mostTriangle || dims[len(dims)-2] != side {
		return false
	}
	size := t.DType().Size()
	raw, err := t.Bytes()
	if err != nil || size == 0 || int64(len(raw)) < side*side*size {
		return false
	}
	at := func(i, j int64) []byte { return raw[(i*side+j)*size:][:size] }
	above, below := at(0, 1), at(1, 0)
	if bytes.Equal(above, below) {
		return false
	}
	for i := range side {
		for j := range side {
			want := below
			if j > i {
				want = above
			}
			if !bytes.Equal(at(i, j), want) {
				return false
			}
		}
	}
	return true
}
