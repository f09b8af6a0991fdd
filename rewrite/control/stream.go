package control

// Edges that stop nobody. With CUDA the Size of a trigger is a number on the host, and
// the host's Unsqueeze and Slice that read it stop the host until the device has come
// there, once an edge. In a file for CUDA an edge is
//
//	input ─▶ Size ─▶ Unsqueeze ─▶ Slice [0:0] ─┐ (no axes; once for all edges)
//	trigger ─────────────────────▶ Unsqueeze ◀─┘ ─▶ Shape [0:0] ─▶ axes of y
//
// All that is known about ONNX Runtime in it:
//
//   - Shape takes its input on the device and returns its list on the host, and
//     Unsqueeze takes its axes there. So with CUDA both stand in the device's stream,
//     and the host waits for neither; it waits once, for the Size of the input.
//   - A Shape of known extents is folded. Along axes that are computed, even the rank of
//     the trigger's view is unknown, since no file declares it (onnx.HiddenStep).
//   - An integer may be on the host, and its view would not be. So what waits for one
//     still waits for its Size.
//
// Planning knows edges by their Size alone: a graph takes this form last, and loses it
// first (Lift). The order in which its other nodes run is the same in both.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// streamOpset is the first opset whose Shape returns some of the extents.
const streamOpset = 15

// Stream brings the lowered edges of a graph that is written for CUDA into the device's
// stream, and reports whether there were any. The input is one that no step
// overwrites. Nodes stand in the order of the file.
func Stream(m *onnx.Model, input *onnx.Value) (bool, error) {
	g := m.Graph
	if m.Opset("") < streamOpset {
		return false, nil
	}
	b := build.New(g, nil, Pass)
	var axes *onnx.Value
	var out, first, gone []*onnx.Node // first makes the axes, at place at
	at := 0
	for _, n := range g.Nodes {
		t := sized(n)
		if t == nil || t != input && t.Type.DType.IsInt() {
			out = append(out, n)
			continue
		}
		if axes == nil {
			b.Scope = input.Name
			axes = None(b, input)
			first, at = b.Take(), len(out)
		}
		v := axes
		if t != input {
			b.Scope = t.Name
			v = after(b, t, axes)
			out = append(out, b.Take()...)
		}
		if b.Err() != nil {
			return false, b.Err()
		}
		g.ReplaceUses(n.Outputs[0], v)
		gone = append(gone, n)
	}
	if axes == nil {
		return false, nil
	}
	g.Nodes = slices.Insert(out, at, first...)
	g.Remove(gone...)
	g.RemoveDead()
	return true, nil
}

// after makes a tensor of no elements that waits for v and for the axes, of which
// there are none.
func after(b *build.Builder, v, axes *onnx.Value) *onnx.Value {
	view := made(b, onnx.HiddenStep, "Unsqueeze", v.Type, v, axes)
	return made(b, stepNone, "Shape", empty, view)
}

// leaveShapes undoes Stream, and what Shorten makes of triggers.
func leaveShapes(g *onnx.Graph) {
	b := build.New(g, nil, Pass)
	var out, gone []*onnx.Node
	for _, n := range g.Nodes {
		t := shaped(n)
		if t == nil {
			out = append(out, n)
			continue
		}
		b.Scope = t.Name
		none := None(b, t)
		if b.Err() != nil {
			return
		}
		out = append(out, b.Take()...)
		g.ReplaceUses(n.Outputs[0], none)
		gone = append(gone, n)
	}
	if len(gone) > 0 {
		g.Nodes = out
		g.Remove(gone...)
	}
}

// shaped returns the trigger that an edge's Shape tells, its own or that of a hidden view; nil for
// another node or an output.
func shaped(n *onnx.Node) *onnx.Value {
	if !noExtents(n) || n.In(0) == nil || n.Out(0) == nil || n.Outputs[0].IsOutput() {
		return nil
	}
	view := n.Inputs[0].Producer
	if !Is(view) || !view.Is("Unsqueeze") || view.Origin().Step != onnx.HiddenStep || view.In(0) == nil || view.In(1) == nil || !isNone(view.Inputs[1].Producer) {
		return n.Inputs[0]
	}
	return view.Inputs[0]
}

// noExtents reports the Shape of an edge, which returns none of the extents.
func noExtents(n *onnx.Node) bool {
	return Is(n) && n.Is("Shape") && n.Int("start", -1) == 0 && n.Int("end", -1) == 0
}
