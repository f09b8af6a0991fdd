package planner

import (
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// Who depends on whom in the graph of a counted plan, and on what: what moves ask.

// links lists by node its neighbours and the roots that it handles. A root is a value
// whose buffer others share whatever happens.
type links struct {
	// after and before list those that must not run before a node, and those before
	// which it must not run.
	after, before rows
	// reads and makes list the roots that the step allocates, readers by root the nodes
	// that read it or a view of it.
	reads, makes, readers rows
	bytes                 []int64 // by root, 0 for what is none, or not the step's
	maker                 []int32 // by root
}

// A linker makes links.
type linker struct {
	*links
	s              *legalized
	root, producer []int32
	follow         [][]int32 // node -> those that must not run before it
	readersOf      [][]int32 // value -> nodes
	readersOfRoot  [][]int32
}

func newLinks(p *Problem, s *legalized) *links {
	nodes, nv := s.graph.Nodes, len(s.graph.Values)
	l := &linker{links: &links{bytes: make([]int64, nv), maker: make([]int32, nv)}, s: s, root: make([]int32, nv), producer: make([]int32, nv),
		follow: make([][]int32, len(nodes)), readersOf: make([][]int32, nv), readersOfRoot: make([][]int32, nv)}
	l.findRoots()
	l.reads.end()
	l.makes.end()
	for i := range nodes { // which stand in the plan's order
		l.link(i)
	}
	l.keepCopies(p)
	before := make([][]int32, len(nodes))
	for a, list := range l.follow {
		for _, b := range list {
			before[b] = append(before[b], int32(a))
		}
	}
	l.after, l.before, l.readers = flatten(l.follow), flatten(before), flatten(l.readersOfRoot)
	return l.links
}

// findRoots finds what the step allocates, and which values share it.
func (l *linker) findRoots() {
	for v := range l.root {
		l.root[v], l.producer[v], l.maker[v] = int32(v), ortmodel.None, ortmodel.None
	}
	g := l.s.graph
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, v := range n.Outputs {
			if v < 0 {
				continue
			}
			l.producer[v] = int32(i)
			if k := g.Values[v].Kind; k == ortmodel.Inner || k == ortmodel.Output {
				l.maker[v], l.bytes[v] = int32(i), g.Values[v].Bytes
			}
		}
		for _, a := range n.Alias {
			if in, out := n.Inputs[a.Input], n.Outputs[a.Output]; in >= 0 && out >= 0 && g.Values[out].Kind == ortmodel.Inner {
				l.root[out], l.bytes[out] = l.root[in], 0
			}
		}
	}
}

// link records what node i reads and makes.
func (l *linker) link(i int) {
	n := &l.s.graph.Nodes[i]
	from := len(l.reads.items)
	for _, list := range [2][]int{n.Inputs, n.Captures} {
		for _, v := range list {
			if v < 0 || l.producer[v] < 0 {
				continue
			}
			l.comesAfter(l.producer[v], int32(i))
			l.readersOf[v] = append(l.readersOf[v], int32(i))
			if r := l.root[v]; l.bytes[r] > 0 && !slices.Contains(l.reads.items[from:], r) {
				l.reads.items = append(l.reads.items, r)
				l.readersOfRoot[r] = append(l.readersOfRoot[r], int32(i))
			}
		}
	}
	l.reads.end()
	for _, v := range n.Outputs {
		if v >= 0 && l.bytes[v] > 0 {
			l.makes.items = append(l.makes.items, int32(v))
		}
	}
	l.makes.end()
}

// comesAfter has b run after a, once for each b that is given more than once on end.
func (l *linker) comesAfter(a, b int32) {
	if list := l.follow[a]; a != b && (len(list) == 0 || list[len(list)-1] != b) {
		l.follow[a] = append(list, b)
	}
}

// keepCopies has every instance of an operator run after the one before it, and after
// all that reads that one: a reader takes the latest.
func (l *linker) keepCopies(p *Problem) {
	instance := make([]bool, len(l.follow)) // the other nodes are barriers
	for _, i := range l.s.first {
		instance[i] = true
	}
	latest := make([]int32, len(p.Ops)) // operator -> node of its latest instance, plus one
	for k, in := range l.s.prog.Instances {
		i := int32(l.s.first[k])
		if j := latest[in.Op] - 1; j >= 0 {
			l.comesAfter(j, i)
			l.readBefore(j, i, instance)
		}
		latest[in.Op] = i + 1
	}
}

// readBefore has all that reads node j, at once or through barriers, run before i.
func (l *linker) readBefore(j, i int32, instance []bool) {
	for _, v := range l.s.graph.Nodes[j].Outputs {
		if v < 0 {
			continue
		}
		for _, r := range l.readersOf[v] {
			if l.comesAfter(r, i); !instance[r] {
				l.readBefore(r, i, instance)
			}
		}
	}
}

// flatten lays lists back to back.
func flatten(lists [][]int32) (r rows) {
	r.end()
	for _, list := range lists {
		r.items = append(r.items, list...)
		r.end()
	}
	return r
}
