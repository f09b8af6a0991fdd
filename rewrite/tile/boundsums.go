package tile

// Gradients whose sums need no second buffer (step.SumsOf): the sums before a gradient, each
// read by the next alone, become outputs named after it, which whoever runs the graph binds to
// one memory.
//
//	products of slices of the loss ─▶ P.grad.0 ─▶ + ─▶ P.grad.1 ─▶ + rows of the tokens ─▶ P.grad
//
// The graph stays what it is. As the memory of P.grad is there from the step's begin, that
// pays where the first sum is there at the peak.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// SumsBefore lists the large ones of some gradients that are summed up of values which no
// step returns: those values, in order, the gradient last.
func SumsBefore(gradients []*onnx.Value) [][]*onnx.Value {
	var list [][]*onnx.Value
	for _, v := range largest(gradients) {
		chain := []*onnx.Value{v}
		for over := step.SummandOver(v); over != nil && !over.IsOutput(); over = step.SummandOver(over) {
			chain = append(chain, over)
		}
		if len(chain) > 1 {
			slices.Reverse(chain)
			list = append(list, chain)
		}
	}
	return list
}

// GiveSums makes the values before a gradient outputs, named after it, and returns the names.
func GiveSums(g *onnx.Graph, chain []*onnx.Value) []string {
	last := len(chain) - 1
	return giveOut(g, chain[last], chain[:last])
}
