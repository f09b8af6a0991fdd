package optim

// The part of one rank in a graph of updates whose parameters are divided among several
// (ZeRO stage 1, Rajbhandari et al. 2020, arXiv 1910.02054): a parameter is updated by its
// owner, which alone has its optimizer state. What depends on all gradients is their norm:
//
//	graph of squares   P.acc of the own ─▶ squares of each ─▶ own_squares
//	                   the ranks exchange them
//	graph of updates   gradient_squares of all ─▶ norm ─▶ updates of the own
//
// The nodes are those of the whole graph, so the bits are too.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// SquaresInput is the input of a rank's part for the squares of all gradients, float32 [N]
// in the order of AllSquares. OwnSquares is the output of the other graph.
const (
	SquaresInput = "gradient_squares"
	OwnSquares   = "own_squares"
)

// AllSquares names the parameters whose squares a graph of updates joins, in their order;
// nil where no update and no output asks for a norm of all.
func AllSquares(m *onnx.Model) []string {
	join := joined(m)
	if join == nil {
		return nil
	}
	names := make([]string, len(join.Inputs))
	for i, v := range join.Inputs {
		names[i] = UpdateOf(v)
	}
	return names
}

// UpdateOf is the parameter whose update makes a value of a graph of updates, "" where it
// belongs to none.
func UpdateOf(v *onnx.Value) string {
	if v == nil || v.Producer == nil {
		return ""
	}
	return v.Producer.Origin().Of
}

func joined(m *onnx.Model) *onnx.Node {
	i := slices.IndexFunc(m.Graph.Nodes, func(n *onnx.Node) bool {
		o := n.Origin()
		return o.Pass == Pass && o.Step == rowsStep
	})
	if i < 0 {
		return nil
	}
	return m.Graph.Nodes[i]
}

// OwnUpdates leaves of a graph of updates those of some parameters, and what belongs to
// none.
func OwnUpdates(m *onnx.Model, own func(param string) bool) error {
	g := m.Graph
	if join := joined(m); join != nil {
		rows := join.Outputs[0]
		in := g.AddInput(SquaresInput, onnx.TensorOf(onnx.Float32, onnx.StaticShape(int64(len(join.Inputs)))))
		g.ReplaceUses(rows, in)
	}
	g.RemoveOutputs(func(v *onnx.Value) bool { return UpdateOf(v) != "" && !own(UpdateOf(v)) })
	return trimmed(m)
}

// OwnSquaresOnly leaves of a graph of updates what makes the squares of some parameters.
func OwnSquaresOnly(m *onnx.Model, own func(param string) bool) error {
	g, join := m.Graph, joined(m)
	rows := slices.DeleteFunc(slices.Clone(join.Inputs), func(v *onnx.Value) bool { return !own(UpdateOf(v)) })
	g.RemoveOutputs(func(*onnx.Value) bool { return true })
	if len(rows) > 0 {
		n := g.NewNode("", "Concat", prefix+OwnSquares, rows, []string{OwnSquares}, onnx.IntAttr("axis", 0))
		g.Append(n)
		n.Outputs[0].Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape(int64(len(rows))))
		g.AddOutput(n.Outputs[0])
	}
	return trimmed(m)
}

// trimmed takes away what no output needs, and the roles of it.
func trimmed(m *onnx.Model) error {
	g := m.Graph
	g.RemoveDead()
	for _, v := range slices.Clone(g.Inputs) {
		if v.Dead() && v.Init == nil {
			g.RemoveInput(v)
		}
	}
	r, _, err := step.RolesOf(m, nil)
	if err != nil {
		return err
	}
	return r.Within(g).Write(m)
}
