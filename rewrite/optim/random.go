package optim

// Random signs that are computed in the step and kept nowhere. RandomNormal with a seed
// draws the same in each step of a session and goes on after the last one, so a training
// that is resumed would draw others; these depend on their place i and on the number d of
// the draw alone, in integers, so that every runtime makes the same bits:
//
//	x = 48271·(i+1) + 69621·(d+1)     modulo p = 2^31 - 1
//	x = x·(x + k)                     modulo p, for each k of three
//	sign = 1 - 2·(x modulo 2)
//
// All products stay below 2^63. A quadratic map of the integers modulo a prime mixes what
// a linear one leaves in order (Knuth, The Art of Computer Programming, 3.2.2); the test
// looks at sums and correlations over places and draws.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

const (
	signPrime           = 1<<31 - 1
	signPlace, signDraw = 48271, 69621
)

var signRounds = []int64{1234577, 777767777, 1618033987}

// signs are n numbers 1 or -1, float32 [n], those of the draw a.s.draw; once for all
// parameters.
func (a *applier) signs(n int64) *onnx.Value {
	if v := a.s.signs[n]; v != nil {
		return v
	}
	scope := a.b.Scope
	a.b.Scope = ""
	places := make([]int64, n)
	for i := range places {
		places[i] = (int64(i) + 1) * signPlace % signPrime
	}
	modulo := func(v *onnx.Value) *onnx.Value {
		return a.named("signs_modulo", "Mod", build.In(v, a.b.Int(signPrime)))
	}
	from := modulo(a.named("draw_seed", "Mul", build.In(modulo(a.named("draw_next", "Add", build.In(a.s.draw, a.b.Int(1)))), a.b.Int(signDraw))))
	x := modulo(a.named("signs_begin", "Add", build.In(a.b.Ints(places...), from)))
	for _, k := range signRounds {
		x = modulo(a.named("signs_square", "Mul", build.In(x, a.named("signs_add", "Add", build.In(x, a.b.Int(k))))))
	}
	bit := a.named("signs_bit", "Mod", build.In(x, a.b.Int(2)))
	sign := a.named("signs_int", "Sub", build.In(a.b.Int(1), a.named("signs_two", "Mul", build.In(bit, a.b.Int(2)))))
	v := a.float("signs", sign)
	a.b.Scope = scope
	if a.s.signs == nil {
		a.s.signs = map[int64]*onnx.Value{}
	}
	a.s.signs[n] = v
	return v
}
