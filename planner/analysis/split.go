package analysis

import (
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
)

// Forward is what runs before the loss: what it is computed from, and what it only
// waits for, as for derivatives that rewrite/grad makes early. (In a step of micro-batches
// the forward part of each waits for the backward part of the one before: there it is what
// the loss is computed from alone.) All else is
// backward: gradients follow from forward values, and from a seed that may be a
// constant, so nothing has to lead from the loss to them.

// split marks the operators that the loss needs, by the dependencies that make forward.
func (a *Analysis) split(by step.Dependency) {
	p := a.Problem
	loss := a.loss()
	if loss != ortmodel.None {
		p.Loss = loss
	}
	if loss == ortmodel.None || !a.Roles.Training() {
		for i := range p.Ops { // no gradients: all of it is forward
			p.Ops[i].Forward = true
		}
		return
	}
	forward := a.deps.Backward(by, a.Values[loss])
	for i := range p.Ops {
		p.Ops[i].Forward = forward.At(i)
	}
}

func (a *Analysis) loss() int {
	for v, value := range a.Values {
		if value.Name == a.Roles.Loss && a.Roles.Loss != "" {
			return v
		}
	}
	return ortmodel.None
}

// dependency is step.DependencyOf, but for Constant nodes: ONNX Runtime makes
// initializers of them, on which nothing waits.
func dependency(v *onnx.Value, u onnx.Use) step.Dependency {
	if v.Producer != nil && v.Producer.Is("Constant") {
		return 0
	}
	return step.DependencyOf(v, u)
}

// reads lists what an operator reads, None left out.
func (a *Analysis) reads(op int) []int {
	n := &a.Problem.Graph.Nodes[op]
	var list []int
	for _, from := range [][]int{n.Inputs, n.Captures} {
		for _, v := range from {
			if v != ortmodel.None {
				list = append(list, v)
			}
		}
	}
	return list
}

// assignRoles gives every value its role.
func (a *Analysis) assignRoles(g *onnx.Graph) {
	p := a.Problem
	forward := make([]bool, len(a.Values))
	for i := range p.Graph.Nodes {
		if p.Ops[i].Forward {
			for _, v := range p.Graph.Nodes[i].Outputs {
				if v != ortmodel.None {
					forward[v] = true
				}
			}
		}
	}
	used := a.readForLoss()
	for v, value := range a.Values {
		info := &p.Values[v]
		switch kind := p.Graph.Values[v].Kind; {
		case a.Roles.Grad[value.Name] != "", kind == ortmodel.Constant && value.Type.DType.IsFloat() && a.elements(value) > 1:
			info.Role = planner.Parameter
		case kind == ortmodel.Constant:
			info.Role = planner.Index
		case kind == ortmodel.Feed && a.Roles.New[value.Name] != "" && used[v]:
			info.Role = planner.Parameter
		case kind == ortmodel.Feed && a.Roles.New[value.Name] != "":
			info.Role = planner.State
		case kind == ortmodel.Feed:
			info.Role = planner.Feed
		case forward[v] && value.Type.DType.IsInt() && v != p.Loss, kind == ortmodel.Inner && !value.Type.Ranked:
			info.Role = planner.Index
		case forward[v]:
			info.Role = planner.Activation
		case kind == ortmodel.Output:
			info.Role = planner.Returned
		case value.Type.DType.IsInt():
			info.Role = planner.Index
		default:
			info.Role = planner.Gradient
		}
	}
	if a.opts.Outputs == step.Returned {
		return
	}
	if a.opts.Outputs == step.Rows {
		for _, chain := range step.SumsOf(g, a.Roles) {
			a.HoldInOne(&p.Graph, chain)
		}
	}
	for in, name := range a.Roles.New { // bound onto the inputs that they update
		if old := g.Value(in); old == nil || old.Init != nil {
			continue // an initializer stays what it is
		}
		next := g.Value(name)
		if next == nil || next.Producer == nil {
			continue
		}
		for _, v := range step.BoundWith(next, a.opts.Outputs) {
			if id := a.Index[v]; p.Graph.Values[id].Kind == ortmodel.Output {
				p.Graph.Values[id].Kind = ortmodel.Bound
			}
		}
	}
}

// HoldInOne puts outputs into one memory, of the size of each, that is held from the step's
// begin.
func (a *Analysis) HoldInOne(g *ortmodel.Graph, chain []*onnx.Value) {
	for _, v := range chain {
		g.Values[a.Index[v]].Kind = ortmodel.Bound
	}
	g.Held += g.Values[a.Index[chain[0]]].Bytes
}

// readForLoss marks the values whose elements the loss depends on; what it only
// waits for is not among them. Without a loss it marks what forward reads.
func (a *Analysis) readForLoss() []bool {
	used := make([]bool, len(a.Values))
	if loss := a.loss(); loss != ortmodel.None {
		for v := range a.deps.Backward(step.Data, a.Values[loss]).Reads() {
			used[a.Index[v]] = true
		}
		return used
	}
	for i := range a.Nodes {
		if a.Problem.Ops[i].Forward {
			for _, v := range a.reads(i) {
				used[v] = true
			}
		}
	}
	return used
}
