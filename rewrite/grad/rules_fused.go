package grad

// What ONNX Runtime's transformer optimizer fuses is differentiated as what it was
// made of: operators of com.microsoft that no training graph could keep whole,
// since they return nothing that backward needs. Their meaning is that of ONNX
// Runtime's ContribOperators.md; forms that it never writes for training (past
// states, packed batches) are refused.

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

const microsoft = "com.microsoft"

var fusedRules = []Rule{
	{Domain: microsoft, Op: "SkipLayerNormalization", Since: 1, Doc: "made of Add and LayerNormalization", Inputs: []int{0, 1, 2, 3, 4}, Grad: func(c *Context) {
		c.skipNorm(4, func(sum *onnx.Value) *onnx.Value {
			return c.Op("LayerNormalization", build.In(sum, c.In(2), c.In(3)), onnx.FloatAttr("epsilon", c.Node.Float("epsilon", 1e-12)))
		})
	}},
	{Domain: microsoft, Op: "SkipSimplifiedLayerNormalization", Since: 1, Doc: "made of Add and SimplifiedLayerNormalization", Inputs: []int{0, 1, 2, 3}, Grad: func(c *Context) {
		c.skipNorm(3, func(sum *onnx.Value) *onnx.Value {
			return c.Op("SimplifiedLayerNormalization", build.In(sum, c.In(2)), onnx.FloatAttr("epsilon", c.Node.Float("epsilon", 1e-12)))
		})
	}},
	{Domain: microsoft, Op: "EmbedLayerNormalization", Since: 1, Doc: "made of Gather, Add and LayerNormalization", Inputs: []int{2, 3, 4, 5, 6}, Grad: gradEmbedNorm},
	{Domain: microsoft, Op: "Attention", Since: 1, Doc: "made of MatMul, Split, Softmax", Inputs: []int{0, 1, 2, 5}, Grad: gradFusedAttention},
	{Domain: microsoft, Op: "MultiHeadAttention", Since: 1, Doc: "made of MatMul and Softmax", Inputs: []int{0, 1, 2, 3, 5}, Grad: gradMultiHead},
	{Domain: microsoft, Op: "GroupQueryAttention", Since: 1, Doc: "made of MatMul and Softmax; see rules_groupquery.go", Inputs: []int{0, 1, 2, 10, 11}, Fixed: []int{7, 8}, Grad: gradGroupQuery},
	{Domain: microsoft, Op: "RotaryEmbedding", Since: 1, Doc: "made of Gather, Split, Mul and Concat", Inputs: []int{0, 2, 3}, Grad: gradFusedRotary},
	{Domain: microsoft, Op: "FusedConv", Since: 1, Doc: "made of Conv, Add and the activation", Grad: gradFusedConv},
	{Domain: microsoft, Op: "FusedGemm", Since: 1, Doc: "made of Gemm and the activation", Grad: gradFusedGemm},
}

// skipNorm is norm(x + skip + bias), with the sum as output 3.
func (c *Context) skipNorm(bias int, norm func(*onnx.Value) *onnx.Value) {
	c.noOutputs("it is returned with its statistics", 1, 2)
	c.Decompose(func() []*onnx.Value {
		sum := c.Plus(c.In(0), c.In(1))
		if b := c.In(bias); b != nil {
			sum = c.Plus(sum, b)
		}
		out := []*onnx.Value{norm(sum), nil, nil, nil}
		if c.Out(3) != nil {
			out[3] = sum
		}
		return out
	})
}

// noOutputs refuses nodes some outputs of which are read.
func (c *Context) noOutputs(why string, indices ...int) {
	for _, i := range indices {
		if o := c.Out(i); o != nil && !o.Dead() {
			c.Fail("%s (%q)", why, o.Name)
		}
	}
}

