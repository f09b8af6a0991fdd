package traits

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// Facts about nodes, asked of the table. A node whose operator is not in it has none.

func has(n *onnx.Node, f fact) bool {
	return index[key{onnx.NormalDomain(n.Domain()), n.OpType()}].facts&f != 0
}

// Carries reports that elements of the node's input can reach its outputs. Others
// say which shape they have, or only their own shape counts: a graph may wait for a
// value through such an input (a barrier does); it does not depend on what it is.
func Carries(n *onnx.Node, input int) bool {
	return !has(n, shapeOnly) && (input == 0 || !has(n, firstOnly))
}

// IsView reports a node whose output is its first input's buffer under another name:
// its elements in their order, perhaps in another shape.
func IsView(n *onnx.Node) bool {
	t, _ := Of(n)
	return t.Cost == View
}

// Aliases reports a node one of whose outputs is the buffer of that input.
func Aliases(n *onnx.Node, input int) bool {
	t, _ := Of(n)
	return slices.ContainsFunc(t.Alias, func(p Pair) bool { return p.Input == input })
}

// Reshapes reports a view that may have another shape than its input.
func Reshapes(n *onnx.Node) bool { return IsView(n) && !n.Is("Identity") }

// Moves reports a node of whose outputs every element is one of the first input's.
func Moves(n *onnx.Node) bool { return has(n, moving) }

// Picks reports a node that reads only those elements of its first input that it
// returns.
func Picks(n *onnx.Node) bool { return has(n, picking) }

// WidensBlocks reports a node that widens blocks of a weight with a scale each. Of
// ONNX Runtime's providers here the CPU's alone has a kernel for it.
func WidensBlocks(n *onnx.Node) bool {
	return n.Is("DequantizeLinear") && n.Int("block_size", 0) != 0
}

// ReadsShape reports a node that reads nothing but the shape of its input.
func ReadsShape(n *onnx.Node) bool { return has(n, shapeOnly) }

// IsRandom reports a node that draws numbers, so that no two of them are equal.
func IsRandom(n *onnx.Node) bool { return has(n, random) }

// IsMatrixProduct reports a product of matrices, or of batches of them.
func IsMatrixProduct(n *onnx.Node) bool { return has(n, matrixProduct) }

// JoinsLeading reports a Reshape that leaves the last two axes alone.
func JoinsLeading(from, to *onnx.Value) bool {
	a, b := from.Type.Shape, to.Type.Shape
	return len(a) >= 2 && len(b) >= 2 && a[len(a)-2:].Equal(b[len(b)-2:])
}

// MatrixAxes are the axes of the rows and columns that a product of matrices takes of its
// first or second factor, input 0 or 1, which transA or transB may turn. The product sums
// over columns of the first and rows of the second.
func MatrixAxes(n *onnx.Node, factor int) (row, column int) {
	last := len(n.Inputs[factor].Type.Shape) - 1
	if n.Int([]string{"transA", "transB"}[factor], 0) != 0 {
		return last, last - 1
	}
	return last - 1, last
}
