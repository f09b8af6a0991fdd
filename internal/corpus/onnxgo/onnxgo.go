// Package onnxgo gives the test cases that onnx-go carries, as corpus cases.
//
// They are node tests of an older ONNX, turned into Go tensors, which have no
// scalars: a tensor of one element is given the type and shape that the model
// declares. Their registry is a map, so they are sorted by title.
package onnxgo

import (
	"fmt"
	"sort"

	"github.com/owulveryck/onnx-go/backend/testbackend"
	_ "github.com/owulveryck/onnx-go/backend/testbackend/onnx" // fills the registry
	"gorgonia.org/tensor"

	"github.com/onnx-remat/remat/internal/corpus"
	"github.com/onnx-remat/remat/onnx"
)

// Cases returns the 348 cases, sorted by name.
func Cases() []corpus.Case {
	var cases []corpus.Case
	for _, construct := range testbackend.GetAllRegisteredTests() {
		tc := construct()
		c := corpus.Case{Name: tc.Title, Model: tc.ModelB, Dir: "."}
		c.Sets = func() ([]corpus.Set, error) { return sets(c, tc) }
		cases = append(cases, c)
	}
	sort.Slice(cases, func(i, j int) bool { return cases[i].Name < cases[j].Name })
	return cases
}

func sets(c corpus.Case, tc *testbackend.TestCase) ([]corpus.Set, error) {
	m, err := c.Load()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	in, err := convert(tc.Input, m.Graph.Inputs)
	if err != nil {
		return nil, fmt.Errorf("%s: input %w", c.Name, err)
	}
	out, err := convert(tc.ExpectedOutput, m.Graph.Outputs)
	if err != nil {
		return nil, fmt.Errorf("%s: output %w", c.Name, err)
	}
	return []corpus.Set{{Inputs: in, Outputs: out}}, nil
}

func convert(from []tensor.Tensor, values []*onnx.Value) ([]*onnx.Tensor, error) {
	out := make([]*onnx.Tensor, len(values))
	for i, v := range values {
		if i >= len(from) || from[i] == nil {
			continue
		}
		t, err := convertOne(from[i], v.Type)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", v.Name, err)
		}
		out[i] = t
	}
	return out, nil
}

// convertOne copies the elements into the declared element type. The shape is
// the tensor's own, unless it has one element.
func convertOne(t tensor.Tensor, declared onnx.Type) (*onnx.Tensor, error) {
	values, err := elements(t.Data())
	if err != nil {
		return nil, err
	}
	dims := make([]int64, 0, t.Dims())
	for _, d := range t.Shape() {
		dims = append(dims, int64(d))
	}
	if want, ok := declared.Shape.Ints(); ok && len(values) == 1 && declared.Ranked {
		dims = want
	}
	return encode(declared.DType, values, dims)
}
