package control_test

import (
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

// TestEdgesDoNotReveal: no file declares the type of a hidden value where further edges
// lead it on, so what is made of it is hidden too; of what waits for it, types are known.
func TestEdgesDoNotReveal(t *testing.T) {
	m, _ := ortest.Parse(t, "model ir=10 opset=17\ngraph g {\nin x float32[2,3]\nin t float32[4]\nu = Exp(t)\nr = Neg(x)\ns = Abs(t)\nout u float32[4]\nout r float32[2,3]\nout s float32[4]\n}\n")
	b := build.New(m.Graph, nil, "test")
	r, s, u := m.Graph.Value("r").Producer, m.Graph.Value("s").Producer, m.Graph.Value("u")
	hidden := control.WaitHidden(b, r.Inputs[0], u)
	led := control.Wait(b, control.Wait(b, hidden, u, hidden), u)
	r.SetInput(0, led)
	s.SetInput(0, control.Wait(b, s.Inputs[0], hidden))
	nodes, err := control.Lower(m.Graph, append(append(m.Graph.Nodes[:1:1], b.Take()...), r, s))
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.Nodes = nodes
	m.Graph.NameNodes()
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, v := range m.Graph.Proto.ValueInfo {
		declared[v.GetName()] = true
	}
	hides := 0
	for _, n := range m.Graph.Nodes {
		if n.Outputs[0].IsOutput() {
			continue
		}
		if declared[n.Outputs[0].Name] == n.Hides() {
			t.Errorf("%s: hides %t, declared %t", n.Label(), n.Hides(), declared[n.Outputs[0].Name])
		}
		if n.Hides() {
			hides++
		}
	}
	if v := r.Inputs[0]; !v.Producer.Hides() || hides != 3 || s.Inputs[0].Producer.Hides() {
		t.Errorf("%d views are hidden in\n%s", hides, m.Text())
	}
}
