package traits

import "github.com/onnx-remat/remat/onnx"

// Inputs of which no element reaches an output: they say which shape it has, or
// only their own shape counts. A graph may wait for a value through such an
// input (a barrier does); it does not depend on what the value is.

// Carries reports that elements of the node's input can reach its outputs.
func Carries(n *onnx.Node, input int) bool {
	switch {
	case n.Is("Shape", "Size"):
		return false
	case n.Is("Reshape", "Expand", "Squeeze", "Unsqueeze"):
		return input == 0
	}
	return true
}
