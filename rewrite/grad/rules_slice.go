package grad

// Slice and Pad, which undo each other.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
)

func gradSlice(c *Context) {
	x := c.In(0)
	c.Rank(x)
	list, known := c.e.types.Spans(c.Node)
	if c.e.b.Err() != nil {
		return
	}
	if !known {
		gradSliceAtRun(c)
		return
	}
	var cut []infer.Span
	for _, s := range list {
		n, static := x.Type.Shape[s.Axis].Int()
		if !static {
			if s.Step == 1 && s.Start == 0 && s.End >= math.MaxInt32 {
				continue
			}
			if s.Step != 1 {
				c.Fail("step %d along axis %d, whose extent is unknown: give --dim", s.Step, s.Axis)
				return
			}
			gradSliceAtRun(c)
			return
		}
		s = clamped(s, n)
		if s.Step != 1 || s.Start != 0 || s.End != n {
			cut = append(cut, s)
		}
	}
	g := c.Grad(0)
	switch {
	case len(cut) == 0:
		c.Add(0, g)
	case len(cut) == 1 && cut[0].Step == 1:
		c.AddSlice(0, cut[0].Axis, cut[0].Start, cut[0].End, g)
	default:
		gradSliceStrided(c, g, cut)
	}
}

// clamped is what a span takes of the extent n, which is not less than nothing.
func clamped(s infer.Span, n int64) infer.Span {
	if s.Start, s.End = onnx.SliceBounds(s.Start, s.End, s.Step, n); s.Step > 0 {
		s.End = max(s.End, s.Start)
	}
	return s
}

// gradSliceStrided undoes the axes one by one, innermost bounds first: unit
// steps by Pad, others by scattering along the axis.
func gradSliceStrided(c *Context, g *onnx.Value, cut []infer.Span) {
	x := c.In(0)
	pads := make([]int64, 2*len(x.Type.Shape))
	rank := len(x.Type.Shape)
	padded := false
	for _, s := range cut {
		n, _ := x.Type.Shape[s.Axis].Int()
		if s.Step == 1 {
			pads[s.Axis], pads[rank+s.Axis] = s.Start, n-s.End
			padded = true
			continue
		}
		var index []int64
		for i := s.Start; s.Step > 0 && i < s.End || s.Step < 0 && i > s.End; i += s.Step {
			index = append(index, i)
		}
		if g = c.scatterAlong(g, s.Axis, n, index, false); g == nil {
			return
		}
	}
	if padded {
		g = c.Do("Pad", g, c.IntList(pads...))
	}
	c.Add(0, g)
}

// scatterAlong puts the slices of g along an axis at these places among n, zeros elsewhere.
// Twice: a place may be named more than once.
func (c *Context) scatterAlong(g *onnx.Value, axis int, n int64, places []int64, twice bool) *onnx.Value {
	zeros := c.e.filled(withExtent(g.Type.Shape, axis, onnx.Static(n)), scatteredType(g.Type.DType, twice), 0)
	return c.e.scatter(zeros, c.alongAxis(c.IntList(places...), axis, g), g, axis, twice)
}

// alongAxis stretches a list of indices to like's shape, along that axis.
func (c *Context) alongAxis(index *onnx.Value, axis int, like *onnx.Value) *onnx.Value {
	if like == nil || index == nil {
		return nil
	}
	shape := slices.Repeat([]int64{1}, len(like.Type.Shape))
	shape[axis] = -1
	return c.Do("Expand", c.ReshapeTo(index, shape...), c.ShapeOf(like))
}

