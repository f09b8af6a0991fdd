package grad

// The samples: models exported by PyTorch with PyTorch's own loss and
// gradients. A gradient may be off by 1e-4 of its own largest magnitude, or by
// 1e-6 of the model's largest gradient (some are noise: a key's bias).

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/loss"
	"github.com/onnx-remat/remat/runtime"
)

const samplesDir = "../../testdata/models"

func TestSamplesEqualPyTorch(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(samplesDir, "*.onnx"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples in %s: %v", samplesDir, err)
	}
	for _, path := range paths {
		for _, dialect := range []Dialect{DialectONNX, DialectORT} {
			name := filepath.Base(path) + map[Dialect]string{DialectORT: "/ort"}[dialect]
			t.Run(name, func(t *testing.T) { checkSample(t, path, dialect) })
		}
	}
}

// What ONNX Runtime's builder of generating models writes has no loss, a cache, attention in
// one operator, and perhaps weights in four bits.
func TestGeneratingModelsEqualPyTorch(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(samplesDir, "genai", "*.onnx"))
	if err != nil || len(paths) != 3 {
		t.Fatalf("samples %v: %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m := loadSample(t, path)
			if _, err := loss.Add(m, loss.Options{Kind: loss.NextToken}); err != nil {
				t.Fatal(err)
			}
			checkGradients(t, m, path, DialectONNX)
		})
	}
}

func loadSample(t *testing.T, path string) *onnx.Model {
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func checkSample(t *testing.T, path string, dialect Dialect) {
	checkGradients(t, loadSample(t, path), path, dialect)
}

func checkGradients(t *testing.T, m *onnx.Model, path string, dialect Dialect) {
	expected, err := runtime.ReadNPZ(strings.TrimSuffix(path, ".onnx") + ".npz")
	if err != nil {
		t.Fatal(err)
	}
	res, err := Differentiate(m, Options{Dialect: dialect, After: func(_ string, m *onnx.Model) error { return m.Check() }})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if dialect == DialectONNX {
		for _, n := range m.Graph.Nodes {
			if n.Domain() != "" {
				t.Errorf("node %q is of domain %s", n.Label(), n.Domain())
			}
		}
	}
	m.Graph.AnnotateTypes()
	got := ortest.Run(t, m, 99, sampleInputs(t, m, res, expected))
	compareLoss(t, res.Loss.Name, got, expected)
	compareGradients(t, got, expected)
}

// sampleInputs takes feeds from the archive and parameters from the model.
func sampleInputs(t *testing.T, m *onnx.Model, res *Result, expected map[string]runtime.Tensor) map[string]*onnx.Tensor {
	inputs := map[string]*onnx.Tensor{}
	for _, v := range m.Graph.Inputs {
		if x, ok := expected["in:"+v.Name]; ok {
			inputs[v.Name] = onnx.NewTensor(x.Type, x.Shape, x.Data)
		}
	}
	for name, x := range res.Values() {
		data, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		inputs[name] = onnx.NewTensor(x.DType(), x.Dims(), append([]byte(nil), data...))
	}
	return inputs
}

func compareLoss(t *testing.T, name string, got map[string][]float64, expected map[string]runtime.Tensor) {
	want, err := expected["out:"+name].Float64s()
	if err != nil || len(want) != 1 {
		t.Fatalf("no expected loss %q: %v", name, err)
	}
	if diff := math.Abs(got[name][0] - want[0]); !(diff <= 1e-5*math.Abs(want[0])) {
		t.Errorf("loss %g, want %g", got[name][0], want[0])
	}
}

func compareGradients(t *testing.T, got map[string][]float64, expected map[string]runtime.Tensor) {
	want := map[string][]float64{}
	largest := 0.0
	for key, x := range expected {
		if name, ok := strings.CutPrefix(key, "grad:"); ok {
			values, err := x.Float64s()
			if err != nil {
				t.Fatal(err)
			}
			want[name] = values
			largest = math.Max(largest, maxAbs(values))
		}
	}
	if len(want) == 0 {
		t.Fatal("no expected gradients")
	}
	for name, w := range want {
		g, ok := got[name+".grad"]
		if !ok || len(g) != len(w) {
			t.Errorf("%s: gradient of %d elements, want %d", name, len(g), len(w))
			continue
		}
		worst := 0.0
		for i := range w {
			if d := math.Abs(g[i] - w[i]); !(d <= worst) {
				worst = d
			}
		}
		if !(worst <= 1e-4*maxAbs(w)) && !(worst <= 1e-6*largest) {
			t.Errorf("%s: gradient off by %g, its largest is %g, the model's %g", name, worst, maxAbs(w), largest)
		}
	}
}

func maxAbs(v []float64) float64 {
	m := 0.0
	for _, x := range v {
		m = math.Max(m, math.Abs(x))
	}
	return m
}
