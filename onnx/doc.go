// Package onnx is the graph that every other package works on: an ONNX model
// loaded without loss, edited through methods that keep it consistent, checked
// in one place, and written back.
//
//	Model   what surrounds the graph: versions, metadata, functions
//	Graph   nodes in file order, inputs, outputs, initializers
//	Node    one operator; its protobuf message is kept inside, so whatever
//	        was not understood (unknown fields, device hints) is written back
//	Value   one name: who makes it, who reads it, its type
//	Tensor  constant data, inline or in an external file (mapped, not read)
//
// Values are pointers and unique by name within a graph; nodes refer to values,
// never to strings. Subgraphs of control flow stay as they were read; the
// values that they capture are known (Node.Captures).
package onnx
