package tile

// How a slice of an operator's output is made from slices of its inputs: one
// row each. A rule says which inputs are needed in slices (c.need) and which
// whole, and how the part is emitted; false: it does not know, and the value is
// cut out of the whole.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

type sliceRule func(c *backwardSlice, s *shard, n *onnx.Node) bool

// sliceRules is the table.
var sliceRules = map[string]sliceRule{
	"Add": sliceElementwise, "Sub": sliceElementwise, "Mul": sliceElementwise, "Div": sliceElementwise,
	"Pow": sliceElementwise, "Neg": sliceElementwise, "Exp": sliceElementwise, "Log": sliceElementwise,
	"Sqrt": sliceElementwise, "Reciprocal": sliceElementwise, "Abs": sliceElementwise, "Sign": sliceElementwise,
	"Max": sliceElementwise, "Min": sliceElementwise, "Sum": sliceElementwise, "Clip": sliceElementwise,
	"Cast": sliceElementwise, "Where": sliceElementwise, "Identity": sliceElementwise,
	"Equal": sliceElementwise, "Less": sliceElementwise, "Greater": sliceElementwise, "Not": sliceElementwise,

	"MatMul": sliceProduct, "Gemm": sliceProduct, "com.microsoft.FusedMatMul": sliceProduct,
	"Softmax": sliceSoftmax, "LogSoftmax": sliceSoftmax,
	"ScatterElements": sliceScatter,
	"Transpose":       sliceTranspose,
	"Reshape":         sliceReshape,
}

// need asks for slices of an input.
func (c *backwardSlice) need(s *shard, v *onnx.Value, axis int) *shard {
	in := c.of(v, axis)
	s.needs = append(s.needs, in)
	return in
}

// clones makes the part by the same operator; in holds the inputs that are read
// in slices, by place, and the others are read whole.
func (s *shard) clones(n *onnx.Node, in map[int]*shard) bool {
	for k, v := range n.Reads() {
		if in[k] == nil {
			s.whole = append(s.whole, v)
		}
	}
	s.make = func(e *emitter) *onnx.Value {
		inputs := slices.Clone(n.Inputs)
		for k := range inputs { // in their order: who is cut first waits for the slice before
			if part := in[k]; part != nil {
				inputs[k] = e.shard(part)
			}
		}
		return e.clone(n, inputs)
	}
	return true
}

func sliceElementwise(c *backwardSlice, s *shard, n *onnx.Node) bool {
	in := map[int]*shard{}
	for k, v := range n.Reads() {
		if a := aligned(v, s.v, sharding(s.axis)); a >= 0 {
			in[k] = c.need(s, v, int(a))
		}
	}
	return s.clones(n, in)
}

// sliceProduct: rows of a product are of the left factor's rows, columns of the
// right one's columns.
func sliceProduct(c *backwardSlice, s *shard, n *onnx.Node) bool {
	a, b := n.Inputs[0], n.Inputs[1]
	if rank(a) < 2 || rank(b) < 2 || n.Int("transBatchA", 0) != 0 || n.Int("transBatchB", 0) != 0 {
		return false
	}
	row, _ := traits.MatrixAxes(n, 0)
	_, column := traits.MatrixAxes(n, 1)
	in := map[int]*shard{}
	switch s.axis {
	case rank(s.v) - 2:
		in[0] = c.need(s, a, row)
	case rank(s.v) - 1:
		in[1] = c.need(s, b, column)
	default:
		return false
	}
	if bias := n.In(2); bias != nil {
		if x := aligned(bias, s.v, sharding(s.axis)); x >= 0 {
			in[2] = c.need(s, bias, int(x))
		}
	}
	return s.clones(n, in)
}

