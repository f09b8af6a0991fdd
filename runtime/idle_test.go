package runtime

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/corpus"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestIdleOptimizersAreIdle: what ONNX Runtime leaves of a graph is the same, byte for
// byte, without the optimizers that the table says have nothing to do: on every sample,
// and on every node test of the ONNX standard, where each operator stands alone. Where an
// operator stands for its definition, nothing is left out.
func TestIdleOptimizersAreIdle(t *testing.T) {
	used := map[string]bool{}
	for _, path := range sampleModels(t) {
		m, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		checkIdle(t, path, m, used)
		m.Close()
	}
	if len(used) < 20 {
		t.Errorf("%d optimizers left out in all samples, want 20 at least", len(used))
	}
	cases, err := corpus.Nodes(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, c := range cases {
		if m, err := c.Load(); err == nil && checkIdle(t, c.Name, m, used) {
			checked++
		}
	}
	t.Logf("%d node tests", checked)
	if checked < 500 {
		t.Errorf("%d node tests checked, want 500 at least", checked)
	}
}

// checkIdle compares what two sessions leave of a model; false where nothing is left out,
// or ONNX Runtime does not take the model.
func checkIdle(t *testing.T, name string, m *onnx.Model, used map[string]bool) bool {
	t.Helper()
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		return false
	}
	list := idle(m.Graph)
	data, err := m.Encode()
	if err != nil || len(list) == 0 {
		return false
	}
	o := ort.SessionOptions{Level: 0, Threads: 1, Provider: ort.CPU}
	plain, err := testEngine.optimized(data, folderOf(m), o)
	if err != nil {
		return false // no kernel
	}
	for op := range operators(t, plain) {
		if !operators(t, data)[op] {
			t.Errorf("%s: ONNX Runtime makes %s of %v, one of which is to be a function without a kernel", name, op, slices.Sorted(maps.Keys(operators(t, data))))
		}
	}
	o.Level, o.DisabledOptimizers = 99, []string{"NchwcTransformer"}
	all, err := testEngine.optimized(data, folderOf(m), o)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return false
	}
	o.DisabledOptimizers = slices.Concat(o.DisabledOptimizers, list)
	few, err := testEngine.optimized(data, folderOf(m), o)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return false
	}
	if all, few = token.ReplaceAll(all, nil), token.ReplaceAll(few, nil); !bytes.Equal(all, few) {
		t.Errorf("%s: ONNX Runtime leaves another graph without %v", name, list)
	}
	for _, o := range list {
		used[o] = true
	}
	return true
}

// operators are the types of a model's nodes.
func operators(t *testing.T, data []byte) map[string]bool {
	t.Helper()
	m, err := onnx.Decode(data, "")
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]bool{}
	for _, n := range m.Graph.Nodes {
		types[n.OpType()] = true
	}
	return types
}
