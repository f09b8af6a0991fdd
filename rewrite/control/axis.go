package control

// Edges that WebGPU runs. Its kernel of Unsqueeze refuses to add no axes. So in a file that
// may run there each view gains an axis and loses it again:
//
//	none ─▶ Concat [0, none] ─┬───────────┐ (an axis, once for all views that wait for none)
//	x ──────────────────────▶ Unsqueeze ─▶ Squeeze ─▶ y
//
// All that is known about ONNX Runtime in it:
//
//   - Both return what they read, without a copy, on the CPU and on WebGPU, which take
//     their axes on the host, where Shape leaves its list.
//   - At no level does Unsqueeze and Squeeze along computed axes cancel, and no fusion starts
//     at either.
//
//   - WebGPU has no kernel of Size either, and copies a trigger to the host for the CPU's. So
//     edges come into the stream first (stream.go), unless that takes memory.
//
// The axis takes eight bytes where no axes took none, and each view is a node more; so only
// files for the web are in this form. A graph takes it last, and loses it first (Lift).

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

const stepAxis = "axis" // the first one, once a trigger is there

// GiveAxes gives the views of a graph an axis on the way, and reports whether there
// were any. Nodes stand in the order of the file.
func GiveAxes(g *onnx.Graph) (bool, error) {
	b := build.New(g, nil, Pass)
	axes := map[*onnx.Value]*onnx.Value{} // by the tensor of no elements that tells none
	var first []*onnx.Node                // what makes them
	after := map[*onnx.Node]*onnx.Node{}
	for _, n := range g.Nodes {
		if none := alongNone(n); none != nil && axes[none] == nil {
			axes[none] = axis(b, none)
			first = b.Take()
			after[none.Producer] = first[0]
		}
	}
	if b.Err() != nil || first == nil {
		return false, b.Err()
	}
	var out []*onnx.Node
	for _, n := range g.Nodes {
		if none := alongNone(n); none != nil {
			detour(b, n, axes[none])
			out = append(out, b.Take()...)
		}
		out = append(out, n)
		if made := after[n]; made != nil {
			out = append(out, made)
		}
	}
	g.Nodes = out
	return true, b.Err()
}

// alongNone returns the axes of a view along none, nil for another node.
func alongNone(n *onnx.Node) *onnx.Value {
	if returnsFirst(n) && n.Is("Unsqueeze") {
		return n.Inputs[1]
	}
	return nil
}

// axis makes the axis 0 that waits for what no elements wait for.
func axis(b *build.Builder, none *onnx.Value) *onnx.Value {
	t := unknownLength
	if none.Type.IsStatic() {
		t = onnx.TensorOf(onnx.Int64, onnx.StaticShape(1))
	}
	b.Scope = none.Name
	return made(b, stepAxis, "Concat", t, b.Ints(0), none)
}

// detour lets a view along no axes lead along an axis and back; one of which only the
// shape is read needs no way back.
func detour(b *build.Builder, n *onnx.Node, axis *onnx.Value) {
	x, y := n.Inputs[0], n.Outputs[0]
	t := y.Type
	if t.Ranked {
		t.Shape = append(onnx.StaticShape(1), t.Shape...)
	}
	if onlyShape(y) {
		y.Type = t
		n.SetInput(1, axis)
		return
	}
	b.Scope = x.Name
	v := made(b, n.Origin().Step, "Unsqueeze", t, x, axis)
	n.SetOpType("Squeeze")
	n.SetInput(0, v)
	n.SetInput(1, axis)
}

// onlyShape reports the view of a trigger in a stream.
func onlyShape(y *onnx.Value) bool {
	return !y.IsOutput() && len(y.Uses()) > 0 && !slices.ContainsFunc(y.Uses(), func(u onnx.Use) bool { return !noExtents(u.Node) })
}

// leaveAxes undoes GiveAxes.
func leaveAxes(g *onnx.Graph) {
	left := false
	for _, n := range g.Nodes {
		none := alongAxis(n)
		if none == nil || n.Is("Unsqueeze") && !onlyShape(n.Outputs[0]) {
			continue
		}
		if n.Is("Unsqueeze") {
			n.Outputs[0].Type = n.Inputs[0].Type
		} else {
			if alongAxis(n.Inputs[0].Producer) != none || !n.Inputs[0].Producer.Is("Unsqueeze") {
				continue
			}
			n.SetOpType("Unsqueeze")
			n.SetInput(0, n.Inputs[0].Producer.Inputs[0])
		}
		n.SetInput(1, none)
		left = true
	}
	if left {
		g.RemoveDead()
	}
}

// alongAxis returns what tells no axes beside the axis of a view, nil for another node.
func alongAxis(n *onnx.Node) *onnx.Value {
	if !Is(n) || !n.Is("Unsqueeze", "Squeeze") || n.In(0) == nil || n.In(1) == nil || n.Out(0) == nil {
		return nil
	}
	c := n.Inputs[1].Producer
	if !Is(c) || !c.Is("Concat") || len(c.Inputs) != 2 || c.In(0) == nil || c.In(1) == nil || !isNone(c.Inputs[1].Producer) {
		return nil
	}
	if t := c.Inputs[0].Constant(); t != nil {
		if first, err := t.Int64s(); err == nil && slices.Equal(first, []int64{0}) {
			return c.Inputs[1]
		}
	}
	return nil
}