func gradEmbedNorm(c *Context) {
	ids, words, places := c.In(0), c.In(2), c.In(3)
	c.noOutputs("its mask index is read", 1)
	if c.Rank(ids) != 2 || c.e.b.Err() != nil {
		c.Fail("ids of rank %d", c.Rank(ids))
		return
	}
	c.Decompose(func() []*onnx.Value {
		sum := c.Do("Gather", words, ids)
		if at := c.In(8); at != nil {
			sum = c.Plus(sum, c.Do("Gather", places, at))
		} else {
			sum = c.Plus(sum, c.Do("Slice", places, c.IntList(0), c.lengthOf(ids, 1), c.IntList(0)))
		}
		if c.In(1) != nil && c.In(4) != nil {
			sum = c.Plus(sum, c.Do("Gather", c.In(4), c.In(1)))
		}
		y := c.Op("LayerNormalization", build.In(sum, c.In(5), c.In(6)), onnx.FloatAttr("epsilon", c.Node.Float("epsilon", 1e-12)))
		out := []*onnx.Value{y, nil, nil}
		if c.Out(2) != nil {
			out[2] = sum
		}
		return out
	})
}

// gradFusedAttention: one product gives queries, keys and values.
func gradFusedAttention(c *Context) {
	n := c.Node.Int("num_heads", 0)
	if c.In(4) != nil || c.In(6) != nil || c.Node.Int("do_rotary", 0) != 0 || c.Rank(c.In(0)) != 3 {
		c.Fail("past states and rotary positions are not supported")
		return
	}
	for _, size := range c.Node.Ints("qkv_hidden_sizes") {
		if size != c.Node.Ints("qkv_hidden_sizes")[0] {
			c.Fail("qkv_hidden_sizes that differ are not supported")
			return
		}
	}
	c.noOutputs("its present state is read", 1)
	if c.e.b.Err() != nil {
		return
	}
	c.Decompose(func() []*onnx.Value {
		p := c.Do("MatMul", c.In(0), c.In(1))
		if b := c.In(2); b != nil {
			p = c.Plus(p, b)
		}
		parts := c.Nodes("", "Split", build.In(p), 3, onnx.IntAttr("axis", 2), onnx.IntAttr("num_outputs", 3))
		return []*onnx.Value{c.multiHead(parts[0], parts[1], parts[2], n, c.In(3), c.In(5)), nil}
	})
}

func gradMultiHead(c *Context) {
	n := c.Node.Int("num_heads", 0)
	if c.Rank(c.In(0)) != 3 || c.In(1) == nil || c.In(2) == nil || c.Rank(c.In(1)) != 3 || c.Rank(c.In(2)) != 3 || c.In(6) != nil || c.In(7) != nil {
		c.Fail("packed operands and past states are not supported")
		return
	}
	c.noOutputs("its present state is read", 1, 2, 3)
	if c.e.b.Err() != nil {
		return
	}
	c.Decompose(func() []*onnx.Value {
		q, k, v := c.In(0), c.In(1), c.In(2)
		if bias := c.In(3); bias != nil {
			var widths []int64
			for _, x := range []*onnx.Value{q, k, v} {
				w, known := x.Type.Shape[2].Int()
				if !known {
					c.Fail("the width of %q is unknown", x.Name)
					return nil
				}
				widths = append(widths, w)
			}
			parts := c.Split(bias, 0, widths...)
			q, k, v = c.Plus(q, parts[0]), c.Plus(k, parts[1]), c.Plus(v, parts[2])
		}
		return []*onnx.Value{c.multiHead(q, k, v, n, c.In(4), c.In(5)), nil, nil, nil}
	})
}

