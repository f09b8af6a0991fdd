package data

// What a graph does with its integer inputs. Values are followed forward, in the
// order of the nodes, through operators that hand integers on as they are, to the
// nodes that tell what they mean:
//
//	Gather of a table of floats     an index: of tokens, positions, kinds
//	a cross entropy's target        labels
//	a condition, a comparison       a mask
//
// Only nodes that the loss needs elements from count, so that the backward pass of a
// training graph, which reads ids and labels again, does not.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/runtime"
)

// A meaning is what the graph does with the values of one input.
type meaning struct {
	input *onnx.Value
	// tables are the rows of the tables that it indexes; -1: not known.
	tables []int64
	// targets are the places where a loss compares with it.
	targets []onnx.Use
	// logical: it becomes a condition; angular: a sine or cosine is taken of it.
	logical, angular bool
	// constants are what it is compared with for equality, replaced those in whose place
	// another value is read on.
	constants, replaced []int64
}

// A graphReading is what is known of the graph around its inputs.
type graphReading struct {
	graph    *onnx.Graph
	known    *infer.Result
	deps     *step.Dependencies
	loss     *onnx.Value
	forward  *step.Slice // nil: no loss is known, and every node counts
	meanings []*meaning
}

// readGraph follows the inputs; of those that are not of floats, the first 64. The
// model's types must be inferred.
func readGraph(m *onnx.Model, known *infer.Result, loss *onnx.Value, inputs []*onnx.Value) *graphReading {
	r := &graphReading{graph: m.Graph, known: known, loss: loss, deps: step.DependenciesOf(m.Graph)}
	if loss != nil {
		r.forward = r.deps.Backward(step.Data, loss)
	}
	holds := map[*onnx.Value]uint64{} // the inputs whose values a value holds
	var followed []*meaning
	for _, v := range inputs {
		x := &meaning{input: v}
		r.meanings = append(r.meanings, x)
		if len(followed) < 64 && !v.Type.DType.IsFloat() {
			holds[v] = 1 << len(followed)
			x.angular = r.angular(v)
			followed = append(followed, x)
		}
	}
	for _, n := range m.Graph.Nodes {
		if r.forward != nil && !r.forward.Has(n) {
			continue
		}
		for i, v := range n.Reads() {
			if holds[v] == 0 {
				continue
			}
			u := onnx.Use{Node: n, Index: i}
			for k, x := range followed {
				if holds[v]&(1<<k) != 0 {
					r.learn(x, u)
				}
			}
			if runtime.HandsOn(u) {
				for _, o := range n.Returns() {
					if !o.Type.DType.IsFloat() {
						holds[o] |= holds[v]
					}
				}
			}
		}
	}
	return r
}

