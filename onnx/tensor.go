package onnx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// A Tensor is constant data: an initializer or the value of an attribute. Its
// bytes stay where they are, in the model's message or in an external file
// that is mapped when they are first asked for.
type Tensor struct {
	Proto *pb.TensorProto
	files *Files
}

// WrapTensor makes a Tensor of a message without external data.
func WrapTensor(p *pb.TensorProto) *Tensor { return &Tensor{Proto: p} }

// NewTensor makes a tensor over little-endian data, which is kept, not copied.
func NewTensor(d DType, dims []int64, data []byte) *Tensor {
	return &Tensor{Proto: &pb.TensorProto{Dims: dims, DataType: new(int32(d)), RawData: data}}
}

// Int64Tensor makes a tensor of 64-bit integers; no dims make a scalar.
func Int64Tensor(values []int64, dims ...int64) *Tensor {
	data := make([]byte, 8*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint64(data[8*i:], uint64(v))
	}
	return NewTensor(Int64, dims, data)
}

// Float32Tensor makes a tensor of 32-bit floats; no dims make a scalar.
func Float32Tensor(values []float32, dims ...int64) *Tensor {
	data := make([]byte, 4*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
	}
	return NewTensor(Float32, dims, data)
}

// FloatTensor makes a tensor of element type d (one of the four float types)
// from float64 values, rounding to nearest even.
func FloatTensor(d DType, values []float64, dims ...int64) *Tensor {
	data := make([]byte, 0, int(d.Size())*len(values))
	for _, v := range values {
		switch d {
		case Float64:
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(v))
		case Float16, BFloat16:
			data = binary.LittleEndian.AppendUint16(data, float16Or(d, float32(v)))
		default:
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}
	}
	return NewTensor(d, dims, data)
}

// DType is the element type.
func (t *Tensor) DType() DType { return DType(t.Proto.GetDataType()) }

// Dims are the extents.
func (t *Tensor) Dims() []int64 { return t.Proto.GetDims() }

// Type is the tensor's type, always static.
func (t *Tensor) Type() Type { return TensorOf(t.DType(), StaticShape(t.Dims()...)) }

// As is the tensor's bytes taken as another type and shape of as many bytes; the data
// stays where it is. Bytes of the result say where they do not fit.
func (t *Tensor) As(d DType, dims ...int64) *Tensor {
	if t.Proto.RawData == nil && !t.IsExternal() {
		data, err := t.Bytes()
		if err != nil {
			data = nil // which does not fit
		}
		return NewTensor(d, dims, data)
	}
	p, kind := &pb.TensorProto{}, int32(d)
	copyFields(p, t.Proto)
	p.DataType, p.Dims = &kind, dims
	return &Tensor{Proto: p, files: t.files}
}

// Elements is the number of elements.
func (t *Tensor) Elements() (int64, error) {
	n, ok := Elements(t.Dims())
	if !ok {
		return 0, fmt.Errorf("tensor %q: its extents %v are negative or too large", t.Proto.GetName(), t.Dims())
	}
	return n, nil
}

// ByteSize is the size of the data in bytes, by type and extents.
func (t *Tensor) ByteSize() (int64, error) {
	n, ok := t.Type().Bytes()
	if !ok {
		return 0, fmt.Errorf("tensor %q: no byte size for %s%v", t.Proto.GetName(), t.DType(), t.Dims())
	}
	return n, nil
}

// IsExternal reports data that lives in a file beside the model.
func (t *Tensor) IsExternal() bool {
	return t.Proto.GetDataLocation() == pb.TensorProto_EXTERNAL
}

// External describes where external data lies.
type External struct {
	// Location is the path as written in the model, relative to its folder.
	Location string
	// Offset and Length are in bytes; Length is -1 where the model leaves it out.
	Offset, Length int64
}

// External parses the location of external data.
func (t *Tensor) External() (External, error) {
	e := External{Length: -1}
	for _, kv := range t.Proto.GetExternalData() {
		var err error
		switch kv.GetKey() {
		case "location":
			e.Location = kv.GetValue()
		case "offset":
			e.Offset, err = strconv.ParseInt(kv.GetValue(), 10, 64)
		case "length":
			e.Length, err = strconv.ParseInt(kv.GetValue(), 10, 64)
		}
		if err != nil || e.Offset < 0 || e.Length < -1 {
			return e, fmt.Errorf("tensor %q: external data %s %q is not a size", t.Proto.GetName(), kv.GetKey(), kv.GetValue())
		}
	}
	if e.Location == "" {
		return e, fmt.Errorf("tensor %q: external data without a location", t.Proto.GetName())
	}
	return e, nil
}

// Bytes returns the data, little-endian and dense. It must not be changed:
// it may be the mapped file itself.
func (t *Tensor) Bytes() ([]byte, error) {
	size, err := t.ByteSize()
	if err != nil {
		return nil, err
	}
	data := t.Proto.GetRawData()
	switch {
	case t.IsExternal():
		data, err = t.files.tensor(t, size)
	case t.Proto.RawData == nil:
		data, err = t.typedData()
	}
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != size {
		return nil, fmt.Errorf("tensor %q: holds %d bytes where %s%v takes %d", t.Proto.GetName(), len(data), t.DType(), t.Dims(), size)
	}
	return data, nil
}

