package optim

// torch.optim.AdamW (Loshchilov and Hutter 2019, "Decoupled Weight Decay
// Regularization"): bias correction from step, eps outside the root.
//
//	m_add   = grad · grad_m        v_scale = grad · grad_v         root  = sqrt(P.v.new)
//	m_sum   = P.m + m_add          v_add   = v_scale · v_scale     floor = root + eps
//	P.m.new = m_sum · keep_m       v_sum   = P.v + v_add           quot  = P.m.new / floor
//	                               P.v.new = v_sum · keep_v        rated = quot · rate
//
// With c1 = 1-beta1^t and c2 = 1-beta2^t, lr/c1 · m / (sqrt(v)/sqrt(c2) + eps) is
// rate · m / (sqrt(v) + eps·sqrt(c2)) where rate is lr·sqrt(c2)/c1, which saves a
// pass over v.

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var adamw = row{
	kind:     AdamW,
	settings: []defaulted{{&weightDecay, 0.01}, {&beta1, 0.9}, {&beta2, 0.999}, {&eps, 1e-8}},
	rate:     3e-4,
	state:    func(_ *applier, p *onnx.Value) []held { return alike(p.Type, "m", "v") },
	decays:   func(*Options) bool { return true },
	scalars:  adamScalars,
	update:   func(u *updater) { u.next(u.scale("rated", u.adamw(), "rate")) },
}

func adamScalars(a *applier, lr, step, factor *onnx.Value) *onnx.Value {
	return a.named("rate_double", "Mul", build.In(a.lr64(lr), a.adamCorrection(step, factor)))
}

// adamCorrection declares the scalars of both moments and returns what bias correction
// makes of the rate, float64.
func (a *applier) adamCorrection(step, factor *onnx.Value) *onnx.Value {
	t := a.step64(step)
	correction := func(name string, beta float64) *onnx.Value {
		power := a.named(name+"_power", "Pow", build.In(a.f64(beta), t))
		return a.named(name, "Sub", build.In(a.f64(1), power))
	}
	c1, c2 := correction("correction1", a.o.Beta1), correction("correction2", a.o.Beta2)
	root := a.named("correction2_root", "Sqrt", build.In(c2))
	ratio := a.named("correction_ratio", "Div", build.In(root, c1))
	a.s.eps = a.float("eps", a.named("eps_double", "Mul", build.In(root, a.f64(a.o.Eps))))
	a.declare("keep_m", 1, a.f32(a.o.Beta1))
	keepV := a.f32(a.o.Beta2)
	a.declare("grad_m", 0, a.times("grad_m", factor, a.o.share1()))
	a.declare("keep_v", 1, keepV)
	a.declare("grad_v", 0, a.times("grad_v", factor, a.o.share2()))
	return ratio
}

// share1 is what a gradient is multiplied by for m, before m is scaled by beta1, and
// share2 for its square in v.
func (o *Options) share1() float64 { return (1 - o.Beta1) * before(o.Beta1) }
func (o *Options) share2() float64 { return math.Sqrt((1 - o.Beta2) * before(o.Beta2)) }

// adamw is m over the root of v, not yet corrected.
func (u *updater) adamw() *onnx.Value {
	return u.moments(func(what, of string) *onnx.Value { return u.scaleGradient(what, "grad_"+of) })
}

// moments are those of what grad scales, by the moment's name: m over the root of v.
func (u *updater) moments(grad func(what, of string) *onnx.Value) *onnx.Value {
	m := u.average("m", grad("m_add", "m"), u.o.Beta1)
	scaled := grad("v_scale", "v")
	v := u.average("v", u.named("v_add", "Mul", build.In(scaled, scaled)), u.o.Beta2)
	root := u.named("root", "Sqrt", build.In(v))
	floor := u.named("floor", "Add", build.In(root, u.as(root, u.s.eps)))
	return u.named("quot", "Div", build.In(m, floor))
}
