package grad

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// productRules: matrix products. See product.go for the forms emitted.
var productRules = []Rule{
	{Op: "MatMul", Since: 9, Doc: "da = g bᵀ, db = aᵀ g, summed over broadcast leading axes; joined to matrices where b is one", Grad: gradMatMul},
	{Op: "Gemm", Since: 7, Doc: "y = α a' b' + β c: da' = α g b'ᵀ, db' = α a'ᵀ g, dc = β g", Grad: gradGemm},
	{Domain: "com.microsoft", Op: "FusedMatMul", Since: 1, Doc: "as MatMul, of the transposed operands, times alpha", Grad: gradFusedMatMul},
	{Op: "Det", Since: 11, Doc: "g times the cofactors, determinants of minors that Gather lays side by side", Grad: gradDet},
}

func gradGemm(c *Context) {
	a, b := c.In(0), c.In(1)
	ta, tb := c.Node.Int("transA", 0) != 0, c.Node.Int("transB", 0) != 0
	g, factor := c.Factored(0)
	if factor != nil && ta {
		g, factor = c.Grad(0), nil
	}
	weighted := func(v *onnx.Value) *onnx.Value {
		if factor == nil {
			return v
		}
		return c.Times(v, factor)
	}
	alpha := c.Node.Float("alpha", 1)
	gemm := func(p *onnx.Value, tp bool, q *onnx.Value, tq bool) *onnx.Value {
		attrs := []onnx.Attribute{onnx.IntAttr("transA", flag(tp)), onnx.IntAttr("transB", flag(tq))}
		if alpha != 1 {
			attrs = append(attrs, onnx.FloatAttr("alpha", alpha))
		}
		return c.Op("Gemm", build.In(p, q), attrs...)
	}
	if c.Needs(1) {
		if tb {
			c.Add(1, gemm(g, true, weighted(a), ta))
		} else {
			c.Add(1, gemm(weighted(a), !ta, g, false))
		}
	}
	if c.Needs(2) {
		c.Add(2, c.Scale(gemmBias(c, g, factor), c.Node.Float("beta", 1)))
	}
	if c.Needs(0) {
		if ta {
			c.Add(0, gemm(b, tb, g, true))
		} else {
			c.Add(0, weighted(gemm(g, false, b, !tb)))
		}
	}
}

// gemmBias sums g down to the bias; weighted rows are summed by a product.
func gemmBias(c *Context, g, factor *onnx.Value) *onnx.Value {
	bias := c.In(2)
	switch {
	case factor == nil:
		return c.Unbroadcast(g, c.Out(0), bias)
	case len(factor.Type.Shape) == 0:
		return c.Times(c.Unbroadcast(g, c.Out(0), bias), factor)
	case c.Rank(bias) == 1 && bias.Type.Shape[0] == g.Type.Shape[1]:
		return c.Reshape(c.Product(factor, true, g, false), bias)
	}
	return c.Unbroadcast(c.Times(g, factor), c.Out(0), bias)
}

func gradFusedMatMul(c *Context) {
	if c.Node.Int("transBatchA", 0) != 0 || c.Node.Int("transBatchB", 0) != 0 {
		c.Decompose(func() []*onnx.Value { return []*onnx.Value{plainBatches(c)} })
		return
	}
	gradProduct(c, c.Node.Int("transA", 0) != 0, c.Node.Int("transB", 0) != 0, c.Node.Float("alpha", 1))
}

// plainBatches is the product of operands whose first axis is moved before their last, as
// transBatchA has it, by Transposes of their own.
func plainBatches(c *Context) *onnx.Value {
	operands, swaps := []*onnx.Value{nil, nil}, []int64{0, 0}
	for i, name := range []string{"A", "B"} {
		v, swap := c.In(i), c.Node.Int("trans"+name, 0)
		if rank := c.Rank(v); rank > 2 && c.Node.Int("transBatch"+name, 0) != 0 {
			perm := make([]int, 0, rank)
			for axis := 1; axis < rank-1; axis++ {
				perm = append(perm, axis)
			}
			if perm = append(perm, 0, rank-1); swap != 0 {
				perm[rank-2], perm[rank-1] = perm[rank-1], perm[rank-2]
			}
			v, swap = c.Transpose(v, perm...), 0
		}
		operands[i], swaps[i] = v, swap
	}
	return c.Nodes(microsoft, "FusedMatMul", operands, 1, onnx.FloatAttr("alpha", c.Node.Float("alpha", 1)),
		onnx.IntAttr("transA", swaps[0]), onnx.IntAttr("transB", swaps[1]))[0]
}

func gradMatMul(c *Context) { gradProduct(c, false, false, 1) }

// gradProduct differentiates y = α op(a) @ op(b) of any rank.
func gradProduct(c *Context, ta, tb bool, alpha float64) {
	a, b := c.In(0), c.In(1)
	ra, rb := c.Rank(a), c.Rank(b)
	if c.e.b.Err() != nil {
		return
	}
	linear := rb == 2 && ra > 1 && !ta && alpha == 1
	if g, factor := c.Factored(0); factor != nil && linear {
		gradLinear(c, g, factor, tb)
		return
	}
	g := c.Grad(0)
	if alpha != 1 {
		g = c.Scale(g, alpha)
	}
	switch {
	case ra == 1 || rb == 1:
		gradVectorProduct(c, g)
	case rb == 2 && ra > 2 && !ta:
		gradLinear(c, g, nil, tb)
	default:
		gradBatched(c, g, ta, tb)
	}
}

