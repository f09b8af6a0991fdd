package tile

// Rules: how a division passes through an operator. A rule sees what is known
// of its node's inputs and outputs and adds what follows; it is called until
// nothing new follows. Axes count from the left, in each value's own rank.

import (
	"errors"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/onnx/traits"
)

type rule func(r *Region, n *onnx.Node) (bool, error)

// rules says how a division passes through the operators that may stand in a
// tiled region beside the elementwise ones.
var rules = map[string]rule{
	"Softmax": alongAxis, "LogSoftmax": alongAxis,
	"ReduceSum": reduce, "ReduceMean": reduce, "ReduceMax": reduce, "ReduceMin": reduce,
	"ReduceLogSumExp": reduce, "ReduceSumSquare": reduce, "ReduceL2": reduce, "ReduceL1": reduce,
	"ArgMax": argument, "ArgMin": argument,
	"Transpose": transpose,
	"Reshape":   reshape, "Squeeze": reshape, "Unsqueeze": reshape, "Flatten": reshape,
	"Expand": expand, "ConstantOfShape": expand,
	"GatherElements": pick, "ScatterElements": pick, "Slice": cutOther, "Pad": padOther,
	"MatMul": matmul, "Gemm": gemm, "com.microsoft.FusedMatMul": matmul,
}

// ruleOf returns the node's rule, nil where none divides its operator.
func ruleOf(n *onnx.Node) rule {
	if t, ok := traits.Of(n); ok && t.Elementwise {
		return elementwise
	}
	return rules[ruleKey(n)]
}

func ruleKey(n *onnx.Node) string {
	if n.Domain() != "" {
		return n.Domain() + "." + n.OpType()
	}
	return n.OpType()
}

func rank(v *onnx.Value) int { return len(v.Type.Shape) }

// axisOf is the attribute axis of an operator on v, counted from the left.
func axisOf(n *onnx.Node, standard int64, v *onnx.Value) int64 {
	axis, _ := onnx.Axis(n.Int("axis", standard), rank(v))
	return int64(axis)
}

// elementwise: with broadcasting, axes are aligned from the right; an input of
// extent 1 there, or without the axis, is the same for every part.
func elementwise(r *Region, n *onnx.Node) (bool, error) {
	out := n.Outputs[0]
	axis := r.shardingOf(out)
	if axis == unknown {
		for k, in := range n.Reads() {
			if r.shardingOf(in) >= 0 && !r.whole[onnx.Use{Node: n, Index: k}] {
				axis = r.shardingOf(in) + sharding(rank(out)-rank(in))
			}
		}
	}
	switch {
	case axis == unknown && r.samePart(n):
		return r.set(out, replicated)
	case axis < 0:
		return false, nil
	}
	return r.broadcast(n, n.Inputs, axis)
}

// samePart reports that every part makes the same of n: of what each of them has whole, and of
// constants.
func (r *Region) samePart(n *onnx.Node) bool {
	some := false
	for _, v := range n.Reads() {
		if r.shardingOf(v) == replicated {
			some = true
		} else if v.Constant() == nil {
			return false
		}
	}
	return some
}

// broadcast divides the output of a node along an axis, and the first of its inputs along
// what broadcasting aligns with it.
func (r *Region) broadcast(n *onnx.Node, inputs []*onnx.Value, axis sharding) (bool, error) {
	out := n.Outputs[0]
	changed, err := r.set(out, axis)
	if err != nil {
		return false, err
	}
	for k, in := range inputs {
		if in == nil {
			continue
		}
		more, err := r.setInput(n, k, aligned(in, out, axis))
		if err != nil {
			return false, err
		}
		changed = changed || more
	}
	return changed, nil
}

// aligned is the axis of an input that broadcasting aligns with one of the output,
// replicated where the input has none there, or one of extent 1.
func aligned(in, out *onnx.Value, axis sharding) sharding {
	if a := axis - sharding(rank(out)-rank(in)); a >= 0 && !in.Type.Shape[a].Is(1) {
		return a
	}
	return replicated
}

// setInput records how an input is read. A value from outside the region that
// is read whole in one place may be cut in another: only what the region makes
// has one cut.
func (r *Region) setInput(n *onnx.Node, k int, c sharding) (bool, error) {
	v := n.Inputs[k]
	if c == replicated {
		if r.shardingOf(v) == replicated {
			return false, nil
		}
		if v.Producer != nil && r.in[v.Producer] {
			return false, fmt.Errorf("reads %q whole", v.Name)
		}
		r.whole[onnx.Use{Node: n, Index: k}] = true
		return false, nil
	}
	return r.set(v, c)
}

// alongAxis: softmax and its like, over other axes than the one that is cut.
func alongAxis(r *Region, n *onnx.Node) (bool, error) {
	axis := softmaxAxis(n, n.Outputs[0], r.joins)
	return r.same(n.Inputs[0], n.Outputs[0], func(a sharding) (sharding, error) {
		if int(a) == axis || r.joins && int(a) > axis {
			return 0, fmt.Errorf("works along the split axis")
		}
		return a, nil
	})
}

