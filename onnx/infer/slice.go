package infer

// Slices, of extents that may be symbols.

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// A cut is what Slice takes along one axis.
type cut struct {
	axis       int
	start, end onnx.Dim
	step       int64
}

// cuts reads the slicing inputs of a Slice; ok is false where the axes or
// steps are not known.
func (c *ctx) cuts(rank int) (list []cut, ok bool, err error) {
	starts, ok1 := c.elems(1)
	ends, ok2 := c.elems(2)
	n, okLen := c.length(1)
	if !ok1 && !okLen {
		return nil, false, nil
	}
	if ok1 {
		n = len(starts)
	} else {
		starts = unknowns(n)
	}
	if !ok2 {
		ends = unknowns(n)
	}
	if len(ends) != n || n > rank {
		return nil, false, fmt.Errorf("%d starts and %d ends for rank %d", n, len(ends), rank)
	}
	axes, given, known, err := c.axes(3, rank)
	if err != nil || !known {
		return nil, false, err
	}
	steps, known := c.numbers(4)
	if c.has(4) && !known {
		return nil, false, nil
	}
	if given && len(axes) != n || c.has(4) && len(steps) != n {
		return nil, false, fmt.Errorf("%d starts, %d axes and %d steps", n, len(axes), len(steps))
	}
	for i := range n {
		k := cut{axis: i, start: starts[i], end: ends[i], step: 1}
		if given {
			k.axis = axes[i]
		}
		if steps != nil {
			k.step = steps[i]
		}
		if k.step == 0 || k.step == math.MinInt64 {
			return nil, false, fmt.Errorf("step %d", k.step)
		}
		list = append(list, k)
	}
	return list, true, nil
}

// A Span is what a Slice takes along one axis, its bounds as they are given: see onnx.SliceBounds.
type Span struct {
	Axis             int // from the front
	Start, End, Step int64
}

// Spans reads what a Slice takes along each of the axes that it names; false where that is not
// known before a run.
func (r *Result) Spans(n *onnx.Node) ([]Span, bool) {
	if n.In(0) == nil || !n.In(0).Type.Ranked {
		return nil, false
	}
	c := &ctx{r: r, n: n}
	cuts, ok, err := c.cuts(len(n.In(0).Type.Shape))
	list := make([]Span, len(cuts))
	for i, k := range cuts {
		start, known := k.start.Int()
		end, too := k.end.Int()
		ok = ok && known && too
		list[i] = Span{k.axis, start, end, k.step}
	}
	return list, ok && err == nil
}

// slice: starts, ends, axes and steps are inputs (opset 10 and newer).
func slice(c *ctx, s onnx.Shape) error {
	d := c.dtype(0)
	cuts, ok, err := c.cuts(len(s))
	if err != nil {
		return err
	}
	if !ok {
		c.set(0, d, unknowns(len(s)))
		return nil
	}
	out := append(onnx.Shape{}, s...)
	for _, k := range cuts {
		out[k.axis] = k.extent(s[k.axis])
	}
	c.set(0, d, out)
	return nil
}

// extent is how many elements a cut takes from a dimension.
func (k cut) extent(d onnx.Dim) onnx.Dim {
	if n, ok := d.Int(); ok && k.start.IsStatic() && k.end.IsStatic() {
		start, _ := k.start.Int()
		end, _ := k.end.Int()
		from, to := onnx.SliceBounds(start, end, k.step, n)
		return atLeastZero(ceilDiv(onnx.Static(to-from), k.step))
	}
	if k.step < 0 {
		return k.reversed(d)
	}
	from, to := fromLow(k.start, d), fromHigh(k.end, d)
	return atLeastZero(ceilDiv(to.Sub(from), k.step))
}

// reversed is the extent of a whole dimension taken backwards.
func (k cut) reversed(d onnx.Dim) onnx.Dim {
	start, ok1 := k.start.Int()
	end, ok2 := k.end.Int()
	if ok1 && ok2 && (start == -1 || start > math.MaxInt32) && end < math.MinInt32 {
		return ceilDiv(d, -k.step)
	}
	return onnx.Dim{}
}

// fromLow is the start of a slice of a dimension that is not a number, or whose
// start is none: inside the dimension by assumption. What is negative whatever
// its symbols stand for counts from the end, as in x[:, -y.size(1):].
func fromLow(start, d onnx.Dim) onnx.Dim {
	n, ok := start.Int()
	switch {
	case ok && n < math.MinInt32:
		return onnx.Static(0)
	case !isNegative(start):
		return start
	case d.Add(start).AtLeast(0):
		return d.Add(start)
	}
	return onnx.Dim{}
}

// fromHigh is the end: a number that may lie beyond the dimension is taken
// only where it provably does or does not.
func fromHigh(end, d onnx.Dim) onnx.Dim {
	n, ok := end.Int()
	switch {
	case ok && n >= math.MaxInt32, end.Sub(d).AtLeast(0):
		return d
	case isNegative(end):
		return d.Add(end)
	case !ok, d.AtLeast(n):
		return end
	}
	return onnx.Dim{}
}

// isNegative reports that a bound is below 0 whatever its symbols stand for.
func isNegative(d onnx.Dim) bool { return d.Mul(onnx.Static(-1)).AtLeast(1) }
