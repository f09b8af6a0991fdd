package grad

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// TestStraightThrough: what PyTorch's autograd gives for fake_quantize, exported as
// QuantizeLinear and DequantizeLinear. Differences would see the steps.
func TestStraightThrough(t *testing.T) {
	w := []float64{-200, -64, 0.2, 63, 64, 300}
	for name, c := range map[string]struct {
		body string
		want []float64
	}{
		"int8":            {"init s float32[] = 0.5\nq = QuantizeLinear(w, s, z)\ny = DequantizeLinear(q, s, z)\n", []float64{0, 2, 3, 4, 0, 0}},
		"beside":          {"init s float32[] = 0.5\nq = QuantizeLinear(w, s, z)\nd = DequantizeLinear(q, s, z)\ny = Add(d, w)\n", []float64{1, 4, 6, 8, 5, 6}},
		"seven bits":      {"init s float32[] = 1\ninit lo int8[] = 0\ninit hi int8[] = 63\nq = QuantizeLinear(w, s, z)\nb = Clip(q, lo, hi)\ny = DequantizeLinear(b, s, z)\n", []float64{0, 0, 3, 4, 0, 0}},
		"by channel":      {"init s float32[2] = [4, 0.1]\ninit zz int8[2] = [0, 10]\nq = QuantizeLinear(w, s, zz) {axis=0}\ny = DequantizeLinear(q, s, zz) {axis=0}\n", []float64{1, 2, 3, 0, 0, 0}},
		"to another end":  {"init s float32[] = 0.5\nq = QuantizeLinear(w, s, z)\nr = Cast(q) {to=1}\nd = DequantizeLinear(q, s, z)\nf = Mul(r, r)\nh = Mul(f, zero)\ny = Add(d, h)\n", []float64{0, 2, 3, 4, 0, 0}},
		"weights as held": {"init q int8[2,3] = [1, 2, 3, 4, 5, 6]\ninit s float32[] = 0.5\nd = DequantizeLinear(q, s)\ny = Mul(d, w)\n", []float64{0.5, 2, 4.5, 8, 12.5, 18}},
	} {
		m := parseGraph(t, "init w float32[2,3] = [-200, -64, 0.2, 63, 64, 300]\ninit z int8[] = 0\ninit zero float32[] = 0\ninit k float32[2,3] = [1, 2, 3, 4, 5, 6]\n"+
			c.body+"p = Mul(y, k)\nloss = ReduceSum(p) {keepdims=0}", "loss float32")
		if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := ortest.Run(t, m, 0, map[string]*onnx.Tensor{"w": onnx.FloatTensor(onnx.Float32, w, 2, 3)})["w.grad"]
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: gradient %v, want %v", name, got, c.want)
		}
	}
}