// learn adds what one use of an input's values tells.
func (r *graphReading) learn(x *meaning, u onnx.Use) {
	n := u.Node
	switch {
	case isTarget(u):
		x.targets = append(x.targets, u)
	case u.Index == 1 && looksUp(n):
		rows, known := n.In(0).Type.Extent(n.Int(lookups[n.OpType()], 0))
		if !known {
			rows = -1
		}
		x.tables = append(x.tables, rows)
	case n.Is("Cast") && n.Int("to", 0) == int64(onnx.Bool), n.Is("Not", "And", "Or"), n.Is("Where") && u.Index == 0:
		x.logical = true
	case n.Is("Where"):
		if c, ok := r.keptBut(u); ok {
			x.replaced = append(x.replaced, c)
		}
	case n.Is("Equal"):
		x.logical = true
		if c, ok := r.comparedWith(u); ok {
			x.constants = append(x.constants, c)
		}
	case n.Is("Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
		x.logical = true
	}
}

// lookups are the operators that read rows of a table, with the attribute that names the
// axis of the rows.
var lookups = map[string]string{"Gather": "axis", "GatherBlockQuantized": "gather_axis"}

// looksUp reports a lookup in a table of floats, or of the codes that stand for them.
func looksUp(n *onnx.Node) bool {
	t := n.In(0)
	packed := n.Domain() == "com.microsoft" && n.OpType() == "GatherBlockQuantized"
	return t != nil && t.Type.Ranked && len(t.Type.Shape) > 1 && (packed || n.Is("Gather") && t.Type.DType.IsFloat())
}

// comparedWith is the number that one side of an Equal is compared with.
func (r *graphReading) comparedWith(u onnx.Use) (int64, bool) {
	c, ok := r.known.Int64s(u.Node.In(1 - u.Index))
	if !ok || len(c) != 1 {
		return 0, false
	}
	return c[0], true
}

// keptBut is the number in whose place a Where that is given a value has another, as
// in Where(Equal(v, 255), 0, v).
func (r *graphReading) keptBut(u onnx.Use) (int64, bool) {
	cond, differs := u.Node.In(0).Producer, false
	if cond != nil && cond.Is("Not") {
		cond, differs = cond.In(0).Producer, true
	}
	if cond == nil || !cond.Is("Equal") || differs != (u.Index == 1) {
		return 0, false
	}
	for i, v := range cond.Inputs {
		if v == u.Node.In(u.Index) {
			return r.comparedWith(onnx.Use{Node: cond, Index: i})
		}
	}
	return 0, false
}

// isTarget reports a use as the classes that a loss compares with.
func isTarget(u onnx.Use) bool {
	n := u.Node
	switch n.OpType() {
	case "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLossInternal", "NegativeLogLikelihoodLossInternal":
		return u.Index == 1
	case "GatherElements", "GatherND":
		// Of what was computed, not of a table.
		d := n.In(0)
		return u.Index == 1 && d != nil && d.Type.DType.IsFloat() && d.Producer != nil && d.Constant() == nil
	case "OneHot":
		return u.Index == 0
	}
	return false
}

// angular reports that a sine or cosine depends on the values of v.
func (r *graphReading) angular(v *onnx.Value) bool {
	return slices.ContainsFunc(r.deps.Forward(step.Data, v).Nodes(), func(n *onnx.Node) bool { return n.Is("Sin", "Cos") })
}

// classes is the number of classes that the loss tells apart at a use as labels, 0
// where that is not known.
func classes(u onnx.Use) int64 {
	axis := int64(1)
	switch u.Node.OpType() {
	case "OneHot":
		if depth, ok := u.Node.In(1).Number(); ok {
			return int64(depth)
		}
		return 0
	case "GatherElements":
		axis = u.Node.Int("axis", 0)
	case "GatherND":
		axis = -1
	}
	n, _ := u.Node.In(0).Type.Extent(axis)
	return n
}

// meanOfAll reports a loss that is a mean over all that a batch has: labels that it leaves
// out are zeros in it, and each batch weighs the same.
func (r *graphReading) meanOfAll(v *onnx.Value) bool {
	if v == nil || v.Producer == nil {
		return false
	}
	n := v.Producer
	switch {
	case traits.IsView(n), n.Is("Cast", "Neg"), n.Is("Div", "Mul") && n.In(1).Stored():
		return r.meanOfAll(n.In(0))
	case n.Is("Mul") && n.In(0).Stored():
		return r.meanOfAll(n.In(1))
	case n.Is("Add", "Sub"):
		return !slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return !v.Stored() && !r.meanOfAll(v) })
	case n.Is("ReduceMean"):
		x := n.In(0)
		if x.Type.Ranked && x.Type.Shape.Elements().Is(1) {
			return r.meanOfAll(x)
		}
		return x.Type.Ranked && !slices.ContainsFunc(x.Type.Shape, r.counted)
	}
	return false
}

// counted reports a size that no input has, as of what a condition picks.
func (r *graphReading) counted(d onnx.Dim) bool {
	if _, known := d.Int(); !known && len(d.Symbols()) == 0 {
		return true
	}
	known := r.graph.InputSymbols()
	return slices.ContainsFunc(d.Symbols(), func(symbol string) bool { return !known[symbol] })
}

// ignoredBy is the label that the loss leaves out: as the loss says; in the graph of a
// loss that was taken apart, the one that is replaced on the way to it; or else a negative
// number that labels are compared with.
func ignoredBy(x *meaning) (label int64, ignores bool) {
	for _, u := range x.targets {
		if u.Node.Has("ignore_index") {
			return u.Node.Int("ignore_index", 0), true
		}
	}
	if len(x.replaced) > 0 {
		return x.replaced[0], true
	}
	for _, c := range x.constants {
		if c < 0 {
			return c, true
		}
	}
	return 0, false
}
