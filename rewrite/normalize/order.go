package normalize

// What is picked in the order in which it lies. PyTorch's masking looks up a mask of the tokens by the
// place of the batch and that of the token, all of each: a GatherND by tuples that count along
// an axis in each place. That only adds axes, and nothing is in the way of who divides the batch.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// picked rewrites a Gather or GatherND by what its indices count: of all in their order it is a Reshape, and
// one whose tuples count along a batch first is one of that batch. It reports that it did.
func (s *state) picked(n *onnx.Node) bool {
	if inOrder(n) {
		s.scope(n)
		if z := s.b.ReshapeTo(n.In(0), n.Out(0).Type.Shape); z != nil {
			s.replace(n.Out(0), z, n)
		}
		return true
	}
	if axes, ok := axesAdded(n); ok {
		if !s.handedOn(n.In(0), n.Out(0)) && len(axes) > 0 {
			s.scope(n)
			s.replace(n.Out(0), s.b.Op("Unsqueeze", build.In(n.In(0), s.b.Ints(axes...))), n)
		}
		return true
	}
	return s.batchDims(n)
}

// inOrder reports a Gather of all that an axis has, in the order that it has, as PyTorch's
// as_strided often becomes.
func inOrder(n *onnx.Node) bool {
	if !n.Is("Gather") || n.In(0) == nil || n.In(1) == nil || n.Out(0) == nil || !n.In(0).Type.Ranked || !n.Out(0).Type.Ranked {
		return false
	}
	shape, indices := n.In(0).Type.Shape, n.In(1).Constant()
	axis, ok := onnx.Axis(n.Int("axis", 0), len(shape))
	if !ok || indices == nil {
		return false
	}
	extent, err := indices.Elements()
	if err != nil || extent < 1 || !shape[axis].Is(extent) {
		return false // before numbers are read
	}
	list, err := indices.Int64s()
	if err != nil {
		return false
	}
	_, ok = onnx.Consecutive(list, extent) // as many as there are, so from 0 on
	return ok
}

// axesAdded are the axes of one element that a GatherND adds to its data and does nothing else; false
// for other nodes. Each place of its tuples counts along an axis of its own, in the
// data's order, over all that the data has there.
func axesAdded(n *onnx.Node) ([]int64, bool) {
	if !n.Is("GatherND") || n.Int("batch_dims", 0) != 0 || rank(n.In(0)) < 1 || rank(n.In(1)) < 2 || n.Out(0) == nil {
		return nil, false
	}
	data, tuples := n.In(0).Type.Shape, n.In(1).Type.Shape
	along, ok := countedAlong(n.In(1))
	if !ok || len(along) > len(data) {
		return nil, false
	}
	for k, axis := range along {
		if k > 0 && axis <= along[k-1] || !data[k].Known() || tuples[axis] != data[k] {
			return nil, false
		}
	}
	var added []int64
	for axis, d := range tuples[:len(tuples)-1] {
		switch {
		case slices.Contains(along, axis):
		case !d.Is(1):
			return nil, false
		default:
			added = append(added, int64(axis))
		}
	}
	return added, true
}

// countedAlong is the axis along which the tuples of the last axis count, for each place of a tuple.
func countedAlong(tuples *onnx.Value) (along []int, ok bool) {
	if made(tuples, "Concat") != nil {
		for _, in := range tupleParts(tuples) {
			more, ok := countedAlong(in)
			if !ok {
				return nil, false
			}
			along = append(along, more...)
		}
		return along, len(along) > 0
	}
	if rank(tuples) < 2 {
		return nil, false
	}
	if t := tuples.Constant(); t != nil {
		return columns(t)
	}
	if axis, ok := counts(tuples, maxLook); ok && tuples.Type.Shape[rank(tuples)-1].Is(1) && axis < rank(tuples)-1 {
		return []int{axis}, true
	}
	return nil, false
}

// tupleParts are what tuples are joined of, place by place; nil where they are not.
func tupleParts(tuples *onnx.Value) []*onnx.Value {
	c := made(tuples, "Concat")
	if c == nil {
		return nil
	}
	if axis, ok := onnx.Axis(c.Int("axis", 0), rank(tuples)); !ok || int(axis) != rank(tuples)-1 {
		return nil
	}
	return c.Inputs
}

