package data

// Where elements come from. The elements of one tensor are numbered, and the
// numbers are followed through operators that move elements without computing:
// what arrives at a node says which of the first tensor's elements are where. An
// element that is no element of it, as padding, has number -1.
//
//	labels [2,4]        0 1 2 3 | 4 5 6 7
//	Pad 1, Slice 1:     1 2 3 -1 | 5 6 7 -1
//	Reshape [8]         1 2 3 -1 5 6 7 -1

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// mostFollowed bounds the elements of one tensor that are followed.
const mostFollowed = 1 << 22

// origins are the numbers of a tensor's elements, in row order.
type origins struct {
	shape []int64
	from  []int32
}

// A tracer follows elements through nodes. Its types are inferred, without a free
// dimension.
type tracer struct {
	known *infer.Result
	of    map[*onnx.Value]*origins
}

// start numbers the elements of a tensor of that shape.
func start(shape []int64) (*origins, bool) {
	n, ok := onnx.Elements(shape)
	if !ok || n > mostFollowed {
		return nil, false
	}
	o := &origins{shape, make([]int32, n)}
	for i := range o.from {
		o.from[i] = int32(i)
	}
	return o, true
}

// node follows elements through one node, where it is one that moves them.
func (t *tracer) node(n *onnx.Node) {
	if n.Domain() != "" || len(n.Outputs) == 0 || n.Outputs[0] == nil {
		return
	}
	x := t.of[n.In(0)]
	out := n.Outputs[0]
	switch n.OpType() {
	case "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Clip", "Dropout":
		t.set(out, x)
	case "Slice":
		t.set(out, t.slice(n, x))
	case "Pad":
		t.set(out, t.pad(n, x))
	case "Transpose":
		t.set(out, transpose(x, n.Ints("perm")))
	case "Gather":
		t.set(out, t.gather(n, x))
	case "Concat":
		t.set(out, t.concat(n))
	case "Split":
		t.split(n, x)
	case "Where":
		t.set(out, t.elementwise(out, n.In(1), n.In(2)))
	case "Add", "Sub", "Mul", "Div", "Max", "Min", "Expand":
		t.set(out, t.elementwise(out, n.Inputs...))
	}
}

// set notes the origins of a value that has as many elements.
func (t *tracer) set(v *onnx.Value, o *origins) {
	shape, ok := v.Type.Shape.Ints()
	if o == nil || !v.Type.Ranked || !ok {
		return
	}
	if n, ok := onnx.Elements(shape); ok && n == int64(len(o.from)) {
		t.of[v] = &origins{shape, o.from}
	}
}

// slice follows elements, or rows, which have no last axis, through a Slice.
func (t *tracer) slice(n *onnx.Node, x *origins) *origins {
	spans, ok := t.known.Spans(n)
	if x == nil || !ok {
		return nil
	}
	for _, s := range spans {
		switch {
		case s.Step != 1:
			return nil
		case s.Axis < len(x.shape):
			first, last := onnx.SliceBounds(s.Start, s.End, s.Step, x.shape[s.Axis])
			x = pick(x, s.Axis, first, max(first, last))
		}
	}
	return x
}

// pick takes a range of one axis; what lies outside it is of no origin.
func pick(x *origins, axis int, first, last int64) *origins {
	shape := append([]int64(nil), x.shape...)
	shape[axis] = last - first
	n, ok := onnx.Elements(shape)
	if !ok || n < 0 || n > mostFollowed {
		return nil
	}
	outer, inner := int64(1), int64(1)
	for _, d := range x.shape[:axis] {
		outer *= d
	}
	for _, d := range x.shape[axis+1:] {
		inner *= d
	}
	out := &origins{shape, make([]int32, 0, n)}
	for o := range outer {
		for i := first; i < last; i++ {
			for j := range inner {
				if i < 0 || i >= x.shape[axis] {
					out.from = append(out.from, -1)
				} else {
					out.from = append(out.from, x.from[(o*x.shape[axis]+i)*inner+j])
				}
			}
		}
	}
	return out
}

func (t *tracer) pad(n *onnx.Node, x *origins) *origins {
	if x == nil || n.Str("mode", "constant") != "constant" {
		return nil
	}
	pads, ok := t.known.Pads(n)
	rank := len(x.shape)
	if !ok || len(pads) != 2*rank {
		return nil
	}
	for k := range rank {
		before, after := pads[k], pads[rank+k]
		if before < -x.shape[k] || before > mostFollowed || after < -x.shape[k] || after > mostFollowed || x.shape[k]+before+after < 0 {
			return nil
		}
		if x = pick(x, k, -before, x.shape[k]+after); x == nil {
			return nil
		}
	}
	return x
}

