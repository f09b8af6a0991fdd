package ort

// The few bytes of ONNX that the canaries and the copier need, written by hand
// so that this package stands on C and yalue alone.
//
// Protobuf in one line: a message is a list of (field number, wire type,
// value); wire type 0 is a varint, 2 a length and that many bytes.

import "encoding/binary"

type wire []byte

func (w wire) number(field int, v int64) wire {
	w = binary.AppendUvarint(w, uint64(field)<<3)
	return binary.AppendUvarint(w, uint64(v))
}

func (w wire) bytes(field int, v []byte) wire {
	w = binary.AppendUvarint(w, uint64(field)<<3|2)
	w = binary.AppendUvarint(w, uint64(len(v)))
	return append(w, v...)
}

func (w wire) text(field int, v string) wire { return w.bytes(field, []byte(v)) }

// A wireNode is an operator of the default domain without attributes.
type wireNode struct {
	op, name        string
	inputs, outputs []string
}

// wireValue is a graph input or output.
type wireValue struct {
	name  string
	dtype DType
	shape []int64 // -1: unknown
}

// wireModel encodes a model of IR version 8, opset 17.
func wireModel(nodes []wireNode, inputs, outputs []wireValue) []byte {
	var graph wire
	for _, n := range nodes {
		var b wire
		for _, v := range n.inputs {
			b = b.text(1, v)
		}
		for _, v := range n.outputs {
			b = b.text(2, v)
		}
		graph = graph.bytes(1, b.text(3, n.name).text(4, n.op))
	}
	graph = graph.text(2, "canary")
	for _, v := range inputs {
		graph = graph.bytes(11, v.encode())
	}
	for _, v := range outputs {
		graph = graph.bytes(12, v.encode())
	}
	return wire(nil).number(1, 8).bytes(7, graph).bytes(8, wire(nil).text(1, "").number(2, 17))
}

func (v wireValue) encode() wire {
	var shape wire
	for _, d := range v.shape {
		if d < 0 {
			shape = shape.bytes(1, nil)
		} else {
			shape = shape.bytes(1, wire(nil).number(1, d))
		}
	}
	tensor := wire(nil).number(1, int64(v.dtype)).bytes(2, shape)
	return wire(nil).text(1, v.name).bytes(2, wire(nil).bytes(1, tensor))
}
