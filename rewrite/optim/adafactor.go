package optim

// Adafactor (Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear
// Memory Cost", algorithms 4 and 5, without the first moment): of the second moment of a
// matrix only the means of its rows and of its columns are kept.
//
//	square = grad · grad           P.v_row.new = P.v_row + share_v·(row - P.v_row)
//	row    = mean over columns     P.v_col.new = P.v_col + share_v·(col - P.v_col)
//	col    = mean over rows        root_row    = 1/sqrt(P.v_row.new / its mean)
//	                               root_col    = 1/sqrt(P.v_col.new)
//	                               update      = grad · root_row · root_col
//	                               rated       = update · rate / max(1, rms(update))
//
// 1e-30 is added to the means; share_v is t^-0.8. What is no matrix keeps its whole
// second moment, P.v. The rate is the one that is fed: the root mean square of an update
// is at most 1, so it is of the size of AdamW's. The setting relative-step makes it the
// paper's relative one, times max(relative-step, rms(P)), where the paper has 1e-3. Decay
// is decoupled, as in AdamW.
//
// What a root is taken of is at least 1e-30, as it is after every step: where the first
// one is skipped, nothing is divided by 0. A half parameter is updated in float32.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

const (
	adafactorDecay = -0.8  // exponent of the share that a step's squares have
	adafactorFloor = 1e-30 // what is added to means of squares
)

var adafactor = row{
	kind:     Adafactor,
	settings: []defaulted{{&weightDecay, 0}, {&relative, 0}},
	rate:     1e-3,
	state:    adafactorState,
	decays:   func(*Options) bool { return true },
	scalars:  adafactorScalars,
	update:   func(u *updater) { u.next(u.adafactor()) },
}

func adafactorState(_ *applier, p *onnx.Value) []held {
	t := wide(p.Type)
	if m, ok := matrixOf(t.Shape); ok {
		return []held{{"v_row", vector(t.DType, m.rows)}, {"v_col", vector(t.DType, m.columns)}}
	}
	return alike(t, "v")
}

func adafactorScalars(a *applier, lr, step, _ *onnx.Value) *onnx.Value {
	a.declareOne(step)
	share := a.named("share_double", "Pow", build.In(a.step64(step), a.f64(adafactorDecay)))
	a.declare("share_v", 0, a.float("share_v", share))
	return a.lr64(lr)
}

// adafactor is what is subtracted from the parameter.
func (u *updater) adafactor() *onnx.Value {
	u.widen()
	grad := u.ownGradient()
	square := u.named("square", "Mul", build.In(grad, grad))
	var update *onnx.Value
	if m, ok := matrixOf(u.p.Type.Shape); ok {
		update = u.factored(m, grad, square)
	} else {
		v := u.toward("v", u.named("floored", "Add", build.In(square, u.floor())), "share_v")
		update = u.named("update", "Mul", build.In(grad, u.overRoot("root", v)))
	}
	rate, rms := u.scalar("rate"), u.rms("rms", update)
	v := u.named("rate_clipped", "Div", build.In(rate.Value, u.named("over", "Max", build.In(rms, u.f32(1)))))
	if u.o.RelativeStep > 0 {
		size := u.rms("size", control.Wait(u.b, u.p, rms))
		v = u.named("rate_relative", "Mul", build.In(v, u.named("relative", "Max", build.In(size, u.f32(u.o.RelativeStep)))))
	}
	return u.mul("rated", u.narrow(update), &scalar{rate.name, rate.neutral, v})
}

// factored is the gradient over the root of the second moment that its rows and columns
// tell.
func (u *updater) factored(m matrix, grad, square *onnx.Value) *onnx.Value {
	sums := u.sum("row_sum", square, m.inner()...)
	row := u.toward("v_row", u.mean("row", sums, m.columns), "share_v")
	sums = u.named("col_flat", "Reshape", build.In(u.sum("col_sum", square, 0), u.b.Ints(m.columns)))
	col := u.toward("v_col", u.mean("col", sums, m.rows), "share_v")

	whole := u.named("row_mean", "ReduceMean", build.In(row), onnx.IntAttr("keepdims", 0))
	share := u.named("row_share", "Div", build.In(row, u.named("row_mean_floored", "Max", build.In(whole, u.floor()))))
	byRow := u.named("by_row", "Mul", build.In(grad, u.asRows("root_rows", m, u.overRoot("root_row", share))))
	return u.named("update", "Mul", build.In(byRow, u.asColumns("root_columns", m, u.overRoot("root_col", col))))
}

// mean is a sum of n squares over n, and a little more.
func (u *updater) mean(what string, sum *onnx.Value, n int64) *onnx.Value {
	mean := u.named(what+"_mean_square", "Mul", build.In(sum, u.number(1/float64(n))))
	return u.named(what, "Add", build.In(mean, u.floor()))
}

// overRoot is 1 over the root of x, which is at least the floor.
func (u *updater) overRoot(what string, x *onnx.Value) *onnx.Value {
	held := u.named(what+"_floored", "Max", build.In(x, u.floor()))
	return u.named(what, "Reciprocal", build.In(u.named(what+"_of", "Sqrt", build.In(held))))
}

func (u *updater) floor() *onnx.Value { return u.number(adafactorFloor) }
