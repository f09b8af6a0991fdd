package normalize

// Norms as exporters write them, the root of a sum of squares:
//
//	Sqrt(ReduceSum(d * d))   Pow(ReduceSum(Pow(d, 2)), 0.5)   become   ReduceL2(d)
//
// The root has no derivative at 0, where a norm's is 0 in PyTorch: of the distances between
// the samples of a batch, which TorchScript writes so, those of each to itself.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func norms(s *state) error {
	for _, n := range s.nodes() {
		if !isPower(n, "Sqrt", 0.5) {
			continue
		}
		sum := made(n.In(0), "ReduceSum", "ReduceSumSquare")
		if sum == nil {
			continue
		}
		d := sum.In(0)
		if sum.Is("ReduceSum") {
			if d = squared(d); d == nil {
				continue
			}
		}
		s.scope(n)
		y := s.b.Op("ReduceL2", append(build.In(d), sum.Inputs[1:]...), slices.Clone(sum.Proto.Attribute)...)
		s.replace(n.Out(0), y, n)
	}
	return nil
}

// isPower reports an operator that is a power by itself, or a Pow of that exponent: TorchScript
// adds the epsilon of a distance to its 2, and makes it 1/(2 + 1e-6).
func isPower(n *onnx.Node, op string, exponent float64) bool {
	if n.Is("Pow") {
		k, ok := n.In(1).Number()
		return ok && near(k, exponent)
	}
	return n.Is(op)
}

// squared is what v is the square of.
func squared(v *onnx.Value) *onnx.Value {
	n := made(v, "Pow", "Mul")
	if n == nil || n.Is("Mul") && n.In(0) != n.In(1) || n.Is("Pow") && !isPower(n, "", 2) {
		return nil
	}
	return n.In(0)
}
