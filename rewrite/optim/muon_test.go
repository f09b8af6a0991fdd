package optim

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// TestHidden: which parameters of a forward graph Muon takes for hidden matrices.
func TestHidden(t *testing.T) {
	const inputs = `model ir=10 opset=20
graph g {
  in ids int64[5]
  in x float32[2,8]
  in image float32[2,3,6,6]
  in table float32[16,8]
  in a float32[8,8]
  in b float32[8,4]
  in filter float32[4,3,3,3]
  in stack float32[2,8,8]
  in bias float32[8]
`
	for _, c := range []struct {
		name, body string
		hidden     []string
	}{
		{"an embedding and a head", "e = Gather(table, ids)\n h = MatMul(e, a)\n y = MatMul(h, b)\n p = LogSoftmax(y)\n loss = ReduceMean(p) {keepdims=0}", []string{"a"}},
		{"an embedding that is the head too", "e = Gather(table, ids)\n h = MatMul(e, a)\n s = Add(h, bias)\n y = Gemm(s, table) {transB=1}\n p = LogSoftmax(y)\n loss = ReduceMean(p) {keepdims=0}", []string{"a"}},
		{"a regression has no head", "h = MatMul(x, a)\n y = MatMul(h, b)\n q = Mul(y, y)\n loss = ReduceMean(q) {keepdims=0}", []string{"a", "b"}},
		{"attention is no head", "h = MatMul(x, a)\n p = Softmax(h)\n y = MatMul(p, b)\n q = Mul(y, y)\n loss = ReduceMean(q) {keepdims=0}", []string{"a", "b"}},
		{"filters, and a stack of matrices", "y = Conv(image, filter) {kernel_shape=[3, 3]}\n s = MatMul(x, stack)\n q = ReduceMean(y) {keepdims=0}\n r = ReduceMean(s) {keepdims=0}\n loss = Add(q, r)", []string{"filter"}},
	} {
		m, err := onnx.Parse(inputs + "  " + c.body + "\n  out loss float32[]\n}\n")
		if err != nil {
			t.Fatal(c.name, err)
		}
		m.SetMetadata(step.RolesKey, `{"loss": "loss"}`)
		a := &applier{m: m, loss: m, g: m.Graph, o: Defaults(Muon)}
		for _, v := range m.Graph.Inputs {
			if v.Type.DType == onnx.Float32 && len(v.Uses()) > 0 && v.Name != "x" && v.Name != "image" {
				a.params = append(a.params, Param{Value: v})
			}
		}
		var hidden []string
		for _, p := range a.params {
			if a.hidden(p.Value) {
				hidden = append(hidden, p.Value.Name)
			}
		}
		slices.Sort(hidden)
		if !slices.Equal(hidden, c.hidden) {
			t.Errorf("%s: hidden are %v, not %v", c.name, hidden, c.hidden)
		}
	}
}
