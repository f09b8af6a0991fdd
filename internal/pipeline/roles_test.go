package pipeline

import (
	"maps"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestRolesBeforeNormalization: ONNX Runtime makes a Gemm of the product and
// the sum that is m's next value; what m.new is for is known from before. An
// output that was dropped has no role.
func TestRolesBeforeNormalization(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph step {
  in  x float32[8,4]
  in  W float32[4,4]
  in  m float32[4,4]
  init mu float32[] = [0.9]
  init lr float32[] = [0.1]
  y = MatMul(x, W)
  y2 = Mul(y, y)
  loss = ReduceMean(y2) {keepdims=0}
  xt = Transpose(x) {perm=[1, 0]}
  dw = MatMul(xt, y)
  kept = Mul(m, mu)
  moved = Add(kept, dw)
  change = Mul(moved, lr)
  next = Sub(W, change)
  out loss float32[]
  out next float32[4,4]
  out moved float32[4,4]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	e := engine(t)
	for _, c := range []struct {
		drop []string
		want map[string]string
	}{
		{nil, map[string]string{"W": "next", "m": "moved"}},
		{[]string{"moved"}, map[string]string{"W": "next"}},
	} {
		p, err := Prepare(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, DropOutputs: c.drop})
		if err != nil {
			t.Fatal(err)
		}
		if r := p.Analysis.Roles; r.Loss != "loss" || !maps.Equal(r.New, c.want) {
			t.Errorf("without %v: loss %q, new %v, want %v", c.drop, r.Loss, r.New, c.want)
		}
	}
}
