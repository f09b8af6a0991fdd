package normalize

// Around attention's two products exporters leave what ONNX Runtime would fuse
// or what costs a copy of the score matrix.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// guards removes Where(IsNaN(p), 0, p) behind a softmax whose rows cannot be
// masked as a whole: the scores are a product, to which nothing is added or a
// constant with a finite number in every row. The guard costs three buffers of
// the scores. A product counts as finite, as what overflows there trains nothing.
func guards(s *state) error {
	for _, n := range s.nodes() {
		if !n.Is("Where") {
			continue
		}
		test, p := made(n.In(0), "IsNaN"), made(n.In(2), "Softmax")
		zero, ok := number(n.In(1))
		if test == nil || p == nil || !ok || zero != 0 || test.In(0) != p.Out(0) || p.Out(0).IsOutput() {
			continue
		}
		scores := p.In(0)
		last := normalAxis(p.Int("axis", -1), rank(scores)) == rank(scores)-1
		if !finite(scores, maxLook) && !(last && finiteRows(scores, maxLook)) || !fitsIn(p.Out(0), n.Out(0)) {
			continue
		}
		s.replaceOutput(n.Out(0), p.Out(0), n)
		s.count++
	}
	return nil
}

// maxLook is how many nodes finite and finiteRows look up.
const maxLook = 12

// finite reports a value without infinities: a product, a constant, or what moves,
// scales or adds such values.
func finite(v *onnx.Value, depth int) bool {
	if v.IsConstant() {
		values, err := v.Init.Float64s()
		return err == nil && !slices.ContainsFunc(values, func(x float64) bool { return !(math.Abs(x) < 1e30) })
	}
	n := v.Producer
	switch {
	case n == nil || depth == 0:
		return false
	case traits.IsMatrixProduct(n):
		return true
	case n.Is("Add", "Sub", "Mul"):
		return finite(n.In(0), depth-1) && finite(n.In(1), depth-1)
	case n.Is("Div"):
		c, ok := number(n.In(1))
		return ok && c != 0 && finite(n.In(0), depth-1)
	case traits.Moves(n), n.Is("Cast", "Neg"):
		return finite(n.In(0), depth-1)
	}
	return false
}

// finiteRows reports a value with a finite number in every row of its last axis:
// a finite one, scaled or with a constant mask added.
func finiteRows(v *onnx.Value, depth int) bool {
	n := made(v, "Add", "Mul", "Div")
	if n == nil || depth == 0 {
		return finite(v, depth)
	}
	a, b := n.In(0), n.In(1)
	if !n.Is("Add") {
		x, c, ok := scaledBy(v)
		return ok && c != 0 && finiteRows(x, depth-1) || finite(v, depth)
	}
	return finite(a, depth-1) && unmasked(b) || finite(b, depth-1) && unmasked(a)
}

// unmasked reports a constant mask with an unmasked place in every row.
func unmasked(v *onnx.Value) bool {
	if !v.IsConstant() || rank(v) < 1 {
		return false
	}
	dims := v.Init.Dims()
	width := dims[len(dims)-1]
	values, err := v.Init.Float64s()
	if err != nil || width <= 0 || len(values) == 0 {
		return false
	}
	for i := 0; i < len(values); i += int(width) {
		best := math.Inf(-1)
		for _, x := range values[i : i+int(width)] {
			best = math.Max(best, x)
		}
		if !(best > -1e30) {
			return false
		}
	}
	return true
}

// scales gathers the constant factors on the operands and the result of a
// batched product into one, on the operand side before its Transpose, where no
// fusion takes it up and where the scores need no buffer of their own for it.
func scales(s *state) error {
	for _, n := range s.nodes() {
		if !n.Is("MatMul") || rank(n.In(0)) < 3 || rank(n.In(1)) < 3 {
			continue
		}
		total, found := 1.0, false
		operands := [2]*onnx.Value{n.In(0), n.In(1)}
		for i, v := range operands {
			if x, c, ok := scaledBy(v); ok && rank(x) == rank(v) {
				operands[i], total, found = x, total*c, true
			}
		}
		out := n.Out(0)
		if m := only(out); m != nil {
			if x, c, ok := scaledBy(m.Out(0)); ok && x == out {
				out, total, found = m.Out(0), total*c, true
			}
		}
		if !found {
			continue
		}
		side := 0
		t := made(operands[0], "Transpose")
		if t == nil {
			side, t = 1, made(operands[1], "Transpose")
		}
		s.scope(n)
		k := s.b.Scalar(n.In(0).Type.DType, total)
		if t == nil {
			s.scaleBehindReshape(n, operands, k, out)
			continue
		}
		perm := traits.Permutation(t, rank(t.Out(0)))
		before := s.b.Op("Mul", build.In(t.In(0), k))
		operands[side] = s.b.Op("Transpose", build.In(before), build.PermAttr(perm...))
		y := s.b.Op("MatMul", operands[:])
		s.replace(out, y, out.Producer)
	}
	return nil
}

