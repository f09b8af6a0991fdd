package runtime

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestWrittenOverSummand: a kernel that is said to write over what it adds to returns the bits
// that it returns elsewhere, whatever the extents, the threads and the other operands.
func TestWrittenOverSummand(t *testing.T) {
	for _, over := range []string{
		"Gemm(a, b, first)", "Gemm(a, b, first) {alpha=0.5, beta=0.25}", "Add(first, row)", "Sub(row, first)", "Mul(scale, first)", "Div(first, row)",
		"Sum(row, first)", "Max(first, row)", "Min(row, first)", "Neg(first)", "Relu(first)", "Tanh(first)", "Clip(first, low, scale)",
		"Where(mask, first, row)", "Where(mask, row, first)", "ScatterElements(first, places, updates) {axis=0, reduction=\"add\"}",
	} {
		for _, extents := range [][3]int64{{1, 1, 1}, {1, 64, 33}, {129, 3, 1}, {301, 70, 257}} {
			rows, inner, columns := extents[0], extents[1], extents[2]
			for _, threads := range []int{1, 3} {
				m, err := onnx.Parse(fmt.Sprintf(`model ir=10 opset=20
graph g {
in a float32[%[1]d,%[2]d]
in b float32[%[2]d,%[3]d]
in row float32[%[3]d]
in mask bool[%[1]d,%[3]d]
in places int64[1,%[3]d]
in updates float32[1,%[3]d]
init scale float32[] = [0.5]
init low float32[] = [-0.5]
first = Gemm(a, b)
sum = %[4]s
out first float32[%[1]d,%[3]d]
out sum float32[%[1]d,%[3]d]
}
`, rows, inner, columns, over))
				if err != nil {
					t.Fatal(err)
				}
				bits := map[step.Outputs][]byte{}
				for _, way := range []step.Outputs{step.Bound, step.Rows} {
					roles := Roles{Sums: map[string][]string{"sum": {"first"}}}
					feeds := map[string]Tensor{"places": {Type: onnx.Int64, Shape: []int64{1, columns}, Data: make([]byte, 8*columns)}}
					s, err := testEngine.Open(m, Options{Level: 0, Threads: threads, Provider: ort.CPU, Seed: 5, Feeds: feeds, Roles: &roles, Outputs: way})
					if err != nil {
						t.Fatalf("%s: %v", over, err)
					}
					got, err := s.Step(context.Background())
					if err != nil {
						t.Fatalf("%s: %v", over, err)
					}
					o, _ := got.Output("sum")
					bits[way] = bytes.Clone(o.Data)
					if way == step.Rows && (len(got.Outputs) != 1 || len(s.Bound()) != 2) {
						t.Fatalf("%s: %d outputs, bound %v", over, len(got.Outputs), s.Bound())
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(bits[step.Bound], bits[step.Rows]) {
					t.Errorf("%s, %v, %d threads: other bits", over, extents, threads)
				}
			}
		}
	}
}
