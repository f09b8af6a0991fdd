package runtime

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbinet/npyio/npy"

	"github.com/onnx-remat/remat/onnx"
)

// npyFile builds a .npy by hand.
func npyFile(header string, data string) string {
	return npyMagic + "\x01\x00" + string([]byte{byte(len(header)), byte(len(header) >> 8)}) + header + data
}

func TestDecodeNPY(t *testing.T) {
	for _, c := range []struct {
		name, header, data string
		want               onnx.DType
		shape              []int64
		bytes              string
	}{
		{"scalar", "{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n", "abcd", onnx.Float32, []int64{}, "abcd"},
		{"vector", "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }\n", "\x01\x00\x01", onnx.Bool, []int64{3}, "\x01\x00\x01"},
		{"half", "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2), }\n", "abcd", onnx.Float16, []int64{1, 2}, "abcd"},
		{"bfloat16", "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }\n", "abcd", onnx.BFloat16, []int64{2}, "abcd"},
		{"big endian", "{'descr': '>i2', 'fortran_order': False, 'shape': (2,), }\n", "abcd", onnx.Int16, []int64{2}, "badc"},
		{"columns", "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }\n", "adbecf", onnx.Uint8, []int64{2, 3}, "abcdef"},
		{"empty", "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 4), }\n", "", onnx.Int64, []int64{0, 4}, ""},
	} {
		file := npyFile(c.header, c.data)
		got, err := decodeNPY(strings.NewReader(file), int64(len(file)))
		if err != nil || got.Type != c.want || !slices.Equal(got.Shape, c.shape) || string(got.Data) != c.bytes {
			t.Errorf("%s: %v %q, %v", c.name, got, got.Data, err)
		}
	}
}

func TestHostileNPY(t *testing.T) {
	for name, file := range map[string]string{
		"nothing":      "",
		"other file":   "PK\x03\x04 and more",
		"no dict":      npyFile("hello\n", ""),
		"truncated":    npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", "abc"),
		"huge":         npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9), }\n", ""),
		"large":        npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n", ""),
		"negative":     npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }\n", "abcdefgh"),
		"text":         npyFile("{'descr': '<U3', 'fortran_order': False, 'shape': (2,), }\n", ""),
		"records":      npyFile("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }\n", ""),
		"long header":  npyMagic + "\x02\x00\xff\xff\xff\xff",
		"short header": npyMagic + "\x01\x00\x10\x00{",
	} {
		if got, err := decodeNPY(strings.NewReader(file), int64(len(file))); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestWriteNPZ reads back what was written, here and with an independent
// reader.
func TestWriteNPZ(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.npz")
	in := map[string]Tensor{
		"a":     FromFloat32s([]float32{1, 2, 3, 4, 5, 6}, 2, 3),
		"b/c":   FromInt64s([]int64{7}),
		"mask":  {onnx.Bool, []int64{2}, []byte{1, 0}},
		"brain": {onnx.BFloat16, []int64{1}, []byte{0x80, 0x3f}},
	}
	if err := WriteNPZ(path, in); err != nil {
		t.Fatal(err)
	}
	out, err := ReadNPZ(path)
	if err != nil || len(out) != len(in) {
		t.Fatalf("%v, %v", out, err)
	}
	for k, v := range in {
		if got := out[k]; got.String() != v.String() || !bytes.Equal(got.Data, v.Data) {
			t.Errorf("%s: %v, want %v", k, got, v)
		}
	}
	var b bytes.Buffer
	if err := EncodeNPY(&b, in["a"]); err != nil {
		t.Fatal(err)
	}
	var values []float32
	if err := npy.Read(&b, &values); err != nil || !slices.Equal(values, []float32{1, 2, 3, 4, 5, 6}) {
		t.Errorf("npyio reads %v, %v", values, err)
	}
}

func TestHostileNPZ(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.npz")
	if err := os.WriteFile(path, []byte("not a zip"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadNPZ(path); err == nil {
		t.Error("a text file was read")
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create("names.npy")
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(npyFile("{'descr': '<U3', 'fortran_order': False, 'shape': (1,), }\n", "abcdefghijkl")))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// It is there, without a type, so that whoever meant to feed it is told.
	got, err := ReadNPZ(path)
	if names, ok := got["names"]; err != nil || !ok || names.Type != onnx.Undefined || names.Data != nil {
		t.Errorf("an array of strings: %v, %v", got, err)
	}
}
