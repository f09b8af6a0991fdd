package quantize

import (
	"math"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

// TestSliced: products over slices of a weight, of its columns and of what they sum over,
// forward and backward, give what the whole ones give, and no wide copy is larger than a
// slice. The weights are not divisible by the slices.
func TestSliced(t *testing.T) {
	const over, most = 4 << 10, 2 << 10
	inputs := map[string]*onnx.Tensor{"i": onnx.Int64Tensor([]int64{3, 39, 0, 3, 7, -1}, 2, 3), "p": wave(40)}
	for _, level := range []int{0, 1, 99} {
		whole, m := model(t, None), model(t, None)
		derived(t, whole, Int8)
		derived(t, m, Int8)
		Together(m.Graph)
		normalize.MergeEqual(m.Graph)
		types, err := infer.Model(m, infer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := Sliced(m.Graph, types, Limits{over, most})
		if err != nil {
			t.Fatal(err)
		}
		if n != 5 { // a, b, c and e forward, c with what it adds, and e backward
			t.Errorf("%d products are sliced", n)
		}
		if err := Apart(m.Graph); err != nil {
			t.Fatal(err)
		}
		m.Graph.NameNodes()
		m.Graph.AnnotateTypes()
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		for _, n := range m.Graph.Nodes {
			if !n.Is("DequantizeLinear") {
				continue
			}
			if size, known := n.Outputs[0].Type.Bytes(); !known || size > most && n.Outputs[0].Uses()[0].Node.Is("MatMul", "Gemm") {
				t.Errorf("%s is wide: %d bytes", n.Name(), size)
			}
		}
		got, want := ortest.Run(t, m, level, inputs), ortest.Run(t, whole, level, inputs)
		for name, values := range want {
			largest := 0.0
			for _, v := range values {
				largest = max(largest, math.Abs(v))
			}
			for i, v := range values {
				if math.Abs(got[name][i]-v) > 1e-6*largest {
					t.Fatalf("level %d: %s[%d] is %v, whole %v", level, name, i, got[name][i], v)
				}
			}
		}
	}
}
