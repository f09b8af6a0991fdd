package pipeline

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner/analysis"
)

// TestLayerNames: forward and backward nodes of a layer are named after the value
// that it ends in, and what lies outside of the layers after none.
func TestLayerNames(t *testing.T) {
	layer := layersOf(t, trainingGraph(t, "gpt2-tiny", func(*models.Config) {}))
	for node, want := range map[string]string{
		"transformer.h.0/mlp/act": "transformer.h.0/after_mlp", "transformer.h.1/attn/scores": "transformer.h.1/after_mlp",
		"transformer/tokens": "", "logits_rows": "",
		"remat/grad/transformer.h.1/mlp/act/Mul": "transformer.h.1/after_mlp",
		"remat/grad/transformer.h.0/ln_1/Sub":    "transformer.h.0/after_mlp",
		"remat/grad/logits_rows/Gemm":            "",
	} {
		if got, ok := layer[node]; !ok || got != want {
			t.Errorf("node %q: layer %q (there: %v), want %q", node, got, ok, want)
		}
	}
	// The first layer of this stack reads the step's inputs.
	layer = layersOf(t, trainingGraph(t, "encoder", func(c *models.Config) { c.Layers = 2 }))
	for node, got := range layer {
		if strings.Contains(node, "encoder.layer.0/") && got != "encoder.layer.0/feed_forward/norm" {
			t.Errorf("node %q: layer %q", node, got)
		}
	}
}

// TestLayerNamesForeign: in a graph whose backward has names of its own, most
// nodes have a layer all the same, and every layer has forward and backward nodes.
func TestLayerNamesForeign(t *testing.T) {
	m, err := onnx.Load(filepath.Join("..", "..", "testdata", "models", "joint", "gpt2_tiny_eager.step_adamw.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	a, err := analysis.Analyze(m, analysis.Options{})
	if err != nil {
		t.Fatal(err)
	}
	name := LayerNames(a)
	both := map[string]int{}
	for i, n := range a.Nodes {
		bit := 2
		if a.Problem.Ops[i].Forward {
			bit = 1
		}
		both[name(n)] |= bit
	}
	if len(both) != a.Problem.LayerCount()+1 {
		t.Errorf("%d names of %d layers: %v", len(both), a.Problem.LayerCount(), both)
	}
	for l, bits := range both {
		if l != "" && bits != 3 {
			t.Errorf("layer %q has nodes of one direction only", l)
		}
	}
}

func layersOf(t *testing.T, m *onnx.Model) map[string]string {
	t.Helper()
	a, err := analysis.Analyze(m, analysis.Options{})
	if err != nil {
		t.Fatal(err)
	}
	name, layers := LayerNames(a), map[string]string{}
	for _, n := range m.Graph.Nodes {
		layers[n.Name()] = name(n)
	}
	return layers
}
