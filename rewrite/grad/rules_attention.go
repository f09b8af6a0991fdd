package grad

// Attention-23 and -24 are written out before they are differentiated; nothing
// in the operator saves what backward needs. Grouped queries need no copies of
// keys and values: the queries of one group stand below each other,
//
//	q [b,h,s,d] as [b,hkv,(h/hkv)*s,d]  @  kᵀ [b,hkv,d,skv]  →  [b,h,s,skv]
//
// The scale goes to the queries, with a Reshape or a Transpose between it and
// the product: beside one ONNX Runtime would fuse the two.
//
// The cap comes before the mask: after it, what is masked would be at -cap. A row
// that the mask forbids as a whole gives zero, where a softmax of -∞ alone is no
// number: its bias becomes 0, and then what it gives. Both are so in ONNX Runtime
// and in the operator's reference.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var attentionRules = []Rule{
	{Op: "Attention", Since: 23, Doc: "made of MatMul, Add, Softmax; see rules_attention.go", Inputs: []int{0, 1, 2, 3, 4, 5}, Grad: gradAttention},
	{Op: "RotaryEmbedding", Since: 23, Doc: "g rotated back: the sines negated; where cosines or sines train, made of Gather, Split, Mul and Concat", Inputs: []int{0, 1, 2}, Grad: gradRotary},
}

func gradRotary(c *Context) {
	if c.Needs(1) || c.Needs(2) {
		r := rotation{places: c.In(3), cos: c.In(1), sin: c.In(2), interleaved: c.Node.Int("interleaved", 0) != 0}
		if c.rotates(&r) {
			c.Decompose(func() []*onnx.Value { return []*onnx.Value{c.rotated(c.In(0), r)} })
		}
		return
	}
	in := append([]*onnx.Value{c.Grad(0)}, c.Node.Inputs[1:]...)
	in[2] = c.Do("Neg", in[2])
	var attrs []onnx.Attribute
	for _, name := range []string{"interleaved", "num_heads", "rotary_embedding_dim"} {
		if c.Node.Has(name) {
			attrs = append(attrs, onnx.IntAttr(name, c.Node.Int(name, 0)))
		}
	}
	c.Add(0, c.Op("RotaryEmbedding", in, attrs...))
}

func gradAttention(c *Context) {
	if c.Node.Has("left_window_size") || c.Node.Has("right_window_size") {
		c.Fail("a sliding window is not supported")
		return
	}
	for i := range 3 {
		if r := c.Rank(c.In(i)); r != 3 && r != 4 {
			c.Fail("operand %d of rank %d", i, r)
			return
		}
	}
	c.Decompose(func() []*onnx.Value { return attention(c) })
}

// heads returns an operand as [b,h,s,d].
func (c *Context) heads(v *onnx.Value, attr string) *onnx.Value {
	if v == nil || c.Rank(v) == 4 {
		return v
	}
	n := c.Node.Int(attr, 0)
	s := v.Type.Shape
	width, ok := s[2].Int()
	if n < 1 || !ok || width%n != 0 {
		c.Fail("%s %d for a width of %s", attr, n, s[2])
		return nil
	}
	four := c.ReshapeDims(v, onnx.Shape{s[0], s[1], onnx.Static(n), onnx.Static(width / n)})
	return c.Transpose(four, 0, 2, 1, 3)
}

