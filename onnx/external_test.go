package onnx

import (
	"os"
	"path/filepath"
	"testing"
)

// TestShapesAreTakenIn: small integers beside a graph and scales are in it once it is loaded, other
// floats, long lists and what cannot be read are not.
func TestShapesAreTakenIn(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 4096)
	data[0], data[8] = 3, 5
	if err := os.WriteFile(filepath.Join(dir, "w.bin"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	m := NewModel("g", 20)
	for _, tensor := range []*Tensor{
		ExternalTensor("shape", Int64, []int64{2}, "w.bin", 0, 16),
		ExternalTensor("none", Int64, []int64{0}, "w.bin", 0, 0),
		ExternalTensor("mask", Bool, []int64{4}, "w.bin", 32, 4),
		ExternalTensor("bias", Float32, []int64{4}, "w.bin", 0, 16),
		ExternalTensor("tokens", Int64, []int64{500}, "w.bin", 0, 4000),
		ExternalTensor("missing", Int64, []int64{2}, "v.bin", 0, 16),
		ExternalTensor("short", Int64, []int64{2}, "w.bin", 4090, 16),
	} {
		m.Graph.AddOutput(m.Graph.AddConstant(tensor.Proto.GetName(), tensor))
	}
	x := m.Graph.AddInput("x", TensorOf(Float32, StaticShape(1, 4)))
	scales := m.Graph.AddConstant("scales", ExternalTensor("scales", Float32, []int64{2}, "w.bin", 0, 8))
	resize := m.Graph.NewNode("", "Resize", "resize", []*Value{x, nil, scales}, []string{"y"})
	m.Graph.Nodes = append(m.Graph.Nodes, resize)
	m.Graph.AddOutput(resize.Outputs[0])
	path := filepath.Join(dir, "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range loaded.Graph.Initializers {
		inside := v.Name == "shape" || v.Name == "none" || v.Name == "mask" || v.Name == "scales"
		if v.Init.IsExternal() == inside {
			t.Errorf("%s: external %t", v.Name, v.Init.IsExternal())
		}
	}
	shape := loaded.Graph.Value("shape").Init
	if err := loaded.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := shape.Int64s(); err != nil || len(got) != 2 || got[0] != 3 || got[1] != 5 {
		t.Errorf("the shape is %v, %v", got, err)
	}
}
