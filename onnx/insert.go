package onnx

import "slices"

// Insertions collects nodes to be put into the list and puts all of them there
// at once: a pass that inserts before every node stays linear, where a loop of
// InsertBefore moves the rest of the list each time. Until Apply the list is
// as it was.
type Insertions struct {
	graph  *Graph
	before map[*Node][]*Node
	after  map[*Node][]*Node
	count  int
}

// Insertions begins a batch.
func (g *Graph) Insertions() *Insertions {
	return &Insertions{graph: g, before: map[*Node][]*Node{}, after: map[*Node][]*Node{}}
}

// Before puts nodes before a node of the list, after those put there earlier.
func (e *Insertions) Before(at *Node, nodes ...*Node) {
	e.before[at] = append(e.before[at], nodes...)
	e.count += len(nodes)
}

// After puts nodes behind a node of the list and those put there earlier.
func (e *Insertions) After(at *Node, nodes ...*Node) {
	e.after[at] = append(e.after[at], nodes...)
	e.count += len(nodes)
}

// Apply rebuilds the list. Every node that something was put beside must be in
// it. The batch is empty afterwards.
func (e *Insertions) Apply() {
	if e.count == 0 {
		return
	}
	list := make([]*Node, 0, len(e.graph.Nodes)+e.count)
	for _, n := range e.graph.Nodes {
		list = append(append(append(list, e.before[n]...), n), e.after[n]...)
	}
	if len(list) != cap(list) {
		panic("onnx: Insertions next to a node that is not in the graph")
	}
	e.graph.Nodes = list
	*e = *e.graph.Insertions()
}

// InsertBefore puts nodes before a node of the list. It moves the rest of the
// list; Insertions does many at once.
func (g *Graph) InsertBefore(at *Node, nodes ...*Node) {
	i := slices.Index(g.Nodes, at)
	if i < 0 {
		panic("onnx: InsertBefore a node that is not in the graph: " + at.Label())
	}
	g.Nodes = slices.Insert(g.Nodes, i, nodes...)
}
