package pipeline

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestPassOrder: what a pass must come after stands before it in the table, with
// a reason.
func TestPassOrder(t *testing.T) {
	var names []string
	for _, p := range passes {
		if p.doc == "" || p.run == nil || slices.Contains(names, p.name) {
			t.Errorf("pass %q has no doc or no function, or its name is taken", p.name)
		}
		if (len(p.after) > 0) != (p.why != "") {
			t.Errorf("pass %q: an order and its reason go together", p.name)
		}
		for _, earlier := range p.after {
			if !slices.Contains(names, earlier) {
				t.Errorf("pass %q must come after %q, which is not before it in the table", p.name, earlier)
			}
		}
		names = append(names, p.name)
	}
}

// TestEveryPassLeavesAValidGraph prepares and rewrites GPT-2 with every pass
// asked for.
func TestEveryPassLeavesAValidGraph(t *testing.T) {
	m := trainingGraph(t, "gpt2", wideGPT)
	var seen []string
	o := Options{
		Provider: ort.CPU, OptLevel: 1, Threads: 1, Normalize: ORT99, Divisions: Divisions{Chunk: auto, Tile: auto, Rows: auto},
		DropOutputs: []string{"*ln_f*.grad"}, Precision: &precision.Options{To: onnx.BFloat16, StashOnly: true},
		After: func(pass string, m *onnx.Model) error {
			seen = append(seen, pass)
			if err := m.Check(); err != nil {
				return fmt.Errorf("pass %s: %w", pass, err)
			}
			return nil
		},
	}
	p, err := NewPlanner(engine(t), m, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Plan("selective", 0); err != nil {
		t.Fatal(err)
	}
	// What is for CUDA alone, and what the first would leave nothing of.
	o = Options{Provider: ort.CPU, CUDA: true, OptLevel: 1, Threads: 1, Divisions: Divisions{Batch: Parts(2)}, WebGPU: true, After: o.After,
		Precision: &precision.Options{To: onnx.Float16, Provider: "cuda"}}
	if p, err = NewPlanner(engine(t), trainingGraph(t, "gpt2", wideGPT), o); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Plan("none", 0); err != nil {
		t.Fatal(err)
	}
	for _, pass := range passes {
		if !slices.Contains(seen, pass.name) {
			t.Errorf("pass %q did not run", pass.name)
		}
	}
	for _, name := range []string{"recompute", "schedule"} {
		if !slices.Contains(seen, name) {
			t.Errorf("pass %q did not run", name)
		}
	}
}

// TestLeftOutInputs: a norm whose bias is "", behind a sum, ends ONNX Runtime 1.31.1 as it
// fuses the two, which the planner has it do. Control flow keeps the inputs it needs.
func TestLeftOutInputs(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=17
graph g {
  in    a float32[2,3,4]
  in    b float32[2,3,4]
  in    w float32[4]
  in    go bool[]
  s = Add(a, b)
  y = LayerNormalization(s, w, _)
  p = MatMul(y, w)
  l = If(go) {then_branch=graph t {
    u = ReduceMean(p) {keepdims=0}
    out   u float32[]
  }, else_branch=graph e {
    v = ReduceSum(p, _) {keepdims=0}
    out   v float32[]
  }}
  out   l float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Normalize: Off})
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Plan("none", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range f.Model.Graph.Nodes {
		if len(n.Inputs) > 0 && n.Inputs[len(n.Inputs)-1] == nil {
			t.Errorf("node %q (%s) ends with an input that is left out", n.Name(), n.OpType())
		}
	}
}

// TestDroppedOutputs: a pattern's star spans slashes, as in every other pattern.
func TestDroppedOutputs(t *testing.T) {
	m, _ := ortest.Parse(t, "model ir=10 opset=21\ngraph g {\nin x float32[2]\n\"/h/0/y\" = Tanh(x)\nz = Relu(x)\nout \"/h/0/y\" float32[2]\nout z float32[2]\n}\n")
	if err := dropOutputs(m.Graph, "/h*"); err != nil || len(m.Graph.Outputs) != 1 || len(m.Graph.Nodes) != 1 {
		t.Errorf("%v, %d outputs, %d nodes", err, len(m.Graph.Outputs), len(m.Graph.Nodes))
	}
	for _, glob := range []string{"/h*", "z["} {
		if err := dropOutputs(m.Graph, glob); err == nil {
			t.Errorf("%s matches nothing, or is no pattern", glob)
		}
	}
}
