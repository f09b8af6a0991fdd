package normalize

// Below opset 17 exporters decompose a LayerNorm:
//
//	mean = ReduceMean(x)   d = x - mean     var = ReduceMean(d²)
//	y = d / Sqrt(var + eps) [* scale] [+ bias]
//
// The pass looks for the division and checks its way up.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func layerNorms(s *state) error {
	for _, n := range s.nodes() {
		x, eps, axis, ok := s.standardized(n)
		if !ok {
			continue
		}
		root := n.Out(0)
		inner := x.Type.Shape[axis:]
		var scale, bias *onnx.Value
		if m := only(root); m != nil && m.Is("Mul") {
			if w := operand(m, root); fits(w, inner) {
				scale, root = w, m.Out(0)
				if a := only(root); a != nil && a.Is("Add") {
					if w := operand(a, root); fits(w, inner) {
						bias, root = w, a.Out(0)
					}
				}
			}
		}
		s.scope(n)
		if scale == nil {
			if scale = s.ones(x.Type.DType, inner); scale == nil {
				continue
			}
		}
		inputs := build.In(x, scale)
		if bias != nil {
			inputs = append(inputs, bias)
		}
		y := s.b.Op("LayerNormalization", inputs,
			onnx.IntAttr("axis", int64(axis-len(x.Type.Shape))), onnx.FloatAttr("epsilon", eps))
		s.replace(root, y, root.Producer)
	}
	return nil
}

// standardized checks that n divides x - mean(x) by the root of its variance.
func (s *state) standardized(n *onnx.Node) (x *onnx.Value, eps float64, axis int, ok bool) {
	var d, root *onnx.Value
	switch {
	case n.Is("Div"):
		d, root = n.In(0), n.In(1)
	case n.Is("Mul"):
		for i := range 2 {
			if r := made(n.In(i), "Reciprocal"); r != nil {
				d, root = n.In(1-i), r.In(0)
			}
		}
	}
	sqrt, sub := made(root, "Sqrt"), made(d, "Sub")
	if sqrt == nil || sub == nil {
		return
	}
	add := made(sqrt.In(0), "Add")
	variance, eps, found := withNumber(add)
	if !found || eps <= 0 {
		return
	}
	x = sub.In(0)
	axis, ok = s.meanOver(sub.In(1), func(v *onnx.Value) bool { return v == x })
	if !ok {
		return
	}
	again, ok := s.meanOver(variance, func(v *onnx.Value) bool { return s.isSquare(v, x, axis) })
	return x, eps, axis, ok && again == axis
}

// isSquare reports v = (x-mean)², the mean over the axes from the given one on;
// the difference and the mean may be made twice.
func (s *state) isSquare(v, x *onnx.Value, axis int) bool {
	sub := made(squared(v), "Sub")
	if sub == nil || sub.In(0) != x {
		return false
	}
	own, ok := s.meanOver(sub.In(1), func(v *onnx.Value) bool { return v == x })
	return ok && own == axis
}

// meanOver checks that v is the mean over the last axes, kept as ones, of a value
// that accept takes, and returns the first of these axes.
func (s *state) meanOver(v *onnx.Value, accept func(*onnx.Value) bool) (int, bool) {
	n := made(v, "ReduceMean")
	if n == nil || !accept(n.In(0)) || n.Int("keepdims", 1) != 1 || rank(n.In(0)) < 1 {
		return 0, false
	}
	axes := n.Ints("axes")
	if n.In(1) != nil {
		var ok bool
		if axes, ok = s.types.Int64s(n.In(1)); !ok {
			return 0, false
		}
	}
	r := rank(n.In(0))
	hit := make([]bool, r)
	for _, a := range axes {
		k := normalAxis(a, r)
		if k < 0 {
			return 0, false
		}
		hit[k] = true
	}
	first := r
	for first > 0 && hit[first-1] {
		first--
	}
	for _, h := range hit[:first] {
		if h {
			return 0, false
		}
	}
	return first, first < r
}

// operand is the other input of a node of two.
func operand(n *onnx.Node, v *onnx.Value) *onnx.Value {
	if n.In(0) == v {
		return n.In(1)
	}
	return n.In(0)
}

// fits reports a weight of exactly the normalized shape.
func fits(w *onnx.Value, inner onnx.Shape) bool {
	return w != nil && w.Type.Ranked && w.Type.Shape.Equal(inner) && w.Producer == nil
}

// ones is a constant of a static shape.
func (s *state) ones(d onnx.DType, shape onnx.Shape) *onnx.Value {
	dims, ok := shape.Ints()
	if !ok {
		return nil
	}
	n, ok := onnx.Elements(dims)
	if !ok || n > 1<<20 {
		return nil
	}
	values := slices.Repeat([]float64{1}, int(n))
	return s.b.Const(onnx.FloatTensor(d, values, dims...))
}
