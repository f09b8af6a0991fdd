package onnx

// Where a file on disk says that its initializers lie, without decoding it: of its graph only the
// tensors in files of their own are looked at, so a large one takes milliseconds.

import (
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// ExternalPlaces lists where the model at path has the initializers of its graph whose data lie in
// other files, by name.
func ExternalPlaces(path string) (map[string]External, error) {
	data, err := MapFile(path)
	if err != nil {
		return nil, err
	}
	defer Unmap(data)
	places := map[string]External{}
	err = eachField(data, wireFields.graph, func(graph []byte) error {
		return eachField(graph, wireFields.initializer, func(tensor []byte) error {
			return placed(tensor, places)
		})
	})
	return places, err
}

// wireFields are the numbers of fields that are looked for.
var wireFields = struct{ graph, initializer, external protowire.Number }{
	graph:       protowire.Number((&pb.ModelProto{}).ProtoReflect().Descriptor().Fields().ByName("graph").Number()),
	initializer: protowire.Number((&pb.GraphProto{}).ProtoReflect().Descriptor().Fields().ByName("initializer").Number()),
	external:    protowire.Number((&pb.TensorProto{}).ProtoReflect().Descriptor().Fields().ByName("external_data").Number()),
}

// placed notes where an encoded tensor lies, if that is in another file.
func placed(data []byte, places map[string]External) error {
	outside := false
	if err := eachField(data, wireFields.external, func([]byte) error { outside = true; return nil }); err != nil || !outside {
		return err
	}
	t := &Tensor{Proto: &pb.TensorProto{}}
	if err := unmarshal(data, t.Proto); err != nil {
		return errWire
	}
	at, err := t.External()
	if err == nil {
		places[t.Proto.GetName()] = at
	}
	return err
}

// eachField calls do with each value of a field of an encoded message.
func eachField(data []byte, field protowire.Number, do func(value []byte) error) error {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errWire
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(num, typ, data); n < 0 {
			return errWire
		}
		if num == field && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(data[:n])
			if err := do(value); err != nil {
				return err
			}
		}
		data = data[n:]
	}
	return nil
}
