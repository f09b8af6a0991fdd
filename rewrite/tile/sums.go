package tile

// Sums that an update takes over its gradient before the parameter's next value:
//
//	gradient[rows] ─┬─▶ square ─┬─▶ sums of rows ─── concatenated ─┐
//	                │           └─▶ sums of columns ─ added ───────┴─▶ … ─▶ factors
//	                └─▶ · factors[rows] ─▶ squares ── added ─▶ … ─▶ rate
//	                                  └─▶ · rate ─▶ P.new[rows] ─ concatenated ─▶ P.new
//
// Each is a loop over the slices; those that do not need each other share one. What a
// later loop reads of what an earlier one computed, it reads: the gradient's slices are
// computed once, and each takes the place of the one that it came from, up to P.new's, so
// all of them are one gradient. Where several next values of the parameter's size are
// made, slices that wait would stand beside theirs, and are computed for each again. Loss
// scaling takes such a sum, too, to know that the gradient is finite.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/optim"
)

func outputs(nodes []*onnx.Node) []*onnx.Value {
	list := make([]*onnx.Value, len(nodes))
	for i, n := range nodes {
		list[i] = n.Outputs[0]
	}
	return list
}

// withSums finds the backward slices of a group of next values, and the sums that have to
// be taken in slices too so that nothing of the parameter's shape remains.
func withSums(along func([]*onnx.Node) *backwardSlice, group []*onnx.Value, axis int, place map[*onnx.Node]int) (*backwardSlice, []*onnx.Node, *SkipError) {
	last := group[len(group)-1]
	var sums []*onnx.Node
	for {
		c := along(sums)
		for _, n := range sums {
			if !c.sum(n, axis) {
				return nil, nil, noSliceRule(last, n)
			}
		}
		for _, v := range group {
			if r := c.root(v, axis); r.make == nil {
				return nil, nil, noSliceRule(v, v.Producer)
			}
		}
		if whole := c.wholeLeaf(last.Type.KnownBytes()); whole != nil {
			return nil, nil, &SkipError{last.Name, fmt.Sprintf("needs %q whole", whole.Name)}
		}
		reader := c.stays()
		if reader == nil {
			return c, sums, nil
		}
		more := sumsBehind(reader, last.Type.Shape)
		if len(more) == 0 {
			return nil, nil, &SkipError{last.Name, fmt.Sprintf("its inputs are also read by %q", reader.Label())}
		}
		sums = append(sums, more...)
		slices.SortFunc(sums, func(a, b *onnx.Node) int { return place[a] - place[b] })
		sums = slices.Compact(sums)
	}
}

func noSliceRule(of *onnx.Value, n *onnx.Node) *SkipError {
	return &SkipError{of.Name, fmt.Sprintf("no slicing rule for operator %s at %q", n.OpType(), n.Label())}
}

// sumsBehind are the sums to which alone a reader leads, through elementwise values of
// the shape; nil where it leads elsewhere.
func sumsBehind(n *onnx.Node, shape onnx.Shape) []*onnx.Node {
	if optim.IsSum(n) || n.MadeBy("scale") && n.Is("ReduceSum") {
		return []*onnx.Node{n}
	}
	t, ok := traits.Of(n)
	if !ok || !t.Elementwise || len(n.Outputs) != 1 || !n.Outputs[0].Type.Shape.Equal(shape) || n.Outputs[0].IsOutput() {
		return nil
	}
	var sums []*onnx.Node
	for _, u := range n.Outputs[0].Uses() {
		more := sumsBehind(u.Node, shape)
		if more == nil {
			return nil
		}
		sums = append(sums, more...)
	}
	return sums
}

// sum adds the root of a sum over values of the next values' shape, which are cut along
// an axis; false where no rule takes it in parts.
func (c *backwardSlice) sum(n *onnx.Node, axis int) bool {
	v := n.Outputs[0]
	s := &shard{v: v, axis: axis, size: c.part}
	join, ok := c.parted(s, n, axis)
	if !ok {
		return false
	}
	s.collectWaits()
	c.shards[shardKey{v, int(join)}] = c.leaf(v, int(join))
	c.roots = append(c.roots, root{s, join})
	c.mark(s, map[*shard]bool{})
	return true
}

// parted says how the parts of a sum are made of slices along an axis, and joined.
func (c *backwardSlice) parted(s *shard, n *onnx.Node, axis int) (sharding, bool) {
	switch {
	case n.Is("ReduceSum", "ReduceSumSquare", "ReduceL1"):
		axes, err := reducedAxes(n)
		if err != nil || n.Int("keepdims", 1) != 0 {
			return unknown, false
		}
		s.clones(n, map[int]*shard{0: c.need(s, n.Inputs[0], axis)})
		if slices.Contains(axes, int64(axis)) {
			return partialSum, true
		}
		return sharding(axis) - gone(axes, sharding(axis)), true
	case n.Is("MatMul") && rank(n.Inputs[0]) == 2 && rank(n.Inputs[1]) == 2:
		return c.partedProduct(s, n, axis)
	}
	return unknown, false
}

// partedProduct: along the rows of the left factor or the columns of the right one the
// product is concatenated, along the axis that both share summed. The sliced factor is
// that of the larger size.
func (c *backwardSlice) partedProduct(s *shard, n *onnx.Node, axis int) (sharding, bool) {
	in := 0
	if n.Inputs[1].Type.KnownBytes() > n.Inputs[0].Type.KnownBytes() {
		in = 1
	}
	if axis == in { // rows of the left factor, columns of the right one
		s.clones(n, map[int]*shard{in: c.need(s, n.Inputs[in], axis)})
		return sharding(axis), true
	}
	other := 1 - in
	s.clones(n, map[int]*shard{in: c.need(s, n.Inputs[in], axis), other: c.need(s, n.Inputs[other], 1-axis)})
	return partialSum, true
}

// loops are the roots that are computed together: each next value by itself, after the
// sums, of which those share a loop that do not need each other. together: all next values
// share one.
func loops(roots []root, sums int, together bool) [][]root {
	if together {
		return append(loops(roots[:sums], sums, false), roots[sums:])
	}
	var list [][]root
	for i, r := range roots {
		var latest []root
		if len(list) > 0 {
			latest = list[len(list)-1]
		}
		needs := func(other root) bool { return step.Behind(other.v)[r.v.Producer] }
		if i >= sums || len(latest) == 0 || slices.ContainsFunc(latest, needs) {
			list = append(list, []root{r})
		} else {
			list[len(list)-1] = append(latest, r)
		}
	}
	return list
}
