package onnx

import (
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// Clone returns a copy of the model that shares nothing but the data of its
// tensors: it may be rewritten while the original stays as it is. Its external
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
	q := proto.CloneOf(p)
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
