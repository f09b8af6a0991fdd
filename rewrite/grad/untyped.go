package grad

// Outputs that the loss does not need and whose sizes nobody knows: what scikit-learn's exporter
// adds to a network for whoever predicts, or an operator of the author's own.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// dropUntyped removes outputs other than the loss that come of operators that make what has no
// known size, unless the loss needs these too, and says so: no step that returns
// them could be planned.
func dropUntyped(g *onnx.Graph, loss *onnx.Value, res *Result) {
	if !slices.ContainsFunc(g.Nodes, untyped) {
		return
	}
	deps := step.DependenciesOf(g)
	needed := deps.Backward(step.Any, loss)
	for i := len(g.Outputs) - 1; i >= 0; i-- {
		v := g.Outputs[i]
		if v == loss {
			continue
		}
		for _, n := range deps.Backward(step.Any, v).Nodes() {
			if needed.Has(n) || !untyped(n) {
				continue
			}
			g.RemoveOutput(i)
			res.warn("output %q is left out: the loss does not need it, and node %q, %s, makes a value of unknown size", v.Name, n.Label(), operatorOf(n))
			break
		}
	}
}

// untyped reports a node that makes something of no known size, because no shape inference
// knows its operator or it makes texts. Lists of tensors are others' to judge.
func untyped(n *onnx.Node) bool {
	if isList(n.OpType()) && n.Domain() == "" {
		return false
	}
	for _, v := range n.Returns() {
		if v.Type.DType == onnx.String || v.Type.DType == onnx.Undefined && !operatorOf(n).Known() {
			return true
		}
	}
	return false
}

func operatorOf(n *onnx.Node) infer.Operator {
	return infer.Operator{Domain: n.Domain(), Op: n.OpType()}
}
