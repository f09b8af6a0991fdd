package onnx

// Subgraphs stay messages; what is done to one is done to a model made of it, in
// which the values that it reads from outside are inputs.

import (
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// EditSubgraph lets edit change sub, a subgraph of a node of m, as a model of its
// own of m's imports; an error leaves sub as it is. What edit adds takes no name
// that m's graph has. Inputs that edit adds or drops are not kept.
func (m *Model) EditSubgraph(sub *pb.GraphProto, edit func(*Model) error) error {
	p := proto.CloneOf(sub)
	captured := freeNames(p)
	for _, name := range captured {
		in := &pb.ValueInfoProto{Name: new(name)}
		if v := m.Graph.values[name]; v != nil && v.Type.Known() {
			in.Type = v.Type.Proto()
		}
		p.Input = append(p.Input, in)
	}
	for _, t := range p.Initializer { // an input of that name is a default, which a subgraph cannot have
		p.Input = slices.DeleteFunc(p.Input, func(v *pb.ValueInfoProto) bool { return v.GetName() == t.GetName() })
	}
	outer := &pb.ModelProto{}
	copyFields(outer, m.Proto)
	outer.OpsetImport = nil
	for _, o := range m.Proto.OpsetImport {
		outer.OpsetImport = append(outer.OpsetImport, proto.CloneOf(o))
	}
	inner := &Model{Proto: outer, files: m.files}
	g, err := graphFromProto(p, m.files)
	if err != nil {
		return err
	}
	inner.Graph = g
	g.names.inner = map[string]bool{}
	for name := range m.Graph.values {
		g.names.inner[name] = true
	}
	for _, n := range m.Graph.Nodes {
		for _, s := range n.Subgraphs() {
			collectNames(s, g.names.inner)
		}
	}
	if err := edit(inner); err != nil {
		return err
	}
	out := g.toProto()
	sub.Node, sub.Initializer, sub.ValueInfo, sub.Output = out.Node, out.Initializer, out.ValueInfo, out.Output
	m.Graph.names.inner = nil
	return nil
}

// EditSubgraphs edits the subgraphs of m's nodes that hold, however deep, a node of an
// operator of the default domain.
func (m *Model) EditSubgraphs(op string, edit func(*Model) error) error {
	for _, n := range m.Graph.Nodes {
		for _, sub := range n.Subgraphs() {
			if !Holds(sub, func(n *Node) bool { return n.Is(op) }) {
				continue
			}
			if err := m.EditSubgraph(sub, edit); err != nil {
				return fmt.Errorf("subgraph of node %q (%s): %w", n.Label(), n.OpType(), err)
			}
		}
	}
	return nil
}

// Holds reports a node in a subgraph, however deep, of which holds is true. It has no
// values, only operator, attributes and names.
func Holds(g *pb.GraphProto, holds func(*Node) bool) bool {
	return !walk(g, func(n *Node) bool { return !holds(n) })
}

// All yields the nodes of the graph, each before those of its subgraphs.
func (g *Graph) All() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for _, n := range g.Nodes {
			if !yield(n) {
				return
			}
			for inner := range n.Inside() {
				if !yield(inner) {
					return
				}
			}
		}
	}
}

// Inside yields the nodes of a node's subgraphs, however deep, which have no values.
func (n *Node) Inside() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for _, sub := range n.Subgraphs() {
			if !walk(sub, yield) {
				return
			}
		}
	}
}

// walk yields the nodes of a subgraph, each before those inside it; false where yield ends
// it.
func walk(g *pb.GraphProto, yield func(*Node) bool) bool {
	for _, p := range g.GetNode() {
		n := &Node{Proto: p}
		if !yield(n) {
			return false
		}
		for _, sub := range n.Subgraphs() {
			if !walk(sub, yield) {
				return false
			}
		}
	}
	return true
}

// HoistConstants makes initializers of the graph of what subgraphs hold as
// initializers and as Constant nodes of more than one element: the weights of a
// loop's body are weights like others then. It returns how many; the graph is made
// anew if there are any.
func (m *Model) HoistConstants() (int, error) {
	held := 0
	for _, n := range m.Graph.Nodes {
		held += len(n.Subgraphs())
	}
	if held == 0 {
		return 0, nil
	}
	p := m.ToProto()
	h := &hoister{taken: map[string]bool{}, defined: map[string]int{}}
	collectNames(p.Graph, h.taken)
	for i, n := range p.Graph.Node {
		if len((&Node{Proto: n}).Subgraphs()) > 0 {
			p.Graph.Node[i] = proto.CloneOf(n)
			h.node(p.Graph.Node[i], (*hoister).count)
		}
	}
	for _, n := range p.Graph.Node {
		h.node(n, (*hoister).graph)
	}
	if len(h.hoisted) == 0 {
		return 0, nil
	}
	p.Graph.Initializer = append(p.Graph.Initializer, h.hoisted...)
	g, err := graphFromProto(p.Graph, m.files)
	if err != nil {
		return 0, err
	}
	m.Graph = g
	return len(h.hoisted), nil
}

type hoister struct {
	taken   map[string]bool
	defined map[string]int // how many subgraphs hold a constant of that name
	hoisted []*pb.TensorProto
}

func (h *hoister) node(n *pb.NodeProto, do func(*hoister, *pb.GraphProto)) {
	for _, g := range (&Node{Proto: n}).Subgraphs() {
		for _, inner := range g.Node {
			h.node(inner, do)
		}
		do(h, g)
	}
}

func (h *hoister) count(g *pb.GraphProto) {
	constantsOf(g, func(name string, _ *pb.TensorProto) bool {
		h.defined[name]++
		return false
	})
}

// graph takes a subgraph's constants out of it.
func (h *hoister) graph(g *pb.GraphProto) {
	names := map[string]string{}
	constantsOf(g, func(name string, t *pb.TensorProto) bool {
		outer := name
		if h.defined[name] > 1 { // sibling subgraphs may use one name for two things
			outer = unused(name, h.taken)
		}
		out := &pb.TensorProto{}
		copyFields(out, t)
		out.Name = &outer
		h.hoisted = append(h.hoisted, out)
		names[name] = outer
		return true
	})
	for name, outer := range names {
		if name != outer {
			renameFree(g, name, outer)
		}
	}
}

// constantsOf removes those constants of a subgraph that take wants. What the
// subgraph returns stays: ONNX Runtime refuses outputs from outside.
func constantsOf(g *pb.GraphProto, take func(string, *pb.TensorProto) bool) {
	returned := map[string]bool{}
	for _, o := range g.Output {
		returned[o.GetName()] = true
	}
	g.Initializer = slices.DeleteFunc(g.Initializer, func(t *pb.TensorProto) bool {
		return !returned[t.GetName()] && take(t.GetName(), t)
	})
	g.Node = slices.DeleteFunc(g.Node, func(n *pb.NodeProto) bool {
		t := listOf(n)
		return t != nil && !returned[n.Output[0]] && take(n.Output[0], t)
	})
}
