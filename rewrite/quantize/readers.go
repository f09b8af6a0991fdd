package quantize

// Which weights can be quantized, and how their readers get them back.
//
// Codes of eight bits have the weight's shape. Those of four are a list, in blocks as
// the weights lie, and the wide copy passes a Reshape: no view of int4 has a kernel, so
// ONNX Runtime knows the shape of the copy, and keeps its buffer for the next one of
// that shape (copies.go). Lists have one shape for all weights of as many elements,
// such as the projections to and from a hidden layer.

import (
	"fmt"
	"iter"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A quantizer is one run of Frozen.
type quantizer struct {
	m       *onnx.Model
	b       *build.Builder
	weights map[*onnx.Value]*held
}

// held is what stands in for a weight.
type held struct {
	*Weight
	codes, scales *onnx.Tensor
	kind          Kind
	axis          int
}

// Candidate reports a constant of two or more axes, in float32 or a half type, that is worth
// its scales.
func Candidate(v *onnx.Value) bool {
	size, known := v.Type.Bytes()
	return v.IsConstant() && (v.Init.DType() == onnx.Float32 || v.Init.DType().IsHalf()) && len(v.Init.Dims()) >= 2 && known && size >= least
}

// weight quantizes one, or says why it stays.
func (q *quantizer) weight(v *onnx.Value, kind Kind) (*Weight, error) {
	size, err := v.Init.ByteSize()
	if err != nil {
		return nil, err
	}
	w := &Weight{Name: v.Name, Was: size}
	axis, kind, why := blockAxis(v, kind)
	if why == "" && v.Init.DType().IsHalf() {
		why = "it is in half, and only float32 is quantized"
	}
	if w.Why = why; why != "" {
		return w, nil
	}
	data, err := v.Init.Bytes()
	if err != nil {
		return nil, err
	}
	dims := v.Init.Dims()
	if kind == Int4 {
		dims, axis = []int64{size / 4}, 0
	}
	cuts, err := cut(dims, axis, kind.block())
	if err != nil {
		return nil, err
	}
	codes, scales, finite := cuts.encode(data, kind)
	if !finite {
		w.Why = "it has elements that are not finite"
		return w, nil
	}
	scaleDims := slices.Clone(dims)
	scaleDims[axis] = cuts.blocks()
	q.weights[v] = &held{
		w, onnx.NewTensor(kind.dtype(), dims, codes), onnx.NewTensor(onnx.Float32, scaleDims, scales), kind, axis,
	}
	return w, nil
}

// blockAxis is the axis along which a weight is cut: the one that its first product
// sums over, or where rows of it are looked up, the last one. No Gather takes int4, so
// what is looked up is held in int8.
func blockAxis(v *onnx.Value, kind Kind) (int, Kind, string) {
	if v.IsOutput() {
		return 0, kind, "it is an output"
	}
	last, axis := len(v.Type.Shape)-1, -1
	lookedUp := false
	for _, u := range v.Uses() {
		at, why := summed(u)
		switch {
		case why != "":
			return 0, kind, why
		case at < 0:
			lookedUp = true
		case axis < 0 || !u.Node.MadeBy("grad"):
			axis = at
		}
	}
	if lookedUp {
		return last, Int8, ""
	}
	if axis < 0 {
		return 0, kind, "nothing reads it"
	}
	return axis, kind, ""
}

// summed is the axis of a weight that a reader sums over, -1 where it looks up rows
// along another one than the last; else why it can do neither with codes.
func summed(u onnx.Use) (axis int, why string) {
	if u.Index < 0 {
		return 0, fmt.Sprintf("a subgraph of %s reads it", u.Node.Label())
	}
	v := u.Node.Inputs[u.Index]
	rank := len(v.Type.Shape)
	switch n := u.Node; {
	case n.Is("MatMul", "Gemm") && u.Index > 1 || !n.Is("MatMul", "Gemm", "Gather") || n.Is("Gather") && u.Index > 0:
		return 0, n.OpType() + " reads it"
	case n.In(1-u.Index) == nil || n.In(1-u.Index).IsConstant():
		return 0, n.OpType() + " reads it with a constant"
	case n.Is("Gather"):
		if along := n.Int("axis", 0); along == -1 || along == int64(rank)-1 || !n.In(1).Type.Ranked {
			return 0, "Gather reads it along its last axis"
		}
		return -1, ""
	}
	return summedOf(u.Node, u.Index), ""
}

// ordered lists what is quantized in the file's order.
func (q *quantizer) ordered() iter.Seq2[*onnx.Value, *held] {
	return func(yield func(*onnx.Value, *held) bool) {
		for _, v := range slices.Clone(q.m.Graph.Initializers) {
			if h := q.weights[v]; h != nil && !yield(v, h) {
				return
			}
		}
	}
}

// lead has what reads a quantized weight read codes and scales, and removes the weights.
func (q *quantizer) lead() error {
	g, wide := q.m.Graph, map[*onnx.Value]*onnx.Value{}
	for v, h := range q.ordered() {
		h.Codes = g.AddConstant(v.Name+"."+string(h.kind), h.codes)
		h.Scales = g.AddConstant(v.Name+".scale", h.scales)
		q.b.Scope = v.Name
		wide[v] = q.dequantize(h, h.Codes, h.Scales, h.axis)
		if h.kind == Int4 {
			wide[v] = q.b.Op("Reshape", build.In(wide[v], q.b.Ints(v.Init.Dims()...)))
		}
	}
	order := q.b.Take()
	for _, n := range g.Nodes {
		for i, v := range n.Inputs {
			h := q.weights[v]
			switch {
			case h == nil:
			case n.Is("Gather"):
				q.lookUp(n, h)
			default:
				n.SetInput(i, wide[v])
			}
		}
		order = append(append(order, q.b.Take()...), n)
	}
	if err := q.b.Err(); err != nil {
		return err
	}
	g.Nodes = order
	g.RemoveDead() // the weights, and a Gather of what was one
	return Apart(g)
}

func (q *quantizer) dequantize(h *held, codes, scales *onnx.Value, axis int) *onnx.Value {
	return q.b.Op("DequantizeLinear", build.In(codes, scales), onnx.IntAttr("axis", int64(axis)), onnx.IntAttr("block_size", h.kind.block()))
}

// lookUp has a Gather look codes and scales up; what reads the Gather's rows reads the
// ones made of them.
func (q *quantizer) lookUp(n *onnx.Node, h *held) {
	q.b.From(n, n.Label())
	rows, rank := n.Out(0), len(n.In(1).Type.Shape)
	along := onnx.IntAttr("axis", n.Int("axis", 0))
	codes := q.b.Op("Gather", build.In(h.Codes, n.In(1)), along)
	scales := q.b.Op("Gather", build.In(h.Scales, n.In(1)), along)
	wide := q.dequantize(h, codes, scales, h.axis-1+rank)
	if wide != nil {
		q.m.Graph.TakeOver(rows, wide)
	}
}
