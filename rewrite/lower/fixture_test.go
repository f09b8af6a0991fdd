package lower

import (
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// load reads a model and its archive of feeds and expected values.
func load(t *testing.T, path string) (*onnx.Model, map[string]runtime.Tensor) {
	t.Helper()
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	archive := strings.NewReplacer(".training_model.onnx", ".npz", ".onnx", ".npz").Replace(path)
	expected, err := runtime.ReadNPZ(archive)
	if err != nil {
		t.Fatal(err)
	}
	return m, expected
}

func maxAbs(v []float64) float64 {
	m := 0.0
	for _, x := range v {
		m = math.Max(m, math.Abs(x))
	}
	return m
}
