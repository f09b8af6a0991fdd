package normalize

// Lists of tensors. TorchScript writes split, chunk and unbind as
// SplitToSequence with SequenceAt, and stack and cat of a list as
// SequenceConstruct with ConcatFromSequence; ONNX has plain operators for all
// of them.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func sequences(s *state) error {
	for _, n := range s.nodes() {
		switch {
		case n.Is("SplitToSequence"):
			s.splitSequence(n)
		case n.Is("ConcatFromSequence"):
			s.concatSequence(n)
		case n.Is("SequenceAt"):
			s.element(n)
		}
	}
	return nil
}

// splitSequence replaces a sequence whose elements are all taken by constant
// positions.
func (s *state) splitSequence(n *onnx.Node) {
	x := n.In(0)
	axis := normalAxis(n.Int("axis", 0), rank(x))
	if axis < 0 {
		return
	}
	extent, ok := x.Type.Shape[axis].Int()
	if !ok {
		return
	}
	sizes, ok := s.sequenceSizes(n, extent)
	if !ok {
		return
	}
	type taken struct {
		v  *onnx.Value
		at int
	}
	var list []taken
	for _, u := range n.Out(0).Uses() {
		pos, known := s.ints(u.Node.In(1))
		if !u.Node.Is("SequenceAt") || !known || len(pos) != 1 {
			return
		}
		k := pos[0]
		if k < 0 {
			k += int64(len(sizes))
		}
		if k < 0 || k >= int64(len(sizes)) {
			return
		}
		if v := u.Node.Out(0); v != nil {
			list = append(list, taken{v, int(k)})
		}
	}
	if len(list) == 0 || n.Out(0).IsOutput() {
		return
	}
	s.scope(n)
	parts := s.b.Node("", "Split", build.In(x, s.b.Ints(sizes...)), len(sizes), onnx.IntAttr("axis", int64(axis)))
	squeeze := n.In(1) == nil && n.Int("keepdims", 1) == 0
	out := map[int]*onnx.Value{}
	for k, v := range parts {
		if squeeze {
			v = s.b.Op("Squeeze", build.In(v, s.b.Ints(int64(axis))))
		}
		out[k] = v
	}
	nodes := s.b.Take()
	if s.b.Err() != nil {
		return
	}
	s.g.InsertBefore(n, nodes...)
	for _, t := range list {
		s.replaceOutput(t.v, out[t.at], n)
	}
	s.count++
}

// replaceOutput makes readers of v read w, which is made before n; a graph output
// keeps v's name, by a copy where w is one already.
func (s *state) replaceOutput(v, w *onnx.Value, n *onnx.Node) {
	if !v.IsOutput() {
		s.g.ReplaceUses(v, w)
		return
	}
	if w.IsOutput() {
		w = s.b.Op("Identity", build.In(w))
		s.g.InsertBefore(n, s.b.Take()...)
	}
	s.g.TakeOver(v, w)
}

// sequenceSizes are the extents of the parts: one each without the split input,
// equal ones (the last perhaps smaller) for a scalar, else as listed.
func (s *state) sequenceSizes(n *onnx.Node, extent int64) ([]int64, bool) {
	step := int64(1)
	if n.In(1) != nil {
		list, ok := s.ints(n.In(1))
		if !ok || len(list) == 0 {
			return nil, false
		}
		if rank(n.In(1)) == 1 {
			return list, true
		}
		step = list[0]
	}
	if step < 1 || extent < 1 || extent/step > 4096 {
		return nil, false
	}
	var sizes []int64
	for at := int64(0); at < extent; at += step {
		sizes = append(sizes, min(step, extent-at))
	}
	return sizes, true
}

// element takes an element straight from a list that is put together in place.
func (s *state) element(n *onnx.Node) {
	c := made(n.In(0), "SequenceConstruct")
	at, known := s.ints(n.In(1))
	if c == nil || !known || len(at) != 1 || n.Out(0) == nil || n.Out(0).IsOutput() {
		return
	}
	k := at[0]
	if k < 0 {
		k += int64(len(c.Inputs))
	}
	if k < 0 || k >= int64(len(c.Inputs)) {
		return
	}
	s.g.ReplaceUses(n.Out(0), c.In(int(k)))
	s.count++
}

// concatSequence joins the elements of a list that is put together in place.
func (s *state) concatSequence(n *onnx.Node) {
	c := made(n.In(0), "SequenceConstruct")
	if c == nil || n.Out(0) == nil {
		return
	}
	s.scope(n)
	axis := n.Int("axis", 0)
	inputs := append([]*onnx.Value(nil), c.Inputs...)
	if n.Int("new_axis", 0) != 0 {
		for i, v := range inputs {
			inputs[i] = s.b.Op("Unsqueeze", build.In(v, s.b.Ints(axis)))
		}
	}
	s.replace(n.Out(0), s.b.Op("Concat", inputs, onnx.IntAttr("axis", axis)), n)
}
