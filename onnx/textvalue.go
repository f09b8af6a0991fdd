package onnx

// What stands inside the lines of a text graph: attributes, types, tensors.
// Each has one plain spelling; a message that says more, or says it another
// way, is written as base64 instead.

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// maxList is the number of elements that are written out one by one; longer
// data is base64.
const maxList = 64

// maxZeros is the number of bytes up to which zeros are written as the word,
// so that a short text cannot ask for much memory.
const maxZeros = 64 << 20

// attribute writes name=value, or the whole message as base64.
func (t *printer) attribute(a *pb.AttributeProto) {
	text, field := attrText(a)
	graph := a.GetType() == pb.AttributeProto_GRAPH && a.G != nil
	tensor := a.GetType() == pb.AttributeProto_TENSOR && a.T != nil
	if a.GetName() == "" || (text == "" && !graph && !tensor) {
		t.put(blob(a))
		return
	}
	t.put(quoteName(a.GetName()), "=")
	switch {
	case graph:
		field = 6
		t.graph(a.G)
	case tensor:
		field = 5
		var named fields
		t.put("tensor")
		if a.T.GetName() != "" {
			named.add(8)
			t.put(" ", strconv.Quote(a.T.GetName()))
		}
		t.put("(")
		t.tensor(a.T, named)
		t.put(")")
	default:
		t.put(text)
	}
	var done fields
	done.add(1, 20, field)
	t.rest(a, done)
}

// attrText is the plain spelling of an attribute without messages inside, and
// the number of the field that it spells; "" where there is none.
func attrText(a *pb.AttributeProto) (string, int) {
	switch a.GetType() {
	case pb.AttributeProto_FLOAT:
		if a.F != nil {
			return float32Text(*a.F), 2
		}
	case pb.AttributeProto_INT:
		if a.I != nil {
			return strconv.FormatInt(*a.I, 10), 3
		}
	case pb.AttributeProto_STRING:
		if a.S != nil {
			return strconv.Quote(string(a.S)), 4
		}
	case pb.AttributeProto_TYPE_PROTO:
		if a.Tp != nil {
			return "type " + typeText(a.Tp), 14
		}
	case pb.AttributeProto_FLOATS:
		return listText("floats", len(a.Floats), func(i int) string { return float32Text(a.Floats[i]) }), 7
	case pb.AttributeProto_INTS:
		return listText("ints", len(a.Ints), func(i int) string { return strconv.FormatInt(a.Ints[i], 10) }), 8
	case pb.AttributeProto_STRINGS:
		return listText("strings", len(a.Strings), func(i int) string { return strconv.Quote(string(a.Strings[i])) }), 9
	}
	return "", 0
}

