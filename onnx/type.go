package onnx

import (
	"math/bits"
	"slices"
	"strings"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// A Shape is the extents of a tensor, outermost first; empty for a scalar.
type Shape []Dim

// StaticShape makes a shape of numbers.
func StaticShape(dims ...int64) Shape {
	s := make(Shape, len(dims))
	for i, d := range dims {
		s[i] = Static(d)
	}
	return s
}

// Ints returns the extents as numbers, and whether all of them are.
func (s Shape) Ints() ([]int64, bool) {
	out := make([]int64, len(s))
	for i, d := range s {
		n, ok := d.Int()
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}

// Elements is the product of the extents.
func (s Shape) Elements() Dim {
	n := Static(1)
	for _, d := range s {
		n = n.Mul(d)
	}
	return n
}

// Equal reports extents that are known and the same.
func (s Shape) Equal(t Shape) bool {
	return slices.EqualFunc(s, t, func(a, b Dim) bool { return a.known && a == b })
}

func (s Shape) String() string {
	parts := make([]string, len(s))
	for i, d := range s {
		parts[i] = d.String()
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// A Type says what a value is. The zero Type is "not known".
type Type struct {
	DType DType
	// Shape holds the extents where Ranked is set; else not even their
	// number is known.
	Shape  Shape
	Ranked bool
	// Other keeps the type of a value that is not a plain tensor (sequence,
	// optional, map, sparse); DType is then Undefined.
	Other *pb.TypeProto
}

// TensorOf is the tensor type of that element type and shape.
func TensorOf(d DType, s Shape) Type { return Type{DType: d, Shape: s, Ranked: true} }

// Known reports that the element type is known.
func (t Type) Known() bool { return t.DType != Undefined || t.Other != nil }

// IsStatic reports that the element type and every extent are known numbers.
func (t Type) IsStatic() bool {
	if t.DType == Undefined || !t.Ranked {
		return false
	}
	_, ok := t.Shape.Ints()
	return ok
}

// Extent is the size of an axis, which a negative number counts from the end; false where it is
// no known number, or the type has no such axis.
func (t Type) Extent(axis int64) (int64, bool) {
	k, ok := Axis(axis, len(t.Shape))
	if !ok {
		return 0, false
	}
	return t.Shape[k].Int()
}

// Empty reports a tensor of no elements, whatever is fed: one extent is known to be 0.
func (t Type) Empty() bool {
	return t.Ranked && slices.ContainsFunc(t.Shape, func(d Dim) bool { return d.Is(0) })
}

// Bytes is the size of a buffer of that type, in bytes; false where a
// dimension is free, the element has no fixed size, or the product overflows.
func (t Type) Bytes() (int64, bool) {
	dims, ok := t.Shape.Ints()
	if !ok || !t.Ranked || t.DType.Bits() == 0 {
		return 0, false
	}
	n, ok := Elements(dims)
	if !ok {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(n), uint64(t.DType.Bits()))
	if hi != 0 || lo > 1<<62 {
		return 0, false
	}
	return int64(lo+7) / 8, true
}

// KnownBytes is Bytes, 0 where these are not known.
func (t Type) KnownBytes() int64 {
	n, _ := t.Bytes()
	return n
}

// Extents returns the numbers of a shape with those of dims in, and the first axis
// that has none, -1 where all have.
func (s Shape) Extents(dims map[string]int64) (out []int64, free int) {
	out = make([]int64, len(s))
	for i, d := range s {
		n, ok := d.Subst(dims).Int()
		if !ok {
			return nil, i
		}
		out[i] = n
	}
	return out, -1
}

// Elements multiplies extents; false on a negative one or an overflow.
func Elements(dims []int64) (int64, bool) {
	n := uint64(1)
	zero := false
	for _, d := range dims {
		if d < 0 {
			return 0, false
		}
		if d == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > 1<<62 {
			return 0, false
		}
		n = lo
	}
	if zero {
		return 0, true
	}
	return int64(n), true
}

func (t Type) String() string {
	if t.Other != nil {
		return "other"
	}
	if !t.Ranked {
		return t.DType.String()
	}
	return t.DType.String() + t.Shape.String()
}

// Same reports equal types, unknown extents counted as equal to themselves.
func (t Type) Same(u Type) bool {
	return t.DType == u.DType && t.Ranked == u.Ranked && slices.Equal(t.Shape, u.Shape) && t.Other == u.Other
}

// TypeFromProto reads a declared type; what it does not say is not known.
func TypeFromProto(p *pb.TypeProto) Type {
	if p == nil || p.Value == nil {
		return Type{}
	}
	tt, ok := p.Value.(*pb.TypeProto_TensorType)
	if !ok || tt.TensorType == nil {
		return Type{Other: p}
	}
	t := Type{DType: DType(tt.TensorType.GetElemType())}
	if sp := tt.TensorType.Shape; sp != nil {
		t.Ranked = true
		t.Shape = make(Shape, len(sp.Dim))
		for i, d := range sp.Dim {
			switch v := d.GetValue().(type) {
			case *pb.TensorShapeProto_Dimension_DimValue:
				t.Shape[i] = Static(v.DimValue)
				if v.DimValue < 0 {
					t.Shape[i] = Dim{}
				}
			case *pb.TensorShapeProto_Dimension_DimParam:
				t.Shape[i] = ParseDim(v.DimParam)
				if n, ok := t.Shape[i].Int(); ok && n < 0 {
					t.Shape[i] = Dim{}
				}
			}
		}
	}
	return t
}

// Proto writes the type as a protobuf message of its own.
func (t Type) Proto() *pb.TypeProto {
	if t.Other != nil {
		return t.Other
	}
	tensor := &pb.TypeProto_Tensor{ElemType: new(int32(t.DType))}
	if t.Ranked {
		tensor.Shape = &pb.TensorShapeProto{}
		for _, d := range t.Shape {
			dim := &pb.TensorShapeProto_Dimension{}
			if n, ok := d.Int(); ok {
				dim.Value = &pb.TensorShapeProto_Dimension_DimValue{DimValue: n}
			} else if d.known {
				dim.Value = &pb.TensorShapeProto_Dimension_DimParam{DimParam: d.String()}
			}
			tensor.Shape.Dim = append(tensor.Shape.Dim, dim)
		}
	}
	return &pb.TypeProto{Value: &pb.TypeProto_TensorType{TensorType: tensor}}
}
