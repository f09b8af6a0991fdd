package step

import "github.com/onnx-remat/remat/onnx"

// ReadersOf lists the nodes that read the memory of v before a writer changes it, the
// writer itself too where it does: the readers of v, and those of a node's outputs where
// through says that they lie in its input's memory, or may come to.
func ReadersOf(v *onnx.Value, writer *onnx.Node, through func(n *onnx.Node, input int) bool) []*onnx.Node {
	var out []*onnx.Node
	for _, u := range v.Uses() {
		out = append(out, u.Node)
		if u.Node == writer || u.Index < 0 || !through(u.Node, u.Index) {
			continue
		}
		for _, o := range u.Node.Returns() {
			out = append(out, ReadersOf(o, writer, through)...)
		}
	}
	return out
}
