package planner

import (
	"math"

	"github.com/onnx-remat/remat/ortmodel"
)

// The live bytes of a schedule, fast.
//
// ONNX Runtime plans buffers before it runs: an output shares its input's
// buffer (view), takes over an input that dies there and has its shape (in
// place), takes a dead buffer of its class (most recently freed first), or is
// allocated. A buffer lives from its allocation to the death of its last
// tenant; dead time in between counts. A liveSim replays that on instances of
// values, in three linear passes over flat arrays that it keeps between runs.
//
// Weakness: it takes the schedule as ONNX Runtime's order. The judge does not.

type liveSim struct {
	ix *index
	f  *flat
	// eraseShapes: from the first repeated operator on, ONNX Runtime does not know
	// the shapes, so nothing is taken over; hidden is that place.
	eraseShapes bool
	hidden      int

	cur               []int32 // value -> latest instance, -1: fed
	start             []int32 // position -> first entry in read
	read              []int32 // instance read, flat; -1: fed
	first             []int32 // position -> first instance it makes
	value             []int32 // instance -> value
	ownRead, ownValue []int32 // what read and value are made in
	uses              []int32 // instance (as buffer) -> reads left
	buf               []int32 // instance -> owning instance, -1: somebody else's memory
	birth             []int32 // buffer -> position of its allocation, -1: none
	death             []int32 // buffer -> position of its last release, -1: never
	delta             []int64 // position -> bytes allocated there
	freed             []int64 // position -> bytes released after it
	byCls             [][]int32
	peak              int64
	peakAt            int
}

// forever is more reads than a value has: what counts them down never releases
// it, as it outlives the step.
const forever = 1 << 24

func newLiveSim(ix *index) *liveSim {
	classes := 0
	for v := range ix.p.Graph.Values {
		classes = max(classes, ix.p.Graph.Values[v].Class+1)
	}
	return &liveSim{ix: ix, f: ix.flat, cur: make([]int32, len(ix.root)), byCls: make([][]int32, classes)}
}

// run simulates the schedule and returns its peak in bytes.
func (s *liveSim) run(schedule []int) int64 { return s.below(schedule, math.MaxInt64) }

// below is run for who does not take a peak of limit bytes or more: it ends, and returns
// limit, where that much is read later at one place, dead buffers left out.
func (s *liveSim) below(schedule []int, limit int64) int64 {
	s.resolve(schedule)
	return s.resolved(schedule, limit)
}

// onceBelow is below for an order of all operators: each read means the one instance that
// there is, which is known ahead. Instances are slots then, in the graph's order.
func (s *liveSim) onceBelow(order []int, limit int64) int64 {
	f := s.f
	s.start, s.first = resize(s.start, len(order)), resize(s.first, len(order))
	s.read, s.value, s.uses = f.made, f.out.items, append(s.uses[:0], f.uses...)
	for pos, op := range order {
		s.start[pos], s.first[pos] = f.in.start[op], f.out.start[op]
	}
	s.hidden = len(order)
	return s.resolved(order, limit)
}

func (s *liveSim) resolved(schedule []int, limit int64) int64 {
	s.ix.events += int64(len(schedule))
	if !s.assign(schedule, limit) {
		return limit
	}
	return s.accumulate(schedule)
}

// resolve finds which instance each read means and counts the reads.
func (s *liveSim) resolve(schedule []int) {
	f, cur := s.f, s.cur
	reads, made := 0, 0
	for _, op := range schedule {
		reads += int(f.in.start[op+1] - f.in.start[op])
		made += int(f.out.start[op+1] - f.out.start[op])
	}
	s.start, s.first = resize(s.start, len(schedule)), resize(s.first, len(schedule))
	s.ownRead, s.ownValue, s.uses = resize(s.ownRead, reads), resize(s.ownValue, made), resize(s.uses, made)
	s.read, s.value = s.ownRead, s.ownValue
	read, value, uses := s.read, s.value, s.uses
	for v := range cur {
		cur[v] = -1
	}
	s.hidden = len(schedule)
	at, id := int32(0), int32(0)
	for pos, op := range schedule {
		s.start[pos] = at
		for _, v := range f.in.of(op) {
			k := int32(-1)
			if v >= 0 {
				if k = cur[v]; k >= 0 {
					uses[k]++
				}
			}
			read[at] = k
			at++
		}
		s.first[pos] = id
		for _, v := range f.out.of(op) {
			use := int32(1)
			if v >= 0 {
				if cur[v] >= 0 && s.eraseShapes && s.hidden > pos {
					s.hidden = pos // it ran before
				}
				if !f.values[v].inner {
					use = forever
				}
				cur[v] = id
			}
			value[id], uses[id] = v, use
			id++
		}
	}
}

