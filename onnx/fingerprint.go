package onnx

// A hash of what a prediction of a graph is made of:
//
//	nodes in their order: operator, attributes, edges
//	values by their first place: types as declared, extents of initializers
//
// Names, texts, metadata, and where initializers lie do not count.

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// Fingerprint is the hash of the graph as it would be saved, in hexadecimal digits.
func (m *Model) Fingerprint() string {
	g := m.ToProto().Graph
	f := newHasher()
	for _, t := range g.Initializer {
		f.about[t.GetName()] = fmt.Sprint("init ", t.GetDataType(), t.Dims)
	}
	for _, list := range [][]*pb.ValueInfoProto{g.ValueInfo, g.Output, g.Input} {
		for _, v := range list {
			f.about[v.GetName()] += " " + typeAsDeclared(v.GetType())
		}
	}
	f.values("in", declared(g.Input))
	for _, n := range g.Node {
		f.node(n)
	}
	f.values("out", declared(g.Output))
	return hex.EncodeToString(f.sum())
}

// Fingerprint is the hash of the node alone, in hexadecimal digits: operator, attributes,
// and the types of what it reads, whatever their names.
func (n *Node) Fingerprint() string {
	f := newHasher()
	for _, v := range n.Reads() {
		f.about[v.Name] = v.Type.String()
	}
	p := n.Proto
	f.node(&pb.NodeProto{Domain: p.Domain, OpType: p.OpType, Attribute: p.Attribute, Input: syncNames(p.Input, n.Inputs), Output: syncNames(p.Output, n.Outputs)})
	return hex.EncodeToString(f.sum()[:8])
}

func declared(list []*pb.ValueInfoProto) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.GetName()
	}
	return out
}

// A hasher takes in a graph's structure; values are numbers by their first place.
type hasher struct {
	io.Writer
	number map[string]int
	about  map[string]string // what is said of a value where it first stands
}

func newHasher() *hasher {
	return &hasher{Writer: sha256.New(), number: map[string]int{}, about: map[string]string{}}
}

func (f *hasher) sum() []byte { return f.Writer.(interface{ Sum([]byte) []byte }).Sum(nil) }

func (f *hasher) values(what string, list []string) {
	fmt.Fprintf(f, "%s %d\n", what, len(list))
	for _, name := range list {
		k, seen := f.number[name]
		if !seen && name != "" {
			k = len(f.number) + 1
			f.number[name] = k
			fmt.Fprintf(f, "%d:%s\n", k, f.about[name])
			continue
		}
		fmt.Fprintln(f, k)
	}
}

func (f *hasher) node(n *pb.NodeProto) {
	domain := n.GetDomain()
	if domain == "ai.onnx" {
		domain = ""
	}
	fmt.Fprintf(f, "node %q %q\n", domain, n.GetOpType())
	attributes := slices.SortedFunc(slices.Values(n.Attribute), func(a, b *pb.AttributeProto) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, a := range attributes {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
		fmt.Fprintf(f, "%q %x %v\n", a.GetName(), data, err)
	}
	f.values("reads", n.Input)
	f.values("makes", n.Output)
}

// typeAsDeclared is a type as a file declares it, without denotations.
func typeAsDeclared(t *pb.TypeProto) string {
	tensor := t.GetTensorType()
	if tensor == nil {
		return fmt.Sprintf("%T", t.GetValue())
	}
	text := strconv.Itoa(int(tensor.GetElemType()))
	if tensor.Shape == nil {
		return text
	}
	text += "["
	for _, d := range tensor.Shape.Dim {
		text += fmt.Sprintf("%d %q,", d.GetDimValue(), d.GetDimParam())
	}
	return text + "]"
}
