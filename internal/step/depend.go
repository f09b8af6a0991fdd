package step

// What depends on what. A node depends on the node that makes a value that it
// reads, in one of three ways:
//
//	Data   elements of the value can reach what the node makes
//	Shape  only extents pass: the node asks for the value's shape (Shape, Size),
//	       or the value says which shape the output has (Reshape's second input)
//	Wait   the value has no elements: the node comes later, and needs nothing of it
//
// A control dependency is written as a chain that ends in a Wait: a value is cut
// down to no elements, and those are joined to the extents that a Reshape reads.
// So the elements that a loss is computed from are its backward slice along Data;
// what has to run for it, were nothing to wait, is the one along Data and Shape;
// what does run before it is the one along all three.
//
// A slice (Weiser 1981) is a set of nodes: backward, those that values depend on;
// forward, those that depend on values. Nodes are numbered by their place in the
// graph, and edges lie in compressed rows, so that a graph of 100,000 nodes can be
// asked many times.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A Dependency is a set of ways in which a node depends on a value.
type Dependency uint8

const (
	Data Dependency = 1 << iota
	Shape
	Wait
	// Any way to depend on a value makes an order.
	Any = Data | Shape | Wait
)

// DependencyOf says how a node depends on v, which it reads at u. The types must
// be inferred, or declared, for a Wait to be recognized.
func DependencyOf(v *onnx.Value, u onnx.Use) Dependency {
	switch {
	case v.Type.Empty():
		return Wait
	case u.Index != onnx.Captured && !traits.Carries(u.Node, u.Index):
		return Shape
	}
	return Data
}

// Dependencies are the edges between the nodes of a graph, as it stood when they
// were numbered. A slice of them may outlive a change of the graph, and says of
// nodes that came later that they are not in it. Not for concurrent use.
type Dependencies struct {
	nodes  []*onnx.Node
	number map[*onnx.Node]int32
	how    func(*onnx.Value, onnx.Use) Dependency
	// Row i of before are the edges to the nodes that node i depends on; row i of
	// after, which is made when it is first asked for, is the other way.
	before, after edges
	// sorted: what a node depends on has a lower number.
	sorted bool

	// Needs: round marks the nodes that the last one asked about depends on; of a sorted
	// graph those above down are followed, of another one all but todo.
	mark  []int32
	round int32
	of    *onnx.Node
	along Dependency
	down  int32
	todo  []int32
}

// edges are rows of edges, row i being list[start[i]:start[i+1]].
type edges struct {
	start []int32
	list  []edge
}

type edge struct {
	to  int32
	how Dependency
}

func (e *edges) of(i int32) []edge { return e.list[e.start[i]:e.start[i+1]] }

// DependenciesOf numbers the edges of a graph.
func DependenciesOf(g *onnx.Graph) *Dependencies { return DependenciesBy(g, DependencyOf) }

// DependenciesBy is DependenciesOf where how a node depends on a value is for the
// caller to say; an edge of no way is left out.
func DependenciesBy(g *onnx.Graph, how func(*onnx.Value, onnx.Use) Dependency) *Dependencies {
	d := &Dependencies{nodes: slices.Clone(g.Nodes), number: make(map[*onnx.Node]int32, len(g.Nodes)), how: how, sorted: true}
	for i, n := range g.Nodes {
		d.number[n] = int32(i)
	}
	d.before.start = make([]int32, 1, len(g.Nodes)+1)
	for i, n := range g.Nodes {
		d.eachRead(n, func(v *onnx.Value, how Dependency) {
			if k, ok := d.maker(v); ok && how != 0 {
				d.before.list = append(d.before.list, edge{k, how})
				d.sorted = d.sorted && k < int32(i)
			}
		})
		d.before.start = append(d.before.start, int32(len(d.before.list)))
	}
	return d
}

// Behind are the nodes that depend on values in any way, by the graph as it stands: for who
// asks about values that few depend on, while the graph changes.
func Behind(values ...*onnx.Value) map[*onnx.Node]bool {
	nodes := map[*onnx.Node]bool{}
	for todo := slices.Clone(values); len(todo) > 0; {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, u := range v.Uses() {
			if nodes[u.Node] {
				continue
			}
			nodes[u.Node] = true
			for _, o := range u.Node.Returns() {
				todo = append(todo, o)
			}
		}
	}
	return nodes
}

// eachRead calls f for all that a node reads, captured values included.
func (d *Dependencies) eachRead(n *onnx.Node, f func(*onnx.Value, Dependency)) {
	for i, v := range n.Reads() {
		f(v, d.how(v, onnx.Use{Node: n, Index: i}))
	}
	for _, v := range n.Captures {
		f(v, d.how(v, onnx.Use{Node: n, Index: onnx.Captured}))
	}
}

// Reads lists what a node reads in some ways, a value as often as it reads it.
func (d *Dependencies) Reads(n *onnx.Node, along Dependency) []*onnx.Value {
	var list []*onnx.Value
	d.eachRead(n, func(v *onnx.Value, how Dependency) {
		if how&along != 0 {
			list = append(list, v)
		}
	})
	return list
}

// maker is the number of the node that makes v; false where none of the graph does.
func (d *Dependencies) maker(v *onnx.Value) (int32, bool) {
	if v == nil || v.Producer == nil {
		return 0, false
	}
	k, ok := d.number[v.Producer]
	return k, ok
}

