package planner

import "github.com/onnx-remat/remat/ortmodel"

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
	// reuse: model dead buffers waiting for a tenant of their class; without
	// it, the bytes are those of an allocator that frees at the last read.
	reuse bool
	// conceal: from the first repeated operator on, ONNX Runtime does not know
	// the shapes, so nothing is taken over; hidden is that place.
	conceal bool
	hidden  int

	cur    []int32 // value -> latest instance, -1: fed
	start  []int32 // position -> first entry in read
	read   []int32 // instance read, flat; -1: fed
	first  []int32 // position -> first instance it makes
	value  []int32 // instance -> value
	uses   []int32 // instance (as buffer) -> reads left
	buf    []int32 // instance -> owning instance, -1: somebody else's memory
	birth  []int32 // buffer -> position of its allocation, -1: none
	death  []int32 // buffer -> position of its last release, -1: never
	delta  []int64 // position -> bytes allocated there
	freed  []int64 // position -> bytes released after it
	live   []int64 // position -> bytes while it runs
	byCls  [][]int32
	peak   int64
	peakAt int
	ran    []bool
}

func newLiveSim(ix *index, reuse bool) *liveSim {
	classes := 0
	for v := range ix.p.Graph.Values {
		classes = max(classes, ix.p.Graph.Values[v].Class+1)
	}
	return &liveSim{ix: ix, reuse: reuse, cur: make([]int32, len(ix.root)), byCls: make([][]int32, classes)}
}

// run simulates the schedule and returns its peak in bytes.
func (s *liveSim) run(schedule []int) int64 {
	s.resolve(schedule)
	s.assign(schedule)
	return s.accumulate(schedule)
}

// resolve finds which instance each read means and counts the reads.
func (s *liveSim) resolve(schedule []int) {
	s.start, s.read, s.first = s.start[:0], s.read[:0], s.first[:0]
	s.value, s.uses = s.value[:0], s.uses[:0]
	for v := range s.cur {
		s.cur[v] = -1
	}
	vals := s.ix.p.Graph.Values
	s.hidden = len(schedule)
	if s.conceal {
		s.hidden = s.firstRepeat(schedule)
	}
	for _, op := range schedule {
		s.start = append(s.start, int32(len(s.read)))
		n := &s.ix.p.Graph.Nodes[op]
		for _, list := range [2][]int{n.Inputs, n.Captures} {
			for _, v := range list {
				id := int32(-1)
				if v >= 0 {
					if id = s.cur[v]; id >= 0 {
						s.uses[id]++
					}
				}
				s.read = append(s.read, id)
			}
		}
		s.first = append(s.first, int32(len(s.value)))
		for _, v := range n.Outputs {
			use := int32(1)
			if v >= 0 {
				if k := vals[v].Kind; k == ortmodel.Output || k == ortmodel.Bound {
					use = 1 << 24 // outlives the step
				}
				s.cur[v] = int32(len(s.value))
			}
			s.value = append(s.value, int32(v))
			s.uses = append(s.uses, use)
		}
	}
	s.start = append(s.start, int32(len(s.read)))
}

// assign gives every instance a buffer.
func (s *liveSim) assign(schedule []int) {
	n := len(s.value)
	s.buf, s.birth, s.death = resize(s.buf, n), resize(s.birth, n), resize(s.death, n)
	for i := range s.birth {
		s.birth[i], s.death[i] = -1, -1
	}
	for c := range s.byCls {
		s.byCls[c] = s.byCls[c][:0]
	}
	vals := s.ix.p.Graph.Values
	for pos, op := range schedule {
		node := &s.ix.p.Graph.Nodes[op]
		reads := s.read[s.start[pos]:s.start[pos+1]]
		id := s.first[pos]
		for k, v := range node.Outputs {
			out := id + int32(k)
			if v < 0 {
				s.buf[out] = -1
				continue
			}
			b := out
			if vals[v].Kind == ortmodel.Inner {
				b = s.place(node, reads, out, k, &vals[v], pos >= s.hidden)
			}
			s.buf[out] = b
			if b != out && b >= 0 {
				s.uses[b] += s.uses[out]
			} else if b == out && vals[v].Kind != ortmodel.Bound {
				s.birth[out] = int32(pos)
			}
		}
		for _, in := range reads {
			if in >= 0 && s.buf[in] >= 0 {
				s.death[s.buf[in]] = int32(pos)
				s.release(s.buf[in])
			}
		}
		for k, v := range node.Outputs {
			if b := s.buf[id+int32(k)]; v >= 0 && b >= 0 {
				s.release(b)
			}
		}
	}
}

