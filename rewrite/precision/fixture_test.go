package precision

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

const samplesDir = "../../testdata/models"

// A sample is a training graph with feeds and parameters.
type sample struct {
	model *onnx.Model
	feeds map[string]runtime.Tensor
	loss  string
	grads []string
	res   *grad.Result
}

// load derives the training graph of a sample.
func load(t testing.TB, name string) *sample {
	t.Helper()
	m, err := onnx.Load(filepath.Join(samplesDir, name+".onnx"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	archive, err := runtime.ReadNPZ(filepath.Join(samplesDir, name+".npz"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := grad.Differentiate(m, grad.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{model: m, feeds: map[string]runtime.Tensor{}, loss: res.Loss.Name, res: res}
	for _, v := range m.Graph.Inputs {
		if x, ok := archive["in:"+v.Name]; ok {
			s.feeds[v.Name] = x
		}
	}
	for name, x := range res.Values() {
		data, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		s.feeds[name] = runtime.Tensor{Type: x.DType(), Shape: x.Dims(), Data: data}
	}
	for _, p := range res.Params {
		s.grads = append(s.grads, p.Grad.Name)
	}
	return s
}

// clone is a copy of the model with its types.
func clone(t testing.TB, m *onnx.Model) *onnx.Model {
	t.Helper()
	m.Graph.AnnotateTypes()
	c, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run executes one step.
func run(t testing.TB, m *onnx.Model, feeds map[string]runtime.Tensor, level int, scale float64) map[string][]float64 {
	t.Helper()
	s, err := ortest.Engine(t).Open(m, runtime.Options{Level: level, Threads: 2, Provider: ort.CPU, Feeds: feeds, Seed: 3, LossScale: scale, LR: 1e-3})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]float64{}
	for _, o := range step.Outputs {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		if out[o.Name], err = o.Float64s(); err != nil {
			t.Fatal(o.Name, err)
		}
	}
	return out
}

// distance is the root mean square of a-b over that of b.
func distance(a, b []float64) float64 {
	var d, s float64
	for i := range b {
		d += (a[i] - b[i]) * (a[i] - b[i])
		s += b[i] * b[i]
	}
	if s == 0 {
		return math.Sqrt(d)
	}
	return math.Sqrt(d / s)
}

func trimmed(path string) string { return strings.TrimSuffix(filepath.Base(path), ".onnx") }