// gradLinear is y[...,n] = x[...,k] w[k,n]: the leading axes are joined, which
// costs nothing, and both products are plain matrices.
func gradLinear(c *Context, g, factor *onnx.Value, tb bool) {
	x, w := c.In(0), c.In(1)
	rows := func(v *onnx.Value) *onnx.Value {
		s := v.Type.Shape
		last := s[len(s)-1]
		if _, ok := last.Int(); ok || len(s) == 0 {
			return c.ReshapeDims(v, onnx.Shape{onnx.Dim{}, last})
		}
		return c.ReshapeDims(v, onnx.Shape{s[:len(s)-1].Elements(), last})
	}
	g2 := rows(g)
	weighted := func(v *onnx.Value) *onnx.Value {
		switch {
		case factor == nil:
			return v
		case len(factor.Type.Shape) == 0:
			return c.Times(v, factor)
		}
		return c.Times(v, rows(factor))
	}
	if c.Needs(1) {
		x2 := weighted(rows(x))
		if tb {
			c.Add(1, c.Product(g2, true, x2, false))
		} else {
			c.Add(1, c.Product(x2, true, g2, false))
		}
	}
	if c.Needs(0) {
		c.Add(0, c.Reshape(weighted(c.Product(g2, false, w, !tb)), x))
	}
}

// gradVectorProduct covers operands with one axis: a row or a column is made
// of them, the product differentiated as one of matrices.
func gradVectorProduct(c *Context, g *onnx.Value) {
	a, b := c.In(0), c.In(1)
	column := func(v *onnx.Value, axis int) *onnx.Value { return c.Unsqueeze(v, axis) }
	switch {
	case c.Rank(a) == 1 && c.Rank(b) == 1:
		if c.Needs(0) {
			c.Add(0, c.Times(g, b))
		}
		if c.Needs(1) {
			c.Add(1, c.Times(g, a))
		}
	case c.Rank(b) == 1: // y[...,m] = a[...,m,k] b[k]
		rank := c.Rank(a)
		if c.Needs(0) {
			c.Add(0, c.Do("Mul", column(g, rank-1), b))
		}
		if c.Needs(1) {
			c.Add(1, c.Sum(c.Do("Mul", column(g, rank-1), a), false, c.allBut(a, rank-1)...))
		}
	default: // y[...,n] = a[k] b[...,k,n]
		rank := c.Rank(b)
		if c.Needs(0) {
			c.Add(0, c.Sum(c.Do("Mul", column(g, rank-2), b), false, c.allBut(b, rank-2)...))
		}
		if c.Needs(1) {
			c.Add(1, c.Do("Mul", column(g, rank-2), column(a, 1)))
		}
	}
}

// gradBatched is the general product. Operands with fewer or stretched leading
// axes are brought to the result's before they are multiplied, and their
// gradients summed after.
func gradBatched(c *Context, g *onnx.Value, ta, tb bool) {
	a, b := c.In(0), c.In(1)
	if c.Needs(0) {
		var da *onnx.Value
		if ta {
			da = c.Product(spread(c, b, g), tb, g, true)
		} else {
			da = c.Product(g, false, spread(c, b, g), !tb)
		}
		c.Add(0, sumLeading(c, da, a))
	}
	if c.Needs(1) {
		var db *onnx.Value
		if tb {
			db = c.Product(g, true, spread(c, a, g), ta)
		} else {
			db = c.Product(spread(c, a, g), !ta, g, false)
		}
		c.Add(1, sumLeading(c, db, b))
	}
}

// spread gives v the leading axes of g, if it has others.
func spread(c *Context, v, g *onnx.Value) *onnx.Value {
	if v == nil || g == nil {
		return nil
	}
	s, t := v.Type.Shape, g.Type.Shape
	if len(s) == len(t) && s[:len(s)-2].Equal(t[:len(t)-2]) || len(t) < 2 {
		return v
	}
	if len(s) == len(t) && !couldStretch(s[:len(s)-2], t[:len(t)-2]) {
		return v
	}
	want := append(append(onnx.Shape(nil), t[:len(t)-2]...), s[len(s)-2:]...)
	shape := c.e.shapeValue(want)
	if shape == nil {
		lead := c.Op("Slice", build.In(c.ShapeOf(g), c.IntList(0), c.IntList(-2)))
		last := c.Op("Slice", build.In(c.ShapeOf(v), c.IntList(-2), c.IntList(1<<31)))
		shape = c.Op("Concat", build.In(lead, last), onnx.IntAttr("axis", 0))
	}
	out := c.Do("Expand", v, shape)
	if out != nil {
		out.Type = onnx.TensorOf(v.Type.DType, want)
	}
	return out
}

// couldStretch reports extents of one, which broadcasting may stretch.
func couldStretch(s, t onnx.Shape) bool {
	for i := range s {
		if s[i] != t[i] && (s[i].Is(1) || !s[i].IsStatic()) {
			return true
		}
	}
	return false
}

// sumLeading undoes broadcasting of the leading axes.
func sumLeading(c *Context, d, v *onnx.Value) *onnx.Value {
	if d == nil || v == nil || len(d.Type.Shape) == len(v.Type.Shape) && !couldStretch(v.Type.Shape, d.Type.Shape) {
		return d
	}
	return c.Unbroadcast(d, d, v)
}
