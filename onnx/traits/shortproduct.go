package traits

// Batched products of which ONNX Runtime's CUDA kernel computes only some. MatMul and
// FusedMatMul ask cuBLAS for one strided batch where both operands have rank 3 or more
// and as many matrices: what is compared is the product of the batch extents. Where
// these broadcast against each other there are more products than matrices:
//
//	[2,1,m,k] x [1,2,k,n]   4 products; cuBLAS is asked for 2, a[0]·b[0] and a[1]·b[1],
//	                        which go where [0,0] and [0,1] are, and the rest is not written
//
// Source: CanUseStridedBatchedGemm in core/providers/cuda/math/matmul.cc; the tables of
// addresses that the kernel else needs are not asked for (measured, TestShortProducts).
// On the CPU all are right.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// ShortOnCUDA reports a product of static shapes of which the CUDA kernel computes
// fewer matrices than it returns: how many of how many.
func ShortOnCUDA(n *onnx.Node) (computed, all int64, short bool) {
	if !n.Is("MatMul") && (n.Domain() != "com.microsoft" || n.OpType() != "FusedMatMul") {
		return 0, 0, false
	}
	a, okA := dims(n.In(0))
	b, okB := dims(n.In(1))
	if !okA || !okB || len(a) < 3 || len(b) < 3 {
		return 0, 0, false
	}
	a, b = unbatched(a, n.Int("transBatchA", 0) != 0), unbatched(b, n.Int("transBatchB", 0) != 0)
	left, right := a[:len(a)-2], b[:len(b)-2]
	computed, all = product(left), product(broadcast(left, right))
	return computed, all, computed == product(right) && all > computed
}

// WhyShort says of a node that ShortOnCUDA reports what is wrong, "" of another.
func WhyShort(n *onnx.Node) string {
	computed, all, short := ShortOnCUDA(n)
	if !short {
		return ""
	}
	return fmt.Sprintf("%s of %s and %s: ONNX Runtime's CUDA kernel computes %d of its %d products",
		n.OpType(), n.In(0).Type.Shape, n.In(1).Type.Shape, computed, all)
}

// Spread is the shape that broadcasts the smaller operand of a MatMul of static shapes
// over all its products, and which operand that is; nil for another operator.
func Spread(n *onnx.Node) (shape []int64, input int) {
	a, okA := dims(n.In(0))
	b, okB := dims(n.In(1))
	if !n.Is("MatMul") || !okA || !okB || len(a) < 2 || len(b) < 2 {
		return nil, 0
	}
	lead, matrix := broadcast(a[:len(a)-2], b[:len(b)-2]), a[len(a)-2:]
	if product(b) < product(a) {
		matrix, input = b[len(b)-2:], 1
	}
	return append(lead, matrix...), input
}
