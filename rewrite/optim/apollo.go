package optim

// APOLLO-Mini (Zhu et al. 2024, "APOLLO: SGD-like Memory, AdamW-level Performance", arXiv
// 2412.05270, of rank 1, and its authors' code): a matrix moves along its gradient, and
// how far is learned from moments of one random projection of it.
//
//	proj  = grad · signs, or signs · grad    ratio   = |quot| / (|proj| + 1e-8)
//	quot  = AdamW's m / sqrt(v) of proj      size    = ratio · |grad|
//	        P.m, P.v [the larger extent]     limited = size, at most 1.01 · P.norm
//	                                         P.norm.new = limited
//	rated = grad · rate · sqrt(scale) · limited / |grad|
//
// The smaller of the two axes is projected away. The growth of an update's norm is limited
// from the second step on (P.norm is 0 before the first). What is no matrix is updated as
// by AdamW, and with the setting hidden-only what is no hidden matrix (muon.go), as the
// authors train: rows of an embedding whose gradients are small move as little along them.
// Decay is decoupled.
//
// The signs are drawn anew for every 200 updates, as the authors do, from the number of
// the update alone (random.go): no state holds them, and a training that goes on draws the
// same. The authors draw normal numbers; of signs the squared norm has the same mean and a
// smaller variance (Achlioptas 2003, "Database-friendly random projections").

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

const (
	apolloRedraw = 200   // updates with the same projection
	apolloGrowth = 1.01  // of the norm of an update over that of the last
	apolloEps    = 1e-8  // is added to a norm that is divided by
	apolloLeast  = 1e-30 // is the least norm of a gradient that is divided by
)

var apolloMini = row{
	kind:     ApolloMini,
	settings: []defaulted{{&weightDecay, 0}, {&beta1, 0.9}, {&beta2, 0.999}, {&eps, 1e-8}, {&scale, 128}, {&hiddenOnly, 0}},
	rate:     1e-3,
	state:    apolloState,
	decays:   func(*Options) bool { return true },
	scalars:  apolloScalars,
	update:   func(u *updater) { u.next(u.apollo()) },
}

// projected reports a matrix that is updated along its gradient.
func (a *applier) projected(p *onnx.Value) (matrix, bool) {
	m, ok := matrixOf(p.Type.Shape)
	return m, ok && (a.o.HiddenOnly == 0 || a.hidden(p))
}

func apolloState(a *applier, p *onnx.Value) []held {
	m, ok := a.projected(p)
	if !ok {
		return alike(p.Type, "m", "v")
	}
	d := wide(p.Type).DType
	moments := vector(d, max(m.rows, m.columns))
	return []held{{"m", moments}, {"v", moments}, {"norm", onnx.TensorOf(d, onnx.StaticShape())}}
}

func apolloScalars(a *applier, lr, step, factor *onnx.Value) *onnx.Value {
	rate := adamScalars(a, lr, step, factor)
	a.declareOne(step)
	a.declare("proj_m", 0, a.f32(a.o.share1()))
	a.declare("proj_v", 0, a.f32(a.o.share2()))
	a.s.draw = a.named("draw", "Div", build.In(a.named("step_before", "Sub", build.In(step, a.b.Int(1))), a.b.Int(apolloRedraw)))
	return rate
}

// apollo is what is subtracted from the parameter.
func (u *updater) apollo() *onnx.Value {
	m, ok := u.projected(u.p)
	if !ok {
		return u.scale("rated", u.adamw(), "rate")
	}
	u.widen()
	grad := u.ownGradient()
	proj := u.project(m, grad)
	quot := u.moments(func(what, of string) *onnx.Value { return u.scale(what, proj, "proj_"+of) })
	length := u.norm("length", grad, 1)
	over := u.named("proj_floor", "Add", build.In(u.norm("proj_length", proj, 1), u.f32(apolloEps)))
	ratio := u.named("ratio", "Div", build.In(u.norm("quot_length", quot, 1), over))
	limited := u.limited(u.named("size", "Mul", build.In(ratio, length)))
	share := u.named("limited_share", "Div", build.In(limited, u.named("length_floor", "Max", build.In(length, u.f32(apolloLeast)))))
	share = u.named("scaled_share", "Mul", build.In(share, u.f32(math.Sqrt(u.o.Scale))))
	rate := u.scalar("rate")
	rated := u.named("rate_share", "Mul", build.In(rate.Value, share))
	return u.mul("rated", u.narrow(grad), &scalar{rate.name, rate.neutral, rated})
}

// project is the gradient's product with signs, [the larger extent].
func (u *updater) project(m matrix, grad *onnx.Value) *onnx.Value {
	if len(m.dims) > 2 {
		grad = u.named("gradient_flat", "Reshape", build.In(grad, u.b.Ints(m.rows, m.columns)))
	}
	n := min(m.rows, m.columns)
	signs := u.as(grad, u.signs(n))
	var factors []*onnx.Value
	if m.rows >= m.columns {
		factors = build.In(grad, u.named("signs_column", "Reshape", build.In(signs, u.b.Ints(n, 1))))
	} else {
		factors = build.In(u.named("signs_row", "Reshape", build.In(signs, u.b.Ints(1, n))), grad)
	}
	product := u.step(sumStep, u.named("product", "MatMul", factors))
	return u.named("proj", "Reshape", build.In(product, u.b.Ints(max(m.rows, m.columns))))
}

// limited is the size of an update, float32 [], kept from growing too fast.
func (u *updater) limited(size *onnx.Value) *onnx.Value {
	before := u.state["norm"]
	bound := u.named("bound", "Min", build.In(size, u.named("grown", "Mul", build.In(before, u.f32(apolloGrowth)))))
	limited := u.named("limited", "Where", build.In(u.named("bounded", "Greater", build.In(before, u.f32(0))), bound, size))
	u.toward("norm", limited, "one")
	return limited
}
