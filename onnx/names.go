package onnx

import (
	"fmt"
	"strings"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// names is the one owner of fresh names in a graph: for values and, apart from
// them, for nodes.
type names struct {
	graph *Graph
	nodes map[string]bool
	next  map[string]int
	inner map[string]bool // names that subgraphs define
}

// FreshValueName returns base, or base with a number, so that no value of the
// graph or of a subgraph has it.
func (g *Graph) FreshValueName(base string) string {
	return g.names.fresh(base, func(s string) bool { return g.values[s] != nil || g.inSubgraph(s) })
}

// FreshNodeName returns base, or base with a number, so that no node has it,
// and reserves it.
func (g *Graph) FreshNodeName(base string) string {
	g.names.indexNodes()
	name := g.names.fresh(base, func(s string) bool { return g.names.nodes[s] })
	g.names.nodes[name] = true
	return name
}

func (a *names) fresh(base string, taken func(string) bool) string {
	if !taken(base) {
		return base
	}
	if a.next == nil {
		a.next = map[string]int{}
	}
	for {
		a.next[base]++
		if name := fmt.Sprintf("%s.%d", base, a.next[base]); !taken(name) {
			return name
		}
	}
}

func (a *names) indexNodes() {
	if a.nodes != nil {
		return
	}
	a.nodes = map[string]bool{}
	for _, n := range a.graph.Nodes {
		a.nodes[n.Name()] = true
	}
}

// inSubgraph reports names that a subgraph defines for itself, which an outer
// value must not take: ONNX forbids shadowing.
func (g *Graph) inSubgraph(name string) bool {
	if g.names.inner == nil {
		g.names.inner = map[string]bool{}
		for _, n := range g.Nodes {
			for _, sub := range n.Subgraphs() {
				collectNames(sub, g.names.inner)
			}
		}
	}
	return g.names.inner[name]
}

func collectNames(p *pb.GraphProto, into map[string]bool) {
	for _, v := range p.Input {
		into[v.GetName()] = true
	}
	for _, t := range p.Initializer {
		into[t.GetName()] = true
	}
	for _, n := range p.Node {
		for _, o := range n.Output {
			into[o] = true
		}
		for _, sub := range (&Node{Proto: n}).Subgraphs() {
			collectNames(sub, into)
		}
	}
}

// NameNodes gives every unnamed node, and every node whose name was already
// taken, a name of its own: profiles and plans speak of nodes by name.
func (g *Graph) NameNodes() {
	seen := map[string]bool{}
	var rename []*Node
	for _, n := range g.Nodes {
		if n.Name() == "" || seen[n.Name()] {
			rename = append(rename, n)
			continue
		}
		seen[n.Name()] = true
	}
	g.names.nodes = seen
	for _, n := range rename {
		base := n.Name()
		if base == "" {
			base = n.OpType()
			for _, o := range n.Returns() {
				base = strings.TrimSuffix(o.Name, ":0")
				break
			}
		}
		n.SetName(g.FreshNodeName(base))
	}
}
