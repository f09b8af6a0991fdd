// Package onnxpb holds the protobuf messages of an ONNX file, generated from
// remat_onnx.proto.
package onnxpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative remat_onnx.proto
