package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// shapeRules: operators that move or copy elements.
var shapeRules = []Rule{
	{Op: "Reshape", Since: 5, Doc: "g in x's shape", Inputs: []int{0}, Grad: gradReshape},
	{Op: "Flatten", Since: 1, Doc: "g in x's shape", Grad: gradReshape},
	{Op: "Squeeze", Since: 1, Doc: "g in x's shape", Inputs: []int{0}, Grad: gradReshape},
	{Op: "Unsqueeze", Since: 1, Doc: "g in x's shape", Inputs: []int{0}, Grad: gradReshape},
	{Op: "Transpose", Since: 1, Doc: "g with the inverse permutation", Grad: gradTranspose},
	{Op: "Expand", Since: 8, Doc: "g summed over the stretched axes", Inputs: []int{0}, Grad: func(c *Context) {
		if c.Needs(0) {
			c.Add(0, c.e.unbroadcastFrom(c.Loose(0), c.Out(0), c.In(0)))
		}
	}},
	{Op: "Tile", Since: 6, Doc: "g summed over the copies", Inputs: []int{0}, Grad: gradTile},
	{Op: "Concat", Since: 4, Doc: "g split along the axis", Grad: gradConcat},
	{Op: "Split", Since: 2, Doc: "the gradients of the parts, concatenated", Inputs: []int{0}, Grad: gradSplit},
	{Op: "Slice", Since: 10, Doc: "g between zeros", Inputs: []int{0}, Grad: gradSlice},
	{Op: "Pad", Since: 11, Doc: "g without the border; mode constant only", Inputs: []int{0, 2}, Grad: gradPad},
	{Op: "Trilu", Since: 14, Doc: "the same triangle of g", Inputs: []int{0}, Grad: func(c *Context) {
		c.Add(0, c.Op("Trilu", build.In(c.Grad(0), c.In(1)), onnx.IntAttr("upper", c.Node.Int("upper", 1))))
	}},
	{Op: "DepthToSpace", Since: 1, Doc: "g moved back by the inverse permutation", Grad: gradDepthToSpace},
	{Op: "SpaceToDepth", Since: 1, Doc: "DepthToSpace of g", Grad: func(c *Context) {
		c.Add(0, c.Op("DepthToSpace", build.In(c.Grad(0)), onnx.IntAttr("blocksize", c.Node.Int("blocksize", 1)), onnx.StringAttr("mode", c.Node.Str("mode", "DCR"))))
	}},
}

func gradReshape(c *Context) {
	if reshapeFactored(c) {
		return
	}
	g := c.Loose(0)
	// The gradient of a mean stays one number through any reshaping.
	if g != nil && len(g.Type.Shape) == 0 && g.Type.Ranked && len(c.In(0).Type.Shape) > 0 {
		c.Add(0, g)
		return
	}
	c.Add(0, c.Reshape(c.Grad(0), c.In(0)))
}

// reshapeFactored hands a factor of one a row through a Reshape that keeps the
// last axis.
func reshapeFactored(c *Context) bool {
	g, f := c.Factored(0)
	if f == nil {
		return false
	}
	x, y := c.In(0), c.Out(0)
	s, t := x.Type.Shape, y.Type.Shape
	switch {
	case len(f.Type.Shape) == 0:
	case len(s) < 2 || len(t) < 2 || s[len(s)-1] != t[len(t)-1] || !s[len(s)-1].Known():
		return false
	default:
		f = c.ReshapeDims(f, withExtent(s, len(s)-1, onnx.Static(1)))
	}
	c.AddFactored(0, c.Reshape(g, x), f)
	return true
}

func gradTranspose(c *Context) {
	rank := c.Rank(c.In(0))
	perm := traits.Permutation(c.Node, rank)
	inverse := make([]int, rank)
	for i, a := range perm {
		inverse[a] = i
	}
	if g := c.Loose(0); g != nil && len(g.Type.Shape) == 0 && rank > 0 {
		c.Add(0, g)
		return
	}
	c.Add(0, c.Transpose(c.Grad(0), inverse...))
}

// unbroadcastFrom is unbroadcast for an operator that stretches one operand:
// an axis of unknown relation may always be a stretched one.
func (e *engine) unbroadcastFrom(g, full, part *onnx.Value) *onnx.Value {
	if full.Type.Ranked && part.Type.Ranked {
		fs, ps := full.Type.Shape, part.Type.Shape
		for i := range ps {
			k := i + len(fs) - len(ps)
			if k < 0 || !ps[i].Is(1) && !ps[i].IsStatic() && ps[i] != fs[k] {
				return e.unbroadcastAtRun(g, full, part)
			}
		}
	}
	return e.unbroadcast(g, full, part)
}

func gradTile(c *Context) {
	x := c.In(0)
	repeats, ok := c.Ints(c.In(1))
	rank := c.Rank(x)
	if !ok || len(repeats) != rank {
		gradTileAtRun(c, rank)
		return
	}
	var shape onnx.Shape
	var axes []int
	for i, r := range repeats {
		if r != 1 {
			axes = append(axes, len(shape))
			shape = append(shape, onnx.Static(r))
		}
		shape = append(shape, x.Type.Shape[i])
	}
	c.Add(0, c.Sum(c.ReshapeDims(c.Grad(0), shape), false, axes...))
}

