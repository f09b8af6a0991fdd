package pipeline

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/predict"
)

// TestSavedAgain: ONNX Runtime finds nothing to change in a written file, so what
// it saves at any level has the same nodes in the same order, and the promise
// stands.
func TestSavedAgain(t *testing.T) {
	e, dir := engine(t), t.TempDir()
	m := zooStep(t, "gpt2-tiny", optim.AdamW, func(c *models.Config) { c.Seq, c.Batch = 32, 1 })
	p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, strategy := range []string{"full", "optimal"} {
		r, err := p.Plan(strategy, 0)
		if err != nil {
			t.Fatal(err)
		}
		written := r.Model
		SetPromise(written, r.Prediction)
		path := filepath.Join(dir, strategy+".onnx")
		if err := written.Save(path); err != nil {
			t.Fatal(err)
		}
		for _, level := range []int{0, 1, 2, 99} {
			again := filepath.Join(dir, fmt.Sprint(strategy, level, ".onnx"))
			s, err := e.Env.NewSession(path, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU, OptimizedPath: again})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			saved, err := Load(again)
			if err != nil {
				t.Fatal(err)
			}
			defer saved.Close()
			if !slices.EqualFunc(written.Graph.Nodes, saved.Model.Graph.Nodes, func(a, b *onnx.Node) bool { return a.Name() == b.Name() }) {
				t.Errorf("%s, level %d: %d nodes in one order, %d in another", strategy, level, len(written.Graph.Nodes), len(saved.Model.Graph.Nodes))
			}
			if promised, broken := saved.Broken(); broken {
				t.Errorf("%s, level %d: the promise of %d is broken", strategy, level, promised)
			}
		}
	}
}

// TestBroken: the promise breaks with what decides about memory, and with nothing
// else.
func TestBroken(t *testing.T) {
	const text = `model ir=10 opset=20
graph main {
  in x float32[4,4]
  init w float32[4,4] = zeros
  a = MatMul(x, w) "first"
  b = Transpose(x) {perm=[1, 0]} "second"
  c = Add(a, b) "third"
  out c float32[4,4]
  value a float32[4,4]
}
`
	for _, c := range []struct {
		what   string
		change func(*onnx.Model)
		broken bool
	}{
		{"nothing", func(*onnx.Model) {}, false},
		{"names", func(m *onnx.Model) {
			for i, n := range m.Graph.Nodes {
				n.SetName(fmt.Sprint("n", i))
				m.Graph.Rename(n.Outputs[0], fmt.Sprint("v", i))
			}
			m.Graph.Rename(m.Graph.Value("w"), "weight")
			m.Graph.AnnotateTypes()
		}, false},
		{"metadata", func(m *onnx.Model) { m.SetMetadata("by", "somebody") }, false},
		{"order", func(m *onnx.Model) { slices.Reverse(m.Graph.Nodes[:2]) }, true},
		{"a node less", func(m *onnx.Model) {
			n := m.Graph.Nodes[1]
			m.Graph.ReplaceUses(n.Outputs[0], n.Inputs[0])
			m.Graph.Remove(n)
		}, true},
		{"an edge", func(m *onnx.Model) { n := m.Graph.Nodes[2]; n.SetInputs(n.Inputs[1], n.Inputs[0]) }, true},
		{"an attribute", func(m *onnx.Model) { m.Graph.Nodes[1].Proto.Attribute[0].Ints = []int64{0, 1} }, true},
		{"a type more", func(m *onnx.Model) {
			m.Graph.Value("b").Type = m.Graph.Value("a").Type
			m.Graph.AnnotateTypes()
		}, true},
	} {
		m, err := onnx.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		SetPromise(m, &predict.Prediction{LivePeak: 64})
		c.change(m)
		path := filepath.Join(t.TempDir(), "m.onnx")
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		saved, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		defer saved.Close()
		if promised, broken := saved.Broken(); broken != c.broken || broken && promised != 64 {
			t.Errorf("%s: broken %v, promised %d", c.what, broken, promised)
		}
	}
}
