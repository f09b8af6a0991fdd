package normalize

// Logarithms of small numbers as exporters write them, where PyTorch never makes the
// small number:
//
//	log σ(x)          -Softplus(-x)                      logsigmoid
//	log(1 - σ(x))     -Softplus(x)                       binary cross entropies
//	log(eᵃ + eᵇ)      the greater + Softplus(-|a - b|)   logaddexp
//
// In float32 σ(x) is 0 below -104 and 1 above 17, and eᵃ is 0 below -104 and infinite
// above 88: then the loss is infinite, or its gradient not a number.

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func logarithms(s *state) error {
	for _, n := range s.nodes() {
		if !n.Is("Log") {
			continue
		}
		if t := n.Out(0).Type.DType; t != onnx.Float32 && t != onnx.Float16 { // Softplus takes bfloat16 from opset 22 on, and float64 on no CPU
			continue
		}
		if x := sigmoidOf(n.In(0)); x != nil {
			s.scope(n)
			s.replace(n.Out(0), s.minusSoftplus(s.b.Op("Neg", build.In(x))), n)
		} else if x := sigmoidOf(oneLess(n.In(0))); x != nil {
			s.scope(n)
			s.replace(n.Out(0), s.minusSoftplus(x), n)
		} else if a, b := exponentials(n.In(0)); a != nil {
			s.scope(n)
			s.replace(n.Out(0), s.logAddExp(a, b), n)
		}
	}
	return nil
}

func (s *state) minusSoftplus(x *onnx.Value) *onnx.Value {
	return s.b.Op("Neg", build.In(s.b.Op("Softplus", build.In(x))))
}

// logAddExp is log(eᵃ + eᵇ). Where picks the greater one, as Max and Abs share a gradient
// among equals in other ways.
func (s *state) logAddExp(a, b *onnx.Value) *onnx.Value {
	do := func(op string, inputs ...*onnx.Value) *onnx.Value { return s.b.Op(op, inputs) }
	least := s.b.Scalar(a.Type.DType, -math.MaxFloat32) // of two that are -∞ the difference is no number
	x, y := do("Max", a, least), do("Max", b, least)
	less, apart := do("Less", x, y), do("Sub", x, y)
	return do("Add", do("Where", less, b, a), do("Softplus", do("Where", less, apart, do("Neg", apart))))
}

// sigmoidOf is what v is the sigmoid of.
func sigmoidOf(v *onnx.Value) *onnx.Value {
	if n := made(v, "Sigmoid"); n != nil {
		return n.In(0)
	}
	return nil
}

// oneLess is what v is 1 less, written 1 - p or -p + 1.
func oneLess(v *onnx.Value) *onnx.Value {
	n := made(v, "Sub", "Add")
	if n == nil {
		return nil
	}
	if n.Is("Sub") {
		if one, ok := number(n.In(0)); ok && one == 1 {
			return n.In(1)
		}
		return nil
	}
	if p, one, ok := withNumber(n); ok && one == 1 {
		if minus := made(p, "Neg"); minus != nil {
			return minus.In(0)
		}
	}
	return nil
}

// exponentials are a and b of eᵃ + eᵇ.
func exponentials(v *onnx.Value) (a, b *onnx.Value) {
	n := made(v, "Add")
	if n == nil {
		return nil, nil
	}
	x, y := made(n.In(0), "Exp"), made(n.In(1), "Exp")
	if x == nil || y == nil || x.In(0).Type.DType != onnx.Float32 {
		return nil, nil
	}
	return x.In(0), y.In(0)
}
