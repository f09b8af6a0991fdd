package analysis

import (
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner"
)

// analyzeText types and analyzes a graph written as text.
func analyzeText(t *testing.T, text string) (*onnx.Model, *Analysis) {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	a, err := Analyze(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m, a
}

func analyze(t *testing.T, file string, dims map[string]int64) *Analysis {
	t.Helper()
	m, err := onnx.Load(filepath.Join("..", "..", "testdata", "models", file))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{Dims: dims}); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	a, err := Analyze(m, Options{Dims: dims})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return a
}

// Layers and roles are found without any name, in joint graphs and in forward
// ones.
func TestStructure(t *testing.T) {
	for _, c := range []struct {
		file                string
		layers, grads, news int
		backward            bool
	}{
		{"joint/gpt2_small_b1s1024.onnx", 12, 148, 0, true},
		{"joint/gpt2_small_b1s128.onnx", 12, 148, 0, true},
		{"joint/gpt2_tiny_eager.EMA.onnx", 2, 28, 0, true},
		{"joint/gpt2_tiny_eager.step_adamw.onnx", 2, 0, 85, true},
		{"joint/mlp20.EMA.onnx", 20, 40, 0, true},
		{"mlp20.ts.onnx", 20, 0, 0, false},
		{"seq20_relu.dyn.onnx", 20, 0, 0, false},
		{"gpt2_tiny.dyn.onnx", 2, 0, 0, false},
		{"nanogpt_tril.ts_op17.onnx", 2, 0, 0, false},
		{"encoder_postln.ts.onnx", 2, 0, 0, false},
		{"encoder_postln.dyn.onnx", 2, 0, 0, false},
		{"bert_tiny.ts.onnx", 2, 0, 0, false},
		{"llama_tiny.dyn.onnx", 2, 0, 0, false},
		{"resnet18_like.ts.onnx", 0, 0, 0, false},
		{"lstm_char.ts.onnx", 0, 0, 0, false},
	} {
		a := analyze(t, c.file, nil)
		p := a.Problem
		t.Logf("%s: %d ops, loss %q, %d cuts, %d layers, %d grads, %d new, %d unsized %.8v", c.file, len(p.Ops), a.Roles.Loss, len(p.Cuts), p.LayerCount(), len(a.Roles.Grad), len(a.Roles.New), len(a.Unsized), a.Unsized)
		if a.Roles.Loss == "" {
			t.Errorf("%s: no loss", c.file)
		}
		if c.layers != 0 && p.LayerCount() != c.layers {
			t.Errorf("%s: %d layers, want %d", c.file, p.LayerCount(), c.layers)
		}
		if len(a.Roles.Grad) != c.grads || len(a.Roles.New) != c.news {
			t.Errorf("%s: %d gradients and %d updates, want %d and %d", c.file, len(a.Roles.Grad), len(a.Roles.New), c.grads, c.news)
		}
		if p.HasBackward() != c.backward {
			t.Errorf("%s: backward %v", c.file, p.HasBackward())
		}
	}
}

// Hostile and degenerate graphs must give an error or a problem, not a panic.
func TestDegenerate(t *testing.T) {
	a, err := Analyze(onnx.NewModel("empty", 17), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Problem.Ops) != 0 || a.Problem.HasBackward() {
		t.Errorf("an empty graph has %d ops", len(a.Problem.Ops))
	}
	for i := range planner.Solvers {
		if _, err := planner.Solve(a.Problem, "sqrt"); err == nil {
			t.Errorf("%s plans an empty graph", planner.Solvers[i].Name)
		}
	}
}

// TestDrawnNumbersAreKept: a second run of a node that draws gives other
// numbers, unless both have the same seed.
func TestDrawnNumbersAreKept(t *testing.T) {
	for seed, want := range map[string]bool{"": false, "seed=7.0, ": true} {
		m, a := analyzeText(t, `model ir=9 opset=20
graph g {
  in x float32[4,8]
  in w float32[8,8]
  a = MatMul(x, w)
  n = RandomNormalLike(a) {`+seed+`scale=2.0}
  b = Mul(a, n)
  loss = ReduceMean(b) {keepdims=0}
  out loss float32[]
}`)
		n := m.Graph.Value("n").Producer
		for i, node := range a.Nodes {
			if op := a.Problem.Ops[i]; node == n && (op.Recomputable != want || want == (op.Reason != "")) {
				t.Errorf("seed %q: recomputable is %v, %q", seed, op.Recomputable, op.Reason)
			}
		}
	}
}
