package rewrite

import (
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// correction is how AdamW's rate is made of a step's number.
const correction = `model ir=10 opset=20
graph rate {
  in step int64[]
  in x float32[4]
  init one float64[] = 1
  init beta float64[] = 0.999
  t = Cast(step) {to=11}
  power = Pow(beta, t)
  rest = Sub(one, power)
  rate = Cast(rest) {to=1}
  y = Mul(x, rate)
  out y float32[4]
}
`

// TestSingle: numbers in float64 become float32, the casts between go, and a model that
// computes in float64 itself stays as it is.
func TestSingle(t *testing.T) {
	m := typedText(t, correction)
	report, err := Single(m.Graph)
	if err != nil || report.Requested != 5 || report.Applied != 5 {
		t.Fatalf("%+v, %v", report, err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for v := range values(m.Graph) {
		if v.Type.DType == onnx.Float64 {
			t.Errorf("%q is still %s", v.Name, v.Type)
		}
	}
	if m.Graph.Value("rate") != nil || len(m.Graph.Nodes) != 4 {
		t.Errorf("%d nodes: the cast back is still there", len(m.Graph.Nodes))
	}
	own := typedText(t, strings.Replace(correction, "init beta float64[] = 0.999", "init beta float64[4] = [0.9, 0.9, 0.9, 0.9]", 1))
	report, err = Single(own.Graph)
	if err != nil || report.Applied != 0 || len(report.Skipped) != 1 || own.Graph.Value("rate") == nil {
		t.Errorf("%+v, %v: changed what the model computes in float64", report, err)
	}
}

// TestSingleError: what float32 costs AdamW's rate is what docs/cli.md says.
func TestSingleError(t *testing.T) {
	worst, at := 0.0, 0
	for step := 1; step <= 10_000; step++ {
		want := math.Sqrt(1-math.Pow(0.999, float64(step))) / (1 - math.Pow(0.9, float64(step)))
		first, second := float32(math.Pow(float64(float32(0.9)), float64(step))), float32(math.Pow(float64(float32(0.999)), float64(step)))
		got := float32(math.Sqrt(float64(1-second))) / (1 - first)
		if e := math.Abs(float64(got)/want - 1); e > worst {
			worst, at = e, step
		}
	}
	if worst > 1.1e-5 || worst < 1e-6 || at > 20 {
		t.Errorf("the error is %.2g at most, in step %d", worst, at)
	}
}

func typedText(t *testing.T, text string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	return m
}
