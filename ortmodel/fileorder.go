package ortmodel

import "slices"

// From a wanted schedule to the file order that makes ONNX Runtime run it.
//
// Order visits, among nodes pushed together (the leaves; the unvisited
// producers of one node), the one that stands last in the file first, and a
// node stands behind its producers. So of all its readers the one that runs
// first is the one that asks for a node, whatever the file:
//
//	schedule:  a b c d e        readers: c of a and b, e of b, c and d
//	tree:      e ─┬─ c ─┬─ a    each node below the reader that the schedule
//	              │     └─ b    runs first, leaves below a root of their own
//	              └─ d
//
// and the schedules that some file can express are exactly those that are a
// post-order of their own tree: every subtree runs in one stretch that ends in
// its top. Then, of two neighbours below one reader, the one that runs first
// has to stand last in the file. These constraints and the data dependencies
// never contradict each other: were there a cycle, then along it the readers
// under which the neighbours hang could only come later in the schedule, so
// they would all be one reader, and the neighbours below one reader are in a
// line. Any topological order of both is a file order.
//
// A schedule that is no such post-order lets some stretch run early (an early node, named by its end):
// nodes run after it that ask for what ran before it, and its own reader comes
// later. It is brought in by one dependency more, from the early node's top to a
// node right behind it; FileOrder alone can only let it wait for its reader.

// FileOrder returns a permutation of g's nodes, file[i] being the node to
// stand at place i, for which Order runs Lazy(g, schedule), and the number of
// early nodes of the schedule: with none, Order runs the schedule itself. It must
// be a topological order of all nodes; otherwise the file's order comes back
// unchanged with as many early nodes as nodes.
func FileOrder(g *Graph, schedule []int) (file []int, early int) {
	s := NewSchedules(g)
	if !valid(&s.e, schedule) {
		return FileSchedule(len(g.Nodes)), len(g.Nodes)
	}
	early = len(s.e.early(schedule))
	if early > 0 {
		schedule = s.lazy(schedule, nil)
	}
	return s.e.layOut(schedule), early
}

// Schedules answers for many schedules of one graph. It is not safe for
// concurrent use.
type Schedules struct {
	e       edges
	readers []int32 // node -> how many nodes read it
	// left is readers while an order is built; stack and extra belong to it.
	left, stack []int32
	extra       map[int32][]int32 // node -> tops that it waits for
}

// NewSchedules prepares g, which must not change afterwards.
func NewSchedules(g *Graph) *Schedules {
	s := &Schedules{e: dependencies(g), readers: make([]int32, len(g.Nodes)), extra: map[int32][]int32{}}
	for _, p := range s.e.prod {
		s.readers[p]++
	}
	return s
}

// Lazy returns the schedule that ONNX Runtime will really run for the file
// that FileOrder makes of schedule: every early node runs when its reader comes,
// except for those given, which are brought in by their first successor. It is
// the schedule itself where that has no others.
func Lazy(g *Graph, schedule []int, except ...EarlyNode) []int {
	s := NewSchedules(g)
	if !valid(&s.e, schedule) {
		return Order(g)
	}
	return s.lazy(schedule, except)
}

// Lazy is the function Lazy for a schedule that EarlyNodes took.
func (s *Schedules) Lazy(schedule []int, except ...EarlyNode) []int { return s.lazy(schedule, except) }

// An EarlyNode is a stretch of a schedule that runs before ONNX Runtime would come
// to it.
type EarlyNode struct {
	// Top is its last node. Once one of Successors reads Top, it is not an early node.
	// The first of Successors runs next, and each asks for the one before it and
	// for nothing else that runs behind Top.
	Top        int
	Successors []int
}

// EarlyNodes returns the early nodes of a schedule in the order of their tops. They are
// independent: each may be brought in by itself.
func EarlyNodes(g *Graph, schedule []int) []EarlyNode { return NewSchedules(g).EarlyNodes(schedule) }

// EarlyNodes is the function EarlyNodes.
func (s *Schedules) EarlyNodes(schedule []int) []EarlyNode {
	if !valid(&s.e, schedule) {
		return nil
	}
	return s.e.early(schedule)
}

// Permute returns the graph whose node i is g's node file[i]. Values and the
// nodes' insides are shared with g.
func Permute(g *Graph, file []int) *Graph {
	p := &Graph{Nodes: make([]Node, len(file)), Values: g.Values}
	for i, at := range file {
		p.Nodes[i] = g.Nodes[at]
	}
	return p
}

// Valid reports whether order is a permutation of g's nodes in which every
// node comes after its producers.
func Valid(g *Graph, order []int) bool {
	e := dependencies(g)
	return valid(&e, order)
}

func valid(e *edges, order []int) bool {
	n := len(e.start) - 1
	if len(order) != n {
		return false
	}
	done := make([]bool, n)
	for _, i := range order {
		if i < 0 || i >= n || done[i] {
			return false
		}
		for _, p := range e.of(int32(i)) {
			if !done[p] {
				return false
			}
		}
		done[i] = true
	}
	return true
}

