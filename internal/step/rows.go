package step

// Next values whose rows leave a step one after another, each onto its rows of the input:
//
//	P[rows] ─▶ … ─▶ P.new.0 ─┐                  P.new.0 is bound to the first rows of P,
//	P[rows] ─▶ … ─▶ P.new.1 ─┼─▶ Concat ─▶ P.new  P.new.1 to those behind, P.new to all of P
//
// Each part is an output of the graph, so the graph itself says what is where: P.new joins
// outputs along its first axis, and a row-major tensor has their elements in that order.
// Whoever binds nothing gets P.new whole, as ever.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// RowsOf lists the outputs that a next value joins along its first axis, in order; nil
// where it is made otherwise, or a part's size is not known.
func RowsOf(next *onnx.Value) []*onnx.Value {
	if next == nil || next.Producer == nil || !next.Producer.Is("Concat") || len(next.Type.Shape) == 0 || !next.Type.IsStatic() {
		return nil
	}
	join := next.Producer
	if axis := join.Int("axis", 0); axis != 0 && axis != -int64(len(next.Type.Shape)) {
		return nil
	}
	parts, extent := make([]*onnx.Value, len(join.Inputs)), int64(0)
	for i, v := range join.Inputs {
		for v != nil && !v.IsOutput() && renames(v.Producer) {
			v = v.Producer.Inputs[0]
		}
		if v == nil || !v.IsOutput() || v.Producer == nil || slices.Contains(parts, v) || !rowsLike(v, next) {
			return nil
		}
		parts[i] = v
		extent += rowsIn(v)
	}
	if len(parts) < 2 || extent != rowsIn(next) {
		return nil
	}
	return parts
}

// rowsLike reports a value that has as many columns as next, and their type.
func rowsLike(v, next *onnx.Value) bool {
	t, of := v.Type, next.Type
	return t.IsStatic() && t.DType == of.DType && len(t.Shape) == len(of.Shape) && t.Shape[1:].Equal(of.Shape[1:])
}

// BoundWith lists what is bound with the next value that a session writes over its input:
// that value, and in the way Rows its parts.
func BoundWith(next *onnx.Value, way Outputs) []*onnx.Value {
	return append(partsOf(next, way), next)
}

// partsOf are those of RowsOf in the way that has them, else nil.
func partsOf(next *onnx.Value, way Outputs) []*onnx.Value {
	if way != Rows {
		return nil
	}
	return RowsOf(next)
}

func rowsIn(v *onnx.Value) int64 {
	n, _ := v.Type.Shape[0].Int()
	return n
}

// A RowWriter writes rows of a next value, from one up to another.
type RowWriter struct {
	Node     *onnx.Node
	from, to int64
	all      bool // it writes the whole
}

// WritersOf lists the nodes that write a next value: those that make its parts, or the one
// that makes it.
func WritersOf(next *onnx.Value, way Outputs) []RowWriter {
	parts := partsOf(next, way)
	if parts == nil {
		return []RowWriter{{Node: next.Producer, all: true}}
	}
	list, at := make([]RowWriter, len(parts)), int64(0)
	for i, v := range parts {
		list[i] = RowWriter{Node: v.Producer, from: at, to: at + rowsIn(v)}
		at = list[i].to
	}
	return list
}

// Spares reports that a reader of old, perhaps through what renames it, reads none of the
// rows that w writes: it renames it, or cuts other rows out.
func (w *RowWriter) Spares(old *onnx.Value, reader *onnx.Node) bool {
	if w.all || reader.In(0) == nil {
		return false
	}
	for v := reader.Inputs[0]; v != old; v = v.Producer.Inputs[0] {
		if v == nil || !renames(v.Producer) {
			return false
		}
	}
	return renames(reader) || w.cutsOthers(reader)
}

// cutsOthers reports a Slice of other rows.
func (w *RowWriter) cutsOthers(reader *onnx.Node) bool {
	if !reader.Is("Slice") || len(reader.Inputs) != 4 {
		return false
	}
	var at [3]int64 // start, end, axis
	for i := range at {
		x, ok := reader.Inputs[i+1].Number()
		if !ok || x != float64(int64(x)) {
			return false
		}
		at[i] = int64(x)
	}
	from, to, axis := at[0], at[1], at[2]
	return axis == 0 && from >= 0 && to >= from && (to <= w.from || from >= w.to)
}

// renames reports a node that returns its first input, in the same memory and under its own
// extents: what leads a value past a trigger.
func renames(n *onnx.Node) bool {
	return n != nil && len(n.Outputs) == 1 && !n.Outputs[0].IsOutput() && (n.Is("Identity") || n.Is("Unsqueeze") && len(n.Inputs) == 2 && nothingIn(n.Inputs[1]))
}

// nothingIn reports a tensor of no elements, whatever the shapes are said to be: cut from one
// place up to the same, extents from one up to the same, joined of such, or made of one by what adds none.
func nothingIn(v *onnx.Value) bool {
	switch {
	case v == nil || v.Producer == nil:
		return v != nil && v.IsConstant() && v.Type.Empty()
	case v.Producer.Is("Slice"):
		from, to := v.Producer.In(1), v.Producer.In(2)
		return from != nil && from == to
	case v.Producer.Is("Shape"):
		return v.Producer.Int("start", 0) == v.Producer.Int("end", 1)
	case v.Producer.Is("NonZero", "Squeeze"):
		return nothingIn(v.Producer.In(0))
	case v.Producer.Is("Concat"):
		return len(v.Producer.Inputs) > 0 && !slices.ContainsFunc(v.Producer.Inputs, func(x *onnx.Value) bool { return !nothingIn(x) })
	}
	return false
}
