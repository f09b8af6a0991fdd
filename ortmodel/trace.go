package ortmodel

import "slices"

// An Event is one allocation or release of a step.
type Event struct {
	// Step is the place in the schedule of the node that runs; len(order) for
	// what is released when the step has ended.
	Step int
	// Value is the value that owns the buffer, or None for scratch.
	Value int
	// Scratch is the place of scratch in its node's list.
	Scratch int
	// Bytes is the buffer's size; it is never 0, as ONNX Runtime does not
	// allocate empty tensors.
	Bytes int64
	// Alloc: allocated, else released.
	Alloc bool
	// Unstreamed: see Act.
	Unstreamed bool
}

// A Trace is everything that a step does to the allocator, in order.
type Trace struct {
	// Peak is the maximum of the bytes held, reached at place PeakAt.
	Peak   int64
	PeakAt int
	// Owner[v] is the value whose buffer value v lives in, v itself for most.
	Owner  []int
	Events []Event
}

// Held is one buffer that is alive at some moment.
type Held struct {
	Value int // or None for scratch
	Bytes int64
}

// Simulate runs g in the given order; see Simulator.Peak.
func Simulate(g *Graph, order []int) *Trace { return NewSimulator(g).Trace(order) }

// Trace returns the events of a step.
func (s *Simulator) Trace(order []int) *Trace {
	t := &Trace{Owner: make([]int, len(s.root))}
	t.Peak, t.PeakAt = s.run(order)
	for v, r := range s.root {
		t.Owner[v] = int(r)
	}
	dying := s.dying(len(order))
	emit := func(e Event) {
		if e.Bytes > 0 {
			t.Events = append(t.Events, e)
		}
	}
	for k, i := range order {
		n := s.scripts[i].n
		acts := s.scripts[i].acts
		if acts == nil {
			acts = complete(n)
		}
		for _, a := range acts {
			if a.Kind != Take {
				emit(Event{Step: k, Value: None, Scratch: a.Index, Bytes: n.Scratch[a.Index], Alloc: a.Kind == Borrow, Unstreamed: a.Unstreamed})
			} else if v := n.Outputs[a.Index]; v >= 0 {
				emit(Event{Step: k, Value: v, Bytes: s.owned(int32(v)), Alloc: true})
			}
		}
		for _, v := range dying[k] {
			emit(Event{Step: k, Value: v, Bytes: s.g.Values[v].Bytes})
		}
	}
	for _, v := range dying[len(order)] {
		emit(Event{Step: len(order), Value: v, Bytes: s.g.Values[v].Bytes})
	}
	return t
}

// dying lists for each place the buffers released there; ONNX Runtime goes by
// the index of values, which follows their first mention in the file.
func (s *Simulator) dying(steps int) [][]int {
	rank := s.mentions()
	out := make([][]int, steps+1)
	for v := range s.root {
		if !s.inner[v] || int(s.root[v]) != v {
			continue
		}
		k := steps
		if s.lastRead[v] != None {
			k = int(s.lastRead[v])
		}
		out[k] = append(out[k], v)
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b int) int { return rank[a] - rank[b] })
	}
	return out
}

func (s *Simulator) mentions() []int {
	rank := make([]int, len(s.root))
	next := 1
	mention := func(list []int32) {
		for _, v := range list {
			if rank[v] == 0 {
				rank[v] = next
				next++
			}
		}
	}
	for i := range s.g.Nodes {
		mention(s.inputs.of(i))
		mention(s.outputs.of(i))
	}
	return rank
}

// AtPeak lists what is held at the first moment at which the peak is reached,
// the biggest first.
func (t *Trace) AtPeak() []Held {
	var live, top int64
	end := 0
	for k, e := range t.Events {
		if !e.Alloc {
			live -= e.Bytes
			continue
		}
		if live += e.Bytes; live > top {
			top, end = live, k+1
		}
	}
	held := map[int]int64{}
	var scratch []int64
	for _, e := range t.Events[:end] {
		switch {
		case e.Value != None && e.Alloc:
			held[e.Value] = e.Bytes
		case e.Value != None:
			delete(held, e.Value)
		case e.Alloc:
			scratch = append(scratch, e.Bytes)
		default:
			if k := slices.Index(scratch, e.Bytes); k >= 0 {
				scratch = slices.Delete(scratch, k, k+1)
			}
		}
	}
	out := make([]Held, 0, len(held)+len(scratch))
	for v, b := range held {
		out = append(out, Held{v, b})
	}
	for _, b := range scratch {
		out = append(out, Held{None, b})
	}
	slices.SortFunc(out, func(a, b Held) int {
		if a.Bytes != b.Bytes {
			return int(min(1, max(-1, b.Bytes-a.Bytes)))
		}
		return a.Value - b.Value
	})
	return out
}
