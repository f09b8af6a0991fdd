package optim

// torch.optim.SGD, momentum without dampening:
//
//	without momentum               with
//	rated = grad · rate            m_add   = grad · grad_m
//	P.new = P - rated   next       (m_both = P + m_add
//	                                m_decay = m_both · decay_m)
//	                               m_sum   = P.m + m_add (or m_decay)
//	                               P.m.new = m_sum · keep_m      next.m
//	                               rated   = P.m.new · rate
//	                               P.new   = P - rated           next
//
// Without momentum one product makes the whole of the update, so what gradients
// are multiplied by goes into the rate, and decay scales the parameter. With it,
// decay joins the gradient and so passes through the momentum.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var sgd = row{
	kind:     SGD,
	settings: []defaulted{{&momentum, 0}, {&weightDecay, 0}},
	rate:     0.02,
	state: func(a *applier, p *onnx.Value) []held {
		if a.o.Momentum > 0 {
			return alike(p.Type, "m")
		}
		return nil
	},
	decays:  func(o *Options) bool { return o.Momentum == 0 },
	scalars: sgdScalars,
	update: func(u *updater) {
		if u.o.Momentum > 0 {
			u.next(u.scale("rated", u.momentum(), "rate"))
		} else {
			u.next(u.scaleGradient("rated", "rate"))
		}
	},
}

func sgdScalars(a *applier, lr, _, factor *onnx.Value) *onnx.Value {
	rate, mu, decay := a.lr64(lr), a.o.Momentum, a.o.WeightDecay
	if mu == 0 {
		if factor != nil {
			wide := a.named("factor_double", "Cast", build.In(factor), to(onnx.Float64))
			rate = a.named("rate_double", "Mul", build.In(rate, wide))
		}
		return rate
	}
	a.declare("keep_m", 1, a.f32(mu))
	a.declare("grad_m", 0, a.times("grad_m", factor, before(mu)))
	if decay > 0 { // the gradient is scaled to what the parameter is, both then by decay_m
		a.declareDecayed("grad_m", "grad_decayed", a.times("grad_decayed", factor, 1/decay))
		a.declare("decay_m", 0, a.f32(decay*before(mu)))
	}
	return rate
}

func (u *updater) momentum() *onnx.Value {
	add := u.scaleGradient("m_add", "grad_m")
	if u.decay {
		add = u.scale("m_decay", u.named("m_both", "Add", build.In(u.p, add)), "decay_m")
	}
	return u.average("m", add, u.o.Momentum)
}
