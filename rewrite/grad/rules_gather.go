package grad

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// gatherRules: reading and writing by index. Gradients of elements that are
// read several times add up; ScatterElements with add does that in place.
var gatherRules = []Rule{
	{Op: "Gather", Since: 1, Doc: "g added to the rows that were read, but for an embedding's padding", Inputs: []int{0}, Grad: gradGather},
	{Op: "GatherElements", Since: 11, Doc: "g added to the elements that were read", Inputs: []int{0}, Grad: func(c *Context) {
		c.AddScatter(0, c.Axis("axis", 0, c.In(0)), c.In(1), c.Grad(0))
	}},
	{Op: "GatherND", Since: 11, Doc: "g added to the slices that were read", Inputs: []int{0}, Grad: gradGatherND},
	{Op: "Compress", Since: 9, Doc: "made of NonZero and Gather", Inputs: []int{0}, Grad: decomposition(func(c *Context) *onnx.Value {
		x, axis := c.In(0), 0
		if c.Node.Has("axis") {
			axis = c.Axis("axis", 0, x)
		} else {
			x = c.ReshapeTo(x, -1)
		}
		places := c.Do("Squeeze", c.Do("NonZero", c.In(1)), c.IntList(0))
		return c.Op("Gather", build.In(x, places), onnx.IntAttr("axis", int64(axis)))
	})},
	{Op: "ScatterElements", Since: 11, Doc: "dx = g, zero where overwritten (kept where added); du = g at the indices; a product's g times the other factors, an extreme's to those equal to it", Inputs: []int{0, 2}, Grad: gradScatterElements},
	{Op: "ScatterND", Since: 11, Doc: "dx = g, zero where overwritten (kept where added); du = g at the indices", Inputs: []int{0, 2}, Grad: gradScatterND},
}

func gradGather(c *Context) {
	x, idx, g := c.In(0), c.In(1), c.Grad(0)
	axis := c.Axis("axis", 0, x)
	rank, irank := c.Rank(x), c.Rank(idx)
	if g == nil || c.e.b.Err() != nil {
		return
	}
	if rank == 0 || c.Rank(g) != rank-1+irank { // of a training graph that is lowered
		c.Fail("a gradient of rank %d for rows of rank %d by indices of rank %d", c.Rank(g), rank, irank)
		return
	}
	if axis == 0 {
		g = c.withoutPadding(idx, g)
	}
	extent, static := x.Type.Shape[axis].Int()
	if known, ok := c.Ints(idx); ok && static && len(known) >= 1 {
		if start, run := onnx.Consecutive(known, extent); run {
			if irank != 1 {
				g = c.ReshapeDims(g, withExtent(x.Type.Shape, axis, onnx.Static(int64(len(known)))))
			}
			c.AddSlice(0, axis, start, start+int64(len(known)), g)
			return
		}
	}
	// One axis of indices in place of those that the indices have.
	rows := idx.Type.Shape.Elements()
	if irank != 1 {
		if rank == 2 && axis == 0 && !rows.IsStatic() {
			rows = onnx.Dim{}
		}
		g = c.ReshapeDims(g, withExtent(x.Type.Shape, axis, rows))
	}
	if g == nil {
		return
	}
	c.AddScatter(0, axis, c.alongAxis(c.cast(idx, onnx.Int64), axis, g), g)
}

func withExtent(s onnx.Shape, axis int, d onnx.Dim) onnx.Shape {
	t := append(onnx.Shape(nil), s...)
	t[axis] = d
	return t
}

// gradGatherND adds to the places that were read, once batch axes are spelled
// out in the indices. ScatterND with add would be its exact opposite; scatter.go
// says why it is not taken.
func gradGatherND(c *Context) {
	idx := c.In(1)
	if batch := int(c.Node.Int("batch_dims", 0)); batch > 0 {
		if c.addInBatch(batch) {
			return
		}
		idx = withBatchIndices(c, idx, batch)
	}
	if idx != nil {
		c.AddRows(0, idx, c.Grad(0))
	}
}

// addInBatch adds the rows that each sample of a batch looked up along one axis to that axis, so that
// samples stay apart; false where they are looked up along several, or an extent is not known.
func (c *Context) addInBatch(batch int) bool {
	x, idx, g := c.In(0), c.In(1), c.Grad(0)
	last := c.Rank(idx) - 1
	if c.e.b.Err() != nil || last < batch || c.Rank(x) <= batch || !idx.Type.Shape[last].Is(1) || slices.Contains(slices.Concat(x.Type.Shape, idx.Type.Shape), onnx.Dim{}) {
		return false
	}
	rows, behind := idx.Type.Shape[batch:last].Elements(), x.Type.Shape[batch+1:]
	g = c.ReshapeDims(g, slices.Concat(x.Type.Shape[:batch], onnx.Shape{rows}, behind))
	if extent, ok := x.Type.Shape[batch].Int(); ok && extent <= math.MaxInt32 {
		idx = c.cast(idx, onnx.Int32) // half the bytes
	}
	idx = c.ReshapeDims(idx, slices.Concat(x.Type.Shape[:batch], onnx.Shape{rows}, slices.Repeat(onnx.Shape{onnx.Static(1)}, len(behind))))
	c.AddScatter(0, batch, c.Expand(idx, g), g)
	return true
}

