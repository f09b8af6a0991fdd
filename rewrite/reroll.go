package rewrite

// ONNX Runtime is asked about a few micro-batches of many: loop rerolling.
//
//	the file:       … [ 1 ] [ 2 ] [ 3 ] [ 4 ] [ 5 ] [ 6 ] …
//	what is asked:  … [ 1 ] [ 2 ────────────▶      ] [ 6 ] …
//
// The micro-batches in the middle are the same nodes, one after another, and hand nothing on
// but sums. What an optimizer does to a node follows from the nodes around it, so it does to
// each what it does to one. Node by node it is verified that the file repeats: same operators,
// attributes and types, from the same values or from those a period later. Whole periods are
// taken out, and who read the last of them reads the one before the first: at that place the
// graph looks as it does a period earlier, and a period later. What is left of the others is
// told from what is left of the one that stands for them (Unroll).
//
// The planner rerolls its problem likewise (planner/reroll.go), before there is a file.

import (
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
)

// A Rerolled graph is one of which periods are taken out.
type Rerolled struct {
	graph *onnx.Graph
	nodes []*onnx.Node
	place map[*onnx.Node]int
	// Nodes from at on are taken out, times periods of them; those of the period before stand
	// for them.
	at, period, times int
}

// rerolledLeast is the share of the nodes that has to be taken out, as 1 of so many.
const rerolledLeast = 4

// Reroll finds what may be taken out of a graph that is ordered as it runs; nil: it does not repeat.
// At both ends of what repeats a quarter of a period stays, beside the period that
// stands for others, so that all of those look alike as far as any pattern reaches.
func Reroll(g *onnx.Graph) *Rerolled {
	r := &Rerolled{graph: g, nodes: g.Nodes, place: onnx.Places(g.Nodes)}
	if r.period = r.distance(); r.period == 0 {
		return nil
	}
	from, to := r.repeating()
	margin := r.period / 4
	r.times = (to-from-2*margin)/r.period - 1
	r.at = from + margin + r.period
	if r.times < 1 || r.times*r.period*rerolledLeast < len(r.nodes) || !r.handsOn() {
		return nil
	}
	return r
}

// distance is how far apart most nodes are of those that a pass made of one node, weighed by
// how much lies between; 0: no pass made several of one.
func (r *Rerolled) distance() int {
	last, nodes := map[onnx.Origin]int{}, map[int]int{}
	for i, n := range r.nodes {
		origin := n.Origin()
		if origin.Pass == "" || origin.Of == "" {
			continue
		}
		if before, ok := last[origin]; ok {
			nodes[i-before] += i - before
		}
		last[origin] = i
	}
	best := 0
	for d, n := range nodes {
		if n > nodes[best] || n == nodes[best] && d < best {
			best = d
		}
	}
	return best
}

// repeating is the longest range of nodes each of which, but for those of the last
// period, is there again a period later.
func (r *Rerolled) repeating() (from, to int) {
	begun := 0
	for i := range len(r.nodes) - r.period {
		if !r.repeats(i) {
			begun = i + 1
		} else if i+1-begun > to-from {
			from, to = begun, i+1
		}
	}
	return from, to + r.period
}

// repeats reports that the node a period later does the same, to the same values, to those of a
// period later, or to others that are given alike.
func (r *Rerolled) repeats(place int) bool {
	a, b := r.nodes[place], r.nodes[place+r.period]
	if a.OpType() != b.OpType() || a.Domain() != b.Domain() || len(a.Captures) > 0 || len(b.Captures) > 0 ||
		!slices.EqualFunc(a.Proto.Attribute, b.Proto.Attribute, equalMessages) {
		return false
	}
	alike := func(v, w *onnx.Value) bool {
		return v == w || v != nil && w != nil && v.Type.Same(w.Type) && v.IsOutput() == w.IsOutput() && len(v.Uses()) == len(w.Uses())
	}
	if !slices.EqualFunc(a.Outputs, b.Outputs, alike) || len(a.Inputs) != len(b.Inputs) {
		return false
	}
	moved := false // else all periods compute one value, which ONNX Runtime computes once
	for k, v := range a.Inputs {
		w := b.Inputs[k]
		// Equal constants are one by now. A slice begins at another place, of a value of its own: slices of one
		// value that cover it become a Split, wherever they are.
		place := moved && b.Is("Slice") && k <= 2 && v != nil && w != nil && v.IsConstant() && w.IsConstant() && v.Type.Same(w.Type)
		if v != w && !place && !r.readsAlike(v, w) {
			return false
		}
		moved = moved || v != w
	}
	return moved
}

func equalMessages[M proto.Message](a, b M) bool { return proto.Equal(a, b) }

// readsAlike reports that w is what v is, made a period later; or another part of what is computed
// once, or of what is fed.
func (r *Rerolled) readsAlike(v, w *onnx.Value) bool {
	switch {
	case v == nil || w == nil || !v.Type.Same(w.Type) || v.IsConstant() || w.IsConstant():
		return false
	case v.Producer == nil || w.Producer == nil:
		return v.Producer == w.Producer
	}
	return v.Index == w.Index && r.place[w.Producer] == r.place[v.Producer]+r.period || v.Producer == w.Producer
}

