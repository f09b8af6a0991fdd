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
// through which any path leads anyway. None takes in what makes the statistics of a
// BatchNormalization that computes its own.

// PutsOff reports that a reader of the node's outputs may come to read the
// node's input in its place, once an optimizer has seen the graph.
func PutsOff(n *onnx.Node, input int) bool {
	t, _ := Of(n)
	switch t.Cost {
	case View:
		return input == 0
	case Copy, Pointwise:
		for i, v := range n.Inputs {
			if i != input && v != nil && !v.Fixed() {
				return false
			}
		}
		return !statistics(n)
	}
	return false
}

// statistics reports that all that reads a node's output are normalizations in training,
// as the running mean or variance.
func statistics(n *onnx.Node) bool {
	if len(n.Outputs) != 1 || n.Outputs[0].IsOutput() {
		return false
	}
	uses := n.Outputs[0].Uses()
	for _, u := range uses {
		if u.Index < 3 || !u.Node.Is("BatchNormalization") || u.Node.Int("training_mode", 0) == 0 {
			return false
		}
	}
	return len(uses) > 0
}
