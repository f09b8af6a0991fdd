package normalize

// A product with a reciprocal is a quotient, which rounds once and not twice:
//
//	x ─Div(1, x)─▶ Mul(·, y)   becomes   Div(y, x)
//
// ONNX Runtime makes it one from level 1 on (DivMulFusion), unless something stands
// between the two, as a control dependency of a written file may, and then the last
// bits would be others.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
)

// Quotients makes quotients of the products with a reciprocal that nothing else reads,
// and returns their number. types must know the graph's values.
func Quotients(m *onnx.Model, types *infer.Result) (int, error) {
	s := newState(m, types)
	for _, n := range s.nodes() {
		product := reciprocalOf(n)
		if product == nil {
			continue
		}
		s.scope(product)
		q := s.b.Op("Div", build.In(operand(product, n.Out(0)), n.In(1)))
		s.replace(product.Out(0), q, product)
	}
	m.Graph.RemoveDead()
	return s.count, s.b.Err()
}

// reciprocalOf returns the only reader of 1/x, if that is a product.
func reciprocalOf(n *onnx.Node) *onnx.Node {
	if !n.Is("Div") || rank(n.In(0)) > rank(n.In(1)) {
		return nil
	}
	if one, ok := number(n.In(0)); !ok || one != 1 {
		return nil
	}
	if p := only(n.Out(0)); p != nil && p.Is("Mul") {
		return p
	}
	return nil
}
