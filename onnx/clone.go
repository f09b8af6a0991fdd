package onnx

import (
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// Clone returns a copy of the model that shares the data of its tensors, and what is
// replaced but never edited: it may be rewritten while the original stays as it is. Its external
// data is looked up in the same folder; it keeps the original's mapped file in
// use, so the original must be closed last.
func (m *Model) Clone() (*Model, error) { return m.cloned(m.ToProto()) }

// CloneOf is Clone for the part that computes some values: they are its outputs, and what
// they are not computed from is left out.
func (m *Model) CloneOf(values []*Value) (*Model, error) {
	part, live := *m.Graph, needed(values)
	part.Nodes = slices.DeleteFunc(slices.Clone(part.Nodes), func(n *Node) bool { return !live[n] })
	part.Outputs, part.values = values, map[string]*Value{}
	there := slices.Clone(values)
	for _, n := range part.Nodes {
		there = append(append(append(there, n.Inputs...), n.Captures...), n.Outputs...)
	}
	for _, v := range there {
		if v != nil {
			part.values[v.Name] = v
		}
	}
	other := func(v *Value) bool { return part.values[v.Name] != v }
	part.Initializers = slices.DeleteFunc(slices.Clone(part.Initializers), other)
	part.Inputs = slices.DeleteFunc(slices.Clone(part.Inputs), other)
	p := &pb.ModelProto{}
	copyFields(p, m.Proto)
	p.Graph = part.toProto()
	return m.cloned(p)
}

// cloned is a copy of a message with the model's weights.
func (m *Model) cloned(p *pb.ModelProto) (*Model, error) {
	tensors := make([][]byte, len(p.Graph.Initializer))
	for i, t := range p.Graph.Initializer {
		tensors[i], t.RawData = t.RawData, nil
	}
	nodes := p.Graph.Node
	p.Graph.Node = nil
	q := proto.CloneOf(p)
	p.Graph.Node, q.Graph.Node = nodes, cloneNodes(nodes)
	for i, t := range p.Graph.Initializer {
		t.RawData = tensors[i]
		q.Graph.Initializer[i].RawData = tensors[i]
	}
	c := &Model{Proto: q, Path: m.Path, Amended: m.Amended, files: newFiles(m.files.dir)}
	g, err := graphFromProto(q.Graph, c.files)
	if err != nil {
		return nil, err
	}
	q.Graph, c.Graph = nil, g
	return c, nil
}

// cloneNodes copies the messages of nodes. Strings, entries of metadata, and attributes of
// numbers and text are shared: a node gets others in their place.
func cloneNodes(nodes []*pb.NodeProto) []*pb.NodeProto {
	copies, out := make([]pb.NodeProto, len(nodes)), make([]*pb.NodeProto, len(nodes))
	for i, n := range nodes {
		c := &copies[i]
		out[i] = c
		if len(n.DeviceConfigurations) > 0 || len(n.ProtoReflect().GetUnknown()) > 0 {
			proto.Merge(c, n)
			continue
		}
		c.Name, c.OpType, c.Domain, c.Overload, c.DocString = n.Name, n.OpType, n.Domain, n.Overload, n.DocString
		c.Input, c.Output, c.MetadataProps = slices.Clone(n.Input), slices.Clone(n.Output), slices.Clone(n.MetadataProps)
		c.Attribute = slices.Clone(n.Attribute)
		for k, a := range c.Attribute {
			if !plain(a) {
				c.Attribute[k] = proto.CloneOf(a)
			}
		}
	}
	return out
}

// plain reports an attribute of numbers and text alone.
func plain(a *pb.AttributeProto) bool {
	return a.T == nil && a.G == nil && a.SparseTensor == nil && a.Tp == nil && a.Tensors == nil && a.Graphs == nil && a.SparseTensors == nil &&
		a.TypeProtos == nil
}
