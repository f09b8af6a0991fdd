package onnx

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// samples lists every model under testdata/models.
func samples(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.onnx", "*/*.onnx"} {
		found, err := filepath.Glob(filepath.Join("..", "testdata", "models", pattern))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	if len(out) < 20 {
		t.Fatalf("found %d samples, want at least 20", len(out))
	}
	return out
}

func TestSamplesRoundTrip(t *testing.T) {
	for _, path := range samples(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			data, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			assertSameModel(t, path, data)
		})
	}
}

func assertSameModel(t *testing.T, path string, got []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, have := &pb.ModelProto{}, &pb.ModelProto{}
	if err := proto.Unmarshal(raw, want); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(got, have); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, have) {
		t.Error("load and save changed the model")
	}
}
