package onnx

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// A Model is an ONNX file.
type Model struct {
	// Proto is everything around the graph, as read. Its Graph field is nil;
	// the graph lives in Graph.
	Proto *pb.ModelProto
	Graph *Graph
	// Path is the file the model was loaded from, "" if none.
	Path string
	// Amended says that the file differs from Graph: its nodes have another order, as ONNX
	// wants producers before readers and ONNX Runtime runs a file without, dimensions of
	// its inputs have neither a size nor a name, or functions were written out.
	Amended bool

	files *Files
	image []byte // the mapped file that the messages alias
}

// An AfterPass sees a model as each pass left it; nil: nobody does. An error ends the work.
type AfterPass func(pass string, m *Model) error

// See shows it the model.
func (f AfterPass) See(pass string, m *Model) error {
	if f == nil {
		return nil
	}
	return f(pass, m)
}

// A Graph is the nodes of a model in file order with the values between them.
type Graph struct {
	// Proto holds what is not represented elsewhere: name, doc string, sparse
	// initializers, quantization annotations, metadata, unknown fields, and
	// the value_info entries as read.
	Proto   *pb.GraphProto
	Nodes   []*Node
	Inputs  []*Value
	Outputs []*Value
	// Initializers in file order; each has Init set.
	Initializers []*Value

	// outputProtos are the output declarations as read.
	outputProtos []*pb.ValueInfoProto
	// unownedInfos are value_info entries as read for names that no value has.
	unownedInfos map[*pb.ValueInfoProto]bool

	values map[string]*Value
	names  *names
}

// A Value is one name in a graph.
type Value struct {
	Name string
	// Type is what is known: declared in the file, or inferred.
	Type Type
	// Producer and Index say which node output the value is; Producer is nil
	// for inputs and initializers.
	Producer *Node
	Index    int
	// Init is the constant data of an initializer, else nil.
	Init *Tensor

	input  bool
	sparse bool // a sparse initializer, preserved only
	outs   int
	uses   []Use
	places map[Use]int        // index of a long list of uses
	info   *pb.ValueInfoProto // input or output declaration as read
	loaded Type               // Type as the file gave it
}

// A Use is one place where a value is read.
type Use struct {
	Node *Node
	// Index is the input's position, or Captured.
	Index int
}

// Captured stands as Use.Index for a value read inside a node's subgraph.
const Captured = -1

// A Node is one operator.
type Node struct {
	// Proto is the message as read; its input and output lists are rewritten
	// from Inputs and Outputs on saving.
	Proto *pb.NodeProto
	// Inputs and Outputs hold nil where an optional one is left out.
	Inputs, Outputs []*Value
	// Captures are the outer values that subgraphs of the node read.
	Captures []*Value

	graph *Graph
}

// IsInput reports a graph input.
func (v *Value) IsInput() bool { return v.input }

// IsOutput reports a graph output.
func (v *Value) IsOutput() bool { return v.outs > 0 }

// Names are those of values, in their order.
func Names(values []*Value) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = v.Name
	}
	return names
}

// IsConstant reports an initializer that no feed can replace.
func (v *Value) IsConstant() bool { return v.Init != nil && !v.input }

// Stored reports a value that the file holds: an initializer, though a feed may replace it, or
// what a Constant node makes; false for nil.
func (v *Value) Stored() bool {
	return v != nil && (v.Init != nil || v.Producer != nil && v.Producer.Is("Constant"))
}

// Fixed reports one that no feed can replace.
func (v *Value) Fixed() bool { return v.Stored() && !v.input }

// Behind is what v is made of by nodes of these operators of the default domain, one after
// the other, each from its first input; v itself where another made it.
func (v *Value) Behind(ops ...string) *Value {
	for v != nil && v.Producer != nil && v.Producer.Is(ops...) {
		v = v.Producer.In(0)
	}
	return v
}

