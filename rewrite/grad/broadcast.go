package grad

// Broadcasting undone.
//
// Broadcasting copies an element along the axes where its operand has extent
// one; the derivative sums along them. Where the extents are numbers or the
// same polynomial over symbols, the axes are known here and become constants.
// Where two symbols differ, only the run tells: the axes are computed from the
// two shapes by the graph itself (NonZero of a comparison, a handful of tiny
// integer operators).

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// unbroadcast sums g, which has full's shape or broadcasts to it, down to the
// shape of part.
func (e *engine) unbroadcast(g, full, part *onnx.Value) *onnx.Value {
	if g == nil || full == nil || part == nil || part == full {
		return g
	}
	if !full.Type.Ranked || !part.Type.Ranked || !g.Type.Ranked {
		return e.unbroadcastAtRun(g, full, part)
	}
	fs, ps := full.Type.Shape, part.Type.Shape
	lead := len(fs) - len(ps)
	if lead < 0 {
		return g
	}
	var axes []int
	inner := false
	for i, d := range fs {
		switch {
		case d.Is(1) && i >= lead:
		case i < lead:
			axes = append(axes, i)
		case ps[i-lead].Is(1):
			axes = append(axes, i)
			inner = true
		case ps[i-lead] != d || !d.Known():
			if !stretches(full, part, i, lead) {
				continue
			}
			return e.unbroadcastAtRun(g, full, part)
		}
	}
	if len(axes) == 0 {
		return g
	}
	return e.sumTo(g, full, lead, axes, inner)
}

// stretches reports whether part may have extent one along axis i of full while
// full has more: not if no other operand could have stretched it.
func stretches(full, part *onnx.Value, i, lead int) bool {
	n := full.Producer
	if n == nil {
		return true
	}
	for _, in := range n.Reads() {
		if in == part || !in.Type.DType.IsFloat() && in.Type.DType != onnx.Bool {
			continue
		}
		if !in.Type.Ranked {
			return true
		}
		s := in.Type.Shape
		k := i - (len(full.Type.Shape) - len(s))
		if k >= 0 && !s[k].Is(1) && (s[k] != part.Type.Shape[i-lead] || !s[k].Known()) {
			return true
		}
	}
	return false
}

// sumTo sums g over axes of full. Along an axis where g is loose every summand
// is the same, so it is multiplied by the extent instead.
func (e *engine) sumTo(g, full *onnx.Value, lead int, axes []int, inner bool) *onnx.Value {
	short := len(full.Type.Shape) - len(g.Type.Shape)
	var real, repeated []int
	for _, a := range axes {
		if a < short || g.Type.Shape[a-short].Is(1) && !full.Type.Shape[a].Is(1) {
			repeated = append(repeated, a)
		} else {
			real = append(real, a-short)
		}
	}
	if len(repeated) > 0 {
		n := e.count(full, repeated, g.Type.DType)
		if x, ok := g.Number(); ok && len(g.Type.Shape) == 0 {
			if y, known := n.Number(); known {
				return e.b.Scalar(g.Type.DType, x*y)
			}
		}
		g = e.b.Op("Mul", build.In(g, n))
	}
	drop := lead - short // leading axes of g that part does not have
	if len(real) == drop && !inner && drop > 0 {
		return e.sum(g, false, real...)
	}
	g = e.sum(g, true, real...)
	if drop > 0 {
		g = e.b.Op("Squeeze", build.In(g, e.b.Ints(upTo(int64(drop))...)))
	}
	return g
}

// unbroadcastAtRun finds the axes when the graph runs.
func (e *engine) unbroadcastAtRun(g, full, part *onnx.Value) *onnx.Value {
	g = e.expandTo(g, full)
	fs, ps := e.shapeOf(full), e.shapeOf(part)
	missing := e.b.Op("Sub", build.In(e.b.Op("Shape", build.In(fs)), e.b.Op("Shape", build.In(ps))))
	ones := e.b.Op("Expand", build.In(e.b.Ints(1), missing))
	aligned := e.b.Op("Concat", build.In(ones, ps), onnx.IntAttr("axis", 0))
	differ := e.b.Op("Not", build.In(e.b.Op("Equal", build.In(aligned, fs))))
	axes := e.b.Op("Squeeze", build.In(e.b.Op("NonZero", build.In(differ)), e.b.Ints(0)))
	sum := e.b.Op("ReduceSum", build.In(g, axes), onnx.IntAttr("keepdims", 1), onnx.IntAttr("noop_with_empty_axes", 1))
	out := e.b.Op("Reshape", build.In(sum, ps), onnx.IntAttr("allowzero", 1))
	if out != nil {
		out.Type = part.Type
	}
	return out
}
