package pipeline

// The forward pass of a training graph, for evaluating it: what its loss is computed
// from, without control dependencies (which would bring backward in), and with
// dropout off.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/control"
)

// Forward is a copy of the model that returns the loss alone. Parameters stay inputs,
// named as they are; a forward model is returned without its other outputs. It lives
// as long as the source.
func (s *Source) Forward(roles step.Roles) (*onnx.Model, error) {
	m, err := s.copy()
	if err != nil {
		return nil, err
	}
	g := m.Graph
	loss := g.Value(roles.Loss)
	if loss == nil || !loss.IsOutput() {
		return nil, fmt.Errorf("%s: no output is known to be the loss: name it with --roles", s.Path)
	}
	control.Lift(g)
	for i := len(g.Outputs) - 1; i >= 0; i-- {
		if g.Outputs[i] != loss {
			g.RemoveOutput(i)
		}
	}
	g.RemoveDead()
	for _, n := range slices.Clone(g.Nodes) {
		if n.Is("Dropout") && n.In(2) != nil && n.In(0) != nil && (n.Out(1) == nil || n.Out(1).Dead()) {
			g.ReplaceUses(n.Outputs[0], n.Inputs[0])
		}
	}
	g.RemoveDead()
	for _, v := range slices.Clone(g.Inputs) {
		if v.Dead() && v.Init == nil {
			g.RemoveInput(v)
		}
	}
	return m, step.Roles{Loss: roles.Loss}.Write(m)
}
