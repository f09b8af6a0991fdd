package precision

// A cast whose only readers are in backward would run in backward, and the
// float32 value would wait for it: ONNX Runtime runs a node when a reader wants
// it. So the last reader of the float32 value in forward is made to wait for
// the cast, by data:
//
//	v ─▶ Cast ─▶ h ─────────────────────────────────▶ backward
//	             └▶ Reshape [-1] ─▶ Slice [0:0] ─▶ Cast int64 ─┐ (no elements)
//	                                            shape of v ────┴▶ Concat
//	v ───────────────────────────────────────▶ Reshape ◀─────────────┘
//	                                              └▶ last reader of v
//
// Both Reshapes are views. After that reader v is dead, and h waits alone.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// anchor makes the last forward reader of v, by the file, wait for h.
func (p *pass) anchor(v, h *onnx.Value, place map[*onnx.Node]int) {
	var last *onnx.Use
	for _, u := range v.Uses() {
		if u.Node == h.Producer || !p.forward.Has(u.Node) || u.Index < 0 {
			continue
		}
		if last == nil || place[u.Node] > place[last.Node] {
			last = &onnx.Use{Node: u.Node, Index: u.Index}
		}
	}
	if last == nil || !v.Type.Ranked {
		return
	}
	rank := int64(len(v.Type.Shape))
	var shape *onnx.Value
	if dims, ok := v.Type.Shape.Ints(); ok {
		shape = p.b.Ints(dims...)
	} else {
		shape = p.wait("shape", onnx.TensorOf(onnx.Int64, onnx.StaticShape(rank)), v, "Shape", build.In(v))
	}
	flat := p.wait("flat", onnx.TensorOf(h.Type.DType, onnx.Shape{h.Type.Shape.Elements()}), v, "Reshape", build.In(h, p.b.Ints(-1)))
	zero := p.b.Ints(0)
	none := p.wait("none", onnx.TensorOf(h.Type.DType, onnx.StaticShape(0)), v, "Slice", build.In(flat, zero, zero, zero))
	none = p.wait("nothing", onnx.TensorOf(onnx.Int64, onnx.StaticShape(0)), v, "Cast", build.In(none), onnx.IntAttr("to", int64(onnx.Int64)))
	shape = p.wait("waiting", onnx.TensorOf(onnx.Int64, onnx.StaticShape(rank)), v, "Concat", build.In(shape, none), onnx.IntAttr("axis", 0))
	if barred := p.wait("value", v.Type, v, "Reshape", build.In(v, shape)); barred != nil {
		last.Node.SetInput(last.Index, barred)
	}
}

// wait makes a node of an anchor of v.
func (p *pass) wait(what string, t onnx.Type, v *onnx.Value, op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	name := "remat/barrier/" + v.Name + "/stash/" + what
	w := p.b.NodeNamed("", op, name, in, []string{name}, attrs...)[0]
	if w != nil {
		w.Producer.SetOrigin(onnx.Origin{Pass: "barrier", Of: v.Name})
		w.Type = t
	}
	return w
}

// anchors goes over what waits in half and is read by backward alone.
func (p *pass) anchors(nodes []*onnx.Node) {
	place := make(map[*onnx.Node]int, len(nodes))
	for i, n := range nodes {
		place[n] = i
	}
	seen := map[*onnx.Value]bool{}
	for _, n := range nodes { // in the file's order
		for _, v := range n.Outputs {
			h := p.halves[v]
			if v == nil || h == nil || seen[v] || !p.waits[v] || h.Producer == nil || h.Producer.In(0) != v {
				continue
			}
			seen[v] = true
			early := false
			for _, u := range h.Uses() {
				early = early || p.forward.Has(u.Node)
			}
			if !early {
				p.anchor(v, h, place)
			}
		}
	}
}

// view is the value that v is only another view of, nil if none.
func view(v *onnx.Value) *onnx.Value {
	n := v.Producer
	if n == nil {
		return nil
	}
	t, _ := traits.Of(n)
	for _, a := range t.Alias {
		if a.Output == v.Index && t.Cost == traits.View {
			return n.In(a.Input)
		}
	}
	return nil
}

// halfView is the same view of a half copy: the two share one copy.
func (p *pass) halfView(v, of *onnx.Value) *onnx.Value {
	inputs := append([]*onnx.Value(nil), v.Producer.Inputs...)
	p.waits[of] = true
	inputs[0] = p.down(of)
	name := "remat/cast/" + v.Name + "/half"
	n := p.g.CloneNode(v.Producer, inputs, func(string) string { return name })
	n.SetOrigin(onnx.Origin{Pass: CastPass, Of: v.Name})
	n.Outputs[v.Index].Type = v.Type
	n.Outputs[v.Index].Type.DType = p.o.To
	p.b.Nodes = append(p.b.Nodes, n)
	return n.Outputs[v.Index]
}
