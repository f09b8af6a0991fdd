package normalize

// Linear layers. MatMul and Add become one Gemm over joined leading axes, and a
// transposed weight Gemm's transB: what ONNX Runtime's fusions would make of
// them, but at every level, and with a backward of two plain products.
//
//	x[b,s,k] ─Reshape─▶ [b*s,k] ─Gemm(w, bias)─▶ [b*s,n] ─Reshape─▶ [b,s,n]

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

func linears(s *state) error {
	for _, n := range s.nodes() {
		if !n.Is("MatMul") || rank(n.In(1)) != 2 || rank(n.In(0)) < 2 || rank(n.Out(0)) < 1 || !n.In(0).Type.DType.IsFloat() {
			continue
		}
		x, w, out := n.In(0), n.In(1), n.Out(0)
		attrs := []onnx.Attribute{}
		width := out.Type.Shape[len(out.Type.Shape)-1]
		if t := swapped(w); t != nil {
			w = t
			attrs = append(attrs, onnx.IntAttr("transB", 1))
		}
		var bias *onnx.Value
		if a := only(out); a != nil && a.Is("Add") {
			if c := operand(a, out); c != out && rank(c) == 1 && c.Producer == nil && (c.Type.Shape[0] == width || c.Type.Shape[0].Is(1)) {
				bias, out = c, a.Out(0)
			}
		}
		if bias == nil && len(attrs) == 0 && rank(x) > 2 {
			continue // a plain product is fused with nothing
		}
		s.scope(n)
		s.linear(n, x, w, bias, out, attrs)
	}
	return nil
}

func (s *state) linear(n *onnx.Node, x, w, bias, out *onnx.Value, attrs []onnx.Attribute) {
	a := x
	if rank(x) > 2 {
		k, ok := x.Type.Shape[rank(x)-1].Int()
		if !ok {
			k, ok = n.In(1).Type.Shape[0].Int()
		}
		if !ok || k == 0 {
			return
		}
		a = s.b.Op("Reshape", build.In(x, s.b.Ints(-1, k)))
	}
	inputs := build.In(a, w)
	if bias != nil {
		inputs = append(inputs, bias)
	}
	y := s.b.Op("Gemm", inputs, attrs...)
	if rank(x) > 2 {
		y = s.b.Unjoin(y, x, n.Out(0).Type.Shape)
	}
	s.replace(out, y, out.Producer)
}

// swapped returns the matrix that v is the transpose of, nil where v is none: a
// Transpose says by its perm what it does, and [0,1] leaves a matrix as it is.
func swapped(v *onnx.Value) *onnx.Value {
	t := made(v, "Transpose")
	if t == nil || rank(v) != 2 || !traits.SwapsLastTwo(traits.Permutation(t, 2)) {
		return nil
	}
	return t.In(0)
}

// gemms drops the Transpose that swaps the axes of an operand of a Gemm.
func gemms(s *state) error {
	for _, n := range s.g.Nodes {
		if !n.Is("Gemm") {
			continue
		}
		for i, name := range []string{"transA", "transB"} {
			if x := swapped(n.In(i)); x != nil {
				flipped := int64(1)
				if n.Int(name, 0) != 0 { // any number but zero says yes
					flipped = 0
				}
				n.SetInput(i, x)
				n.SetAttr(onnx.IntAttr(name, flipped))
				s.count++
			}
		}
	}
	return nil
}

// reshapes joins a Reshape of a Reshape, and drops one to the shape that its
// input has. A Gather of all in their order is one, too, and so is such a GatherND; one whose tuples
// count along a batch first is one of that batch.
func reshapes(s *state) error {
	for _, n := range s.nodes() {
		if s.picked(n) || !traits.Reshapes(n) || n.Out(0) == nil {
			continue
		}
		x, y := n.In(0), n.Out(0)
		if !x.Type.Ranked || !y.Type.Ranked || s.handedOn(x, y) {
			continue
		}
		r := x.Producer
		if r == nil || !traits.Reshapes(r) || x.IsOutput() || !onlyReshaped(x) || s.handedOn(r.In(0), y) {
			continue
		}
		s.scope(n)
		if z := s.b.ReshapeTo(r.In(0), y.Type.Shape); z != nil {
			s.replace(y, z, n)
		}
	}
	return nil
}

// handedOn puts x in the place of y, which is a view of it, where both have one shape.
func (s *state) handedOn(x, y *onnx.Value) bool {
	if !x.Type.Ranked || !x.Type.Shape.Equal(y.Type.Shape) || y.IsOutput() {
		return false
	}
	s.g.ReplaceUses(y, x)
	s.count++
	return true
}

// onlyReshaped reports that every reader of v reshapes it.
func onlyReshaped(v *onnx.Value) bool {
	return !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index != 0 || !traits.Reshapes(u.Node) })
}
