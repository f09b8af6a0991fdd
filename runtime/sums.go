package runtime

// Gradients that are summed up where they are returned (step.SumsOf): the sums before one
// and it are bound to one value, which each step takes from the session's allocator before
// its first node runs and returns as the gradient. What a step returns has that alone.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A sum is such a gradient.
type sum struct {
	outputs []string // that lie in its memory, itself the last
	typ     onnx.Type
	// value is that of the step that runs, until the step returns it.
	value *ort.Value
}

// gradient is the output that the step returns.
func (s *sum) gradient() string { return s.outputs[len(s.outputs)-1] }

// summed lists the gradients that a session sums up so. executed is as for inPlace: what
// ONNX Runtime makes of the graph has to keep each sum's only reader.
func summed(g *onnx.Graph, roles Roles, way step.Outputs, level int, executed func() (*onnx.Graph, error)) ([]*sum, error) {
	if way != step.Rows || len(roles.Sums) == 0 {
		return nil, nil
	}
	chains := step.SumsOf(g, roles)
	if level > 0 && len(chains) > 0 {
		run, err := executed()
		if err != nil {
			return nil, err
		}
		left := step.SumsOf(run, roles)
		chains = slices.DeleteFunc(chains, func(chain []*onnx.Value) bool {
			return !slices.ContainsFunc(left, func(other []*onnx.Value) bool { return sameNames(chain, other) })
		})
	}
	list := make([]*sum, len(chains))
	for i, chain := range chains {
		list[i] = &sum{typ: chain[0].Type}
		for _, v := range chain {
			list[i].outputs = append(list[i].outputs, v.Name)
		}
	}
	return list, nil
}

// takeSums takes the memory of a step's sums from a session of ONNX Runtime.
func (s *Session) takeSums(session *ort.Session) (err error) {
	for _, sum := range s.sums {
		shape, _ := sum.typ.Shape.Ints() // its extents are known
		if sum.value, err = session.NewDeviceTensor(ortType(sum.typ.DType), shape); err != nil {
			return err
		}
	}
	return nil
}

// dropSums gives back what no step returns.
func (s *Session) dropSums() {
	for _, sum := range s.sums {
		if sum.value != nil {
			sum.value.Close()
			sum.value = nil
		}
	}
}
