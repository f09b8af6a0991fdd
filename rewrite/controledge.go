package rewrite

// Control edges: what is to run although its reader comes later.
//
// ONNX Runtime runs a node when somebody asks for it, so an order may hold
// early nodes (ortmodel.EarlyNodes): stretches that end in a node u whose reader is
// still to come, while what runs next asks for what ran before. The node w
// that runs next is made to ask for u too, through one of its inputs:
//
//	x ─▶ Wait ─▶ w
//	u ────┘
//
// x is read by w anyway, so a control dependency of w on u costs no byte.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/control"
)

// maxEdgeRounds bounds how often an order is looked through for early nodes. The
// first round leaves none, unless a control edge finds no place.
const maxEdgeRounds = 4

// addEdges brings in the early nodes of an order of all nodes and returns the order
// with the nodes of the control edges.
func addEdges(m *onnx.Model, order []*onnx.Node) ([]*onnx.Node, Report, error) {
	report := Report{Pass: "edge"}
	for range maxEdgeRounds {
		m.Graph.Nodes = order
		a := newEdgeAdder(m, order)
		early := ortmodel.EarlyNodes(a.graph, ortmodel.FileSchedule(len(order)))
		before := report.Applied
		report.Skipped = nil
		for _, s := range early {
			if a.bringIn(s) {
				report.Applied++
			} else {
				report.skip(order[s.Top].Label(), "nothing that runs next can take a control dependency")
			}
		}
		var err error
		if order, err = control.Lower(m.Graph, a.placed(order)); err != nil {
			return nil, report, err
		}
		if report.Applied == before {
			break
		}
	}
	m.Graph.Nodes = order
	report.Requested = report.Applied + len(report.Skipped)
	return order, report, nil
}

type edgeAdder struct {
	order []*onnx.Node
	place map[*onnx.Node]int
	graph *ortmodel.Graph
	edges *build.Builder
	// before are edges by the place of the node that they are for.
	before map[int][]*onnx.Node
}

func newEdgeAdder(m *onnx.Model, order []*onnx.Node) *edgeAdder {
	return &edgeAdder{
		order: order, place: onnx.Places(order), graph: step.Structure(m.Graph),
		edges: build.New(m.Graph, nil, "edge"), before: map[int][]*onnx.Node{},
	}
}

// placed puts the edges into the order.
func (a *edgeAdder) placed(order []*onnx.Node) []*onnx.Node {
	out := make([]*onnx.Node, 0, len(order))
	for i, n := range order {
		out = append(append(out, a.before[i]...), n)
	}
	return out
}

// bringIn makes the first of an early node's successors wait that has an input to wait with,
// a node of another edge last.
func (a *edgeAdder) bringIn(s ortmodel.EarlyNode) bool {
	trigger := a.trigger(a.order[s.Top])
	if trigger == nil {
		return false
	}
	var ofEdges []int
	for _, w := range s.Successors {
		if control.Is(a.order[w]) {
			ofEdges = append(ofEdges, w)
		} else if a.wait(trigger, w) {
			return true
		}
	}
	return slices.ContainsFunc(ofEdges, func(w int) bool { return a.wait(trigger, w) })
}

// trigger is an output to wait for.
func (a *edgeAdder) trigger(n *onnx.Node) *onnx.Value {
	for _, v := range n.Returns() {
		if v.Type.DType != onnx.Undefined && v.Type.DType != onnx.String {
			return v
		}
	}
	return nil
}

// wait leads the best input of the node at place w past the trigger.
func (a *edgeAdder) wait(trigger *onnx.Value, w int) bool {
	n := a.order[w]
	k := a.input(n)
	if k < 0 {
		return false
	}
	n.SetInput(k, control.Wait(a.edges, n.Inputs[k], trigger))
	a.before[w] = append(a.before[w], a.edges.Take()...)
	return true
}

// input picks the input of a node to wait with, or -1: a computed float before
// one that is fed, before other types; a constant only where it is what the
// node works on, or scales what it works on where a view of that has no kernel, as of codes in
// four bits. Of what only n has asked for so far it must be what ran last:
// the view asks for it now, and the others would be early nodes below it.
func (a *edgeAdder) input(n *onnx.Node) int {
	last := -1
	asked := make([]bool, len(n.Inputs))
	for k, v := range n.Reads() {
		if v.Producer != nil && a.asks(n, v.Producer) {
			asked[k] = true
			last = max(last, a.place[v.Producer])
		}
	}
	best, bestRank, first := -1, 0, 0
	for k, v := range n.Reads() {
		if v.Type.DType.Packed() && k == first {
			first++
		}
		if v.Type.DType == onnx.Undefined || v.Type.DType.Packed() || asked[k] && a.place[v.Producer] != last {
			continue
		}
		rank := 0
		switch {
		case v.IsConstant() && k == first:
			rank = 1
		case v.IsConstant():
		case !v.Type.DType.IsFloat():
			rank = 2
		case v.Producer == nil:
			rank = 3
		default:
			rank = 4
		}
		if rank > bestRank {
			best, bestRank = k, rank
		}
	}
	return best
}

// asks reports that n is the first reader of p's outputs.
func (a *edgeAdder) asks(n, p *onnx.Node) bool {
	at := a.place[n]
	for _, o := range p.Returns() {
		for _, u := range o.Uses() {
			if i, ok := a.place[u.Node]; ok && i < at {
				return false
			}
		}
	}
	return true
}
