package optim

// The update of one parameter, each line a node remat/optim/P/STEP. A row's
// update makes the state's next values and what is to be subtracted, rated:
//
//	P.new = P - rated   next       with decay  less  = P - rated
//	                                           P.new = less · keep_p   next
//
// Of averages scaling comes last, β·(m + g·(1-β)/β) in place of β·m + (1-β)·g, so
// that every node needs the gradient: one that could run at the start of the step,
// as β·m, is taken early by an order that looks for little memory, and then no file
// order of ONNX Runtime expresses it. For β near 0 the plain form stands (m_keep =
// P.m · keep_m, P.m.new = m_keep + m_add).
//
// A product with a scalar notes in its metadata what the scalar must be for the
// product to change nothing, so that a later pass can have a step skipped (hooks.go).
//
// The scalars are float32; a parameter of another float type gets them cast.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// updater is the update of one parameter.
type updater struct {
	*applier
	p, grad *onnx.Value
	decay   bool
	begun   bool // something of the gradient is made
	// state holds what has a next value, by name: the tensors that the row keeps of the
	// parameter, a sum of gradients, and as "" the parameter.
	state map[string]*onnx.Value
}

func (a *applier) update(p Param) {
	if a.b.Err() != nil {
		return
	}
	a.b.Scope = p.Value.Name
	u := &updater{applier: a, p: p.Value, grad: a.s.grads[p.Value], decay: a.o.WeightDecay > 0, state: map[string]*onnx.Value{"": p.Value}}
	if u.decay && slices.ContainsFunc(a.o.NoDecay, func(e Exemption) bool { return e.has(p.Value) }) {
		u.decay = false
		a.res.NoDecay = append(a.res.NoDecay, p.Value.Name)
	}
	row := a.o.Kind.row()
	for _, h := range row.state(a, p.Value) {
		u.state[h.name] = a.g.AddInput(p.Value.Name+"."+h.name, h.Type)
		a.res.States = append(a.res.States, u.state[h.name])
	}
	row.update(u)
	if a.s.keepAcc != nil {
		u.state[accState] = a.g.Value(p.Value.Name + "." + accState)
		u.nextProduct(accState, u.grad, a.s.keepAcc)
	}
	a.b.Scope = ""
}

// average makes the next value of the state P.letter, which keeps beta of it where
// the step updates, by the scalar keep_letter.
func (u *updater) average(letter string, add *onnx.Value, beta float64) *onnx.Value {
	return u.averageBy(letter, add, beta, "keep_"+letter)
}

// averageBy is average by a scalar of another name.
func (u *updater) averageBy(letter string, add *onnx.Value, beta float64, keep string) *onnx.Value {
	old := u.state[letter]
	if beta < scaleLast {
		return u.nextOf(letter, "Add", build.In(u.scale(letter+"_keep", old, keep), add))
	}
	return u.nextProduct(letter, u.named(letter+"_sum", "Add", build.In(old, add)), u.scalar(keep))
}

// toward makes the next value of the state P.name: the share named share of the way
// from the old one to x.
func (u *updater) toward(name string, x *onnx.Value, share string) *onnx.Value {
	old := u.state[name]
	way := u.scale(name+"_way", u.named(name+"_off", "Sub", build.In(x, old)), share)
	return u.nextOf(name, "Add", build.In(old, way))
}

// scaleLast is the least β for which the state is scaled last.
const scaleLast = 0.01

// before is what a state's addend must be multiplied with, so that scaling by
// beta afterwards leaves it as it was.
func before(beta float64) float64 {
	if beta < scaleLast {
		return 1
	}
	return 1 / beta
}

// next makes P.new: P less rated, scaled where decay does that.
func (u *updater) next(rated *onnx.Value) {
	if !u.decay || u.s.by["keep_p"] == nil {
		u.nextOf("", "Sub", build.In(u.p, rated))
		return
	}
	u.nextProduct("", u.named("less", "Sub", build.In(u.p, rated)), u.scalar("keep_p"))
}

// nextOf makes the next value of a state, which is a graph output: P.m.new of m. Its
// node says which state it is of.
func (u *updater) nextOf(state, op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	old, step := u.state[state], nextStep(state)
	v := u.step(step, u.b.NodeNamed("", op, prefix+u.p.Name+"/"+step, in, []string{old.Name + ".new"}, attrs...)[0])
	if v == nil {
		return nil
	}
	u.g.AddOutput(v)
	u.res.Next[old] = v
	return v
}

// nextProduct makes the next value of a state as x times s.
func (u *updater) nextProduct(state string, x *onnx.Value, s *scalar) *onnx.Value {
	if s == nil {
		return nil
	}
	return withNeutral(u.nextOf(state, "Mul", build.In(x, u.as(x, s.Value))), s)
}

// scale is x times a declared scalar.
func (u *updater) scale(what string, x *onnx.Value, name string) *onnx.Value {
	return u.mul(what, x, u.scalar(name))
}

// scaleGradient is the gradient times a declared scalar and what clipping leaves of
// it. What comes first waits for the gradient's squares, where they are summed.
func (u *updater) scaleGradient(what, name string) *onnx.Value {
	return u.gradientTimes(what, u.scalar(name))
}

// gradientTimes is the gradient times a scalar and what clipping leaves of it.
func (u *updater) gradientTimes(what string, s *scalar) *onnx.Value {
	if s == nil {
		return nil
	}
	v := s.Value
	if !u.begun {
		v, u.begun = u.waiting(v), true
	}
	return u.mul(what, u.grad, &scalar{s.name, s.neutral, u.clipped(s.name, v)})
}

// ownGradient is the gradient that the optimizer's formulas mean, times what averaging
// and clipping leave of it: the one reader of what backward made, for an update that reads
// it several times. Its row declares one.
func (u *updater) ownGradient() *onnx.Value {
	s := *u.scalar("one")
	if u.s.factor != nil {
		s.Value = u.s.factor
	}
	return u.gradientTimes("gradient", &s)
}

// mul is x times s, and notes what of s changes nothing.
func (u *updater) mul(what string, x *onnx.Value, s *scalar) *onnx.Value {
	if s == nil {
		return nil
	}
	return withNeutral(u.named(what, "Mul", build.In(x, u.as(x, s.Value))), s)
}

// withNeutral notes in the product v what of s changes nothing.
func withNeutral(v *onnx.Value, s *scalar) *onnx.Value {
	if v != nil {
		setNeutral(v.Producer, s.neutral)
	}
	return v
}

// like casts a scalar to the parameter's element type.
func (u *updater) like(scalar *onnx.Value) *onnx.Value { return u.as(u.p, scalar) }

// as casts a scalar to the element type of x.
func (u *updater) as(x, scalar *onnx.Value) *onnx.Value {
	if x == nil || scalar == nil || x.Type.DType == onnx.Float32 {
		return scalar
	}
	d := x.Type.DType
	name := scalar.Name + "." + d.String()
	if v := u.g.Value(name); v != nil {
		return v
	}
	return u.b.NodeNamed("", "Cast", name, build.In(scalar), []string{name}, to(d))[0]
}