// withBatchIndices puts the place along each of the batch axes in front of the
// index tuples.
func withBatchIndices(c *Context, idx *onnx.Value, batch int) *onnx.Value {
	rank := c.Rank(idx)
	if rank <= batch {
		c.Fail("batch_dims %d with indices of shape %s", batch, idx.Type.Shape)
		return nil
	}
	full := c.e.shapeValue(withExtent(idx.Type.Shape, rank-1, onnx.Static(1)))
	if full == nil {
		front := c.Do("Slice", c.ShapeOf(idx), c.IntList(0), c.IntList(int64(rank-1)))
		full = c.Op("Concat", build.In(front, c.IntList(1)), onnx.IntAttr("axis", 0))
	}
	var parts []*onnx.Value
	for a := range batch {
		form := slices.Repeat([]int64{1}, rank)
		form[a] = -1
		parts = append(parts, c.Do("Expand", c.ReshapeTo(c.places(idx, a), form...), full))
	}
	return c.Op("Concat", append(parts, idx), onnx.IntAttr("axis", int64(rank-1)))
}

// upTo is 0 to n-1.
func upTo(n int64) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = int64(i)
	}
	return list
}

// counted returns the list 0 … n-1: written into the file, or made by a Range where it is too
// long for that.
func (c *Context) counted(n int64) *onnx.Value {
	if n > maxTable {
		return c.Do("Range", c.e.b.Int(0), c.e.b.Int(n), c.e.b.Int(1))
	}
	return c.IntList(upTo(n)...)
}

// places are 0, 1, … up to the extent of v along an axis.
func (c *Context) places(v *onnx.Value, axis int) *onnx.Value {
	if n, ok := v.Type.Shape[axis].Int(); ok {
		return c.counted(n)
	}
	return c.Do("Range", c.e.b.Int(0), c.e.count(v, []int{axis}, onnx.Int64), c.e.b.Int(1))
}

func gradScatterElements(c *Context) {
	g, idx := c.Grad(0), c.In(1)
	along := c.Node.Int("axis", 0)
	axis := onnx.IntAttr("axis", along)
	mode := c.Node.Str("reduction", "none")
	switch mode {
	case "max", "min":
		gradScatterExtreme(c, g, along)
		return
	case "mul":
		gradScatterProduct(c, g, along)
		return
	}
	if c.Needs(0) {
		if mode == "none" {
			c.Add(0, c.Op("ScatterElements", build.In(g, idx, c.Zeros(c.In(2))), axis))
		} else {
			c.Add(0, g)
		}
	}
	if c.Needs(2) {
		c.Add(2, c.Op("GatherElements", build.In(g, idx), axis))
	}
}

// gradScatterProduct gives each factor g times the others, which zeros are kept out of.
func gradScatterProduct(c *Context, g *onnx.Value, along int64) {
	idx, axis := c.In(1), onnx.IntAttr("axis", along)
	x, u := c.withoutZeros(c.In(0)), c.withoutZeros(c.In(2))
	t := c.Times(g, c.Op("ScatterElements", build.In(x.safe, idx, u.safe), axis, onnx.StringAttr("reduction", "mul")))
	zeros := c.e.scatterAdd(x.zero, idx, u.zero, int(along))
	if c.Needs(0) {
		c.Add(0, x.others(t, zeros))
	}
	if c.Needs(2) {
		at := func(v *onnx.Value) *onnx.Value { return c.Op("GatherElements", build.In(v, idx), axis) }
		c.Add(2, u.others(at(t), at(zeros)))
	}
}

// gradScatterExtreme shares g evenly among those that are the extreme.
func gradScatterExtreme(c *Context, g *onnx.Value, along int64) {
	idx, y := c.In(1), c.Out(0)
	axis := onnx.IntAttr("axis", along)
	in, extreme := c.comparable([]*onnx.Value{c.In(0), c.In(2)}, y, func(in ...*onnx.Value) *onnx.Value {
		return c.Op("ScatterElements", build.In(in[0], idx, in[1]), axis, onnx.StringAttr("reduction", c.Node.Str("reduction", "max")))
	})
	of := c.Mask(c.Do("Equal", in[0], extreme), y)
	added := c.Mask(c.Do("Equal", in[1], c.Op("GatherElements", build.In(extreme, idx), axis)), y)
	ties := c.e.scatterAdd(of, idx, added, int(along))
	// Where nothing is the extreme no gradient arrives: the maximum with one.
	share := c.Over(g, c.Do("Max", ties, c.Scalar(y, 1)))
	if c.Needs(0) {
		c.Add(0, c.Times(share, of))
	}
	if c.Needs(2) {
		c.Add(2, c.Times(c.Op("GatherElements", build.In(share, idx), axis), added))
	}
}

func gradScatterND(c *Context) {
	g, idx := c.Grad(0), c.In(1)
	mode := c.Node.Str("reduction", "none")
	if mode != "none" && mode != "add" {
		c.Fail("reduction %s", mode)
		return
	}
	if c.Needs(0) {
		if mode == "none" {
			c.Add(0, c.Do("ScatterND", g, idx, c.Zeros(c.In(2))))
		} else {
			c.Add(0, g)
		}
	}
	if c.Needs(2) {
		c.Add(2, c.Do("GatherND", g, idx))
	}
}
