package rewrite

// ONNX Runtime is asked about a few layers and micro-batches of many: loop rerolling.
//
//	the graph:      … ─ 1 ─ 2 ─ 3 ─ 4 ─ 5 ─ 6 ─ …
//	what is asked:  … ─ 1 ─────────────── 6 ─ …
//
// What an optimizer does to a node follows from the nodes around it, so it does to each of
// those whose surroundings are alike what it does to one. A shift (shift.go) maps the nodes of
// a period to those of the next; node by node it is verified that what they do and read is
// shifted too. Whole periods are then taken out, and the two sides of the gap joined as
// any two periods are: a reader reads what its twin reads that is so many periods away.
// Of what repeats the first period stays, which stands for others, and the last. A pattern that lies in
// one of the others, or in two of them, lies between these two likewise; what else is around the first,
// and around the last, is not alike. So what is left of the two has to agree, and then what is left of the
// others is told from it (Unroll). Where it does not, one period more stays beside the one that stands.
//
// The planner rerolls its problem likewise (planner/reroll.go), before there is a file.

import (
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/control"
)

// A Rerolled graph is one of which periods are set aside, once or several times: micro-batches,
// then layers.
type Rerolled []*roll

// Beside says how much of what repeats stays beside the period that stands for others.
type Beside int

// The last period stays; or it and the first, and the second stands for others.
const (
	OneBeside Beside = iota
	TwoBeside
)

// A roll takes periods out of a graph.
type roll struct {
	graph *onnx.Graph
	*shift
	beside Beside
	gaps   []gap
	// feeds maps what no node makes to what is read for it a period later.
	feeds   map[*onnx.Value]*onnx.Value
	restore func()
}

// A gap is where periods are taken out: times of them after the one that stands for them.
type gap struct{ stands, times int }

// rollLeast is the share of the nodes that has to be taken out, as 1 of so many: to look for
// what repeats takes about a twentieth of the time of a session.
const rollLeast = 12

// Reroll sets aside what repeats in a graph: of the copies that passes made of nodes, then of nodes
// that look alike. Unroll or Restore puts it back; the graph must not be edited before.
func Reroll(g *onnx.Graph, beside Beside) Rerolled {
	var all Rerolled
	for r := setAside(g, beside); r != nil; r = setAside(g, beside) {
		all = append(all, r)
	}
	return all
}

// Unroll puts back what was set aside, and returns what an optimizer leaves of the whole graph, told from
// what it left of the rest; nil where that does not tell: with more beside it may.
func (all Rerolled) Unroll(left *Left) *Left {
	for _, r := range slices.Backward(all) {
		if left != nil && r.beside == OneBeside && !r.agrees(left) {
			left = nil
		}
		if left != nil {
			left = r.unroll(left)
		}
		r.restore()
	}
	return left
}

// Restore puts back what was set aside.
func (all Rerolled) Restore() {
	for _, r := range slices.Backward(all) {
		r.restore()
	}
}

// setAside takes periods out of a graph; nil: it does not repeat.
func setAside(g *onnx.Graph, beside Beside) *roll {
	for s := range newShift(g).shifts() {
		r := &roll{graph: g, shift: s, beside: beside, feeds: map[*onnx.Value]*onnx.Value{}}
		r.findGaps()
		if r.takesOut()*rollLeast < len(r.nodes) || !r.joins() {
			continue
		}
		r.setAside()
		if len(ortmodel.BreadthFirst(step.Structure(g))) == len(g.Nodes) {
			return r
		}
		r.restore() // a node would wait for itself
	}
	return nil
}

// mostGaps bounds what is looked through for each node.
const mostGaps = 16