// A Slice is a set of nodes of a graph.
type Slice struct {
	of    *Dependencies
	along Dependency
	in    []bool
	count int
}

// Backward returns the nodes that the values depend on, those that make them
// included. Values of none, and nil, are left out.
func (d *Dependencies) Backward(along Dependency, values ...*onnx.Value) *Slice {
	s := &Slice{of: d, along: along, in: make([]bool, len(d.nodes))}
	var todo []int32
	for _, v := range values {
		if k, ok := d.maker(v); ok {
			todo = s.add(k, todo)
		}
	}
	s.close(&d.before, todo)
	return s
}

// Forward returns the nodes that depend on the values.
func (d *Dependencies) Forward(along Dependency, values ...*onnx.Value) *Slice {
	s := &Slice{of: d, along: along, in: make([]bool, len(d.nodes))}
	var todo []int32
	for _, v := range values {
		if v == nil {
			continue
		}
		for _, u := range v.Uses() {
			if k, ok := d.number[u.Node]; ok && d.how(v, u)&along != 0 {
				todo = s.add(k, todo)
			}
		}
	}
	s.close(d.readers(), todo)
	return s
}

// add puts a node into the slice, and on the list if it was not there.
func (s *Slice) add(k int32, todo []int32) []int32 {
	if s.in[k] {
		return todo
	}
	s.in[k] = true
	s.count++
	return append(todo, k)
}

// close adds all that the nodes of the list lead to.
func (s *Slice) close(e *edges, todo []int32) {
	for len(todo) > 0 {
		k := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, next := range e.of(k) {
			if next.how&s.along != 0 {
				todo = s.add(next.to, todo)
			}
		}
	}
}

// readers are the edges turned round.
func (d *Dependencies) readers() *edges {
	if d.after.start != nil {
		return &d.after
	}
	start := make([]int32, len(d.nodes)+1)
	for _, e := range d.before.list {
		start[e.to+1]++
	}
	for i := range d.nodes {
		start[i+1] += start[i]
	}
	list := make([]edge, len(d.before.list))
	at := append([]int32(nil), start...)
	for i := range d.nodes {
		for _, e := range d.before.of(int32(i)) {
			list[at[e.to]] = edge{int32(i), e.how}
			at[e.to]++
		}
	}
	d.after = edges{start, list}
	return &d.after
}

// Has reports a node of the slice; of a nil slice none is.
func (s *Slice) Has(n *onnx.Node) bool {
	if s == nil {
		return false
	}
	k, ok := s.of.number[n]
	return ok && s.in[k]
}

// At reports whether the node at place i of the graph is in the slice.
func (s *Slice) At(i int) bool { return s.in[i] }

// Len is the number of nodes.
func (s *Slice) Len() int { return s.count }

// Outside counts the nodes that are not in another slice of the same graph.
func (s *Slice) Outside(other *Slice) int {
	count := s.count
	for i := range s.in {
		if s.in[i] && other != nil && other.in[i] {
			count--
		}
	}
	return count
}

// Nodes lists the slice in the graph's order.
func (s *Slice) Nodes() []*onnx.Node {
	list := make([]*onnx.Node, 0, s.count)
	for i, n := range s.of.nodes {
		if s.in[i] {
			list = append(list, n)
		}
	}
	return list
}

// Reads returns what the nodes of the slice read in its ways: of a backward slice,
// together with the values that it was made for, all values that these depend on.
func (s *Slice) Reads() map[*onnx.Value]bool {
	read := map[*onnx.Value]bool{}
	for _, n := range s.Nodes() {
		for _, v := range s.of.Reads(n, s.along) {
			read[v] = true
		}
	}
	return read
}

// Needs reports that a is b or depends on it, directly or not. It is quick for
// many b of one a after another.
func (d *Dependencies) Needs(along Dependency, a, b *onnx.Node) bool {
	from, ok := d.number[a]
	to, known := d.number[b]
	if !ok || !known {
		return a == b
	}
	if d.sorted && to > from {
		return false
	}
	if d.mark == nil {
		d.mark = make([]int32, len(d.nodes))
	}
	if d.of != a || d.along != along {
		d.of, d.along = a, along
		d.round++
		d.mark[from] = d.round
		d.down, d.todo = from, append(d.todo[:0], from)
	}
	if d.sorted {
		d.markDown(to)
	} else {
		d.markAll()
	}
	return d.mark[to] == d.round
}

// markDown marks what the node that is asked about depends on, of the nodes down to a
// number: of a sorted graph, none below leads to one above.
func (d *Dependencies) markDown(to int32) {
	for ; d.down > to; d.down-- {
		if d.mark[d.down] != d.round {
			continue
		}
		for _, e := range d.before.of(d.down) {
			if e.how&d.along != 0 {
				d.mark[e.to] = d.round
			}
		}
	}
}

// markAll marks all that the node that is asked about depends on.
func (d *Dependencies) markAll() {
	for len(d.todo) > 0 {
		k := d.todo[len(d.todo)-1]
		d.todo = d.todo[:len(d.todo)-1]
		for _, e := range d.before.of(k) {
			if e.how&d.along != 0 && d.mark[e.to] != d.round {
				d.mark[e.to] = d.round
				d.todo = append(d.todo, e.to)
			}
		}
	}
}
