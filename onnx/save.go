package onnx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// maxFile is protobuf's limit for one message; larger weights go outside.
const maxFile = 1<<31 - 1

// emptyResolver knows no extensions: what looks like one stays unknown bytes.
type emptyResolver struct{}

func (emptyResolver) FindExtensionByName(protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

func (emptyResolver) FindExtensionByNumber(protoreflect.FullName, protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

// ToProto assembles the model's message. It shares its parts with the model.
// Value types that differ from what the file declared are written, others
// stand as they were; AnnotateTypes first gives every value its value_info.
func (m *Model) ToProto() *pb.ModelProto {
	out := &pb.ModelProto{}
	copyFields(out, m.Proto)
	out.Graph = m.Graph.toProto()
	return out
}

// copyFields makes dst a message with the fields of src, shared.
func copyFields(dst, src proto.Message) {
	from, to := src.ProtoReflect(), dst.ProtoReflect()
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(f, v)
		return true
	})
	to.SetUnknown(from.GetUnknown())
}

// toProto writes the graph's lists into a copy of its message, whose other fields stay.
func (g *Graph) toProto() *pb.GraphProto {
	p := &pb.GraphProto{}
	copyFields(p, g.Proto)
	p.Node, p.Input, p.Output, p.ValueInfo, p.Initializer = nil, nil, nil, nil, nil
	for _, n := range g.Nodes {
		p.Node = append(p.Node, n.sync())
	}
	for _, v := range g.Initializers {
		if v.Init.Proto.GetName() != v.Name {
			v.Init.Proto.Name = new(v.Name)
		}
		p.Initializer = append(p.Initializer, v.Init.Proto)
	}
	for _, v := range g.Inputs {
		p.Input = append(p.Input, v.declaration(v.info))
	}
	for i, v := range g.Outputs {
		var info *pb.ValueInfoProto
		if i < len(g.outputProtos) && g.outputProtos[i].GetName() == v.Name {
			info = g.outputProtos[i]
		} else if !v.input {
			info = v.info
		}
		p.Output = append(p.Output, v.declaration(info))
	}
	for _, vi := range g.Proto.ValueInfo {
		if g.unownedInfos[vi] {
			p.ValueInfo = append(p.ValueInfo, vi)
		} else if v := g.values[vi.GetName()]; v != nil {
			p.ValueInfo = append(p.ValueInfo, v.declaration(vi))
		}
	}
	return p
}

// sync writes the node's current values into its message.
func (n *Node) sync() *pb.NodeProto {
	n.Proto.Input = syncNames(n.Proto.Input, n.Inputs)
	n.Proto.Output = syncNames(n.Proto.Output, n.Outputs)
	return n.Proto
}

func syncNames(names []string, values []*Value) []string {
	name := func(v *Value) string {
		if v == nil {
			return ""
		}
		return v.Name
	}
	if slices.EqualFunc(names, values, func(n string, v *Value) bool { return n == name(v) }) {
		return names
	}
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = name(v)
	}
	return out
}

// declaration returns the message that declares the value: the one given where
// it still says the truth, else a copy with the current name and type.
func (v *Value) declaration(info *pb.ValueInfoProto) *pb.ValueInfoProto {
	if info != nil && info.GetName() == v.Name {
		if !v.Type.Known() || v.Type.Same(v.loaded) {
			return info
		}
		declared := TypeFromProto(info.Type)
		if declared.Same(v.Type) || declared.Other != nil {
			return info
		}
	}
	out := &pb.ValueInfoProto{}
	if info != nil {
		out = proto.Clone(info).(*pb.ValueInfoProto)
	}
	out.Name = new(v.Name)
	if v.Type.Known() {
		out.Type = v.Type.Proto()
	}
	return out
}

// AsDeclared gives values whose extents the file left free, and that were found
// out since, the types that the file declares: what is written then says no
// more than the file read. It returns a function that puts them back.
func (g *Graph) AsDeclared() (restore func()) {
	found := map[*Value]Type{}
	for _, v := range g.values {
		if t := v.loaded; t.DType == v.Type.DType && !t.IsStatic() && (v.Type.IsStatic() || namesLess(v.Type, t)) {
			found[v], v.Type = v.Type, t
		}
	}
	return func() {
		for v, t := range found {
			v.Type = t
		}
	}
}

// namesLess reports a type of whose free extents one is free no more, or less so.
func namesLess(t, declared Type) bool {
	if len(t.Shape) != len(declared.Shape) {
		return false
	}
	for i, d := range declared.Shape {
		if d != t.Shape[i] && t.Shape[i].Known() && len(t.Shape[i].Symbols()) < len(d.Symbols()) {
			return true
		}
	}
	return false
}

// AsRead is AsDeclared, unless the graph has numbers for free extents that are to be the file's: where a session
// gets them beside it, they are not.
func (g *Graph) AsRead(beside bool) (restore func()) {
	if !beside && g.Fixed() {
		return func() {}
	}
	return g.AsDeclared()
}

