package onnx

import (
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// AddInput declares a new graph input.
func (g *Graph) AddInput(name string, t Type) *Value {
	v := g.newValue(name)
	v.Type, v.input = t, true
	g.Inputs = append(g.Inputs, v)
	return v
}

// AddOutput makes a value a graph output, after those there are.
func (g *Graph) AddOutput(v *Value) {
	v.outs++
	g.Outputs = append(g.Outputs, v)
}

// SetOutput puts another value in the place of output i. The outside sees the
// new value's name.
func (g *Graph) SetOutput(i int, v *Value) {
	g.Outputs[i].outs--
	v.outs++
	g.Outputs[i] = v
}

// RemoveOutput takes output i off the list.
func (g *Graph) RemoveOutput(i int) {
	g.Outputs[i].outs--
	g.Outputs = slices.Delete(g.Outputs, i, i+1)
	if i < len(g.outputProtos) {
		g.outputProtos = slices.Delete(slices.Clone(g.outputProtos), i, i+1)
	}
}

// RemoveOutputs takes outputs off the list.
func (g *Graph) RemoveOutputs(gone func(*Value) bool) {
	for i := len(g.Outputs) - 1; i >= 0; i-- {
		if gone(g.Outputs[i]) {
			g.RemoveOutput(i)
		}
	}
}

// RemoveInput takes an input off the list: one that nothing reads, or one that is an
// initializer too, which is what it holds from then on.
func (g *Graph) RemoveInput(v *Value) {
	if v.Init == nil && !v.Dead() {
		panic("onnx: RemoveInput of a value in use: " + v.Name)
	}
	g.Inputs = slices.DeleteFunc(g.Inputs, func(w *Value) bool { return w == v })
	v.input = false
	if v.Init == nil {
		delete(g.values, v.Name)
	}
}

// AddConstant adds an initializer under a fresh name made from base. The
// tensor's data is shared, its message is not, so one tensor can be added twice.
func (g *Graph) AddConstant(base string, t *Tensor) *Value {
	v := g.newValue(base)
	name := v.Name
	p := &pb.TensorProto{}
	copyFields(p, t.Proto)
	p.Name = &name
	v.Init, v.Type = &Tensor{Proto: p, files: t.files}, t.Type()
	g.Initializers = append(g.Initializers, v)
	return v
}

// RemoveInitializer drops the constant data of v. When v is an input it stays
// one; else it must be dead.
func (g *Graph) RemoveInitializer(v *Value) {
	if !v.input && !v.Dead() {
		panic("onnx: RemoveInitializer of a value in use: " + v.Name)
	}
	g.Initializers = slices.DeleteFunc(g.Initializers, func(w *Value) bool { return w == v })
	v.Init = nil
	if !v.input {
		delete(g.values, v.Name)
	}
}

// LiftInitializers turns initializers into graph inputs of the same names and
// types, in the order given; their tensors are returned.
func (g *Graph) LiftInitializers(values []*Value) map[*Value]*Tensor {
	lifted := map[*Value]*Tensor{}
	for _, v := range values {
		lifted[v] = v.Init
		if !v.input {
			v.input = true
			g.Inputs = append(g.Inputs, v)
		}
		v.Init = nil
	}
	g.Initializers = slices.DeleteFunc(g.Initializers, func(v *Value) bool { return v.Init == nil })
	return lifted
}

// OpenInitializers declares initializers as inputs too: their values are defaults
// then that a feed may replace, and nothing may be computed from them ahead. It
// returns a function that takes the declarations back, of those that still have
// a value.
func (g *Graph) OpenInitializers(values []*Value) (restore func()) {
	var opened []*Value
	for _, v := range values {
		if !v.input {
			v.input = true
			g.Inputs = append(g.Inputs, v)
			opened = append(opened, v)
		}
	}
	return func() {
		for _, v := range opened {
			v.input = v.Init == nil
		}
		g.Inputs = slices.DeleteFunc(g.Inputs, func(v *Value) bool { return !v.input })
	}
}

// newValue registers a value under base, or base with a number.
func (g *Graph) newValue(base string) *Value {
	v := &Value{Name: g.FreshValueName(base)}
	g.values[v.Name] = v
	return v
}

// NewNode makes a node that is not in the node list yet (Append or InsertBefore
// put it there). Its name is made fresh; outputs are given as names and made
// fresh too, "" for one left out. Inputs may be nil. Subgraphs among the
// attributes may read values that the graph has.
func (g *Graph) NewNode(domain, op, name string, inputs []*Value, outputs []string, attrs ...Attribute) *Node {
	p := &pb.NodeProto{OpType: &op, Attribute: attrs}
	if domain != "" {
		p.Domain = &domain
	}
	n := &Node{Proto: p, graph: g}
	n.SetName(g.FreshNodeName(name))
	n.Inputs = slices.Clone(inputs)
	for i, v := range n.Reads() {
		v.addUse(n, i)
	}
	n.trimInputs()
	n.Outputs = make([]*Value, len(outputs))
	for i, o := range outputs {
		if o != "" {
			n.Outputs[i] = g.newValue(o)
			n.Outputs[i].Producer, n.Outputs[i].Index = n, i
		}
	}
	if err := g.capture(n); err != nil {
		panic("onnx: NewNode: " + err.Error())
	}
	if g.names.inner != nil {
		for _, sub := range n.Subgraphs() {
			collectNames(sub, g.names.inner)
		}
	}
	return n
}

// CloneNode makes a copy of a node that is not in the node list yet, with the
// name and the output names that rename returns for the originals.
func (g *Graph) CloneNode(n *Node, inputs []*Value, rename func(string) string) *Node {
	outputs := make([]string, len(n.Outputs))
	for i, o := range n.Returns() {
		outputs[i] = rename(o.Name)
	}
	c := g.NewNode("", n.OpType(), rename(n.Name()), inputs, outputs)
	name := c.Name()
	c.Proto = proto.Clone(n.sync()).(*pb.NodeProto)
	c.Proto.Name = &name
	for i, o := range c.Returns() {
		o.Type = n.Outputs[i].Type
	}
	for _, v := range n.Captures {
		c.Captures = append(c.Captures, v)
		v.addUse(c, Captured)
	}
	return c
}

// TrimInputs shortens every node's list of inputs to the last one that it reads: "" behind
// it means what a shorter list means. ONNX Runtime's fusion of Add and LayerNormalization
// ends the process where the bias is "", from level 2 on.
func (g *Graph) TrimInputs() {
	for _, n := range g.Nodes {
		n.trimInputs()
	}
}

// trimInputs leaves control flow alone: a Loop has both of its first inputs, read or not.
func (n *Node) trimInputs() {
	if len(n.Subgraphs()) > 0 {
		return
	}
	last := len(n.Inputs)
	for last > 0 && n.Inputs[last-1] == nil {
		last--
	}
	n.Inputs = n.Inputs[:last]
}

// Append puts nodes at the end of the file order.
func (g *Graph) Append(nodes ...*Node) { g.Nodes = append(g.Nodes, nodes...) }

// SetInput makes a node read v (or nothing) at position i, extending the list
// as needed.
func (n *Node) SetInput(i int, v *Value) {
	for len(n.Inputs) <= i {
		n.Inputs = append(n.Inputs, nil)
	}
	if old := n.Inputs[i]; old != nil {
		old.dropUse(n, i)
	}
	n.Inputs[i] = v
	if v != nil {
		v.addUse(n, i)
	}
}

// SetInputs replaces the whole input list.
func (n *Node) SetInputs(values ...*Value) {
	for i := range n.Inputs {
		n.SetInput(i, nil)
	}
	n.Inputs = n.Inputs[:0]
	for i, v := range values {
		n.SetInput(i, v)
	}
}

// AddOutput gives the node an output at position i that it left out until now,
// under a fresh name.
func (n *Node) AddOutput(i int, name string) *Value {
	for len(n.Outputs) <= i {
		n.Outputs = append(n.Outputs, nil)
	}
	if n.Outputs[i] == nil {
		v := n.graph.newValue(name)
		v.Producer, v.Index = n, i
		n.Outputs[i] = v
	}
	return n.Outputs[i]
}

// DropOutput leaves out output i, which must be dead.
func (n *Node) DropOutput(i int) {
	if v := n.Out(i); v != nil {
		if !v.Dead() {
			panic("onnx: DropOutput of a value in use: " + v.Name)
		}
		delete(n.graph.values, v.Name)
		n.Outputs[i] = nil
	}
}

// ReplaceUses makes every reader of old read v instead, inside subgraphs too.
// Graph outputs stay; TakeOver sees to them.
func (g *Graph) ReplaceUses(old, v *Value) {
	for _, u := range slices.Clone(old.uses) {
		if u.Index != Captured {
			u.Node.SetInput(u.Index, v)
			continue
		}
		for _, sub := range u.Node.Subgraphs() {
			renameFree(sub, old.Name, v.Name)
		}
		old.dropUse(u.Node, Captured)
		u.Node.Captures = slices.DeleteFunc(u.Node.Captures, func(c *Value) bool { return c == old })
		if !slices.Contains(u.Node.Captures, v) {
			u.Node.Captures = append(u.Node.Captures, v)
			v.addUse(u.Node, Captured)
		}
	}
}

// renameFree renames a captured name in a subgraph and those inside it.
func renameFree(p *pb.GraphProto, from, to string) {
	if !slices.Contains(freeNames(p), from) {
		return
	}
	for _, n := range p.Node {
		for i, in := range n.Input {
			if in == from {
				n.Input[i] = to
			}
		}
		for _, sub := range (&Node{Proto: n}).Subgraphs() {
			renameFree(sub, from, to)
		}
	}
	for _, o := range p.Output {
		if o.GetName() == from {
			o.Name = &to
		}
	}
}

// TakeOver lets v bear the name of old, which loses its name, its place among
// the graph's outputs and its readers to v. The outside sees no difference.
func (g *Graph) TakeOver(old, v *Value) {
	g.ReplaceUses(old, v)
	for i, o := range g.Outputs {
		if o == old {
			old.outs--
			v.outs++
			g.Outputs[i] = v
		}
	}
	name := old.Name
	g.Rename(old, g.FreshValueName(name+".old"))
	g.Rename(v, name)
}

// Rename gives a value another name, which must be free.
func (g *Graph) Rename(v *Value, name string) {
	if v.Name == name {
		return
	}
	if g.values[name] != nil {
		panic("onnx: Rename to a name that is taken: " + name)
	}
	for _, u := range v.uses {
		if u.Index == Captured {
			for _, sub := range u.Node.Subgraphs() {
				renameFree(sub, v.Name, name)
			}
		}
	}
	delete(g.values, v.Name)
	v.Name = name
	g.values[name] = v
}
