package control

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// Lift takes lowered edges out of a graph, and what erases shapes, so that the graph
// can be planned anew: what read past an edge reads the value itself. What only the
// edges kept apart, as clones from their originals, is equal then, and a pass that
// merges equal nodes leaves the graph as it was before it was rewritten. It returns
// the number of views that were taken out, one or two an edge. Edges that the passes
// of keep asked for stay, and then also those that run again, which say no more who asked.
//
// A node's origin is text from a file, so what it says is believed only of the
// operators that Lower and Erase make.
func Lift(g *onnx.Graph, keep ...string) int {
	leaveAxes(g)
	leaveShapes(g)
	count := 0
	for _, n := range g.Nodes {
		if !lowered(n) || n.Outputs[0].IsOutput() || slices.Contains(keep, n.Origin().Step) || len(keep) > 0 && !Is(n) {
			continue
		}
		g.ReplaceUses(n.Outputs[0], n.Inputs[0])
		count++
	}
	g.RemoveDead()
	return count
}

// Past is the value that an edge, or several in a row, leads on, WaitHidden's too; v
// itself where it is led by none.
func Past(v *onnx.Value) *onnx.Value {
	for v != nil && v.Producer != nil && returnsFirst(v.Producer) {
		v = v.Producer.Inputs[0]
	}
	return v
}

// lowered reports a node that Lift takes out.
func lowered(n *onnx.Node) bool { return returnsFirst(n) && n.Origin().Step != onnx.HiddenStep }

// returnsFirst reports a node that returns its first input: x, or known extents.
func returnsFirst(n *onnx.Node) bool {
	if n.In(0) == nil || n.In(1) == nil || n.Out(0) == nil || !nothing(n.Inputs[1]) {
		return false
	}
	if !Is(n) && !(n.MadeBy(onnx.RecomputePass) && isNone(n.Inputs[1].Producer)) { // or that runs again
		return false
	}
	return n.Is("Unsqueeze", "Reshape") || n.Is("Concat") && len(n.Inputs) == 2 && n.Inputs[0].IsConstant()
}

// nothing reports a value of no elements that edges made, or that another tool computed ahead of such.
func nothing(v *onnx.Value) bool {
	if v == nil {
		return false
	}
	if t := v.Constant(); t != nil {
		count, err := t.Elements()
		return err == nil && count == 0
	}
	return isNone(v.Producer)
}

// isNone reports a node that makes a tensor of no elements: it slices [0:0] what
// edges made, takes no extents, joins such, or lists what in one is not zero.
func isNone(n *onnx.Node) bool {
	switch {
	case !Is(n):
		return false
	case noExtents(n):
		return true
	case n.Is("Concat"):
		return !slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return !nothing(v) })
	}
	if n.Is("Squeeze", "NonZero") && n.In(0) != nil {
		return nothing(n.Inputs[0])
	}
	return n.Is("Slice") && n.In(0) != nil && Is(n.Inputs[0].Producer)
}
