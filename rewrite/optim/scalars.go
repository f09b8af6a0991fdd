package optim

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A scalar is a number that updates scale something with, rank 0, float32. With
// accumulation it is neutral in the steps that do not update: what it scales then
// leaves state and parameter as they are.
type scalar struct {
	name    string
	neutral float64 // 1 for what is kept, 0 for what is added
	*onnx.Value
}

// scalars are the numbers that all updates share.
type scalars struct {
	// by holds those that rows declare, and rate, what is subtracted from the
	// parameter is scaled with, and keep_p, what is left of one that decays;
	// decayed those that differ for parameters that decay. list has them all in
	// their order.
	by, decayed map[string]*scalar
	list        []*scalar
	// factor is what every gradient is multiplied by, nil for 1.
	factor *onnx.Value
	// draw is the number of the draw that random signs are of, int64, and signs are those
	// of each length (random.go).
	draw  *onnx.Value
	signs map[int64]*onnx.Value
	// correction is what bias correction makes of the rate, where not all of a row's
	// parameters are updated by AdamW.
	correction *onnx.Value
	// eps is what is added to a root.
	eps *onnx.Value
	// keepAcc scales the sum of gradients that is kept: 0 after an update.
	keepAcc *scalar
	// share is one over the number of gradients in a sum, where that is fed.
	share *onnx.Value
	// grads are the gradients that the updates read, by parameter: those of
	// the step, or the sums.
	grads map[*onnx.Value]*onnx.Value
	// clips are the shares that gradients clipped by their own norm keep, by
	// parameter, and squares the sums of squares that an update waits for where
	// the norm of the step before clips (clip.go).
	clips, squares map[*onnx.Value]*onnx.Value
}

// declare adds a scalar to those that updates name.
func (a *applier) declare(name string, neutral float64, v *onnx.Value) {
	s := &scalar{name, neutral, v}
	a.s.by[name] = s
	a.s.list = append(a.s.list, s)
}

// declareDecayed says what a declared scalar is for parameters that decay.
func (a *applier) declareDecayed(name, as string, v *onnx.Value) {
	s := &scalar{as, a.s.by[name].neutral, v}
	a.s.decayed[name] = s
	a.s.list = append(a.s.list, s)
}

// scalar is a declared one, that of parameters that decay where this one does.
func (u *updater) scalar(name string) *scalar {
	if s := u.s.decayed[name]; u.decay && s != nil {
		return s
	}
	if u.s.by[name] == nil {
		u.b.Fail(fmt.Errorf("its row declares no scalar %q", name))
	}
	return u.s.by[name]
}

// scalars declares lr and step and computes what depends on them, on the
// gradients' norm and on accumulation.
func (a *applier) scalars(params []Param) {
	none := onnx.StaticShape()
	lr := a.g.AddInput("lr", onnx.TensorOf(onnx.Float32, none))
	step := a.g.AddInput("step", onnx.TensorOf(onnx.Int64, none))
	a.s.by, a.s.decayed = map[string]*scalar{}, map[string]*scalar{}
	a.s.grads, a.s.clips, a.s.squares = map[*onnx.Value]*onnx.Value{}, map[*onnx.Value]*onnx.Value{}, map[*onnx.Value]*onnx.Value{}
	for _, p := range params {
		a.s.grads[p.Value] = p.Grad
	}
	n := max(a.o.Accumulate, 1)
	var due *onnx.Value
	switch {
	case a.apart: // every run updates
		a.s.share = a.g.AddInput(ShareInput, onnx.TensorOf(onnx.Float32, none))
		for _, p := range params {
			a.s.grads[p.Value] = a.kept(p.Value)
		}
		a.s.keepAcc = &scalar{"keep_acc", 1, a.f32(0)}
	case n > 1:
		a.accumulate(params)
		due = a.named("due", "Equal", build.In(a.named("phase", "Mod", build.In(step, a.b.Int(n))), a.b.Int(0)))
		later := a.named("later", "Add", build.In(step, a.b.Int(n-1)))
		step = a.named("update_number", "Div", build.In(later, a.b.Int(n)))
		a.s.keepAcc = &scalar{"keep_acc", 1, a.f32(0)}
		a.gate("keep_acc", due, a.s.keepAcc)
	}
	row, factor := a.o.Kind.row(), a.gradientFactor(params, n, due)
	a.s.factor = factor
	// The rate is float64 until it has been divided by what decay leaves.
	rate := row.scalars(a, lr, step, factor)
	a.declare("rate", 0, a.float("rate", rate))
	if a.o.WeightDecay > 0 && row.decays(&a.o) {
		decayed := a.named("decay", "Mul", build.In(a.lr64(lr), a.f64(a.o.WeightDecay)))
		kept := a.named("kept_share", "Sub", build.In(a.f64(1), decayed))
		keep := a.float("keep_p", kept)
		a.declareDecayed("rate", "rate_decayed", a.float("rate_decayed", a.named("rate_decayed_double", "Div", build.In(rate, kept))))
		a.declare("keep_p", 1, keep)
	}
	for _, s := range a.s.list {
		a.gate(s.name+"_due", due, s)
	}
}

// lr64 is lr in float64, and step64 the number of the update.
func (a *applier) lr64(lr *onnx.Value) *onnx.Value     { return a.double("lr_double", lr) }
func (a *applier) step64(step *onnx.Value) *onnx.Value { return a.double("step_double", step) }

// double is a scalar of all updates in float64, under a name.
func (a *applier) double(name string, x *onnx.Value) *onnx.Value {
	if v := a.g.Value(prefix + name); v != nil {
		return v
	}
	return a.named(name, "Cast", build.In(x), to(onnx.Float64))
}

// declareOne declares the scalar one, for what is scaled only where a step is left out.
// It is 1 as the sign of the update's number: ONNX Runtime would take off a product with
// a constant 1, and order the file anew.
func (a *applier) declareOne(step *onnx.Value) {
	a.declare("one", 0, a.float("one", a.named("one_double", "Sign", build.In(a.step64(step)))))
}

// accumulate replaces each gradient by its sum with what was kept.
func (a *applier) accumulate(params []Param) {
	for _, p := range params {
		a.b.Scope = p.Value.Name
		a.s.grads[p.Value] = a.named("acc_add", "Add", build.In(a.kept(p.Value), p.Grad))
	}
	a.b.Scope = ""
}

// kept declares the sum of a parameter's gradients.
func (a *applier) kept(p *onnx.Value) *onnx.Value {
	v := a.g.AddInput(p.Name+"."+accState, p.Type)
	a.res.States = append(a.res.States, v)
	return v
}

// gate makes a scalar neutral where no update is due; without accumulation it
// stays.
func (a *applier) gate(what string, due *onnx.Value, s *scalar) {
	if due != nil && s.Value != nil {
		s.Value = a.named(what, "Where", build.In(due, s.Value, a.f32(s.neutral)))
	}
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

// step notes which of the pass's steps makes v.
func (a *applier) step(step string, v *onnx.Value) *onnx.Value {
	if v != nil {
		v.Producer.SetOrigin(onnx.Origin{Pass: Pass, Of: a.b.Scope, Step: step})
	}
	return v
}

func (a *applier) float(what string, v *onnx.Value) *onnx.Value {
	return a.named(what, "Cast", build.In(v), to(onnx.Float32))
}

func (a *applier) f32(v float64) *onnx.Value { return a.b.Scalar(onnx.Float32, v) }
func (a *applier) f64(v float64) *onnx.Value { return a.b.Scalar(onnx.Float64, v) }

func to(d onnx.DType) onnx.Attribute { return onnx.IntAttr("to", int64(d)) }
