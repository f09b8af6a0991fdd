package optim

// The update of one parameter, each line a node remat/optim/P/STEP:
//
//	AdamW                                    SGD with momentum
//	m_add   = grad · gradM                   m_add   = grad · gradM
//	m_sum   = P.m + m_add                    (m_both = P + m_add
//	P.m.new = m_sum · keepM      next.m       m_decay = m_both · decay)
//	v_scale = grad · gradV                   m_sum   = P.m + m_add (or m_decay)
//	v_add   = v_scale · v_scale              P.m.new = m_sum · keepM      next.m
//	v_sum   = P.v + v_add                    rated   = P.m.new · rate
//	P.v.new = v_sum · keepV      next.v      P.new   = P - rated          next
//	root    = sqrt(P.v.new)
//	floor   = root + eps                     SGD without
//	quot    = P.m.new / floor                rated   = grad · rate
//	rated   = quot · rate                    and on as AdamW
//	less    = P - rated
//	P.new   = less · keepP       next
//
// Without decay P.new is P - rated. Scaling comes last, β·(m + g·(1-β)/β) in
// place of β·m + (1-β)·g, so that every node needs the gradient: one that could
// run at the start of the step, as β·m, is taken early by an order that looks
// for little memory, and then no file order of ONNX Runtime expresses it. For β
// near 0 the plain form stands (m_keep = P.m · keepM, P.m.new = m_keep + m_add).
//
// The scalars are float32; a parameter of another float type gets them cast.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// updater is the update of one parameter.
type updater struct {
	*applier
	p, grad *onnx.Value
	decay   bool
}

func (a *applier) update(p Param) {
	if a.b.Err() != nil {
		return
	}
	a.b.Scope = p.Value.Name
	u := &updater{applier: a, p: p.Value, grad: a.s.grads[p.Value], decay: a.o.WeightDecay > 0}
	if u.decay && a.o.NoDecay != nil && a.o.NoDecay(p.Value.Name, len(p.Value.Type.Shape)) {
		u.decay = false
		a.res.NoDecay = append(a.res.NoDecay, p.Value.Name)
	}
	rate := a.s.rate
	if u.decay {
		rate = a.s.rateDecayed
	}
	switch {
	case a.o.Kind == AdamW:
		u.next(u.mul("rated", u.adamw(), rate), u.decay)
	case a.o.Momentum > 0:
		u.next(u.mul("rated", u.momentum(), a.s.rate), false)
	default:
		u.next(u.mul("rated", u.grad, u.clipped("rate", u.waiting(rate))), u.decay)
	}
	if a.s.keepAcc != nil {
		kept := a.g.Value(p.Value.Name + ".acc")
		u.output(kept, u.mul(kept.Name+".new", u.grad, a.s.keepAcc))
	}
	a.b.Scope = ""
}

// adamw is m over the root of v, not yet corrected.
func (u *updater) adamw() *onnx.Value {
	s := &u.s
	m := u.average("m", u.mul("m_add", u.grad, u.clipped("grad_m", u.waiting(s.gradM))), s.keepM, u.o.Beta1)
	scaled := u.mul("v_scale", u.grad, u.clipped("grad_v", s.gradV))
	v := u.average("v", u.named("v_add", "Mul", build.In(scaled, scaled)), s.keepV, u.o.Beta2)
	root := u.named("root", "Sqrt", build.In(v))
	floor := u.named("floor", "Add", build.In(root, u.like(s.eps)))
	return u.named("quot", "Div", build.In(m, floor))
}

// momentum is SGD's: decay joins the gradient and so passes through the
// momentum.
func (u *updater) momentum() *onnx.Value {
	s := &u.s
	grad, share := s.gradM, s.decayM
	if u.decay {
		grad = s.gradDecayed
	}
	add := u.mul("m_add", u.grad, u.clipped("grad_m", u.waiting(grad)))
	if u.decay {
		add = u.mul("m_decay", u.named("m_both", "Add", build.In(u.p, add)), share)
	}
	return u.average("m", add, s.keepM, u.o.Momentum)
}

// average declares the state P.letter and makes its next value, of which keep
// has the value beta where the step updates.
func (u *updater) average(letter string, add, keep *onnx.Value, beta float64) *onnx.Value {
	old := u.g.AddInput(u.p.Name+"."+letter, u.p.Type)
	u.res.States = append(u.res.States, State{Input: old})
	var next *onnx.Value
	if beta < scaleLast {
		next = u.add(old.Name+".new", "Add", u.mul(letter+"_keep", old, keep), add)
	} else {
		sum := u.named(letter+"_sum", "Add", build.In(old, add))
		next = u.add(old.Name+".new", "Mul", sum, u.like(keep))
	}
	u.output(old, next)
	return next
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

// next makes P.new: P less rated, scaled where it decays.
func (u *updater) next(rated *onnx.Value, decay bool) {
	if !decay {
		u.output(u.p, u.add(u.p.Name+".new", "Sub", u.p, rated))
		return
	}
	less := u.named("less", "Sub", build.In(u.p, rated))
	u.output(u.p, u.add(u.p.Name+".new", "Mul", less, u.like(u.s.keepP)))
}

// output makes v, which bears the name of old's next value, a graph output.
func (u *updater) output(old, v *onnx.Value) {
	if v == nil {
		return
	}
	u.g.AddOutput(v)
	u.res.Next[old] = v
	for i := range u.res.States {
		if u.res.States[i].Input == old {
			u.res.States[i].Output = v
		}
	}
}

// mul scales x. What is a step, or the name of an output.
func (u *updater) mul(what string, x, scalar *onnx.Value) *onnx.Value {
	if u.isOutputName(what) {
		return u.add(what, "Mul", x, u.like(scalar))
	}
	return u.named(what, "Mul", build.In(x, u.like(scalar)))
}

func (u *updater) isOutputName(what string) bool {
	return len(what) > len(u.p.Name) && what[:len(u.p.Name)] == u.p.Name
}

// add makes a node whose output bears its name outside the optimizer's prefix.
func (u *updater) add(output, op string, x, y *onnx.Value) *onnx.Value {
	step := "next" + output[len(u.p.Name):len(output)-len(".new")]
	return u.b.NodeNamed("", op, prefix+u.p.Name+"/"+step, build.In(x, y), []string{output})[0]
}

// like casts a scalar to the parameter's element type.
func (u *updater) like(scalar *onnx.Value) *onnx.Value {
	d := u.p.Type.DType
	if scalar == nil || d == onnx.Float32 {
		return scalar
	}
	name := scalar.Name + "." + d.String()
	if v := u.g.Value(name); v != nil {
		return v
	}
	return u.b.NodeNamed("", "Cast", name, build.In(scalar), []string{name}, to(d))[0]
}
