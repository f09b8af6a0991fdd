package analysis

import (
	"maps"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/ortmodel"
)

// TestRolesOfInitializers: steps whose parameters are initializers. The update
// of one is found where forward reads only its transposed copy, which an
// exporter made; momentum is an input, and its next value is the one on whose
// way no parameter lies, whatever the names end in. The two products are two
// layers, though no role names what they read.
func TestRolesOfInitializers(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph step {
  in  x float32[8,2]
  in  m_w1 float32[2,2]
  init param_w1 float32[2,2] = [1, 2, 3, 4]
  init param_w2 float32[2,2] = [5, 6, 7, 8]
  init w1t float32[2,2] = [1, 3, 2, 4]
  init w2t float32[2,2] = [5, 7, 6, 8]
  init lr float32[] = [0.1]
  a1 = MatMul(x, w1t)
  h1 = Tanh(a1)
  a2 = MatMul(h1, w2t)
  h2 = Tanh(a2)
  loss = ReduceMean(h2) {keepdims=0}
  d2 = Mul(h2, a2)
  h1t = Transpose(h1) {perm=[1, 0]}
  g2 = MatMul(h1t, d2)
  d1 = MatMul(d2, param_w2)
  xt = Transpose(x) {perm=[1, 0]}
  g1 = MatMul(xt, d1)
  moved = Mul(m_w1, lr)
  new_m_w1 = Add(moved, g1)
  s1 = Mul(new_m_w1, lr)
  new_param_w1 = Sub(param_w1, s1)
  s2 = Mul(g2, lr)
  new_param_w2 = Sub(param_w2, s2)
  out loss float32[]
  out new_param_w1 float32[2,2]
  out new_param_w2 float32[2,2]
  out new_m_w1 float32[2,2]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	a, err := Analyze(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"m_w1": "new_m_w1", "param_w1": "new_param_w1", "param_w2": "new_param_w2"}
	if a.Roles.Loss != "loss" || !maps.Equal(a.Roles.New, want) || len(a.Roles.Grad) > 0 {
		t.Errorf("roles %+v, want new %v", a.Roles, want)
	}
	if n := a.Problem.LayerCount(); n != 2 {
		t.Errorf("%d layers, want 2", n)
	}
	for name, bound := range map[string]bool{"new_m_w1": true, "new_param_w1": false} {
		if got := a.Problem.Graph.Values[a.Index[m.Graph.Value(name)]].Kind == ortmodel.Bound; got != bound {
			t.Errorf("%s is bound onto what it updates: %v", name, got)
		}
	}
}
