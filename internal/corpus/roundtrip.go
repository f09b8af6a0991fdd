package corpus

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// RoundTrip loads the model, checks it, saves it, prints and parses it, and
// reports whether both ways gave the same message, unknown fields included.
func (c Case) RoundTrip() error {
	want := &pb.ModelProto{}
	if err := proto.Unmarshal(c.Model, want); err != nil {
		return err
	}
	m, err := c.Load()
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Check(); err != nil {
		return err
	}
	saved, err := m.Encode()
	if err != nil {
		return err
	}
	got := &pb.ModelProto{}
	if err := proto.Unmarshal(saved, got); err != nil {
		return err
	}
	if !proto.Equal(want, got) {
		return errors.New("load and save changed the model")
	}
	text := m.Text()
	back, err := onnx.ParseIn(text, c.Dir)
	if err != nil {
		return fmt.Errorf("parsing the text form: %w", err)
	}
	if !proto.Equal(want, back.ToProto()) {
		return errors.New("print and parse changed the model")
	}
	return nil
}