// scaleBehindReshape multiplies the first operand and joins the leading axes of
// both, so that a Reshape stands between the factor and the product.
func (s *state) scaleBehindReshape(n *onnx.Node, operands [2]*onnx.Value, k, out *onnx.Value) {
	a, b := operands[0], operands[1]
	if !sameLeading(a, b) {
		return
	}
	p := s.b.ReshapeTo(s.b.Op("Mul", build.In(a, k)), joined(a))
	q := s.b.ReshapeTo(b, joined(b))
	if p == nil || q == nil {
		s.g.Remove(s.b.Take()...)
		return
	}
	back := s.b.ReshapeTo(s.b.Op("MatMul", build.In(p, q)), n.Out(0).Type.Shape)
	if back == nil {
		s.g.Remove(s.b.Take()...)
		return
	}
	s.replace(out, back, out.Producer)
}

// joined is the shape of v with one leading axis, or with one more than it has
// where it has one already.
func joined(v *onnx.Value) onnx.Shape {
	t := v.Type.Shape
	if len(t) == 3 {
		return append(onnx.Shape{onnx.Static(1)}, t...)
	}
	return onnx.Shape{t[:len(t)-2].Elements(), t[len(t)-2], t[len(t)-1]}
}

// scaledBy takes v apart into a value and a finite constant factor.
func scaledBy(v *onnx.Value) (*onnx.Value, float64, bool) {
	m := made(v, "Mul", "Div")
	if m == nil {
		return nil, 0, false
	}
	if m.Is("Div") {
		c, ok := number(m.In(1))
		return m.In(0), 1 / c, ok && c != 0 && !math.IsInf(1/c, 0)
	}
	x, c, ok := withNumber(m)
	return x, c, ok && !math.IsInf(c, 0) && !math.IsNaN(c)
}

// transposes rewrites operands of batched products that are swapped last: the
// swap joins the Transpose before it (perm [0,2,1,3] and a swap are
// [0,2,3,1]), looking through Reshapes that only join leading axes.
func transposes(s *state) error {
	for _, n := range s.nodes() {
		if !n.Is("MatMul") {
			continue
		}
		for i := range 2 {
			v := n.In(i)
			if rank(v) < 3 {
				continue
			}
			z := s.swappedSource(v)
			if z == nil {
				continue
			}
			s.scope(n)
			perm := traits.LastTwo(rank(z))
			from := z
			if t := made(z, "Transpose"); t != nil {
				perm, from = traits.Compose(traits.Permutation(t, rank(z)), perm), t.In(0)
			}
			if traits.SwapsLastTwo(perm) && made(v, "Transpose") != nil {
				continue // in its simplest form; Unfuse sees to it
			}
			w := s.b.Op("Transpose", build.In(from), build.PermAttr(perm...))
			nodes := s.b.Take()
			if w == nil {
				return nil
			}
			s.g.InsertBefore(n, nodes...)
			n.SetInput(i, w)
			s.count++
		}
	}
	return nil
}

// swappedSource returns z with v = z, last two axes exchanged, and v's leading
// axes; nil where v is no such value.
func (s *state) swappedSource(v *onnx.Value) *onnx.Value {
	inner := v
	if r := made(v, "Reshape"); r != nil && traits.JoinsLeading(r.In(0), v) {
		inner = r.In(0)
	}
	t := made(inner, "Transpose")
	if t == nil || !traits.SwapsLastTwo(traits.Permutation(t, rank(inner))) {
		return nil
	}
	z := t.In(0)
	if sameLeading(z, v) {
		return z
	}
	if r := made(z, "Reshape"); r != nil && traits.JoinsLeading(r.In(0), z) && sameLeading(r.In(0), v) {
		return r.In(0)
	}
	return nil
}

func sameLeading(a, b *onnx.Value) bool {
	s, t := a.Type.Shape, b.Type.Shape
	return len(s) == len(t) && len(s) >= 2 && s[:len(s)-2].Equal(t[:len(t)-2])
}