// joinsAxes reports an opset in which a softmax sums along all axes from its own
// on, which is the second where none is given; from opset 13 on it sums along its
// own alone, which is the last.
func joinsAxes(m *onnx.Model) bool { return m.Opset("") < 13 }

func softmaxAxis(n *onnx.Node, v *onnx.Value, joins bool) int {
	if joins {
		return int(axisOf(n, 1, v))
	}
	return int(axisOf(n, -1, v))
}

// same relates the cut of one input to that of one output by an axis mapping
// that keeps axes, either way.
func (r *Region) same(in, out *onnx.Value, keep func(sharding) (sharding, error)) (bool, error) {
	from, to := in, out
	if r.shardingOf(in) == unknown {
		from, to = out, in
	}
	a := r.shardingOf(from)
	if a < 0 {
		return false, nil
	}
	b, err := keep(a)
	if err != nil {
		return false, err
	}
	return r.set(to, b)
}

// reduce: over other axes the cut passes; over the cut axis a sum becomes
// partial, and so does a mean, to be divided by the number of parts.
func reduce(r *Region, n *onnx.Node) (bool, error) {
	in, out := n.Inputs[0], n.Outputs[0]
	axes, err := reducedAxes(n)
	if err != nil {
		return false, err
	}
	keep := n.Int("keepdims", 1) == 1
	a := r.shardingOf(in)
	if a < 0 {
		b := r.shardingOf(out)
		for i := sharding(0); i <= b && !keep; i++ {
			if slices.Contains(axes, int64(i)) {
				b++ // an axis that the result no longer has
			}
		}
		if b >= 0 && !slices.Contains(axes, int64(b)) {
			return r.set(in, b)
		}
		return false, nil
	}
	if slices.Contains(axes, int64(a)) {
		mean := n.Is("ReduceMean") && in.Type.DType.IsFloat()
		if !mean && !n.Is("ReduceSum", "ReduceSumSquare", "ReduceL1") {
			return false, fmt.Errorf("%s over the tokens is not a sum", n.OpType())
		}
		r.mean[out] = mean
		return r.set(out, partialSum)
	}
	if !keep {
		a -= gone(axes, a)
	}
	return r.set(out, a)
}

// gone is how many of the axes are left of one.
func gone(axes []int64, of sharding) sharding {
	left := sharding(0)
	for _, x := range axes {
		if x < int64(of) {
			left++
		}
	}
	return left
}

// argument: ArgMax and its like, along another axis.
func argument(r *Region, n *onnx.Node) (bool, error) {
	in, out := n.Inputs[0], n.Outputs[0]
	axis, a := axisOf(n, 0, in), r.shardingOf(in)
	switch {
	case a < 0:
		return false, nil
	case int64(a) == axis:
		return false, fmt.Errorf("works along the split axis")
	case int64(a) > axis && n.Int("keepdims", 1) != 1:
		a--
	}
	return r.set(out, a)
}

// reducedAxes returns the axes of a Reduce operator, from its attribute or its
// constant input; where it names none, all, or none at all, as it says.
func reducedAxes(n *onnx.Node) ([]int64, error) {
	rank := rank(n.Inputs[0])
	axes, known := traits.ReducedAxes(n, rank)
	switch {
	case !known:
		return nil, errors.New("its axes are not constant")
	case len(axes) > 0 || n.Int("noop_with_empty_axes", 0) == 1:
		return axes, nil
	}
	for i := range rank {
		axes = append(axes, int64(i))
	}
	return axes, nil
}

func transpose(r *Region, n *onnx.Node) (bool, error) {
	in, out := n.Inputs[0], n.Outputs[0]
	perm := traits.Permutation(n, rank(in))
	if a := r.shardingOf(in); a >= 0 {
		return r.set(out, sharding(slices.Index(perm, int(a))))
	}
	if a := r.shardingOf(out); a >= 0 {
		return r.set(in, sharding(perm[a]))
	}
	return false, nil
}

// reshape: the split axis stays, or is the first of those that are merged into one, or that
// one is split into: a part of it is a contiguous range of that one.
func reshape(r *Region, n *onnx.Node) (bool, error) {
	return r.reshaped(n, func(from, to []int64, a int) (int, error) {
		axis, apart, err := holding(from, to, a, 1)
		if err != nil || apart > 1 {
			return 0, fmt.Errorf("the split axis is not the first of those it is merged with")
		}
		return axis, nil
	})
}

// reshaped takes the split axis across a change of extents, to whichever side does
// not have it yet: across names the axis of to that a, one of from, becomes.
func (r *Region) reshaped(n *onnx.Node, across func(from, to []int64, a int) (int, error)) (bool, error) {
	return r.same(n.Inputs[0], n.Outputs[0], func(a sharding) (sharding, error) {
		from, to := n.Inputs[0], n.Outputs[0]
		if r.shardingOf(from) < 0 {
			from, to = to, from
		}
		f, ok1 := from.Type.Shape.Ints()
		t, ok2 := to.Type.Shape.Ints()
		if !ok1 || !ok2 {
			return 0, fmt.Errorf("its extents are not static")
		}
		axis, err := across(f, t, int(a))
		return sharding(axis), err
	})
}

