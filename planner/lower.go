package planner

import (
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// From a set of kept values to a schedule.
//
// Walk through the plain order. When a backward operator reads a forward
// value that is neither kept nor there, its producer runs again right before,
// after whatever it needs in turn, recursively. What was computed again stays
// until its last reader: that is simply what the schedule says, because a
// reader takes the latest instance.
//
//	plain:  A B C | dC dB dA        keep {A}:  A B C | B dC dB dA
//
// (C, the last, is read at once: a value whose forward readers reach up to its
// backward reader is there anyway.)

// A second level: computing a segment again on the way to a later boundary
// need not hold its insides until their own turn comes.
//
//	keep {A}, segments A|B|C, held:    … B C dC dB dA
//	                          brief:   … B C dC B dB dA
//
// In a brief schedule, what lies inside a segment is held only if it is
// computed again once the segment's own backward has begun; boundaries are
// always held. It costs a further forward of what is dropped, at most one.

// A lowerer turns keep sets into schedules of one problem.
type lowerer struct {
	ix *index
	// base is the plain order that is followed.
	base []int
	// lastForward[r] is the last place in base at which the forward part
	// makes or reads root r or a view of it.
	lastForward []int32
	// asks lists the places in base at which backward reads what might be
	// dropped, and may, in the same order, what that is.
	asks []int
	may  rows
	// have says of a value that was computed again until which place it is
	// there; 0: not at all.
	have []int32
	at   int
	out  []int
	// work is the cost of what the last schedule computes again.
	work int64
	// starts[mode][r] is the place from which on root r is held.
	starts [modes][]int
	mode   mode
}

// A mode says what a schedule holds that it computes again.
type mode uint8

const (
	held       mode = iota // everything, until its last reader
	briefLayer             // brief between the layers' boundaries
	briefCut               // brief between all cuts
	modes
)

// newLowerer finds once what schedules of the base order ask: how far forward reads
// each root, and where backward reads what might be dropped.
func newLowerer(ix *index, base []int) *lowerer {
	l := &lowerer{ix: ix, lastForward: make([]int32, len(ix.root)), have: make([]int32, len(ix.root))}
	l.rebase(base)
	return l
}

// rebase makes the lowerer one of another base order.
func (l *lowerer) rebase(base []int) {
	ix := l.ix
	l.base, l.starts = base, [modes][]int{}
	l.asks, l.may = l.asks[:0], rows{l.may.start[:0], l.may.items[:0]}
	for v := range l.lastForward {
		l.lastForward[v] = -1
	}
	for pos, op := range base {
		for _, r := range ix.touched.of(op) {
			l.lastForward[r] = int32(pos)
		}
	}
	l.may.end()
	for pos, op := range base {
		from := len(l.may.items)
		for _, v := range ix.asked.of(op) {
			if l.lastForward[ix.root[v]] < int32(pos) {
				l.may.items = append(l.may.items, v)
			}
		}
		if len(l.may.items) > from {
			l.asks = append(l.asks, pos)
			l.may.end()
		}
	}
}

// startsOf finds for each root where the backward of its segment begins.
func (l *lowerer) startsOf(cuts []Cut) []int {
	ix := l.ix
	ends, batches := make(map[int]int), 1 // the segment that begins at a value: a micro-batch has its own
	for k, cut := range cuts {
		for m, v := range cut {
			ends[v] = m*len(cuts) + k + 1
		}
		batches = max(batches, len(cut))
	}
	segment := make([]int, len(ix.root))
	for _, op := range ix.topo {
		if !ix.p.Ops[op].Forward {
			continue
		}
		in := 0
		for _, v := range ix.reads[op] {
			in = max(in, segment[v], ends[v])
		}
		for _, v := range ix.outs[op] {
			segment[v] = in
		}
	}
	first := slices.Repeat([]int{len(l.base)}, batches*len(cuts)+1)
	for pos := len(l.base) - 1; pos >= 0; pos-- {
		if ix.p.Ops[l.base[pos]].Forward {
			continue
		}
		for _, v := range ix.reads[l.base[pos]] {
			if op := ix.producer[v]; op >= 0 && ix.p.Ops[op].Forward && ends[ix.root[v]] == 0 && !ix.pinned[ix.root[v]] {
				first[segment[ix.root[v]]] = pos
			}
		}
	}
	starts := make([]int, len(ix.root))
	for v := range starts {
		if ends[v] == 0 {
			starts[v] = first[segment[v]]
		}
	}
	return starts
}

// schedule returns the schedule that keeps the given roots (and the pinned
// ones) and holds what it computes again. Valid until the next call.
func (l *lowerer) schedule(keep []bool) []int { return l.scheduleIn(keep, held) }

// scheduleIn is schedule in a mode of holding what is computed again.
func (l *lowerer) scheduleIn(keep []bool, m mode) []int {
	if l.mode = m; m != held && l.starts[m] == nil {
		cuts := l.ix.p.Layers
		if m == briefCut {
			cuts = l.ix.p.Cuts
		}
		l.starts[m] = l.startsOf(cuts)
	}
	l.out, l.work = l.out[:0], 0
	clear(l.have)
	done := 0
	for k, pos := range l.asks {
		l.at = pos
		for _, v := range l.may.of(k) {
			if keep[l.ix.root[v]] || l.have[v] > int32(pos) {
				continue
			}
			l.out = append(l.out, l.base[done:pos]...)
			done = pos
			l.again(keep, int(v))
		}
	}
	l.out = append(l.out, l.base[done:]...)
	return l.out
}

// again computes v again, and before it what it is made of and is not there.
func (l *lowerer) again(keep []bool, v int) {
	ix := l.ix
	op := ix.producer[v]
	for _, u := range ix.reads[op] {
		j := ix.producer[u]
		if j == ortmodel.None || l.have[u] > int32(l.at) || ix.kept(keep, u) || !ix.p.Ops[j].Forward ||
			l.lastForward[ix.root[u]] >= int32(l.at) {
			continue
		}
		l.again(keep, u)
	}
	l.out = append(l.out, op)
	l.work += ix.cost[op]
	for _, u := range ix.outs[op] {
		l.have[u] = int32(len(l.base))
		if l.mode != held && l.at < l.starts[l.mode][ix.root[u]] {
			l.have[u] = int32(l.at + 1)
		}
	}
}
