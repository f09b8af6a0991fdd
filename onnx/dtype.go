package onnx

import (
	"encoding/binary"
	"fmt"
	"math"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// A DType is an element type, numbered as in ONNX's TensorProto.DataType.
type DType int32

// The element types that remat computes with; all others are preserved only.
const (
	Undefined DType = 0
	Float32   DType = 1
	Uint8     DType = 2
	Int8      DType = 3
	Uint16    DType = 4
	Int16     DType = 5
	Int32     DType = 6
	Int64     DType = 7
	String    DType = 8
	Bool      DType = 9
	Float16   DType = 10
	Float64   DType = 11
	Uint32    DType = 12
	Uint64    DType = 13
	BFloat16  DType = 16
	Uint4     DType = 21
	Int4      DType = 22
)

// dtypes gives each element type its name in text graphs and its size in bits
// (0: no fixed size).
var dtypes = map[DType]struct {
	name string
	bits int
}{
	Undefined: {"undefined", 0},
	Float32:   {"float32", 32}, Uint8: {"uint8", 8}, Int8: {"int8", 8},
	Uint16: {"uint16", 16}, Int16: {"int16", 16}, Int32: {"int32", 32},
	Int64: {"int64", 64}, String: {"string", 0}, Bool: {"bool", 8},
	Float16: {"float16", 16}, Float64: {"float64", 64},
	Uint32: {"uint32", 32}, Uint64: {"uint64", 64},
	14: {"complex64", 64}, 15: {"complex128", 128}, BFloat16: {"bfloat16", 16},
	17: {"float8e4m3fn", 8}, 18: {"float8e4m3fnuz", 8},
	19: {"float8e5m2", 8}, 20: {"float8e5m2fnuz", 8},
	Uint4: {"uint4", 4}, Int4: {"int4", 4}, 23: {"float4e2m1", 4},
	24: {"float8e8m0", 8}, 25: {"uint2", 2}, 26: {"int2", 2},
}

// String is the type's name in text graphs: float32, int64, bool …
func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype%d", int32(d))
}

// ParseDType is the inverse of String.
func ParseDType(name string) (DType, error) {
	for d, t := range dtypes {
		if t.name == name {
			return d, nil
		}
	}
	return Undefined, fmt.Errorf("unknown element type %q", name)
}

// Bits is the size of one element in bits, 0 where it has no fixed size.
func (d DType) Bits() int { return dtypes[d].bits }

// Size is the size of one element in bytes, 0 for strings and for types that
// pack several elements into a byte.
func (d DType) Size() int64 { return int64(d.Bits() / 8) }

// Packed reports a type of which several elements share a byte.
func (d DType) Packed() bool { return d.Bits() > 0 && d.Bits() < 8 }

// IsFloat reports the four floating-point types that gradients flow through.
func (d DType) IsFloat() bool {
	return d == Float32 || d == Float64 || d.IsHalf()
}

// IsHalf reports the float types of two bytes.
func (d DType) IsHalf() bool { return d == Float16 || d == BFloat16 }

// IsInt reports the integer types of at least 8 bits.
func (d DType) IsInt() bool {
	switch d {
	case Uint8, Int8, Uint16, Int16, Int32, Int64, Uint32, Uint64:
		return true
	}
	return false
}

// IntRange is the least and the greatest number of an integer type or bool, as far as int64 has
// them.
func (d DType) IntRange() (least, most int64) {
	switch d {
	case Bool:
		return 0, 1
	case Int64:
		return math.MinInt64, math.MaxInt64
	case Uint64:
		return 0, math.MaxInt64
	case Uint4, Uint8, Uint16, Uint32:
		return 0, 1<<d.Bits() - 1
	}
	return -1 << (d.Bits() - 1), 1<<(d.Bits()-1) - 1
}

// Int reads the element at the beginning of b, of an integer type of whole bytes or bool; one of
// uint64 beyond int64 comes out negative.
func (d DType) Int(b []byte) int64 {
	le := binary.LittleEndian
	switch d {
	case Int64, Uint64:
		return int64(le.Uint64(b))
	case Int32:
		return int64(int32(le.Uint32(b)))
	case Uint32:
		return int64(le.Uint32(b))
	case Int16:
		return int64(int16(le.Uint16(b)))
	case Uint16:
		return int64(le.Uint16(b))
	case Int8:
		return int64(int8(b[0]))
	}
	return int64(b[0])
}

// PutInt writes an element of such a type at the beginning of b, which must hold it.
func (d DType) PutInt(b []byte, x int64) {
	for i := range d.Size() {
		b[i] = byte(x)
		x >>= 8
	}
}

// valid reports whether the number is one that ONNX has assigned.
func (d DType) valid() bool {
	_, ok := pb.TensorProto_DataType_name[int32(d)]
	return ok
}
