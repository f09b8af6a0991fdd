package pipeline

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestForwardDropsNothing: Dropout is off also where its mask multiplies the input apart, as
// behind frozen weights, whose gradient would read the mask, and in a branch.
func TestForwardDropsNothing(t *testing.T) {
	const text = `model ir=10 opset=20
graph g {
  in  x float32[4,3]
  init w float32[3,3] = [1, 2, 3, 4, 5, 6, 7, 8, 10]
  init u float32[3,2] = [1, -2, 3, -4, 5, -6]
  init half float32[] = [0.5]
  init rate float32[] = [0.25]
  init on bool[] = [true]
  h = MatMul(x, w)
  d = Dropout(h, half, on)
  e = If(on) {then_branch=graph a {
    r = Dropout(d, rate, on)
    out r float32[4,3]
  }, else_branch=graph b {
    r = Neg(d)
    out r float32[4,3]
  }}
  y = MatMul(e, u)
  loss = ReduceMean(y) {keepdims=0}
  out loss float32[]
}
`
	e := engine(t)
	parse := func() *onnx.Model {
		m, err := onnx.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		m.Graph.NameNodes()
		return m
	}
	loss := func(m *onnx.Model, feeds map[string]runtime.Tensor) float64 {
		t.Helper()
		for _, n := range traits.Drawing(m.Graph) {
			t.Errorf("%s (%s) draws", n.Label(), n.OpType())
		}
		s, err := e.Open(m, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Feed: feeds, Roles: &runtime.Roles{Loss: "loss"}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		out, err := s.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v, _ := out.Output("loss")
		number, ok := v.Scalar()
		if !ok {
			t.Fatal("no loss")
		}
		return number
	}
	x := make([]float32, 12)
	for i := range x {
		x[i] = float32(i % 5)
	}
	feeds := map[string]runtime.Tensor{"x": runtime.FromFloat32s(x, 4, 3)}
	forward := func(m *onnx.Model) *onnx.Model {
		t.Helper()
		f, err := (&Source{Path: "m.onnx", Model: m, hash: "test"}).Forward(runtime.Roles{Loss: "loss"})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	want := loss(forward(parse()), feeds)

	m := parse()
	res, err := grad.Differentiate(m, grad.Options{Params: []string{"u"}})
	if err != nil {
		t.Fatal(err)
	}
	feed(t, feeds, res)
	m.SetMetadata(VersionKey, "test")
	if got := loss(forward(m), feeds); got != want {
		t.Errorf("loss %v of the training graph, %v of the forward model", got, want)
	}
	p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Precision: &precision.Options{To: onnx.Float16, Provider: "cpu"}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Plan("none", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := loss(forward(f.Model), feeds); got != want {
		t.Errorf("loss %v in half, %v of the forward model", got, want)
	}
}
