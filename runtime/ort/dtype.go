package ort

import "fmt"

// A DType is the type of a tensor's elements. Its numbers are those of
// ONNXTensorElementDataType, which are those of ONNX's TensorProto.DataType up
// to 23.
type DType int32

// Element types.
const (
	Undefined  DType = 0
	Float32    DType = 1
	Uint8      DType = 2
	Int8       DType = 3
	Uint16     DType = 4
	Int16      DType = 5
	Int32      DType = 6
	Int64      DType = 7
	String     DType = 8
	Bool       DType = 9
	Float16    DType = 10
	Float64    DType = 11
	Uint32     DType = 12
	Uint64     DType = 13
	Complex64  DType = 14
	Complex128 DType = 15
	BFloat16   DType = 16
	Uint2      DType = 24
	Int2       DType = 25
	Float8E8M0 DType = 26
)

// One row per type that is handled, with the bits of an element. Types below a
// byte are packed, the first element lowest. 0: its values are refused.
var dtypes = map[DType]struct {
	name string
	bits int64
}{
	Undefined: {"undefined", 0},
	Float32:   {"float32", 32}, Uint8: {"uint8", 8}, Int8: {"int8", 8}, Uint16: {"uint16", 16}, Int16: {"int16", 16},
	Int32: {"int32", 32}, Int64: {"int64", 64}, String: {"string", 0}, Bool: {"bool", 8}, Float16: {"float16", 16},
	Float64: {"float64", 64}, Uint32: {"uint32", 32}, Uint64: {"uint64", 64}, Complex64: {"complex64", 64},
	Complex128: {"complex128", 128}, BFloat16: {"bfloat16", 16},
	17: {"float8e4m3fn", 8}, 18: {"float8e4m3fnuz", 8}, 19: {"float8e5m2", 8}, 20: {"float8e5m2fnuz", 8},
	21: {"uint4", 4}, 22: {"int4", 4}, 23: {"float4e2m1", 4},
	Uint2: {"uint2", 2}, Int2: {"int2", 2}, Float8E8M0: {"float8e8m0", 8},
}

// String is the type's name in lower case, as numpy would have it.
func (t DType) String() string {
	if d, ok := dtypes[t]; ok {
		return d.name
	}
	return fmt.Sprintf("type %d", int(t))
}

// Size is the bytes of one element; 0 for strings, whose values are refused, and
// for packed types.
func (t DType) Size() int64 { return dtypes[t].bits / 8 }

// ByteSize is the size in bytes of a tensor, or an error when a dimension is
// negative, the product overflows, or the type is refused.
func ByteSize(t DType, shape []int64) (int64, error) {
	bits := dtypes[t].bits
	if bits == 0 {
		return 0, fmt.Errorf("%s tensors are not supported", t)
	}
	empty := false
	n := bits
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		case d == 0:
			empty = true
		case n > (1<<62)/d:
			return 0, fmt.Errorf("shape %v of %s is too large", shape, t)
		default:
			n *= d
		}
	}
	if empty {
		return 0, nil
	}
	return (n + 7) / 8, nil
}