// gradSliceAtRun computes the border when the graph runs: before it the start
// (counted from the front), behind it what is left of the extent.
func gradSliceAtRun(c *Context) {
	x, g := c.In(0), c.Grad(0)
	if v := c.In(4); v != nil {
		steps, ok := c.Ints(v)
		for _, s := range steps {
			ok = ok && s == 1
		}
		if !ok {
			c.Fail("steps other than 1 with bounds that are unknown before the run")
			return
		}
	}
	rank := int64(c.Rank(x))
	starts := c.cast(c.In(1), onnx.Int64)
	axes := c.In(3)
	if axes == nil {
		known, ok := c.Ints(c.In(1))
		n := int64(len(known))
		if !ok {
			n, _ = c.In(1).Type.Shape[0].Int()
		}
		axes = c.IntList(upTo(n)...)
	} else if list, ok := c.Ints(axes); ok {
		fixed := make([]int64, len(list))
		for i, a := range list {
			fixed[i] = int64(c.axis(a, x))
		}
		axes = c.IntList(fixed...)
	}
	full, part := c.ShapeOf(x), c.ShapeOf(g)
	extent := c.Op("Gather", build.In(full, axes), onnx.IntAttr("axis", 0))
	zero := c.IntList(0)
	wrapped := c.Where(c.Do("Less", starts, zero), c.Plus(starts, extent), starts)
	start := c.Do("Min", c.Do("Max", wrapped, zero), extent)
	before := c.Op("ScatterElements", build.In(c.IntList(make([]int64, rank)...), c.cast(axes, onnx.Int64), start), onnx.IntAttr("axis", 0))
	after := c.Minus(c.Minus(full, before), part)
	out := c.Do("Pad", g, c.Op("Concat", build.In(before, after), onnx.IntAttr("axis", 0)))
	if out != nil {
		out.Type = x.Type
	}
	c.Add(0, out)
}

func gradPad(c *Context) {
	pads, ok := c.e.types.Pads(c.Node)
	if !ok {
		c.Fail("the pads are unknown before the run: give --dim where they follow from a free extent")
		return
	}
	if mode := c.Node.Str("mode", "constant"); mode != "constant" {
		gradPadMirror(c, mode, pads)
		return
	}
	g, x := c.Grad(0), c.In(0)
	inverse := make([]int64, len(pads))
	for i, p := range pads {
		inverse[i] = -p
	}
	var inner *onnx.Value
	if c.Needs(0) || c.Needs(2) {
		inner = c.Do("Pad", g, c.IntList(inverse...))
	}
	c.Add(0, inner)
	if c.Needs(2) {
		// The constant fills whatever the border holds.
		all := c.axesFrom(x, 0)
		c.Add(2, c.Reshape(c.Minus(c.Sum(g, false, all...), c.Sum(inner, false, all...)), c.In(2)))
	}
}

// gradPadMirror adds the border of modes reflect, edge and wrap back to the
// elements that it was copied from, axis by axis. What a negative pad cuts off is no
// element that a border shows.
func gradPadMirror(c *Context, mode string, pads []int64) {
	g, x := c.Grad(0), c.In(0)
	rank := c.Rank(x)
	for axis := range rank {
		before, after := pads[axis], pads[rank+axis]
		if before == 0 && after == 0 {
			continue
		}
		n, static := x.Type.Shape[axis].Int()
		if !static || g == nil {
			c.Fail("mode %s along axis %d, whose extent is unknown: give --dim", mode, axis)
			return
		}
		from, to := max(0, -before), n-max(0, -after)
		if from >= to {
			c.Fail("mode %s along axis %d, of which pads %d and %d leave nothing", mode, axis, before, after)
			return
		}
		if before > maxTable || after > maxTable || n+max(before, 0)+max(after, 0) > maxTable {
			c.Fail("mode %s along axis %d, padded by %d and %d", mode, axis, before, after)
			return
		}
		var index []int64
		for i := -before; i < n+after; i++ {
			index = append(index, from+mirrored(i-from, to-from, mode))
		}
		g = c.scatterAlong(g, axis, n, index, true)
	}
	c.Add(0, g)
}

// mirrored is the element that place i of a padded axis of extent n shows.
func mirrored(i, n int64, mode string) int64 {
	switch {
	case mode == "edge":
		return min(max(i, 0), n-1)
	case mode == "wrap":
		return ((i % n) + n) % n
	case n == 1:
		return 0
	}
	period := 2 * (n - 1)
	i = ((i % period) + period) % period
	if i >= n {
		i = period - i
	}
	return i
}
