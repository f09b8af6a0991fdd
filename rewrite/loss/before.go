package loss

// What a Softmax or a Sigmoid read, whose result the prediction is:
//
//	x ─▶ Softmax ─▶ Reshape ─▶ prediction        x ─▶ Reshape ─▶ loss
//
// Behind it may stand what only arranges: copies are left out, the rest is written again
// for x. Where anything else stands there, or the loss is of another operator's input,
// there are no logits to be had, and a loss of probabilities as if they were is refused.
// A softmax may be written out, as JAX does: e/Σe, e = exp(x). That of two classes may be a
// Sigmoid and what it leaves of 1, as scikit-learn's is.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A source is what made a prediction that gave way to what that read.
type source struct {
	op string
	// axis is that of the classes in the prediction, -1 where there is none.
	axis int
	// as is the operator that it amounts to, "" where that is op.
	as string
}

// before is the input of what made v, where the kind means that, arranged as v is, and
// what made it; v itself where nothing did.
func (a *adder) before(v *onnx.Value, k kind) (*onnx.Value, *source, error) {
	var path []*onnx.Node // from v on upwards
	for w := v; len(k.inverse) > 0 && w != nil && w.Producer != nil; w = w.Producer.In(0) {
		n := w.Producer
		x, made := squashed(n)
		if made == nil {
			x, made = a.twoClasses(n)
		}
		if op := endsIn(n, w); op != "" {
			return nil, nil, fmt.Errorf("a %s inside its %s made it, and %s is not of probabilities: export the model without the %[1]s", op, n.OpType(), k.name)
		}
		switch {
		case made == nil && !after(n):
			return v, nil, nil
		case made == nil:
			path = append(path, n)
			continue
		case !slices.Contains(k.inverse, cmp.Or(made.as, made.op)):
			return nil, nil, fmt.Errorf("a %s made it, and %s is not of what that reads: choose another loss, or export the model without the %[1]s", made.op, k.name)
		}
		for _, n := range slices.Backward(path) {
			if !made.through(n) {
				if made.op == "LogSoftmax" { // the same of its own result
					return v, nil, nil
				}
				return nil, nil, fmt.Errorf("a %s behind a %s made it, and %s is of what the %[2]s reads: export the model without them", n.OpType(), made.op, k.name)
			}
		}
		return a.arranged(x, path), made, nil
	}
	return v, nil, nil
}

// squashed is what a node reads that makes numbers between 0 and 1 of any, or their
// logarithms; nil for others.
func squashed(n *onnx.Node) (*onnx.Value, *source) {
	switch {
	case n.Is("Sigmoid"):
		return n.In(0), &source{op: "Sigmoid", axis: -1}
	case n.Is("Softmax", "LogSoftmax"):
		return n.In(0), &source{op: n.OpType(), axis: along(n.Int("axis", -1), n.In(0))}
	case n.Domain() == "ai.onnx.ml" && (strings.HasSuffix(n.OpType(), "Classifier") || n.OpType() == "Normalizer"):
		return n.In(0), &source{op: n.OpType(), axis: -1} // scikit-learn's probabilities
	case n.Is("Div") && n.In(0).Producer != nil && n.In(1).Producer != nil:
		e, sum := n.In(0).Producer, n.In(1).Producer
		if !e.Is("Exp") || !sum.Is("ReduceSum") || sum.In(0) != n.In(0) || sum.Int("keepdims", 1) == 0 {
			break
		}
		if t := sum.In(1).Constant(); t != nil {
			if axes, err := t.Int64s(); err == nil && len(axes) == 1 {
				return e.In(0), &source{op: "Softmax", axis: along(axes[0], n.In(0))}
			}
		}
	}
	return nil, nil
}

