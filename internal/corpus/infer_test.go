package corpus_test

// Inference against others' knowledge of the same models: the types that the
// node tests declare, the outputs that they expect, and the types and shapes
// that ONNX Runtime reports for every node that it runs.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/corpus"
	"github.com/onnx-remat/remat/internal/corpus/onnxgo"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// dataDependent are the operators whose extents depend on what a tensor holds,
// or that hold subgraphs.
var dataDependent = []string{"NonZero", "Unique", "Compress", "NonMaxSuppression", "If", "Loop", "Scan"}

// constantInputs loads a case with its inputs turned into constants, so that
// everything computed from them must come out, and with the types taken off
// that the file declares for what nodes make. The second result is those.
func constantInputs(c corpus.Case) (*onnx.Model, map[string]onnx.Type, corpus.Set, error) {
	var set corpus.Set
	m, err := c.Load()
	if err != nil {
		return nil, nil, set, err
	}
	sets, err := c.Sets()
	if err == nil && len(sets) == 0 {
		err = errors.New("no data")
	}
	if err != nil {
		return nil, nil, set, errors.Join(err, m.Close())
	}
	g := m.Graph
	for i, v := range slices.Clone(g.Inputs) {
		if x := sets[0].Inputs[i]; x != nil && !v.IsOutput() && v.Init == nil {
			g.ReplaceUses(v, g.AddConstant("constant", x))
			g.RemoveInput(v)
		}
	}
	types := map[string]onnx.Type{}
	for i, n := range g.Nodes {
		n.SetName(fmt.Sprintf("n%d", i))
		for _, v := range n.Outputs {
			if v != nil {
				types[v.Name] = v.Type
				v.Type = onnx.Type{}
			}
		}
	}
	return m, types, sets[0], nil
}

