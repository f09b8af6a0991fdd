package quantize

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

// wides counts the nodes that widen codes.
func wides(m *onnx.Model) (count int) {
	for _, n := range m.Graph.Nodes {
		if n.Is("DequantizeLinear") {
			count++
		}
	}
	return count
}

// TestTogether: copies become one for each weight and, apart again, one for each
// product, and the results keep their bits. A graph that has them apart stays.
func TestTogether(t *testing.T) {
	inputs := map[string]*onnx.Tensor{"i": onnx.Int64Tensor([]int64{3, 39, 0, 3, 7, -1}, 2, 3), "p": wave(40)}
	for _, kind := range []Kind{Int8, Int4} {
		m := model(t, None)
		derived(t, m, kind)
		want := ortest.Run(t, m, 1, inputs)
		for range 2 {
			if err := Apart(m.Graph); err != nil || wides(m) != 6 { // with that of the rows looked up
				t.Fatalf("%s: %d copies, %v", kind, wides(m), err)
			}
			if !Together(m.Graph) || normalize.MergeEqual(m.Graph) != 1 || wides(m) != 5 || Together(m.Graph) {
				t.Fatalf("%s: %d copies together", kind, wides(m))
			}
			if err := Apart(m.Graph); err != nil {
				t.Fatal(err)
			}
		}
		m.Graph.NameNodes()
		m.Graph.AnnotateTypes()
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		for name, values := range ortest.Run(t, m, 1, inputs) {
			if !slices.Equal(values, want[name]) {
				t.Errorf("%s: %s is %v, was %v", kind, name, values, want[name])
			}
		}
	}
}

// TestGivenCodes: weights that a model brings in codes are widened for each product,
// too, but not where the other operand is a constant.
func TestGivenCodes(t *testing.T) {
	m, _ := ortest.Parse(t, `model ir=10 opset=21
graph g {
  in x float32[2,4]
  init q int4[4,4] = bytes(IUNlh6nL7Q8)
  init s float32[4] = [1, 2, 3, 4]
  init c float32[1,4] = [1, 2, 3, 4]
  w = DequantizeLinear(q, s) {axis=0}
  y = MatMul(x, w)
  z = Gemm(y, w) {transB=1}
  k = MatMul(c, w)
  r = Add(z, k)
  out r float32[2,4]
}
`)
	inputs := map[string]*onnx.Tensor{"x": onnx.Float32Tensor([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)}
	want := ortest.Run(t, m, 1, inputs)["r"]
	if err := Apart(m.Graph); err != nil || wides(m) != 3 {
		t.Fatalf("%d copies, %v", wides(m), err)
	}
	m.Graph.NameNodes()
	for _, level := range []int{0, 1, 99} {
		if got := ortest.Run(t, m, level, inputs)["r"]; !slices.Equal(got, want) {
			t.Errorf("level %d: %v, want %v", level, got, want)
		}
	}
}
