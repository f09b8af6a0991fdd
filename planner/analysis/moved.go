package analysis

// What an output is the next state of. An optimizer moves what it updates, so
// the output is the input times a number, plus what else there is:
//
//	P.new = P·(1-decay) - lr·m.new/√v.new      of P: 1-decay, of m: -0.1·lr/…
//	m.new = 0.9·m + g                           of m: 0.9
//	v.new = max(v, …), or Where(skip, v, …)     of v: some number
//
// A gradient may hold its weight too, when nothing but elementwise operators
// stand between: w/|w| of a normalized weight, s·(1-s) of a gate, decay·w of a
// penalty in the loss. There the weight comes through an operator that is not
// linear or that the loss needs, times something of its own, or times a number
// that no optimizer takes.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Between these lies what is left of a weight in its next value.
const (
	leastKept = 0.5
	mostKept  = 1 + 1e-6
)

// A share is a value's factor in another one, NaN where it is no constant, and
// the values of many elements that it was multiplied by on the way.
type share struct {
	factor float64
	by     []*onnx.Value
}

// shares are the factors of inputs and initializers.
type shares map[*onnx.Value]share

// movedTo returns the inputs and initializers of v's shape of which v may be the
// next value.
func (f *roleFinder) movedTo(v *onnx.Value) reach {
	found := reach{map[*onnx.Value]bool{}, map[*onnx.Value]bool{}}
	for in, s := range f.linear(v, v, map[*onnx.Value]shares{}) {
		state := in.IsInput() && !in.IsConstant() && !f.read[in]
		if !state && (s.factor < leastKept || s.factor > mostKept || f.anyNeeds(s.by, in)) {
			continue
		}
		if in.IsInput() && !in.IsConstant() {
			found.inputs[in] = true
		} else if f.weight(in) {
			found.weights[in] = true
		}
	}
	return found
}

// linear takes x, on the way to v, apart into what of v's shape it is a sum of.
func (f *roleFinder) linear(x, v *onnx.Value, known map[*onnx.Value]shares) shares {
	if x == nil || !f.sameShape(x, v) {
		return nil
	}
	if s, ok := known[x]; ok {
		return s
	}
	known[x] = nil
	sum := shares{}
	n := x.Producer
	if n == nil {
		sum[x] = share{factor: 1}
		known[x] = sum
		return sum
	}
	add := func(in *onnx.Value, factor float64, by ...*onnx.Value) {
		for w, s := range f.linear(in, v, known) {
			t := sum[w]
			sum[w] = share{t.factor + factor*s.factor, append(append(t.by, s.by...), by...)}
		}
	}
	switch {
	case traits.IsView(n), n.Is("Cast"):
		add(n.In(0), 1)
	case f.forward.Has(n): // a value of the model, not of the optimizer
	case n.Is("Add", "Sum"):
		for _, in := range n.Inputs {
			add(in, 1)
		}
	case n.Is("Sub"):
		add(n.In(0), 1)
		add(n.In(1), -1)
	case n.Is("Neg"):
		add(n.In(0), -1)
	case n.Is("Mul"):
		for i := range 2 {
			factor, by := f.times(n.In(1 - i))
			add(n.In(i), factor, by...)
		}
	case n.Is("Div"):
		factor, by := f.times(n.In(1))
		add(n.In(0), 1/factor, by...)
	case n.Is("Gemm"):
		add(n.In(2), n.Float("beta", 1))
	case n.Is("Max", "Min", "Clip", "Where"):
		for i, in := range n.Inputs {
			if i > 0 || !n.Is("Where") {
				add(in, math.NaN())
			}
		}
	}
	known[x] = sum
	return sum
}

// times says by what a factor multiplies: a constant, else an unknown number,
// which belongs to the value if that has many elements.
func (f *roleFinder) times(v *onnx.Value) (float64, []*onnx.Value) {
	if c, ok := v.Number(); ok {
		return c, nil
	}
	if v == nil || f.a.elements(v) == 1 {
		return math.NaN(), nil
	}
	return math.NaN(), []*onnx.Value{v}
}

// anyNeeds reports that one of the values is computed from in.
func (f *roleFinder) anyNeeds(values []*onnx.Value, in *onnx.Value) bool {
	if len(values) == 0 {
		return false
	}
	after := f.a.deps.Forward(step.Any, in)
	return slices.ContainsFunc(values, func(v *onnx.Value) bool { return v == in || after.Has(v.Producer) })
}
