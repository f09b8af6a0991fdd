package normalize

// Recurrent operators whose first axis is the batch (layout 1), which ONNX Runtime's
// kernels do not take: the batch moves behind the time, and back.
//
//	x [b,t,·]  ─Transpose─▶ [t,b,·] ─▶ LSTM ─▶ y   [t,dirs,b,h] ─Transpose─▶ [b,t,dirs,h]
//	h0 [b,dirs,h] ────────▶ [dirs,b,h]         y_h [dirs,b,h]   ───────────▶ [b,dirs,h]

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func layouts(s *state) error {
	for _, n := range s.nodes() {
		if n.Is("RNN", "GRU", "LSTM") && n.Int("layout", 0) == 1 {
			s.timeFirst(n)
		}
	}
	return nil
}

func (s *state) timeFirst(n *onnx.Node) {
	s.scope(n)
	permuted := func(v *onnx.Value, perm ...int64) *onnx.Value {
		return s.b.Op("Transpose", build.In(v), onnx.IntsAttr("perm", perm...))
	}
	inputs := slices.Clone(n.Inputs)
	for _, i := range []int{0, 5, 6} { // x and the first states
		if n.In(i) != nil {
			inputs[i] = permuted(n.In(i), 1, 0, 2)
		}
	}
	made := s.b.Node("", n.OpType(), inputs, len(n.Outputs), n.AttrsBut("layout")...)
	outs := make([]*onnx.Value, len(made))
	for i, v := range made {
		switch {
		case n.Out(i) == nil:
		case i == 0:
			outs[i] = permuted(v, 2, 0, 1, 3)
		default:
			outs[i] = permuted(v, 1, 0, 2)
		}
	}
	nodes := s.b.Take()
	if s.b.Err() != nil {
		return
	}
	s.g.InsertBefore(n, nodes...)
	for i, v := range outs {
		if v != nil {
			s.g.TakeOver(n.Out(i), v)
		}
	}
	s.count++
}
