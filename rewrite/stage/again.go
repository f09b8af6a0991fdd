package stage

// What runs again in the backward pass. A cut falls where it may, so also within what a plan computes
// again: a layer's nodes may be of two stages, and the later one would compute the earlier one's part with its
// weights, and get the gradients of these. It has what it needs of it, since its forward graph received that:
//
//	stage 0:  x ─▶ y ──┐      x ─▶ y'  (again, for stage 0's gradients)
//	stage 1:           └▶ z   y ─▶ z'  (in place of y')
//
// So stages are chosen as if every reader read what ran first, and are those of the graph in which nothing
// runs again; what runs again does so in the stage where it ran first, for readers there.

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/onnx"
)

// findFirst finds, for what is made again, what ran first. A node's origin is text from a file, so the two
// nodes have to be the same.
func (s *assignment) findFirst() {
	called := map[string][]*onnx.Node{}
	for _, n := range s.Nodes {
		if n.MadeBy(onnx.RecomputePass) && !s.forward[n] {
			of := called[n.Origin().Of]
			if i := slices.IndexFunc(of, func(o *onnx.Node) bool { return s.same(n, o) }); i >= 0 {
				for k, v := range n.Outputs {
					if v != nil {
						s.first[v] = s.origin(of[i].Outputs[k])
					}
				}
			}
		}
		called[n.Label()] = append(called[n.Label()], n)
	}
}

// same reports that a node makes what an earlier one does that is forward, or was found to make what such
// a one does.
func (s *assignment) same(n, o *onnx.Node) bool {
	return (s.forward[o] || s.runsAgain(o)) && n.OpType() == o.OpType() && n.Domain() == o.Domain() && len(n.Captures)+len(o.Captures) == 0 &&
		slices.EqualFunc(n.Proto.GetAttribute(), o.Proto.GetAttribute(), func(a, b onnx.Attribute) bool { return proto.Equal(a, b) }) &&
		slices.EqualFunc(n.Inputs, o.Inputs, func(v, w *onnx.Value) bool { return s.origin(v) == s.origin(w) }) &&
		slices.EqualFunc(n.Outputs, o.Outputs, func(v, w *onnx.Value) bool { return v == nil || w != nil })
}

// origin is what ran first of a value, or itself.
func (s *assignment) origin(v *onnx.Value) *onnx.Value {
	if first := s.first[v]; first != nil {
		return first
	}
	return v
}

// runsAgain reports a node that makes again what is known to have been made.
func (s *assignment) runsAgain(n *onnx.Node) bool {
	return slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool { return s.first[v] != nil })
}

// readIn is what a group reads in place of a value: what ran first, unless it runs again in that stage.
func (s *assignment) readIn(group int, v *onnx.Value) *onnx.Value {
	first := s.first[v]
	if first == nil || s.stageOf(first.Producer) == ranks.StageOf(group, s.o.Stages) {
		return v
	}
	return first
}

// stageOf is the stage of a node, replicated where every group has it.
func (s *assignment) stageOf(n *onnx.Node) int {
	if s.group[n] == replicated {
		return replicated
	}
	return ranks.StageOf(s.group[n], s.o.Stages)
}

// assignAgain places what runs again: where it ran first, or in no group, if nothing reads it there.
func (s *assignment) assignAgain() {
	for _, n := range slices.Backward(s.Nodes) {
		if !s.runsAgain(n) || s.group[n] == replicated {
			continue
		}
		group, read := 0, false
		for _, v := range n.Returns() {
			if first := s.first[v]; first != nil {
				group = 2*s.o.Stages - 1 - s.stageOf(first.Producer)
			}
			read = read || v.IsOutput() || slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return s.group[u.Node] == group })
		}
		s.group[n] = group
		if !read {
			s.group[n] = replicated
		}
	}
}
