package ortmodel

// ONNX Runtime's allocation planner, followed by the frame that carries its
// plan out.
//
// Plan, node after node in execution order, output after output:
//
//	output of the graph  -> a buffer of its own, never handed on
//	aliased input        -> that input's buffer, whatever its size
//	in place             -> an input's buffer, if this is its last use and
//	                        shape and element size are the same
//	dead buffer          -> the one of the same shape and element size that
//	                        died last, unless nobody reads the output or it
//	                        is a scalar
//	otherwise            -> a new buffer
//
// then the node's inputs, captures and outputs each lose one use, in that
// order; a buffer without uses left is dead and may be handed on.
//
// Frame: a buffer is allocated when the node that owns it asks for it, and
// released after the last node that reads any of the values that share it, so
// a dead buffer that is reused later counts in between. A buffer whose values
// nobody reads is released only at the end of the step.
//
// Nodes on the host and on the device are planned one after another, the stream of
// the first node first, each with uses counted anew: a value that nodes of both read
// is never handed on. What is free at the end of one is free for the other.
//
// Source: allocation_planner.cc (ComputeReuseCount, FindReusableInput,
// FindReusableTensor, GenerateDeallocationPlan), and the counting allocator.
// Weakness: one stream a device, sequential execution, memory pattern off.

// A Simulator answers for many schedules of one graph without allocating.
// It is not safe for concurrent use.
type Simulator struct {
	g *Graph
	// Flattened node structure: row i of each is row[start[i]:start[i+1]].
	inputs, outputs row // inputs: inputs and captures
	uses0           []int32
	read            []bool // some node reads the value
	inner           []bool // made by a node and released by the step
	scripts         []script
	classes         int
	divided         bool // some nodes run on the host, others do not

	// State of one simulation, by value.
	uses, root, nextFree []int32
	lastRead             []int32 // by root: place of the last reader, or None
	freeTop              []int32 // by class: most recently freed
	// By place in the schedule.
	release []int64
	live    []int64
}

// A row holds lists of values back to back.
type row struct{ start, items []int32 }

func (r *row) of(i int) []int32 { return r.items[r.start[i]:r.start[i+1]] }

// NewSimulator prepares g, which must not change afterwards.
func NewSimulator(g *Graph) *Simulator {
	n, v := len(g.Nodes), len(g.Values)
	s := &Simulator{
		g: g, uses0: make([]int32, v), read: make([]bool, v), inner: make([]bool, v), scripts: make([]script, n),
		uses: make([]int32, v), root: make([]int32, v), nextFree: make([]int32, v),
		lastRead: make([]int32, v), release: make([]int64, n), live: make([]int64, n),
	}
	reads, made := 0, 0
	for i := range g.Nodes {
		reads += len(g.Nodes[i].Inputs) + len(g.Nodes[i].Captures)
		made += len(g.Nodes[i].Outputs)
	}
	s.inputs.items, s.outputs.items = make([]int32, 0, reads), make([]int32, 0, made)
	s.inputs.start = make([]int32, n+1)
	s.outputs.start = make([]int32, n+1)
	for i := range g.Nodes {
		s.addNode(i)
	}
	for v := range g.Values {
		if g.Values[v].Kind != Inner {
			s.uses0[v]++
		}
		s.classes = max(s.classes, g.Values[v].Class+1)
	}
	s.freeTop = make([]int32, s.classes)
	s.divided = divided(g)
	return s
}

func (s *Simulator) addNode(i int) {
	n := &s.g.Nodes[i]
	for _, list := range [2][]int{n.Inputs, n.Captures} {
		for _, v := range list {
			if v >= 0 {
				s.inputs.items = append(s.inputs.items, int32(v))
				s.uses0[v]++
				s.read[v] = true
			}
		}
	}
	for _, v := range n.Outputs {
		if v >= 0 {
			s.outputs.items = append(s.outputs.items, int32(v))
			s.uses0[v]++
			s.inner[v] = s.g.Values[v].Kind == Inner
		}
	}
	s.inputs.start[i+1] = int32(len(s.inputs.items))
	s.outputs.start[i+1] = int32(len(s.outputs.items))
	s.scripts[i] = newScript(n)
}

// Peak returns the maximum over the step of the bytes that the step holds.
// order must be a topological order of all nodes (see Valid).
func (s *Simulator) Peak(order []int) int64 {
	peak, _ := s.run(order)
	return peak
}

