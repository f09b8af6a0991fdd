package onnx

import (
	"slices"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// Attr returns the attribute of that name, or nil.
func (n *Node) Attr(name string) *pb.AttributeProto {
	for _, a := range n.Proto.GetAttribute() {
		if a.GetName() == name {
			return a
		}
	}
	return nil
}

// Has reports that the attribute is given.
func (n *Node) Has(name string) bool { return n.Attr(name) != nil }

// AttrsBut lists the attributes but for those of these names.
func (n *Node) AttrsBut(names ...string) []Attribute {
	return slices.DeleteFunc(slices.Clone(n.Proto.GetAttribute()), func(a Attribute) bool { return slices.Contains(names, a.GetName()) })
}

// Int returns an integer attribute, or the default.
func (n *Node) Int(name string, def int64) int64 {
	if a := n.Attr(name); a != nil && a.I != nil {
		return *a.I
	} else if a != nil && a.GetType() == pb.AttributeProto_INT {
		return 0
	}
	return def
}

// Float returns a float attribute, or the default.
func (n *Node) Float(name string, def float64) float64 {
	if a := n.Attr(name); a != nil && a.F != nil {
		return float64(*a.F)
	} else if a != nil && a.GetType() == pb.AttributeProto_FLOAT {
		return 0
	}
	return def
}

// Str returns a string attribute, or the default.
func (n *Node) Str(name, def string) string {
	if a := n.Attr(name); a != nil && a.S != nil {
		return string(a.S)
	}
	return def
}

// Ints returns an integer list attribute, nil where it is absent.
func (n *Node) Ints(name string) []int64 { return n.Attr(name).GetInts() }

// Floats returns a float list attribute, nil where it is absent.
func (n *Node) Floats(name string) []float32 { return n.Attr(name).GetFloats() }

// TensorAttr returns a tensor attribute, or nil.
func (n *Node) TensorAttr(name string) *Tensor {
	if t := n.Attr(name).GetT(); t != nil {
		return &Tensor{Proto: t}
	}
	return nil
}

// ConstantTensor is what a Constant node makes, of the attribute that it has; nil
// for strings and sparse tensors.
func (n *Node) ConstantTensor() *Tensor {
	switch {
	case n.Has("value"):
		return n.TensorAttr("value")
	case n.Has("value_int"):
		return Int64Tensor([]int64{n.Int("value_int", 0)})
	case n.Has("value_ints"):
		v := n.Ints("value_ints")
		return Int64Tensor(v, int64(len(v)))
	case n.Has("value_float"):
		return Float32Tensor([]float32{float32(n.Float("value_float", 0))})
	case n.Has("value_floats"):
		v := n.Floats("value_floats")
		return Float32Tensor(v, int64(len(v)))
	}
	return nil
}

// An Attribute is a name with a value, for building nodes.
type Attribute = *pb.AttributeProto

// IntAttr makes an integer attribute.
func IntAttr(name string, v int64) Attribute {
	return &pb.AttributeProto{Name: &name, I: &v, Type: pb.AttributeProto_INT.Enum()}
}

// FloatAttr makes a float attribute.
func FloatAttr(name string, v float64) Attribute {
	return &pb.AttributeProto{Name: &name, F: new(float32(v)), Type: pb.AttributeProto_FLOAT.Enum()}
}

// StringAttr makes a string attribute.
func StringAttr(name, v string) Attribute {
	return &pb.AttributeProto{Name: &name, S: []byte(v), Type: pb.AttributeProto_STRING.Enum()}
}

// IntsAttr makes an integer list attribute.
func IntsAttr(name string, v ...int64) Attribute {
	return &pb.AttributeProto{Name: &name, Ints: v, Type: pb.AttributeProto_INTS.Enum()}
}

// TensorAttrOf makes a tensor attribute.
func TensorAttrOf(name string, t *Tensor) Attribute {
	return &pb.AttributeProto{Name: &name, T: t.Proto, Type: pb.AttributeProto_TENSOR.Enum()}
}

// SetAttr adds the attribute or replaces the one of its name.
func (n *Node) SetAttr(a Attribute) {
	for i, b := range n.Proto.Attribute {
		if b.GetName() == a.GetName() {
			n.Proto.Attribute[i] = a
			return
		}
	}
	n.Proto.Attribute = append(n.Proto.Attribute, a)
}

// RemoveAttr drops the attribute of that name.
func (n *Node) RemoveAttr(name string) {
	for i, a := range n.Proto.Attribute {
		if a.GetName() == name {
			n.Proto.Attribute = append(n.Proto.Attribute[:i:i], n.Proto.Attribute[i+1:]...)
			return
		}
	}
}

// Subgraphs lists the graph attributes of the node.
func (n *Node) Subgraphs() []*pb.GraphProto {
	var out []*pb.GraphProto
	for _, a := range n.Proto.GetAttribute() {
		if a.G != nil {
			out = append(out, a.G)
		}
		out = append(out, a.Graphs...)
	}
	return out
}
