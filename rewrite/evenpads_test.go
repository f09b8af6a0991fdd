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

// TestEvenPads: a transposed convolution returns the same with padding that CUDA has a
// kernel for, whichever side is padded more, and as an output of the graph.
func TestEvenPads(t *testing.T) {
	for _, c := range []struct {
		attrs string
		out   []int64
		slice bool
	}{
		{"pads=[1, 1, 0, 0], strides=[2, 2]", []int64{2, 3, 10, 12}, false},
		{"pads=[0, 0, 1, 1], strides=[2, 2]", []int64{2, 3, 10, 12}, true},
		{"pads=[2, 0, 0, 1], strides=[2, 3], dilations=[2, 1]", []int64{2, 3, 11, 17}, true},
		{"pads=[2, 1, 0, 0], strides=[3, 2], output_padding=[0, 1]", []int64{2, 3, 13, 13}, true},
		{"pads=[1, 0, 0, 0]", []int64{2, 3, 6, 8}, true},
		{`auto_pad="SAME_UPPER", strides=[2, 2]`, []int64{2, 3, 10, 12}, true},
		{`auto_pad="SAME_LOWER", strides=[2, 2]`, []int64{2, 3, 10, 12}, false},
		{`auto_pad="SAME_LOWER", strides=[1, 2], dilations=[2, 1]`, []int64{2, 3, 5, 12}, false},
	} {
		text := fmt.Sprintf("model ir=10 opset=20\ngraph g {\n  in x float32[2,4,5,6]\n  in w float32[4,3,3,3]\n  y = ConvTranspose(x, w) {%s}\n  z = Relu(y)\n  out y float32%s\n  out z float32%s\n}\n",
			c.attrs, onnx.StaticShape(c.out...), onnx.StaticShape(c.out...))
		wave := func(n int) []float32 {
			list := make([]float32, n)
			for i := range list {
				list[i] = float32(math.Sin(float64(7 * i)))
			}
			return list
		}
		inputs := map[string]*onnx.Tensor{"x": onnx.Float32Tensor(wave(240), 2, 4, 5, 6), "w": onnx.Float32Tensor(wave(108), 4, 3, 3, 3)}
		want := ortest.Run(t, typedText(t, text), 0, inputs)
		m := typedText(t, text)
		types, err := infer.Model(m, infer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := EvenPads(m.Graph, types); err != nil || r.Applied != 1 {
			t.Fatalf("%s: %+v, %v", c.attrs, r, err)
		}
		slices := false
		for _, node := range m.Graph.Nodes {
			if traits.RefusedByCUDA(node) {
				t.Errorf("%s: %s is still there", c.attrs, node.Label())
			}
			slices = slices || node.Is("Slice")
		}
		if slices != c.slice {
			t.Errorf("%s: a slice: %t", c.attrs, slices)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		got := ortest.Run(t, m, 0, inputs)
		for name, w := range want {
			if len(got[name]) != len(w) {
				t.Fatalf("%s: %s has %d elements, want %d", c.attrs, name, len(got[name]), len(w))
			}
			for i, v := range got[name] {
				if math.Abs(v-w[i]) > 1e-5 {
					t.Fatalf("%s: %s[%d] is %v, want %v", c.attrs, name, i, v, w[i])
				}
			}
		}
	}
}
