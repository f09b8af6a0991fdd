// Package safetensors reads and writes the weight files of that name: a length,
// a JSON header, then the tensors' bytes without gaps.
//
//	 8 bytes      n bytes                    the rest
//	┌────────┬──────────────────────────┬───────────┬─────┐
//	│ n (LE) │ {"P":{"dtype":"F32",     │ P's bytes │  …  │
//	│        │   "shape":[2,3],         │           │     │
//	│        │   "data_offsets":[0,24]} │           │     │
//	│        │ }                        │           │     │
//	└────────┴──────────────────────────┴───────────┴─────┘
//
// Such a file is at once a valid ONNX external data file: Info.Offset counts
// from the beginning of the file, as external_data's offset does. A file is
// mapped, so opening one of many gigabytes costs its header alone. It is not
// trusted: every length, type and place in the header is checked before any
// byte behind it is looked at.
//
// Format: https://huggingface.co/docs/safetensors (header at most 100 MB,
// tensors cover the data exactly).
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sort"

	"github.com/onnx-remat/remat/onnx"
)

// maxHeader is the format's own limit for the header, in bytes.
const maxHeader = 100 << 20

const metadataKey = "__metadata__"

// dtypes maps the format's names to element types, one way and the other.
var dtypes = []struct {
	name  string
	dtype onnx.DType
}{
	{"F32", onnx.Float32}, {"F64", onnx.Float64}, {"F16", onnx.Float16}, {"BF16", onnx.BFloat16},
	{"I64", onnx.Int64}, {"I32", onnx.Int32}, {"I16", onnx.Int16}, {"I8", onnx.Int8},
	{"U64", onnx.Uint64}, {"U32", onnx.Uint32}, {"U16", onnx.Uint16}, {"U8", onnx.Uint8},
	{"BOOL", onnx.Bool}, {"F8_E4M3", 17}, {"F8_E5M2", 19},
}

func dtypeOf(name string) (onnx.DType, bool) {
	for _, d := range dtypes {
		if d.name == name {
			return d.dtype, true
		}
	}
	return onnx.Undefined, false
}

func nameOf(t onnx.DType) (string, bool) {
	for _, d := range dtypes {
		if d.dtype == t {
			return d.name, true
		}
	}
	return "", false
}

// An Info says what one tensor is and where its bytes lie.
type Info struct {
	Name  string
	DType onnx.DType
	Shape []int64
	// Offset counts bytes from the beginning of the file; Bytes is the size.
	Offset, Bytes int64
}

// A File is an open weight file, mapped read-only.
type File struct {
	Path string
	// Tensors in the order of their bytes.
	Tensors  []Info
	Metadata map[string]string

	index map[string]int
	image []byte
}

// Open maps the file and checks its header as a whole.
func Open(path string) (*File, error) { return open(path, onnx.MapFile) }

// OpenPrivate is Open, but bytes may be written: what is written stays in the
// process's memory and is not the file's.
func OpenPrivate(path string) (*File, error) { return open(path, onnx.MapPrivate) }

func open(path string, mapped func(string) ([]byte, error)) (*File, error) {
	image, err := mapped(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &File{Path: path, image: image}
	if err := f.parse(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Close gives the mapping back; slices from Bytes die with it.
func (f *File) Close() error {
	image := f.image
	f.image = nil
	return onnx.Unmap(image)
}

// Lookup finds a tensor by name.
func (f *File) Lookup(name string) (Info, bool) {
	i, ok := f.index[name]
	if !ok {
		return Info{}, false
	}
	return f.Tensors[i], true
}

// Bytes returns a tensor's data, little-endian and dense: the mapping itself,
// not to be changed.
func (f *File) Bytes(t Info) []byte {
	return f.image[t.Offset : t.Offset+t.Bytes : t.Offset+t.Bytes]
}

func (f *File) parse() error {
	if len(f.image) < 8 {
		return fmt.Errorf("%d bytes are too few for a safetensors file", len(f.image))
	}
	n := binary.LittleEndian.Uint64(f.image)
	if n > maxHeader || int64(n) > int64(len(f.image))-8 {
		return fmt.Errorf("header of %d bytes does not fit the file of %d: damaged, or not a safetensors file", n, len(f.image))
	}
	start := 8 + int64(n)
	if err := f.header(f.image[8:start], start); err != nil {
		return err
	}
	sort.SliceStable(f.Tensors, func(i, j int) bool { return f.Tensors[i].Offset < f.Tensors[j].Offset })
	f.index = make(map[string]int, len(f.Tensors))
	at := start
	for i, t := range f.Tensors {
		if t.Offset != at {
			return fmt.Errorf("tensor %q begins at byte %d where %d is expected: tensors overlap or leave a gap", t.Name, t.Offset, at)
		}
		at += t.Bytes
		f.index[t.Name] = i
	}
	if at != int64(len(f.image)) {
		return fmt.Errorf("tensors end at byte %d, the file at %d: truncated, or followed by extra bytes", at, len(f.image))
	}
	return nil
}

// entry is a tensor as the header writes it.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets []uint64 `json:"data_offsets"`
}

// header reads the JSON object key by key, because a map would hide names that
// occur twice.
func (f *File) header(text []byte, start int64) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("header is not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return fmt.Errorf("header: %w", err)
		}
		name, _ := key.(string)
		if seen[name] {
			return fmt.Errorf("header names %q twice", name)
		}
		seen[name] = true
		if name == metadataKey {
			if err := dec.Decode(&f.Metadata); err != nil {
				return fmt.Errorf("header: %s: %w", metadataKey, err)
			}
			continue
		}
		var e entry
		if err := dec.Decode(&e); err != nil {
			return fmt.Errorf("header: tensor %q: %w", name, err)
		}
		t, err := e.info(name, start, int64(len(f.image)))
		if err != nil {
			return err
		}
		f.Tensors = append(f.Tensors, t)
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if rest := bytes.TrimRight(text[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return fmt.Errorf("header continues after its JSON object")
	}
	return nil
}

// info checks one entry against the data's beginning and end in the file.
func (e entry) info(name string, start, end int64) (Info, error) {
	t := Info{Name: name, Shape: e.Shape}
	var ok bool
	if t.DType, ok = dtypeOf(e.DType); !ok {
		return t, fmt.Errorf("tensor %q: unknown dtype %q", name, e.DType)
	}
	if len(e.Offsets) != 2 || e.Offsets[0] > e.Offsets[1] || e.Offsets[1] > uint64(end-start) {
		return t, fmt.Errorf("tensor %q: data_offsets %v lie outside the %d bytes of data", name, e.Offsets, end-start)
	}
	t.Offset = start + int64(e.Offsets[0])
	t.Bytes = int64(e.Offsets[1] - e.Offsets[0])
	want, ok := onnx.TensorOf(t.DType, onnx.StaticShape(t.Shape...)).Bytes()
	if !ok || want != t.Bytes {
		return t, fmt.Errorf("tensor %q: %d bytes for %s%v, which takes %d", name, t.Bytes, t.DType, t.Shape, want)
	}
	return t, nil
}
