package planner

// A step over many micro-batches is searched as one over three: loop rerolling.
//
//	unrolled:  [ 0 ] [ 1 ] [ 2 ] [ 3 ] [ 4 ] [ 5 ] [ 6 ] [ 7 ] updates
//	rerolled:  [ 0 ] [ 1 × 6 ─────────────────────────▶ ] [ 7 ] updates
//
// The middle micro-batches are the same operators on the same sizes, one after another, and
// hand nothing on but sums: what one of them holds, each holds. So the file's order
// repeats, with a period that the cuts tell (Cut). Operator by operator that is verified, and
// all periods but one are taken out; the one that stays costs as much as all of them. The
// search runs on what is left. Its keep sets and orders are unrolled again and weighed on the whole
// step, so that nothing of what a plan says of itself rests on the repetition.
//
// The search of any number of micro-batches takes as long as that of three, and finds
// more: a change of one value in all of them is one change.
//
// What leaves the periods in any other way, as a result of each that is joined in the end, keeps a step
// from being rerolled: it waits, and more of it the more there are.

import (
	"cmp"
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// A rolled is a problem of which periods are taken out.
type rolled struct {
	whole *index
	small *Problem
	// Of the whole step's operators those of times periods from at on are taken out; those of
	// the period before at stand for them.
	at, period, times int
	// twin[v] is the value that stands for v; v itself where it is not taken out.
	twin []int
	// bases are the orders unrolled so far.
	bases map[*baseOrder]*baseOrder
}

// rollLeast is the share of the operators that has to be taken out, and rollError the share of
// a peak by which the rest may be off.
const rollLeast, rollError = 1. / 4, 1. / 128

// rolled is what a search of the problem runs on instead, nil where the problem does not repeat.
func (ix *index) rolled() *rolled {
	ix.rollOnce.Do(func() {
		if r := ix.reroll(); r != nil && r.faithful() {
			ix.rolledAs = r
		}
	})
	return ix.rolledAs
}

// reroll takes out all periods but one, where the file's order repeats.
func (ix *index) reroll() *rolled {
	if ix.keepViewed || len(ix.p.Limits) > 0 || !ix.tune.runs(stageReroll) {
		return nil // limits count what all micro-batches keep
	}
	period, third, count := ix.period()
	if period == 0 {
		return nil
	}
	from, to := ix.repeating(period, third)
	r := &rolled{whole: ix, at: ix.begins(third), period: period, bases: map[*baseOrder]*baseOrder{}}
	r.times = min((to-r.at)/period, count-3) // the last one is followed by updates
	if r.at < from+period || r.times < 1 || float64(r.times*period) < rollLeast*float64(len(ix.reads)) {
		return nil
	}
	r.findTwins()
	if !r.handsOn() {
		return nil
	}
	r.build()
	return r
}

// period is the distance of the micro-batches in the file's order, by a cut that all but the
// first are at alike, where the third has it, and their number; 0: there are too few, or they differ.
func (ix *index) period() (period, third, count int) {
	if !slices.Equal(ix.topo, ortmodel.FileSchedule(len(ix.topo))) {
		return 0, 0, 0
	}
	for _, cut := range ix.p.Cuts {
		if len(cut) < 4 {
			continue
		}
		third = ix.producer[cut[2]]
		period = third - ix.producer[cut[1]]
		even := period > 0
		for k := 3; k < len(cut); k++ {
			even = even && ix.producer[cut[k]]-ix.producer[cut[k-1]] == period
		}
		if even {
			return period, third, len(cut)
		}
	}
	return 0, 0, 0
}

// begins is where the forward part of a micro-batch begins, one of whose operators is given.
func (ix *index) begins(inside int) int {
	for inside > 0 && ix.p.Ops[inside-1].Forward {
		inside--
	}
	return inside
}

// repeating is the range of operators around one that repeats with a period: each that has
// another a period later has it alike. What a first period reads of before it, as sums that
// begin there, may have been made at another place of a period.
func (ix *index) repeating(period, inside int) (from, to int) {
	from, to = inside, inside
	for from > 0 && ix.repeats(from-1, period, false) {
		from--
	}
	for first := max(0, from-period); from > first && ix.repeats(from-1, period, true); {
		from--
	}
	for to+period < len(ix.reads) && ix.repeats(to, period, false) {
		to++
	}
	return from, to + period
}

// repeats reports that the operator a period later does the same, to the same values, to their
// twins, or to others that are fed alike; first: to any that are like them.
func (ix *index) repeats(op, period int, first bool) bool {
	p, g := ix.p, &ix.p.Graph
	a, b, n, m := &p.Ops[op], &p.Ops[op+period], &g.Nodes[op], &g.Nodes[op+period]
	if a.Type != b.Type || a.FLOPs != b.FLOPs || a.Moved != b.Moved || a.Forward != b.Forward || a.Recomputable != b.Recomputable || n.Host != m.Host ||
		!slices.Equal(n.Alias, m.Alias) || !slices.Equal(n.InPlace, m.InPlace) || !slices.Equal(n.Scratch, m.Scratch) || !slices.Equal(n.Script, m.Script) {
		return false
	}
	alike := func(v, w int) bool {
		if v < 0 || w < 0 {
			return v == w
		}
		return g.Values[v] == g.Values[w] && p.Values[v].Role == p.Values[w].Role
	}
	read := func(v, w int) bool {
		return v == w || alike(v, w) && (first || ix.producer[v] < 0 && ix.producer[w] < 0 || ix.later(v, period) == w)
	}
	return slices.EqualFunc(n.Outputs, m.Outputs, alike) && slices.EqualFunc(n.Inputs, m.Inputs, read) && slices.EqualFunc(n.Captures, m.Captures, read)
}

// later is the value that the operator so many places later makes in v's place, None where
// there is none.
func (ix *index) later(v, places int) int {
	op := ix.producer[v]
	if op < 0 || op+places < 0 || op+places >= len(ix.reads) {
		return ortmodel.None
	}
	outs := ix.p.Graph.Nodes[op+places].Outputs
	if k := slices.Index(ix.p.Graph.Nodes[op].Outputs, v); k < len(outs) {
		return outs[k]
	}
	return ortmodel.None
}

// out reports an operator that is taken out, stands one that stands for others.
func (r *rolled) out(op int) bool    { return op >= r.at && op < r.at+r.times*r.period }
func (r *rolled) stands(op int) bool { return op >= r.at-r.period && op < r.at }

// findTwins finds what stands for which value.
func (r *rolled) findTwins() {
	r.twin = make([]int, len(r.whole.root))
	for v := range r.twin {
		r.twin[v] = v
		if op := r.whole.producer[v]; op >= 0 && r.out(op) {
			r.twin[v] = r.whole.later(v, -r.period*((op-r.at)/r.period+1))
		}
	}
}

// handsOn reports that what stays reads, of what is taken out, only the last period, as each
// period reads the one before.
func (r *rolled) handsOn() bool {
	ix, last := r.whole, r.at+(r.times-1)*r.period
	for op := r.at + r.times*r.period; op < len(ix.reads); op++ {
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j >= 0 && j < last && r.out(j) {
				return false
			}
		}
	}
	return true
}

