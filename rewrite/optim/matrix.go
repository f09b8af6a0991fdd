package optim

// What updates that are not elementwise need: a parameter as a matrix, sums over it, and
// values of half parameters in float32.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A matrix is a parameter of at least two axes as one of rows, its first axis, and
// columns, all others, more than one of each.
type matrix struct {
	dims          []int64
	rows, columns int64
}

// matrixOf returns a shape as a matrix; false: it is none, but a vector or a number.
func matrixOf(p onnx.Shape) (matrix, bool) {
	dims, static := p.Ints()
	if !static || len(dims) < 2 {
		return matrix{}, false
	}
	columns, _ := onnx.Elements(dims[1:])
	return matrix{dims, dims[0], columns}, dims[0] > 1 && columns > 1
}

// inner are the axes within a row.
func (m matrix) inner() []int64 {
	axes := make([]int64, len(m.dims)-1)
	for i := range axes {
		axes[i] = int64(i + 1)
	}
	return axes
}

// asRows is a vector of one number a row, [rows], as [rows, 1, …].
func (u *updater) asRows(what string, m matrix, v *onnx.Value) *onnx.Value {
	shape := slices.Repeat([]int64{1}, len(m.dims))
	shape[0] = m.rows
	return u.named(what, "Reshape", build.In(v, u.b.Ints(shape...)))
}

// asColumns is a vector of one number a column, [columns], as [1, …].
func (u *updater) asColumns(what string, m matrix, v *onnx.Value) *onnx.Value {
	return u.named(what, "Reshape", build.In(v, u.b.Ints(append([]int64{1}, m.dims[1:]...)...)))
}

// sum is that of x over axes, which go.
func (u *updater) sum(what string, x *onnx.Value, axes ...int64) *onnx.Value {
	return u.step(sumStep, u.named(what, "ReduceSum", build.In(x, u.b.Ints(axes...)), onnx.IntAttr("keepdims", 0)))
}

// norm is the root of the sum of x's squares, times c, float32 [].
func (u *updater) norm(what string, x *onnx.Value, c float64) *onnx.Value {
	sum := u.named(what+"_sum", "ReduceSum", build.In(u.squaresOf(x, sumStep)), onnx.IntAttr("keepdims", 0))
	if c != 1 {
		sum = u.named(what+"_mean", "Mul", build.In(sum, u.f32(c*c)))
	}
	return u.named(what, "Sqrt", build.In(sum))
}

// rms is the root mean square of x, float32 [].
func (u *updater) rms(what string, x *onnx.Value) *onnx.Value {
	dims, _ := u.p.Type.Shape.Ints()
	n, _ := onnx.Elements(dims)
	return u.norm(what, x, math.Sqrt(1/float64(max(n, 1))))
}

// wide is the type in which moments of a type are kept and computed: float32 for half.
func wide(t onnx.Type) onnx.Type {
	if t.DType.IsHalf() {
		t.DType = onnx.Float32
	}
	return t
}

// vector is a tensor type of one axis.
func vector(d onnx.DType, n int64) onnx.Type { return onnx.TensorOf(d, onnx.StaticShape(n)) }

// widen lets what follows compute in the wide type.
func (u *updater) widen() {
	if d := wide(u.p.Type).DType; d != u.p.Type.DType {
		u.grad = u.named("grad_wide", "Cast", build.In(u.grad), to(d))
	}
}

// narrow is a value in the parameter's element type.
func (u *updater) narrow(v *onnx.Value) *onnx.Value {
	if d := u.p.Type.DType; v != nil && v.Type.DType != d {
		return u.named("narrow", "Cast", build.In(v), to(d))
	}
	return v
}

// number is a constant of the wide type.
func (u *updater) number(v float64) *onnx.Value { return u.b.Scalar(wide(u.p.Type).DType, v) }
