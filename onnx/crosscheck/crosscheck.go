// Package crosscheck reads a model file a second time, with onnx-go, and
// compares what it found with what package onnx found. The two share no code:
// onnx-go brings its own messages, its own protobuf library and its own idea of
// a graph.
//
//	bytes ─▶ onnx      ─▶ Model ──────────┐
//	bytes ─▶ onnx-go   ─▶ recorder ───────┴─▶ differences, and what was left out
//
// onnx-go drops domains, names of nodes, operator sets, symbolic dimensions and
// types. Attributes that hold graphs, lists of tensors or types stop it, and so
// do half, bool and empty tensors: such attributes and initializers are cut out
// of its copy of the bytes and reported as not compared. Some inputs make it
// panic, which is contained and reported.
package crosscheck

import (
	"fmt"
	"maps"
	"os"
	"slices"

	onnxgo "github.com/owulveryck/onnx-go"

	"github.com/onnx-remat/remat/onnx"
)

// A Result says what two readers agree on.
type Result struct {
	// How many of each were compared.
	Operators, Attributes, Inputs, Outputs, Initializers int
	// Differences, one line each.
	Differences []string
	// NotCompared names what onnx-go cannot tell, one line each.
	NotCompared []string
}

// Agree reports that nothing that was compared differs.
func (r *Result) Agree() bool { return len(r.Differences) == 0 }

// String sums the result up in one line.
func (r *Result) String() string {
	verdict := "onnx-go agrees"
	if !r.Agree() {
		verdict = fmt.Sprintf("onnx-go differs in %d places", len(r.Differences))
	}
	return fmt.Sprintf("%s: %d operators, %d attributes, %d inputs, %d outputs, %d initializers compared",
		verdict, r.Operators, r.Attributes, r.Inputs, r.Outputs, r.Initializers)
}

// dropped is what onnx-go never keeps.
const dropped = "domains, node names, operator sets, types and symbolic dimensions (onnx-go drops them)"

// maxDifferences bounds the list: a shift by one makes everything differ.
const maxDifferences = 20

// File reads the file twice and compares. The error is that of package onnx,
// when the file is not a model.
func File(path string) (*Result, error) {
	m, err := onnx.Load(path)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := m.Check(); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cross-check: %w", err)
	}
	return Compare(m, data), nil
}

// Compare reads data with onnx-go and compares it with m, which must be what
// package onnx made of the same data, checked and unchanged.
func Compare(m *onnx.Model, data []byte) *Result {
	return compareWithin(m, data, limitFor(len(data)))
}

func compareWithin(m *onnx.Model, data []byte, l limit) *Result {
	r := &Result{NotCompared: []string{dropped}}
	data, cut := l.cutUnreadable(m, data)
	for _, kind := range slices.Sorted(maps.Keys(cut)) {
		r.skip("%d attributes of %s", cut[kind], kind)
	}
	rec := newRecorder(m, l)
	model := onnxgo.NewModel(rec)
	err := unmarshal(model, data)
	c := comparison{Result: r, model: m, limit: l}
	c.operators(rec.operators)
	c.initializers(rec)
	if err != nil {
		r.skip("whatever follows operator %d: onnx-go stopped: %v", len(rec.operators), err)
		return r
	}
	if len(rec.operators) != len(m.Graph.Nodes) {
		c.differ("%d operators, onnx-go has %d", len(m.Graph.Nodes), len(rec.operators))
	}
	c.ends(rec, model)
	return r
}

// unmarshal contains onnx-go's panics.
func unmarshal(model *onnxgo.Model, data []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panicked: %v", p)
		}
	}()
	return model.UnmarshalBinary(data)
}

func (r *Result) skip(format string, args ...any) {
	r.NotCompared = append(r.NotCompared, oneLine(fmt.Sprintf(format, args...)))
}

func (r *Result) differ(format string, args ...any) {
	if len(r.Differences) < maxDifferences {
		r.Differences = append(r.Differences, oneLine(fmt.Sprintf(format, args...)))
	} else if len(r.Differences) == maxDifferences {
		r.Differences = append(r.Differences, "and more")
	}
}

// oneLine keeps foreign messages on one line of bearable length.
func oneLine(s string) string {
	out := []rune(s)
	for i, c := range out {
		if c < ' ' {
			out[i] = ' '
		}
	}
	if len(out) > 300 {
		out = append(out[:300], []rune("...")...)
	}
	return string(out)
}