// build makes the small problem. Its values have the numbers that they have in the whole one.
func (r *rolled) build() {
	p := r.whole.p
	s := p.WithOps(nil)
	s.Graph.Nodes = nil
	through := func(list []int) []int {
		list = slices.Clone(list)
		for k, v := range list {
			if v >= 0 {
				list[k] = r.twin[v]
			}
		}
		return list
	}
	for op, n := range p.Graph.Nodes {
		if r.out(op) {
			continue
		}
		is, stands := p.Ops[op], int64(1)
		switch {
		case op >= r.at:
			n.Inputs, n.Captures = through(n.Inputs), through(n.Captures)
		case r.stands(op):
			stands += int64(r.times)
		}
		is.FLOPs *= stands
		is.Moved *= stands
		s.Graph.Nodes, s.Ops, s.stands = append(s.Graph.Nodes, n), append(s.Ops, is), append(s.stands, stands)
	}
	stay := func(list []int) []int {
		return slices.DeleteFunc(slices.Clone(list), func(v int) bool { return r.twin[v] != v })
	}
	cuts := func(list []Cut) []Cut {
		kept := make([]Cut, len(list))
		for k, cut := range list {
			kept[k] = stay(cut)
		}
		return kept
	}
	s.Cuts, s.Layers, s.Beside = cuts(p.Cuts), cuts(p.Layers), stay(p.Beside)
	r.small = s
}

