package rewrite

// Anchors: what is to run although its reader comes later.
//
// ONNX Runtime runs a node when somebody asks for it, so an order may hold
// strays (ortmodel.Strays): stretches that end in a node u whose reader is
// still to come, while what runs next asks for what ran before. The node w
// that runs next is made to ask for u too, through one of its inputs:
//
//	u ─▶ Reshape [-1] ─▶ Slice [0:0] ─▶ Cast int64 ─┐ (no axes)
//	x ──────────────────────────────▶ Unsqueeze ◀──┘ ─▶ w
//
// Reshape and Unsqueeze are views and the slice is empty, all of them run
// between u and w, and x is read by w anyway: an anchor costs no byte. Where w
// belongs to a barrier, its extents only get one more tensor without elements.
//
// Opsets before 13 have no such Unsqueeze; there a barrier does it, where
// neither x nor w belongs to a view.

import (
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
)

// maxAnchorRounds bounds how often an order is looked through for strays. The
// first round leaves none, unless an anchor finds no place.
const maxAnchorRounds = 4

// anchor brings in the strays of an order of all nodes and returns the order
// with the anchors' nodes.
func anchor(m *onnx.Model, order []*onnx.Node) ([]*onnx.Node, Report, error) {
	report := Report{Pass: "anchor"}
	for range maxAnchorRounds {
		m.Graph.Nodes = order
		a := newAnchorer(m, order)
		strays := ortmodel.Strays(a.edges, numbers(len(order)))
		before := report.Applied
		report.Skipped = nil
		for _, s := range strays {
			if a.bringIn(s) {
				report.Applied++
			} else {
				report.skip(order[s.Top].Label(), "nothing that runs next can take a control dependency")
			}
			if err := a.barriers.b.Err(); err != nil {
				return nil, report, err
			}
		}
		order = a.placed(order)
		if report.Applied == before {
			break
		}
	}
	m.Graph.Nodes = order
	report.Requested = report.Applied + len(report.Skipped)
	return order, report, nil
}

