package traits

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestPutsOff: a constant factor may be taken into whoever reads the product, but not into
// the statistics of a normalization in training.
func TestPutsOff(t *testing.T) {
	m, err := onnx.Parse("model ir=9 opset=17\ngraph g {\nin x float32[2,3,4]\nin p float32[3]\nin q float32[3]\ninit s float32[3] = [1,1,1]\ninit b float32[3] = zeros\ninit k float32[] = [0]\n" +
		"u = Mul(p, k)\nv = Mul(q, k)\ny, _, _ = BatchNormalization(x, s, b, u, v) {training_mode=1}\nz = Add(y, x)\nw = Mul(v, b)\nout z float32[2,3,4]\nout w float32[3]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if n := m.Graph.Nodes[0]; PutsOff(n, 0) {
		t.Errorf("%s: read by a normalization in training alone", n.Label())
	}
	if n := m.Graph.Nodes[1]; !PutsOff(n, 0) {
		t.Errorf("%s: a product reads it too", n.Label())
	}
}
