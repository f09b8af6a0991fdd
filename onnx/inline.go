package onnx

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// Inline puts the nodes of a subgraph of at before at, with args for its inputs,
// and returns them with the values of the subgraph's outputs, which may be values
// that it only passes on. Inner names are made fresh. The subgraph itself is left
// as it is. An error leaves the graph unchanged.
func (g *Graph) Inline(at *Node, branch *pb.GraphProto, args ...*Value) ([]*Node, []*Value, error) {
	if err := g.canInline(branch, len(args)); err != nil {
		return nil, nil, fmt.Errorf("node %q: %w", at.Label(), err)
	}
	inner := map[string]*Value{}
	for i, in := range branch.Input {
		inner[in.GetName()] = args[i]
	}
	for _, t := range branch.Initializer {
		inner[t.GetName()] = g.AddConstant(t.GetName(), &Tensor{Proto: t})
	}
	find := func(name string) *Value {
		if v := inner[name]; v != nil {
			return v
		}
		return g.values[name]
	}
	var nodes []*Node
	for _, p := range branch.Node {
		p = proto.Clone(p).(*pb.NodeProto)
		for _, sub := range (&Node{Proto: p}).Subgraphs() {
			renameAll(sub, inner)
		}
		inputs := make([]*Value, len(p.Input))
		for i, name := range p.Input {
			if name != "" {
				inputs[i] = find(name)
			}
		}
		n := g.NewNode(p.GetDomain(), p.GetOpType(), p.GetName(), inputs, p.Output, p.Attribute...)
		for i, name := range p.Output {
			if name != "" {
				inner[name] = n.Outputs[i]
			}
		}
		nodes = append(nodes, n)
	}
	g.InsertBefore(at, nodes...)
	outs := make([]*Value, len(branch.Output))
	for i, o := range branch.Output {
		outs[i] = find(o.GetName())
	}
	return nodes, outs, nil
}

// renameAll gives the names that a subgraph reads those of the values they stand
// for: over names that none has, since one's new name may be another's old one.
func renameAll(p *pb.GraphProto, values map[string]*Value) {
	for name := range values {
		renameFree(p, name, "\x00"+name)
	}
	for name, v := range values {
		renameFree(p, "\x00"+name, v.Name)
	}
}

// canInline reports what stands in the way: values that cannot be had outside,
// or nodes out of order.
func (g *Graph) canInline(branch *pb.GraphProto, args int) error {
	if len(branch.Input) != args || len(branch.SparseInitializer) > 0 {
		return fmt.Errorf("the subgraph has %d inputs for %d values, or sparse tensors", len(branch.Input), args)
	}
	known := map[string]bool{"": true}
	for _, in := range branch.Input {
		known[in.GetName()] = true
	}
	for _, t := range branch.Initializer {
		if t.GetDataLocation() == pb.TensorProto_EXTERNAL {
			return fmt.Errorf("the subgraph has external data")
		}
		known[t.GetName()] = true
	}
	reads := func(name string) error {
		if !known[name] && g.values[name] == nil {
			return fmt.Errorf("its subgraph reads %q, which nothing produces", name)
		}
		return nil
	}
	for _, p := range branch.Node {
		free := append([]string(nil), p.Input...)
		for _, sub := range (&Node{Proto: p}).Subgraphs() {
			free = append(free, freeNames(sub)...)
		}
		for _, name := range free {
			if err := reads(name); err != nil {
				return err
			}
		}
		for _, name := range p.Output {
			known[name] = true
		}
	}
	for _, o := range branch.Output {
		if err := reads(o.GetName()); err != nil {
			return err
		}
	}
	return nil
}
