package traits_test

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
)

// TestShortOnCUDA: short are products whose batch extents broadcast against each other
// though both operands have as many matrices, and no others.
func TestShortOnCUDA(t *testing.T) {
	for _, c := range []struct {
		a, b          string
		computed, all int64 // 0: not short
	}{
		{"2,1,4,6", "1,2,6,5", 2, 4},
		{"1,2,4,6", "2,1,6,5", 2, 4},
		{"2,1,4,6", "2,6,5", 2, 4},
		{"3,4,6", "3,1,6,5", 3, 9},
		{"2,1,2,4,6", "1,4,1,6,5", 4, 16},
		{"2,2,4,6", "2,2,6,5", 0, 0},
		{"1,1,4,6", "2,2,6,5", 0, 0},
		{"2,2,4,6", "1,1,6,5", 0, 0},
		{"2,1,4,6", "1,3,6,5", 0, 0},
		{"2,4,6", "1,2,6,5", 0, 0},
		{"2,1,4,6", "6,5", 0, 0},
		{"4,6", "2,1,6,5", 0, 0},
		{"2,1,4,6", "6", 0, 0},
		{"0,1,4,6", "1,0,6,5", 0, 0},
		{"N,1,4,6", "1,2,6,5", 0, 0},
	} {
		m, err := onnx.Parse("model ir=10 opset=18\ngraph g {\nin a float32[" + c.a + "]\nin b float32[" + c.b + "]\ny = MatMul(a, b)\nout y float32\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		n := m.Graph.Nodes[0]
		computed, all, short := traits.ShortOnCUDA(n)
		if short != (c.all > 0) || short && (computed != c.computed || all != c.all) || short != (traits.WhyShort(n) != "") {
			t.Errorf("[%s] x [%s]: %d of %d, short %t, want %d of %d", c.a, c.b, computed, all, short, c.computed, c.all)
		}
	}
}
