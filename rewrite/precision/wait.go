package precision

// A cast whose only readers are in backward would run in backward, and the
// float32 value would wait for it: ONNX Runtime runs a node when a reader wants
// it. So the last reader of the float32 value in forward is made to wait for
// the cast:
//
//	v ─▶ Cast ─▶ h ─▶ backward
//	             └──┐
//	v ────────────▶ Wait ─▶ last reader of v
//
// After that reader v is dead, and h waits alone.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
)

// waitFor makes the last forward reader of v, by the file, wait for h.
func (p *pass) waitFor(v, h *onnx.Value, place map[*onnx.Node]int) {
	var last *onnx.Use
	for _, u := range v.Uses() {
		if u.Node == h.Producer || !p.forward.Has(u.Node) || u.Index < 0 {
			continue
		}
		if last == nil || place[u.Node] > place[last.Node] {
			last = &onnx.Use{Node: u.Node, Index: u.Index}
		}
	}
	if last != nil {
		last.Node.SetInput(last.Index, control.Wait(p.b, v, h))
	}
}

// addWaits goes over what waits in half and is read by backward alone.
func (p *pass) addWaits(nodes []*onnx.Node) {
	place := onnx.Places(nodes)
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
				p.waitFor(v, h, place)
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