// findGaps finds the runs of periods each of which, but the last, is there again a
// period later, node by node. Of each the first stays, or the first two, and the last. Where there are
// many, the longest count.
func (r *roll) findGaps() {
	differs := map[int]bool{}
	for i, period := range r.period {
		switch {
		case period == none:
		case r.next[i] == none || !r.repeats(i):
			differs[period] = true
		case r.before[i] == none:
			differs[period-1] = true
		}
	}
	from := r.first
	for p := r.first; p <= r.last; p++ {
		if !differs[p] {
			continue
		}
		stands := from + int(r.beside)
		if times := p - stands - 1; times > 0 {
			r.gaps = append(r.gaps, gap{stands, times})
		}
		from = p + 1
	}
	if len(r.gaps) > mostGaps {
		slices.SortStableFunc(r.gaps, func(a, b gap) int { return b.times - a.times })
		r.gaps = r.gaps[:mostGaps]
		slices.SortFunc(r.gaps, func(a, b gap) int { return a.stands - b.stands })
	}
}

// repeats reports that the node a period later does the same, to the same values, to those of a
// period later, or to others that are given alike.
func (r *roll) repeats(place int) bool {
	later := r.next[place]
	a, b := r.nodes[place], r.nodes[later]
	if a.OpType() != b.OpType() || a.Domain() != b.Domain() || len(a.Captures) > 0 || len(b.Captures) > 0 ||
		!slices.EqualFunc(a.Proto.Attribute, b.Proto.Attribute, equalAttributes) || !r.returnsAlike(place, later) {
		return false
	}
	if control.Joined(a) && control.Joined(b) {
		return true // of whatever tokens
	}
	if len(a.Inputs) != len(b.Inputs) {
		return false
	}
	moved := false // else all periods compute one value, which ONNX Runtime computes once
	for k, v := range a.Inputs {
		w := b.Inputs[k]
		// Equal constants are one by now. A slice begins at another place, of a value of its own: slices of one
		// value that cover it become a Split, wherever they are.
		begins := moved && b.Is("Slice") && k <= 2 && v != nil && w != nil && v.IsConstant() && w.IsConstant() && v.Type.Same(w.Type)
		if v != w && !begins && !r.readsAlike(v, w) {
			return false
		}
		moved = moved || v != w
	}
	return moved
}

// equalAttributes compares attributes; by what seed a node draws changes nothing else.
func equalAttributes(a, b onnx.Attribute) bool {
	return proto.Equal(a, b) || a.GetName() == "seed" && b.GetName() == "seed"
}

// returnsAlike reports that two nodes return values of the same types that are read as often.
func (r *roll) returnsAlike(a, b int) bool {
	if len(r.nodes[a].Outputs) != len(r.nodes[b].Outputs) {
		return false
	}
	for k, v := range r.nodes[a].Outputs {
		w := r.nodes[b].Outputs[k]
		if v == nil && w == nil {
			continue
		}
		if v == nil || w == nil || !v.Type.Same(w.Type) || v.IsOutput() != w.IsOutput() ||
			!r.token[a] && r.readings(a, k) != r.readings(b, k) {
			return false
		}
	}
	return true
}

// readsAlike reports that w is what v is, made a period later; or another part of what is computed
// once, or of what is fed.
func (r *roll) readsAlike(v, w *onnx.Value) bool {
	if v == nil || w == nil || !v.Type.Same(w.Type) || v.IsConstant() || w.IsConstant() {
		return false
	}
	if v.Producer == nil || w.Producer == nil {
		if r.feeds[v] == nil {
			r.feeds[v] = w
		}
		return v.Producer == w.Producer && r.feeds[v] == w && r.fed[v] == r.fed[w]
	}
	a, b := r.place[v.Producer], r.place[w.Producer]
	return r.token[a] && r.token[b] || v.Index == w.Index && r.next[a] == b || a == b
}

// out is the gap that a node is taken out in, by its place; nil: it stays.
func (r *roll) out(place int) *gap {
	p := r.period[place]
	if p == none {
		return nil
	}
	for k := range r.gaps {
		if g := &r.gaps[k]; p > g.stands && p <= g.stands+g.times {
			return g
		}
	}
	return nil
}

// squeezed is the number that a period which stays has when the others are gone.
func (r *roll) squeezed(period int) int {
	gone := 0
	for _, g := range r.gaps {
		if period > g.stands {
			gone += g.times
		}
	}
	return period - gone
}