// Constant is the content of an initializer that no feed can replace, or of a
// Constant node that holds a tensor; nil for other values, and for nil.
func (v *Value) Constant() *Tensor {
	switch {
	case v == nil:
		return nil
	case v.IsConstant():
		return v.Init
	case v.Producer != nil && v.Producer.Is("Constant"):
		return v.Producer.TensorAttr("value")
	}
	return nil
}

// IsZero reports a constant of zeros (see Tensor.IsZero), or the ConstantOfShape of them;
// false for nil.
func (v *Value) IsZero() bool {
	if v == nil {
		return false
	}
	if n := v.Producer; n != nil && n.Is("ConstantOfShape") {
		t := n.TensorAttr("value")
		return t == nil || t.IsZero()
	}
	t := v.Constant()
	return t != nil && t.IsZero()
}

// Number is the content of a constant of one element.
func (v *Value) Number() (float64, bool) {
	if t := v.Constant(); t != nil {
		return t.Scalar()
	}
	return 0, false
}

// Uses lists the readers in no particular order; not to be changed.
func (v *Value) Uses() []Use { return v.uses }

// Dead reports that nothing reads the value and it is not an output.
func (v *Value) Dead() bool { return len(v.uses) == 0 && v.outs == 0 }

// Apart is an input or initializer as it is declared, which holds no other part of its graph.
func (v *Value) Apart() *Value {
	return &Value{Name: v.Name, Type: v.Type, Init: v.Init, input: v.input, info: v.info, loaded: v.loaded}
}

func (v *Value) String() string { return v.Name }

// Name is the node's name, possibly empty.
func (n *Node) Name() string { return n.Proto.GetName() }

// SetName renames the node.
func (n *Node) SetName(s string) { n.Proto.Name = &s }

// OpType is the operator's name.
func (n *Node) OpType() string { return n.Proto.GetOpType() }

// SetOpType changes the operator; the caller sees to inputs and attributes.
func (n *Node) SetOpType(s string) { n.Proto.OpType = &s }

// Domain is the operator's domain, "" for the standard one.
func (n *Node) Domain() string { return NormalDomain(n.Proto.GetDomain()) }

// Is reports a standard-domain operator of one of these types.
func (n *Node) Is(ops ...string) bool {
	return n.Domain() == "" && slices.Contains(ops, n.OpType())
}

// NormalDomain maps the standard domain's long name to its short one.
func NormalDomain(d string) string {
	if d == "ai.onnx" {
		return ""
	}
	return d
}

// Label is how messages call the node: its name, or its first output.
func (n *Node) Label() string {
	if name := n.Name(); name != "" {
		return name
	}
	for _, o := range n.Returns() {
		return n.OpType() + " that makes " + o.Name
	}
	return n.OpType()
}

// In returns input i, nil where it is left out.
func (n *Node) In(i int) *Value {
	if i < 0 || i >= len(n.Inputs) {
		return nil
	}
	return n.Inputs[i]
}

// Out returns output i, nil where it is left out.
func (n *Node) Out(i int) *Value {
	if i < 0 || i >= len(n.Outputs) {
		return nil
	}
	return n.Outputs[i]
}

// Reads are the inputs that are not left out, with their places; captures are none of them.
func (n *Node) Reads() iter.Seq2[int, *Value] { return present(n.Inputs) }

// Returns are the outputs that are not left out, with their places.
func (n *Node) Returns() iter.Seq2[int, *Value] { return present(n.Outputs) }

func present(values []*Value) iter.Seq2[int, *Value] {
	return func(yield func(int, *Value) bool) {
		for i, v := range values {
			if v != nil && !yield(i, v) {
				return
			}
		}
	}
}

// Value returns the value of that name, or nil.
func (g *Graph) Value(name string) *Value { return g.values[name] }

// Opset is the version of a domain's operator set that the file imports, 0
// where it imports none.
func (m *Model) Opset(domain string) int64 {
	for _, o := range m.Proto.GetOpsetImport() {
		if NormalDomain(o.GetDomain()) == NormalDomain(domain) {
			return o.GetVersion()
		}
	}
	return 0
}

