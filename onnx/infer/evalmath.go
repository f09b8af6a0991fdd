package infer

// The numbers of value rules: integer polynomials and floats.

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// arithmetic is one operator over numbers of both kinds.
type arithmetic struct {
	ints   func(a, b onnx.Dim) onnx.Dim
	floats func(a, b float64) float64
	// divides says that ints rounds where floats does not.
	divides bool
}

var (
	addRule = arithmetic{onnx.Dim.Add, func(a, b float64) float64 { return a + b }, false}
	subRule = arithmetic{onnx.Dim.Sub, func(a, b float64) float64 { return a - b }, false}
	mulRule = arithmetic{onnx.Dim.Mul, func(a, b float64) float64 { return a * b }, false}
	divRule = arithmetic{divInts, func(a, b float64) float64 { return a / b }, true}
	minRule = arithmetic{minDim, math.Min, false}
	maxRule = arithmetic{maxDim, math.Max, false}
)

// apply computes a∘b for element type d.
func (r arithmetic) apply(d onnx.DType, a, b elem) elem {
	if !d.IsFloat() {
		return dimElem(r.ints(a.d, b.d))
	}
	if a.float && b.float {
		if d != onnx.Float32 && d != onnx.Float64 {
			return elem{}
		}
		return floatElem(r.floats(a.f, b.f))
	}
	x, ok1 := a.integral()
	y, ok2 := b.integral()
	if !ok1 || !ok2 {
		return elem{}
	}
	v := r.ints(x, y)
	if r.divides && v.Mul(y) != x {
		return elem{} // a fraction
	}
	return dimElem(v)
}

// integral is the element as a polynomial, where it is a whole number.
func (e elem) integral() (onnx.Dim, bool) {
	if !e.float {
		return e.d, e.d.Known()
	}
	if e.f != math.Trunc(e.f) || math.Abs(e.f) > 1<<24 {
		return onnx.Dim{}, false
	}
	return onnx.Static(int64(e.f)), true
}

// divInts is integer division as ONNX has it, towards zero.
func divInts(a, b onnx.Dim) onnx.Dim {
	x, ok1 := a.Int()
	y, ok2 := b.Int()
	switch {
	case ok2 && y == 0:
		return onnx.Dim{}
	case ok1 && ok2:
		if x == math.MinInt64 && y == -1 {
			return onnx.Dim{}
		}
		return onnx.Static(x / y)
	}
	q := a.Div(b)
	if q.Mul(b) == a || a.AtLeast(0) && b.AtLeast(1) {
		return q
	}
	return onnx.Dim{}
}

// order says which of a<b, a=b, a>b can be, as a set.
func order(a, b onnx.Dim) (less, equal, greater bool) {
	diff := a.Sub(b)
	if n, ok := diff.Int(); ok {
		return n < 0, n == 0, n > 0
	}
	if !diff.Known() {
		return true, true, true
	}
	back := b.Sub(a)
	switch {
	case diff.AtLeast(1):
		return false, false, true
	case back.AtLeast(1):
		return true, false, false
	case diff.AtLeast(0):
		return false, true, true
	case back.AtLeast(0):
		return true, true, false
	}
	return true, true, true
}

func minDim(a, b onnx.Dim) onnx.Dim {
	less, _, greater := order(a, b)
	switch {
	case !greater:
		return a
	case !less:
		return b
	}
	return onnx.Dim{}
}

func maxDim(a, b onnx.Dim) onnx.Dim {
	less, _, greater := order(a, b)
	switch {
	case !less:
		return a
	case !greater:
		return b
	}
	return onnx.Dim{}
}

func truth(e elem) int {
	if n, ok := e.d.Int(); ok {
		if n != 0 {
			return 1
		}
		return 0
	}
	return -1
}

func and3(a, b int) int {
	if a == 0 || b == 0 {
		return 0
	}
	return min(a, b)
}

func or3(a, b int) int {
	if a == 1 || b == 1 {
		return 1
	}
	return min(a, b)
}

func xor3(a, b int) int {
	if a < 0 || b < 0 {
		return -1
	}
	return a ^ b
}

func negDim(d onnx.Dim) onnx.Dim { return onnx.Static(0).Sub(d) }

func absDim(d onnx.Dim) onnx.Dim {
	if d.AtLeast(0) {
		return d
	}
	if n := negDim(d); n.AtLeast(0) {
		return n
	}
	return onnx.Dim{}
}

func sameDim(d onnx.Dim) onnx.Dim { return d }