// standsFor is how many values, of as many micro-batches, a computed value stands for.
func (ix *index) standsFor(v int) int64 {
	if ix.p.stands == nil {
		return 1
	}
	return ix.p.stands[ix.producer[v]]
}

// faithful reports that the whole step holds what the small one does, with everything kept and
// with as little as layers need. A dead buffer may wait there for another value of its shape.
func (r *rolled) faithful() bool {
	small := r.small.indexed()
	base, least := small.plain(), small.leastKeep()
	unrolled := r.unroll(base)
	sim, simSmall := newLiveSim(r.whole), newLiveSim(small)
	near := func(schedule, other []int) bool {
		peak, with := sim.run(schedule), simSmall.run(other)
		return max(peak, with)-min(peak, with) <= part(rollError, peak)
	}
	return near(unrolled.order, base.order) &&
		near(unrolled.lowerer(r.whole).schedule(r.keep(least)), base.lowerer(small).schedule(least))
}

// keep is a keep set of the small problem in the whole one, with what is never dropped there: what
// is small is so beside all others.
func (r *rolled) keep(small []bool) []bool {
	keep, pinned := make([]bool, len(small)), r.small.indexed().pinned
	for v, twin := range r.twin {
		keep[v] = small[twin] || pinned[twin]
	}
	return keep
}

// op is an operator of the small problem in the whole one.
func (r *rolled) op(small int) int {
	if small < r.at {
		return small
	}
	return small + r.times*r.period
}

// unroll is a base order of the small problem as one of the whole step: the period that stands
// for others is followed by them, each in its order, and with the like of its control edges.
func (r *rolled) unroll(small *baseOrder) *baseOrder {
	if b := r.bases[small]; b != nil {
		return b
	}
	ix := r.whole
	wanted := make([]int, 0, len(ix.reads))
	var period, early []int // early are those that run between, and come after what is taken out
	for _, op := range small.order {
		if op >= r.at && len(period) < r.period {
			early = append(early, r.op(op))
			continue
		}
		wanted = append(wanted, r.op(op))
		if !r.stands(op) {
			continue
		}
		if period = append(period, op); len(period) < r.period {
			continue
		}
		for t := 1; t <= r.times; t++ {
			for _, op := range period {
				wanted = append(wanted, op+t*r.period)
			}
		}
		wanted = append(wanted, early...)
	}
	walk := newLazyWalk(ix, topological(&ix.p.Graph, ix.producer, wanted))
	b := &baseOrder{controlEdges: r.edges(small.controlEdges)}
	if b.order = walk.order(b.controlEdges); b.order == nil {
		b.order, b.controlEdges = walk.order(nil), nil
	}
	r.bases[small] = ix.addOrder(b)
	return r.bases[small]
}

// edges are control edges of the small problem in the whole one, those of the period that stands
// for others in each of them.
func (r *rolled) edges(small []ControlEdge) []ControlEdge {
	var list []ControlEdge
	for _, e := range small {
		first, last := 0, r.times
		if !r.stands(e.Op) {
			first = last // it waits for the last period, if for any of them
		}
		for t := first; t <= last; t++ {
			moved := ControlEdge{r.op(e.Op), e.After}
			if r.stands(e.Op) {
				moved.Op += t * r.period
			}
			if r.stands(r.whole.producer[e.After]) {
				moved.After = r.whole.later(e.After, t*r.period)
			}
			list = append(list, moved)
		}
	}
	slices.SortFunc(list, func(a, b ControlEdge) int { return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.After, b.After)) })
	return slices.Compact(list)
}

// explored is what the search of the small problem finds, weighed on the whole step.
func (r *rolled) explored() *explorer {
	e := newExplorer(r.whole, r.whole.lean(), 0)
	for _, q := range r.small.indexed().explored().front.points {
		e.adopt(q, r.keep(q.keep), r.unroll(q.base))
	}
	return e
}

// searchNarrowed adds to that what the small problem's second search finds.
func (r *rolled) searchNarrowed(e *explorer) {
	small := r.small.indexed().explored()
	small.searchNarrowed()
	for _, q := range small.narrow {
		e.narrow = append(e.narrow, e.adopt(q, r.keep(q.keep), r.unroll(q.base)))
	}
}
