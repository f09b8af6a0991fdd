package grad

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/control"
)

// TestBiasBesideConstantWeights: where the bias of a recurrence is trained alone, ONNX Runtime
// finds no two constant weights, behind which CUDA would leave the bias out; where the weights are
// trained, or nothing of it is, nothing is added.
func TestBiasBesideConstantWeights(t *testing.T) {
	const text = "model ir=9 opset=20\ngraph g {\nin x float32[5,2,3]\ninit w float32[1,16,3] = zeros\ninit r float32[1,16,4] = zeros\ninit b float32[1,32] = zeros\n" +
		"init s float32[1] = [1]\nk = Add(x, s)\nu = Neg(w)\n_, y = LSTM(k, u, r, b) {hidden_size=4}\nloss = ReduceMean(y) {keepdims=0}\nout loss float32[]\n}\n"
	for _, c := range []struct {
		params []string
		waits  bool
	}{{[]string{"b"}, true}, {[]string{"b", "s"}, true}, {[]string{"w", "b"}, false}, {[]string{"w", "r", "b"}, false}, {[]string{"s"}, false}} {
		m, err := onnx.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		if _, err := Differentiate(m, Options{Params: c.params}); err != nil {
			t.Fatal(err)
		}
		left, err := dumpModel(t, m, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range []*onnx.Graph{m.Graph, left.Graph} {
			at := slices.IndexFunc(g.Nodes, func(n *onnx.Node) bool { return n.Is("LSTM") })
			if at < 0 {
				t.Fatal("no LSTM is left")
			}
			n := g.Nodes[at]
			if n.In(1).IsConstant() && n.In(2).IsConstant() && !n.In(3).IsConstant() {
				t.Errorf("%v: both weights are constant, and the bias is not", c.params)
			}
			if waits := control.Is(n.In(1).Producer); g == m.Graph && waits != c.waits {
				t.Errorf("%v: W waits: %v, want %v", c.params, waits, c.waits)
			}
		}
	}
}
