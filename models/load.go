package models

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
)

// SaveWith writes the model to path with the weights of a safetensors file,
// under the names that Hugging Face gives them, with or without the leading
// "transformer.". Tensors that the model has no use for are left out; one that
// is missing or has another shape is an error.
func (m *Built) SaveWith(path, weights string) error {
	f, err := safetensors.Open(weights)
	if err != nil {
		return err
	}
	defer f.Close()
	source, asIs, err := m.match(f)
	if err != nil {
		return fmt.Errorf("%s: %w", weights, err)
	}
	if asIs && sameFolder(path, weights) {
		return onnx.Together(func(files *onnx.Outputs) error {
			return m.saveReferring(files, path, filepath.Base(weights), func(name string) (safetensors.Info, bool) {
				i, ok := source[name]
				return i, ok
			})
		})
	}
	meta := safetensors.Beside()
	maps.Copy(meta, f.Metadata)
	layout, err := safetensors.Plan(m.tensors(), meta)
	if err != nil {
		return err
	}
	file, err := weightPath(path)
	if err != nil {
		return err
	}
	if a, err := os.Stat(file); err == nil {
		if b, err := os.Stat(weights); err == nil && os.SameFile(a, b) {
			return fmt.Errorf("%s: its weights must be converted to float32 into the same file: choose another name for the model than %s", weights, path)
		}
	}
	if err := safetensors.CanReplace(file, path); err != nil {
		return err
	}
	return onnx.Together(func(files *onnx.Outputs) error {
		err := layout.WriteWith(files, file, func(t safetensors.Info, w io.Writer) error {
			from := source[t.Name]
			return toFloat32(w, from.DType, f.Bytes(from))
		})
		if err != nil {
			return err
		}
		return m.saveReferring(files, path, filepath.Base(file), layout.Lookup)
	})
}

// match finds every parameter in the file. AsIs reports that all are float32
// at addresses that floats may have.
func (m *Built) match(f *safetensors.File) (source map[string]safetensors.Info, asIs bool, err error) {
	source, asIs = map[string]safetensors.Info{}, true
	for _, p := range m.Params {
		info, ok := f.Lookup(p.Name)
		if !ok {
			info, ok = f.Lookup(strings.TrimPrefix(p.Name, "transformer."))
		}
		if !ok {
			return nil, false, fmt.Errorf("no tensor %q: is the file a %s with %d layers?", p.Name, m.Row.Name, m.Config.Layers)
		}
		if !slices.Equal(info.Shape, p.Shape) {
			return nil, false, fmt.Errorf("tensor %q is %v, want %v: pass the file's --layers, --hidden, --vocab and --seq", p.Name, info.Shape, p.Shape)
		}
		if !info.DType.IsFloat() {
			return nil, false, fmt.Errorf("tensor %q is %s, want floats", p.Name, info.DType)
		}
		asIs = asIs && info.DType == onnx.Float32 && info.Offset%4 == 0
		source[p.Name] = info
	}
	return source, asIs, nil
}

func sameFolder(a, b string) bool {
	x, errA := os.Stat(filepath.Dir(a))
	y, errB := os.Stat(filepath.Dir(b))
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// toFloat32 writes float data as float32, part by part.
func toFloat32(w io.Writer, d onnx.DType, data []byte) error {
	if d == onnx.Float32 {
		_, err := w.Write(data)
		return err
	}
	size := int(d.Size())
	for part := range slices.Chunk(data, size<<18) {
		values, err := onnx.NewTensor(d, []int64{int64(len(part) / size)}, part).Float64s()
		if err != nil {
			return err
		}
		out := make([]byte, 0, 4*len(values))
		for _, v := range values {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}
