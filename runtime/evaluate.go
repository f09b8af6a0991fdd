package runtime

import (
	"bytes"
	"context"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Evaluate runs a model that has no inputs once, on the CPU, and returns its
// outputs by name. Outputs whose elements cannot be read are left out.
func (e *Engine) Evaluate(m *onnx.Model) (map[string]Tensor, error) {
	s, err := e.Open(m, Options{Provider: ort.CPU, Threads: 1, Purpose: "compute constants"})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	step, err := s.Step(context.Background())
	if err != nil {
		return nil, err
	}
	values := make(map[string]Tensor, len(step.Outputs))
	for _, o := range step.Outputs {
		if o.Err == nil {
			t := o.Tensor
			t.Data = bytes.Clone(t.Data) // the session's
			values[o.Name] = t
		}
	}
	return values, nil
}