// assign gives every instance a buffer. It ends, false, where limit bytes are wanted.
func (s *liveSim) assign(schedule []int, limit int64) bool {
	f, n := s.f, len(s.value)
	s.buf, s.birth, s.death = resize(s.buf, n), resize(s.birth, n), resize(s.death, n)
	s.delta = resize(s.delta, len(schedule))
	for i := range s.birth {
		s.birth[i], s.death[i] = -1, -1
	}
	for c := range s.byCls {
		s.byCls[c] = s.byCls[c][:0]
	}
	unknown := int32(n) // the first buffer made where shapes are erased
	if s.hidden < len(schedule) {
		unknown = s.first[s.hidden]
	}
	buf, uses, value, death := s.buf, s.uses, s.value, s.death
	wanted := s.ix.p.Graph.Held // and by a read to come
	for pos, op := range schedule {
		reads := s.read[s.start[pos]:][:f.in.start[op+1]-f.in.start[op]]
		from := s.first[pos]
		to := from + f.out.start[op+1] - f.out.start[op]
		var bytes int64
		for out, slot := from, f.out.start[op]; out < to; out, slot = out+1, slot+1 {
			v := value[out]
			if v < 0 {
				buf[out] = -1
				continue
			}
			val := &f.values[v]
			b := out
			if val.inner {
				b = s.place(slot, reads, out, val, pos >= s.hidden)
			}
			buf[out] = b
			if b != out && b >= 0 {
				if uses[b] == 0 { // it was dead
					wanted += f.values[value[b]].bytes
				}
				uses[b] += uses[out]
			} else if b == out && !val.bound {
				s.birth[out] = int32(pos)
				bytes += val.bytes
			}
		}
		s.delta[pos] = bytes
		if wanted += bytes; wanted >= limit {
			return false
		}
		for _, in := range reads {
			if in < 0 {
				continue
			}
			if b := buf[in]; b >= 0 {
				death[b] = int32(pos)
				if uses[b]--; uses[b] == 0 {
					if wanted -= f.values[value[b]].bytes; b < unknown {
						s.hand(b)
					}
				}
			}
		}
		for out := from; out < to; out++ {
			if b := buf[out]; b >= 0 {
				if uses[b]--; uses[b] == 0 {
					if wanted -= f.values[value[b]].bytes; b < unknown {
						s.hand(b)
					}
				}
			}
		}
	}
	return true
}

// hand puts a dead buffer on the list of its class.
func (s *liveSim) hand(b int32) {
	if c := s.f.values[s.value[b]].class; c >= 0 {
		s.byCls[c] = append(s.byCls[c], b)
	}
}

// place finds the buffer of one inner output, the value val: a view's, an input's
// that dies here, a dead one's, or its own (out).
func (s *liveSim) place(slot int32, reads []int32, out int32, val *flatValue, hidden bool) int32 {
	f := s.f
	if a := f.view[slot]; a >= 0 {
		if in := reads[a]; in >= 0 {
			return s.buf[in]
		}
		return -1
	}
	class := val.class
	if class < 0 || hidden {
		return out
	}
	for _, a := range f.over.of(int(slot)) {
		if in := reads[a]; in >= 0 && s.buf[in] >= 0 {
			b := s.buf[in]
			if s.uses[b] == 1 && f.values[s.value[in]].class == class {
				return b
			}
		}
	}
	if free := s.byCls[class]; s.uses[out] > 1 && !val.scalar && len(free) > 0 {
		b := free[len(free)-1]
		s.byCls[class] = free[:len(free)-1]
		return b
	}
	return out
}

// accumulate adds up what is alive at each place and notes the most, and where.
func (s *liveSim) accumulate(schedule []int) int64 {
	n, f := len(schedule), s.f
	s.freed = resize(s.freed, n)
	clear(s.freed)
	for b, at := range s.birth {
		if d := s.death[b]; at >= 0 && d >= 0 {
			if val := &f.values[s.value[b]]; val.inner {
				s.freed[d] += val.bytes
			}
		}
	}
	live := s.ix.p.Graph.Held
	s.peak, s.peakAt = live, 0
	for pos, op := range schedule {
		now := live + s.delta[pos] + f.scratch[op]
		if f.scripted[op] {
			now = live + s.inside(pos, &s.ix.p.Graph.Nodes[op])
		}
		live += s.delta[pos]
		if now > s.peak {
			s.peak, s.peakAt = now, pos
		}
		live -= s.freed[pos]
	}
	return s.peak
}

// inside returns the most bytes that a node with a script adds while it runs:
// of its outputs and its scratch, what its script has there at a time.
func (s *liveSim) inside(pos int, n *ortmodel.Node) int64 {
	held := s.delta[pos]
	var scratch int64
	for _, b := range n.Scratch {
		scratch += b
	}
	var now, top, taken int64
	for _, a := range n.Script {
		switch {
		case a.Kind == ortmodel.Take && a.Index >= 0 && a.Index < len(n.Outputs):
			if id := s.first[pos] + int32(a.Index); s.birth[id] == int32(pos) {
				b := s.ix.p.Graph.Values[s.value[id]].Bytes
				now, taken = now+b, taken+b
			}
		case a.Kind == ortmodel.Borrow && a.Index >= 0 && a.Index < len(n.Scratch):
			now, scratch = now+n.Scratch[a.Index], scratch-n.Scratch[a.Index]
		case a.Kind == ortmodel.GiveBack && a.Index >= 0 && a.Index < len(n.Scratch):
			now -= n.Scratch[a.Index]
		}
		top = max(top, now)
	}
	return max(top, now+held-taken+scratch)
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}
