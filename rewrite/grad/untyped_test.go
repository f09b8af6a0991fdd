package grad

import (
	"slices"
	"strings"
	"testing"
)

// TestUntypedOutputs: outputs whose sizes nobody knows go, with a warning, where the loss does
// not need what makes them; a label of known size and what the loss needs stay.
func TestUntypedOutputs(t *testing.T) {
	const body = `in x float32[2,3]
init w float32[3,2] = [1,2,3,4,5,6]
in classes string[2]
init numbers int64[2] = [5, 7]
init row int64[2] = [1, 2]
z = MatMul(x, w)
best = ArgMax(z) {axis=1}
`
	tests := []struct {
		name, text  string
		outs, stays []string
		gone        string
	}{
		{"map", "maps = ai.onnx.ml.ZipMap(z) {classlabels_int64s=[0,1]}\nq = Mul(z, z)", []string{"maps"}, []string{"loss", "w.grad"}, `"maps" is left out`},
		{"texts", "label = ai.onnx.ml.ArrayFeatureExtractor(classes, best)\nq = Mul(z, z)", []string{"label string"}, []string{"loss", "w.grad"}, `"label" is left out`},
		{"numbers", "label = ai.onnx.ml.ArrayFeatureExtractor(numbers, best)\nq = Mul(z, z)", []string{"label int64"}, []string{"label", "loss", "w.grad"}, ""},
		{"needed", "mine = my.domain.Op(x)\nc = Cast(mine) {to=1}\nk = Reshape(c, row)\nq = Mul(z, k)", []string{"mine"}, []string{"mine", "loss", "w.grad"}, ""},
	}
	for _, c := range tests {
		m := parseGraph(t, body+c.text+"\nloss = ReduceMean(q) {keepdims=0}", append(slices.Clone(c.outs), "loss float32")...)
		m.SetOpset("ai.onnx.ml", 1)
		m.SetOpset("my.domain", 1)
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var outs []string
		for _, v := range m.Graph.Outputs {
			outs = append(outs, v.Name)
		}
		if !slices.Equal(outs, c.stays) {
			t.Errorf("%s: outputs %v, want %v", c.name, outs, c.stays)
		}
		if said := strings.Join(res.Warnings, "\n"); !strings.Contains(said, c.gone) || c.gone == "" && strings.Contains(said, "left out") {
			t.Errorf("%s: warnings %q", c.name, said)
		}
	}
}
