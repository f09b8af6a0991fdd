package planner

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// From a schedule with repeats to a graph: which instance reads which, and
// where barriers stand.
//
//	schedule:  A  B  C  dC  A  B  dB      (A, B run twice)
//	instances: A0 B0 C0 dC0 A1 B1 dB0     B1 reads A1, dB0 reads B1 and dC0
//	barrier:   A1 reads its input through one that waits for dC0's output
//
// ONNX Runtime merges nodes that compute the same from the same values. So a
// repeated instance all of whose inputs are also its original's (or another
// copy's) gets a barrier: its main input passes through a node that returns
// it unchanged but also depends on a value, the trigger, which is computed
// just before the recomputation is wanted and which lives on anyway. Every
// chain of recomputation starts in such an instance, so all of the chain waits.

// A ValueInstance is the result of one execution of a value's producer.
// Copy 0 is the original; fed values have no other.
type ValueInstance struct {
	Value int
	Copy  int
}

// A Barrier makes input number Input of an instance (an index into
// Instance.Inputs) depend on Trigger.
type Barrier struct {
	Input   int
	Trigger ValueInstance
}

// An Instance is one execution of an operator.
type Instance struct {
	Op   int
	Copy int
	// Inputs and Captures run parallel to the node's; a missing optional one
	// has Value ortmodel.None.
	Inputs, Captures []ValueInstance
	// Barriers on the same input nest. Instances that name the same input
	// instance and the same trigger can share one barrier node.
	Barriers []Barrier
}

// A Program is a plan spelled out: every instance in the order in which it is
// to run. Copy k of operator o yields copy k of o's outputs.
type Program struct {
	Instances []Instance
	// EraseShapes: see Plan.EraseShapes.
	EraseShapes bool
}

// ErasedFrom returns the place from which on shapes are to be erased: the
// first instance that is a repeat, or the number of instances.
func (pr *Program) ErasedFrom() int {
	if pr.EraseShapes {
		for i := range pr.Instances {
			if pr.Instances[i].Copy > 0 {
				return i
			}
		}
	}
	return len(pr.Instances)
}

// expander holds what Expand knows while it resolves a schedule.
type expander struct {
	p        *Problem
	ix       *index
	schedule []int
	// made lists the instances of values in the order in which they are made,
	// with the places that make them and that read them last, or -1.
	made     []ValueInstance
	madeAt   []int
	lastRead []int
	latest   []int // value -> place in made of its latest copy, or -1
	// before lists by place the last place before at which the operator runs, or -1.
	before []int
	room   []ValueInstance // for the instances' lists
}

// Expand spells out a plan. The plan must pass Plan.Check.
func Expand(p *Problem, pl *Plan) (*Program, error) {
	if err := pl.Check(p); err != nil {
		return nil, err
	}
	e := &expander{p: p, ix: p.indexed(), schedule: pl.Schedule, latest: make([]int, len(p.Values)), before: make([]int, len(pl.Schedule))}
	prog := e.resolve()
	prog.EraseShapes = pl.EraseShapes
	e.addEdges(prog, pl.ControlEdges)
	if err := e.addBarriers(prog); err != nil {
		return nil, err
	}
	return prog, nil
}

// resolve finds the copies and who reads which.
func (e *expander) resolve() *Program {
	prog := &Program{Instances: make([]Instance, len(e.schedule))}
	copies, last := make([]int, len(e.p.Ops)), make([]int, len(e.p.Ops))
	reads, made := 0, 0
	for _, op := range e.schedule {
		n := &e.p.Graph.Nodes[op]
		reads += len(n.Inputs) + len(n.Captures)
		made += len(n.Outputs)
	}
	e.room = make([]ValueInstance, reads)
	e.made, e.madeAt, e.lastRead = make([]ValueInstance, 0, made), make([]int, 0, made), make([]int, 0, made)
	for v := range e.latest {
		e.latest[v] = -1
	}
	for pos, op := range e.schedule {
		n := &e.p.Graph.Nodes[op]
		prog.Instances[pos] = Instance{Op: op, Copy: copies[op],
			Inputs: e.bind(n.Inputs, pos), Captures: e.bind(n.Captures, pos)}
		for _, v := range n.Outputs {
			if v == ortmodel.None {
				continue
			}
			e.latest[v] = len(e.made)
			e.made = append(e.made, ValueInstance{v, copies[op]})
			e.madeAt = append(e.madeAt, pos)
			e.lastRead = append(e.lastRead, -1)
		}
		if e.before[pos] = -1; copies[op] > 0 {
			e.before[pos] = last[op]
		}
		last[op] = pos
		copies[op]++
	}
	return prog
}

