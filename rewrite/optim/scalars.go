package optim

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// scalars are the numbers that all updates share, rank 0, float32. With
// accumulation they have their neutral values (see each) in the steps that do
// not update.
type scalars struct {
	// keepM and keepV scale the state (neutral 1), gradM and gradV the gradient
	// that goes into it (neutral 0; gradV before squaring).
	keepM, gradM, keepV, gradV *onnx.Value
	// gradDecayed and decayM are SGD's, where the momentum holds the decay:
	// the gradient is scaled to what the parameter is, both then by decayM
	// (neutral 0).
	gradDecayed, decayM *onnx.Value
	// rate scales what is subtracted from the parameter (neutral 0), keepP what
	// is left of a parameter that decays (neutral 1) and whose rate therefore
	// is rateDecayed; eps is what is added to the root.
	rate, rateDecayed, keepP, eps *onnx.Value
	// keepAcc scales the sum of gradients that is kept: 0 after an update.
	keepAcc *onnx.Value
	// grads are the gradients that the updates read, by parameter: those of
	// the step, or the sums.
	grads map[*onnx.Value]*onnx.Value
	// clips are the shares that gradients clipped by their own norm keep, by
	// parameter, and squares the sums of squares that an update waits for where
	// the norm of the step before clips (clip.go).
	clips, squares map[*onnx.Value]*onnx.Value
}

// scalars declares lr and step and computes what depends on them, on the
// gradients' norm and on accumulation.
func (a *applier) scalars(params []Param) {
	scalar := onnx.StaticShape()
	lr := a.g.AddInput("lr", onnx.TensorOf(onnx.Float32, scalar))
	step := a.g.AddInput("step", onnx.TensorOf(onnx.Int64, scalar))
	a.s.grads, a.s.clips, a.s.squares = map[*onnx.Value]*onnx.Value{}, map[*onnx.Value]*onnx.Value{}, map[*onnx.Value]*onnx.Value{}
	for _, p := range params {
		a.s.grads[p.Value] = p.Grad
	}
	n := max(a.o.Accumulate, 1)
	var due *onnx.Value
	if n > 1 {
		a.accumulate(params)
		due = a.named("due", "Equal", build.In(a.named("phase", "Mod", build.In(step, a.b.Int(n))), a.b.Int(0)))
		later := a.named("later", "Add", build.In(step, a.b.Int(n-1)))
		step = a.named("update_number", "Div", build.In(later, a.b.Int(n)))
		a.s.keepAcc = a.gate("keep_acc", due, a.f32(0), 1)
	}
	factor := a.gradientFactor(params, n, due)
	// The rate is float64 until it has been divided by what decay leaves.
	var rate *onnx.Value
	if a.o.Kind == AdamW {
		rate = a.adamScalars(lr, step, factor)
	} else {
		rate = a.sgdScalars(lr, factor)
	}
	a.s.rate = a.float("rate", rate)
	if a.o.WeightDecay > 0 && (a.o.Kind == AdamW || a.o.Momentum == 0) {
		decayed := a.named("decay", "Mul", build.In(a.lr64(lr), a.f64(a.o.WeightDecay)))
		kept := a.named("kept_share", "Sub", build.In(a.f64(1), decayed))
		a.s.keepP = a.float("keep_p", kept)
		a.s.rateDecayed = a.float("rate_decayed", a.named("rate_decayed_double", "Div", build.In(rate, kept)))
	}
	a.gates(due)
}

// gates gives the scalars their neutral values where no update is due.
func (a *applier) gates(due *onnx.Value) {
	s := &a.s
	for _, c := range []struct {
		name    string
		v       **onnx.Value
		neutral float64
	}{
		{"keep_m", &s.keepM, 1}, {"grad_m", &s.gradM, 0}, {"keep_v", &s.keepV, 1}, {"grad_v", &s.gradV, 0},
		{"grad_decayed", &s.gradDecayed, 0}, {"decay_m", &s.decayM, 0},
		{"rate", &s.rate, 0}, {"rate_decayed", &s.rateDecayed, 0}, {"keep_p", &s.keepP, 1},
	} {
		*c.v = a.gate(c.name+"_due", due, *c.v, c.neutral)
	}
}

