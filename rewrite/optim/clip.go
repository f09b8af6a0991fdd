package optim

// Clipping. What a gradient is scaled with is c/(norm + 1e-6), at most 1, where
// norm is that of
//
//	global     all gradients of the step: no update begins before the last
//	           gradient is there, so all of them are alive at once
//	parameter  the gradient itself
//	previous   all gradients of the step before, a scalar of state, clip_norm
//
//	P.grad ─▶ square ─┬─ (empty slice) ─▶ the scalar that P's update begins with
//	…      ─▶ square ─┴─▶ squares ─▶ norm ─▶ clip_norm.new
//
// With the last two each gradient goes when its update is made. Of previous only
// a scalar a parameter remains, for the next norm; the update waits for it, as a
// file order has no other way to say that it is to be made before the gradient
// goes: it runs when it is first asked for, and that would be at the end. The
// first step is not clipped (clip_norm begins as 0), nor is the norm bounded
// where it jumps. A norm that is no number, or infinite, is not kept.
//
// What watches a training wants the norm of all gradients too, clipped or not
// (Options.Norm): the output gradient_norm. Where all are clipped by one norm it is
// that, and costs a scalar; else each gradient is squared as it is complete, and its
// update waits for that, as with previous: one more pass over the gradients, and a
// scalar a parameter.
//
// An update in slices (package tile's rows), whose gradient never exists whole, sums the
// squares slice by slice first, and computes the gradient's slices once more after it.
// Two passes over all of the graph, backward once for the norm and once more for the
// updates, would cost another forward and backward; they are left out.

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

// A Clip says whose norm clips a gradient.
type Clip string

// The norms.
const (
	ClipGlobal    Clip = "global"
	ClipParameter Clip = "parameter"
	ClipPrevious  Clip = "previous"
)

// ParseClip reads global, parameter or previous.
func ParseClip(s string) (Clip, error) {
	switch c := Clip(s); c {
	case ClipGlobal, ClipParameter, ClipPrevious:
		return c, nil
	case "":
		return ClipGlobal, nil
	}
	return ClipGlobal, fmt.Errorf("unknown norm %q to clip by: global, parameter or previous", s)
}

// normInput is the state that holds the norm of the step before.
const normInput = "clip_norm"

// NormOutput is the output that Options.Norm asks for.
const NormOutput = "gradient_norm"

// gradientFactor is what every gradient is to be multiplied by, nil for 1: one
// over n, and the share that clipping leaves to all alike. Shares of their own
// are left in a.s.clips.
func (a *applier) gradientFactor(params []Param, n int64, due *onnx.Value) *onnx.Value {
	var norm *onnx.Value
	switch {
	case a.o.ClipNorm == 0:
		if a.o.Norm {
			a.returned(a.meanNorm(a.rootOf(a.allSquares(params, true), watchStep), n))
		}
		return a.mean(n)
	case a.o.ClipBy == ClipParameter:
		rows := a.allSquares(params, false)
		for i, p := range params {
			a.b.Scope = p.Value.Name
			total := a.named("squares_sum", "ReduceSum", build.In(rows[i]), onnx.IntAttr("keepdims", 0))
			a.s.clips[p.Value] = a.clipShare(a.meanNorm(a.step(normStep, a.named("norm", "Sqrt", build.In(total))), n))
		}
		a.b.Scope = ""
		if a.o.Norm {
			a.returned(a.meanNorm(a.rootOf(rows, watchStep), n))
		}
		return a.mean(n)
	case a.o.ClipBy == ClipPrevious:
		norm = a.previousNorm(params, n, due)
	default:
		norm = a.meanNorm(a.rootOf(a.allSquares(params, false), normStep), n)
		a.returned(norm)
	}
	factor := a.clipShare(norm)
	if mean := a.mean(n); mean != nil {
		factor = a.named("clip_mean", "Mul", build.In(factor, mean))
	}
	return factor
}

// mean is what a sum of n gradients is multiplied by, nil for 1; what is fed, where that
// says how many there are.
func (a *applier) mean(n int64) *onnx.Value {
	if a.apart {
		return a.s.share
	}
	if n == 1 {
		return nil
	}
	return a.f32(1 / float64(n))
}

// meanNorm is the norm of the mean of n gradients that were summed.
func (a *applier) meanNorm(norm *onnx.Value, n int64) *onnx.Value {
	mean := a.mean(n)
	if mean == nil {
		return norm
	}
	return a.named("mean_norm", "Mul", build.In(norm, mean))
}

// clipShare is what a norm leaves of gradients.
func (a *applier) clipShare(norm *onnx.Value) *onnx.Value {
	share := a.named("clip_share", "Div", build.In(a.f32(a.o.ClipNorm), a.named("clip_floor", "Add", build.In(norm, a.f32(1e-6)))))
	return a.named("clip", "Min", build.In(share, a.f32(1)))
}

