package grad

// The determinant's slope is the matrix of cofactors,
//
//	∂det(A)/∂A_ij = (-1)^(i+j) det(A without row i and column j),
//
// which needs no inverse, that ONNX does not have, and holds for singular matrices
// too. Two Gathers lay all n² minors side by side, and one Det takes them: n⁴
// elements and n⁵ steps a matrix, right for the small matrices of flows, rotations
// and covariances.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func gradDet(c *Context) {
	x, g := c.In(0), c.Grad(0)
	rank := c.Rank(x)
	n, ok := int64(0), false
	if rank >= 2 {
		if n, ok = x.Type.Shape[rank-1].Int(); !ok {
			n, ok = x.Type.Shape[rank-2].Int()
		}
	}
	if !ok {
		c.Fail("the matrices' extent is unknown: give --dim")
		return
	}
	if !c.table(n, n) {
		return
	}
	g = c.Unsqueeze(g, rank-2, rank-1)
	if n < 2 {
		c.Add(0, g)
		return
	}
	others, signs := make([]int64, 0, n*(n-1)), make([]float64, 0, n*n)
	for i := range n {
		for j := range n {
			if j != i {
				others = append(others, j)
			}
			signs = append(signs, float64(1-2*((i+j)%2)))
		}
	}
	without := c.Const(onnx.Int64Tensor(others, n, n-1))
	rows := c.Op("Gather", build.In(x, without), onnx.IntAttr("axis", int64(rank-2)))  // [..., i, n-1, n]
	both := c.Op("Gather", build.In(rows, without), onnx.IntAttr("axis", int64(rank))) // [..., i, n-1, j, n-1]
	perm := make([]int, rank+2)
	for i := range perm {
		perm[i] = i
	}
	perm[rank-1], perm[rank] = rank, rank-1
	minors := c.Do("Det", c.Transpose(both, perm...))
	c.Add(0, c.Times(g, c.Do("Mul", minors, c.Const(onnx.FloatTensor(x.Type.DType, signs, n, n)))))
}
