package onnx

// Messages become a graph: values are made for all that the file names, then
// what nodes read is resolved, so that a damaged order is Check's to judge.
// Declarations say types, and all that speak of one value must agree.

import (
	"errors"
	"fmt"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// graphFromProto takes the message over: what the graph represents is cleared
// in it.
func graphFromProto(p *pb.GraphProto, files *Files) (*Graph, error) {
	g := newGraph(p)
	for _, t := range p.Initializer {
		if err := g.addInitializer(&Tensor{Proto: t, files: files}); err != nil {
			return nil, err
		}
	}
	for _, t := range p.SparseInitializer {
		if err := g.addSparse(t); err != nil {
			return nil, err
		}
	}
	for _, in := range p.Input {
		if err := g.declareInput(in); err != nil {
			return nil, err
		}
	}
	if err := g.readNodes(p.Node); err != nil {
		return nil, err
	}
	for _, o := range p.Output {
		if err := g.declareOutput(o); err != nil {
			return nil, err
		}
	}
	for _, vi := range p.ValueInfo {
		if err := g.declareValue(vi); err != nil {
			return nil, err
		}
	}
	for _, v := range g.values {
		v.loaded = v.Type
	}
	g.outputProtos = p.Output
	p.Node, p.Initializer, p.Input, p.Output = nil, nil, nil, nil
	return g, nil
}

func (g *Graph) addInitializer(t *Tensor) error {
	v := &Value{Name: t.Proto.GetName(), Init: t, Type: t.Type()}
	if err := g.addConstantName(v); err != nil {
		return err
	}
	g.Initializers = append(g.Initializers, v)
	return nil
}

// addSparse makes a value of a sparse initializer, whose data stays in the
// graph's message.
func (g *Graph) addSparse(t *pb.SparseTensorProto) error {
	v := &Value{Name: t.GetValues().GetName(), sparse: true}
	v.Type = TensorOf(DType(t.GetValues().GetDataType()), StaticShape(t.Dims...))
	return g.addConstantName(v)
}

func (g *Graph) addConstantName(v *Value) error {
	if v.Name == "" {
		return errors.New("an initializer has no name")
	}
	if g.values[v.Name] != nil {
		return fmt.Errorf("two initializers are named %q", v.Name)
	}
	g.values[v.Name] = v
	return nil
}

func (g *Graph) declareInput(in *pb.ValueInfoProto) error {
	name := in.GetName()
	if name == "" {
		return errors.New("a graph input has no name")
	}
	v := g.values[name]
	if v == nil {
		v = &Value{Name: name}
		g.values[name] = v
	}
	if v.input {
		return fmt.Errorf("two graph inputs are named %q", name)
	}
	v.input, v.info = true, in
	g.Inputs = append(g.Inputs, v)
	return v.declare(TypeFromProto(in.Type), "as an input")
}

func (g *Graph) declareOutput(o *pb.ValueInfoProto) error {
	v := g.values[o.GetName()]
	if v == nil {
		return fmt.Errorf("graph output %q is not produced by any node", o.GetName())
	}
	if !v.input {
		v.info = o
	}
	v.outs++
	g.Outputs = append(g.Outputs, v)
	return v.declare(typeOfOutput(o.Type), "as an output")
}

// typeOfOutput is the declared type without extents whose name is a number: Optimum calls the
// tokens of a decoder's step "1", as many as it generates, and the graph takes any number.
func typeOfOutput(p *pb.TypeProto) Type {
	t := TypeFromProto(p)
	for i, d := range p.GetTensorType().GetShape().GetDim() {
		if d.GetDimParam() != "" && t.Shape[i].IsStatic() {
			t.Shape[i] = Dim{}
		}
	}
	return t
}

// declareValue reads a value_info entry. One for a name that the graph does not
// have says nothing, and is kept as it is. Nor does one for stored data, which says itself what it
// is: tools that turn a weight leave its entry behind.
func (g *Graph) declareValue(vi *pb.ValueInfoProto) error {
	if v := g.values[vi.GetName()]; v != nil {
		if v.Init != nil {
			return nil
		}
		return v.declare(TypeFromProto(vi.Type), "in value_info")
	}
	if g.unownedInfos == nil {
		g.unownedInfos = map[*pb.ValueInfoProto]bool{}
	}
	g.unownedInfos[vi] = true
	return nil
}

// declare adds what one more declaration says of the value. Element types and
// ranks must agree, and so must the extents of constant data; of other extents
// the first known one stays, because exporters leave stale ones behind.
func (v *Value) declare(t Type, where string) error {
	switch {
	case !t.Known():
		return nil
	case !v.Type.Known():
		v.Type = t
		return nil
	case t.DType != v.Type.DType, t.Ranked && v.Type.Ranked && len(t.Shape) != len(v.Type.Shape):
		return fmt.Errorf("value %q is %s, but declared %s %s", v.Name, v.Type, t, where)
	case v.Type.Other != nil || !t.Ranked:
		return nil
	case !v.Type.Ranked:
		v.Type = t
		return nil
	}
	for i, d := range t.Shape {
		old := v.Type.Shape[i]
		if d.IsStatic() && old.IsStatic() && d != old && v.Init != nil {
			return fmt.Errorf("initializer %q is %s, but declared %s %s", v.Name, v.Type, t, where)
		}
		if !old.Known() && d.Known() {
			v.Type.Shape[i] = d
		}
	}
	return nil
}

// readNodes makes the values that nodes produce, then resolves what they read:
// two passes, so that the order of a damaged file is Check's to judge.
func (g *Graph) readNodes(protos []*pb.NodeProto) error {
	made, read := 0, 0
	for _, p := range protos {
		made, read = made+len(p.Output), read+len(p.Input)
	}
	nodes, values, places := make([]Node, len(protos)), make([]Value, made), make([]*Value, made+read) // all at once, which takes half the time
	list := func(n int) []*Value {
		l := places[:n:n]
		places = places[n:]
		return l
	}
	g.Nodes = make([]*Node, 0, len(protos))
	for k, p := range protos {
		n := &nodes[k]
		n.Proto, n.graph = p, g
		n.Outputs = list(len(p.Output))
		for i, name := range p.Output {
			if name == "" {
				continue
			}
			if g.values[name] != nil {
				return fmt.Errorf("node %q: %q is already produced elsewhere", n.Label(), name)
			}
			v := &values[0]
			values = values[1:]
			v.Name, v.Producer, v.Index = name, n, i
			g.values[name] = v
			n.Outputs[i] = v
		}
		g.Nodes = append(g.Nodes, n)
	}
	for _, n := range g.Nodes {
		n.Inputs = list(len(n.Proto.Input))
		for i, name := range n.Proto.Input {
			if name == "" {
				continue
			}
			v := g.values[name]
			if v == nil {
				return fmt.Errorf("node %q: reads %q, which nothing produces", n.Label(), name)
			}
			n.Inputs[i] = v
			v.addUse(n, i)
		}
		if err := g.capture(n); err != nil {
			return err
		}
	}
	return nil
}

// A CaptureError is a value that a subgraph reads and nothing makes.
type CaptureError struct{ Node, Value string }

func (e *CaptureError) Error() string {
	return fmt.Sprintf("node %q: its subgraph reads %q, which nothing produces", e.Node, e.Value)
}

// capture finds the outer values that a node's subgraphs read.
func (g *Graph) capture(n *Node) error {
	seen := map[string]bool{}
	for _, sub := range n.Subgraphs() {
		for _, name := range freeNames(sub) {
			v := g.values[name]
			if v == nil {
				return &CaptureError{n.Label(), name}
			}
			if !seen[name] {
				seen[name] = true
				n.Captures = append(n.Captures, v)
				v.addUse(n, Captured)
			}
		}
	}
	return nil
}

// freeNames lists the names that a subgraph reads and does not define.
func freeNames(p *pb.GraphProto) []string {
	own := map[string]bool{}
	for _, t := range p.Initializer {
		own[t.GetName()] = true
	}
	for _, t := range p.SparseInitializer {
		own[t.GetValues().GetName()] = true
	}
	for _, v := range p.Input {
		own[v.GetName()] = true
	}
	for _, n := range p.Node {
		for _, o := range n.Output {
			own[o] = true
		}
	}
	var free []string
	read := func(name string) {
		if name != "" && !own[name] {
			own[name] = true
			free = append(free, name)
		}
	}
	for _, n := range p.Node {
		for _, in := range n.Input {
			read(in)
		}
		for _, sub := range (&Node{Proto: n}).Subgraphs() {
			for _, name := range freeNames(sub) {
				read(name)
			}
		}
	}
	for _, o := range p.Output {
		read(o.GetName())
	}
	return free
}
