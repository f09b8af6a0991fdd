package pipeline

// The forward pass of a training graph, for evaluating it: what its loss is computed
// from, without control dependencies (which would bring backward in), with dropout off,
// and with running statistics in place of the batch's.

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
)

// useRunning lets normalizations use what is stored: the buffers that a training graph
// moves, or what a node of a forward model reads and would move, also in control flow.
func useRunning(m *onnx.Model) error {
	g := m.Graph
	for _, s := range step.Statistics(g) {
		switch n, kept := s.Batch.Producer, g.Value(s.Buffer); {
		case kept == nil:
		case traits.ComputesStatistics(n):
			n.SetInput(2+s.Batch.Index, inTypeOf(g, n.In(2+s.Batch.Index), kept))
		default: // the node was replaced
			g.ReplaceUses(s.Batch, inTypeOf(g, s.Batch, kept))
		}
	}
	for _, n := range g.Nodes {
		if !traits.ComputesStatistics(n) || !hasStored(n) {
			continue
		}
		n.RemoveAttr("training_mode")
		for i := 1; i < len(n.Outputs); i++ {
			if v := n.Outputs[i]; v != nil {
				if i < 3 {
					g.ReplaceUses(v, n.Inputs[2+i])
				}
				n.DropOutput(i)
			}
		}
		n.Outputs = n.Outputs[:1]
	}
	return m.EditSubgraphs("BatchNormalization", useRunning)
}

// dropNothing turns Dropout off, in control flow too: its input takes its place, also where
// grad has the mask multiply it.
func dropNothing(m *onnx.Model) error {
	g := m.Graph
	g.RemoveDead()
	for _, n := range slices.Clone(g.Nodes) {
		if !n.Is("Dropout") || n.In(0) == nil || n.In(2) == nil {
			continue
		}
		if mask := n.Out(1); mask != nil {
			for product, factor := range masked(n.Inputs[0].Behind("Cast"), mask) {
				g.ReplaceUses(product, factor)
			}
		}
		if n.Out(0) == nil || n.Out(0).IsOutput() {
			n.SetInput(2, nil)
		} else {
			g.ReplaceUses(n.Outputs[0], n.Inputs[0])
		}
	}
	g.RemoveDead()
	for _, n := range g.Nodes {
		if n.Is("Dropout") && n.Out(1) != nil && !n.Out(1).Dead() {
			return fmt.Errorf("node %q (Dropout): its mask %q is read by more than a product with its input, so it cannot be turned off", n.Label(), n.Out(1).Name)
		}
	}
	return m.EditSubgraphs("Dropout", dropNothing)
}

// masked are the products of x with a mask of its Dropout, which may be cast and scaled before,
// with x as they read it.
func masked(x, mask *onnx.Value) map[*onnx.Value]*onnx.Value {
	products := map[*onnx.Value]*onnx.Value{}
	for _, u := range mask.Uses() {
		n := u.Node
		switch {
		case u.Index == onnx.Captured || n.Out(0) == nil || n.Out(0).IsOutput() || !n.Is("Cast", "Mul", "Div"):
		case n.Is("Mul") && n.In(1-u.Index).Behind("Cast") == x:
			products[n.Outputs[0]] = n.In(1 - u.Index)
		case u.Index == 0 || n.Is("Mul"):
			maps.Copy(products, masked(x, n.Outputs[0]))
		}
	}
	return products
}

// inTypeOf is a given value in the type of another, which --precision may have made half.
func inTypeOf(g *onnx.Graph, like, given *onnx.Value) *onnx.Value {
	d := like.Type.DType
	if d == onnx.Undefined || d == given.Type.DType {
		return given
	}
	n := g.NewNode("", "Cast", "", []*onnx.Value{given}, []string{g.FreshValueName(given.Name + "/" + d.String())}, onnx.IntAttr("to", int64(d)))
	n.Outputs[0].Type = given.Type
	n.Outputs[0].Type.DType = d
	g.Nodes = slices.Insert(g.Nodes, 0, n)
	return n.Outputs[0]
}

// hasStored reports a node that reads given statistics, not zeros to write over, and of
// which nobody reads what has no twin among them.
func hasStored(n *onnx.Node) bool {
	for _, v := range n.Outputs[min(3, len(n.Outputs)):] {
		if v != nil && !v.Dead() {
			return false
		}
	}
	given := func(v *onnx.Value) bool {
		v = v.Behind("Cast")
		return v != nil && (v.IsInput() || v.Init != nil)
	}
	return given(n.In(3)) && given(n.In(4))
}

// Forward is a copy of the model that returns the loss alone. Parameters stay inputs,
// named as they are, and so do inputs that data come in by, read or not: batches of the
// source fit. A forward model is returned without its other outputs. It lives as long as
// the source.
func (s *Source) Forward(roles step.Roles) (*onnx.Model, error) {
	m, err := s.copy()
	if err != nil {
		return nil, err
	}
	g := m.Graph
	loss := g.Value(roles.Loss)
	if loss == nil || !loss.IsOutput() {
		return nil, fmt.Errorf("%s: no output is known to be the loss: name it with --roles, or add one with remat loss", s.Path)
	}
	fed, err := fedInputs(m, roles)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	control.Lift(g)
	g.RemoveOutputs(func(v *onnx.Value) bool { return v != loss })
	if err := useRunning(m); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	if err := dropNothing(m); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	for _, v := range slices.Clone(g.Inputs) {
		if v.Dead() && v.Init == nil && !slices.Contains(fed, v) {
			g.RemoveInput(v)
		}
	}
	return m, step.Roles{Loss: roles.Loss}.Write(m)
}