func (e *expander) bind(values []int, pos int) []ValueInstance {
	if len(values) == 0 {
		return nil
	}
	list := e.room[:len(values):len(values)]
	e.room = e.room[len(values):]
	for k, v := range values {
		list[k] = ValueInstance{Value: v}
		if v == ortmodel.None {
			continue
		}
		if at := e.latest[v]; at >= 0 {
			list[k].Copy = e.made[at].Copy
			e.lastRead[at] = pos
		}
	}
	return list
}

// addBarriers gives a barrier to each repeated instance that ONNX Runtime
// could take for another one. Instances of one episode (a run of repeats
// before an original instance) take their trigger from the episode's start,
// so that they share barriers.
func (e *expander) addBarriers(prog *Program) error {
	start := 0
	made := 0 // values made before the episode
	for pos := range prog.Instances {
		in := &prog.Instances[pos]
		if in.Copy == 0 {
			// It may wait for an edge, or read what was computed again: a repeat must not
			// do just the same.
			start = pos + 1
			continue
		}
		for made < len(e.made) && e.madeAt[made] < start {
			made++
		}
		if (e.allOriginal(in) || e.taken(prog, pos)) && !e.barrier(prog, pos, start, made) {
			return fmt.Errorf("expand: %q: copy %d has no trigger", e.p.Ops[in.Op].Name, in.Copy)
		}
	}
	return nil
}

// addEdges puts barriers before the first executions that are to wait.
func (e *expander) addEdges(prog *Program, controlEdges []ControlEdge) {
	if len(controlEdges) == 0 {
		return
	}
	first := make([]int, len(e.p.Ops))
	for pos := range prog.Instances {
		if in := &prog.Instances[pos]; in.Copy == 0 {
			first[in.Op] = pos
		}
	}
	for _, a := range controlEdges {
		in := &prog.Instances[first[a.Op]]
		in.Barriers = append(in.Barriers, Barrier{Input: e.mainInput(in), Trigger: ValueInstance{Value: a.After}})
	}
}

func (e *expander) allOriginal(in *Instance) bool {
	for _, list := range [2][]ValueInstance{in.Inputs, in.Captures} {
		for _, v := range list {
			if v.Copy > 0 {
				return false
			}
		}
	}
	return true
}

// taken reports an earlier instance that ONNX Runtime could not tell from the one at pos.
func (e *expander) taken(prog *Program, pos int) bool {
	in := &prog.Instances[pos]
	for at := e.before[pos]; at >= 0; at = e.before[at] {
		s := &prog.Instances[at]
		if slices.Equal(s.Inputs, in.Inputs) && slices.Equal(s.Captures, in.Captures) && slices.Equal(s.Barriers, in.Barriers) {
			return true
		}
	}
	return false
}

// barrier puts the main input of the instance at pos behind the best trigger that makes
// it unlike every earlier one.
func (e *expander) barrier(prog *Program, pos, start, made int) bool {
	in := &prog.Instances[pos]
	k := e.mainInput(in)
	if k < 0 {
		return false
	}
	try := func(from int, accept func(i int, v ValueInstance) bool) bool {
		for i := made - 1; i >= 0 && e.madeAt[i] >= from; i-- {
			if !accept(i, e.made[i]) {
				continue
			}
			in.Barriers = []Barrier{{Input: k, Trigger: e.made[i]}}
			if !e.taken(prog, pos) {
				return true
			}
		}
		in.Barriers = nil
		return false
	}
	class := e.p.Graph.Values[in.Inputs[k].Value].Class
	live := func(i int, v ValueInstance) bool {
		return e.p.Values[v.Value].Role != Index && e.lastRead[i] >= start
	}
	backward := func(v ValueInstance) bool { return !e.p.Ops[e.ix.producer[v.Value]].Forward }
	once := func(v ValueInstance) bool { return !e.p.Values[v.Value].Wide }
	return try(start-e.ix.tune.recent, func(i int, v ValueInstance) bool { // a live gradient of the same shape
		return live(i, v) && backward(v) && once(v) && class >= 0 && e.p.Graph.Values[v.Value].Class == class
	}) || try(0, func(i int, v ValueInstance) bool { // a live gradient
		return live(i, v) && backward(v) && once(v)
	}) || try(0, live) || // anything alive
		try(0, func(_ int, v ValueInstance) bool { return e.p.Values[v.Value].Role != Index })
}

// mainInput picks the input to guard: an activation before a parameter before
// a feed, the largest of them; never a shape or an index if there is another.
func (e *expander) mainInput(in *Instance) int {
	best, bestRank := -1, -1
	rank := func(v int) int {
		switch e.p.Values[v].Role {
		case Index:
			return 0
		case Feed:
			return 1
		case Parameter, State:
			return 2
		default:
			return 3
		}
	}
	for k, v := range in.Inputs {
		if v.Value == ortmodel.None {
			continue
		}
		r := rank(v.Value)
		if r > bestRank || r == bestRank && e.p.Graph.Values[v.Value].Bytes > e.p.Graph.Values[in.Inputs[best].Value].Bytes {
			best, bestRank = k, r
		}
	}
	return best
}

