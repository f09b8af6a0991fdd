package onnx

import (
	"testing"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// TestOrigin: where a node comes from is saved with the file and read back, a second
// note takes the place of the first, and a node of the given file has none.
func TestOrigin(t *testing.T) {
	m, err := Parse(`model ir=10 opset=17
graph g {
  in    x float32[2]
  y = Exp(x)
  z = Neg(y)
  out   z float32[2]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := Origin{Pass: "recompute", Of: "/h.0/Exp"}
	n := m.Graph.Nodes[0]
	n.SetOrigin(Origin{Pass: "optim", Of: "w", Step: "m"})
	n.SetOrigin(want)
	again := saved(t, m)
	if got := again.Graph.Nodes[0].Origin(); got != want {
		t.Errorf("read back %+v, want %+v", got, want)
	}
	if got := again.Graph.Nodes[1].Origin(); got != (Origin{}) {
		t.Errorf("a node of the given file comes from %+v", got)
	}
}

// TestHiddenStaysUndeclared: what a node hides is not declared, though its name was that of a
// removed node's output that was.
func TestHiddenStaysUndeclared(t *testing.T) {
	m, err := Parse(`model ir=10 opset=17
graph g {
  in    x float32[2]
  y = Exp(x)
  z = Neg(x)
  out   z float32[2]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	g, typ := m.Graph, TensorOf(Float32, StaticShape(2))
	g.Value("y").Type = typ
	g.AnnotateTypes()
	g.RemoveDead()
	n := g.NewNode("", "Abs", "y", []*Value{g.Value("x")}, []string{"y"})
	n.Outputs[0].Type = typ
	n.SetOrigin(Origin{Pass: ControlPass, Step: HiddenStep})
	g.Nodes = append([]*Node{n}, g.Nodes...)
	g.Value("z").Producer.SetInput(0, n.Outputs[0])
	g.AnnotateTypes()
	for _, v := range m.ToProto().Graph.ValueInfo {
		t.Errorf("%s is declared", v.GetName())
	}
}

// TestOneSpelling: extents are declared in the text of their Dim, however the file had them:
// ONNX Runtime compares texts.
func TestOneSpelling(t *testing.T) {
	m, err := Parse(`model ir=10 opset=17
graph g {
  in    x float32[n]
  in    p float32["m + 1"]
  value y float32["n + m"]
  y = Concat(p, x) {axis=0}
  z = Neg(y)
  s = Abs(z)
  out   s float32["n + m"]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.Value("z").Type = m.Graph.Value("y").Type
	m.Graph.AnnotateTypes()
	p := m.ToProto().Graph
	for _, c := range []struct {
		list *pb.ValueInfoProto
		want string
	}{{p.ValueInfo[0], "m+n"}, {p.ValueInfo[1], "m+n"}, {p.Input[1], "m+1"}, {p.Output[0], "m+n"}} {
		if got := c.list.Type.GetTensorType().Shape.Dim[0].GetDimParam(); got != c.want {
			t.Errorf("%s is declared with %q, want %q", c.list.GetName(), got, c.want)
		}
	}
}

// TestStaleInfo: what is stored says itself what it is; a tool that turned a weight leaves another
// entry of value_info behind.
func TestStaleInfo(t *testing.T) {
	m, err := Parse(`model ir=10 opset=20
graph g {
  in    x float32[4,3]
  init  w float32[3,2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
  y = MatMul(x, w)
  out   y float32[4,2]
  value w float32[2,3]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	if got := saved(t, m).Graph.Value("w").Type.String(); got != "float32[3,2]" {
		t.Errorf("w is %s", got)
	}
}