// previousNorm declares the norm of the step before and makes its next value:
// this step's, where there is an update and the norm is finite.
func (a *applier) previousNorm(params []Param, n int64, due *onnx.Value) *onnx.Value {
	old := a.g.AddInput(normInput, onnx.TensorOf(onnx.Float32, onnx.StaticShape()))
	// Read once, by a node that no optimizer takes into its readers: the next
	// value, which may be written over it, then waits for no update.
	held := a.named("norm_before", "Max", build.In(old, old))
	norm := a.meanNorm(a.rootOf(a.allSquares(params, true), normStep), n)
	a.returned(norm)
	good := a.named("norm_finite", "LessOrEqual", build.In(norm, a.f32(math.MaxFloat32)))
	if due != nil {
		good = a.named("norm_due", "And", build.In(good, due))
	}
	next := a.step(keptStep, a.b.NodeNamed("", "Where", prefix+normInput+"/next", build.In(good, norm, held), []string{normInput + ".new"})[0])
	if next == nil {
		return nil
	}
	a.g.AddOutput(next)
	a.res.Next[old] = next
	a.res.States = append(a.res.States, old)
	return held
}

// returned makes a norm of all gradients the output that was asked for, if it was. No
// optimizer takes Max of one value twice for that value, which later passes scale.
func (a *applier) returned(norm *onnx.Value) {
	if !a.o.Norm {
		return
	}
	if v := a.b.NodeNamed("", "Max", prefix+NormOutput, build.In(norm, norm), []string{NormOutput})[0]; v != nil {
		a.g.AddOutput(v)
	}
}

// allSquares are the squares of each gradient; updates wait for their own where they
// would not otherwise, and the gradient could go. A sum of gradients in state stays.
func (a *applier) allSquares(params []Param, wait bool) []*onnx.Value {
	var squares []*onnx.Value
	for _, p := range params {
		a.b.Scope = p.Value.Name
		row := a.squares(p)
		if squares = append(squares, row); wait && !a.apart {
			a.s.squares[p.Value] = row
		}
	}
	a.b.Scope = ""
	return squares
}

// rootOf is the Euclidean norm of what the squares are of.
func (a *applier) rootOf(squares []*onnx.Value, step string) *onnx.Value {
	all := a.step(rowsStep, a.named("squares", "Concat", squares, onnx.IntAttr("axis", 0)))
	total := a.named("squares_sum", "ReduceSum", build.In(all), onnx.IntAttr("keepdims", 0))
	return a.step(step, a.named("norm", "Sqrt", build.In(total)))
}

// squares is the sum of a gradient's squares, float32 [1].
func (a *applier) squares(p Param) *onnx.Value {
	return a.squaresOf(a.s.grads[p.Value], squareStep)
}

// squaresOf is the sum of the squares of x, float32 [1]; what reads x notes that it is
// of a step. It is taken over the last axis first: ONNX Runtime sums one long row in
// float32 naively, which is off by a fifth of a percent for 20 million elements.
func (a *applier) squaresOf(x *onnx.Value, step string) *onnx.Value {
	if x == nil {
		return nil
	}
	rank := len(x.Type.Shape)
	if rank == 0 {
		x = a.step(step, a.named("as_row", "Reshape", build.In(x, a.b.Ints(1))))
		rank = 1
	}
	keep := onnx.IntAttr("keepdims", 1)
	if rank > 1 {
		keep = onnx.IntAttr("keepdims", 0)
	}
	sum := a.step(step, a.named("square", "ReduceSumSquare", build.In(x, a.b.Ints(-1)), keep))
	if rank > 1 {
		sum = a.named("square_sum", "ReduceSum", build.In(sum), onnx.IntAttr("keepdims", 0))
		sum = a.named("square_row", "Reshape", build.In(sum, a.b.Ints(1)))
	}
	if sum != nil && sum.Type.DType != onnx.Float32 {
		sum = a.named("square_float", "Cast", build.In(sum), to(onnx.Float32))
	}
	return sum
}

// clipped is a scalar of all updates times what clipping leaves of this gradient.
func (u *updater) clipped(what string, scalar *onnx.Value) *onnx.Value {
	if share := u.s.clips[u.p]; share != nil {
		return u.named(what, "Mul", build.In(scalar, share))
	}
	return scalar
}

// waiting is a scalar that is there once the gradient's squares are.
func (u *updater) waiting(scalar *onnx.Value) *onnx.Value {
	if row := u.s.squares[u.p]; row != nil {
		return control.Wait(u.b, scalar, row)
	}
	return scalar
}