// adamScalars: with c1 = 1-beta1^t and c2 = 1-beta2^t, AdamW's
// lr/c1 · m / (sqrt(v)/sqrt(c2) + eps) is rate · m / (sqrt(v) + eps·sqrt(c2))
// where rate is lr·sqrt(c2)/c1, which saves a pass over v.
func (a *applier) adamScalars(lr, step, factor *onnx.Value) *onnx.Value {
	t := a.named("step_double", "Cast", build.In(step), to(onnx.Float64))
	correction := func(name string, beta float64) *onnx.Value {
		power := a.named(name+"_power", "Pow", build.In(a.f64(beta), t))
		return a.named(name, "Sub", build.In(a.f64(1), power))
	}
	c1, c2 := correction("correction1", a.o.Beta1), correction("correction2", a.o.Beta2)
	root := a.named("correction2_root", "Sqrt", build.In(c2))
	ratio := a.named("correction_ratio", "Div", build.In(root, c1))
	a.s.eps = a.float("eps", a.named("eps_double", "Mul", build.In(root, a.f64(a.o.Eps))))
	a.s.keepM, a.s.keepV = a.f32(a.o.Beta1), a.f32(a.o.Beta2)
	a.s.gradM = a.times("grad_m", factor, (1-a.o.Beta1)*before(a.o.Beta1))
	a.s.gradV = a.times("grad_v", factor, math.Sqrt((1-a.o.Beta2)*before(a.o.Beta2)))
	return a.named("rate_double", "Mul", build.In(a.lr64(lr), ratio))
}

// sgdScalars: without momentum one product makes the whole of the update, so
// the factor goes into the rate.
func (a *applier) sgdScalars(lr, factor *onnx.Value) *onnx.Value {
	rate, mu, decay := a.lr64(lr), a.o.Momentum, a.o.WeightDecay
	if mu == 0 {
		if factor != nil {
			wide := a.named("factor_double", "Cast", build.In(factor), to(onnx.Float64))
			rate = a.named("rate_double", "Mul", build.In(rate, wide))
		}
		return rate
	}
	a.s.keepM, a.s.gradM = a.f32(mu), a.times("grad_m", factor, before(mu))
	if decay > 0 {
		a.s.gradDecayed, a.s.decayM = a.times("grad_decayed", factor, 1/decay), a.f32(decay*before(mu))
	}
	return rate
}

// lr64 is lr in float64.
func (a *applier) lr64(lr *onnx.Value) *onnx.Value {
	if v := a.g.Value(prefix + "lr_double"); v != nil {
		return v
	}
	return a.named("lr_double", "Cast", build.In(lr), to(onnx.Float64))
}

// accumulate replaces each gradient by its sum with what was kept.
func (a *applier) accumulate(params []Param) {
	for _, p := range params {
		a.b.Scope = p.Value.Name
		kept := a.g.AddInput(p.Value.Name+".acc", p.Value.Type)
		a.s.grads[p.Value] = a.named("acc_add", "Add", build.In(kept, p.Grad))
		a.res.States = append(a.res.States, State{Input: kept})
	}
	a.b.Scope = ""
}

// gate is v where an update is due and the neutral number elsewhere; without
// accumulation, or without v, it is v.
func (a *applier) gate(what string, due, v *onnx.Value, neutral float64) *onnx.Value {
	if due == nil || v == nil {
		return v
	}
	return a.named(what, "Where", build.In(due, v, a.f32(neutral)))
}

// times is factor·v as a float32 scalar; factor nil stands for 1.
func (a *applier) times(what string, factor *onnx.Value, v float64) *onnx.Value {
	if factor == nil {
		return a.f32(v)
	}
	return a.named(what, "Mul", build.In(factor, a.f32(v)))
}

// named makes a node remat/optim/SCOPE/what.
func (a *applier) named(what, op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	name := prefix + what
	if a.b.Scope != "" {
		name = prefix + a.b.Scope + "/" + what
	}
	return a.b.NodeNamed("", op, name, in, []string{name}, attrs...)[0]
}

func (a *applier) float(what string, v *onnx.Value) *onnx.Value {
	return a.named(what, "Cast", build.In(v), to(onnx.Float32))
}

func (a *applier) f32(v float64) *onnx.Value { return a.b.Scalar(onnx.Float32, v) }
func (a *applier) f64(v float64) *onnx.Value { return a.b.Scalar(onnx.Float64, v) }

func to(d onnx.DType) onnx.Attribute { return onnx.IntAttr("to", int64(d)) }
