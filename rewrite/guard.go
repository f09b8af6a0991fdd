package rewrite

// A guard is a control dependency of a value on itself: a view, free, and a wall to
// pattern fusions. Rewriting opens new patterns: once backward reads a recomputed copy,
// a decomposed activation of the first pass has no other readers, and ONNX
// Runtime's higher levels would fuse it, which changes the order of execution
// (and the last bits). Where that happens, one edge inside the pattern is
// guarded. A pattern may also take in a node and leave what that reads, which
// others read as well: then the edges are guarded that the fused node goes round.
//
// A node may vanish without a fusion, and then no guard would bring it back: what
// is computed from constants alone is computed ahead, as is the shape of a value whose
// extents are known when the session is made, and what is computed from that; and an
// operator without a kernel becomes the nodes of its definition. And what goes round one guard goes
// round two, so an edge is guarded once: rounds of guards come to an end.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
)

// Left is what an optimizer left of a graph.
type Left struct {
	nodes map[string]bool            // names of nodes
	reads map[string]map[string]bool // names of the values read to make a value
}

// NewLeft looks at the graph that an optimizer made.
func NewLeft(g *onnx.Graph) *Left {
	l := &Left{nodes: make(map[string]bool, len(g.Nodes)), reads: make(map[string]map[string]bool, len(g.Nodes))}
	for _, n := range g.Nodes {
		l.nodes[n.Name()] = true
		names := make(map[string]bool, len(n.Inputs))
		for _, v := range n.Reads() {
			names[v.Name] = true
		}
		for _, v := range n.Returns() {
			l.reads[v.Name] = names
		}
	}
	return l
}

// Lacks counts the nodes of a graph that are not left.
func (l *Left) Lacks(g *onnx.Graph) (count int) {
	for _, n := range g.Nodes {
		if !l.nodes[n.Name()] {
			count++
		}
	}
	return count
}

// bypassed reports a value that n, which is no longer there, reads, and that
// what makes n's outputs now does not, itself or by values that g does not have.
func (l *Left) bypassed(g *onnx.Graph, n *onnx.Node, v *onnx.Value) bool {
	return slices.ContainsFunc(n.Outputs, func(o *onnx.Value) bool {
		return o != nil && l.reads[o.Name] != nil && !l.known(g, o.Name)[v]
	})
}

// known are the values of g that are read to make one, directly or by values that are not in g.
func (l *Left) known(g *onnx.Graph, of string) map[*onnx.Value]bool {
	known, seen := map[*onnx.Value]bool{}, map[string]bool{}
	var visit func(of string)
	visit = func(of string) {
		for name := range l.reads[of] {
			if v := g.Value(name); v != nil {
				known[v] = true
			} else if !seen[name] {
				seen[name] = true
				visit(name)
			}
		}
	}
	visit(of)
	return known
}

// Guard looks at the nodes that an optimizer made vanish and puts guards between
// them: one for each connected group, before its last node, with those against what
// would be fused next (rest), and before a single
// node where that was taken into a pattern with nodes that stayed. It returns
// the new order and the number of guards.
func Guard(g *onnx.Graph, order []*onnx.Node, left *Left) ([]*onnx.Node, int, error) {
	gone := map[*onnx.Node]bool{}
	constant := constantsOf(g)
	for _, n := range order {
		if constant.feed(n) || traits.ReadsShape(n) && !left.nodes[n.Name()] {
			constant.add(n)
			continue
		}
		// A node of an edge or a computed shape that vanished was merged with its
		// equal, which is well. (And a view must not feed the shape of another:
		// ONNX Runtime would take the two for a chain of views and fuse them, so
		// views are left alone.)
		if !left.nodes[n.Name()] && !control.Is(n) && !control.Joins(n) {
			gone[n] = true
		}
	}
	if len(gone) == 0 {
		return order, 0, nil
	}
	edges := build.New(g, nil, "guard")
	after := map[*onnx.Node][]*onnx.Node{}
	count := 0
	guarded := map[*onnx.Value]bool{}
	guard := func(n *onnx.Node, input int) {
		v := n.Inputs[input]
		n.SetInput(input, control.Wait(edges, v, v))
		guarded[v] = true
		after[v.Producer] = append(after[v.Producer], edges.Take()...)
		count++
	}
	may := func(v *onnx.Value) bool {
		return v != nil && v.Producer != nil && !control.Is(v.Producer) && !constant[v]
	}
	for i := len(order) - 1; i >= 0; i-- {
		n := order[i]
		if !gone[n] || readByGone(n, gone) {
			continue
		}
		if !readsGone(n, gone) {
			for k, v := range n.Inputs {
				if may(v) && left.bypassed(g, n, v) {
					guard(n, k)
				}
			}
			continue
		}
		for k, v := range n.Inputs {
			if may(v) && !guarded[v] && gone[v.Producer] {
				guard(n, k)
				for _, e := range left.rest(g, n, v, gone) {
					if w := e.Node.Inputs[e.Index]; may(w) && !guarded[w] {
						guard(e.Node, e.Index)
					}
				}
				break
			}
		}
	}
	if count == 0 {
		return order, 0, nil
	}
	var out []*onnx.Node
	for _, n := range order {
		out = append(append(out, n), after[n]...)
	}
	out, err := control.Lower(g, out)
	g.Nodes = slices.Clone(out)
	return out, count, err
}

// rest are the edges at which what is left of a pattern would be fused next, whose last node does not
// read v any more: those that the fused node went round, and those from operators like these to the
// same node. A convolution takes in the sum that it is a part of, with the activation or without, and
// where it may not, the sum's other convolution does. A value that is still there is another pattern's.
func (l *Left) rest(g *onnx.Graph, last *onnx.Node, v *onnx.Value, gone map[*onnx.Node]bool) (edges []onnx.Use) {
	seen := map[*onnx.Node]bool{}
	inside := func(v *onnx.Value) bool {
		return v != nil && v.Producer != nil && gone[v.Producer] && l.reads[v.Name] == nil
	}
	var visit func(v *onnx.Value)
	visit = func(v *onnx.Value) {
		n := v.Producer
		if !inside(v) || seen[n] {
			return
		}
		seen[n] = true
		round := map[string]bool{}
		for _, w := range n.Inputs {
			if w != nil && w.Producer != nil && !inside(w) && l.bypassed(g, last, w) {
				round[w.Producer.OpType()] = true
			}
		}
		for k, w := range n.Inputs {
			switch {
			case w == nil || w.Producer == nil:
			case round[w.Producer.OpType()] && !inside(w):
				edges = append(edges, onnx.Use{Node: n, Index: k})
			default:
				visit(w)
			}
		}
	}
	visit(v)
	return edges
}

// readByGone reports that a vanished node reads an output of n: n is not the
// last of its group.
func readByGone(n *onnx.Node, gone map[*onnx.Node]bool) bool {
	for _, o := range n.Returns() {
		for _, u := range o.Uses() {
			if gone[u.Node] {
				return true
			}
		}
	}
	return false
}

// readsGone reports that n reads what a vanished node made.
func readsGone(n *onnx.Node, gone map[*onnx.Node]bool) bool {
	return slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && v.Producer != nil && gone[v.Producer] })
}
