package normalize

// Lists of tensors. TorchScript writes split, chunk and unbind as
// SplitToSequence with SequenceAt, and stack and cat of a list as
// SequenceConstruct with ConcatFromSequence; PyTorch's other exporter lets the
// loop of an EmbeddingBag fill a list with SequenceInsert, which is a chain of
// them once the loop is open, and writes hstack, vstack and the like with a
// SequenceMap. ONNX has plain operators for all of it where the
// list's length is known.

import (
	"slices"

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
		case n.Is("SequenceLength"):
			s.length(n)
		}
	}
	if s.count == 0 {
		return nil
	}
	return fold(s) // what is joined now may be short vectors, as the scales of a Resize
}

// Lists writes out the lists of tensors whose length follows from numbers for free dimensions.
func Lists(m *onnx.Model, dims map[string]int64) error {
	s, err := inferred(m, dims)
	if err != nil {
		return err
	}
	if err := sequences(s); err != nil {
		return err
	}
	m.Graph.RemoveDead()
	return s.b.Err()
}

// changes is the sequence that one began as, and the insertions and removals since, the last
// one first.
func changes(seq *onnx.Value) (first *onnx.Value, chain []*onnx.Node) {
	for ; made(seq, "Identity", "SequenceInsert", "SequenceErase") != nil; seq = seq.Producer.In(0) {
		if !seq.Producer.Is("Identity") {
			chain = append(chain, seq.Producer)
		}
	}
	return seq, chain
}

// list is what a sequence holds, where every step of putting it together is known.
func (s *state) list(seq *onnx.Value) ([]*onnx.Value, bool) {
	seq, chain := changes(seq)
	var list []*onnx.Value
	if c := made(seq, "SequenceConstruct"); c != nil {
		list = slices.Clone(c.Inputs)
	} else if made(seq, "SequenceEmpty") == nil {
		return nil, false
	}
	for _, n := range slices.Backward(chain) {
		insert := n.Is("SequenceInsert")
		last, where := len(list)-1, n.In(1)
		if insert {
			last, where = len(list), n.In(2)
		}
		at := last
		if where != nil {
			k, ok := s.position(where, len(list))
			if !ok {
				return nil, false
			}
			at = k
		}
		switch {
		case at < 0 || at > last || insert && n.In(1) == nil:
			return nil, false
		case insert:
			list = slices.Insert(list, at, n.In(1))
		default:
			list = slices.Delete(list, at, at+1)
		}
	}
	return list, true
}

// unmap writes out a SequenceMap over a list that is put together in place or is a value's
// parts, whose body is computed for each element. Inputs beside the first are lists as long, or tensors that
// each element gets whole.
func (s *state) unmap(n *onnx.Node) error {
	for _, v := range n.Inputs {
		first, _ := changes(v)
		if split := made(first, "SplitToSequence"); split != nil {
			s.splitSequence(split)
		}
	}
	body := n.Attr("body").GetG()
	first, known := s.list(n.In(0))
	if !known || body == nil || len(body.Input) != len(n.Inputs) || len(body.Output) != len(n.Outputs) ||
		len(first)*(len(body.Node)+1) > maxOpened || slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool { return v == nil || v.IsOutput() }) {
		return nil
	}
	args := make([][]*onnx.Value, len(first))
	for _, v := range n.Inputs {
		list, known := s.list(v)
		switch {
		case known && len(list) != len(first), !known && (v == nil || v.Type.DType == onnx.Undefined):
			return nil
		case !known:
			list = slices.Repeat([]*onnx.Value{v}, len(first))
		}
		for k := range args {
			args[k] = append(args[k], list[k])
		}
	}
	lists := make([][]*onnx.Value, len(n.Outputs))
	for _, arg := range args {
		_, outs, err := s.inline(n, body, arg...)
		if err != nil {
			return nil // it stays, and whoever cannot take it says so; what was inlined is dead
		}
		for i, v := range outs {
			lists[i] = append(lists[i], v)
		}
	}
	s.scope(n)
	outs := make([]*onnx.Value, len(lists))
	for i, list := range lists {
		op := "SequenceConstruct"
		if len(list) == 0 {
			op = "SequenceEmpty"
		}
		outs[i] = s.b.Op(op, list)
	}
	s.g.InsertBefore(n, s.b.Take()...)
	s.becomes(n, outs)
	return s.b.Err()
}