// stretched is squeezed turned around.
func (r *roll) stretched(period int) int {
	for _, g := range r.gaps {
		if period > g.stands {
			period += g.times
		}
	}
	return period
}

func (r *roll) takesOut() int {
	count := 0
	for i := range r.nodes {
		if r.out(i) != nil {
			count++
		}
	}
	return count
}

// joins reports that what stays can be joined: who reads across a gap reads from a period that
// is taken out, and something stays that is read instead. A node outside of all periods, as one that sums
// up all, and one that waits for a token, reads an input instead.
func (r *roll) joins() bool {
	for i, n := range r.nodes {
		if r.out(i) != nil {
			continue
		}
		if slices.ContainsFunc(n.Captures, func(v *onnx.Value) bool { return v.Producer != nil && r.out(r.place[v.Producer]) != nil }) {
			return false // a subgraph's reads are not led elsewhere
		}
		for _, v := range n.Reads() {
			if v.Producer == nil {
				continue
			}
			switch made := r.place[v.Producer]; {
			case r.out(made) == nil:
				if !r.token[made] && r.joined(i, made) != made {
					return false
				}
			case r.instead(i, v) == none:
				if v.Type.DType == onnx.Undefined || !r.token[made] && !r.readsStanding(n, v) {
					return false
				}
			}
		}
	}
	return true
}

// readsStanding reports that a node reads, beside a value that is taken out, what stands for it. It reads
// an input then.
func (r *roll) readsStanding(n *onnx.Node, v *onnx.Value) bool {
	made := r.place[v.Producer]
	stands := r.nodes[r.later(made, r.out(made).stands-r.period[made])].Outputs[v.Index]
	return r.period[r.place[n]] == none && slices.Contains(n.Inputs, stands)
}

// joined is the place of the node that a reader reads from once the others are gone, in place of
// one from which it reads now: it is as many periods away.
func (r *roll) joined(reader, made int) int {
	i, j := r.period[reader], r.period[made]
	if i == none || j == none {
		return made
	}
	return r.later(made, r.stretched(r.squeezed(i)+j-i)-j)
}

// instead is the place of the node that makes what a reader reads instead of a value that is taken out; none:
// it reads an input.
func (r *roll) instead(reader int, v *onnx.Value) int {
	if to := r.joined(reader, r.place[v.Producer]); to != none && r.out(to) == nil {
		return to
	}
	return none
}

// setAside takes the periods out of the graph until restore is called.
func (r *roll) setAside() {
	gone := map[*onnx.Node]bool{}
	for i, n := range r.nodes {
		if r.out(i) != nil {
			gone[n] = true
		}
	}
	r.restore = r.graph.SetAside(gone, func(n *onnx.Node, v *onnx.Value) *onnx.Value {
		if made := r.instead(r.place[n], v); made != none {
			return r.nodes[made].Outputs[v.Index]
		}
		return nil
	})
}

// agrees reports that as much is left of the last period beside each gap as of the one that stands for
// others, made of the same values a period later.
func (r *roll) agrees(left *Left) bool {
	for i, n := range r.nodes {
		for _, g := range r.gaps {
			if r.period[i] != g.stands {
				continue
			}
			last := r.nodes[r.later(i, g.times+1)]
			if left.nodes[n.Name()] != left.nodes[last.Name()] {
				return false
			}
			for k, v := range n.Returns() {
				if !r.token[i] && !r.madeAlike(left, v, last.Outputs[k]) {
					return false
				}
			}
		}
	}
	return true
}

// madeAlike reports that w is made of what v is made of, a period later, as far as both are known.
func (r *roll) madeAlike(left *Left, v, w *onnx.Value) bool {
	from, to := left.known(r.graph, v.Name), left.known(r.graph, w.Name)
	if r.computed(from) != r.computed(to) || len(from) != len(to) {
		return false
	}
	for u := range from {
		if u.Producer == nil {
			continue
		}
		made := r.place[u.Producer]
		p := r.period[made]
		if p == none || r.token[made] {
			continue
		}
		later := r.later(made, r.stretched(r.squeezed(p)+1)-p)
		if later != none && r.out(later) == nil && !to[r.nodes[later].Outputs[u.Index]] {
			return false
		}
	}
	return true
}

