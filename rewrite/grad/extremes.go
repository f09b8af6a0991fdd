package grad

// Backward finds where an extreme came from by comparing for equality, which takes numbers
// that are equal to the bit. In a model with half types they need not be: ONNX Runtime's CPU
// provider computes in float32 between casts of its own and leaves out those that meet, so
// of two readers of one value one is given what was rounded and the other what was not, and a
// value that is computed again in another order is rounded elsewhere. Then nothing equals the
// extreme, and the gradient is 0/0, or nothing at all. There backward compares one float32
// value with the extreme of that very value. package precision does the same in float32
// graphs that it converts.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// comparable are the inputs of an extreme y, and y, as backward compares them: as they are, or,
// in a model that computes in half, in float32, with the extreme taken anew.
func (c *Context) comparable(in []*onnx.Value, y *onnx.Value, anew func(...*onnx.Value) *onnx.Value) ([]*onnx.Value, *onnx.Value) {
	if y == nil || !c.e.computesInHalf() {
		return in, y
	}
	wide := slices.Clone(in)
	for i, v := range wide {
		if v.Type.DType.IsHalf() {
			wide[i] = c.cast(v, onnx.Float32)
		}
	}
	return wide, anew(wide...)
}

// computesInHalf reports a forward node that makes a half value.
func (e *engine) computesInHalf() bool {
	if e.inHalf == nil {
		some := slices.ContainsFunc(e.m.Graph.Nodes, func(n *onnx.Node) bool {
			return slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool { return v != nil && v.Type.DType.IsHalf() })
		})
		e.inHalf = &some
	}
	return *e.inHalf
}
