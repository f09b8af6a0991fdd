package analysis

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// TestLayeringOfAFile: what a file notes of its layers is taken as far as it has the values, and
// refused where it does not fit together.
func TestLayeringOfAFile(t *testing.T) {
	for _, c := range []struct{ text, layers, err string }{
		{`{"layers": [[], ["a"], ["b"]], "names": ["one", "two"], "cuts": [["a"], ["none"]], "beside": ["none"]}`, "one two", ""},
		{`{"layers": [["a"], ["none"], ["b"]], "names": ["one", "two"]}`, "two", ""},
		{`{"layers": [["none"], [], ["x"], ["b"]], "names": ["one", "two", "three"]}`, "", ""},
		{`{"layers": [["a"], ["b"]], "names": []}`, "", "metadata remat.layers: 0 names for 1 layers"},
		{`[]`, "", "metadata remat.layers: json"},
	} {
		m, err := onnx.Parse("model ir=10 opset=20\ngraph g {\n  in  x float32[4]\n  init w float32[4] = [1,2,3,4]\n  a = Mul(x, w)\n  b = Tanh(a)\n" +
			"  loss = ReduceSum(b) {keepdims=0}\n  w.grad = Mul(x, b)\n  out loss float32[]\n  out w.grad float32[4]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		m.SetMetadata(step.LayersKey, c.text)
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		a, err := Analyze(m, Options{})
		if c.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.text, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := strings.Join(a.Problem.LayerNames, " "); got != c.layers {
			t.Errorf("%s: layers %q, want %q", c.text, got, c.layers)
		}
	}
}
