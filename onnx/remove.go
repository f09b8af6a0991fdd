package onnx

import "slices"

// Remove deletes nodes whose outputs nobody outside the set reads.
func (g *Graph) Remove(nodes ...*Node) {
	gone := make(map[*Node]bool, len(nodes))
	for _, n := range nodes {
		gone[n] = true
		n.readNothing()
	}
	for _, n := range nodes {
		for _, v := range n.Returns() {
			if !v.Dead() {
				panic("onnx: Remove of a node whose output is in use: " + v.Name)
			}
			delete(g.values, v.Name)
		}
	}
	g.Nodes = slices.DeleteFunc(g.Nodes, func(n *Node) bool { return gone[n] })
}

// readNothing takes away all that a node reads.
func (n *Node) readNothing() {
	for i := range n.Inputs {
		n.SetInput(i, nil)
	}
	for _, v := range n.Captures {
		v.dropUse(n, Captured)
	}
	n.Captures = nil
}

// Release has those of some nodes read nothing whose outputs nothing reads, and then what
// made what they read. They stay in the list, for RemoveDead: who takes many nodes out of a
// graph, a few at a time, looks through the list once.
func (g *Graph) Release(nodes ...*Node) {
	for len(nodes) > 0 {
		n := nodes[len(nodes)-1]
		nodes = nodes[:len(nodes)-1]
		if slices.ContainsFunc(n.Outputs, func(v *Value) bool { return v != nil && !v.Dead() }) {
			continue
		}
		for _, list := range [2][]*Value{n.Inputs, n.Captures} {
			for _, v := range list {
				if v != nil && v.Producer != nil {
					nodes = append(nodes, v.Producer)
				}
			}
		}
		n.readNothing()
	}
}

// RemoveDead deletes every node that no output needs, then the initializers
// that nothing reads; inputs stay. It returns the number of nodes deleted.
// Nodes of other domains and control flow have no side effects in ONNX, so
// they go too.
func (g *Graph) RemoveDead() int {
	live := needed(g.Outputs)
	var dead []*Node
	for _, n := range g.Nodes {
		if !live[n] {
			dead = append(dead, n)
		}
	}
	if len(dead) > 0 {
		g.Remove(dead...)
	}
	g.Initializers = slices.DeleteFunc(g.Initializers, func(v *Value) bool {
		if !v.Dead() || v.input {
			return false
		}
		delete(g.values, v.Name)
		return true
	})
	return len(dead)
}

// needed are the nodes that values are computed by.
func needed(values []*Value) map[*Node]bool {
	live := map[*Node]bool{}
	var stack []*Node
	reach := func(v *Value) {
		if v != nil && v.Producer != nil && !live[v.Producer] {
			live[v.Producer] = true
			stack = append(stack, v.Producer)
		}
	}
	for _, v := range values {
		reach(v)
	}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, v := range n.Inputs {
			reach(v)
		}
		for _, v := range n.Captures {
			reach(v)
		}
	}
	return live
}

// SetAside takes nodes out of the graph, until restore is called, for a look at the rest: who
// reads what they made reads what instead says for it, or else an input of its name, and the outputs that they
// made are none. Uses stay counted as they were; the graph must not be edited meanwhile.
func (g *Graph) SetAside(gone map[*Node]bool, instead func(reader *Node, v *Value) *Value) (restore func()) {
	nodes, inputs, outputs := g.Nodes, g.Inputs, g.Outputs
	var made []*Value
	led, fed := map[*Node][]*Value{}, map[*Value]*Value{}
	g.Nodes, g.Inputs = make([]*Node, 0, len(nodes)-len(gone)), slices.Clone(inputs)
	for _, n := range nodes {
		if gone[n] {
			for _, v := range n.Returns() {
				made = append(made, v)
				delete(g.values, v.Name)
			}
		}
	}
	feed := func(v *Value) *Value {
		if fed[v] == nil {
			fed[v] = &Value{Name: v.Name, Type: v.Type, input: true}
			g.Inputs = append(g.Inputs, fed[v])
			g.values[v.Name] = fed[v]
		}
		return fed[v]
	}
	for _, n := range nodes {
		if gone[n] {
			continue
		}
		g.Nodes = append(g.Nodes, n)
		for k, v := range n.Inputs {
			if v == nil || v.Producer == nil || !gone[v.Producer] {
				continue
			}
			if led[n] == nil {
				led[n], n.Inputs = n.Inputs, slices.Clone(n.Inputs)
			}
			if n.Inputs[k] = instead(n, v); n.Inputs[k] == nil {
				n.Inputs[k] = feed(v)
			}
		}
	}
	g.Outputs = slices.DeleteFunc(slices.Clone(outputs), func(v *Value) bool { return gone[v.Producer] })
	return func() {
		g.Nodes, g.Inputs, g.Outputs = nodes, inputs, outputs
		for n, inputs := range led {
			n.Inputs = inputs
		}
		for _, v := range made {
			g.values[v.Name] = v
		}
	}
}
