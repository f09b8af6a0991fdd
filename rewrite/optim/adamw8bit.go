package optim

// AdamW with its moments in eight bits (Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization"). Runs of at most 256 numbers share a scale, a row of P.m and
// of P.v each, so that QuantizeLinear and DequantizeLinear by rows read and write them:
//
//	r = P.m · P.m_scale    m = keep_m·(r·|r| + m_add)    P.m.new = sign(m)·sqrt(|m|), coded
//	s = P.v · P.v_scale    v = keep_v·(s⁴ + v_add)       P.v.new = sqrt(sqrt(v)), coded
//	rated = rate · m / (sqrt(v) + eps), as AdamW's
//
// The authors' codes are a table of 256 numbers of seven orders of magnitude. Codes of
// QuantizeLinear are evenly spaced, so they are of roots: of m's square root, -127 to 127,
// and of v's fourth root, 0 to 255. The smallest number that is not 0 is 1.5e-5 of the
// largest m of its block and 1.5e-11 of the largest v, and a number of code k is wrong by
// at most 1/k of itself or 2/k of itself. An update reads m and v before they are coded.
//
// By the inequality of Cauchy and Schwarz AdamW's m is at most (1-β1)/√((1-β2)(1-β1²/β2))
// of its √v, at the default β 7.3. The quotient is kept within that, where it exists: v may
// have become 0 beside an m that has not.
//
// A step that changes nothing keeps the scales, and roots that were not changed get their
// codes again, to the bit. What has fewer than 4096 numbers keeps AdamW's moments, as the
// authors have it; so does what no length of a run from 32 to 256 divides, and float64.

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

const (
	codedLeast           = 4096 // numbers of the least parameter whose moments are coded
	blockLeast, blockMax = 32, 256
	codeM, codeV         = 127, 255 // the codes of a block's largest root
	scaleFloor           = 1e-30    // is the least scale that is divided by
)

var adamw8bit = row{
	kind:     AdamW8bit,
	settings: adamw.settings,
	rate:     adamw.rate,
	state:    codedState,
	decays:   adamw.decays,
	scalars: func(a *applier, lr, step, factor *onnx.Value) *onnx.Value {
		a.declareOne(step)
		return adamScalars(a, lr, step, factor)
	},
	update: func(u *updater) {
		if runs, ok := runsOf(u.p.Type); ok {
			u.next(u.scale("rated", u.adamw8bit(runs), "rate"))
		} else {
			u.next(u.scale("rated", u.adamw(), "rate"))
		}
	},
}

// runs are what a parameter's numbers are cut into.
type runs struct{ count, length int64 }

// runsOf cuts a parameter into runs of the largest length; false: its moments are not
// coded.
func runsOf(p onnx.Type) (runs, bool) {
	dims, static := p.Shape.Ints()
	n, ok := onnx.Elements(dims)
	if !static || !ok || n < codedLeast || wide(p).DType != onnx.Float32 {
		return runs{}, false
	}
	for length := int64(blockMax); length >= blockLeast; length-- {
		if n%length == 0 {
			return runs{n / length, length}, true
		}
	}
	return runs{}, false
}

func codedState(_ *applier, p *onnx.Value) []held {
	r, ok := runsOf(p.Type)
	if !ok {
		return alike(p.Type, "m", "v")
	}
	codes, scales := onnx.StaticShape(r.count, r.length), vector(onnx.Float32, r.count)
	return []held{
		{"m", onnx.TensorOf(onnx.Int8, codes)}, {"m_scale", scales},
		{"v", onnx.TensorOf(onnx.Uint8, codes)}, {"v_scale", scales},
	}
}

