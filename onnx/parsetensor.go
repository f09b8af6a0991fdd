package onnx

// Parsing constant data, in each of its spellings.

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// tensor reads type[dims] = data rest.
func (p *parser) tensor(t *pb.TensorProto) {
	p.spend(tensorCost)
	if p.tok.kind == wordToken && !p.tok.first {
		t.DataType = p.elemType(p.advance().text)
		p.expect("[")
		p.items("]", func() {
			t.Dims = append(t.Dims, p.int())
			p.spend(8)
		})
		if p.at("=") && !p.tok.first { // else a node without outputs
			p.advance()
			p.data(t)
		}
	}
	p.rest(t)
}

func (p *parser) data(t *pb.TensorProto) {
	if p.at("[") {
		p.advance()
		t.RawData = []byte{}
		p.items("]", func() { p.element(t) })
		return
	}
	if p.tok.kind != wordToken {
		p.fail("got %s, want data", p.tok)
		return
	}
	switch p.tok.text {
	case "zeros":
		p.advance()
		p.zeroData(t)
	case "bytes":
		p.advance()
		p.byteData(t)
	case "external":
		p.advance()
		p.externalData(t)
	case "string_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data":
		p.typedData(t)
	default:
		t.RawData = []byte{}
		p.element(t)
	}
}

// zeroData aliases one shared block of zeros, so that a short text cannot ask
// for much memory.
func (p *parser) zeroData(t *pb.TensorProto) {
	size, err := (&Tensor{Proto: t}).ByteSize()
	if err != nil || size > maxZeros {
		p.fail("zeros of that type and shape take no size, or more than %d bytes", maxZeros)
		return
	}
	if int64(len(p.zeros)) < size {
		p.zeros = make([]byte, size)
	}
	t.RawData = p.zeros[:size:size]
}

func (p *parser) byteData(t *pb.TensorProto) {
	p.expect("(")
	t.RawData = []byte{}
	if p.tok.kind == wordToken {
		data, err := base64.RawStdEncoding.DecodeString(p.tok.text)
		if err != nil {
			p.fail("bytes without base64 in it")
			return
		}
		t.RawData = data
		p.advance()
	}
	p.expect(")")
}

func (p *parser) externalData(t *pb.TensorProto) {
	t.DataLocation = pb.TensorProto_EXTERNAL.Enum()
	p.expect("(")
	p.items(")", func() {
		i := len(t.ExternalData)
		if i == len(externalKeys) {
			p.fail("external data has a location, an offset and a length")
			return
		}
		key, value := externalKeys[i], ""
		if i == 0 {
			value = p.str()
		} else {
			value = strconv.FormatInt(p.int(), 10)
		}
		t.ExternalData = append(t.ExternalData, &pb.StringStringEntryProto{Key: &key, Value: &value})
	})
}

// typedData reads one of the fields that are named after what they hold.
func (p *parser) typedData(t *pb.TensorProto) {
	field := p.advance().text
	p.expect("[")
	p.items("]", func() {
		p.spend(16)
		switch field {
		case "string_data":
			p.spend(32)
			t.StringData = append(t.StringData, []byte(p.str()))
		case "float_data":
			t.FloatData = append(t.FloatData, float32(p.float(32)))
		case "double_data":
			t.DoubleData = append(t.DoubleData, p.float(64))
		case "int32_data":
			n := p.int()
			if n != int64(int32(n)) {
				p.fail("%d does not fit 32 bits", n)
			}
			t.Int32Data = append(t.Int32Data, int32(n))
		case "int64_data":
			t.Int64Data = append(t.Int64Data, p.int())
		case "uint64_data":
			t.Uint64Data = append(t.Uint64Data, p.uint())
		}
	})
}

func (p *parser) uint() uint64 {
	n, err := strconv.ParseUint(p.tok.text, 10, 64)
	if p.tok.kind != wordToken || err != nil {
		p.fail("got %s, want a whole number", p.tok)
		return 0
	}
	p.advance()
	return n
}

// element appends one literal to raw_data in the tensor's element type.
func (p *parser) element(t *pb.TensorProto) {
	p.spend(16)
	le, d := binary.LittleEndian, DType(t.GetDataType())
	switch {
	case d == Float32:
		t.RawData = le.AppendUint32(t.RawData, math.Float32bits(float32(p.float(32))))
	case d == Float64:
		t.RawData = le.AppendUint64(t.RawData, math.Float64bits(p.float(64)))
	case d.IsFloat():
		t.RawData = le.AppendUint16(t.RawData, float16Or(d, float32(p.float(32))))
	case d == Bool && (p.atWord("true") || p.atWord("false")):
		t.RawData = append(t.RawData, byte(len("false")-len(p.advance().text)))
	case d == Uint64:
		t.RawData = le.AppendUint64(t.RawData, p.uint())
	case d.IsInt():
		t.RawData = p.appendInt(t.RawData, d)
	default:
		p.fail("%s has no plain elements", d)
	}
}

func (p *parser) appendInt(raw []byte, d DType) []byte {
	n := p.int()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	if d.Int(b[:]) != n {
		p.fail("%d does not fit %s", n, d)
	}
	return append(raw, b[:d.Size()]...)
}