// FileSchedule is the schedule of so many nodes that runs them as they stand.
func FileSchedule(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// places inverts a schedule.
func places(schedule []int) []int32 {
	pos := make([]int32, len(schedule))
	for at, i := range schedule {
		pos[i] = int32(at)
	}
	return pos
}

// askers returns for each node the reader that the schedule runs first, or
// None for a leaf.
func (e *edges) askers(schedule []int) []int32 {
	ask := slices.Repeat([]int32{None}, len(schedule))
	for k := len(schedule) - 1; k >= 0; k-- {
		for _, p := range e.of(int32(schedule[k])) {
			ask[p] = int32(schedule[k])
		}
	}
	return ask
}

// early walks the schedule with the stretches on a stack whose reader is
// still to come. A node takes those that it asks for off the top; what lies
// between them asks for nobody here.
func (e *edges) early(schedule []int) []EarlyNode {
	ask := e.askers(schedule)
	pos := places(schedule)
	children := make([]int32, len(schedule)) // still on the stack
	var stack []int32
	var list []EarlyNode
	for _, s := range schedule {
		s := int32(s)
		for children[s] > 0 {
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if ask[top] >= 0 {
				children[ask[top]]--
			}
			if ask[top] != s {
				list = append(list, EarlyNode{int(top), e.successors(schedule, pos, ask, top, s)})
			}
		}
		stack = append(stack, s)
		if ask[s] >= 0 {
			children[ask[s]]++
		}
	}
	slices.SortFunc(list, func(a, b EarlyNode) int { return int(pos[a.Top] - pos[b.Top]) })
	return list
}

// maxSuccessors bounds the successors that are listed for an early node.
const maxSuccessors = 8

// successors lists who may wait for the top of an early node that is in the way of node
// until: what runs next, then whoever asks for that, and so on, as long as it
// asks for nothing else that runs behind the early node.
func (e *edges) successors(schedule []int, pos, ask []int32, top, until int32) []int {
	var list []int
	for d := int32(schedule[pos[top]+1]); d >= 0 && pos[d] <= pos[until] && len(list) < maxSuccessors; d = ask[d] {
		behind := 0
		for _, p := range e.of(d) {
			if ask[p] == d && pos[p] > pos[top] {
				behind++
			}
		}
		if behind > 1 {
			break
		}
		list = append(list, int(d))
	}
	return list
}

// lazy builds the nearest post-order from its end: a node is placed once all
// its readers are, below the last of them to be placed, which is the one that
// will run first. The first successor of an early node that is excepted reads its top.
func (s *Schedules) lazy(schedule []int, except []EarlyNode) []int {
	pos := places(schedule)
	s.left = append(s.left[:0], s.readers...)
	clear(s.extra)
	for _, x := range except {
		by, top := int32(x.Successors[0]), int32(x.Top)
		if !slices.Contains(s.e.of(by), top) && !slices.Contains(s.extra[by], top) {
			s.extra[by] = append(s.extra[by], top)
			s.left[top]++
		}
	}
	stack := s.stack[:0]
	for i := range s.left {
		if s.left[i] == 0 {
			stack = append(stack, int32(i))
		}
	}
	sortBy(stack, pos)
	order := make([]int, len(schedule))
	for k := len(order) - 1; k >= 0; k-- {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		order[k] = int(i)
		from := len(stack)
		stack = s.ready(stack, s.e.of(i))
		if len(s.extra) > 0 {
			stack = s.ready(stack, s.extra[i])
		}
		if len(stack) > from+1 {
			sortBy(stack[from:], pos)
		}
	}
	s.stack = stack
	return order
}

// ready counts a reader of each producer as placed and pushes those that have
// no other.
func (s *Schedules) ready(stack, producers []int32) []int32 {
	for _, p := range producers {
		if s.left[p]--; s.left[p] == 0 {
			stack = append(stack, p)
		}
	}
	return stack
}

// layOut returns a file order under which a schedule without early nodes runs: a
// topological order of the dependencies and of the constraints between
// neighbours, near to the schedule.
func (e *edges) layOut(schedule []int) []int {
	n := len(schedule)
	ask, pos := e.askers(schedule), places(schedule)
	behind := e.reversed() // who stands behind a node: its readers,
	missing := make([]int32, n)
	earlier := make([]int32, n) // and the neighbour that runs before it
	last := make([]int32, n+1)  // by asker, the root's at the end
	for i := range last {
		last[i] = None
	}
	for _, s := range schedule {
		at := ask[s]
		if at < 0 {
			at = int32(n)
		}
		earlier[s] = last[at]
		last[at] = int32(s)
	}
	for i := range n {
		missing[i] += int32(len(e.of(int32(i))))
		if earlier[i] >= 0 {
			missing[earlier[i]]++
		}
	}
	key := make([]int32, n)
	var ready heap
	for i := range n {
		key[i] = -pos[i]
		if missing[i] == 0 {
			ready.push(int32(i), key)
		}
	}
	file := make([]int, 0, n)
	done := func(i int32) {
		if missing[i]--; missing[i] == 0 {
			ready.push(i, key)
		}
	}
	for len(ready) > 0 {
		i := ready.pop(key)
		file = append(file, int(i))
		for _, r := range behind.of(i) {
			done(r)
		}
		if earlier[i] >= 0 {
			done(earlier[i])
		}
	}
	return file
}