// gradTileAtRun gives every axis one for the copies, as many as there are when
// the graph runs. The shape is no Reshape of pairs: where one Reshape gives another its
// shape, ONNX Runtime 1.31 takes them for a chain and makes them one (ReshapeFusion).
func gradTileAtRun(c *Context, rank int) {
	x := c.In(0)
	var axes []int
	var turns []int64
	for i := range rank {
		axes = append(axes, 2*i)
		turns = append(turns, int64(i), int64(rank+i))
	}
	sizes := c.Op("Concat", build.In(c.cast(c.In(1), onnx.Int64), c.ShapeOf(x)), onnx.IntAttr("axis", 0))
	out := c.Sum(c.Do("Reshape", c.Grad(0), c.Do("Gather", sizes, c.IntList(turns...))), false, axes...)
	if out != nil {
		out.Type = x.Type
	}
	c.Add(0, out)
}

func gradConcat(c *Context) {
	g := c.Grad(0)
	axis := c.Axis("axis", 0, c.Out(0))
	var sizes []int64
	var lengths []*onnx.Value
	wanted := 0
	static := true
	for i, v := range c.Node.Inputs {
		if c.Needs(i) {
			wanted++
		}
		c.Rank(v)
		if c.e.b.Err() != nil {
			return
		}
		n, ok := v.Type.Shape[axis].Int()
		static = static && ok
		sizes = append(sizes, n)
	}
	if static && wanted == 1 {
		at := int64(0)
		for i := range c.Node.Inputs {
			if c.Needs(i) {
				c.Add(i, c.sliceOf(g, axis, at, at+sizes[i]))
			}
			at += sizes[i]
		}
		return
	}
	split := c.IntList(sizes...)
	if !static {
		for _, v := range c.Node.Inputs {
			lengths = append(lengths, c.lengthOf(v, axis))
		}
		split = c.Op("Concat", lengths, onnx.IntAttr("axis", 0))
	}
	parts := c.Nodes("", "Split", build.In(g, split), len(c.Node.Inputs), onnx.IntAttr("axis", int64(axis)))
	for i := range c.Node.Inputs {
		if c.Needs(i) {
			if parts[i] != nil && !parts[i].Type.IsStatic() {
				parts[i].Type = c.In(i).Type
			}
			c.Add(i, parts[i])
		}
	}
}

// sliceOf is v[start:end] along one axis.
func (c *Context) sliceOf(v *onnx.Value, axis int, start, end int64) *onnx.Value {
	return c.Op("Slice", build.In(v, c.IntList(start), c.IntList(end), c.IntList(int64(axis))))
}

// gradSplit adds each part's gradient where the part is. Where the sizes are told only when the
// graph runs, as by how many tokens choose an expert, it joins them.
func gradSplit(c *Context) {
	x := c.In(0)
	axis := c.Axis("axis", 0, x)
	outs := c.Node.Outputs
	if slices.Contains(outs, nil) {
		c.Fail("the sizes of its parts along axis %d are unknown: give --dim", axis)
		return
	}
	if slices.ContainsFunc(outs, func(o *onnx.Value) bool { return !o.Type.Shape[axis].IsStatic() }) {
		parts := make([]*onnx.Value, len(outs))
		for i, o := range outs {
			if parts[i] = c.Grad(i); parts[i] == nil {
				parts[i] = c.Zeros(o)
			}
		}
		whole := c.Op("Concat", parts, onnx.IntAttr("axis", int64(axis)))
		if whole != nil {
			whole.Type = x.Type
		}
		c.Add(0, whole)
		return
	}
	at := int64(0)
	for i, o := range outs {
		n, _ := o.Type.Shape[axis].Int()
		if g := c.Grad(i); g != nil {
			c.AddSlice(0, axis, at, at+n, g)
		}
		at += n
	}
}

// gradDepthToSpace: with mode DCR SpaceToDepth is the inverse; with CRD the
// block axes come last among the channels.
func gradDepthToSpace(c *Context) {
	b := c.Node.Int("blocksize", 1)
	g, x := c.Grad(0), c.In(0)
	if c.Node.Str("mode", "DCR") == "DCR" {
		c.Add(0, c.Op("SpaceToDepth", build.In(g), onnx.IntAttr("blocksize", b)))
		return
	}
	s := x.Type.Shape
	if c.Rank(x) != 4 {
		c.Fail("rank %d", c.Rank(x))
		return
	}
	bd := onnx.Static(b)
	blocks := c.ReshapeDims(g, onnx.Shape{s[0], s[1].Div(onnx.Static(b * b)), s[2], bd, s[3], bd})
	c.Add(0, c.Reshape(c.Transpose(blocks, 0, 1, 3, 5, 2, 4), x))
}