// twoClasses is half of what a Sigmoid read beside its negative, whose softmax is what n joins:
// the Sigmoid's result p and 1 - p, in either order; nil where n does not.
func (a *adder) twoClasses(n *onnx.Node) (*onnx.Value, *source) {
	if !n.Is("Concat") || len(n.Inputs) != 2 {
		return nil, nil
	}
	for i, p := range n.Inputs {
		rest := n.In(1 - i).Producer
		if p.Producer == nil || !p.Producer.Is("Sigmoid") || rest == nil || !rest.Is("Sub") || rest.In(1) != p {
			continue
		}
		axis := along(n.Int("axis", 0), n.Out(0))
		one := rest.In(0).Constant()
		if one == nil || axis >= len(p.Type.Shape) || p.Type.Shape[axis] != onnx.Static(1) {
			continue
		}
		if whole, ok := one.Scalar(); !ok || whole != 1 {
			continue
		}
		x := p.Producer.In(0)
		half := a.Op("Mul", build.In(x, a.Scalar(x.Type.DType, 0.5)))
		pair := build.In(half, half)
		pair[1-i] = a.Op("Neg", build.In(half))
		return a.Op("Concat", pair, onnx.IntAttr("axis", int64(axis))), &source{op: "Sigmoid", axis: axis, as: "Softmax"}
	}
	return nil, nil
}

// endsIn is the operator that makes probabilities in a subgraph of the node that makes v, ""
// where none does.
func endsIn(n *onnx.Node, v *onnx.Value) string {
	at := slices.Index(n.Outputs, v)
	for _, g := range n.Subgraphs() {
		i := at + len(g.GetOutput()) - len(n.Outputs) // a Loop's body returns its condition too
		if i < 0 || i >= len(g.GetOutput()) {
			continue
		}
		for _, p := range g.GetNode() {
			if slices.Contains(p.GetOutput(), g.GetOutput()[i].GetName()) && slices.Contains([]string{"Softmax", "Sigmoid"}, p.GetOpType()) {
				return p.GetOpType()
			}
		}
	}
	return ""
}

// along is an axis of v; where the rank is not known, none that there can be.
func along(axis int64, v *onnx.Value) int {
	if i, ok := onnx.Axis(axis, len(v.Type.Shape)); ok {
		return i
	}
	return math.MaxInt
}

// after reports a node that leaves probabilities what they are, or nearly so.
func after(n *onnx.Node) bool {
	return traits.Moves(n) || n.Is("Cast", "Clip", "Dropout", "QuantizeLinear", "DequantizeLinear")
}

// through moves the axis of the classes behind a node, and reports whether what stood
// before it can be arranged as the node does.
func (s *source) through(n *onnx.Node) bool {
	switch {
	case n.Is("Identity"):
		return true
	case n.Is("Cast"):
		return n.In(0).Type.DType.IsFloat() && n.Out(0).Type.DType.IsFloat()
	case s.axis < 0:
		return traits.Moves(n) && len(n.Outputs) == 1
	case n.Is("Transpose"):
		s.axis = slices.Index(traits.Permutation(n, len(n.In(0).Type.Shape)), s.axis)
		return s.axis >= 0
	case traits.Reshapes(n):
		from, to := n.In(0).Type.Shape, n.Out(0).Type.Shape
		if s.axis >= len(from) {
			return false
		}
		s.axis = kept(from, to, s.axis)
		return s.axis >= 0
	}
	return false
}

// kept is the place in a shape of an axis of another shape of the same elements, -1 where
// it is joined with others or split.
func kept(from, to onnx.Shape, axis int) int {
	same := func(x, y onnx.Shape) bool { return x.Elements().Known() && x.Elements() == y.Elements() }
	for i, d := range to {
		if d.Known() && d == from[axis] && (same(from[:axis], to[:i]) || same(from[axis+1:], to[i+1:])) {
			return i
		}
	}
	return -1
}

// arranged is x as the nodes of a path, the last one first, arrange it.
func (a *adder) arranged(x *onnx.Value, path []*onnx.Node) *onnx.Value {
	for _, n := range slices.Backward(path) {
		if n.Is("Identity", "Cast") {
			continue
		}
		inputs := slices.Clone(n.Inputs)
		inputs[0] = x
		c := a.Graph.CloneNode(n, inputs, func(name string) string { return name + ".logits" })
		c.Out(0).Type = onnx.TensorOf(x.Type.DType, n.Out(0).Type.Shape)
		a.Nodes = append(a.Nodes, c)
		x = c.Out(0)
	}
	return x
}
