package ortmodel

import "slices"

// From a wanted schedule to the file order that makes ONNX Runtime run it.
//
// Order visits, among nodes pushed together (the leaves; the unvisited
// producers of one node), the one that stands last in the file first. So for
// each such group the node that the schedule wants first must stand last:
//
//	wanted: a before b     group {a, b}     file: ... b ... a ...
//
// unless one depends on the other, in which case the dependent one brings the
// other along. These constraints join the data dependencies in one acyclic
// relation, kept as an incremental topological order (Pearce and Kelly, "A
// dynamic topological sort algorithm for directed acyclic graphs", JEA 2006),
// whose starting point already satisfies nearly all of them. The walk goes on
// in the order that was achieved, so constraints after a conflict are those
// that the real walk will meet, and the result's own order is known.
//
// Weakness: the walk is lazy, it cannot run a node before something needs it.
// A schedule that is no such post-order is met only as near as that allows;
// and conflicts are resolved greedily, first come, first served.

// FileOrder returns a permutation of g's nodes, file[i] being the node to
// stand at place i, for which Order runs schedule or comes near to it, and the
// number of pairs of nodes whose wanted order had to be given up. schedule
// must be a topological order of all nodes; otherwise the file's order comes
// back unchanged with as many conflicts as nodes.
func FileOrder(g *Graph, schedule []int) (file []int, conflicts int) {
	file, _, conflicts = layOut(g, schedule)
	return file, conflicts
}

// Lazy returns the schedule that ONNX Runtime will really run for the file
// that FileOrder makes of schedule. It equals schedule where that is a lazy
// post-order.
func Lazy(g *Graph, schedule []int) []int {
	_, lazy, _ := layOut(g, schedule)
	return lazy
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

func layOut(g *Graph, schedule []int) (file, lazy []int, conflicts int) {
	e := dependencies(g)
	n := len(g.Nodes)
	if !valid(&e, schedule) {
		for i := range n {
			file = append(file, i)
		}
		return file, Order(g), n
	}
	pos := make([]int32, n)
	for at, i := range schedule {
		pos[i] = int32(at)
	}
	topo := newTopo(&e, pos)
	lazy = make([]int, 0, n)
	w := walk{
		group: func(list []int32) { conflicts += topo.arrange(list, pos) },
		leave: func(i int32) { lazy = append(lazy, int(i)) },
	}
	w.run(&e)
	file = make([]int, n)
	for i, at := range topo.ord {
		file[at] = i
	}
	return file, lazy, conflicts
}

// arrange orders one group for the walk, the wanted first at the end, and
// records the constraints that make the file agree. It returns how many pairs
// had to be left in the wrong order for another reason than a dependency.
//
// A member that another one depends on needs no constraint: it runs when that
// one is visited. Such members go to the front, where the walk finds them
// visited already.
func (t *topo) arrange(list, pos []int32) (conflicts int) {
	sortBy(list, pos)
	kept := list[:0:len(list)] // visit order, file descending
	dominated := t.dominated[:0]
	for _, x := range list {
		k := len(kept)
		kept = append(kept, x)
		for k > 0 && !t.before(x, kept[k-1]) {
			if t.depends(kept[k-1], x) {
				dominated = append(dominated, kept[k-1])
				kept = append(kept[:k-1], kept[k:]...)
			} else {
				conflicts++
				kept[k] = kept[k-1]
				kept[k-1] = x
			}
			k--
		}
	}
	t.dominated = dominated
	list = append(kept, dominated...)
	if conflicts == 0 {
		slices.Reverse(list)
		return 0
	}
	sortBy(list, t.ord)
	for i := 1; i < len(list); i++ {
		t.before(list[i-1], list[i])
	}
	return conflicts
}
