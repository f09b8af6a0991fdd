// Package analysis turns a graph into a planning problem: sizes, work, what
// shares a buffer with what, which part is forward and which follows from it,
// what each input and output is for, and where the layers end. It goes by the
// graph's structure; names are only used where a file states roles itself.
//
//	onnx.Graph ─▶ sizes.go    bytes and classes of buffers
//	           ─▶ cost.go     FLOPs and bytes moved
//	           ─▶ split.go    what the loss needs is forward, the rest backward
//	           ─▶ roles.go    loss, gradients, updated state
//	           ─▶ cuts.go     single-value cuts, what lives anyway set aside
//	           ─▶ layers.go   and their repetition (repeat.go)
//	           ─▶ planner.Problem
//
// The graph's types must be inferred (package onnx/infer) before.
package analysis

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
)

// Options steer the analysis.
type Options struct {
	// Dims are numbers for the free dimensions, by symbol. What stays free
	// counts as 1.
	Dims map[string]int64
	// Threads is the number of threads that kernels will use; 0 means 1.
	Threads int
	// On is whose kernels run the graph; nil: the CPU's.
	On *step.Provider
	// Roles overrides what is found.
	Roles *step.Roles
	// Costs are measured times in nanoseconds by node name. If there are any,
	// they replace the estimate of work; see measured.
	Costs map[string]int64
	// Shapes are those of values that data alone tells, by name; see infer.Options.
	Shapes map[string]onnx.Shape
	// Outputs says whether next values are written over their inputs; "": as the file
	// says.
	Outputs step.Outputs
	// Sides says that only the sides of the operators, their work and the roles are asked
	// for: the problem has no layers, and is none to plan.
	Sides bool
}

// An Analysis is a problem with the way back to the graph: node i and value v
// of the problem are Nodes[i] and Values[v].
type Analysis struct {
	Problem *planner.Problem
	Nodes   []*onnx.Node
	Values  []*onnx.Value
	// Index finds the number of a value.
	Index map[*onnx.Value]int
	Roles step.Roles
	// Unsized lists values whose size is not known; they count as empty.
	Unsized []string
	// Counted are the operations of each node, where Options.Costs stand in the
	// problem in their place; else nil.
	Counted []int64

	opts Options
	// batches says where the layers of a step over micro-batches end; nil: it is whole.
	batches *Layering
	deps    *step.Dependencies
	told    map[*onnx.Value]onnx.Type
}

// Analyze makes the planning problem of a model.
func Analyze(m *onnx.Model, o Options) (*Analysis, error) {
	way, err := step.OutputsOf(m, o.Outputs)
	if err != nil {
		return nil, err
	}
	o.Outputs = way
	a := &Analysis{Problem: &planner.Problem{Loss: ortmodel.None}, opts: o}
	if a.batches, err = layeringOf(m); err != nil {
		return nil, err
	}
	if err := a.tell(m); err != nil {
		return nil, err
	}
	g := m.Graph
	a.translate(m)
	a.deps = step.DependenciesBy(g, dependency)
	if err := a.findRoles(m); err != nil {
		return nil, err
	}
	a.measured()
	a.split(step.ForwardBy(m))
	a.assignRoles(g)
	if o.Sides {
		return a, nil
	}
	a.FindLayers()
	a.uniqueNames()
	a.Problem.Static = a.static()
	if err := a.Problem.Validate(); err != nil {
		return nil, fmt.Errorf("analysis: %w", err)
	}
	return a, nil
}

// On is the analysis of a graph with the nodes and values of a copy of that graph, which
// get the graph's inferred types.
func (a *Analysis) On(g, clone *onnx.Graph) (*Analysis, error) {
	if len(g.Nodes) != len(clone.Nodes) {
		return nil, fmt.Errorf("analysis: the copy of a graph of %d nodes has %d", len(g.Nodes), len(clone.Nodes))
	}
	twin := make(map[*onnx.Node]*onnx.Node, len(g.Nodes))
	for i, n := range g.Nodes {
		twin[n] = clone.Nodes[i]
	}
	on := *a
	on.told = map[*onnx.Value]onnx.Type{}
	on.deps, on.Nodes, on.Values, on.Index = nil, make([]*onnx.Node, len(a.Nodes)), make([]*onnx.Value, len(a.Values)), make(map[*onnx.Value]int, len(a.Values))
	for i, n := range a.Nodes {
		if on.Nodes[i] = twin[n]; on.Nodes[i] == nil {
			return nil, fmt.Errorf("analysis: the copy of the graph has no node %s", n.Label())
		}
	}
	for i, v := range a.Values {
		w := clone.Value(v.Name)
		if w == nil {
			return nil, fmt.Errorf("analysis: the copy of the graph has no value %s", v.Name)
		}
		w.Type = v.Type
		if t, ok := a.told[v]; ok {
			on.told[w] = t
		}
		on.Values[i], on.Index[w] = w, i
	}
	return &on, nil
}

