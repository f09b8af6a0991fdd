package rewrite

// Applying a planner.Program: the program lists every execution of every
// operator in the wanted order. Its first execution is the node that is there,
// each further one a clone that carries the original's name. Readers are led to
// the instance that the program names, and where it asks for a control dependency
// the input is led past one (package control). Nothing is decided here.

import (
	"errors"
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/control"
)

// A Target is a graph with the problem that was made from it: node i is
// Problem.Ops[i], value i is Problem.Values[i].
type Target struct {
	Model  *onnx.Model
	Nodes  []*onnx.Node
	Values []*onnx.Value
	// Instances are the nodes of the program's instances, which Recompute
	// notes.
	Instances []*onnx.Node
}

// Recompute rewrites the target as the program says and returns the nodes in
// the program's order, clones and lowered edges included; the graph's own node list
// is set to that order, which is topological.
func Recompute(t *Target, prog *planner.Program) ([]*onnx.Node, Report, error) {
	r := &recomputer{
		target: t, graph: t.Model.Graph, edges: build.New(t.Model.Graph, nil, onnx.RecomputePass),
		clones: map[planner.ValueInstance]*onnx.Value{},
		report: Report{Pass: "recompute"},
	}
	erasedFrom := -1
	for i := range prog.Instances {
		if i == prog.ErasedFrom() {
			erasedFrom = len(r.order)
		}
		if err := r.instance(&prog.Instances[i]); err != nil {
			return nil, r.report, fmt.Errorf("pass recompute: %w", err)
		}
	}
	err := r.lower(erasedFrom)
	if err == nil {
		r.order, err = useMasks(r.graph, r.order)
	}
	if err != nil {
		return nil, r.report, fmt.Errorf("pass recompute: %w", err)
	}
	r.graph.Nodes = r.order
	return r.order, r.report, nil
}

type recomputer struct {
	target *Target
	graph  *onnx.Graph
	edges  *build.Builder
	clones map[planner.ValueInstance]*onnx.Value
	order  []*onnx.Node
	report Report

	valueIndex map[*onnx.Value]int
}

// instance emits one execution of the program: the node itself for the first, a
// clone for each further one.
func (r *recomputer) instance(in *planner.Instance) error {
	n := r.target.Nodes[in.Op]
	if in.Copy > 0 {
		r.report.Requested++
	}
	inputs, err := r.inputs(n, in)
	if err != nil {
		return err
	}
	r.order = append(r.order, r.edges.Take()...)
	if in.Copy == 0 {
		for i, v := range inputs {
			if n.Inputs[i] != v {
				n.SetInput(i, v)
			}
		}
		r.add(n)
		return nil
	}
	c := r.graph.CloneNode(n, inputs, func(name string) string {
		return fmt.Sprintf("remat/recompute/%s", name)
	})
	c.SetModule(n.Module())
	o := onnx.Origin{Pass: onnx.RecomputePass, Of: n.Label()}
	if n.Hides() {
		o.Step = onnx.HiddenStep // the copy's type is as little ONNX Runtime's to know
	}
	c.SetOrigin(o)
	for i, v := range r.graphOutputs(in.Op) {
		if v != ortmodel.None && c.Outputs[i] != nil {
			r.clones[planner.ValueInstance{Value: v, Copy: in.Copy}] = c.Outputs[i]
		}
	}
	r.add(c)
	r.report.Applied++
	return nil
}

// lower lowers the edges, and erases shapes from the node at a place of the order
// on, unless that is negative.
func (r *recomputer) lower(erase int) error {
	edges := control.NewLowering(r.graph)
	head, err := edges.Lower(r.order[:max(erase, 0)])
	if err != nil {
		return err
	}
	tail, err := edges.Lower(r.order[max(erase, 0):])
	if err != nil {
		return err
	}
	r.order = append(head, tail...)
	if erase >= 0 {
		if r.order, err = control.Erase(r.graph, r.order, len(head)); errors.Is(err, control.ErrNoInput) {
			r.report.skip("shapes", "%v", err)
			return nil
		}
	}
	return err
}

func (r *recomputer) add(n *onnx.Node) {
	r.order = append(r.order, n)
	r.target.Instances = append(r.target.Instances, n)
}

// graphOutputs numbers the outputs of an operator as the problem does.
func (r *recomputer) graphOutputs(op int) []int {
	n := r.target.Nodes[op]
	out := make([]int, len(n.Outputs))
	for i, v := range n.Outputs {
		out[i] = ortmodel.None
		if v != nil {
			out[i] = r.index(v)
		}
	}
	return out
}

func (r *recomputer) index(v *onnx.Value) int {
	if r.valueIndex == nil {
		r.valueIndex = make(map[*onnx.Value]int, len(r.target.Values))
		for i, w := range r.target.Values {
			r.valueIndex[w] = i
		}
	}
	if i, ok := r.valueIndex[v]; ok {
		return i
	}
	return ortmodel.None
}

// inputs are the values that an execution reads, through its barriers.
func (r *recomputer) inputs(n *onnx.Node, in *planner.Instance) ([]*onnx.Value, error) {
	inputs := make([]*onnx.Value, len(n.Inputs))
	for i := range inputs {
		if n.Inputs[i] == nil {
			continue
		}
		v, err := r.value(in.Inputs[i])
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", n.Label(), err)
		}
		inputs[i] = v
	}
	for _, b := range in.Barriers {
		trigger, err := r.value(b.Trigger)
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", n.Label(), err)
		}
		inputs[b.Input] = control.Wait(r.edges, inputs[b.Input], trigger)
	}
	for _, c := range in.Captures {
		if c.Copy > 0 {
			return nil, fmt.Errorf("node %q: its subgraph reads a recomputed value, which is not supported: keep %q", n.Label(), r.target.Values[c.Value].Name)
		}
	}
	return inputs, nil
}

// value is the instance of a value that the program names.
func (r *recomputer) value(v planner.ValueInstance) (*onnx.Value, error) {
	if v.Copy == 0 {
		return r.target.Values[v.Value], nil
	}
	c := r.clones[v]
	if c == nil {
		return nil, fmt.Errorf("reads copy %d of %q before it is produced", v.Copy, r.target.Values[v.Value].Name)
	}
	return c, nil
}
