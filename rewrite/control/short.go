package control

// A short form of edges: a session holds some 3 kB a node, and takes time to be made. Where ONNX
// Runtime knows no extents of the trigger, as where shapes are erased, an edge is
//
//	trigger ─▶ Shape [0:0] ─▶ axes of y
//
// in place of Size, Unsqueeze and Slice, and of six nodes for a half type. All that is known about
// ONNX Runtime in it:
//
//   - A Shape is folded where all extents are known. Those of two values are merged where each
//     extent is known, or has a name, and they are equal.
//   - The Shape of what a Transpose makes becomes one of what it reads, at every level but 0,
//     and past nodes that read one value, and joins, the Transpose moves on to it. So
//     what comes from one that way keeps its Size.
//   - A Cast that only Shapes read is removed, and keeps its Size.
//   - CUDA and WebGPU return a Shape on the host without the host waiting (stream.go). An integer
//     may be on the host itself, and keeps its Size.
//
// Planning knows edges by their Size: a graph takes this form when its order stands, and loses
// it with its edges (Lift).

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// Shorten brings edges of a model into that form, one for all edges of a trigger. It returns an
// order of its nodes with what stands in their place, and before which node those would run that are gone.
func Shorten(m *onnx.Model, order []*onnx.Node) ([]*onnx.Node, map[*onnx.Node][]*onnx.Node) {
	if m.Opset("") < streamOpset {
		return order, nil
	}
	b := build.New(m.Graph, nil, Pass)
	instead := map[*onnx.Node]*onnx.Node{} // of those that are gone, nil for nothing
	before := map[*onnx.Node][]*onnx.Node{}
	of := map[*onnx.Value]*onnx.Value{} // by the trigger
	var gone []*onnx.Node
	for _, n := range m.Graph.Nodes {
		if noExtents(n) && n.In(0) != nil && n.Out(0) != nil {
			of[n.Inputs[0]] = n.Outputs[0]
			instead[n] = n // a new edge may come before
			continue
		}
		t := sized(n)
		if t == nil || t.Producer == nil || t.Type.Ranked || t.Type.DType.IsInt() || turned(t.Producer, 0) || onlyWaitedFor(t) {
			continue
		}
		chain := []*onnx.Node{n}
		alone := true // no other edge waits for a part of it
		for c := n.Inputs[0].Producer; c != t.Producer; c = c.Inputs[0].Producer {
			chain = append(chain, c)
			alone = alone && len(c.Outputs[0].Uses()) == 1
		}
		if !alone {
			continue
		}
		if of[t] == nil {
			b.Scope = t.Name
			of[t] = made(b, stepNone, "Shape", empty, t)
		}
		for _, c := range chain {
			instead[c] = nil
		}
		shape := of[t].Producer
		instead[n] = shape
		gone = append(gone, chain...)
		slices.Reverse(chain)
		before[shape] = append(before[shape], chain...)
		m.Graph.ReplaceUses(n.Outputs[0], of[t])
	}
	if gone == nil {
		return order, nil
	}
	m.Graph.Nodes = replaced(m.Graph.Nodes, instead)
	m.Graph.Remove(gone...)
	return replaced(order, instead), before
}

// replaced is a list of nodes with others in the place of those that are gone. Which of several
// comes first is another one in the file than in the order that runs.
func replaced(nodes []*onnx.Node, instead map[*onnx.Node]*onnx.Node) []*onnx.Node {
	out := make([]*onnx.Node, 0, len(nodes))
	placed := map[*onnx.Node]bool{}
	for _, n := range nodes {
		if w, gone := instead[n]; !gone {
			out = append(out, n)
		} else if w != nil && !placed[w] {
			placed[w] = true
			out = append(out, w)
		}
	}
	return out
}

// onlyWaitedFor reports what a Cast makes, and none but edges read.
func onlyWaitedFor(v *onnx.Value) bool {
	return v.Producer.Is("Cast") && !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !Is(u.Node) })
}

// farTurn is how many nodes a Transpose is taken to move on past.
const farTurn = 8

// turned reports a node that a Transpose may be moved on past, or is.
func turned(n *onnx.Node, far int) bool {
	if n.Is("Transpose") || far == farTurn {
		return true
	}
	if Is(n) || n.Is("MatMul", "Gemm", "Reshape", "Expand", "ConstantOfShape") {
		return false
	}
	reads := 0
	for _, v := range n.Reads() {
		if !v.IsConstant() {
			reads++
		}
	}
	if reads > 1 && !n.Is("Concat") {
		return false
	}
	return slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool {
		return v != nil && v.Producer != nil && turned(v.Producer, far+1)
	})
}