// multiHead is attention over n heads of q [b,s,h], k [b,t,h] and v [b,t,hv], with
// a mask of the keys and a bias of the scores; either may be nil.
func (c *Context) multiHead(q, k, v *onnx.Value, n int64, mask, bias *onnx.Value) *onnx.Value {
	if c.e.b.Err() != nil {
		return nil
	}
	heads := func(x *onnx.Value) *onnx.Value { return c.heads(x, "num_heads") }
	width, _ := q.Type.Shape[2].Int()
	scale := c.scoreScale(float64(width) / float64(max(n, 1)))
	queries, keys, values := heads(c.Scale(q, scale)), heads(k), heads(v)
	if c.e.b.Err() != nil {
		return nil
	}
	scores := c.Product(queries, false, keys, true)
	if bias != nil {
		scores = c.Plus(scores, bias)
	}
	if mask != nil {
		mask = c.keyMask(mask, q.Type.Shape[0], k)
		if mask == nil {
			return nil
		}
		hidden := c.Scalar(q, c.Node.Float("mask_filter_value", -10000))
		scores = c.Plus(scores, c.Where(mask, c.Scalar(q, 0), hidden))
	}
	if c.Node.Int("unidirectional", 0) != 0 {
		if q.Type.Shape[1] != k.Type.Shape[1] {
			// The kernel's last query sees all keys.
			c.Fail("unidirectional over %s keys for %s queries is not supported", k.Type.Shape[1], q.Type.Shape[1])
			return nil
		}
		later := c.e.filled(onnx.Shape{q.Type.Shape[1], k.Type.Shape[1]}, q.Type.DType, math.Inf(-1))
		scores = c.Plus(scores, c.Op("Trilu", build.In(later, c.e.b.Int(1)), onnx.IntAttr("upper", 1)))
	}
	p := c.Op("Softmax", build.In(scores), onnx.IntAttr("axis", -1))
	y := c.Transpose(c.Product(p, false, values, false), 0, 2, 1, 3)
	return c.ReshapeDims(y, onnx.Shape{q.Type.Shape[0], q.Type.Shape[1], v.Type.Shape[2]})
}

// keyMask says which keys are seen, in a form that broadcasts to the scores: where
// a mask [batch, keys] or [batch, queries, keys] is above 0, or before the end that
// a mask [batch] gives.
func (c *Context) keyMask(mask *onnx.Value, batch onnx.Dim, k *onnx.Value) *onnx.Value {
	zero := c.cast(c.e.b.Int(0), mask.Type.DType)
	switch rank := c.Rank(mask); {
	case rank == 3:
		return c.Unsqueeze(c.Do("Greater", mask, zero), 1)
	case rank == 2:
		return c.Unsqueeze(c.Do("Greater", mask, zero), 1, 2)
	case rank == 1 && mask.Type.Shape[0] == batch:
		return c.Unsqueeze(c.Do("Less", c.Unsqueeze(c.places(k, 1), 0), c.Unsqueeze(c.cast(mask, onnx.Int64), 1)), 1, 2)
	}
	c.Fail("a mask of shape %s is not supported", mask.Type.Shape)
	return nil
}

func gradFusedRotary(c *Context) {
	if c.Node.Int("is_packed_batching", 0) != 0 {
		c.Fail("packed batches are not supported")
		return
	}
	r := rotation{places: c.In(1), cos: c.In(2), sin: c.In(3), interleaved: c.Node.Int("interleaved", 0) != 0}
	if c.Rank(r.cos) != 2 {
		c.Fail("cosines of unknown form")
		return
	}
	if c.rotates(&r) {
		c.Decompose(func() []*onnx.Value { return []*onnx.Value{c.rotated(c.In(0), r)} })
	}
}

// rotates completes r by the widths of the node's heads; the rule fails where these are unknown.
func (c *Context) rotates(r *rotation) bool {
	rank, ok := c.Rank(r.cos), false
	if rank > 0 {
		r.half, ok = r.cos.Type.Shape[rank-1].Int()
	}
	if !ok || c.Rank(c.In(0)) != 3 && c.Rank(c.In(0)) != 4 {
		c.Fail("cosines or operand of unknown form")
		return false
	}
	s, heads := c.In(0).Type.Shape, c.Node.Int("num_heads", 0)
	r.width = 2 * r.half
	switch {
	case len(s) == 4:
		r.width, ok = s[3].Int()
	case heads > 0 && c.Node.Int("rotary_embedding_dim", 0) != 0:
		r.width, ok = s[2].Int()
		r.width /= heads
	}
	if !ok {
		c.Fail("the width of a head is unknown")
	}
	return ok
}

// A rotation says by which angles heads are turned: rows of cos and sin, [positions,
// half], at places [b or 1,s], or from places [1] on; without places they are [b,s,half].
type rotation struct {
	places, cos, sin *onnx.Value
	half, width      int64 // 2*half of a head's numbers are turned
	interleaved      bool
}

