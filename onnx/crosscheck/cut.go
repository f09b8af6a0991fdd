package crosscheck

// What stops onnx-go is cut out of its copy of the bytes, on the wire: everything
// else stays the file's own bytes.

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// The fields on the way to an attribute (graph, node, attribute) and to an
// initializer.
var (
	attributePath   = []protowire.Number{7, 1, 5}
	initializerPath = []protowire.Number{7, 5}
)

// cutUnreadable returns data without the attributes and initializers that
// onnx-go cannot read, and how many attributes of each kind there were.
// Initializers that are graph inputs too stay, because onnx-go takes their names
// off its list of inputs; the recorder keeps it from reading them.
func (l limit) cutUnreadable(m *onnx.Model, data []byte) ([]byte, map[string]int) {
	for _, v := range m.Graph.Initializers {
		if l.unreadable(v.Init.Proto) != "" && !v.IsInput() {
			data = cutFields(data, initializerPath, func(body []byte) bool {
				t := &pb.TensorProto{}
				if proto.Unmarshal(body, t) != nil || l.unreadable(t) == "" {
					return false
				}
				v := m.Graph.Value(t.GetName())
				return v != nil && !v.IsInput()
			})
			break
		}
	}
	cut := map[string]int{}
	for _, n := range m.Graph.Nodes {
		for _, a := range n.Proto.Attribute {
			if kind := l.unreadableMessage(a); kind != "" {
				cut[kind]++
			}
		}
	}
	if len(cut) > 0 {
		data = cutFields(data, attributePath, func(body []byte) bool { return l.unreadableAttribute(body) != "" })
	}
	return data, cut
}

func cutFields(data []byte, path []protowire.Number, drop func(body []byte) bool) []byte {
	out := make([]byte, 0, len(data))
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeField(data)
		if n < 0 {
			return append(out, data...)
		}
		field := data[:n]
		data = data[n:]
		if num != path[0] || typ != protowire.BytesType {
			out = append(out, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		body, _ := protowire.ConsumeBytes(field[tag:])
		if len(path) > 1 {
			out = protowire.AppendTag(out, num, typ)
			out = protowire.AppendBytes(out, cutFields(body, path[1:], drop))
		} else if !drop(body) {
			out = append(out, field...)
		}
	}
	return out
}

// unreadableAttribute says what onnx-go cannot read of an attribute, "" when it
// can.
func (l limit) unreadableAttribute(body []byte) string {
	a := &pb.AttributeProto{}
	if proto.Unmarshal(body, a) != nil {
		return ""
	}
	return l.unreadableMessage(a)
}

func (l limit) unreadableMessage(a *pb.AttributeProto) string {
	switch a.GetType() {
	case pb.AttributeProto_TENSOR:
		return l.unreadable(a.GetT())
	case pb.AttributeProto_GRAPH, pb.AttributeProto_GRAPHS:
		return "graphs"
	case pb.AttributeProto_TENSORS:
		return "lists of tensors"
	case pb.AttributeProto_SPARSE_TENSOR, pb.AttributeProto_SPARSE_TENSORS:
		return "sparse tensors"
	case pb.AttributeProto_TYPE_PROTO, pb.AttributeProto_TYPE_PROTOS:
		return "types"
	}
	return ""
}

// onnx-go reads a tensor element by element into memory of its own, after a
// copy of the whole file. So large tensors are kept from it, and in large files
// all but small ones.
const (
	maxTensor   = 64 << 20
	largeFile   = 128 << 20
	smallTensor = 1 << 20
)

// A limit is the size in bytes above which a tensor is not compared.
type limit int64

func limitFor(file int) limit {
	if file > largeFile {
		return smallTensor
	}
	return maxTensor
}

// unreadable says why onnx-go cannot read a tensor, "" when it can.
func (l limit) unreadable(p *pb.TensorProto) string {
	t := onnx.WrapTensor(p)
	size, err := t.ByteSize()
	switch {
	case p == nil:
		return "no tensor"
	case t.IsExternal():
		return "external tensors"
	case t.DType() != onnx.Float32 && t.DType() != onnx.Float64 && t.DType() != onnx.Int32 && t.DType() != onnx.Int64:
		return t.DType().String() + " tensors"
	case err != nil || p.Segment != nil:
		return "segmented tensors"
	case size == 0:
		return "empty tensors"
	case size > int64(l):
		return fmt.Sprintf("tensors above %d MiB", l>>20)
	}
	return ""
}