// sliceSoftmax: along another axis as elementwise operators; along the sliced
// one with the logarithm of the whole's sum, which x and y = x − lse tell; for
// p = exp(x − lse) a loss that was computed from x has it, or y beside it.
func sliceSoftmax(c *backwardSlice, s *shard, n *onnx.Node) bool {
	x, last := n.Inputs[0], rank(s.v)-1
	axis := softmaxAxis(n, s.v, c.joins)
	if axis != last {
		return false // before opset 13 the axes after it belong to it
	}
	if s.axis != axis {
		return s.clones(n, map[int]*shard{0: c.need(s, x, s.axis)})
	}
	in := c.need(s, x, s.axis)
	if n.Is("Softmax") {
		if p := x.Producer; p != nil && p.Is("LogSoftmax") && softmaxAxis(p, x, c.joins) == axis { // whose exponentials sum to 1
			s.make = func(e *emitter) *onnx.Value { return e.op("Exp", n, e.shard(in)) }
			return true
		}
		lse := logSumOf(x, axis)
		if lse == nil {
			return false
		}
		s.whole = append(s.whole, lse)
		s.make = func(e *emitter) *onnx.Value {
			return e.op("Exp", n, e.op("Sub", n, e.shard(in), e.entry(lse)))
		}
		return true
	}
	s.make = func(e *emitter) *onnx.Value { return e.op("Sub", n, e.shard(in), e.logSum(x, s.v)) }
	return true
}

// logSumOf is the logarithm of the sum of exp(x) along an axis, kept as extent 1,
// where the graph computes it; else nil.
func logSumOf(x *onnx.Value, axis int) *onnx.Value {
	for _, u := range x.Uses() {
		n := u.Node
		if !n.Is("ReduceLogSumExp") || u.Index != 0 || n.Int("keepdims", 1) != 1 {
			continue
		}
		if axes, err := reducedAxes(n); err == nil && len(axes) == 1 && axes[0] == int64(axis) {
			return n.Outputs[0]
		}
	}
	return nil
}

// sliceScatter: sums scattered along the sliced axis are those that fall into
// the slice; the others are added as zeros to its first or last element.
func sliceScatter(c *backwardSlice, s *shard, n *onnx.Node) bool {
	data, index, updates := n.Inputs[0], n.Inputs[1], n.Inputs[2]
	axis := int(axisOf(n, 0, data))
	in := c.need(s, data, s.axis)
	if axis != s.axis {
		if index.Type.Shape[s.axis] != data.Type.Shape[s.axis] {
			return false
		}
		return s.clones(n, map[int]*shard{0: in, 1: c.need(s, index, s.axis), 2: c.need(s, updates, s.axis)})
	}
	if n.Str("reduction", "none") != "add" || !updates.Type.DType.IsFloat() {
		return false
	}
	s.whole = append(s.whole, index, updates)
	s.make = func(e *emitter) *onnx.Value {
		part := e.shard(in)
		at, inside := e.within(index, data, s)
		kept := e.op("Where", n, inside, e.entry(updates), e.b.Scalar(updates.Type.DType, 0))
		return e.clone(n, build.In(part, at, kept))
	}
	return true
}

func sliceTranspose(c *backwardSlice, s *shard, n *onnx.Node) bool {
	axis := traits.Permutation(n, rank(s.v))[s.axis]
	return s.clones(n, map[int]*shard{0: c.need(s, n.Inputs[0], axis)})
}

// sliceReshape: an axis that stays, with as many elements before it and after.
func sliceReshape(c *backwardSlice, s *shard, n *onnx.Node) bool {
	from, ok := n.Inputs[0].Type.Shape.Ints()
	to, _ := s.v.Type.Shape.Ints()
	before, _ := onnx.Elements(to[:s.axis])
	if !ok {
		return false
	}
	count := int64(1)
	for axis, d := range from {
		if count == before && d == to[s.axis] {
			in := c.need(s, n.Inputs[0], axis)
			to[s.axis] = s.size
			s.make = func(e *emitter) *onnx.Value { return e.op("Reshape", n, e.shard(in), e.b.Ints(to...)) }
			return true
		}
		count *= d
	}
	return false
}
