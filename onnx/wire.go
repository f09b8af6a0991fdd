package onnx

// Before anything is decoded, the file's wire format is walked once, without
// allocating, to see what decoding it would cost: a message of no bytes takes
// two in the file and some hundred in memory, so a small file could ask for
// gigabytes. The walk knows from the message descriptors which fields are
// messages, and adds up an upper estimate of the memory of the decoded
// messages and of the graph made from them. Bytes fields cost nothing, because
// they alias the file.
//
//	file:  0a 00 0a 00 0a 00 ...        two bytes per empty node
//	cost:  nodeCost  nodeCost  ...      refused once it is out of proportion
//
// Weakness: an honest file and a hostile one of the same density cannot be told
// apart, so the bound grows with the file's length.

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// What one item takes in memory, with its place in lists and in the graph.
const (
	nodeCost      = 600
	valueCost     = 300
	attributeCost = 400
	tensorCost    = 600
	stringCost    = 32
)

// Exported graphs take 30 to 300 bytes of file per node and up to some 1,500 of
// memory; lists of numbers take up to eight times their bytes. So memory may
// grow with the file eightfold and by a credit for each node that is long
// enough to be one, but never by more than forty times the file.
const (
	baseBudget = 24 << 20
	maxGrowth  = 40
	listGrowth = 8
	nodeCredit = 1500
	leastNode  = 8 // bytes: an operator's type and an output
)

// decodeBudget is the memory that decoding n bytes with that many nodes may take.
func decodeBudget(n int, nodes int64) int64 {
	return baseBudget + min(maxGrowth*int64(n), listGrowth*int64(n)+nodeCredit*nodes)
}

var (
	errWire   = errors.New("not an onnx model: damaged or truncated")
	errDepth  = fmt.Errorf("messages nest more than %d deep", maxDepth)
	errBudget = errors.New("the file expands to more memory than its length allows")
)

// layout is what the walk needs to know of one message type.
type layout struct {
	size   int64
	isNode bool
	fields [64]fieldLayout
}

// wireSum is what the walk adds up: memory in bytes, and plausible nodes.
type wireSum struct{ cost, nodes int64 }

func (s wireSum) plus(cost int64) wireSum { return wireSum{s.cost + cost, s.nodes} }

type fieldLayout struct {
	kind  byte // 's' string, 'b' bytes, 'm' message, 'n' number, 0 unknown
	cost  int64
	inner *layout
}

// graphCosts adds what the graph holds beside the messages, by the field that
// holds them.
var graphCosts = map[protoreflect.FullName]int64{
	"remat.onnx.GraphProto.node":        nodeCost - 300,
	"remat.onnx.GraphProto.input":       valueCost,
	"remat.onnx.GraphProto.initializer": valueCost,
	"remat.onnx.NodeProto.output":       valueCost,
	"remat.onnx.NodeProto.input":        stringCost,
}

var modelLayouts = sync.OnceValue(func() map[protoreflect.FullName]*layout {
	known := map[protoreflect.FullName]*layout{}
	layoutOf((&pb.ModelProto{}).ProtoReflect(), known)
	return known
})

// layoutOf returns what decoding a message of m's type costs, field by field; known
// holds the types that were met already.
func layoutOf(m protoreflect.Message, known map[protoreflect.FullName]*layout) *layout {
	d := m.Descriptor()
	if l := known[d.FullName()]; l != nil {
		return l
	}
	l := &layout{size: int64(reflect.TypeOf(m.Interface()).Elem().Size()) + 8}
	l.isNode = d.Name() == "NodeProto"
	known[d.FullName()] = l
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		field := &l.fields[f.Number()]
		field.cost = graphCosts[f.FullName()]
		switch f.Kind() {
		case protoreflect.StringKind:
			field.kind = 's'
		case protoreflect.BytesKind:
			field.kind = 'b'
		case protoreflect.MessageKind:
			field.kind = 'm'
			field.inner = layoutOf(innerMessage(m, f), known)
		default:
			field.kind = 'n'
		}
	}
	return l
}

func innerMessage(m protoreflect.Message, f protoreflect.FieldDescriptor) protoreflect.Message {
	if f.IsList() {
		return m.NewField(f).List().NewElement().Message()
	}
	return m.NewField(f).Message()
}

// wireCost walks an encoded message and returns the memory that decoding it
// takes and how many nodes it holds.
func wireCost(data []byte, m proto.Message) (wireSum, error) {
	return walkWire(data, modelLayouts()[m.ProtoReflect().Descriptor().FullName()], maxDepth)
}

// walkWire is wireCost for a message of a known layout, at most depth levels deep.
func walkWire(data []byte, l *layout, depth int) (wireSum, error) {
	sum := wireSum{cost: l.size}
	if depth == 0 {
		return sum, errDepth
	}
	if l.isNode && len(data) >= leastNode {
		sum.nodes++
	}
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return sum, errWire
		}
		data = data[n:]
		n = protowire.ConsumeFieldValue(num, typ, data)
		if n < 0 {
			return sum, errWire
		}
		s, err := fieldCost(data[:n], num, typ, l, depth)
		if err != nil {
			return sum, err
		}
		sum.cost, sum.nodes = sum.cost+s.cost, sum.nodes+s.nodes
		data = data[n:]
	}
	return sum, nil
}

// fieldCost is the memory of one field's value. A known field of a wire type
// that does not fit it is kept as unknown bytes.
func fieldCost(value []byte, num protowire.Number, typ protowire.Type, l *layout, depth int) (wireSum, error) {
	var f fieldLayout
	if num < 64 {
		f = l.fields[num]
	}
	none := wireSum{}
	if typ != protowire.BytesType {
		if f.kind == 'n' {
			return none.plus(16), nil
		}
		return none.plus(2*int64(len(value)) + 16), nil
	}
	body, _ := protowire.ConsumeBytes(value)
	switch f.kind {
	case 'm':
		s, err := walkWire(body, f.inner, depth-1)
		return s.plus(f.cost), err
	case 's':
		return none.plus(int64(len(body)) + stringCost + f.cost), nil
	case 'b':
		return none.plus(stringCost), nil
	case 'n':
		return none.plus(16 + 8*packedCount(body)), nil
	}
	return none.plus(2*int64(len(value)) + 16), nil
}

// packedCount bounds the number of elements of a packed list by counting the
// varints that end; fixed-size elements are fewer than their bytes.
func packedCount(body []byte) int64 {
	if len(body) > 1<<16 {
		return int64(len(body))
	}
	n := int64(0)
	for _, b := range body {
		if b < 0x80 {
			n++
		}
	}
	return n
}

// checkWire refuses data that is damaged or that decoding would blow up.
func checkWire(data []byte, m proto.Message) error {
	sum, err := wireCost(data, m)
	if err == nil && sum.cost > decodeBudget(len(data), sum.nodes) {
		err = errBudget
	}
	return err
}