// position is the content of a position in a list, counted from the front.
func (s *state) position(v *onnx.Value, length int) (int, bool) {
	at, known := s.types.Int64s(v)
	if !known || len(at) != 1 {
		return 0, false
	}
	if at[0] < 0 {
		at[0] += int64(length)
	}
	return int(at[0]), at[0] >= 0 && at[0] <= int64(length)
}

// splitSequence replaces a list of parts by a Split, and takes the elements from
// it; what else is done with the list is done with one that is put together.
func (s *state) splitSequence(n *onnx.Node) {
	x := n.In(0)
	axis := normalAxis(n.Int("axis", 0), rank(x))
	if axis < 0 || n.Out(0) == nil || n.Out(0).IsOutput() || n.Out(0).Dead() {
		return
	}
	list, count := s.sequenceSizes(n, x.Type.Shape[axis])
	if count == 0 {
		return
	}
	s.scope(n)
	sizes := n.In(1)
	if list != nil {
		sizes = s.b.Ints(list...)
	} else if sizes.Type.DType != onnx.Int64 {
		sizes = s.b.Op("Cast", build.In(sizes), onnx.IntAttr("to", int64(onnx.Int64)))
	}
	parts := slices.Clone(s.b.Node("", "Split", build.In(x, sizes), count, onnx.IntAttr("axis", int64(axis))))
	if n.In(1) == nil && n.Int("keepdims", 1) == 0 {
		for k, v := range parts {
			parts[k] = s.b.Op("Squeeze", build.In(v, s.b.Ints(int64(axis))))
		}
	}
	whole := s.b.Op("SequenceConstruct", parts)
	nodes := s.b.Take()
	if s.b.Err() != nil {
		return
	}
	s.g.InsertBefore(n, nodes...)
	s.g.ReplaceUses(n.Out(0), whole)
	s.count++
}

// sequenceSizes are the extents of the parts, and how many: one each without the split input,
// equal ones (the last perhaps smaller) for a scalar, else as listed. Of a list whose length alone
// is known they are nil, and a Split takes the list; the number is 0 where it is not known.
func (s *state) sequenceSizes(n *onnx.Node, extent onnx.Dim) (sizes []int64, count int) {
	step, split := int64(1), n.In(1)
	if split != nil {
		list, known := s.types.Int64s(split)
		if rank(split) == 1 {
			if length, ok := split.Type.Shape[0].Int(); ok && !known && length <= maxParts {
				return nil, int(length)
			}
			return list, len(list)
		}
		if !known || len(list) == 0 {
			return nil, 0
		}
		step = list[0]
	}
	whole, ok := extent.Int()
	if !ok || step < 1 || whole < 1 || whole/step > maxParts {
		return nil, 0
	}
	for at := int64(0); at < whole; at += step {
		sizes = append(sizes, min(step, whole-at))
	}
	return sizes, len(sizes)
}

// maxParts is how many parts of a value are written out.
const maxParts = 4096

// element takes an element straight from a list that is put together in place.
func (s *state) element(n *onnx.Node) {
	list, known := s.list(n.In(0))
	if !known || n.Out(0) == nil {
		return
	}
	if k, ok := s.position(n.In(1), len(list)); ok && k < len(list) {
		s.replaceOutput(n.Out(0), list[k], n)
		s.count++
	}
}

// length replaces the number of elements.
func (s *state) length(n *onnx.Node) {
	if list, known := s.list(n.In(0)); known && n.Out(0) != nil && !n.Out(0).IsOutput() {
		s.g.ReplaceUses(n.Out(0), s.b.Int(int64(len(list))))
		s.count++
	}
}

// concatSequence joins the elements of a list that is put together in place.
func (s *state) concatSequence(n *onnx.Node) {
	inputs, known := s.list(n.In(0))
	if !known || len(inputs) == 0 || n.Out(0) == nil {
		return
	}
	s.scope(n)
	axis := n.Int("axis", 0)
	if n.Int("new_axis", 0) != 0 {
		for i, v := range inputs {
			inputs[i] = s.b.Op("Unsqueeze", build.In(v, s.b.Ints(axis)))
		}
	}
	s.replace(n.Out(0), s.b.Op("Concat", inputs, onnx.IntAttr("axis", axis)), n)
}