func attention(c *Context) []*onnx.Value {
	q, k, v := c.In(0), c.heads(c.In(1), "kv_num_heads"), c.heads(c.In(2), "kv_num_heads")
	if past := c.In(4); past != nil {
		k = c.Op("Concat", build.In(past, k), onnx.IntAttr("axis", 2))
	}
	if past := c.In(5); past != nil {
		v = c.Op("Concat", build.In(past, v), onnx.IntAttr("axis", 2))
	}
	width, ok := onnx.Dim{}, false
	if k != nil {
		width = k.Type.Shape[3]
	}
	d, ok := width.Int()
	if !ok {
		c.Fail("the width of a head is unknown")
		return nil
	}
	q = c.heads(c.Scale(q, c.scoreScale(float64(d))), "q_num_heads")
	if q == nil || c.e.b.Err() != nil {
		return nil
	}
	scores := onnx.Shape{q.Type.Shape[0], q.Type.Shape[1], q.Type.Shape[2], k.Type.Shape[2]}
	s := c.ReshapeDims(c.Product(c.grouping(q, k), false, c.grouping(k, k), true), scores)
	stages := make([]*onnx.Value, 4) // what qk_matmul_output_mode returns
	stages[0] = s
	s = c.capped(s)
	stages[1] = s
	bias, forbidden := c.rows(c.attentionBias(q, scores))
	if bias != nil {
		s = c.Plus(s, bias)
	}
	stages[2] = s
	p := c.precise(s, func(s *onnx.Value) *onnx.Value { return c.Op("Softmax", build.In(s), onnx.IntAttr("axis", -1)) })
	stages[3] = p
	y := c.ReshapeDims(c.Product(c.groupRows(p, k, scores[3]), false, c.grouping(v, k), false), onnx.Shape{scores[0], scores[1], scores[2], v.Type.Shape[3]})
	if forbidden != nil {
		y = c.Where(forbidden, c.Scalar(y, 0), y)
	}
	out := []*onnx.Value{c.attentionOutput(y, scores, v), nil, nil, nil}
	if c.Out(1) != nil {
		out[1] = c.Do("Identity", k)
	}
	if c.Out(2) != nil {
		out[2] = c.Do("Identity", v)
	}
	if c.Out(3) != nil {
		mode := min(max(c.Node.Int("qk_matmul_output_mode", 0), 0), 3)
		out[3] = c.Do("Identity", stages[mode])
		switch {
		case forbidden == nil:
		case mode == 2: // the bias as it was
			out[3] = c.Where(forbidden, c.Scalar(s, math.Inf(-1)), s)
		case mode == 3:
			out[3] = c.Where(forbidden, c.Scalar(p, 0), p)
		}
	}
	return out
}

// scoreScale is what the scores of heads of that width are multiplied by.
func (c *Context) scoreScale(width float64) float64 {
	if scale := c.Node.Float("scale", 0); scale != 0 {
		return scale
	}
	return 1 / math.Sqrt(width)
}

// attentionBias is what is added to the scores: mask and causal bias, nil where there is neither.
func (c *Context) attentionBias(q *onnx.Value, scores onnx.Shape) *onnx.Value {
	if lengths := c.In(6); lengths != nil {
		return c.plus(c.maskBias(q), c.lengthBias(q, lengths))
	}
	return c.plus(c.maskBias(q), c.causalBias(scores))
}

// lengthBias forbids the keys behind each sample's own length. Causal queries are the
// last of that length, as in ONNX Runtime: one may see no key at all.
func (c *Context) lengthBias(q, lengths *onnx.Value) *onnx.Value {
	end := c.Unsqueeze(lengths, 1, 2, 3)
	if c.Node.Int("is_causal", 0) != 0 {
		row := c.Unsqueeze(c.Plus(c.places(q, 2), c.IntList(1)), 1)
		end = c.Plus(c.Minus(end, c.lengthOf(q, 2)), row)
	}
	k := c.In(1)
	keys := c.places(k, max(c.Rank(k)-2, 0))
	return c.Where(c.Do("Less", keys, end), c.Scalar(q, 0), c.Scalar(q, math.Inf(-1)))
}

// rows returns a bias with 0 in the rows that are -∞ as a whole, and which these
// are; nil where there can be none.
func (c *Context) rows(bias *onnx.Value) (open, forbidden *onnx.Value) {
	mask := c.In(3)
	if bias == nil || c.In(6) == nil && (mask == nil || c.Node.Int("is_causal", 0) == 0 && rowsOpen(mask)) {
		return bias, nil
	}
	highest := c.Op("ReduceMax", build.In(bias, c.IntList(-1)))
	forbidden = c.Op("IsInf", build.In(c.cast(highest, onnx.Float32)), onnx.IntAttr("detect_positive", 0))
	return c.Where(forbidden, c.Scalar(bias, 0), bias), forbidden
}

