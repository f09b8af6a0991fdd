package onnx

import (
	"path/filepath"
	"strconv"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// RebaseExternal puts dir before the location of every external initializer,
// for a model that is written elsewhere, and reports whether there were any.
func (m *Model) RebaseExternal(dir string) (bool, error) {
	return m.MoveExternal(func(location string) (string, error) {
		return filepath.ToSlash(filepath.Join(dir, location)), nil
	})
}

// MoveExternal gives every external initializer the location that to returns for its
// own, and reports whether there were any.
func (m *Model) MoveExternal(to func(location string) (string, error)) (bool, error) {
	used := false
	for _, v := range m.Graph.Initializers {
		if !v.Init.IsExternal() {
			continue
		}
		if _, err := v.Init.External(); err != nil {
			return used, err
		}
		used = true
		for _, kv := range v.Init.Proto.ExternalData {
			if kv.GetKey() == "location" {
				location, err := to(kv.GetValue())
				if err != nil {
					return used, err
				}
				kv.Value = &location
			}
		}
	}
	return used, nil
}

// ExternalTensor makes a tensor whose bytes lie in a file beside the model. Its
// data cannot be read through it until the model was written and loaded again.
func ExternalTensor(name string, d DType, dims []int64, location string, offset, length int64) *Tensor {
	t, where := int32(d), pb.TensorProto_EXTERNAL
	entry := func(k, v string) *pb.StringStringEntryProto { return &pb.StringStringEntryProto{Key: &k, Value: &v} }
	return &Tensor{Proto: &pb.TensorProto{
		Name: &name, Dims: dims, DataType: &t, DataLocation: &where,
		ExternalData: []*pb.StringStringEntryProto{
			entry("location", location),
			entry("offset", strconv.FormatInt(offset, 10)),
			entry("length", strconv.FormatInt(length, 10)),
		},
	}}
}