// Profile returns for each place in order the bytes held while that node
// runs, its scratch included. The slice is overwritten by the next call.
func (s *Simulator) Profile(order []int) []int64 {
	s.run(order)
	return s.live[:len(order)]
}

func (s *Simulator) run(order []int) (peak int64, at int) {
	s.plan(order)
	clear(s.release)
	for v := range s.root {
		if k := s.lastRead[v]; k != None && s.inner[v] {
			s.release[k] += s.g.Values[v].Bytes
		}
	}
	live := s.g.Held
	peak = live
	for k, i := range order {
		top, kept := s.scripts[i].held(s, live)
		s.live[k] = top
		if top > peak {
			peak, at = top, k
		}
		live += kept - s.release[k]
	}
	return peak, at
}

// owned returns the bytes that making v allocates.
func (s *Simulator) owned(v int32) int64 {
	if s.root[v] != v {
		return 0
	}
	switch s.g.Values[v].Kind {
	case Inner, Output:
		return s.g.Values[v].Bytes
	}
	return 0
}

// plan fills root and lastRead for one schedule.
func (s *Simulator) plan(order []int) {
	s.begin()
	if !s.divided {
		s.planStream(order, false, false)
		return
	}
	first := s.g.Nodes[order[0]].Host
	s.planStream(order, true, first)
	s.planStream(order, true, !first)
	for k, i := range order {
		for _, v := range s.inputs.of(i) {
			s.lastRead[s.root[v]] = int32(k)
		}
	}
}

// begin forgets the schedule before.
func (s *Simulator) begin() {
	for v := range s.root {
		s.root[v] = int32(v)
		s.lastRead[v] = None
	}
	for c := range s.freeTop {
		s.freeTop[c] = None
	}
	copy(s.uses, s.uses0)
}

// planStream plans the nodes of a schedule, or, divided, those on the host or those
// that are not.
func (s *Simulator) planStream(order []int, divided, host bool) {
	copy(s.uses, s.uses0)
	for k, i := range order {
		if !divided || s.g.Nodes[i].Host == host {
			s.planNode(k, i)
		}
	}
}

// planNode plans node i, which runs at place k.
func (s *Simulator) planNode(k, i int) {
	n := &s.g.Nodes[i]
	for o, v := range n.Outputs {
		if v >= 0 {
			s.place(n, o, int32(v))
		}
	}
	for _, v := range s.inputs.of(i) {
		r := s.root[v]
		s.lastRead[r] = int32(k)
		s.drop(r)
	}
	for _, v := range s.outputs.of(i) {
		s.drop(s.root[v])
	}
}

// place decides which buffer output o of n, the value v, gets.
func (s *Simulator) place(n *Node, o int, v int32) {
	val := &s.g.Values[v]
	if val.Kind == Output || val.Kind == Bound {
		return
	}
	from := s.reusableInput(n, o, val)
	if from == None && s.read[v] && !val.Scalar && val.Class >= 0 {
		if from = s.freeTop[val.Class]; from != None {
			s.freeTop[val.Class] = s.nextFree[from]
		}
	}
	if from == None || from == v {
		return
	}
	r := s.root[from]
	s.root[v] = r
	s.uses[r] += s.uses[v]
}

func (s *Simulator) reusableInput(n *Node, o int, val *Value) int32 {
	for _, p := range n.Alias {
		if p.Output == o && p.Input < len(n.Inputs) && n.Inputs[p.Input] >= 0 {
			return int32(n.Inputs[p.Input])
		}
	}
	for _, p := range n.InPlace {
		if p.Output != o || p.Input >= len(n.Inputs) || n.Inputs[p.Input] < 0 {
			continue
		}
		x := int32(n.Inputs[p.Input])
		if s.uses[s.root[x]] == 1 && val.Class >= 0 && s.g.Values[x].Class == val.Class {
			return x
		}
	}
	return None
}

// drop takes one use from buffer r and hands it on when none is left.
func (s *Simulator) drop(r int32) {
	if s.uses[r]--; s.uses[r] != 0 {
		return
	}
	if c := s.g.Values[r].Class; c >= 0 {
		s.nextFree[r] = s.freeTop[c]
		s.freeTop[c] = r
	}
}