// SetOpset imports a domain's operator set at that version.
func (m *Model) SetOpset(domain string, version int64) {
	for _, o := range m.Proto.OpsetImport {
		if NormalDomain(o.GetDomain()) == NormalDomain(domain) {
			o.Version = &version
			return
		}
	}
	m.Proto.OpsetImport = append(m.Proto.OpsetImport, &pb.OperatorSetIdProto{Domain: &domain, Version: &version})
}

// ImportUsed imports the first version of a domain's operator set that nodes are of and the
// file does not import.
func (m *Model) ImportUsed(domain string) {
	uses := func(n *Node) bool { return n.Domain() == domain }
	if m.Opset(domain) == 0 && slices.ContainsFunc(m.Graph.Nodes, uses) {
		m.SetOpset(domain, 1)
	}
}

// Metadata returns the entry of metadata_props.
func (m *Model) Metadata(key string) (string, bool) { return Property(m.Proto.GetMetadataProps(), key) }

// SetMetadata sets an entry of metadata_props.
func (m *Model) SetMetadata(key, value string) { setProperty(&m.Proto.MetadataProps, key, value) }

// SetJSON sets an entry of metadata_props to a value as JSON.
func (m *Model) SetJSON(key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("metadata %s: %w", key, err)
	}
	m.SetMetadata(key, string(text))
	return nil
}

// JSON reads an entry of metadata_props as SetJSON writes it, and reports whether there is one.
func (m *Model) JSON(key string, into any) (has bool, err error) {
	text, has := m.Metadata(key)
	if !has {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return true, fmt.Errorf("metadata %s: %w", key, err)
	}
	return true, nil
}

// DropMetadata removes an entry of metadata_props.
func (m *Model) DropMetadata(key string) {
	dropProperty(&m.Proto.MetadataProps, key)
}

// Metadata returns the entry of the node's metadata_props, "" where it has none.
func (n *Node) Metadata(key string) string {
	value, _ := Property(n.Proto.GetMetadataProps(), key)
	return value
}

// SetMetadata sets an entry of the node's metadata_props.
func (n *Node) SetMetadata(key, value string) { setProperty(&n.Proto.MetadataProps, key, value) }

// DropMetadata takes an entry off, if there is one.
func (n *Node) DropMetadata(key string) {
	dropProperty(&n.Proto.MetadataProps, key)
}

// Property returns the entry of a key: models, graphs, nodes and values have
// metadata_props.
func Property(props []*pb.StringStringEntryProto, key string) (string, bool) {
	for _, kv := range props {
		if kv.GetKey() == key {
			return kv.GetValue(), true
		}
	}
	return "", false
}

// setProperty replaces the entry of a key, or adds one: copies of a model share entries.
func setProperty(props *[]*pb.StringStringEntryProto, key, value string) {
	for i, kv := range *props {
		if kv.GetKey() == key {
			(*props)[i] = &pb.StringStringEntryProto{Key: kv.Key, Value: &value}
			return
		}
	}
	*props = append(*props, &pb.StringStringEntryProto{Key: &key, Value: &value})
}

func dropProperty(props *[]*pb.StringStringEntryProto, key string) {
	*props = slices.DeleteFunc(*props, func(kv *pb.StringStringEntryProto) bool { return kv.GetKey() == key })
}

// Files gives access to the external data of the model.
func (m *Model) Files() *Files { return m.files }

// NewModel makes an empty model of that standard opset.
func NewModel(name string, opset int64) *Model {
	ir, producer := int64(10), "remat"
	m := &Model{Proto: &pb.ModelProto{IrVersion: &ir, ProducerName: &producer}, files: newFiles(".")}
	m.SetOpset("", opset)
	m.Graph = newGraph(&pb.GraphProto{Name: &name})
	return m
}

func newGraph(p *pb.GraphProto) *Graph {
	g := &Graph{Proto: p, values: make(map[string]*Value, len(p.Input)+len(p.Initializer)+len(p.Node))}
	g.names = &names{graph: g}
	return g
}
