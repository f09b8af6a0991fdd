package step

// Where the constants of a file are while a session lives, on the CPU: large ones stay where
// the file has them, and those that lie in a file of their own are mapped; a small one in the
// file itself is copied through the session's allocator, and the file's is given up.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// copiedBelow is the size in bytes below which ONNX Runtime copies a constant.
const copiedBelow = 128

// Copied reports a constant, of the file or of a node, that ONNX Runtime copies into the
// session.
func Copied(v *onnx.Value) bool {
	size, ok := ConstantBytes(v)
	return ok && size < copiedBelow && (v.Init == nil || !v.Init.IsExternal())
}

// ConstantBytes is the size of a constant; ok is false for strings.
func ConstantBytes(v *onnx.Value) (n int64, ok bool) {
	if v.Init != nil {
		return v.Init.Type().Bytes()
	}
	return v.Type.Bytes()
}

// Held is the size in bytes of the graph's initializers that are parameters of a step, as
// the session has no copies of them, less those that are held elsewhere.
func Held(g *onnx.Graph, elsewhere func(*onnx.Value) bool) (int64, error) {
	var sum int64
	for _, v := range g.Initializers {
		if elsewhere(v) || Copied(v) || v.Init.DType() == onnx.String { // whose texts are no buffer
			continue
		}
		size, err := v.Init.ByteSize()
		if err != nil {
			return 0, fmt.Errorf("initializer %q: %w", v.Name, err)
		}
		sum += size
	}
	return sum, nil
}

// Computed is the size in bytes of what ONNX Runtime computed ahead and keeps outside the
// session's allocator: initializers of the graph that it makes which the file's has not.
func Computed(made, file *onnx.Graph) (int64, error) {
	known := map[string]bool{}
	for _, v := range file.Initializers {
		known[v.Name] = true
	}
	return Held(made, func(v *onnx.Value) bool { return known[v.Name] })
}
