package tile

// Rules of matrix products. Batch axes, left of the two of the matrices, divide
// as in elementwise operators. Of the matrices, rows of the left factor are rows
// of the product, and columns of the right one its columns; divided along the
// contracted axis, every part of the product is a summand of the whole.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// matmul is MatMul and FusedMatMul, which has the attributes transA and transB.
func matmul(r *Region, n *onnx.Node) (bool, error) { return r.product(n) }

// gemm is a product and its third operand, which broadcasts to the product. Where that is
// a sum over parts, the operand is one more summand, which the first part adds.
func gemm(r *Region, n *onnx.Node) (bool, error) {
	changed, err := r.product(n)
	if err != nil {
		return false, err
	}
	c, out := n.In(2), n.Outputs[0]
	if c == nil {
		return changed, nil
	}
	switch a := r.shardingOf(out); {
	case a == partialSum:
		more, err := r.setInput(n, 2, replicated)
		return changed || more, err
	case a >= 0:
		more, err := r.setInput(n, 2, aligned(c, out, a))
		return changed || more, err
	}
	return changed, nil
}

// product relates the cuts of two factors and of their product.
func (r *Region) product(n *onnx.Node) (bool, error) {
	a, b, out := n.Inputs[0], n.Inputs[1], n.Outputs[0]
	if rank(a) < 2 || rank(b) < 2 {
		return false, fmt.Errorf("a product with a vector")
	}
	if n.Int("transBatchA", 0) != 0 || n.Int("transBatchB", 0) != 0 {
		return false, fmt.Errorf("a product with permuted batches")
	}
	if c := r.batchSharding(a, b, out); c != unknown {
		return r.broadcast(n, n.Inputs[:2], c)
	}
	return r.cutMatrix(n)
}

// batchSharding returns the axis of the product, left of its matrices, that is cut.
func (r *Region) batchSharding(a, b, out *onnx.Value) sharding {
	for _, v := range []*onnx.Value{out, a, b} {
		if c := r.shardingOf(v); c >= 0 && int(c) < rank(v)-2 {
			return c + sharding(rank(out)-rank(v))
		}
	}
	return unknown
}

// cutMatrix: rows of the left factor are rows of the product, columns of the
// right one its columns; where the cut axis is contracted, the product is a sum
// over parts.
func (r *Region) cutMatrix(n *onnx.Node) (bool, error) {
	a, b, out := n.Inputs[0], n.Inputs[1], n.Outputs[0]
	rowA, innerA := traits.MatrixAxes(n, 0)
	innerB, colB := traits.MatrixAxes(n, 1)
	ca, cb, co := r.shardingOf(a), r.shardingOf(b), r.shardingOf(out)
	switch {
	case ca == sharding(innerA) || cb == sharding(innerB) && b.Producer != nil && r.in[b.Producer]:
		c1, err := r.set(a, sharding(innerA))
		if err != nil {
			return false, err
		}
		c2, err := r.set(b, sharding(innerB))
		if err != nil {
			return false, err
		}
		c3, err := r.set(out, partialSum)
		return c1 || c2 || c3, err
	case ca == sharding(rowA) && cb < 0:
		return r.set(out, sharding(rank(out)-2))
	case cb == sharding(colB) && ca < 0:
		return r.set(out, sharding(rank(out)-1))
	case co >= 0 && ca == unknown && int(co) == rank(out)-2:
		return r.set(a, sharding(rowA))
	case co >= 0 && cb == unknown && int(co) == rank(out)-1: // one row alone
		return r.set(b, sharding(colB))
	case ca >= 0 && cb >= 0:
		return false, fmt.Errorf("both factors are split, but not along the contracted axis")
	}
	return false, nil
}