// out reports that a node is taken out, by its place.
func (r *Rerolled) out(place int) bool { return place >= r.at && place < r.at+r.times*r.period }

// handsOn reports that what stays reads, of what is taken out, only the last period, as each
// period reads the one before, and nothing then of the period that stands for the others.
func (r *Rerolled) handsOn() bool {
	end := r.at + r.times*r.period
	for _, n := range r.nodes[end:] {
		for _, list := range [2][]*onnx.Value{n.Inputs, n.Captures} {
			for _, v := range list {
				if v == nil || v.Producer == nil {
					continue
				}
				if p := r.place[v.Producer]; p >= r.at-r.period && p < end-r.period {
					return false
				}
			}
		}
		if slices.ContainsFunc(n.Captures, func(v *onnx.Value) bool { return v.Producer != nil && r.out(r.place[v.Producer]) }) {
			return false // a subgraph's reads are not led elsewhere
		}
	}
	return true
}

// SetAside takes the periods out of the graph until restore is called.
func (r *Rerolled) SetAside() (restore func()) {
	gone, instead := map[*onnx.Node]bool{}, map[*onnx.Value]*onnx.Value{}
	for place := r.at; r.out(place); place++ {
		gone[r.nodes[place]] = true
		if place+r.period < r.at+r.times*r.period {
			continue
		}
		for k, v := range r.nodes[place].Returns() {
			instead[v] = r.nodes[place-r.times*r.period].Outputs[k]
		}
	}
	return r.graph.SetAside(gone, instead)
}

// Unroll is what an optimizer leaves of the whole graph, told from what it left of the
// one with periods set aside. What it made anew in the period that stands for others has
// a number after its name in each of them.
func (r *Rerolled) Unroll(left *Left) *Left {
	all := &Left{nodes: maps.Clone(left.nodes), reads: make(map[string]map[string]bool, len(r.nodes))}
	for made, names := range left.reads {
		all.reads[made] = r.led(made, names)
	}
	for place := r.at; r.out(place); place++ {
		periods := (place-r.at)/r.period + 1
		n, stands := r.nodes[place], r.nodes[place-periods*r.period]
		if left.nodes[stands.Name()] {
			all.nodes[n.Name()] = true
		}
		for k, v := range n.Outputs {
			if v != nil {
				r.unroll(all, left, stands.Outputs[k].Name, v.Name, periods)
			}
		}
	}
	return all
}

// led are the values read to make one that was not set aside: for those of the period that stands for
// others, to who comes after, those of the last one. A value that is new may have come
// before or after: both are.
func (r *Rerolled) led(made string, names map[string]bool) map[string]bool {
	v := r.graph.Value(made)
	after := v != nil && v.Producer != nil && r.place[v.Producer] >= r.at+r.times*r.period
	if v != nil && !after {
		return names
	}
	led := make(map[string]bool, len(names))
	for name := range names {
		read := r.graph.Value(name)
		stands := read != nil && read.Producer != nil && r.stands(r.place[read.Producer])
		if stands {
			led[r.made(read, r.times)] = true
		}
		if !stands || !after {
			led[name] = true
		}
	}
	return led
}

// unroll notes what is read to make a value so many periods after the one left, and
// what was made anew on the way.
func (r *Rerolled) unroll(all, left *Left, from, to string, periods int) {
	names, ok := left.reads[from]
	if !ok || all.reads[to] != nil {
		return
	}
	moved := make(map[string]bool, len(names))
	all.reads[to] = moved
	for name := range names {
		switch v := r.graph.Value(name); {
		case v == nil:
			moved[anew(name, periods)] = true
			r.unroll(all, left, name, anew(name, periods), periods)
		case r.moves(v):
			moved[r.made(v, periods)] = true
		default:
			moved[name] = true
		}
	}
}

// anew names what an optimizer made, so many periods later.
func anew(name string, periods int) string { return name + "#" + strconv.Itoa(periods) }

// stands reports that a node stands for others, by its place.
func (r *Rerolled) stands(place int) bool { return place >= r.at-r.period && place < r.at }

// made is the name of the value that is made so many periods later.
func (r *Rerolled) made(v *onnx.Value, periods int) string {
	return r.nodes[r.place[v.Producer]+periods*r.period].Outputs[v.Index].Name
}

// moves reports that of a value which is read in the period that stands for others, each of them
// reads its own: it is made there, or its readers' twins read another.
func (r *Rerolled) moves(v *onnx.Value) bool {
	switch {
	case v.Producer == nil:
		return false
	case r.stands(r.place[v.Producer]):
		return true
	}
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		place, ok := r.place[u.Node]
		if !ok || !r.stands(place) {
			return false
		}
		w := r.nodes[place+r.period].In(u.Index)
		return w != nil && w.Producer != nil && r.place[w.Producer] == r.place[v.Producer]+r.period
	})
}