// rowsOpen reports a constant mask that leaves every row something.
func rowsOpen(mask *onnx.Value) bool {
	if !mask.IsConstant() || len(mask.Type.Shape) == 0 {
		return false
	}
	dims := mask.Init.Dims()
	values, err := mask.Init.Float64s()
	width := int(dims[len(dims)-1])
	if err != nil || width < 1 {
		return false
	}
	forbids := math.Inf(-1)
	if mask.Type.DType == onnx.Bool {
		forbids = 0
	}
	for row := range slices.Chunk(values, width) {
		if !slices.ContainsFunc(row, func(x float64) bool { return x != forbids }) {
			return false
		}
	}
	return true
}

// grouping stacks the heads that share a key's head, and joins batch and heads
// of operands that came with four axes, so that a Reshape stands between the
// scale and the product.
func (c *Context) grouping(v, k *onnx.Value) *onnx.Value {
	if v == nil || k == nil {
		return nil
	}
	return c.groupRows(v, k, v.Type.Shape[3])
}

func (c *Context) groupRows(v, k *onnx.Value, width onnx.Dim) *onnx.Value {
	if v == nil || k == nil {
		return nil
	}
	s, heads := v.Type.Shape, k.Type.Shape[1]
	rows := s[1].Mul(s[2]).Div(heads)
	if s[1] == heads {
		rows = s[2]
	}
	if c.Rank(c.In(0)) == 4 {
		return c.ReshapeDims(v, onnx.Shape{s[0].Mul(heads), rows, width})
	}
	return c.ReshapeDims(v, onnx.Shape{s[0], heads, rows, width})
}

// attentionOutput brings the product back to the form of the queries.
func (c *Context) attentionOutput(y *onnx.Value, scores onnx.Shape, v *onnx.Value) *onnx.Value {
	if y == nil || v == nil {
		return nil
	}
	if c.Rank(c.In(0)) == 4 {
		return y
	}
	return c.ReshapeDims(c.Transpose(y, 0, 2, 1, 3), onnx.Shape{scores[0], scores[2], scores[1].Mul(v.Type.Shape[3])})
}

// maskBias is the mask as a number to add: a boolean one forbids with -∞.
func (c *Context) maskBias(like *onnx.Value) *onnx.Value {
	mask := c.In(3)
	if mask == nil || mask.Type.DType != onnx.Bool {
		return mask
	}
	return c.Where(mask, c.Scalar(like, 0), c.Scalar(like, math.Inf(-1)))
}

// causalBias forbids what comes after: -∞ above the diagonal, which begins at
// the end of the past.
func (c *Context) causalBias(scores onnx.Shape) *onnx.Value {
	if c.Node.Int("is_causal", 0) == 0 {
		return nil
	}
	first := c.Const(onnx.Int64Tensor([]int64{1}))
	if past := c.In(4); past != nil {
		first = c.Do("Squeeze", c.Plus(c.lengthOf(past, 2), c.IntList(1)), c.IntList(0))
	}
	return c.triangle(scores, first, 1)
}

// triangle is -∞ from a diagonal of the scores on upwards, or up to it where upper is 0.
func (c *Context) triangle(scores onnx.Shape, diagonal *onnx.Value, upper int64) *onnx.Value {
	all := c.e.filled(onnx.Shape{scores[2], scores[3]}, c.In(0).Type.DType, math.Inf(-1))
	return c.Op("Trilu", build.In(all, diagonal), onnx.IntAttr("upper", upper))
}

// capped bounds scores softly, as cap·tanh(s/cap).
func (c *Context) capped(s *onnx.Value) *onnx.Value {
	if bound := c.Node.Float("softcap", 0); bound != 0 {
		return c.Scale(c.Do("Tanh", c.Scale(s, 1/bound)), bound)
	}
	return s
}

// precise runs f in the node's softmax precision.
func (c *Context) precise(v *onnx.Value, f func(*onnx.Value) *onnx.Value) *onnx.Value {
	to := onnx.DType(c.Node.Int("softmax_precision", 0))
	if v == nil || to == 0 || to == v.Type.DType || !to.IsFloat() {
		return f(v)
	}
	return c.CastTo(f(c.cast(v, to)), v)
}