// Fixed reports that an input has numbers where the file that it was read from
// left extents free.
func (g *Graph) Fixed() bool {
	return slices.ContainsFunc(g.Inputs, func(v *Value) bool { return v.Type.IsStatic() && v.loaded.Known() && !v.loaded.IsStatic() })
}

// AnnotateTypes gives every node output whose type is known a value_info entry
// in the written file, and those that the node hides none. ONNX Runtime plans reuse only for
// shapes it knows, and takes extents for equal where they are spelled alike: all are spelled as
// this package does it.
func (g *Graph) AnnotateTypes() {
	hidden := map[string]bool{} // an entry may be left of a removed node's output of that name
	for _, n := range g.Nodes {
		for _, v := range n.Returns() {
			if n.Hides() {
				hidden[v.Name] = true
			}
		}
	}
	g.Proto.ValueInfo = slices.DeleteFunc(g.Proto.ValueInfo, func(p *pb.ValueInfoProto) bool { return hidden[p.GetName()] })
	have := map[string]bool{}
	for i, vi := range g.Proto.ValueInfo {
		have[vi.GetName()] = true
		if v := g.values[vi.GetName()]; v != nil {
			g.Proto.ValueInfo[i] = v.spelled(vi)
		}
	}
	for _, v := range g.Inputs {
		v.info = v.spelled(v.info)
	}
	g.outputProtos = slices.Clone(g.outputProtos)
	for i, vi := range g.outputProtos {
		if v := g.values[vi.GetName()]; v != nil {
			g.outputProtos[i] = v.spelled(vi)
		}
	}
	for _, n := range g.Nodes {
		for _, v := range n.Returns() {
			if v.outs == 0 && v.Type.Known() && !have[v.Name] && !hidden[v.Name] {
				g.Proto.ValueInfo = append(g.Proto.ValueInfo, v.declaration(nil))
			}
		}
	}
}

// spelled returns the message that declares the value, where it spells an extent otherwise than
// this package a copy: "u0 + 10" is u0+10.
func (v *Value) spelled(info *pb.ValueInfoProto) *pb.ValueInfoProto {
	given := info.GetType().GetTensorType().GetShape().GetDim()
	if !v.Type.Ranked || len(given) != len(v.Type.Shape) {
		return info
	}
	var out *pb.ValueInfoProto
	for i, d := range given {
		if d.GetDimParam() == "" { // the one of most
			continue
		}
		text := v.Type.Shape[i].String()
		if d.GetDimParam() == text || ParseDim(d.GetDimParam()) != v.Type.Shape[i] {
			continue
		}
		if out == nil {
			out = proto.Clone(info).(*pb.ValueInfoProto)
		}
		out.Type.GetTensorType().Shape.Dim[i].Value = &pb.TensorShapeProto_Dimension_DimParam{DimParam: text}
	}
	if out == nil {
		return info
	}
	return out
}

// Encode writes the model as bytes, the same for the same model.
func (m *Model) Encode() ([]byte, error) { return encode(m.ToProto()) }

func encode(p *pb.ModelProto) ([]byte, error) {
	if size := proto.Size(p); size > maxFile {
		return nil, fmt.Errorf("model takes %d bytes, more than a protobuf file can hold: keep its weights in an external data file", size)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(p)
}

// Save writes the model beside path and renames it into place, so that no
// reader ever sees half a file. Relative external data stays valid only in the
// same folder; RebaseExternal sees to others.
func (m *Model) Save(path string) error {
	return Together(func(files *Outputs) error { return m.SaveWith(files, path) })
}

// SaveWith is Save for a model that is put into its place together with other files.
func (m *Model) SaveWith(files *Outputs, path string) error {
	data, err := m.Encode()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return files.Write(path, data)
}

// WriteFile replaces path by data as a whole, or leaves it as it was.
func WriteFile(path string, data []byte) error {
	return Together(func(files *Outputs) error { return files.Write(path, data) })
}

// pending holds the names of files and folders that are being written.
var pending sync.Map

// RemovePending takes away what ReplaceFile and MakeFolder are writing at this
// moment, for a program that is about to end.
func RemovePending() {
	pending.Range(func(name, _ any) bool {
		os.RemoveAll(name.(string))
		return true
	})
}

// hasFolder reports why path is in no folder.
func hasFolder(path string) error {
	switch dir, err := os.Stat(filepath.Dir(path)); {
	case err != nil:
		return fmt.Errorf("folder of %s: %w", path, PathCause(err))
	case !dir.IsDir():
		return fmt.Errorf("%s: %s is not a folder", path, filepath.Dir(path))
	}
	return nil
}

// Replaceable reports why no file can be put at path: its folder is missing, or
// something that is not a file stands there.
func Replaceable(path string) error {
	if err := hasFolder(path); err != nil {
		return err
	}
	at, err := os.Stat(path)
	switch {
	case errors.Is(err, syscall.ENAMETOOLONG): // before any work, and without the name beside
		return fmt.Errorf("%s: %w", path, PathCause(err))
	case err == nil && at.IsDir():
		return fmt.Errorf("%s: is a folder: name a file in it", path)
	case err == nil && !at.Mode().IsRegular():
		return fmt.Errorf("%s: is a device or a pipe: name a file", path)
	}
	return nil
}
