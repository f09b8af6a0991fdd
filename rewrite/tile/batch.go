package tile

// The whole step over slices of the batch, one after another in one graph: micro-batches.
//
//	x, target ─▶ forward ─▶ loss_i ─▶ backward ─▶ dW_i     i = 1 … parts
//	                                               dW_1 + dW_2 + … ─▶ update
//
// Activations and their gradients are as large as a slice's; gradients of parameters are
// summed up as they are made, and none is computed twice. The region is all that depends
// on a feed along its first axis. Where one sample's results depend on another's, as
// in a batch norm, a sum over the batch is read within the region, and it is left whole.
//
// Beside the rules of rules.go it knows those of convolutional networks. There the gradient
// of a convolution's weight is a convolution of transposed factors, which contracts the
// batch: divided, it is a sum, and no factor is ever transposed whole.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// Batch finds the region that the feeds lead through, each divided along its first axis.
// The model must be typed and sorted.
func Batch(m *onnx.Model, feeds []*onnx.Value) (*Region, error) {
	r := &Region{
		graph: m.Graph, place: onnx.Places(m.Graph.Nodes), joins: joinsAxes(m), limit: 1, more: batchRules,
		in: map[*onnx.Node]bool{}, shardings: map[*onnx.Value]sharding{}, mean: map[*onnx.Value]bool{}, whole: map[onnx.Use]bool{},
	}
	for _, v := range feeds {
		r.Logits = v
		if _, ok := v.Type.Shape.Ints(); !ok {
			return nil, &SkipError{v.Name, "its extents are not static: fix them with --dim"}
		}
		r.shardings[v] = 0
		for _, u := range v.Uses() {
			r.in[u.Node] = true
		}
	}
	if len(feeds) == 0 {
		return nil, &SkipError{"batch", "no feed has a batch axis"}
	}
	if err := r.propagate(); err != nil {
		return nil, err
	}
	if err := r.grow(); err != nil {
		return nil, err
	}
	r.collectExtents()
	return r, nil
}

// ApplyBatch is Apply for the region of Batch.
func (r *Region) ApplyBatch(types build.Typer, parts int) error {
	if err := r.apply(types, parts, "batch", nil); err != nil {
		return err
	}
	return r.graph.SortTopologically()
}

// batchRules are the rules of operators that work sample by sample, and of those
// that contract the batch.
var batchRules = map[string]rule{
	"Conv": convolve, "ConvTranspose": convolve,
	"AveragePool": perSample, "MaxPool": perSample, "GlobalAveragePool": perSample, "GlobalMaxPool": perSample,
	"LpPool": perSample, "Resize": perSample, "DepthToSpace": perSample, "SpaceToDepth": perSample,
	"InstanceNormalization": perSample,
	"LayerNormalization":    normalized,
	"Concat":                joinedAlong, "Split": splitAlong,
	"Reshape": regroup, "Squeeze": regroup, "Unsqueeze": regroup, "Flatten": regroup,
}

// perSample: the first axis passes to every output; other inputs are read whole.
func perSample(r *Region, n *onnx.Node) (bool, error) {
	switch a := r.shardingOf(n.Inputs[0]); {
	case a > 0:
		return false, fmt.Errorf("works along the split axis")
	case a < 0:
		return false, nil
	}
	return r.setOutputs(n, 0)
}

// setOutputs divides all outputs of a node along an axis.
func (r *Region) setOutputs(n *onnx.Node, axis sharding) (changed bool, err error) {
	for _, o := range n.Outputs {
		more, err := r.set(o, axis)
		if err != nil {
			return false, err
		}
		changed = changed || more
	}
	return changed, nil
}

// convolve: samples of the input are samples of the output. A convolution whose input
// channels are the batch, as that for a weight's gradient, contracts it.
func convolve(r *Region, n *onnx.Node) (bool, error) {
	x, w, out := n.Inputs[0], n.Inputs[1], n.Outputs[0]
	switch a, b := r.shardingOf(x), r.shardingOf(w); {
	case a == 0 && b < 0:
		return r.set(out, 0)
	case a == 1 && b == 1 && n.Is("Conv") && n.Int("group", 1) == 1 && n.In(2) == nil:
		return r.set(out, partialSum)
	case a == unknown || a == 1 && b == unknown:
		return false, nil
	}
	return false, fmt.Errorf("works along the split axis")
}

// normalized: over the axes from its own on.
func normalized(r *Region, n *onnx.Node) (bool, error) {
	a := r.shardingOf(n.Inputs[0])
	if a < 0 {
		return false, nil
	}
	if int64(a) >= axisOf(n, -1, n.Inputs[0]) {
		return false, fmt.Errorf("works along the split axis")
	}
	return r.setOutputs(n, a)
}

// joinedAlong: Concat along another axis, all of whose inputs are divided.
func joinedAlong(r *Region, n *onnx.Node) (bool, error) {
	a := unknown
	for _, v := range append([]*onnx.Value{n.Outputs[0]}, n.Inputs...) {
		if c := r.shardingOf(v); c >= 0 {
			a = c
		}
	}
	if a == unknown {
		return false, nil
	}
	if int64(a) == axisOf(n, 0, n.Outputs[0]) {
		return false, fmt.Errorf("joins along the split axis")
	}
	changed, err := r.set(n.Outputs[0], a)
	for _, v := range n.Inputs {
		if err != nil {
			return false, err
		}
		var more bool
		more, err = r.set(v, a)
		changed = changed || more
	}
	return changed, err
}

// splitAlong: Split along another axis.
func splitAlong(r *Region, n *onnx.Node) (bool, error) {
	a := r.shardingOf(n.Inputs[0])
	if a < 0 {
		return false, nil
	}
	if int64(a) == axisOf(n, 0, n.Inputs[0]) {
		return false, fmt.Errorf("splits along the split axis")
	}
	return r.setOutputs(n, a)
}

// regroup: an axis that is the first of those that are merged into one, or that one is
// split into: a part of it is a contiguous range of that one.
func regroup(r *Region, n *onnx.Node) (bool, error) {
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
		before, _ := onnx.Elements(f[:a])
		count := int64(1)
		for axis, d := range t {
			if count == before && d > 1 && (d%f[a] == 0 || f[a]%d == 0) {
				return sharding(axis), nil
			}
			count *= d
		}
		return 0, fmt.Errorf("the split axis is not the first of those it is merged with")
	})
}
