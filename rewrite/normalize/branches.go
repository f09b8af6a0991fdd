package normalize

// Branches that are decided before the run. TorchScript writes an If wherever a
// rank or an extent decides (squeeze, tile, a diagonal); where inference knows
// the condition, the branch taken stands in its place. A scripted module that takes what may be None
// asks an Optional whether it holds anything.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func branches(s *state) error {
	before := s.count
	for _, n := range s.nodes() {
		if n.Is("SequenceMap") {
			if err := s.unmap(n); err != nil {
				return err
			}
		}
	}
	if s.count > before {
		if err := s.typed(s.g.Nodes); err != nil {
			return err
		}
	}
	return s.decide(s.nodes())
}

// optional takes what an Optional holds straight from what went in, and whether it holds anything as
// known. Since opset 18 both may be asked of what is no Optional, which holds itself.
func (s *state) optional(n *onnx.Node) {
	held, o := n.In(0), n.Out(0)
	if held != nil {
		held = held.Behind("Identity")
	}
	if by := made(held, "Optional"); by != nil {
		held = by.In(0)
	} else if held != nil && held.Type.DType == onnx.Undefined {
		return
	}
	switch {
	case o == nil:
		return
	case n.Is("OptionalHasElement"):
		has := byte(0)
		if held != nil {
			has = 1
		}
		s.replaceOutput(o, s.b.Const(onnx.NewTensor(onnx.Bool, nil, []byte{has})), n)
	case held == nil:
		return
	default:
		s.replaceOutput(o, held, n)
	}
	s.count++
}

// typed infers the types of what nodes make, anew.
func (s *state) typed(nodes []*onnx.Node) error {
	for _, n := range nodes {
		if err := s.types.Node(n); err != nil {
			return err
		}
	}
	return nil
}

// decide takes what lists and Optionals hold straight from what went in, inlines the Ifs among nodes, and
// those that come out of them, and types the others again.
func (s *state) decide(nodes []*onnx.Node) error {
	before := s.count
	for _, n := range nodes {
		switch {
		case n.Is("SequenceAt"):
			s.element(n)
		case n.Is("OptionalGetElement", "OptionalHasElement"):
			s.optional(n)
		}
	}
	if s.count > before { // what decides may be the rank of such an element
		if err := s.typed(nodes); err != nil {
			return err
		}
	}
	gone := map[*onnx.Node]bool{}
	for _, n := range nodes {
		if !n.Is("If") {
			continue
		}
		cond, known := s.types.Int64s(n.In(0))
		if !known || len(cond) != 1 {
			continue
		}
		name := "else_branch"
		if cond[0] != 0 {
			name = "then_branch"
		}
		body := n.Attr(name).GetG()
		if body == nil || len(body.Output) != len(n.Outputs) {
			continue
		}
		inner, outs, err := s.g.Inline(n, body)
		if err != nil {
			continue // the If stays, and whoever cannot take it says so
		}
		if err := s.typed(inner); err != nil {
			return err
		}
		s.becomes(n, outs)
		gone[n] = true
		if err := s.decide(inner); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return s.typed(slices.DeleteFunc(slices.Clone(nodes), func(n *onnx.Node) bool { return gone[n] }))
}

// becomes puts values in the place of n's outputs and removes n.
func (s *state) becomes(n *onnx.Node, outs []*onnx.Value) {
	for i, o := range n.Returns() {
		s.replaceOutput(o, outs[i], n)
	}
	s.g.Remove(n)
	s.count++
}

// replaceOutput makes readers of v read w, which is there before n. A graph output keeps
// v's name, by a copy where w has one that is to stay: that of an input, of an initializer or
// of another output.
func (s *state) replaceOutput(v, w *onnx.Value, n *onnx.Node) {
	if !v.IsOutput() {
		s.g.ReplaceUses(v, w)
		return
	}
	if w.Producer == nil || w.IsOutput() {
		s.scope(n)
		if w = s.b.Op("Identity", build.In(w)); w == nil {
			return // the builder says why
		}
		s.g.InsertBefore(n, s.b.Take()...)
	}
	s.g.TakeOver(v, w)
}
