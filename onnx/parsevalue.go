package onnx

// Parsing attributes and types: the inverse of textvalue.go.

import (
	"math"
	"strconv"
	"strings"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// attribute reads name=value, or a whole one as base64.
func (p *parser) attribute() *pb.AttributeProto {
	p.spend(attributeCost)
	a := &pb.AttributeProto{}
	if p.tok.kind == blobToken {
		p.merge(a)
		return a
	}
	a.Name = optionalName(p.name())
	p.expect("=")
	switch {
	case p.tok.kind == stringToken:
		a.S, a.Type = []byte(p.str()), pb.AttributeProto_STRING.Enum()
	case p.at("["):
		p.list(a)
	case p.tok.kind == wordToken:
		p.wordAttribute(a)
	default:
		p.fail("got %s, want a value", p.tok)
	}
	p.rest(a)
	return a
}

// emptyLists names the lists that have no element to tell their type.
var emptyLists = map[string]pb.AttributeProto_AttributeType{
	"floats": pb.AttributeProto_FLOATS, "ints": pb.AttributeProto_INTS, "strings": pb.AttributeProto_STRINGS,
}

// wordAttribute reads a value that begins with a bare word.
func (p *parser) wordAttribute(a *pb.AttributeProto) {
	switch word := p.tok.text; word {
	case "graph":
		a.G, a.Type = p.graph(), pb.AttributeProto_GRAPH.Enum()
	case "tensor":
		p.advance()
		a.T, a.Type = &pb.TensorProto{}, pb.AttributeProto_TENSOR.Enum()
		if p.tok.kind == stringToken {
			a.T.Name = optionalName(p.str())
		}
		p.expect("(")
		p.tensor(a.T)
		p.expect(")")
	case "type":
		p.advance()
		a.Tp, a.Type = p.typ(), pb.AttributeProto_TYPE_PROTO.Enum()
	case "floats", "ints", "strings":
		p.advance()
		p.expect("[")
		p.expect("]")
		a.Type = emptyLists[word].Enum()
	default:
		if n, err := strconv.ParseInt(word, 10, 64); err == nil {
			p.advance()
			a.I, a.Type = &n, pb.AttributeProto_INT.Enum()
			return
		}
		a.F, a.Type = new(float32(p.float(32))), pb.AttributeProto_FLOAT.Enum()
	}
}

// float reads a number, inf or nan. The word nan is the quiet one.
func (p *parser) float(bits int) float64 {
	word := p.tok.text
	if p.tok.kind != wordToken {
		p.fail("got %s, want a number", p.tok)
		return 0
	}
	switch word {
	case "nan":
		p.advance()
		if bits == 64 {
			return math.Float64frombits(quietNaN64)
		}
		return float64(math.Float32frombits(quietNaN32))
	case "inf", "-inf":
		p.advance()
		return math.Inf(1 - 2*strings.Count(word, "-"))
	}
	f, err := strconv.ParseFloat(word, bits)
	if err != nil || !strings.ContainsAny(word[:1], "+-.0123456789") {
		p.fail("got %s, want a number", p.tok)
		return 0
	}
	p.advance()
	return f
}

// list reads [a, b, ...]: strings, integers, or floats when one has a point.
func (p *parser) list(a *pb.AttributeProto) {
	var words []string
	p.expect("[")
	p.items("]", func() {
		p.spend(40)
		switch {
		case p.tok.kind == stringToken && len(words) == 0:
			a.Strings = append(a.Strings, []byte(p.str()))
		case p.tok.kind == wordToken && len(a.Strings) == 0:
			words = append(words, p.tok.text)
			n, err := strconv.ParseInt(p.tok.text, 10, 64)
			if err == nil && a.Floats == nil {
				a.Ints = append(a.Ints, n)
				p.advance()
				return
			}
			for _, n := range a.Ints {
				a.Floats = append(a.Floats, float32(n))
			}
			a.Ints = nil
			a.Floats = append(a.Floats, float32(p.float(32)))
		default:
			p.fail("%s does not fit the list", p.tok)
		}
	})
	switch {
	case a.Strings != nil:
		a.Type = pb.AttributeProto_STRINGS.Enum()
	case a.Floats != nil:
		a.Type = pb.AttributeProto_FLOATS.Enum()
	case a.Ints != nil:
		a.Type = pb.AttributeProto_INTS.Enum()
	default:
		p.fail("an empty list is written ints[], floats[] or strings[]")
	}
}

// typ reads a type as typeText writes it.
func (p *parser) typ() *pb.TypeProto {
	t := &pb.TypeProto{}
	if p.tok.kind != wordToken {
		p.fail("got %s, want a type", p.tok)
		return t
	}
	p.spend(200)
	word := p.advance().text
	if word == "type" {
		p.merge(t)
		return t
	}
	if p.accept("(") {
		if p.enter() {
			p.wrappedType(t, word)
			p.depth--
		}
		return t
	}
	tensor := &pb.TypeProto_Tensor{ElemType: p.elemType(word)}
	if p.accept("[") {
		tensor.Shape = &pb.TensorShapeProto{}
		p.items("]", func() { tensor.Shape.Dim = append(tensor.Shape.Dim, p.dim()) })
	}
	t.Value = &pb.TypeProto_TensorType{TensorType: tensor}
	return t
}

func (p *parser) wrappedType(t *pb.TypeProto, kind string) {
	switch kind {
	case "seq":
		t.Value = &pb.TypeProto_SequenceType{SequenceType: &pb.TypeProto_Sequence{ElemType: p.typ()}}
	case "opt":
		t.Value = &pb.TypeProto_OptionalType{OptionalType: &pb.TypeProto_Optional{ElemType: p.typ()}}
	case "map":
		key := p.elemType(p.name())
		p.expect(",")
		t.Value = &pb.TypeProto_MapType{MapType: &pb.TypeProto_Map{KeyType: key, ValueType: p.typ()}}
	default:
		p.fail("%s is not a type", short(kind))
	}
	p.expect(")")
}

func (p *parser) elemType(word string) *int32 {
	d, err := ParseDType(word)
	if n, ok := strings.CutPrefix(word, "dtype"); err != nil && ok {
		var v int64
		v, err = strconv.ParseInt(n, 10, 32)
		d = DType(v)
	}
	if err != nil {
		p.fail("unknown element type %q", short(word))
	}
	return new(int32(d))
}

func (p *parser) dim() *pb.TensorShapeProto_Dimension {
	p.spend(100)
	d := &pb.TensorShapeProto_Dimension{}
	if p.tok.kind == stringToken {
		d.Value = &pb.TensorShapeProto_Dimension_DimParam{DimParam: p.str()}
		return d
	}
	if p.tok.kind != wordToken {
		p.fail("got %s, want a dimension", p.tok)
		return d
	}
	word := p.advance().text
	if n, err := strconv.ParseInt(word, 10, 64); err == nil {
		d.Value = &pb.TensorShapeProto_Dimension_DimValue{DimValue: n}
	} else if word != "?" {
		d.Value = &pb.TensorShapeProto_Dimension_DimParam{DimParam: word}
	}
	return d
}