// translate makes the problem's graph.
func (a *Analysis) translate(m *onnx.Model) {
	g := m.Graph
	t := step.Translate(g, step.Options{On: a.opts.On, Threads: a.opts.Threads, Type: a.sized, Opset: m.Opset("")})
	for _, list := range [][]*onnx.Value{g.Inputs, g.Initializers} {
		for _, v := range list {
			t.Add(v)
		}
	}
	facts := make([]step.Facts, len(g.Nodes))
	for i, n := range g.Nodes {
		facts[i] = t.AddNode(n)
	}
	a.Nodes, a.Values, a.Index, a.Problem.Graph = t.Nodes, t.Values, t.Index, *t.Graph
	a.Problem.Values, a.Problem.Ops = make([]planner.ValueInfo, 0, len(t.Values)), make([]planner.Op, 0, len(t.Nodes))
	for _, v := range t.Values {
		a.Problem.Values = append(a.Problem.Values, planner.ValueInfo{Name: v.Name, Wide: t.Wide(v)})
	}
	for _, v := range t.Unsized {
		a.Unsized = append(a.Unsized, v.Name)
	}
	for i, n := range a.Nodes {
		a.addOp(n, facts[i])
	}
}

// addOp adds what planning asks of an operator.
func (a *Analysis) addOp(n *onnx.Node, f step.Facts) {
	op := planner.Op{Name: n.Label(), Type: n.OpType()}
	op.Recomputable, op.Reason = recomputable(n, f.Traits, f.Known)
	op.FLOPs, op.Moved = a.cost(n, f.Traits)
	a.Problem.Ops = append(a.Problem.Ops, op)
}

// recomputable reports whether a second run gives the same bits and does
// nothing else. A node that draws random numbers does where it has a seed, which
// its clone shares: each keeps a generator, and both draw once a step.
func recomputable(n *onnx.Node, t traits.Traits, known bool) (bool, string) {
	switch {
	case !known:
		return false, "the operator is not known"
	case t.SideEffects || len(n.Subgraphs()) > 0:
		return false, "it runs a subgraph or has side effects"
	case n.Is("Constant"):
		return false, "it is a constant"
	case traits.Draws(n) && !n.Has("seed"):
		return false, "it draws random numbers without a seed that a second run could share"
	}
	for _, v := range n.Returns() {
		if v.Type.Other != nil {
			return false, "its output is not a tensor"
		}
	}
	for _, v := range n.Reads() {
		if v.Type.Ranked {
			return true, ""
		}
	}
	return false, "it has no input of known rank to put a barrier before"
}

// static reports that every computed value has a static shape, and that
// erasing shapes is understood: what ONNX Runtime releases around recurrent
// operators of unknown shapes is not.
func (a *Analysis) static() bool {
	for _, n := range a.Nodes {
		if t, known := traits.Of(n); !known || t.Cost == traits.Recurrent || t.SideEffects {
			return false
		}
		for _, v := range n.Returns() {
			if !v.Type.IsStatic() {
				return false
			}
		}
	}
	return true
}

// uniqueNames makes the names of operators unique: where a node has none, or
// another's, its first output's name is added.
func (a *Analysis) uniqueNames() {
	ops := a.Problem.Ops
	count := make(map[string]int)
	for i := range ops {
		count[ops[i].Name]++
	}
	taken := make(map[string]bool)
	for i, n := range a.Nodes {
		name := ops[i].Name
		if count[name] > 1 {
			for _, o := range n.Returns() {
				name += "/" + o.Name
				break
			}
		}
		for k := 2; taken[name]; k++ {
			name = fmt.Sprintf("%s#%d", ops[i].Name, k)
		}
		taken[name] = true
		ops[i].Name = name
	}
}
