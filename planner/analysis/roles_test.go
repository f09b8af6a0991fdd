package analysis

import (
	"maps"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

// TestRolesOfInitializers: steps whose parameters are initializers. The update
// of one is found where forward reads only its transposed copy, which an
// exporter made; momentum is an input, and its next value is the one on whose
// way no parameter lies, whatever the names end in. The two products are two
// layers, though no role names what they read.
func TestRolesOfInitializers(t *testing.T) {
	m, a := analyzeText(t, `model ir=10 opset=20
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

// TestFreeOutputsAreNoLoss: an output whose extents have no numbers yet counts as one element,
// and is no scalar.
func TestFreeOutputsAreNoLoss(t *testing.T) {
	_, a := analyzeText(t, "model ir=10 opset=20\ngraph g {\nin x float32[b,4]\ninit w float32[4,4] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]\n"+
		"y = MatMul(x, w)\ns = ReduceSum(y, k) {keepdims=0}\ninit k int64[1] = [1]\nout s float32[b]\n}\n")
	if a.Roles.Loss != "" {
		t.Errorf("loss %q", a.Roles.Loss)
	}
}

// TestRolesOfElementwiseGradients: gradients of weights that only elementwise
// operators lie between, a gate's, a normalized weight's, and one with a penalty
// in the loss, are no next values; an update under a mask is one, and so is a
// weight that is handed on while gradients are added up.
func TestRolesOfElementwiseGradients(t *testing.T) {
	_, a := analyzeText(t, `model ir=10 opset=20
graph step {
  in  x float32[8,4]
  in  gate float32[4]
  in  row float32[4]
  in  bias float32[4]
  in  moved float32[4]
  in  mask float32[4]
  in  kept float32[4]
  in  sum_kept float32[4]
  init one float32[] = [1]
  init decay float32[] = [0.01]
  init lr float32[] = [0.1]
  init axes int64[1] = [0]
  s = Sigmoid(gate)
  r = ReduceL2(row)
  n = Div(row, r)
  w = Mul(s, n)
  y = Mul(x, w)
  y2 = Add(y, bias)
  y3 = Add(y2, moved)
  y4 = Add(y3, kept)
  h = Tanh(y4)
  loss = ReduceMean(h) {keepdims=0}
  d = Mul(h, y)
  g = ReduceSum(d, axes) {keepdims=0}
  rest = Sub(one, s)
  slope = Mul(s, rest)
  gn = Mul(g, n)
  grad_gate = Mul(gn, slope)
  gs = Mul(g, s)
  part = Div(gs, r)
  dot = Mul(gs, row)
  pulled = Mul(row, dot)
  grad_row = Sub(part, pulled)
  penalty = Mul(bias, decay)
  grad_bias = Add(g, penalty)
  step = Mul(g, lr)
  free = Sub(moved, step)
  new_moved = Mul(free, mask)
  new_kept = Identity(kept)
  new_sum_kept = Add(sum_kept, g)
  out loss float32[]
  out grad_gate float32[4]
  out grad_row float32[4]
  out grad_bias float32[4]
  out new_moved float32[4]
  out new_kept float32[4]
  out new_sum_kept float32[4]
}
`)
	grad := map[string]string{"gate": "grad_gate", "row": "grad_row", "bias": "grad_bias"}
	next := map[string]string{"moved": "new_moved", "kept": "new_kept", "sum_kept": "new_sum_kept"}
	if a.Roles.Loss != "loss" || !maps.Equal(a.Roles.Grad, grad) || !maps.Equal(a.Roles.New, next) {
		t.Errorf("roles %+v, want grad %v and new %v", a.Roles, grad, next)
	}
}
