package ortmodel

import "math"

// Orders that differ from one only in a stretch, without simulating the step anew.
//
//	order:   … a b c │ d e f g h │ i j k …
//	                 from        to
//
// What is planned before the stretch is the same for all of them, so it is planned
// once. Behind it the plan is taken to be that of the one order: by value, where it
// is read last there, or what takes over its buffer.
//
// Weakness: other buffers that die in the stretch may change who takes which behind
// it, and how long a dead one waited before it. Simulator.Peak says what an order
// holds as a whole.

// A Window answers for the orders that differ from one between two places, until
// its simulator is asked for another order.
type Window struct {
	s        *Simulator
	from, to int
	// live are the bytes held when the stretch begins, less what is dead then and
	// taken over in it.
	live int64
	// part says where a value is made: before the stretch (or it is fed), in it, or
	// behind it.
	part []uint8
	// after is the place behind the stretch up to which a value's buffer is there: by
	// root of what is made before the stretch, by value of what is made in it. None
	// where it dies sooner.
	after []int32
	// last is where a root was read last when the stretch begins.
	last []int32
	// heir is of a value made behind the stretch: the value made before whose buffer
	// it has, or None.
	heir []int32
	// The state when the stretch begins, by value, and by class.
	uses, root, nextFree, freeTop []int32
	// values are those that the stretch makes and reads, each once.
	values  []int32
	release []int64
	held    []int64
}

const (
	before = iota
	within
	behind
)

// NewWindow makes a window of s, none of whose nodes run on a host beside a device:
// the two are planned apart.
func NewWindow(s *Simulator) *Window {
	n := len(s.root)
	return &Window{s: s, part: make([]uint8, n), after: make([]int32, n), heir: make([]int32, n)}
}

// At prepares the places of an order from from up to to, exclusive. It must be the
// order that the simulator was asked for last.
func (w *Window) At(order []int, from, to int) {
	s := w.s
	w.from, w.to = from, to
	w.behind(order)
	s.begin()
	for k, i := range order[:from] {
		s.planNode(k, i)
	}
	w.last = append(w.last[:0], s.lastRead...)
	w.live = s.g.Held
	for _, i := range order[:from] {
		for _, v := range s.outputs.of(i) {
			if s.uses[v] > 0 || w.after[v] != None || w.last[v] == None || !s.inner[v] {
				w.live += s.owned(v)
			}
		}
	}
	w.root, w.uses = append(w.root[:0], s.root...), append(w.uses[:0], s.uses...)
	w.nextFree, w.freeTop = append(w.nextFree[:0], s.nextFree...), append(w.freeTop[:0], s.freeTop...)
	w.values = w.values[:0]
	for _, i := range order[from:to] {
		for _, list := range [2][]int32{s.inputs.of(i), s.outputs.of(i)} {
			for _, v := range list {
				if s.lastRead[v] != marked {
					w.values, s.lastRead[v] = append(w.values, v), marked
				}
			}
		}
	}
	w.release, w.held = make([]int64, to-from), make([]int64, to-from)
}

// marked is no place, and not None; lasting is behind every place.
const (
	marked  = -2
	lasting = math.MaxInt32
)

// behind finds what is read behind the stretch of the order that was simulated.
func (w *Window) behind(order []int) {
	s := w.s
	for v := range w.after {
		w.part[v], w.after[v], w.heir[v] = before, None, None
	}
	for k, i := range order[w.from:] {
		for _, v := range s.outputs.of(i) {
			w.part[v] = within
			if w.from+k >= w.to {
				w.part[v] = behind
			}
		}
	}
	for k := w.to; k < len(order); k++ {
		i := order[k]
		for _, v := range s.outputs.of(i) {
			if s.root[v] != v {
				w.heir[v] = w.heirOf(i, s.root[v])
			}
		}
		for _, v := range s.inputs.of(i) {
			if v = w.source(v); v != None {
				if w.part[v] == before {
					v = s.root[v]
				}
				w.after[v] = int32(k)
			}
		}
	}
}

// heirOf returns the value made before the end of the stretch through which node i
// comes by buffer r: one that it reads, or r itself, which was dead.
func (w *Window) heirOf(i int, r int32) int32 {
	for _, v := range w.s.inputs.of(i) {
		if w.s.root[v] == r {
			return w.source(v)
		}
	}
	return w.source(r)
}

func (w *Window) source(v int32) int32 {
	if w.part[v] == behind {
		return w.heir[v]
	}
	return v
}

// Profile returns for each place of the stretch the bytes held there if its nodes
// run in the given order, which must be a topological order of them. The slice is
// overwritten by the next call.
func (w *Window) Profile(stretch []int) []int64 {
	s := w.s
	w.restore()
	for k, i := range stretch {
		s.planNode(w.from+k, i)
	}
	live := w.live + w.deaths()
	for k, i := range stretch {
		top, kept := s.scripts[i].held(s, live)
		w.held[k] = top
		live += kept - w.release[k]
	}
	return w.held
}

// restore brings back the state when the stretch begins.
func (w *Window) restore() {
	s := w.s
	copy(s.freeTop, w.freeTop)
	for _, v := range w.values {
		for _, r := range [2]int32{s.root[v], v} { // whose buffer it had, and itself
			s.root[r], s.uses[r], s.nextFree[r], s.lastRead[r] = w.root[r], w.uses[r], w.nextFree[r], None
		}
	}
}

// deaths finds what the stretch releases, and where, and returns the bytes of dead
// buffers that it took over.
func (w *Window) deaths() (taken int64) {
	s := w.s
	for _, v := range w.values {
		if r := s.root[v]; w.after[v] != None && w.part[v] == within || w.after[r] != None {
			s.lastRead[r] = lasting
		}
	}
	clear(w.release)
	for _, v := range w.values {
		r := s.root[v]
		k := s.lastRead[r]
		if k == marked {
			continue
		}
		s.lastRead[r] = marked
		if w.part[r] == before && w.uses[r] == 0 && w.after[r] == None && w.last[r] != None && s.inner[r] {
			taken += s.g.Values[r].Bytes
		}
		if s.inner[r] && k != None && k != lasting {
			w.release[int(k)-w.from] += s.g.Values[r].Bytes
		}
	}
	return taken
}
