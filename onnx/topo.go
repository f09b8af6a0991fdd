package onnx

// Topological order by a heap of ready nodes, smallest place first, so that a
// list that is in order stays as it is.

import (
	"container/heap"
	"fmt"
)

// SortTopologically puts producers before readers and otherwise keeps the
// order of the list. An error names a node on a cycle.
func (g *Graph) SortTopologically() error {
	order, err := g.topological()
	if err != nil {
		return err
	}
	g.Nodes = order
	return nil
}

// Places are the places of nodes in their list, by node.
func Places(nodes []*Node) map[*Node]int {
	place := make(map[*Node]int, len(nodes))
	for i, n := range nodes {
		place[n] = i
	}
	return place
}

// topological returns the nodes in topological order.
func (g *Graph) topological() ([]*Node, error) {
	place := Places(g.Nodes)
	waits := make([]int, len(g.Nodes))
	ready := &PlaceHeap{}
	for i, n := range g.Nodes {
		waits[i] = made(n.Inputs) + made(n.Captures)
		if waits[i] == 0 {
			heap.Push(ready, i)
		}
	}
	order := make([]*Node, 0, len(g.Nodes))
	for ready.Len() > 0 {
		n := g.Nodes[heap.Pop(ready).(int)]
		order = append(order, n)
		for _, v := range n.Returns() {
			for _, u := range v.uses {
				i, listed := place[u.Node]
				if !listed {
					continue
				}
				if waits[i]--; waits[i] == 0 {
					heap.Push(ready, i)
				}
			}
		}
	}
	if len(order) < len(g.Nodes) {
		for i, n := range g.Nodes {
			if waits[i] > 0 {
				return nil, fmt.Errorf("node %q is on a cycle or depends on one", n.Label())
			}
		}
	}
	return order, nil
}

// made counts the values that nodes produce.
func made(values []*Value) int {
	n := 0
	for _, v := range values {
		if v != nil && v.Producer != nil {
			n++
		}
	}
	return n
}

// A PlaceHeap holds places in a list, the least on top, for package container/heap.
type PlaceHeap []int

func (h PlaceHeap) Len() int           { return len(h) }
func (h PlaceHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h PlaceHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *PlaceHeap) Push(x any)        { *h = append(*h, x.(int)) }
func (h *PlaceHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
