package stage

import (
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner/analysis"
)

// TestShared: a parameter goes to every stage that reads it and does not update it, also
// where that is its only reader.
func TestShared(t *testing.T) {
	s := &Split{
		Owner:   map[string]int{"both": 0, "elsewhere": 0, "own": 1},
		Readers: map[string][]int{"both": {0, 1}, "elsewhere": {1}, "own": {1}, "fed": {0, 1}},
	}
	for name, want := range map[string]bool{"both": true, "elsewhere": true, "own": false, "fed": false} {
		if got := s.Shared(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestConstantOfTwoStages: a constant of a few bytes that the first stage reads, as the extents of a
// Reshape, draws no backward node out of the last one.
func TestConstantOfTwoStages(t *testing.T) {
	m, err := onnx.Parse(`model ir=9 opset=20
graph g {
  in x float32[4,8]
  in A float32[8,8]
  in B float32[8,8]
  in C float32[8,8]
  init to int64[2] = [8, 4]
  init back int64[2] = [4, 8]
  a = MatMul(x, A)
  r = Reshape(a, to)
  p = Tanh(r)
  q = Reshape(p, back)
  b = MatMul(q, B)
  c = MatMul(b, C)
  loss = ReduceSumSquare(c) {keepdims=0}
  dc = Add(c, c)
  dct = Reshape(dc, to)
  dcb = Neg(dct)
  dcc = Reshape(dcb, back)
  dC = Gemm(b, dcc) {transA=1}
  db = Gemm(dcc, C) {transB=1}
  dB = Gemm(q, db) {transA=1}
  dq = Gemm(db, B) {transB=1}
  dA = Gemm(x, dq) {transA=1}
  out loss float32[]
  out dA float32[8,8]
  out dB float32[8,8]
  out dC float32[8,8]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	roles := step.Roles{Loss: "loss", Grad: map[string]string{"A": "dA", "B": "dB", "C": "dC"}}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	a, err := analysis.Analyze(m, analysis.Options{Roles: &roles})
	if err != nil {
		t.Fatal(err)
	}
	s, err := assign(a, Options{Stages: 2, Balance: Memory})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"r": 0, "c": 1, "dct": 2, "dC": 2, "dA": 3} {
		if got := s.group[m.Graph.Value(name).Producer]; got != want {
			t.Errorf("%s is made in group %d, want %d", name, got, want)
		}
	}
}
