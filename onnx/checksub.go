package onnx

// Checking what stays a message: subgraphs, attributes, constant data.
//
// Subgraphs see the names of the graphs around them and must not take one
// again. A chain of scopes holds the names; looking one up takes a step per
// level, of which there are at most some thirty.

import (
	"fmt"
	"unicode/utf8"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// scope is the names that are made so far in one subgraph.
type scope struct {
	names map[string]bool
	// outer reports the names that the surrounding graph has made.
	outer   func(string) bool
	imports map[string]bool
}

func (s *scope) knows(name string) bool { return s.names[name] || s.outer(name) }

// define adds a name, which must be new here and outside.
func (s *scope) define(name string) error {
	if !utf8.ValidString(name) {
		return fmt.Errorf("the name %q is not UTF-8", name)
	}
	if s.knows(name) {
		return fmt.Errorf("%q is already produced elsewhere", name)
	}
	s.names[name] = true
	return nil
}

// node checks what a node's message alone can prove, and its subgraphs.
func (s *scope) node(p *pb.NodeProto, label string) error {
	if p.GetOpType() == "" {
		return fmt.Errorf("node %q has no operator type", label)
	}
	if d := NormalDomain(p.GetDomain()); s.imports != nil && !s.imports[d] {
		return fmt.Errorf("node %q: the model imports no operator set of domain %q", label, d)
	}
	if !utf8.ValidString(p.GetName()) || !utf8.ValidString(p.GetOpType()) {
		return fmt.Errorf("the node name %q or its type %q is not UTF-8", p.GetName(), p.GetOpType())
	}
	if err := checkAttributeNames(p); err != nil {
		return fmt.Errorf("node %q: %w", label, err)
	}
	for _, a := range p.Attribute {
		if err := s.attribute(a); err != nil {
			return fmt.Errorf("node %q: attribute %q: %w", label, a.GetName(), err)
		}
	}
	return nil
}

func checkAttributeNames(p *pb.NodeProto) error {
	var seen map[string]bool
	if len(p.Attribute) > 8 {
		seen = make(map[string]bool, len(p.Attribute))
	}
	for i, a := range p.Attribute {
		name := a.GetName()
		twice := seen[name]
		if seen != nil {
			seen[name] = true
		} else {
			for _, b := range p.Attribute[:i] {
				twice = twice || b.GetName() == name
			}
		}
		if name == "" || twice || !utf8.ValidString(name) {
			return fmt.Errorf("attribute %q has no name, or one that is taken or not UTF-8", name)
		}
	}
	return nil
}

// attribute checks what an attribute holds: tensors and subgraphs.
func (s *scope) attribute(a *pb.AttributeProto) error {
	if a.T != nil {
		if err := checkTensor(&Tensor{Proto: a.T}, nil); err != nil {
			return err
		}
	}
	for _, t := range a.Tensors {
		if err := checkTensor(&Tensor{Proto: t}, nil); err != nil {
			return err
		}
	}
	if a.G != nil {
		if err := s.graph(a.G); err != nil {
			return err
		}
	}
	for _, g := range a.Graphs {
		if err := s.graph(g); err != nil {
			return err
		}
	}
	return nil
}

// graph checks a subgraph inside the scope.
func (s *scope) graph(p *pb.GraphProto) error {
	in := scope{names: map[string]bool{}, outer: s.knows, imports: s.imports}
	for _, v := range p.Input {
		if err := in.define(v.GetName()); err != nil {
			return err
		}
	}
	for _, t := range p.Initializer {
		if !in.names[t.GetName()] {
			if err := in.define(t.GetName()); err != nil {
				return err
			}
		}
		if err := checkTensor(&Tensor{Proto: t}, nil); err != nil {
			return err
		}
	}
	for _, t := range p.SparseInitializer {
		if err := in.define(t.GetValues().GetName()); err != nil {
			return err
		}
	}
	for _, n := range p.Node {
		if err := in.innerNode(n); err != nil {
			return err
		}
	}
	for _, o := range p.Output {
		if !in.knows(o.GetName()) {
			return fmt.Errorf("subgraph output %q is not produced by any node", o.GetName())
		}
	}
	return nil
}

func (s *scope) innerNode(n *pb.NodeProto) error {
	label := (&Node{Proto: n}).Label()
	if err := s.node(n, label); err != nil {
		return err
	}
	for _, name := range n.Input {
		if name != "" && !s.knows(name) {
			return fmt.Errorf("node %q: reads %q before it is produced", label, name)
		}
	}
	for _, name := range n.Output {
		if name == "" {
			continue
		}
		if err := s.define(name); err != nil {
			return fmt.Errorf("node %q: %w", label, err)
		}
	}
	return nil
}

// checkTensor proves that constant data fits its type and extents. Files nil
// leaves external data, which only initializers of the model have, unopened.
func checkTensor(t *Tensor, files *Files) error {
	name := t.Proto.GetName()
	if !t.DType().valid() || t.DType() == Undefined {
		return fmt.Errorf("tensor %q: unknown element type %d", name, t.Proto.GetDataType())
	}
	n, err := t.Elements()
	if err != nil {
		return err
	}
	if t.IsExternal() {
		return checkExternal(t, files)
	}
	if raw := t.Proto.RawData; raw != nil {
		if size, err := t.ByteSize(); err == nil && int64(len(raw)) != size {
			return fmt.Errorf("tensor %q: holds %d bytes where %s%v takes %d", name, len(raw), t.DType(), t.Dims(), size)
		}
		return nil
	}
	if have := t.typedCount(); have != n {
		return fmt.Errorf("tensor %q: holds %d elements where %s%v has %d", name, have, t.DType(), t.Dims(), n)
	}
	return nil
}

func checkExternal(t *Tensor, files *Files) error {
	if _, err := t.External(); err != nil {
		return err
	}
	if files == nil {
		return nil
	}
	_, err := t.Bytes()
	return err
}

// typedCount is the number of elements in the typed field of the tensor's
// element type. Types of less than a byte are packed, so their count is what
// the extents say when the bytes are enough.
func (t *Tensor) typedCount() int64 {
	p := t.Proto
	var n int
	switch t.DType() {
	case Float32:
		n = len(p.FloatData)
	case 14:
		n = len(p.FloatData) / 2
	case Float64:
		n = len(p.DoubleData)
	case 15:
		n = len(p.DoubleData) / 2
	case Int64:
		n = len(p.Int64Data)
	case Uint32, Uint64:
		n = len(p.Uint64Data)
	case String:
		n = len(p.StringData)
	default:
		n = len(p.Int32Data)
	}
	if want, err := t.Elements(); err == nil && t.DType().Packed() {
		per := int64(8 / t.DType().Bits())
		if int64(n) == (want+per-1)/per {
			return want
		}
	}
	return int64(n)
}
