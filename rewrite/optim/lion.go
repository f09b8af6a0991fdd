package optim

// Lion, evolved sign momentum (Chen et al. 2023, "Symbolic Discovery of Optimization
// Algorithms", algorithm 2): the sign of one average of the gradients is the update,
// and another average, which moves more slowly, is kept. Decay is decoupled.
//
//	m_add   = grad · grad_m              c_add = grad · grad_c
//	m_sum   = P.m + m_add                c_sum = P.m.new + c_add
//	P.m.new = m_sum · keep_m   next.m    sign  = sign(c_sum)
//	                                     rated = sign · rate
//
// The update is sign(β1·m + (1-β1)·g) of the old m. With m' = β2·m + (1-β2)·g for the
// next one that is β1/β2 · (m' + k·g), k = (1-β1)·β2/β1 - (1-β2), and a sign has no
// scale. So only the average reads the old m: nothing has to wait before m' is written
// over it, and a large parameter is updated in slices, first m', then the parameter.
// For β1 or β2 near 0 the first form stands: c_keep = P.m · keep_c, c_sum = c_keep +
// c_add.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var lion = row{
	kind:     Lion,
	settings: []defaulted{{&weightDecay, 0}, {&beta1, 0.9}, {&beta2, 0.99}},
	rate:     3e-5,
	state:    func(_ *applier, p *onnx.Value) []held { return alike(p.Type, "m") },
	decays:   func(*Options) bool { return true },
	scalars:  lionScalars,
	update:   func(u *updater) { u.next(u.scale("rated", u.lion(), "rate")) },
}

// fromNext reports that the update is computed from the next average.
func fromNext(o *Options) bool { return o.Beta1 >= scaleLast && o.Beta2 >= scaleLast }

func lionScalars(a *applier, lr, _, factor *onnx.Value) *onnx.Value {
	b1, b2 := a.o.Beta1, a.o.Beta2
	a.declare("keep_m", 1, a.f32(b2))
	a.declare("grad_m", 0, a.times("grad_m", factor, (1-b2)*before(b2)))
	if fromNext(&a.o) {
		a.declare("grad_c", 0, a.times("grad_c", factor, (1-b1)*b2/b1-(1-b2)))
	} else {
		a.declare("keep_c", 1, a.f32(b1))
		a.declare("grad_c", 0, a.times("grad_c", factor, 1-b1))
	}
	return a.lr64(lr)
}

// lion is the sign that the parameter moves against.
func (u *updater) lion() *onnx.Value {
	old := u.state["m"]
	m := u.average("m", u.scaleGradient("m_add", "grad_m"), u.o.Beta2)
	if !fromNext(&u.o) {
		m = u.scale("c_keep", old, "keep_c")
	}
	sum := u.named("c_sum", "Add", build.In(m, u.scaleGradient("c_add", "grad_c")))
	return u.named("sign", "Sign", build.In(sum))
}
