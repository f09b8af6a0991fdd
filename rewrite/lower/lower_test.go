package lower

import (
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

const (
	raw      = "../../testdata/models/ort_training/gpt2_tiny_mask.ts_op17.onnx"
	training = "../../testdata/models/ort_training/gpt2_tiny_mask.ts_op17.training_model.onnx"
	// forward is the model that both were made of; it holds the weights.
	forward = "../../testdata/models/gpt2_tiny_mask.ts.onnx"
)

// TestSamplesRunInStockONNXRuntime: no private operator is left, ONNX Runtime
// runs the graphs at every level, and the gradients are PyTorch's.
func TestSamplesRunInStockONNXRuntime(t *testing.T) {
	for _, path := range []string{raw, training} {
		m, expected := load(t, path)
		report, err := Model(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		if report.Roles == nil || report.Roles.Loss != "loss" || len(report.Roles.Grad) != 28 {
			t.Errorf("%s: roles %+v", path, report.Roles)
		}
		inputs := sampleInputs(t, m, expected)
		for _, level := range []int{0, 1, 99} {
			compare(t, ortest.Run(t, m, level, inputs), report.Roles.Grad, expected)
		}
	}
}

// sampleInputs takes feeds from the archive, weights from the forward model,
// and leaves NaN in the accumulators, which a reset must not let through.
func sampleInputs(t *testing.T, m *onnx.Model, expected map[string]runtime.Tensor) map[string]*onnx.Tensor {
	weights, err := onnx.Load(forward)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	inputs := map[string]*onnx.Tensor{}
	for _, v := range m.Graph.Inputs {
		w := weights.Graph.Value(v.Name)
		switch x, ok := expected["in:"+v.Name]; {
		case ok:
			inputs[v.Name] = onnx.NewTensor(x.Type, x.Shape, x.Data)
		case w != nil && w.Init != nil:
			data, err := w.Init.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			inputs[v.Name] = onnx.NewTensor(w.Init.DType(), w.Init.Dims(), append([]byte(nil), data...))
		case strings.HasSuffix(v.Name, ".accumulation.buffer"):
			dims, _ := v.Type.Shape.Ints()
			n, _ := onnx.Elements(dims)
			junk := make([]float64, n)
			for i := range junk {
				junk[i] = math.NaN()
			}
			inputs[v.Name] = onnx.FloatTensor(v.Type.DType, junk, dims...)
		case v.Name == "lazy_reset_grad":
			inputs[v.Name] = onnx.NewTensor(onnx.Bool, []int64{1}, []byte{1})
		default:
			t.Fatalf("no value for %q (%s)", v.Name, v.Type)
		}
	}
	return inputs
}

func compare(t *testing.T, got map[string][]float64, roles map[string]string, expected map[string]runtime.Tensor) {
	t.Helper()
	number := func(key string) []float64 {
		v, err := expected[key].Float64s()
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		return v
	}
	want := number("out:loss")[0]
	if diff := math.Abs(got["loss"][0] - want); !(diff <= 1e-5*want) {
		t.Errorf("loss %g, want %g", got["loss"][0], want)
	}
	largest := 0.0
	for in := range roles {
		largest = math.Max(largest, maxAbs(number("grad:"+in)))
	}
	for in, out := range roles {
		w, g := number("grad:"+in), got[out]
		if len(g) != len(w) {
			t.Errorf("%s has %d elements, want %d", out, len(g), len(w))
			continue
		}
		worst := 0.0
		for i := range w {
			if d := math.Abs(g[i] - w[i]); !(d <= worst) {
				worst = d
			}
		}
		if !(worst <= 1e-4*maxAbs(w)) && !(worst <= 1e-6*largest) {
			t.Errorf("%s off by %g, its largest is %g, the model's %g", out, worst, maxAbs(w), largest)
		}
	}
}
