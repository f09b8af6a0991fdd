package normalize

// Each pattern with one thing changed: see ortest.Variants.

import (
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// patterns by the pass that looks for them.
var patterns = []struct {
	pass string
	ortest.Pattern
}{
	{"linears", ortest.Pattern{Name: "linear, transposed", Body: "in x float32[@a,@b]\nparam w float32[@c,@b]\nparam b float32[@c]\nt = Transpose(w) {perm=[1,0]}\nm = MatMul(x, t)\ny = Add(m, b)\nout y float32"}},
	{"linears", ortest.Pattern{Name: "linear", Body: "in x float32[@a,@b,@c]\nparam w float32[@c,@d]\nparam b float32[@d]\nm = MatMul(x, w)\ny = Add(m, b)\nout y float32"}},
	{"gemms", ortest.Pattern{Name: "gemm, transposed", Body: "in x float32[@b,@a]\nparam w float32[@c,@b]\nparam b float32[@c]\ns = Transpose(x)\nt = Transpose(w) {perm=[1,0]}\ny = Gemm(s, t, b)\nout y float32",
		Beside: []string{gathered("y = Gemm(t, w, b) {transB=1}\nout y float32")}}},
}

// gathered are rows taken from x as the dynamo exporter writes x[idx]: between
// Transposes that leave a matrix as it is.
func gathered(rest string) string {
	return "in x float32[@a,@b]\ninit i int64[@a,1] = zeros\nparam w float32[@c,@b]\nparam b float32[@c]\ns = Transpose(x) {perm=[0,1]}\ng = GatherND(s, i)\nt = Transpose(g) {perm=[0,1]}\n" + rest
}

func TestPatterns(t *testing.T) {
	for _, p := range patterns {
		t.Run(p.Name, func(t *testing.T) {
			p.Counter(t, 4e-6, func(m *onnx.Model) (int, error) {
				res, err := Model(m, Options{})
				if err != nil {
					return 0, err
				}
				return res.Applied[p.pass], nil
			})
		})
	}
}