// typedData encodes the data that older writers keep in typed fields.
func (t *Tensor) typedData() ([]byte, error) {
	p, le := t.Proto, binary.LittleEndian
	var out []byte
	switch t.DType() {
	case Float32, 14:
		for _, v := range p.FloatData {
			out = le.AppendUint32(out, math.Float32bits(v))
		}
	case Float64, 15:
		for _, v := range p.DoubleData {
			out = le.AppendUint64(out, math.Float64bits(v))
		}
	case Int64:
		for _, v := range p.Int64Data {
			out = le.AppendUint64(out, uint64(v))
		}
	case Uint64:
		for _, v := range p.Uint64Data {
			out = le.AppendUint64(out, v)
		}
	case Uint32:
		for _, v := range p.Uint64Data {
			out = le.AppendUint32(out, uint32(v))
		}
	case Int32:
		for _, v := range p.Int32Data {
			out = le.AppendUint32(out, uint32(v))
		}
	case Int16, Uint16, Float16, BFloat16:
		for _, v := range p.Int32Data {
			out = le.AppendUint16(out, uint16(v))
		}
	case String:
		return nil, fmt.Errorf("tensor %q: strings have no bytes", p.GetName())
	default:
		for _, v := range p.Int32Data {
			out = append(out, byte(v))
		}
	}
	return out, nil
}

// Int64s returns the elements of an integer or bool tensor.
func (t *Tensor) Int64s() ([]int64, error) {
	if !t.DType().IsInt() && t.DType() != Bool {
		return nil, fmt.Errorf("tensor %q: got %s, want integers", t.Proto.GetName(), t.DType())
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	size := int(t.DType().Size())
	out := make([]int64, len(data)/size)
	for i := range out {
		out[i] = t.DType().Int(data[i*size:])
	}
	return out, nil
}

// Float64s returns the elements of a numeric tensor as float64.
func (t *Tensor) Float64s() ([]float64, error) {
	if !t.DType().IsFloat() {
		ints, err := t.Int64s()
		out := make([]float64, len(ints))
		for i, v := range ints {
			out[i] = float64(v)
		}
		return out, err
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	size := int(t.DType().Size())
	out := make([]float64, len(data)/size)
	for i := range out {
		out[i] = readFloat(t.DType(), data[i*size:])
	}
	return out, nil
}

func readFloat(d DType, b []byte) float64 {
	le := binary.LittleEndian
	switch d {
	case Float64:
		return math.Float64frombits(le.Uint64(b))
	case Float16:
		return float64(Float16Value(le.Uint16(b)))
	case BFloat16:
		return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16))
	}
	return float64(math.Float32frombits(le.Uint32(b)))
}

// IsZero reports a tensor of at most 65,536 elements, all of them 0; of more it does not know.
func (t *Tensor) IsZero() bool {
	if n, err := t.Elements(); err != nil || n > 1<<16 {
		return false
	}
	data, err := t.Float64s()
	return err == nil && !slices.ContainsFunc(data, func(x float64) bool { return x != 0 })
}

// Scalar returns the value of a tensor of one element.
func (t *Tensor) Scalar() (float64, bool) {
	if n, err := t.Elements(); err != nil || n != 1 || t.DType().Size() == 0 {
		return 0, false
	}
	v, err := t.Float64s()
	if err != nil || len(v) != 1 {
		return 0, false
	}
	return v[0], true
}

// Equal reports the same type, shape and elements; false where either's cannot be read.
func (t *Tensor) Equal(u *Tensor) bool {
	a, b, ok := bothBytes(t, u)
	return ok && slices.Equal(t.Dims(), u.Dims()) && bytes.Equal(a, b)
}

// IsTransposeOf reports matrices of one type of which one holds the other's rows as columns; false
// where either's elements cannot be read, or share bytes, or there are none.
func (t *Tensor) IsTransposeOf(u *Tensor) bool {
	d, e := t.Dims(), u.Dims()
	if len(d) != 2 || len(e) != 2 || d[0] != e[1] || d[1] != e[0] {
		return false
	}
	a, b, ok := bothBytes(t, u)
	rows, columns := int(d[0]), int(d[1])
	if !ok || len(a) != len(b) || len(a) == 0 || len(a)%(rows*columns) != 0 { // of less than a byte each
		return false
	}
	size := len(a) / (rows * columns)
	for i := range rows {
		for j := range columns {
			if !bytes.Equal(a[(i*columns+j)*size:][:size], b[(j*rows+i)*size:][:size]) {
				return false
			}
		}
	}
	return true
}

// bothBytes are the elements of tensors of one type.
func bothBytes(t, u *Tensor) (a, b []byte, ok bool) {
	if t.DType() != u.DType() {
		return nil, nil, false
	}
	a, err := t.Bytes()
	if err != nil {
		return nil, nil, false
	}
	b, err = u.Bytes()
	return a, b, err == nil
}

// Float16Value widens an IEEE 754 binary16 number.
func Float16Value(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0:
		v := float32(frac) / (1 << 24)
		if sign != 0 {
			v = -v
		}
		return v
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// float16Bits rounds to nearest even; what is too large becomes infinite.
func float16Bits(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000:
		return sign | 0x7c00
	case abs < 0x38800000: // below the smallest normal number: a multiple of 2^-24
		scaled := math.RoundToEven(math.Abs(float64(f)) * (1 << 24))
		return sign | uint16(scaled)
	}
	abs += 0xfff + abs>>13&1
	return sign | uint16(abs>>13-112<<10)
}

func bfloat16Bits(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