// place finds the buffer of one inner output: a view's, an input's that dies
// here, a dead one's, or its own (out).
func (s *liveSim) place(node *ortmodel.Node, reads []int32, out int32, k int, val *ortmodel.Value, hidden bool) int32 {
	for _, a := range node.Alias {
		if a.Output == k {
			if in := reads[a.Input]; in >= 0 {
				return s.buf[in]
			}
			return -1
		}
	}
	if val.Class < 0 || hidden {
		return out
	}
	for _, a := range node.InPlace {
		if a.Output != k {
			continue
		}
		if in := reads[a.Input]; in >= 0 && s.buf[in] >= 0 {
			b := s.buf[in]
			if s.uses[b] == 1 && s.ix.p.Graph.Values[s.value[in]].Class == val.Class {
				return b
			}
		}
	}
	if free := s.byCls[val.Class]; s.reuse && s.uses[out] > 1 && !val.Scalar && len(free) > 0 {
		b := free[len(free)-1]
		s.byCls[val.Class] = free[:len(free)-1]
		return b
	}
	return out
}

// release takes one use from b and hands it on when none is left.
func (s *liveSim) release(b int32) {
	if s.uses[b]--; s.uses[b] == 0 {
		if c := s.ix.p.Graph.Values[s.value[b]].Class; c >= 0 && !s.unknown(b) {
			s.byCls[c] = append(s.byCls[c], b)
		}
	}
}

// firstRepeat returns the place of the first operator that ran before.
func (s *liveSim) firstRepeat(schedule []int) int {
	s.ran = resize(s.ran, len(s.ix.reads))
	clear(s.ran)
	for pos, op := range schedule {
		if s.ran[op] {
			return pos
		}
		s.ran[op] = true
	}
	return len(schedule)
}

// unknown reports a buffer made where shapes are concealed.
func (s *liveSim) unknown(b int32) bool {
	return s.hidden < len(s.first) && b >= s.first[s.hidden]
}

func (s *liveSim) accumulate(schedule []int) int64 {
	n := len(schedule)
	s.delta, s.freed, s.live = resize(s.delta, n), resize(s.freed, n), resize(s.live, n)
	clear(s.delta)
	clear(s.freed)
	for b, at := range s.birth {
		if at < 0 {
			continue
		}
		bytes := s.ix.p.Graph.Values[s.value[b]].Bytes
		s.delta[at] += bytes
		if d := s.death[b]; d >= 0 && s.ix.p.Graph.Values[s.value[b]].Kind == ortmodel.Inner {
			s.freed[d] += bytes
		}
	}
	var live int64
	s.peak, s.peakAt = 0, 0
	for pos, op := range schedule {
		s.live[pos] = live + s.inside(pos, &s.ix.p.Graph.Nodes[op])
		live += s.delta[pos]
		if s.live[pos] > s.peak {
			s.peak, s.peakAt = s.live[pos], pos
		}
		live -= s.freed[pos]
	}
	return s.peak
}

// inside returns the most bytes that a node adds while it runs: its outputs
// and its scratch, together unless its script says otherwise.
func (s *liveSim) inside(pos int, n *ortmodel.Node) int64 {
	held := s.delta[pos]
	var scratch int64
	for _, b := range n.Scratch {
		scratch += b
	}
	if n.Script == nil || scratch == 0 {
		return held + scratch
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
