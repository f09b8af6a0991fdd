package normalize

// Branches that are decided before the run. TorchScript writes an If wherever a
// rank or an extent decides (squeeze, tile, a diagonal); where inference knows
// the condition, the branch taken stands in its place.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func branches(s *state) error {
	// A rank that decides may be that of a list's element.
	before := s.count
	for _, n := range s.nodes() {
		if n.Is("SequenceMap") {
			if err := s.unmap(n); err != nil {
				return err
			}
		}
	}
	for _, n := range s.nodes() {
		if n.Is("SequenceAt") {
			s.element(n)
		}
	}
	if s.count > before {
		for _, n := range s.g.Nodes {
			if err := s.types.Node(n); err != nil {
				return err
			}
		}
	}
	return s.decide(s.nodes())
}

// decide inlines the Ifs among nodes, and those that come out of them, and types
// the others again.
func (s *state) decide(nodes []*onnx.Node) error {
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
		for _, m := range inner {
			if err := s.types.Node(m); err != nil {
				return err
			}
		}
		s.becomes(n, outs, inner)
		gone[n] = true
		if err := s.decide(inner); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if len(gone) > 0 && !gone[n] {
			if err := s.types.Node(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// becomes puts values in the place of n's outputs and removes n; made are the
// nodes that n became.
func (s *state) becomes(n *onnx.Node, outs []*onnx.Value, made []*onnx.Node) {
	s.scope(n)
	for i, o := range n.Outputs {
		switch {
		case o == nil:
		case o.IsOutput() && slices.Contains(made, outs[i].Producer) && !outs[i].IsOutput():
			s.g.TakeOver(o, outs[i])
		case o.IsOutput():
			v := s.b.Op("Identity", build.In(outs[i]))
			s.g.InsertBefore(n, s.b.Take()...)
			s.g.TakeOver(o, v)
		default:
			s.g.ReplaceUses(o, outs[i])
		}
	}
	s.g.Remove(n)
	s.count++
}