// columns is countedAlong for a constant.
func columns(t *onnx.Tensor) (along []int, ok bool) {
	dims := t.Dims()
	places := dims[len(dims)-1]
	list, err := t.Int64s()
	if err != nil || places < 1 || len(list) == 0 {
		return nil, false
	}
	dims = dims[:len(dims)-1]
	for k := range places {
		column := make([]int64, 0, int64(len(list))/places)
		for at := k; at < int64(len(list)); at += places {
			column = append(column, list[at])
		}
		axis, ok := axisCounted(column, dims)
		if !ok {
			return nil, false
		}
		along = append(along, axis)
	}
	return along, true
}

// axisCounted is the axis that numbers of a shape count along, from 0 on, and are the same
// along all others. Of axes that all have one element it is none of them that is meant, and the
// first is taken.
func axisCounted(list, dims []int64) (int, bool) {
	after := int64(len(list))
	for axis, d := range dims {
		after /= d
		counts := true
		for i, k := range list {
			counts = counts && k == int64(i)/after%d
		}
		if counts {
			return axis, true
		}
	}
	return 0, false
}

// counts is the axis along which a value counts from 0 on by one, and along all others of which it is the
// same: a Range, spread and with axes of one element.
func counts(v *onnx.Value, look int) (axis int, ok bool) {
	if t := v.Constant(); t != nil {
		list, err := t.Int64s()
		if err != nil || len(list) == 0 || len(t.Dims()) == 0 {
			return 0, false
		}
		return axisCounted(list, t.Dims())
	}
	n := v.Producer
	if n == nil || look == 0 || !v.Type.Ranked {
		return 0, false
	}
	switch {
	case n.Is("Range"):
		from, ok1 := n.In(0).Number()
		by, ok2 := n.In(2).Number()
		return 0, ok1 && ok2 && from == 0 && by == 1
	case n.Is("Cast") && v.Type.DType.IsInt() && n.In(0).Type.DType.IsInt():
		return counts(n.In(0), look-1)
	case n.Is("Expand"):
		if axis, ok = counts(n.In(0), look-1); !ok {
			return 0, false
		}
		to := axis + rank(v) - rank(n.In(0))
		return to, v.Type.Shape[to] == n.In(0).Type.Shape[axis] && v.Type.Shape[to].Known()
	case traits.Reshapes(n):
		if axis, ok = counts(n.In(0), look-1); !ok {
			return 0, false
		}
		return sameAxis(n.In(0).Type.Shape, v.Type.Shape, axis)
	}
	return 0, false
}

// sameAxis is where an axis of more than one element is in a shape that differs in axes of one alone.
func sameAxis(from, to onnx.Shape, axis int) (int, bool) {
	wide := func(s onnx.Shape) (axes []int) {
		for i, d := range s {
			if !d.Is(1) {
				axes = append(axes, i)
			}
		}
		return axes
	}
	was, is := wide(from), wide(to)
	at := slices.Index(was, axis)
	if at < 0 || !slices.EqualFunc(was, is, func(i, j int) bool { return from[i].Known() && from[i] == to[j] }) {
		return 0, false
	}
	return is[at], true
}

// batchCounted are how many of the first places of a GatherND's tuples count along the axis of that
// number, over all that the data has there, and what holds the places behind them. Those are axes of
// a batch, in each of which the others are looked up.
func batchCounted(n *onnx.Node) (batch int, rest []*onnx.Value) {
	places := tupleParts(n.In(1))
	if !n.Is("GatherND") || n.Int("batch_dims", 0) != 0 || rank(n.In(0)) < 1 || len(places) == 0 || n.Out(0) == nil {
		return 0, nil
	}
	for ; batch < min(rank(n.In(1))-1, len(places)-1, rank(n.In(0))-1); batch++ {
		d := n.In(0).Type.Shape[batch]
		along, ok := countedAlong(places[batch])
		if !ok || len(along) != 1 || along[0] != batch || !d.Known() || n.In(1).Type.Shape[batch] != d {
			break
		}
	}
	return batch, places[batch:]
}

// batchDims turns a GatherND whose tuples begin with places that a batch counts into one of a
// batch, as x[arange(batch), last] is: it looks up sample by sample.
func (s *state) batchDims(n *onnx.Node) bool {
	batch, rest := batchCounted(n)
	if batch == 0 {
		return false
	}
	s.scope(n)
	places := rest[0]
	if len(rest) > 1 {
		places = s.b.Op("Concat", rest, onnx.IntAttr("axis", int64(rank(n.In(1))-1)))
	}
	n.SetInput(1, places)
	s.g.InsertBefore(n, s.b.Take()...)
	n.SetAttr(onnx.IntAttr("batch_dims", int64(batch)))
	s.count++
	return true
}