// rotated turns the first 2*half numbers of each head of x, which is [b,s,heads*width]
// or [b,heads,s,width], by the angles of their positions, in pairs that lie half
// apart or, interleaved, side by side.
func (c *Context) rotated(x *onnx.Value, r rotation) *onnx.Value {
	s := x.Type.Shape
	places, half, width, four := r.places, r.half, r.width, x
	if len(s) == 4 {
		four = c.Transpose(x, 0, 2, 1, 3)
	} else {
		four = c.ReshapeDims(x, onnx.Shape{s[0], s[1], s[2].Div(onnx.Static(width)), onnx.Static(width)})
	}
	if places != nil && c.Rank(places) == 1 { // where the first one stands
		places = c.Unsqueeze(c.Plus(c.places(four, 1), c.cast(places, onnx.Int64)), 0)
	}
	angles := func(table *onnx.Value) *onnx.Value {
		if places != nil {
			table = c.Do("Gather", table, places)
		}
		return c.Unsqueeze(table, 2)
	}
	cos, sin := angles(r.cos), angles(r.sin)
	join := func(parts ...*onnx.Value) *onnx.Value { return c.Op("Concat", parts, onnx.IntAttr("axis", -1)) }
	turned, rest := four, []*onnx.Value(nil)
	if width > 2*half {
		parts := c.Split(four, -1, 2*half, width-2*half)
		turned, rest = parts[0], parts[1:]
	}
	t := turned.Type.Shape
	var parts []*onnx.Value
	if r.interleaved {
		cos, sin = c.Unsqueeze(cos, 4), c.Unsqueeze(sin, 4)
		parts = c.Split(c.ReshapeDims(turned, onnx.Shape{t[0], t[1], t[2], onnx.Static(half), onnx.Static(2)}), -1, 1, 1)
	} else {
		parts = c.Split(turned, -1, half, half)
	}
	a, b := parts[0], parts[1]
	y := join(c.Minus(c.Times(a, cos), c.Times(b, sin)), c.Plus(c.Times(b, cos), c.Times(a, sin)))
	y = c.ReshapeDims(y, t)
	if rest != nil {
		y = join(y, rest[0])
	}
	if len(s) == 4 {
		return c.Transpose(y, 0, 2, 1, 3)
	}
	return c.ReshapeDims(y, s)
}

// activated applies the activation that a fused node names.
func (c *Context) activated(v *onnx.Value, op string, params []float32) *onnx.Value {
	at := func(i int, otherwise float64) float64 {
		if i < len(params) {
			return float64(params[i])
		}
		return otherwise
	}
	attr := func(name string, i int, otherwise float64) onnx.Attribute {
		return onnx.FloatAttr(name, at(i, otherwise))
	}
	switch op {
	case "":
		return v
	case "Relu", "Tanh", "Sigmoid", "Softplus":
		return c.Do(op, v)
	case "LeakyRelu":
		return c.Op(op, build.In(v), attr("alpha", 0, 0.01))
	case "HardSigmoid":
		return c.Op(op, build.In(v), attr("alpha", 0, 0.2), attr("beta", 1, 0.5))
	case "Clip":
		return c.Do(op, v, c.Scalar(v, at(0, -math.MaxFloat32)), c.Scalar(v, at(1, math.MaxFloat32)))
	}
	c.Fail("activation %s is not supported", op)
	return nil
}

func gradFusedConv(c *Context) {
	c.Decompose(func() []*onnx.Value {
		y := c.Op("Conv", build.In(c.In(0), c.In(1), c.In(2)), c.Node.AttrsBut("activation", "activation_params")...)
		if z := c.In(3); z != nil {
			y = c.Plus(y, z)
		}
		return []*onnx.Value{c.activated(y, c.Node.Str("activation", ""), c.Node.Floats("activation_params"))}
	})
}

func gradFusedGemm(c *Context) {
	c.Decompose(func() []*onnx.Value {
		var attrs []onnx.Attribute
		for _, a := range c.Node.Proto.Attribute {
			switch a.GetName() {
			case "alpha", "beta", "transA", "transB":
				attrs = append(attrs, a)
			}
		}
		y := c.Op("Gemm", build.In(c.In(0), c.In(1), c.In(2)), attrs...)
		params := []float32{float32(c.Node.Float("activation_alpha", 0)), float32(c.Node.Float("activation_beta", 0))}
		return []*onnx.Value{c.activated(y, c.Node.Str("activation", ""), params)}
	})
}
