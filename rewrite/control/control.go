// Package control carries control dependencies: what must exist before a node runs
// although the node does not read it. Passes only add an edge,
//
//	y = Wait(x, trigger…)            x, once the triggers are there
//
// and let a node read y instead of x; XLA calls it an optimization barrier. Lower
// then turns every edge into operators that stock ONNX Runtime runs (lower.go), and
// Lift takes them out of a written file again. An edge moves no byte and computes
// nothing, and it reads no element of a trigger, so a NaN or an infinity there does
// no harm.
//
// An edge does two things. It orders: the reader of y cannot run before the
// triggers, in any runtime. And it hides: y is not x for an optimizer, so a
// recomputed node is no common subexpression of its original, and a pattern that
// would take in x does not match. Wait(x, x) only hides.
package control

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// Pass is what every node of an edge notes as its origin (onnx.Origin).
const Pass = onnx.ControlPass

// MinOpset is the first opset whose Unsqueeze takes its axes as an input, as lowered
// edges need it.
const MinOpset = 13

// The operator that an edge is before it is lowered. It is in no file.
const (
	domain = "remat"
	wait   = "Wait"
)

// Steps of the lowered nodes, as their origins name them; the view that an edge
// leaves, y, names the pass that asked for it instead.
const (
	stepSize  = "size"  // of the trigger
	stepNone  = "none"  // a tensor of no elements that waits for a trigger
	stepAll   = "all"   // one that waits for several
	stepErase = "erase" // a view, or extents, of no known shape
)

// Wait makes the edge that leads x past the triggers and returns y, of x's type. It
// notes the builder's pass as the one that asked for it. The node is the builder's
// last one; whoever places it puts it before y's readers and after x and the
// triggers, and calls Lower in the end.
func Wait(b *build.Builder, x *onnx.Value, triggers ...*onnx.Value) *onnx.Value {
	if b.Err() != nil || x == nil {
		return nil
	}
	name := "remat/control/" + x.Name
	n := b.Graph.NewNode(domain, wait, name, append(build.In(x), triggers...), []string{name})
	b.Nodes = append(b.Nodes, n)
	y := n.Outputs[0]
	y.Type = x.Type
	n.SetOrigin(onnx.Origin{Pass: Pass, Of: x.Name, Step: b.Pass})
	return y
}

// WaitHidden is Wait, and no file declares y's type: ONNX Runtime plans no reuse for y,
// nor for what only y tells the shape of. Lift leaves the edge.
func WaitHidden(b *build.Builder, x *onnx.Value, triggers ...*onnx.Value) *onnx.Value {
	y := Wait(b, x, triggers...)
	if y != nil {
		y.Producer.SetOrigin(onnx.Origin{Pass: Pass, Of: x.Name, Step: onnx.HiddenStep})
	}
	return y
}

// Check returns an error where a model's opset has no operators to lower edges to.
func Check(m *onnx.Model) error {
	if have := m.Opset(""); have < MinOpset {
		return fmt.Errorf("opset %d: control dependencies need opset %d or later: export the model again", have, MinOpset)
	}
	return nil
}

// Is reports a node of an edge, lowered or not.
func Is(n *onnx.Node) bool { return n != nil && n.MadeBy(Pass) }

// Tokens reports a node that makes a token: a value of no elements, for a node that waits for what
// it waits for.
func Tokens(n *onnx.Node) bool {
	return Is(n) && (n.Origin().Step == stepNone && n.Is("Slice", "Shape") || n.Origin().Step == stepAll)
}

// Joined reports a node that makes one token of several.
func Joined(n *onnx.Node) bool { return Is(n) && n.Origin().Step == stepAll }