// listText is [a, b], or "empty[]" where the elements cannot tell the type.
// It is "" where one element has no spelling.
func listText(empty string, n int, element func(int) string) string {
	if n == 0 {
		return empty + "[]"
	}
	var b strings.Builder
	b.WriteByte('[')
	for i := range n {
		e := element(i)
		if e == "" {
			return ""
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(e)
	}
	b.WriteByte(']')
	return b.String()
}

func float32Text(f float32) string {
	if f != f && math.Float32bits(f) != quietNaN32 {
		return ""
	}
	return floatText(float64(f), 32)
}

func float64Text(f float64) string {
	if f != f && math.Float64bits(f) != quietNaN64 {
		return ""
	}
	return floatText(f, 64)
}

// The one bit pattern that the word nan stands for, by element size.
const (
	quietNaN32 = 0x7fc00000
	quietNaN64 = 0x7ff8000000000000
)

// floatText is the shortest text that reads back the same, with a point or an
// exponent so that it is not taken for an integer.
func floatText(f float64, bits int) string {
	switch {
	case f != f:
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'g', -1, bits)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// typeText is float32[a,2], seq(T), opt(T), map(int64, T), or base64.
func typeText(p *pb.TypeProto) string {
	if s := plainType(p); s != "" {
		return s
	}
	return "type" + blob(p)
}

func plainType(p *pb.TypeProto) string {
	if p == nil || p.Denotation != nil || len(p.ProtoReflect().GetUnknown()) > 0 {
		return ""
	}
	switch v := p.Value.(type) {
	case *pb.TypeProto_TensorType:
		return plainTensorType(v.TensorType)
	case *pb.TypeProto_SequenceType:
		if len(v.SequenceType.ProtoReflect().GetUnknown()) == 0 {
			return wrapType("seq(", v.SequenceType.ElemType)
		}
	case *pb.TypeProto_OptionalType:
		if len(v.OptionalType.ProtoReflect().GetUnknown()) == 0 {
			return wrapType("opt(", v.OptionalType.ElemType)
		}
	case *pb.TypeProto_MapType:
		if v.MapType.KeyType != nil && len(v.MapType.ProtoReflect().GetUnknown()) == 0 {
			return wrapType("map("+DType(*v.MapType.KeyType).String()+", ", v.MapType.ValueType)
		}
	}
	return ""
}

func wrapType(open string, elem *pb.TypeProto) string {
	inner := plainType(elem)
	if inner == "" {
		return ""
	}
	return open + inner + ")"
}

func plainTensorType(p *pb.TypeProto_Tensor) string {
	if p.ElemType == nil || len(p.ProtoReflect().GetUnknown()) > 0 {
		return ""
	}
	elem := DType(*p.ElemType).String()
	if p.Shape == nil {
		return elem
	}
	if len(p.Shape.ProtoReflect().GetUnknown()) > 0 {
		return ""
	}
	dims := make([]string, len(p.Shape.Dim))
	for i, d := range p.Shape.Dim {
		if d.Denotation != nil || len(d.ProtoReflect().GetUnknown()) > 0 {
			return ""
		}
		switch v := d.Value.(type) {
		case nil:
			dims[i] = "?"
		case *pb.TensorShapeProto_Dimension_DimValue:
			dims[i] = strconv.FormatInt(v.DimValue, 10)
		case *pb.TensorShapeProto_Dimension_DimParam:
			dims[i] = dimParamText(v.DimParam)
		}
	}
	return elem + "[" + strings.Join(dims, ",") + "]"
}

// dimParamText quotes a symbol that would read as a number.
func dimParamText(s string) string {
	if _, err := strconv.ParseInt(s, 10, 64); err == nil || !isWord(s) {
		return strconv.Quote(s)
	}
	return s
}

// tensor writes "type[dims] = data rest" of a tensor whose fields in done are
// said already.
func (t *printer) tensor(p *pb.TensorProto, done fields) {
	if p.DataType == nil {
		t.rest(p, done)
		return
	}
	done.add(1, 2)
	dims := make([]string, len(p.Dims))
	for i, d := range p.Dims {
		dims[i] = strconv.FormatInt(d, 10)
	}
	t.put(DType(*p.DataType).String(), "[", strings.Join(dims, ","), "]")
	if data, field := dataText(p); data != "" {
		t.put(" = ", data)
		done.add(field)
		if field == 13 {
			done.add(14)
		}
	}
	t.rest(p, done)
}

// dataText spells the one field that holds a tensor's data, with its number;
// "" where there is none or it has no plain spelling.
func dataText(p *pb.TensorProto) (string, int) {
	switch {
	case p.RawData != nil:
		return rawText(p), 9
	case p.DataLocation != nil:
		return externalText(p), 13
	case len(p.StringData) > 0:
		return "string_data " + listText("", len(p.StringData), func(i int) string { return strconv.Quote(string(p.StringData[i])) }), 6
	}
	for _, f := range []struct {
		name    string
		number  int
		n       int
		element func(int) string
	}{
		{"float_data ", 4, len(p.FloatData), func(i int) string { return float32Text(p.FloatData[i]) }},
		{"int32_data ", 5, len(p.Int32Data), func(i int) string { return strconv.FormatInt(int64(p.Int32Data[i]), 10) }},
		{"int64_data ", 7, len(p.Int64Data), func(i int) string { return strconv.FormatInt(p.Int64Data[i], 10) }},
		{"double_data ", 10, len(p.DoubleData), func(i int) string { return float64Text(p.DoubleData[i]) }},
		{"uint64_data ", 11, len(p.Uint64Data), func(i int) string { return strconv.FormatUint(p.Uint64Data[i], 10) }},
	} {
		if f.n > 0 && f.n <= maxList {
			if list := listText("", f.n, f.element); list != "" {
				return f.name + list, f.number
			}
		}
	}
	return "", 0
}

// externalKeys are the entries of external data in the order of ONNX's own writers.
var externalKeys = []string{"location", "offset", "length"}

// externalText spells the location with the entries in that order.
func externalText(p *pb.TensorProto) string {
	if p.GetDataLocation() != pb.TensorProto_EXTERNAL || len(p.ExternalData) == 0 || len(p.ExternalData) > len(externalKeys) || !plainEntries(p.ExternalData) {
		return ""
	}
	args := make([]string, len(p.ExternalData))
	for i, kv := range p.ExternalData {
		args[i] = *kv.Value
		if *kv.Key != externalKeys[i] {
			return ""
		}
		if i == 0 {
			args[i] = strconv.Quote(*kv.Value)
		} else if n, err := strconv.ParseInt(*kv.Value, 10, 64); err != nil || strconv.FormatInt(n, 10) != *kv.Value {
			return ""
		}
	}
	return "external(" + strings.Join(args, ", ") + ")"
}

// rawText spells raw_data: a number, a list, zeros, or base64.
func rawText(p *pb.TensorProto) string {
	t := Tensor{Proto: p}
	data, size := p.RawData, int(t.DType().Size())
	want, err := t.ByteSize()
	if err == nil && size > 0 && want == int64(len(data)) {
		n := len(data) / size
		if n > 8 && len(data) <= maxZeros && allZero(data) {
			return "zeros"
		}
		if n <= maxList {
			list := listText("", n, func(i int) string { return elementText(t.DType(), data[i*size:(i+1)*size]) })
			if n == 1 && len(p.Dims) == 0 && list != "" {
				return strings.Trim(list, "[]")
			}
			if list != "" {
				return list
			}
		}
	}
	return "bytes(" + base64.RawStdEncoding.EncodeToString(data) + ")"
}

func allZero(data []byte) bool {
	return !slices.ContainsFunc(data, func(b byte) bool { return b != 0 })
}

// elementText spells one element; "" where parsing would not give the same
// bits, or the type has no literals.
func elementText(d DType, b []byte) string {
	le := binary.LittleEndian
	switch {
	case d == Float32:
		return float32Text(math.Float32frombits(le.Uint32(b)))
	case d == Float64:
		return float64Text(math.Float64frombits(le.Uint64(b)))
	case d.IsFloat():
		v := float32(readFloat(d, b))
		if v != v || float16Or(d, v) != le.Uint16(b) {
			return ""
		}
		return floatText(float64(v), 32)
	case d == Uint64:
		return strconv.FormatUint(le.Uint64(b), 10)
	case d.IsInt():
		return strconv.FormatInt(d.Int(b), 10)
	case d == Bool && b[0] <= 1:
		return strconv.FormatBool(b[0] == 1)
	}
	return ""
}

// float16Or rounds to one of the two 16-bit float types.
func float16Or(d DType, v float32) uint16 {
	if d == BFloat16 {
		return bfloat16Bits(v)
	}
	return float16Bits(v)
}
