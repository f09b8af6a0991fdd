package grad

// Rows added to places that may repeat, without a race. ScatterND with a
// reduction says it in one node, but ONNX Runtime's CPU kernel runs its updates
// in parallel without atomics, and with two threads or more some are lost
// (microsoft/onnxruntime issues 18048 and 23396). So no such node is written,
// and those of the forward graph are replaced. Index tuples over the first k
// axes become one index into the rows of a matrix,
//
//	x [d0, …, dk-1, rest]   ─Flatten─▶ [K, R]      K = d0·…·dk-1, R = Πrest
//	tuples [N…, k]          ─────────▶ [N, 1]      Σ index_j · stride_j
//	updates [N…, rest]      ─Flatten─▶ [N, R]
//
// and the rows are added by one of
//
//	product   (0…K-1 == index)ᵀ @ updates: [K, N] @ [N, R], for few rows
//	scatter   ScatterElements over the index stretched to [N, R], which the CPU
//	          runs in order, and CUDA with atomics: no update is lost there, but
//	          the order of the sum, and so its last bits, may change
//
// The stretched index takes as many bytes as the updates, or twice as many, and
// ScatterElements is one thread's work, some 10 ns an element on the CPU. The
// product takes K·N numbers and one thread 5 ns an element at K = 256, 1.4 at 64,
// and adds in one order everywhere. A gradient that is not finite spreads over all
// rows in it.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// fewRows is the largest K for which the product is taken.
const fewRows = 256

// rowsAt names rows of a value x whose first axes are taken as one.
type rowsAt struct {
	axes int
	// index is [N, 1], int64, from 0 to count-1, or from -count where axes is 1.
	index *onnx.Value
	// count is K, width R.
	count, width onnx.Dim
}

// tupleRows reads index tuples, the last axis of idx, over the first axes of x.
func (c *Context) tupleRows(x, idx *onnx.Value) (rowsAt, bool) {
	rank, last := c.Rank(x), c.Rank(idx)-1
	if c.e.b.Err() != nil {
		return rowsAt{}, false
	}
	k := int64(0)
	if last >= 0 {
		k, _ = idx.Type.Shape[last].Int()
	}
	if k < 1 || k > int64(rank) {
		c.Fail("indices of shape %s for a value of shape %s", idx.Type.Shape, x.Type.Shape)
		return rowsAt{}, false
	}
	shape := x.Type.Shape
	at := rowsAt{axes: int(k), count: shape[:k].Elements(), width: shape[k:].Elements()}
	at.index = c.Op("Flatten", build.In(idx), onnx.IntAttr("axis", int64(last)))
	if k > 1 {
		extents, strides := c.strides(x, int(k))
		at.index = c.Op("ReduceSum", build.In(c.Do("Mul", c.fromFront(at.index, extents), strides), c.IntList(1)))
	}
	return at, true
}

// fromFront counts negative indices from the front.
func (c *Context) fromFront(idx, extents *onnx.Value) *onnx.Value {
	if known, ok := c.Ints(idx); ok && (len(known) == 0 || slices.Min(known) >= 0) {
		return idx
	}
	return c.Where(c.Do("Less", idx, c.IntList(0)), c.Plus(idx, extents), idx)
}

// strides are the extents of the first k axes of x, [k], and how many rows one
// step along each of them is.
func (c *Context) strides(x *onnx.Value, k int) (extents, strides *onnx.Value) {
	if known, ok := x.Type.Shape[:k].Ints(); ok {
		steps := make([]int64, k)
		step := int64(1)
		for i := k - 1; i >= 0; i-- {
			steps[i], step = step, step*known[i]
		}
		return c.IntList(known...), c.IntList(steps...)
	}
	part := func(from, to int) *onnx.Value {
		return c.Do("Slice", c.ShapeOf(x), c.IntList(int64(from)), c.IntList(int64(to)))
	}
	var steps []*onnx.Value
	for i := 1; i < k; i++ {
		steps = append(steps, c.Do("ReduceProd", part(i, k), c.IntList(0)))
	}
	return part(0, k), c.Op("Concat", append(steps, c.IntList(1)), onnx.IntAttr("axis", 0))
}

// byProduct reports rows few enough to be added by a product.
func (at rowsAt) byProduct(d onnx.DType) bool {
	count, known := at.count.Int()
	width, static := at.width.Int()
	return known && static && count <= min(fewRows, width) && d.IsFloat()
}

// product is the sum of the updates, [N, R], to each row, [K, R].
func (c *Context) product(at rowsAt, updates *onnx.Value) *onnx.Value {
	count, _ := at.count.Int()
	index := at.index
	if at.axes == 1 {
		index = c.fromFront(index, c.IntList(count))
	}
	hit := c.Do("Equal", c.Const(onnx.Int64Tensor(upTo(count), count, 1)), c.ReshapeTo(index, 1, -1))
	return c.Do("MatMul", c.Mask(hit, updates), updates)
}

// stretched is the index for every element of a row, [N, R].
func (c *Context) stretched(at rowsAt, updates *onnx.Value) *onnx.Value {
	index := at.index
	if at.width.Is(1) {
		return index
	}
	if count, ok := at.count.Int(); ok && count <= math.MaxInt32 {
		index = c.cast(index, onnx.Int32) // half the bytes
	}
	if width, ok := at.width.Int(); ok {
		return c.Do("Expand", index, c.IntList(1, width))
	}
	return c.Do("Expand", index, c.ShapeOf(updates))
}

