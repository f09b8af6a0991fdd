package safetensors

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

func TestWriteThenOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	layout, err := Plan([]Info{
		{Name: "b", DType: onnx.Float32, Shape: []int64{2, 3}},
		{Name: "scalar", DType: onnx.Int64},
		{Name: "empty", DType: onnx.Float16, Shape: []int64{0, 4}},
		{Name: `a "quoted" <name>`, DType: onnx.Bool, Shape: []int64{5}},
	}, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	err = layout.Write(path, func(i Info, w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte{i.Name[0]}, int(i.Bytes)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.Tensors) != 4 || f.Metadata["format"] != "pt" {
		t.Fatalf("read %v, metadata %v", f.Tensors, f.Metadata)
	}
	for _, want := range layout.Tensors {
		got, ok := f.Lookup(want.Name)
		if !ok || got.Offset != want.Offset || got.Bytes != want.Bytes || got.DType != want.DType {
			t.Errorf("%s: read %+v, planned %+v", want.Name, got, want)
		}
		if !bytes.Equal(f.Bytes(got), bytes.Repeat([]byte{want.Name[0]}, int(want.Bytes))) {
			t.Errorf("%s: other bytes than written", want.Name)
		}
	}
	if _, ok := f.Lookup("nothing"); ok {
		t.Error("found a tensor that is not there")
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, tensors := range map[string][]Info{
		"already used": {{Name: "a", DType: onnx.Float32}, {Name: "a", DType: onnx.Float32}},
		"no byte size": {{Name: "a", DType: onnx.Float32, Shape: []int64{1 << 40, 1 << 40}}},
		"no element":   {{Name: "a", DType: onnx.String}},
	} {
		if _, err := Plan(tensors, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "w")
	layout, err := Plan([]Info{{Name: "a", DType: onnx.Float32}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := layout.Write(path, func(Info, io.Writer) error { return nil }); err == nil {
		t.Error("too few bytes were taken")
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) > 0 {
		t.Errorf("a failed write left %v behind", files)
	}
}

// file joins a header and data into a file's bytes.
func file(header string, data int) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), make([]byte, data)...)
}

func TestOpenRefuses(t *testing.T) {
	one := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	cases := map[string][]byte{
		"too few":           {1, 2},
		"does not fit":      file("{}", 0)[:9],
		"not a JSON object": file("[]", 0),
		"unknown dtype":     file(`{"a":{"dtype":"Q7","shape":[2],"data_offsets":[0,8]}}`, 8),
		"lie outside":       file(one+`}`, 4),
		"overlap":           file(one+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12),
		"twice":             file(one+`,"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16),
		"extra bytes":       file(one+`}`, 9),
		"which takes":       file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8),
		"continues":         file(one+`} x`, 8),
		"cannot unmarsh":    file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0.5,8]}}`, 8),
		"header":            file(one, 8),
		"[-1 -2], which ":   file(`{"a":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}`, 8),
	}
	for want, data := range cases {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v", want, err)
		}
	}
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, huge, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil {
		t.Error("a header of 2^63 bytes was taken")
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(file(`{"__metadata__":{"k":"v"},"a":{"dtype":"I8","shape":[],"data_offsets":[0,1]}}`, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path)
		if err != nil {
			return
		}
		defer s.Close()
		for _, i := range s.Tensors {
			if int64(len(s.Bytes(i))) != i.Bytes {
				t.Fatalf("%q has %d bytes, not %d", i.Name, len(s.Bytes(i)), i.Bytes)
			}
		}
	})
}
