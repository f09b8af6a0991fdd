package planner

import (
	"math"
	"slices"

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

	state  []uint8    // operator -> ran, readsCopy
	latest []int32    // value -> the instance of its latest copy plus 1, 0: none
	start  []int32    // position -> first entry in read
	read   []int32    // instance read, flat; -1: fed. It begins with the graph's own, f.made
	first  []int32    // position -> first instance it makes
	insts  []instance // first those that first executions make, by slot
	delta  []int64    // position -> bytes allocated there
	freed  []int64    // position -> bytes released after it
	byCls  [][]int32
	peak   int64
	peakAt int
}

// An instance is one execution's output, and the buffer that it may be: side by side,
// since each read asks most of it.
type instance struct {
	value int32
	buf   int32 // the owning instance, -1: somebody else's memory
	uses  int32 // as buffer: reads left
	birth int32 // as buffer: the position of its allocation, -1: none
	death int32 // as buffer: the position of its last release, -1: never
	class int32
	bytes int64
}

// forever is more reads than a value has: what counts them down never releases
// it, as it outlives the step.
const forever = 1 << 24

func newLiveSim(ix *index) *liveSim {
	classes := 0
	for v := range ix.p.Graph.Values {
		classes = max(classes, ix.p.Graph.Values[v].Class+1)
	}
	return &liveSim{ix: ix, f: ix.flat, state: make([]uint8, len(ix.p.Graph.Nodes)), latest: make([]int32, len(ix.root)),
		read: slices.Clone(ix.flat.made), byCls: make([][]int32, classes)}
}

// run simulates the schedule and returns its peak in bytes.
func (s *liveSim) run(schedule []int) int64 { return s.below(schedule, math.MaxInt64) }

// below is run for who does not take a peak of limit bytes or more: it ends, and returns
// limit, where that much is read later at one place, dead buffers left out.
func (s *liveSim) below(schedule []int, limit int64) int64 {
	s.ix.events += int64(len(schedule))
	s.resolve(schedule)
	if !s.assign(schedule, limit) {
		return limit
	}
	return s.accumulate(schedule)
}

// What resolve notes of an operator: it ran, and a value that it reads was made again.
const (
	ran uint8 = 1 << iota
	readsCopy
)

// resolve finds which instance each read means and counts the reads. As long as no
// operator runs again that is known ahead, so only copies, and what reads them, take time.
func (s *liveSim) resolve(schedule []int) {
	f, state, latest := s.f, s.state, s.latest
	s.start, s.first = resize(s.start, len(schedule)), resize(s.first, len(schedule))
	clear(state)
	clear(latest)
	read, insts := s.read[:len(f.made)], append(s.insts[:0], f.once...)
	s.hidden = len(schedule)
	once := 0
	for pos, op := range schedule {
		was, from := state[op], f.in.start[op]
		state[op] |= ran
		s.start[pos], s.first[pos] = from, f.out.start[op]
		if was == 0 {
			once++
			continue
		}
		if was&readsCopy != 0 {
			s.start[pos] = int32(len(read))
		}
		for i, v := range f.in.of(op) {
			k := f.made[from+int32(i)]
			if was&ran == 0 && k >= 0 {
				insts[k].uses--
			}
			if k >= 0 && latest[v] > 0 {
				k = latest[v] - 1
			}
			if k >= 0 {
				insts[k].uses++
			}
			if was&readsCopy != 0 {
				read = append(read, k)
			}
		}
		if was&ran == 0 {
			once++
			continue
		}
		if s.eraseShapes && s.hidden > pos {
			s.hidden = pos
		}
		s.first[pos] = int32(len(insts))
		for slot := f.out.start[op]; slot < f.out.start[op+1]; slot++ {
			insts = append(insts, f.fresh[slot])
			if v := f.out.items[slot]; v >= 0 {
				latest[v] = int32(len(insts))
				for _, reader := range s.ix.readers[v] {
					state[reader] |= readsCopy
				}
			}
		}
	}
	for op := 0; once < len(state); op++ {
		if state[op]&ran == 0 {
			once++
			for _, k := range f.made[f.in.start[op]:f.in.start[op+1]] {
				if k >= 0 {
					insts[k].uses--
				}
			}
		}
	}
	s.read, s.insts = read, insts
}

// assign gives every instance a buffer. It ends, false, where limit bytes are wanted.
func (s *liveSim) assign(schedule []int, limit int64) bool {
	f, insts := s.f, s.insts
	s.delta = resize(s.delta, len(schedule))
	for c := range s.byCls {
		s.byCls[c] = s.byCls[c][:0]
	}
	wanted := s.ix.p.Graph.Held // and by a read to come
	for pos, op := range schedule {
		reads := s.read[s.start[pos]:][:f.in.start[op+1]-f.in.start[op]]
		from := s.first[pos]
		to := from + f.out.start[op+1] - f.out.start[op]
		var bytes int64
		for out, slot := from, f.out.start[op]; out < to; out, slot = out+1, slot+1 {
			made := &insts[out]
			if made.value < 0 {
				continue
			}
			val := &f.values[made.value]
			b := out
			if val.inner {
				b = s.place(slot, reads, out, val, pos >= s.hidden)
			}
			made.buf = b
			if b != out && b >= 0 {
				owner := &insts[b]
				if owner.uses == 0 { // it was dead
					wanted += owner.bytes
				}
				owner.uses += made.uses
			} else if b == out && !val.bound {
				made.birth = int32(pos)
				bytes += made.bytes
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
			if b := insts[in].buf; b >= 0 {
				owner := &insts[b]
				owner.death = int32(pos)
				if owner.uses--; owner.uses == 0 {
					if wanted -= owner.bytes; int(owner.birth) < s.hidden {
						s.hand(b, owner.class)
					}
				}
			}
		}
		for out := from; out < to; out++ {
			if b := insts[out].buf; b >= 0 {
				owner := &insts[b]
				if owner.uses--; owner.uses == 0 {
					if wanted -= owner.bytes; int(owner.birth) < s.hidden {
						s.hand(b, owner.class)
					}
				}
			}
		}
	}
	return true
}

// hand puts a dead buffer on the list of its class.
func (s *liveSim) hand(b, class int32) {
	if class >= 0 {
		s.byCls[class] = append(s.byCls[class], b)
	}
}

// place finds the buffer of one inner output, the value val: a view's, an input's
// that dies here, a dead one's, or its own (out).
func (s *liveSim) place(slot int32, reads []int32, out int32, val *flatValue, hidden bool) int32 {
	f := s.f
	if a := f.view[slot]; a >= 0 {
		if in := reads[a]; in >= 0 {
			return s.insts[in].buf
		}
		return -1
	}
	class := s.insts[out].class
	if class < 0 || hidden {
		return out
	}
	for _, a := range f.over.of(int(slot)) {
		if in := reads[a]; in >= 0 {
			if b := s.insts[in].buf; b >= 0 && s.insts[b].uses == 1 && s.insts[in].class == class {
				return b
			}
		}
	}
	if free := s.byCls[class]; s.insts[out].uses > 1 && !val.scalar && len(free) > 0 {
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
	for i := range s.insts {
		if b := &s.insts[i]; b.birth >= 0 && b.death >= 0 && b.uses == 0 {
			s.freed[b.death] += b.bytes
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
			if made := &s.insts[s.first[pos]+int32(a.Index)]; made.birth == int32(pos) {
				now, taken = now+made.bytes, taken+made.bytes
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