// transpose permutes axes; no perm reverses them.
func transpose(x *origins, perm []int64) *origins {
	if x == nil {
		return nil
	}
	rank := len(x.shape)
	if perm == nil {
		for i := range rank {
			perm = append(perm, int64(rank-1-i))
		}
	}
	if len(perm) != rank {
		return nil
	}
	own, strides, out := onnx.Strides(x.shape), make([]int64, rank), &origins{shape: make([]int64, rank)}
	for i, p := range perm {
		if p < 0 || p >= int64(rank) {
			return nil
		}
		out.shape[i], strides[i] = x.shape[p], own[p]
	}
	if n, ok := onnx.Elements(out.shape); !ok || n != int64(len(x.from)) {
		return nil
	}
	for at := range onnx.Strided(out.shape, strides, 0) {
		out.from = append(out.from, x.from[at])
	}
	return out
}

// gather takes elements of the followed tensor at a constant index.
func (t *tracer) gather(n *onnx.Node, x *origins) *origins {
	if x == nil {
		return nil
	}
	k, ok := onnx.Axis(n.Int("axis", 0), len(x.shape))
	index, known := t.known.Int64s(n.In(1))
	if !ok || !known || len(index) != 1 {
		return nil
	}
	at, ok := onnx.Axis(index[0], int(x.shape[k]))
	if !ok {
		return nil
	}
	return pick(x, k, int64(at), int64(at)+1)
}

func (t *tracer) concat(n *onnx.Node) *origins {
	var parts []*origins
	some := false
	for _, v := range n.Inputs {
		x := t.of[v]
		some = some || x != nil
		if x == nil {
			if x = none(v); x == nil {
				return nil
			}
		}
		parts = append(parts, x)
	}
	if !some {
		return nil
	}
	rank := len(parts[0].shape)
	k, ok := onnx.Axis(n.Int("axis", 0), rank)
	if !ok {
		return nil
	}
	outer := int64(1)
	for _, d := range parts[0].shape[:k] {
		outer *= d
	}
	out := &origins{}
	for i := range outer {
		for _, p := range parts {
			if len(p.shape) != rank || outer == 0 || int64(len(p.from))%outer != 0 {
				return nil
			}
			size := int64(len(p.from)) / outer
			out.from = append(out.from, p.from[i*size:(i+1)*size]...)
		}
	}
	return out
}

// none are the origins of a tensor that has none, nil where its size is not known.
func none(v *onnx.Value) *origins {
	if v == nil || !v.Type.Ranked {
		return nil
	}
	shape, ok := v.Type.Shape.Ints()
	if !ok {
		return nil
	}
	n, ok := onnx.Elements(shape)
	if !ok || n > mostFollowed {
		return nil
	}
	o := &origins{shape, make([]int32, n)}
	for i := range o.from {
		o.from[i] = -1
	}
	return o
}

func (t *tracer) split(n *onnx.Node, x *origins) {
	if x == nil {
		return
	}
	k, ok := onnx.Axis(n.Int("axis", 0), len(x.shape))
	at := int64(0)
	for _, v := range n.Outputs {
		if v == nil || !ok || !v.Type.Ranked || len(v.Type.Shape) != len(x.shape) {
			return
		}
		size, known := v.Type.Shape[k].Int()
		if !known || at+size > x.shape[k] {
			return
		}
		t.set(v, pick(x, k, at, at+size))
		at += size
	}
}

// elementwise takes, for each element of the output, the element of the first input
// there that has an origin.
func (t *tracer) elementwise(out *onnx.Value, inputs ...*onnx.Value) *origins {
	shape, ok := out.Type.Shape.Ints()
	n, fits := onnx.Elements(shape)
	if !out.Type.Ranked || !ok || !fits || n > mostFollowed {
		return nil
	}
	var result *origins
	for _, v := range inputs {
		x := t.of[v]
		if x == nil {
			continue
		}
		wide := broadcast(x, shape, n)
		if wide == nil {
			return nil
		}
		if result == nil {
			result = wide
			continue
		}
		for i, from := range wide.from {
			if result.from[i] < 0 {
				result.from[i] = from
			}
		}
	}
	return result
}

// broadcast repeats elements along axes that the tensor has one of, or none.
func broadcast(x *origins, shape []int64, n int64) *origins {
	if len(x.shape) > len(shape) {
		return nil
	}
	lead := len(shape) - len(x.shape)
	own, strides := onnx.Strides(x.shape), make([]int64, len(shape))
	for i, d := range x.shape {
		switch d {
		case shape[lead+i]:
			strides[lead+i] = own[i]
		case 1:
		default:
			return nil
		}
	}
	out := &origins{shape, make([]int32, 0, n)}
	for at := range onnx.Strided(shape, strides, 0) {
		out.from = append(out.from, x.from[at])
	}
	return out
}
