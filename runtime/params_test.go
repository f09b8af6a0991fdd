package runtime

import (
	"bytes"
	"testing"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestDescribedParameter: what a file only describes is made by the description,
// whatever the seed of the random feeds; what nobody understands is random.
func TestDescribedParameter(t *testing.T) {
	m := onnx.NewModel("described", 17)
	vec := onnx.TensorOf(onnx.Float32, onnx.StaticShape(9))
	for _, name := range []string{"W", "odd"} {
		n := m.Graph.NewNode("", "Neg", "neg", []*onnx.Value{m.Graph.AddInput(name, vec)}, []string{"out" + name})
		n.Out(0).Type = vec
		m.Graph.Append(n)
		m.Graph.AddOutput(n.Out(0))
	}
	m.SetMetadata(ParametersKey, `{"W": {"init": "normal", "scale": 3, "seed": 7}, "odd": {"init": "cubic"}}`)
	s, err := testEngine.Open(m, Options{Threads: 1, Provider: ort.CPU, Seed: 99})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := make([]byte, 36)
	weights.Normal(3).Fill(want, 7, "W", 0)
	if got, _, err := s.Input("W"); err != nil || !bytes.Equal(got.Data, want) {
		t.Errorf("W is %v, %v", got.Data, err)
	}
	if got, _, _ := s.Input("odd"); bytes.Equal(got.Data, make([]byte, 36)) {
		t.Error("a parameter of unknown making is zero, not random")
	}
}