// adamw8bit is m over the root of v, not yet corrected, like the parameter.
func (u *updater) adamw8bit(r runs) *onnx.Value {
	u.widen()
	inRuns := func(what, scalar string) *onnx.Value {
		return u.named(what+"_runs", "Reshape", build.In(u.scaleGradient(what, scalar), u.b.Ints(r.count, r.length)))
	}
	old := u.decoded("m", r)
	old = u.named("m_old", "Mul", build.In(old, u.named("m_old_size", "Abs", build.In(old))))
	m := u.moved("m", old, inRuns("m_add", "grad_m"), u.o.Beta1)

	scaled := inRuns("v_scaled", "grad_v")
	square := u.decoded("v", r)
	square = u.named("v_old_root", "Mul", build.In(square, square))
	v := u.moved("v", u.named("v_old", "Mul", build.In(square, square)), u.named("v_add", "Mul", build.In(scaled, scaled)), u.o.Beta2)
	root := u.named("root", "Sqrt", build.In(v))

	quot := u.named("quot", "Div", build.In(m, u.named("floor", "Add", build.In(root, u.s.eps))))
	if bound, ok := u.o.quotientBound(); ok {
		quot = u.named("quot_bounded", "Clip", build.In(quot, u.f32(-bound), u.f32(bound)))
	}
	size := u.named("m_root_size", "Sqrt", build.In(u.named("m_size", "Abs", build.In(m))))
	u.code("m", u.named("m_root", "Mul", build.In(size, u.named("m_sign", "Sign", build.In(m)))), size, codeM)
	fourth := u.named("v_root", "Sqrt", build.In(root))
	u.code("v", fourth, fourth, codeV)

	dims, _ := u.p.Type.Shape.Ints()
	return u.narrow(u.named("update", "Reshape", build.In(quot, u.b.Ints(dims...))))
}

// quotientBound is the largest quotient of AdamW's m and √v; false: there is none.
func (o *Options) quotientBound() (float64, bool) {
	b1, b2 := o.Beta1, o.Beta2
	if b1*b1 >= b2 {
		return 0, false
	}
	return (1 - b1) / math.Sqrt((1-b2)*(1-b1*b1/b2)), true
}

// decoded are the roots that the state P.name holds. They pass a Reshape that changes
// nothing: ONNX Runtime makes as many copies of a DequantizeLinear as have readers.
func (u *updater) decoded(name string, r runs) *onnx.Value {
	roots := u.named(name+"_old_coded", "DequantizeLinear", build.In(u.state[name], u.state[name+"_scale"]), onnx.IntAttr("axis", 0))
	return u.named(name+"_old_runs", "Reshape", build.In(roots, u.b.Ints(r.count, r.length)))
}

// moved is the next value of a moment that keeps beta of the old one (averageBy).
func (u *updater) moved(letter string, old, add *onnx.Value, beta float64) *onnx.Value {
	if beta < scaleLast {
		return u.named(letter+"_next", "Add", build.In(u.scale(letter+"_keep", old, "keep_"+letter), add))
	}
	return u.scale(letter+"_next", u.named(letter+"_sum", "Add", build.In(old, add)), "keep_"+letter)
}

// code makes the next values of the state P.name and of its scales: of roots, whose
// largest sizes get the code most.
func (u *updater) code(name string, roots, sizes *onnx.Value, most float64) {
	codes, scales := u.state[name], u.state[name+"_scale"]
	if u.b.Err() != nil {
		return
	}
	one := u.scalar("one")
	gate := u.mul(name+"_gate", one.Value, &scalar{one.name, 0, one.Value})
	due := u.named(name+"_due", "Greater", build.In(gate, u.f32(0)))
	largest := u.named(name+"_largest", "ReduceMax", build.In(sizes, u.b.Ints(1)), onnx.IntAttr("keepdims", 0))
	scale := u.named(name+"_scale_next", "Mul", build.In(largest, u.f32(1/most)))
	if u.b.Err() != nil {
		return
	}
	next := u.nextOf(name+"_scale", "Where", build.In(due, scale, scales))
	floored := u.named(name+"_scale_floored", "Max", build.In(next, u.f32(scaleFloor)))
	n := scales.Type.KnownBytes()
	zeros := u.b.Const(onnx.NewTensor(codes.Type.DType, []int64{n / 4}, make([]byte, n/4)))
	u.nextOf(name, "QuantizeLinear", build.In(roots, floored, zeros), onnx.IntAttr("axis", 0))
}
