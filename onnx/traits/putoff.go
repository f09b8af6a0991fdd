package traits

import "github.com/onnx-remat/remat/onnx"

// Reads that an optimizer may put off. What a node writes over must have been
// read by then, and a graph's dependencies tell so only as long as each node
// reads when it says. ONNX Runtime takes some nodes into every reader they
// have, and those then read in their place:
//
//	W ─▶ Transpose ─▶ a ─▶ Gemm (forward)         W ─▶ Gemm transB
//	               └─▶ Transpose ─▶ b ─▶ MatMul   W ─▶ MatMul, much later
//
// That is done with what moves elements or casts them, and with a constant
// factor or term. Fusions of other nodes need their output to have one reader,
// through which any path leads anyway.

// PutsOff reports that a reader of the node's outputs may come to read the
// node's input in its place, once an optimizer has seen the graph.
func PutsOff(n *onnx.Node, input int) bool {
	t, _ := Of(n)
	switch t.Cost {
	case View:
		return input == 0
	case Copy, Pointwise:
		for i, v := range n.Inputs {
			if i != input && v != nil && !constant(v) {
				return false
			}
		}
		return true
	}
	return false
}

func constant(v *onnx.Value) bool {
	return v.IsConstant() || v.Producer != nil && v.Producer.Is("Constant")
}
