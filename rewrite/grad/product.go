package grad

// Matrix products with transposed operands. ONNX's MatMul cannot transpose,
// and a Transpose of the last two axes right before it is what ONNX Runtime
// fuses at level 2 and up, with a new node index and with it another order and
// another peak. So:
//
//	matrices              Gemm with transA/transB
//	dialect ort           com.microsoft.FusedMatMul with transA/transB
//	operand was permuted  permute the original directly: the product of
//	                      perm [0,2,1,3] and a swap is [0,2,3,1], one copy
//	otherwise             Transpose, then a Reshape that joins the leading axes
//
// The copies that a swap costs are kept small: aᵀb = (bᵀa)ᵀ, whichever moves
// fewer elements. For attention that is the [seq,width] side, never the
// [seq,seq] one.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// transpose permutes the axes of v, looking through a Transpose that made it.
func (e *engine) transpose(v *onnx.Value, perm []int) *onnx.Value {
	if v == nil {
		return nil
	}
	if p := v.Producer; p != nil && p.Is("Transpose") && v.Type.Ranked {
		joined := traits.Compose(traits.Permutation(p, len(v.Type.Shape)), perm)
		return e.transpose(p.In(0), joined)
	}
	for i, a := range perm {
		if a != i {
			return e.b.Op("Transpose", build.In(v), build.PermAttr(perm...))
		}
	}
	return v
}

// swap returns v with its last two axes exchanged, in a form that may feed a
// MatMul: never straight from a Transpose that only swaps these two.
func (e *engine) swap(v *onnx.Value) *onnx.Value {
	if v == nil {
		return nil
	}
	rank := len(v.Type.Shape)
	swapped := append(onnx.Shape(nil), v.Type.Shape...)
	swapped[rank-1], swapped[rank-2] = swapped[rank-2], swapped[rank-1]
	if p := v.Producer; p != nil && p.Is("Reshape") && traits.JoinsLeading(p.In(0), v) && e.reachable(swapped) {
		return e.reshape(e.swap(p.In(0)), swapped, nil)
	}
	out := e.transpose(v, traits.LastTwo(rank))
	if p := out; p != nil && p.Producer != nil && p.Producer.Is("Transpose") && traits.SwapsLastTwo(traits.Permutation(p.Producer, rank)) {
		return e.joinLeading(out)
	}
	return out
}

// joinLeading reshapes to one leading axis, or to one more than v has where it
// has one already, so that a Reshape stands between a Transpose and a MatMul.
func (e *engine) joinLeading(v *onnx.Value) *onnx.Value {
	s := v.Type.Shape
	rank := len(s)
	joined := onnx.Shape{s[:rank-2].Elements(), s[rank-2], s[rank-1]}
	if rank == 3 {
		joined = onnx.Shape{onnx.Static(1), s[0], s[1], s[2]}
	}
	if !e.reachable(joined) {
		return v // right all the same, though ONNX Runtime may fuse it
	}
	return e.reshape(v, joined, nil)
}

// product is op(a) @ op(b) with op swapping the last two axes where asked; the
// leading extents of a and b are equal.
func (e *engine) product(a *onnx.Value, transA bool, b *onnx.Value, transB bool) *onnx.Value {
	if a == nil || b == nil || e.b.Err() != nil {
		return nil
	}
	rank, lead := len(a.Type.Shape), a.Type.Shape[:len(a.Type.Shape)-2]
	switch {
	case rank == 2:
		return e.b.Op("Gemm", build.In(a, b), onnx.IntAttr("transA", flag(transA)), onnx.IntAttr("transB", flag(transB)))
	case !transA && !transB:
		return e.matmul(a, b, lead)
	case e.dialect == DialectORT:
		return e.b.Node("com.microsoft", "FusedMatMul", build.In(a, b), 1,
			onnx.IntAttr("transA", flag(transA)), onnx.IntAttr("transB", flag(transB)), onnx.FloatAttr("alpha", 1))[0]
	}
	// op(a) op(b) = (op(b)ᵀ op(a)ᵀ)ᵀ.
	direct := swapCost(a, transA) + swapCost(b, transB)
	result := leading(a) * extent(a, transA) * extent(b, !transB)
	turned := swapCost(a, !transA) + swapCost(b, !transB) + result
	if turned < direct {
		return e.transpose(e.product(b, !transB, a, !transA), traits.LastTwo(rank))
	}
	if transA {
		a = e.swap(a)
	}
	if transB {
		b = e.swap(b)
	}
	return e.matmul(a, b, lead)
}

// extent returns an extent of v's matrices as a number: the last one, or the
// one before it. What is unknown counts as a thousand.
func extent(v *onnx.Value, last bool) float64 {
	s := v.Type.Shape
	k := len(s) - 2
	if last {
		k++
	}
	if n, ok := s[k].Int(); ok {
		return float64(n)
	}
	return 1000
}

func leading(v *onnx.Value) float64 {
	n := 1.0
	for _, d := range v.Type.Shape[:len(v.Type.Shape)-2] {
		if k, ok := d.Int(); ok {
			n *= float64(k)
		}
	}
	return n
}

// swapCost is the number of elements that a swap of v moves.
func swapCost(v *onnx.Value, swap bool) float64 {
	if !swap {
		return 0
	}
	return leading(v) * extent(v, false) * extent(v, true)
}

// matmul multiplies operands of these leading extents, which for one of them or both
// may be joined (see joinLeading); those of the result are not.
func (e *engine) matmul(a, b *onnx.Value, lead onnx.Shape) *onnx.Value {
	if a == nil || b == nil {
		return nil
	}
	sa, sb := a.Type.Shape, b.Type.Shape
	rank := len(lead) + 2
	switch {
	case len(sa) == len(sb):
	case len(sa) == rank:
		a = e.reshape(a, withLeading(sb, sa), nil)
	default:
		b = e.reshape(b, withLeading(sa, sb), nil)
	}
	out := e.b.Op("MatMul", build.In(a, b))
	if out == nil || len(out.Type.Shape) == rank {
		return out
	}
	return e.reshape(out, append(append(onnx.Shape(nil), lead...), sa[len(sa)-2], sb[len(sb)-1]), nil)
}

// withLeading is the leading axes of one shape with the matrices of another.
func withLeading(lead, matrix onnx.Shape) onnx.Shape {
	s := append(onnx.Shape(nil), lead[:len(lead)-2]...)
	return append(s, matrix[len(matrix)-2], matrix[len(matrix)-1])
}