// TestNodesInfer infers every node test and compares with the declared types
// and, where elements were worked out, with the expected outputs.
func TestNodesInfer(t *testing.T) {
	inferred, evaluated := 0, 0
	for _, c := range slices.Concat(nodes(t), onnxgo.Cases()) {
		m, declared, set, err := constantInputs(c)
		if err != nil {
			continue // no tensors
		}
		r, err := infer.Model(m, infer.Options{Strict: true})
		var unknown *infer.UnknownOpError
		switch {
		case errors.As(err, &unknown):
			continue
		case err != nil:
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		inferred++
		for i, v := range m.Graph.Outputs {
			want, ok := declared[v.Name]
			if ok && want.IsStatic() && !agrees(v.Type, want) {
				t.Errorf("%s: output %q is %s, declared %s", c.Name, v.Name, v.Type, want)
			}
			if got, ok := r.Const(v); ok && set.Outputs[i] != nil && v.Producer != nil {
				evaluated++
				if err := corpus.Compare(got, set.Outputs[i]); err != nil {
					t.Errorf("%s: output %q worked out: %v", c.Name, v.Name, err)
				}
			}
		}
		for _, n := range m.Graph.Nodes {
			if err := explained(n); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d cases inferred, %d outputs worked out", inferred, evaluated)
	if inferred < 1600 || evaluated < 400 {
		t.Errorf("only %d cases were inferred, %d outputs worked out", inferred, evaluated)
	}
}

// agrees compares an inferred type with a true one, by what is known.
func agrees(got, want onnx.Type) bool {
	if got.DType != want.DType && got.DType != onnx.Undefined {
		return false
	}
	if !got.Ranked {
		return true
	}
	if len(got.Shape) != len(want.Shape) {
		return false
	}
	for i, d := range got.Shape {
		if d.IsStatic() && d != want.Shape[i] {
			return false
		}
	}
	return true
}

// explained is an error where a node has an unknown output for no reason: all
// its inputs are known and its extents depend on no data.
func explained(n *onnx.Node) error {
	if slices.Contains(dataDependent, n.OpType()) {
		return nil
	}
	for _, v := range n.Inputs {
		if v != nil && (!v.Type.IsStatic() || !constant(v)) {
			return nil
		}
	}
	for _, v := range n.Outputs {
		if v != nil && !v.Type.IsStatic() {
			return fmt.Errorf("%s makes %s of known inputs", n.OpType(), v.Type)
		}
	}
	return nil
}

// constant reports a value that holds no element that depends on data.
func constant(v *onnx.Value) bool { return v.Init != nil }

// profiled runs a model once at level 0 and compares every tensor that ONNX
// Runtime reports with the inferred type. Nodes are known by name. It returns
// how many tensors were compared.
func profiled(t *testing.T, engine *runtime.Engine, m *onnx.Model, o runtime.Options) (int, error) {
	o.Level, o.Threads, o.Provider, o.Roles, o.Profile = 0, 1, ort.CPU, &runtime.Roles{}, true
	s, err := engine.Open(m, o)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if _, err := s.Step(t.Context()); err != nil {
		return 0, err
	}
	p, err := s.Profile()
	if err != nil {
		return 0, err
	}
	nodes := map[string]*onnx.Node{}
	for _, n := range m.Graph.Nodes {
		nodes[n.Name()] = n
	}
	compared := 0
	for _, e := range p.Nodes {
		n := nodes[e.Node]
		if n == nil || n.OpType() != e.Op || len(n.Subgraphs()) > 0 {
			continue // put there by ONNX Runtime, or inside a subgraph
		}
		k := 0
		for _, v := range n.Outputs {
			if v == nil || v.Type.Other != nil || k >= len(e.Outputs) {
				continue
			}
			want, known := reported(e.Outputs[k])
			k++
			if !known {
				continue
			}
			// Halves run in float32 between casts on the CPU.
			if want.DType == onnx.Float32 && v.Type.DType == onnx.Float16 {
				want.DType = onnx.Float16
			}
			if !agrees(v.Type, want) {
				t.Errorf("%s %s: %q is %s, ONNX Runtime has %s", n.OpType(), n.Name(), v.Name, v.Type, want)
			}
			compared++
		}
	}
	return compared, nil
}

// reported is a type as the profile names it.
func reported(s ort.TypeShape) (onnx.Type, bool) {
	names := map[string]onnx.DType{"float": onnx.Float32, "double": onnx.Float64}
	d, ok := names[s.Type]
	if !ok {
		var err error
		if d, err = onnx.ParseDType(strings.ToLower(s.Type)); err != nil {
			return onnx.Type{}, false
		}
	}
	return onnx.TensorOf(d, onnx.StaticShape(s.Shape...)), true
}

func TestNodesInferAsReported(t *testing.T) {
	engine, err := runtime.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	cases, compared := 0, 0
	for _, c := range slices.Concat(nodes(t), onnxgo.Cases()) {
		m, _, _, err := constantInputs(c)
		if err != nil {
			continue
		}
		if _, err := infer.Model(m, infer.Options{Strict: true}); err != nil {
			continue // TestNodesInfer judges it
		}
		n, err := profiled(t, engine, m, runtime.Options{})
		if err == nil {
			cases, compared = cases+1, compared+n
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d cases, %d tensors", cases, compared)
	if cases < 1500 || compared < 8_000 {
		t.Errorf("only %d cases ran, %d tensors were compared", cases, compared)
	}
}

func TestSamplesInferAsReported(t *testing.T) {
	engine, err := runtime.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	root := filepath.Join("..", "..", "testdata", "models")
	paths, _ := filepath.Glob(filepath.Join(root, "*.onnx"))
	joint, _ := filepath.Glob(filepath.Join(root, "joint", "*.onnx"))
	for _, path := range append(paths, joint...) {
		if strings.Contains(path, "gpt2_small") && (testing.Short() || strings.Contains(path, "1024")) {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, err := onnx.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			feeds, err := runtime.ReadNPZ(strings.TrimSuffix(path, ".onnx") + ".npz")
			if err != nil {
				t.Fatal(err)
			}
			dims := dimsOf(m, feeds)
			for _, n := range m.Graph.Nodes {
				for _, v := range n.Outputs {
					if v != nil {
						v.Type = onnx.Type{}
					}
				}
			}
			for i, n := range m.Graph.Nodes {
				n.SetName(fmt.Sprintf("n%d", i))
			}
			if _, err := infer.Model(m, infer.Options{Strict: true, Dims: dims}); err != nil {
				t.Fatal(err)
			}
			n, err := profiled(t, engine, m, runtime.Options{Feeds: feeds})
			if err != nil {
				t.Fatal(err)
			}
			executed := 0
			for _, n := range m.Graph.Nodes {
				if !n.Is("Constant") { // ONNX Runtime makes initializers of them
					executed++
				}
			}
			if n < executed*9/10 {
				t.Errorf("%d tensors for %d nodes", n, executed)
			}
		})
	}
}

// dimsOf reads the free dimensions off the feeds.
func dimsOf(m *onnx.Model, feeds map[string]runtime.Tensor) map[string]int64 {
	dims := map[string]int64{}
	for _, v := range m.Graph.Inputs {
		x, ok := feeds["in:"+v.Name]
		if !ok || len(x.Shape) != len(v.Type.Shape) {
			continue
		}
		for i, d := range v.Type.Shape {
			if names := d.Symbols(); len(names) == 1 {
				dims[names[0]] = x.Shape[i]
			}
		}
	}
	return dims
}

// nodes are the node tests.
func nodes(t *testing.T) []corpus.Case {
	t.Helper()
	cases, err := corpus.Nodes(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return cases
}