// flat takes the first axes of v as one, and the others.
func (e *engine) flat(v *onnx.Value, axes int) *onnx.Value {
	if v == nil || v.Type.Ranked && len(v.Type.Shape) == 2 && axes == 1 {
		return v
	}
	return e.b.Op("Flatten", build.In(v), onnx.IntAttr("axis", int64(axes)))
}

// AddRows adds g, of the shape that GatherND gives, to the places of input i
// that index tuples name; they may name one several times.
func (c *Context) AddRows(i int, tuples, g *onnx.Value) {
	x := c.In(i)
	at, ok := c.tupleRows(x, tuples)
	if !ok || g == nil || !c.Needs(i) {
		return
	}
	updates := c.e.flat(g, c.Rank(tuples)-1)
	if at.byProduct(x.Type.DType) {
		c.Add(i, c.Reshape(c.product(at, updates), x))
		return
	}
	p := c.e.partialOf(x)
	p.scatters = append(p.scatters, scatterPart{flat: at.axes, indices: c.stretched(at, updates), grad: updates})
}

// scatterAdd adds updates to the places of x along an axis that indices name. In a half
// type it adds in float32: ONNX Runtime's CPU kernel has no other, and a row that many
// updates go to would stop growing. Zeros may be float32 beforehand.
func (e *engine) scatterAdd(x, indices, updates *onnx.Value, axis int) *onnx.Value {
	if x == nil || updates == nil {
		return nil
	}
	dtype := updates.Type.DType
	x, updates = e.cast(x, sumType(dtype)), e.cast(updates, sumType(dtype))
	y := e.b.Op("ScatterElements", build.In(x, indices, updates), onnx.IntAttr("axis", int64(axis)), onnx.StringAttr("reduction", "add"))
	return e.cast(y, dtype)
}

// scatter puts updates at the places of zeros, of scatteredType, along an axis that indices name.
// Twice: a place may be named more than once, and what goes there is added up.
func (e *engine) scatter(zeros, indices, updates *onnx.Value, axis int, twice bool) *onnx.Value {
	if twice {
		return e.scatterAdd(zeros, indices, updates, axis)
	}
	return e.b.Op("ScatterElements", build.In(zeros, indices, updates), onnx.IntAttr("axis", int64(axis)))
}

// scatteredType is the type of the zeros that scatter takes for updates of a type.
func scatteredType(d onnx.DType, twice bool) onnx.DType {
	if twice {
		return sumType(d)
	}
	return d
}

// sumType is the type in which numbers of a type are added up.
func sumType(d onnx.DType) onnx.DType {
	if d.IsHalf() {
		return onnx.Float32
	}
	return d
}

// lowerScatters replaces the ScatterNDs of the forward graph that do what is
// asked for. One whose ranks are not known stays.
func (e *engine) lowerScatters(asked func(*onnx.Node) bool) {
	lowered := false
	for _, n := range slices.Clone(e.m.Graph.Nodes) {
		if n.Is("ScatterND") && asked(n) && n.Out(0) != nil && n.In(0).Type.Ranked && n.In(1).Type.Ranked && tupleLength(n.In(1)) {
			e.b.Scope = n.Label()
			e.lowerScatter(&Context{Node: n, Opset: e.opset(n), e: e})
			lowered = true
		}
	}
	if lowered {
		e.m.Graph.RemoveDead()
	}
}

// widenScatters has each scatter of half numbers that reduces do so in float32, those of the
// forward graph too: ONNX Runtime's CPU kernels reduce no half numbers, and refuse the step
// where it does not happen to widen them itself.
func (e *engine) widenScatters() {
	for _, n := range slices.Clone(e.m.Graph.Nodes) {
		y := n.Out(0)
		if !n.Is("ScatterElements", "ScatterND") || n.Str("reduction", "none") == "none" || y == nil || !y.Type.DType.IsHalf() {
			continue
		}
		e.b.Scope = n.Label()
		c, wide := &Context{Node: n, Opset: e.opset(n), e: e}, sumType(y.Type.DType)
		c.Forward(func() {
			sum := c.Op(n.OpType(), build.In(c.cast(c.In(0), wide), c.In(1), c.cast(c.In(2), wide)), n.Proto.GetAttribute()...)
			c.Replace(0, c.CastTo(sum, y))
		})
	}
}

// hasNoRule reports a ScatterND whose gradient is that of the ScatterElements
// which takes its place.
func hasNoRule(n *onnx.Node) bool {
	mode := n.Str("reduction", "none")
	return mode != "none" && mode != "add"
}

// tupleLength reports index tuples of known length.
func tupleLength(idx *onnx.Value) bool {
	rank := len(idx.Type.Shape)
	return rank > 0 && idx.Type.Shape[rank-1].IsStatic()
}

func (e *engine) lowerScatter(c *Context) {
	x, tuples, g := c.In(0), c.In(1), c.In(2)
	c.Forward(func() {
		at, ok := c.tupleRows(x, tuples)
		if !ok {
			return
		}
		updates := e.flat(g, c.Rank(tuples)-1)
		y := c.Op("ScatterElements", build.In(e.flat(x, at.axes), c.stretched(at, updates), updates),
			onnx.IntAttr("axis", 0), onnx.StringAttr("reduction", c.Node.Str("reduction", "none")))
		c.Replace(0, c.Reshape(y, x))
	})
}
