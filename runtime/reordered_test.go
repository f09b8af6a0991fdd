package runtime

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestFileOutOfOrder: a file whose nodes stand before what they read, which ONNX Runtime
// runs, is loaded in an order that Check takes, and its session runs that order, not the
// file's: its live peak is that of the same file in order.
func TestFileOutOfOrder(t *testing.T) {
	m, err := onnx.Parse(`model ir=9 opset=20
graph g {
in x float32[64,64]
a = Relu(x)
b = Sigmoid(x)
c = MatMul(a, b)
d = Tanh(c)
e = MatMul(d, x)
s = ReduceSum(e) {keepdims=0}
out s float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	save := func(name string) string {
		path := filepath.Join(dir, name)
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sorted := save("sorted.onnx")
	slices.Reverse(m.Graph.Nodes)
	reversed := save("reversed.onnx")

	type result struct {
		sum  float64
		live int64
	}
	run := func(path string) (r result) {
		loaded, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		defer loaded.Close()
		if err := loaded.Check(); err != nil {
			t.Fatal(err)
		}
		if loaded.Amended != (path == reversed) {
			t.Errorf("%s: reordered %v", path, loaded.Amended)
		}
		c, err := loaded.Clone()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Amended != loaded.Amended {
			t.Errorf("%s: a copy is reordered: %v", path, c.Amended)
		}
		s, err := testEngine.OpenLoaded(loaded, Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		step, err := s.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o, _ := step.Output("s")
		if r.sum, _ = o.Scalar(); r.sum == 0 {
			t.Error("the sum is 0")
		}
		r.live = s.Memory().LivePeakBytes
		return r
	}
	if want, got := run(sorted), run(reversed); got != want {
		t.Errorf("reversed: %+v, want %+v", got, want)
	}
}
