package step

// Gradients that are summed up in the memory in which they are returned:
//
//	Gemm ─▶ P.grad.0 ─▶ Gemm(…, P.grad.0) ─▶ P.grad.1 ─▶ ScatterElements(P.grad.1, …) ─▶ P.grad
//
// An output of a graph never takes over a buffer, so the last sum before P.grad stands
// beside it, and a Gemm that adds to a sum has a second buffer for each. If the sums are
// outputs too, all bound to one memory of whoever runs the graph, each is written over the
// one before: the kernels read an element of that before they write the same element, and
// nothing else reads it. Roles.Sums lists them, in order. The memory of P.grad is there from the
// step's begin. Whoever binds nothing finds the same P.grad, and all sums beside it.

import (
	"maps"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// SumsOf lists the gradients that may be summed up in their own memory: of each, the values
// that are written there, in order, the gradient last. By the names of the gradients.
func SumsOf(g *onnx.Graph, roles Roles) [][]*onnx.Value {
	var list [][]*onnx.Value
	for _, name := range slices.Sorted(maps.Keys(roles.Sums)) {
		chain := make([]*onnx.Value, 0, len(roles.Sums[name])+1)
		for _, part := range append(slices.Clone(roles.Sums[name]), name) {
			chain = append(chain, g.Value(part))
		}
		if inOneMemory(chain) {
			list = append(list, chain)
		}
	}
	return list
}

// inOneMemory reports outputs each of which may be written over the one before.
func inOneMemory(chain []*onnx.Value) bool {
	for i, v := range chain {
		if v == nil || !v.IsOutput() || v.Producer == nil || !sumType(v.Type) || !v.Type.Same(chain[0].Type) ||
			slices.Contains(chain[:i], v) || i > 0 && SummandOver(v) != chain[i-1] {
			return false
		}
	}
	return len(chain) > 1
}

// sumType is a type whose kernels are known to write over what they add to.
func sumType(t onnx.Type) bool { return t.DType == onnx.Float32 && t.IsStatic() }

// SummandOver is the value in whose memory v may be written, past what renames it: one of
// its type that v's node alone reads, and reads element by element before it writes. Where
// there are several, the one behind which more lie in a row. nil where there is none.
func SummandOver(v *onnx.Value) *onnx.Value {
	over, _ := summand(v)
	return over
}

// summand returns it, and how many lie in a row.
func summand(v *onnx.Value) (best *onnx.Value, length int) {
	n := v.Producer
	if n == nil || v.Index != 0 || len(n.Captures) > 0 || !sumType(v.Type) {
		return nil, 0
	}
	for i, in := range n.Reads() {
		if !writesOver(n, i) {
			continue
		}
		for in.Producer != nil && renames(in.Producer) {
			in = in.Producer.Inputs[0]
		}
		if in.Producer == nil || !in.Type.Same(v.Type) || !slices.Equal(dataReads(in), []onnx.Use{{Node: n, Index: i}}) {
			continue
		}
		if _, behind := summand(in); behind >= length {
			best, length = in, behind+1
		}
	}
	return best, length
}

// Pointwise reports a kernel of the CPU that reads element i of each input before it writes
// element i and never again, so that it may write its output over an input.
func Pointwise(n *onnx.Node) bool {
	return n.Is("Add", "Sub", "Mul", "Div", "Where", "Cast", "Neg", "Clip", "Relu", "Tanh") ||
		n.Is("Sum", "Min", "Max") && len(n.Inputs) <= 2 // a third is read once the first two are written
}

// writesOver reports a kernel that may write its output over an input: one that declares
// it to ONNX Runtime, a pointwise one, and Gemm, which copies what it adds to into its
// output before all else.
func writesOver(n *onnx.Node, input int) bool {
	if Pointwise(n) || n.Is("Gemm") && input == 2 {
		return true
	}
	t, known := traits.Of(n)
	return known && slices.Contains(t.InPlace, traits.Pair{Input: input, Output: 0})
}

// dataReads lists where a value's elements are read, under whatever name; asking for its
// shape is no reading.
func dataReads(v *onnx.Value) []onnx.Use {
	var list []onnx.Use
	for _, u := range v.Uses() {
		switch {
		case DependencyOf(v, u)&Data == 0:
		case u.Index == 0 && renames(u.Node):
			list = append(list, dataReads(u.Node.Outputs[0])...)
		default:
			list = append(list, u)
		}
	}
	return list
}