// expand: from one element per token or from none; the target shape is set per
// part.
func expand(r *Region, n *onnx.Node) (bool, error) {
	out := n.Outputs[0]
	a := r.shardingOf(out)
	if a < 0 {
		if n.Is("Expand") && r.shardingOf(n.Inputs[0]) >= 0 {
			return r.set(out, r.shardingOf(n.Inputs[0])+sharding(rank(out)-rank(n.Inputs[0])))
		}
		return false, nil
	}
	if !n.Is("Expand") {
		return false, nil
	}
	return r.setInput(n, 0, aligned(n.Inputs[0], out, a))
}

// pick: GatherElements and ScatterElements along another axis.
func pick(r *Region, n *onnx.Node) (bool, error) {
	all, a := r.cutAlike(n)
	if a == unknown {
		return false, nil
	}
	if int64(a) == axisOf(n, 0, n.Inputs[0]) {
		return false, fmt.Errorf("gathers along the split axis")
	}
	for _, v := range all {
		if int(a) < rank(v) && v.Type.Shape[a] != n.Outputs[0].Type.Shape[a] {
			return false, fmt.Errorf("%q has another extent along the split axis", v.Name)
		}
	}
	return r.setAll(all, a)
}

// cutAlike are the output and the inputs of a node that have one cut, and that of those
// where it is known.
func (r *Region) cutAlike(n *onnx.Node) (all []*onnx.Value, a sharding) {
	all, a = append([]*onnx.Value{n.Outputs[0]}, n.Inputs...), unknown
	for _, v := range all {
		if c := r.shardingOf(v); c >= 0 {
			a = c
		}
	}
	return all, a
}

// setAll divides values along an axis.
func (r *Region) setAll(values []*onnx.Value, axis sharding) (changed bool, err error) {
	for _, v := range values {
		more, err := r.set(v, axis)
		if err != nil {
			return false, err
		}
		changed = changed || more
	}
	return changed, nil
}

// isAxis reports that an axis of v, which may be counted from the end, is that one.
func isAxis(axis int64, v *onnx.Value, a int) bool {
	k, ok := onnx.Axis(axis, rank(v))
	return ok && k == a
}

// cutOther: Slice along other, constant axes.
func cutOther(r *Region, n *onnx.Node) (bool, error) {
	along, err := constants(n.In(3))
	if err != nil {
		return false, fmt.Errorf("its axes %w", err)
	}
	return r.same(n.Inputs[0], n.Outputs[0], func(a sharding) (sharding, error) {
		for _, x := range along {
			if isAxis(x, n.Inputs[0], int(a)) {
				return 0, fmt.Errorf("slices the split axis")
			}
		}
		return a, nil
	})
}

// padOther: Pad, which may cut too, by constants that are 0 along the split axis.
func padOther(r *Region, n *onnx.Node) (bool, error) {
	pads, err := constants(n.In(1))
	if err != nil {
		return false, fmt.Errorf("its pads %w", err)
	}
	along := make([]int64, len(pads)/2)
	for i := range along {
		along[i] = int64(i)
	}
	if axes := n.In(3); axes != nil {
		if along, err = constants(axes); err != nil {
			return false, fmt.Errorf("its axes %w", err)
		}
	}
	if len(pads) != 2*len(along) {
		return false, fmt.Errorf("has %d pads for %d axes", len(pads), len(along))
	}
	return r.same(n.Inputs[0], n.Outputs[0], func(a sharding) (sharding, error) {
		for i, x := range along {
			if isAxis(x, n.Inputs[0], int(a)) && (pads[i] != 0 || pads[i+len(along)] != 0) {
				return 0, fmt.Errorf("pads the split axis")
			}
		}
		return a, nil
	})
}

// constants are the integers of an initializer.
func constants(v *onnx.Value) ([]int64, error) {
	t := v.Constant()
	if t == nil {
		return nil, errors.New("are not constant")
	}
	return t.Int64s()
}

// Divides reports that a rule divides the operator: in a tiled region, or in slices
// of what is computed from it.
func Divides(domain, op string) (region, slices bool) {
	n := &onnx.Node{Proto: &onnxpb.NodeProto{Domain: &domain, OpType: &op}}
	return ruleOf(n) != nil, sliceRules[ruleKey(n)] != nil
}

// DividesBatch reports that a rule divides the operator along the batch.
func DividesBatch(domain, op string) bool {
	n := &onnx.Node{Proto: &onnxpb.NodeProto{Domain: &domain, OpType: &op}}
	return batchRules[ruleKey(n)] != nil || ruleOf(n) != nil
}
