package rewrite

import (
	"fmt"
	"math"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
)

// TestStatistics: a normalization by the batch's statistics returns what BatchNormalization
// does, its running statistics too, for every rank, and leaves none of it.
func TestStatistics(t *testing.T) {
	for _, shape := range [][]int64{{5, 3}, {4, 3, 7}, {2, 3, 4, 5}, {1, 3, 2, 3, 4}} {
		text := fmt.Sprintf(`model ir=10 opset=20
graph norm {
  in x float32%s
  in s float32[3]
  in b float32[3]
  in m float32[3]
  in v float32[3]
  y, rm, rv = BatchNormalization(x, s, b, m, v) {training_mode=1, epsilon=0.01, momentum=0.8}
  z = Exp(y)
  out z float32%s
  out rm float32[3]
  out rv float32[3]
}
`, onnx.StaticShape(shape...), onnx.StaticShape(shape...))
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(math.Sin(float64(7*i))) + 2
		}
		inputs := map[string]*onnx.Tensor{"x": onnx.Float32Tensor(x, shape...)}
		for k, name := range []string{"s", "b", "m", "v"} {
			inputs[name] = onnx.Float32Tensor([]float32{1.5, float32(k) + 0.5, -0.25 * float32(3-k)}, 3)
		}
		want := ortest.Run(t, typedText(t, text), 0, inputs)
		m := typedText(t, text)
		types, err := infer.Model(m, infer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Statistics(m.Graph, types)
		if err != nil || r.Applied != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		for _, node := range m.Graph.Nodes {
			if traits.ComputesStatistics(node) {
				t.Errorf("%s is still there", node.Label())
			}
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		got := ortest.Run(t, m, 0, inputs)
		for name, w := range want {
			for i, v := range got[name] {
				if math.Abs(v-w[i]) > 1e-5*(1+math.Abs(w[i])) {
					t.Fatalf("%v: %s[%d] is %v, want %v", shape, name, i, v, w[i])
				}
			}
		}
	}
}

// TestStatisticsSkipped: without extents there is no count to divide by.
func TestStatisticsSkipped(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph norm {
  in x float32[n,3]
  in s float32[3]
  y, rm, rv = BatchNormalization(x, s, s, s, s) {training_mode=1}
  out y float32[n,3]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Statistics(m.Graph, types); err != nil || r.Requested != 1 || r.Applied != 0 || len(r.Skipped) != 1 || len(m.Graph.Nodes) != 1 {
		t.Errorf("%+v, %v, %d nodes", r, err, len(m.Graph.Nodes))
	}
}
