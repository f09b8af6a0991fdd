package grad

// GroupQueryAttention, as ONNX Runtime's builder of generating models writes it, over
// all tokens of a step at once:
//
//	q, k, v ─ parts of one operand where only that is there
//	q, k    ─ turned by their positions
//	y       = softmax(mask(cap(q kᵀ·scale) + bias)) v
//
// Queries of a group stand below each other, as in rules_attention.go. A key is seen by
// its own token and those after it, within a window: those fewer than
// local_window_size tokens later. A sink is one more score in each row, whose share is
// lost; smooth_softmax is a sink of 0.
//
// Positions are all read, as the operator says; the kernel for the CPU reads the first
// one of a sequence and counts on from it, which is the same where they count.
//
// The lengths of the sequences say where padding begins, behind all tokens; no token
// before it sees it, so they are not needed.
//
// Source: ContribOperators.md of ONNX Runtime, and its kernel for the CPU.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// The inputs by name.
const (
	gqaPast, gqaCos, gqaSin, gqaPlaces   = 3, 7, 8, 9
	gqaBias, gqaSink, gqaScales, gqaNorm = 10, 11, 12, 14
)

func gradGroupQuery(c *Context) {
	switch {
	case c.In(gqaPast) != nil || c.In(gqaPast+1) != nil:
		c.Fail("past states are not supported; remat loss writes a model without them")
	case c.In(gqaScales) != nil || c.In(gqaScales+1) != nil:
		c.Fail("a quantized cache is not supported")
	case c.In(gqaNorm) != nil || c.In(gqaNorm+1) != nil: // no kernel for the CPU has it
		c.Fail("norms of its heads inside it are not supported")
	case c.Rank(c.In(0)) != 3:
		c.Fail("queries of rank %d", c.Rank(c.In(0)))
	}
	c.noOutputs("its present state or its scores are read", 1, 2, 3)
	if c.e.b.Err() != nil {
		return
	}
	c.Decompose(func() []*onnx.Value { return []*onnx.Value{c.groupQuery(), nil, nil, nil} })
}

// groupQuery is the node's output 0.
func (c *Context) groupQuery() *onnx.Value {
	q, k, v := c.In(0), c.In(1), c.In(2)
	heads, shared := c.Node.Int("num_heads", 0), c.Node.Int("kv_num_heads", 0)
	width, ok := q.Type.Shape[2].Int()
	parts := heads
	if k == nil {
		parts += 2 * shared
	}
	if !ok || heads < 1 || shared < 1 || heads%shared != 0 || width%parts != 0 {
		c.Fail("num_heads %d and kv_num_heads %d for a width of %s", heads, shared, q.Type.Shape[2])
		return nil
	}
	width /= parts
	if k == nil {
		of := c.Split(q, 2, heads*width, shared*width, shared*width)
		q, k, v = of[0], of[1], of[2]
	}
	if c.Node.Int("do_rotary", 0) != 0 {
		r, ok := c.groupRotation(q)
		if !ok {
			return nil
		}
		r.width = width
		q, k = c.rotated(q, r), c.rotated(k, r)
	}
	q, k, v = c.heads(c.Scale(q, c.scoreScale(float64(width))), "num_heads"), c.heads(k, "kv_num_heads"), c.heads(v, "kv_num_heads")
	if c.e.b.Err() != nil {
		return nil
	}
	scores := onnx.Shape{q.Type.Shape[0], q.Type.Shape[1], q.Type.Shape[2], k.Type.Shape[2]}
	s := c.capped(c.ReshapeDims(c.Product(c.grouping(q, k), false, c.grouping(k, k), true), scores))
	if bias := c.In(gqaBias); bias != nil {
		s = c.Plus(s, bias)
	}
	if c.Node.Int("causal", 1) != 0 {
		s = c.Plus(s, c.windowBias(scores))
	}
	p := c.sunk(s, scores)
	y := c.ReshapeDims(c.Product(c.groupRows(p, k, scores[3]), false, c.grouping(v, k), false), onnx.Shape{scores[0], scores[1], scores[2], v.Type.Shape[3]})
	return c.attentionOutput(y, scores, v)
}

// groupRotation says how queries and keys are turned: from position 0 on, where none are
// given.
func (c *Context) groupRotation(q *onnx.Value) (rotation, bool) {
	cos, sin := c.In(gqaCos), c.In(gqaSin)
	if cos == nil || sin == nil || c.Rank(cos) != 2 {
		c.Fail("do_rotary without cos_cache and sin_cache")
		return rotation{}, false
	}
	half, ok := cos.Type.Shape[1].Int()
	if !ok {
		c.Fail("the width of %q is unknown", cos.Name)
		return rotation{}, false
	}
	places := c.In(gqaPlaces)
	if places == nil {
		places = c.Unsqueeze(c.places(q, 1), 0)
	}
	return rotation{places: places, cos: cos, sin: sin, half: half, interleaved: c.Node.Int("rotary_interleaved", 0) != 0}, true
}

// windowBias forbids with -∞ keys after a token, and those local_window_size or more
// before it.
func (c *Context) windowBias(scores onnx.Shape) *onnx.Value {
	later := c.triangle(scores, c.e.b.Int(1), 1)
	window := c.Node.Int("local_window_size", -1)
	if window <= 0 {
		return later
	}
	earlier := c.triangle(scores, c.e.b.Int(-window), 0)
	return c.Plus(later, earlier)
}

// sunk is the softmax of each row, of which a sink takes a share where there is one.
func (c *Context) sunk(s *onnx.Value, scores onnx.Shape) *onnx.Value {
	softmax := func(v *onnx.Value) *onnx.Value { return c.Op("Softmax", build.In(v), onnx.IntAttr("axis", -1)) }
	column := onnx.Shape{scores[0], scores[1], scores[2], onnx.Static(1)}
	var sink *onnx.Value
	switch given := c.In(gqaSink); {
	case given != nil:
		sink = c.Plus(c.e.filled(column, s.Type.DType, 0), c.Unsqueeze(given, 0, 2, 3))
	case c.Node.Int("smooth_softmax", 0) != 0:
		sink = c.e.filled(column, s.Type.DType, 0)
	default:
		return softmax(s)
	}
	p := softmax(c.Op("Concat", build.In(s, sink), onnx.IntAttr("axis", -1)))
	return c.Do("Slice", p, c.IntList(0), c.IntList(-1), c.IntList(3))
}
