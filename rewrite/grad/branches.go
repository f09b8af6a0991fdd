package grad

// Branches of an If that the run decides. Both are computed, and Where takes one, so the
// gradient of the other is 0. On the way back through that branch it may meet a slope that is
// not finite, as of the division that the If was to keep from happening, and 0/0 is no number.
// So nothing leaves a branch that was not taken:
//
//	forward   v ──guard──▶ branch ──▶ Where(cond, …)
//	backward  Where(cond, dv, 0) ◀──guard── NaN ◀── branch ◀── 0
//
// What belongs to a branch is what only its Where reads, by way of what belongs to it.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

// A guard is an Identity at the entrance of a branch.
type guard struct {
	cond *onnx.Value
	side int // the input of the Where that the branch makes
}

// guardBranches puts guards before all branches. They go again with removeGuards.
func (e *engine) guardBranches() {
	e.guards = map[*onnx.Node]guard{}
	for _, n := range slices.Clone(e.m.Graph.Nodes) {
		if normalize.TakesBranch(n) {
			e.guardBranch(guard{n.In(0), 1}, n)
			e.guardBranch(guard{n.In(0), 2}, n)
		}
	}
}

// guardBranch guards what the Where n takes by one side.
func (e *engine) guardBranch(b guard, n *onnx.Node) {
	nodes := e.m.Graph.Nodes
	belongs := map[*onnx.Node]bool{}
	within := func(u onnx.Use) bool {
		other := u.Node == n || normalize.TakesBranch(u.Node) && u.Node.In(0) == b.cond
		return u.Index != onnx.Captured && (belongs[u.Node] || other && u.Index == b.side)
	}
	for i := slices.Index(nodes, n) - 1; i >= 0; i-- {
		inside, read := true, false
		for _, v := range nodes[i].Outputs {
			if v != nil {
				inside = inside && !v.IsOutput() && !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !within(u) })
				read = read || len(v.Uses()) > 0
			}
		}
		if inside && read {
			belongs[nodes[i]] = true
		}
	}
	guarded := map[*onnx.Value]*onnx.Value{}
	for _, by := range slices.Clone(nodes) {
		if !belongs[by] {
			continue
		}
		for i, v := range by.Reads() {
			if !e.needs[v] || v.Producer != nil && (belongs[v.Producer] || e.guards[v.Producer].cond == b.cond) {
				continue
			}
			if guarded[v] == nil {
				at := e.m.Graph.NewNode("", "Identity", "remat/guard/"+v.Name, []*onnx.Value{v}, []string{v.Name + ".guarded"})
				at.Out(0).Type = v.Type
				e.m.Graph.InsertBefore(by, at)
				guarded[v], e.guards[at], e.needs[at.Out(0)] = at.Out(0), b, true
			}
			by.SetInput(i, guarded[v])
		}
	}
}

// guardRule is the row of a guard.
var guardRule = Rule{Op: "Identity", Since: 1, Doc: "g where the branch is taken", Grad: func(c *Context) {
	b, g := c.e.guards[c.Node], c.Loose(0)
	if g == nil {
		return
	}
	values := []*onnx.Value{g, c.Scalar(g, 0)}
	if b.side == 2 {
		slices.Reverse(values)
	}
	c.Add(0, c.Where(b.cond, values[0], values[1]))
}}

// removeGuards lets readers of guarded values read the values themselves.
func (e *engine) removeGuards() {
	var gone []*onnx.Node
	for _, n := range e.m.Graph.Nodes {
		if _, ok := e.guards[n]; ok {
			e.m.Graph.ReplaceUses(n.Out(0), n.In(0))
			gone = append(gone, n)
		}
	}
	e.m.Graph.Remove(gone...)
}
