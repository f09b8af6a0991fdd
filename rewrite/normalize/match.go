package normalize

// What the pattern passes share: looking at producers, single readers, scalar
// constants, and putting one value in another's place.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// made returns the node that makes v if it is one of these operators.
func made(v *onnx.Value, ops ...string) *onnx.Node {
	if v == nil || v.Producer == nil || !v.Producer.Is(ops...) {
		return nil
	}
	return v.Producer
}

// only returns the single reader of v; nil where there are several, or where v
// is a graph output.
func only(v *onnx.Value) *onnx.Node {
	if v == nil || v.IsOutput() || len(v.Uses()) != 1 || v.Uses()[0].Index == onnx.Captured {
		return nil
	}
	return v.Uses()[0].Node
}

// number is the value of a float constant of one element.
func number(v *onnx.Value) (float64, bool) {
	if v == nil || !v.Type.DType.IsFloat() {
		return 0, false
	}
	return v.Number()
}

// withNumber splits a commutative node of two inputs into the constant and the
// other operand.
func withNumber(n *onnx.Node) (x *onnx.Value, c float64, ok bool) {
	if n == nil || len(n.Inputs) != 2 {
		return nil, 0, false
	}
	if c, ok := number(n.In(1)); ok {
		return n.In(0), c, true
	}
	if c, ok := number(n.In(0)); ok {
		return n.In(1), c, true
	}
	return nil, 0, false
}

// near reports equality up to the rounding of a few float32 operations. Constants
// that are rounded more make another function.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b)+1e-12 }

// replace puts v, made by the builder's pending nodes, in the place of old: they
// go before at, readers and outputs see v, and v takes old's name. Where v is of
// another shape, because a constant of the pattern broadcast it to more axes, all
// stays as it is.
func (s *state) replace(old, v *onnx.Value, at *onnx.Node) {
	nodes := s.b.Take()
	if v == nil || s.b.Err() != nil || !fitsIn(v, old) {
		s.g.Remove(nodes...)
		return
	}
	s.g.InsertBefore(at, nodes...)
	s.g.TakeOver(old, v)
	s.count++
}

// fitsIn reports that v may stand in the place of old: the element types and the
// shapes are equal, as far as both are known.
func fitsIn(v, old *onnx.Value) bool {
	a, b := v.Type, old.Type
	unknown := a.DType == onnx.Undefined || b.DType == onnx.Undefined
	if !unknown && a.DType != b.DType || a.Ranked && b.Ranked && len(a.Shape) != len(b.Shape) {
		return false
	}
	for i := range min(len(a.Shape), len(b.Shape)) {
		m, ok1 := a.Shape[i].Int()
		n, ok2 := b.Shape[i].Int()
		if ok1 && ok2 && m != n {
			return false
		}
	}
	return true
}

// scope names what is built next after a node.
func (s *state) scope(n *onnx.Node) { s.b.From(n, n.Label()) }

// nodes is a copy of the node list, to walk while it changes.
func (s *state) nodes() []*onnx.Node { return slices.Clone(s.g.Nodes) }

// rank returns the number of axes, -1 where it is unknown.
func rank(v *onnx.Value) int {
	if v == nil || !v.Type.Ranked {
		return -1
	}
	return len(v.Type.Shape)
}
