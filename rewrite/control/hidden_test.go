package control_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/runtime/ort"
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

// TestRanksOfManyAreHidden: of a large graph whose shapes are erased ONNX Runtime knows
// the rank of what a Gemm returns, which it cannot but know, and of no other large value; a
// small one gets no view for it. The numbers are the same. (An Identity is there to go: what ONNX
// Runtime leaves as it is it saves without what it inferred.)
func TestRanksOfManyAreHidden(t *testing.T) {
	for layers, hidden := range map[int]bool{3: false, 700: true} {
		text := "model ir=10 opset=17\ngraph g {\nin h0 float32[16,32]\nin w float32[32,32]\nin s float32[16,32]\n" +
			ortest.Layers(layers, "g# = Gemm(h#, w)\nt# = Tanh(g#)\nu# = Mul(t#, g#)\nv# = Gemm(u#, w, s)\nd# = Sub(v#, t#)\nh+ = Tanh(d#)\n") +
			fmt.Sprintf("i = Identity(h%d)\ny = Neg(i)\nout y float32[16,32]\n}\n", layers)
		was, _ := ortest.Parse(t, text)
		m, _ := ortest.Parse(t, text)
		var err error
		if m.Graph.Nodes, err = control.Erase(m.Graph, m.Graph.Nodes, 0); err != nil {
			t.Fatal(err)
		}
		m.Graph.NameNodes()
		m.Graph.AnnotateTypes()
		d, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		ranked := map[string]int{}
		for _, n := range d.Graph.Nodes {
			if v := n.Outputs[0]; v.Type.DType == onnx.Float32 && v.Type.Shape != nil && !v.IsOutput() {
				ranked[n.OpType()]++
			}
		}
		if want := map[string]int{"Gemm": 2 * layers}; hidden && !reflect.DeepEqual(ranked, want) || !hidden && len(ranked) < 2 {
			t.Errorf("%d layers: the ranks are known of %v", layers, ranked)
		}
		in := ortest.RandomInputs(was)
		if want, got := ortest.Run(t, was, 0, in), ortest.Run(t, m, 0, in); !reflect.DeepEqual(want, got) {
			t.Errorf("%d layers: other numbers", layers)
		}
	}
}

// TestSmallOperandsTellNothing: where shapes are erased, an operand that is too small for it does not
// tell ONNX Runtime the first extent of a product with what a Gemm returns, which tells the
// last one itself; a vector, which tells the last one alone, costs no view.
func TestSmallOperandsTellNothing(t *testing.T) {
	for small, views := range map[string]int{"64,1": 1, "32": 0} {
		text := "model ir=10 opset=17\ngraph g {\nin x float32[64,32]\nin w float32[32,32]\nin s float32[" + small + "]\n" +
			"h = Tanh(x)\ng = Gemm(h, w)\nm = Mul(s, g)\nr = Tanh(m)\ni = Identity(r)\ny = Neg(i)\nout y float32[64,32]\n}\n"
		was, _ := ortest.Parse(t, text)
		m, _ := ortest.Parse(t, text)
		was.Graph.NameNodes()
		var err error
		if m.Graph.Nodes, err = control.Erase(m.Graph, m.Graph.Nodes, 0); err != nil {
			t.Fatal(err)
		}
		m.Graph.NameNodes()
		m.Graph.AnnotateTypes()
		led := 0
		for _, n := range m.Graph.Nodes {
			if n.Is("Unsqueeze") && n.Inputs[0].Name == "g" {
				led++
			}
		}
		if led != views {
			t.Errorf("beside %s the Gemm is read through %d views, want %d", small, led, views)
		}
		d, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"h", "m", "r"} {
			if v := d.Graph.Value(name); v == nil || v.Type.IsStatic() {
				t.Errorf("beside %s ONNX Runtime knows the shape of %s: %v", small, name, v)
			}
		}
		in := ortest.RandomInputs(was)
		if want, got := ortest.Run(t, was, 0, in), ortest.Run(t, m, 0, in); !reflect.DeepEqual(want, got) {
			t.Errorf("beside %s: other numbers", small)
		}
	}
}