func numbers(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

type anchorer struct {
	opset    int64
	order    []*onnx.Node
	place    map[*onnx.Node]int
	edges    *ortmodel.Graph
	barriers *Barriers
	// after and before are new nodes by their neighbour in the order, and moved
	// those that leave their place for one of these.
	after, before map[int][]*onnx.Node
	moved         map[*onnx.Node]bool
}

func newAnchorer(m *onnx.Model, order []*onnx.Node) *anchorer {
	a := &anchorer{
		opset: m.Opset(""), order: order, place: make(map[*onnx.Node]int, len(order)), edges: OrderGraph(m.Graph),
		barriers: NewBarriers(m.Graph), after: map[int][]*onnx.Node{}, before: map[int][]*onnx.Node{},
		moved: map[*onnx.Node]bool{},
	}
	for i, n := range order {
		a.place[n] = i
	}
	return a
}

// placed puts the new nodes into the order.
func (a *anchorer) placed(order []*onnx.Node) []*onnx.Node {
	out := make([]*onnx.Node, 0, len(order))
	for i, n := range order {
		out = append(out, a.before[i]...)
		if !a.moved[n] {
			out = append(out, n)
		}
		out = append(out, a.after[i]...)
	}
	return out
}

// bringIn makes the best of a stray's waiters wait: a barrier's extents, else
// the first one that has an input to wait with, a node of a barrier last.
func (a *anchorer) bringIn(s ortmodel.Stray) bool {
	trigger := a.trigger(a.order[s.Top])
	if trigger == nil {
		return false
	}
	var helpers []int
	if a.moved[a.order[s.Top]] {
		return false // the next round sees where it stands
	}
	for _, w := range s.Waiters {
		n := a.order[w]
		if a.moved[n] {
			return false
		}
		switch {
		case isExtents(n):
			n.SetInput(len(n.Inputs), a.nothing(s.Top, trigger))
			return true
		case isBarrier(n):
			helpers = append(helpers, w)
		case a.wait(s.Top, trigger, w):
			return true
		}
	}
	return slices.ContainsFunc(helpers, func(w int) bool { return a.wait(s.Top, trigger, w) })
}

// trigger is an output to wait for.
func (a *anchorer) trigger(n *onnx.Node) *onnx.Value {
	for _, v := range n.Outputs {
		if v != nil && v.Type.DType != onnx.Undefined && v.Type.DType != onnx.String {
			return v
		}
	}
	return nil
}

// nothing is a tensor without elements that waits for the trigger and is made
// right behind it. What a barrier made of the trigger already is moved there,
// because ONNX Runtime would merge a second one with it.
func (a *anchorer) nothing(top int, trigger *onnx.Value) *onnx.Value {
	if chain := emptied(trigger); chain != nil && a.barriers.empty[trigger] == nil {
		for _, n := range chain {
			a.moved[n] = true
		}
		a.after[top] = append(a.after[top], chain...)
		a.barriers.empty[trigger] = chain[len(chain)-1].Outputs[0]
	}
	a.barriers.b.Scope = trigger.Name
	v := a.barriers.nothing(trigger)
	a.after[top] = append(a.after[top], a.barriers.Take()...)
	return v
}

// isExtents reports the node that joins extents with what a barrier waits for.
func isExtents(n *onnx.Node) bool {
	return n.Is("Concat") && (isBarrier(n) || strings.HasPrefix(n.Name(), concealPrefix))
}

// wait leads the best input of the node at place w through a view that waits.
func (a *anchorer) wait(top int, trigger *onnx.Value, w int) bool {
	n := a.order[w]
	k := a.input(n)
	if k < 0 {
		return false
	}
	x := n.Inputs[k]
	if old := a.opset < unsqueezeOpset; old && (joins(n) || reshaped(x)) || joins(n) && reshaped(x) && alone(x) {
		return false
	}
	a.nothing(top, trigger)
	var v *onnx.Value
	var err error
	if a.opset < unsqueezeOpset {
		v, err = a.barriers.Put(x, trigger)
	} else {
		v, err = a.barriers.Wait(n, x, trigger)
	}
	if err != nil {
		return false
	}
	for _, made := range a.barriers.Take() {
		at, ok := a.place[x.Producer]
		switch {
		case made.Is("Flatten") && ok: // in x's place among what waits for w
			a.after[at] = append(a.after[at], made)
		case isExtents(made) && made.Inputs[0].IsConstant():
			a.after[top] = append(a.after[top], made)
		default:
			a.before[w] = append(a.before[w], made)
		}
	}
	n.SetInput(k, v)
	return true
}

// input picks the input of a node to wait with, or -1: a computed float before
// one that is fed, before other types; a constant only where it is what the
// node works on. Of what only n has asked for so far it must be what ran last:
// the view asks for it now, and the others would be strays below it.
func (a *anchorer) input(n *onnx.Node) int {
	last := -1
	asked := make([]bool, len(n.Inputs))
	for k, v := range n.Inputs {
		if v != nil && v.Producer != nil && a.asks(n, v.Producer) {
			asked[k] = true
			last = max(last, a.place[v.Producer])
		}
	}
	best, bestRank := -1, 0
	for k, v := range n.Inputs {
		if v == nil || v.Type.DType == onnx.Undefined || asked[k] && a.place[v.Producer] != last {
			continue
		}
		rank := 0
		switch {
		case v.IsConstant() && k == 0:
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
func (a *anchorer) asks(n, p *onnx.Node) bool {
	at := a.place[n]
	for _, o := range p.Outputs {
		if o == nil {
			continue
		}
		for _, u := range o.Uses() {
			if i, ok := a.place[u.Node]; ok && i < at {
				return false
			}
		}
	}
	return true
}
