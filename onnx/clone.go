package onnx

import "google.golang.org/protobuf/proto"

// Clone returns a copy of the model that shares nothing but the data of its
// tensors: it may be rewritten while the original stays as it is. Its external
// data is looked up in the same folder; it keeps the original's mapped file in
// use, so the original must be closed last.
func (m *Model) Clone() (*Model, error) {
	p := m.ToProto()
	tensors := make([][]byte, len(p.Graph.Initializer))
	for i, t := range p.Graph.Initializer {
		tensors[i], t.RawData = t.RawData, nil
	}
	q := proto.CloneOf(p)
	for i, t := range p.Graph.Initializer {
		t.RawData = tensors[i]
		q.Graph.Initializer[i].RawData = tensors[i]
	}
	c := &Model{Proto: q, Path: m.Path, files: newFiles(m.files.dir)}
	g, err := graphFromProto(q.Graph, c.files)
	if err != nil {
		return nil, err
	}
	q.Graph, c.Graph = nil, g
	return c, nil
}