// computed counts values that nodes make, but for tokens.
func (r *roll) computed(values map[*onnx.Value]bool) (count int) {
	for v := range values {
		if v.Producer != nil && !r.token[r.place[v.Producer]] {
			count++
		}
	}
	return count
}

// unroll is what an optimizer leaves of the whole graph, told from what it left of the
// one with periods set aside. What it made anew in the period that stands for others has
// a number after its name in each of them.
func (r *roll) unroll(left *Left) *Left {
	all := &Left{nodes: maps.Clone(left.nodes), reads: make(map[string]map[string]bool, len(r.nodes))}
	for made, names := range left.reads {
		all.reads[made] = r.led(made, names)
	}
	for i, n := range r.nodes {
		g := r.out(i)
		if g == nil {
			continue
		}
		periods := r.period[i] - g.stands
		stands := r.nodes[r.later(i, -periods)]
		if left.nodes[stands.Name()] {
			all.nodes[n.Name()] = true
		}
		for k, v := range n.Returns() {
			r.copyReads(all, left, stands.Outputs[k].Name, v.Name, g.stands, periods)
		}
	}
	return all
}

// led are the values read to make one that was not set aside: across a gap, those that
// were set aside. A value that is new may have come before or after: both are.
func (r *roll) led(made string, names map[string]bool) map[string]bool {
	v := r.graph.Value(made)
	if v != nil && (v.Producer == nil || r.period[r.place[v.Producer]] == none) {
		return names
	}
	led := make(map[string]bool, len(names))
	for name := range names {
		read := r.graph.Value(name)
		if read == nil || read.Producer == nil || r.period[r.place[read.Producer]] == none {
			led[name] = true
			continue
		}
		if v != nil {
			led[r.twin(read, r.period[r.place[v.Producer]], 0)] = true
			continue
		}
		led[name] = true
		for _, g := range r.gaps {
			switch r.period[r.place[read.Producer]] {
			case g.stands:
				led[r.moved(read, g.times)] = true
			case g.stands + g.times + 1:
				led[r.moved(read, -g.times)] = true
			}
		}
	}
	return led
}

// copyReads notes what is read to make a value so many periods after the one left, and
// what was made anew on the way.
func (r *roll) copyReads(all, left *Left, from, to string, stands, periods int) {
	names, ok := left.reads[from]
	if !ok || all.reads[to] != nil {
		return
	}
	moved := make(map[string]bool, len(names))
	all.reads[to] = moved
	for name := range names {
		v := r.graph.Value(name)
		if v == nil {
			moved[anew(name, periods)] = true
			r.copyReads(all, left, name, anew(name, periods), stands, periods)
			continue
		}
		moved[r.readBy(v, stands, periods)] = true
	}
}

// anew names what an optimizer made, so many periods later.
func anew(name string, periods int) string { return name + "#" + strconv.Itoa(periods) }

// readBy names what is read, so many periods after the one that stands for others, for a value that
// is read in that.
func (r *roll) readBy(v *onnx.Value, stands, periods int) string {
	if v.Producer == nil {
		return v.Name
	}
	made := r.place[v.Producer]
	if r.period[made] != none {
		return r.twin(v, stands, periods)
	}
	for _, u := range r.readers[made] {
		if u.output == v.Index && r.period[u.node] == stands {
			return r.nodes[r.later(u.node, periods)].Inputs[u.input].Name
		}
	}
	return v.Name
}

// twin names the value that is read so many periods after a reader's, for one that this reads when the
// others are gone.
func (r *roll) twin(v *onnx.Value, reader, periods int) string {
	p := r.period[r.place[v.Producer]]
	return r.moved(v, r.squeezed(p)-r.squeezed(reader)+reader+periods-p)
}

// moved names the value that is made so many periods later.
func (r *roll) moved(v *onnx.Value, periods int) string {
	place := r.later(r.place[v.Producer], periods)
	if place == none {
		return v.Name
	}
	return r.nodes[place].Outputs[v.Index].Name
}