// Schedule returns the operators of the instances in another order of theirs.
// Instances that it leaves out, because the file has them merged with their
// equals, come right before their first reader.
func (pr *Program) Schedule(p *Problem, order []int) []int {
	maker := make(map[ValueInstance]int)
	for i := range pr.Instances {
		in := &pr.Instances[i]
		for _, v := range p.Graph.Nodes[in.Op].Outputs {
			if v != ortmodel.None {
				maker[ValueInstance{v, in.Copy}] = i
			}
		}
	}
	listed := make([]bool, len(pr.Instances))
	for _, i := range order {
		listed[i] = true
	}
	schedule := make([]int, 0, len(pr.Instances))
	var add func(i int)
	add = func(i int) {
		in := &pr.Instances[i]
		for _, list := range [2][]ValueInstance{in.Inputs, in.Captures} {
			for _, v := range list {
				if j, ok := maker[v]; ok && !listed[j] {
					listed[j] = true
					add(j)
				}
			}
		}
		schedule = append(schedule, in.Op)
	}
	for _, i := range order {
		add(i)
	}
	for i, done := range listed {
		if !done {
			listed[i] = true
			add(i)
		}
	}
	return schedule
}

// Graph returns the program as ONNX Runtime would see it, each barrier one
// view node, nodes in the program's order. first[i] is the node of instance i.
func (pr *Program) Graph(p *Problem) (g *ortmodel.Graph, first []int) {
	copies, reads, made := 0, 0, 0
	at := make([]int, len(p.Values)+1) // value -> where in numbers its copies from 1 on begin
	for i := range pr.Instances {
		in := &pr.Instances[i]
		reads, made = reads+len(in.Inputs)+len(in.Captures), made+len(p.Graph.Nodes[in.Op].Outputs)
		if in.Copy == 0 {
			continue
		}
		for _, v := range p.Graph.Nodes[in.Op].Outputs {
			if v != ortmodel.None {
				copies++
				at[v+1]++
			}
		}
	}
	for v := range p.Values {
		at[v+1] += at[v]
	}
	numbers := make([]int, copies) // in the graph that is made, 0 before they have one
	g = &ortmodel.Graph{Values: make([]ortmodel.Value, len(p.Graph.Values), len(p.Graph.Values)+copies+copies/4),
		Nodes: make([]ortmodel.Node, 0, len(pr.Instances)+copies/4), Held: p.Graph.Held}
	copy(g.Values, p.Graph.Values)
	first = make([]int, 0, len(pr.Instances))
	number := func(v ValueInstance) int {
		if v.Value == ortmodel.None || v.Copy == 0 {
			return v.Value
		}
		id := &numbers[at[v.Value]+v.Copy-1]
		if *id == 0 {
			*id = len(g.Values)
			val := p.Graph.Values[v.Value]
			val.Kind = ortmodel.Inner
			g.Values = append(g.Values, val)
		}
		return *id
	}
	type key struct {
		in      int
		trigger ValueInstance
	}
	barriers := make(map[key]int)
	erasedFrom := pr.ErasedFrom()
	room := make([]int, reads+made) // for the nodes' lists
	list := func(n int) (l []int) {
		if n > 0 {
			l, room = room[:n:n], room[n:]
		}
		return l
	}
	for i := range pr.Instances {
		in := &pr.Instances[i]
		src := &p.Graph.Nodes[in.Op]
		n := ortmodel.Node{Alias: src.Alias, InPlace: src.InPlace, Scratch: src.Scratch,
			Inputs: list(len(in.Inputs)), Captures: list(len(in.Captures)), Outputs: list(len(src.Outputs))}
		for k, v := range in.Inputs {
			n.Inputs[k] = number(v)
		}
		for k, v := range in.Captures {
			n.Captures[k] = number(v)
		}
		for k, v := range src.Outputs {
			id := number(ValueInstance{v, in.Copy})
			n.Outputs[k] = id
			if i >= erasedFrom && id >= 0 && g.Values[id].Kind == ortmodel.Inner {
				g.Values[id].Class = ortmodel.None
			}
		}
		for _, b := range in.Barriers {
			k := key{n.Inputs[b.Input], b.Trigger}
			id, ok := barriers[k]
			if !ok {
				id = len(g.Values)
				barriers[k] = id
				val := g.Values[k.in]
				val.Kind = ortmodel.Inner
				g.Values = append(g.Values, val)
				g.Nodes = append(g.Nodes, ortmodel.Node{
					Inputs: []int{k.in, number(k.trigger)}, Outputs: []int{id},
					Alias: []ortmodel.Pair{{Input: 0, Output: 0}}})
			}
			n.Inputs[b.Input] = id
		}
		first = append(first, len(g.Nodes))
		g.Nodes = append(g.Nodes, n)
	}
	return g, first
}
