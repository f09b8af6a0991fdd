package precision

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// Backward compares what is equal to an extreme with the extreme of that very value: one
// of a value that is computed again in half may be of another rounding.
func TestExtremesOfWhatIsCompared(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"ReduceMax", "y = ReduceMax(h, last)\nd = Sub(h, y)"},
		{"ReduceMin without its axis", "y = ReduceMin(h, last) {keepdims=0}\nl = Mul(y, y)\nd = Unsqueeze(l, last)"},
		{"Max beside an Unsqueeze of forward", "y = ReduceMax(h, last) {keepdims=0}\nu = Unsqueeze(y, last)\nd = Sub(h, u)"},
		{"ScatterElements", "y = ScatterElements(x, at, h) {axis=1, reduction=\"max\"}\nd = Mul(y, y)"},
		{"Max", "o = Tanh(h)\ny = Max(h, o)\nd = Mul(y, y)"},
	} {
		m, err := onnx.Parse("model ir=10 opset=20\ngraph g {\nin x float32[4,3]\ninit w float32[3,3] = [1,2,-1,0.5,-2,1,0.25,3,-1]\ninit last int64[1] = [-1]\ninit at int64[4,3] = [0,1,1,0,1,1,0,1,1,0,1,1]\n" +
			"h = MatMul(x, w)\n" + c.body + "\ne = Exp(d)\nloss = ReduceMean(e) {keepdims=0}\nout loss float32[]\n}\n")
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if _, err := grad.Differentiate(m, grad.Options{}); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if _, err := Apply(m, Options{To: onnx.Float16, NoScale: true, Provider: kernels.CPU}); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		equal := 0
		for _, n := range m.Graph.Nodes {
			if !n.Is("Equal") {
				continue
			}
			equal++
			y := n.In(1).Producer
			for ; y.Is("Unsqueeze", "GatherElements"); y = y.In(0).Producer {
			}
			if !extreme(y) || y.Out(0) == m.Graph.Value("y") || n.In(0).Type.DType != onnx.Float32 || !slices.Contains(y.Inputs, n.In(0)) {
				t.Errorf("%s: %s compared with %s, in\n%s", c.name, n.In(0).Name, y.Label(), m.Text())
			}
		}
		if equal == 0 {
			t.Errorf("%s: nothing is compared, in\n%s", c.name, m.Text())
		}
	}
}
