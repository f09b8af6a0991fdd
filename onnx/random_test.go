package onnx

import (
	"bufio"
	"math"
	"math/rand"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// filler fills messages at random: any field may be there or not, be empty,
// hold bytes that are not text, and any message may hold unknown fields.
type filler struct{ *rand.Rand }

var oddStrings = []string{"", "_", "x", "in", "graph", "a b", "é", "a\"\\\n", "\xff\x00", "1", "-1", "?", "batch*seq", "nan", "ai.onnx", "#", "~AA", "type", "location"}

func (f filler) fill(m protoreflect.Message, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if f.Intn(3) == 0 || depth == 0 && fd.Kind() == protoreflect.MessageKind {
			continue
		}
		if !fd.IsList() {
			m.Set(fd, f.value(m.NewField(fd), fd, depth))
			continue
		}
		list := m.Mutable(fd).List()
		for range f.Intn(3) {
			list.Append(f.value(list.NewElement(), fd, depth))
		}
	}
	if f.Intn(8) == 0 {
		raw := protowire.AppendTag(nil, 1000, protowire.BytesType)
		m.SetUnknown(protowire.AppendString(raw, "kept"))
	}
}

// value makes one value for a field; zero is an empty one of its kind.
func (f filler) value(zero protoreflect.Value, fd protoreflect.FieldDescriptor, depth int) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		f.fill(zero.Message(), depth-1)
		return zero
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.Intn(30)))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(oddStrings[f.Intn(len(oddStrings))])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, 4*f.Intn(5), 64))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(f.Intn(30) - 2))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64([]int64{0, 1, 4, -1, math.MinInt64, math.MaxInt64}[f.Intn(6)])
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(f.Uint64())
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(math.Float32frombits([]uint32{0, 1 << 31, 0x7fc00000, 0x7fc00001, 0x7f800000, 0xff800000, 1, f.Uint32()}[f.Intn(8)]))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(-1), 0.1, 1e300}[f.Intn(6)])
	}
	panic("onnx: a field of kind " + fd.Kind().String())
}

// TestTextOfRandomMessages prints and parses messages that hold anything that
// the format can: nothing may be lost.
func TestTextOfRandomMessages(t *testing.T) {
	f := filler{rand.New(rand.NewSource(1))}
	for range 1500 {
		want := &pb.ModelProto{}
		f.fill(want.ProtoReflect(), 7)
		if want.Graph == nil {
			want.Graph = &pb.GraphProto{}
		}
		var text strings.Builder
		w := &printer{w: bufio.NewWriter(&text)}
		w.model(want)
		if err := w.w.Flush(); err != nil {
			t.Fatal(err)
		}
		p := &parser{lex: lexer{src: text.String(), line: 1}, budget: 1 << 40}
		p.advance()
		got := p.model()
		if p.lex.err != nil {
			t.Fatalf("%v in\n%s", p.lex.err, excerpt(text.String()))
		}
		if !sameMessage(want, got) {
			t.Fatalf("changed:\n%s", excerpt(text.String()))
		}
	}
}

// TestUnknownFields puts an unknown field into every message of a sample.
func TestUnknownFields(t *testing.T) {
	m, err := Parse(plainText)
	if err != nil {
		t.Fatal(err)
	}
	p := proto.CloneOf(m.ToProto())
	count := 0
	var mark func(m protoreflect.Message)
	mark = func(m protoreflect.Message) {
		count++
		m.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 500, protowire.VarintType), uint64(count)))
		m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case fd.Kind() != protoreflect.MessageKind:
			case fd.IsList():
				for i := range v.List().Len() {
					mark(v.List().Get(i).Message())
				}
			default:
				mark(v.Message())
			}
			return true
		})
	}
	mark(p.ProtoReflect())
	data, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	survive(t, data)
	if count < 40 {
		t.Errorf("%d messages were marked", count)
	}
}
