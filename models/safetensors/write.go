package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat/onnx"
)

// align is where the data of written files begins, in bytes: a page, so that
// the tensors of a mapped file lie as they do in a buffer of their own.
const align = 4096

// A Layout is the header of a file to be written, and with it the place of
// every tensor: known before any data is.
type Layout struct {
	Tensors []Info
	header  []byte
	size    int64
}

// Plan lays tensors out one after another in the order given; their Offset and
// Bytes are computed. Meta may be nil.
func Plan(tensors []Info, meta map[string]string) (*Layout, error) {
	l := &Layout{Tensors: make([]Info, len(tensors))}
	at := int64(0)
	head := []byte{'{'}
	if len(meta) > 0 {
		text, err := json.Marshal(meta)
		if err != nil {
			return nil, err
		}
		head = append(append(head, `"`+metadataKey+`":`...), text...)
	}
	seen := map[string]bool{metadataKey: true}
	for i, t := range tensors {
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor name %q is already used", t.Name)
		}
		seen[t.Name] = true
		text, size, err := describe(t, at)
		if err != nil {
			return nil, err
		}
		if len(head) > 1 {
			head = append(head, ',')
		}
		head = append(head, text...)
		l.Tensors[i] = t
		l.Tensors[i].Offset, l.Tensors[i].Bytes = at, size
		at += size
	}
	head = append(head, '}')
	for (8+len(head))%align != 0 {
		head = append(head, ' ')
	}
	if len(head) > maxHeader {
		return nil, fmt.Errorf("header takes %d bytes, more than the format's %d", len(head), maxHeader)
	}
	start := 8 + int64(len(head))
	for i := range l.Tensors {
		l.Tensors[i].Offset += start
	}
	l.header = append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
	l.size = start + at
	return l, nil
}

// describe writes one header entry for a tensor whose data begins at byte at.
func describe(t Info, at int64) (text []byte, size int64, err error) {
	dtype, ok := nameOf(t.DType)
	if !ok {
		return nil, 0, fmt.Errorf("tensor %q: safetensors has no element type %s", t.Name, t.DType)
	}
	size, ok = onnx.TensorOf(t.DType, onnx.StaticShape(t.Shape...)).Bytes()
	if !ok {
		return nil, 0, fmt.Errorf("tensor %q: no byte size for %s%v", t.Name, t.DType, t.Shape)
	}
	shape := t.Shape
	if shape == nil {
		shape = []int64{}
	}
	name, err := json.Marshal(t.Name)
	if err != nil {
		return nil, 0, err
	}
	body, err := json.Marshal(entry{DType: dtype, Shape: shape, Offsets: []uint64{uint64(at), uint64(at + size)}})
	return append(append(name, ':'), body...), size, err
}

// Lookup finds a planned tensor by name.
func (l *Layout) Lookup(name string) (Info, bool) {
	for _, t := range l.Tensors {
		if t.Name == name {
			return t, true
		}
	}
	return Info{}, false
}

// Create writes the file as a whole or not at all. The header stands when fill
// is called, the file has its full size, and fill writes each tensor at its
// Offset, from as many goroutines as it likes.
func (l *Layout) Create(path string, fill func(f *os.File) error) error {
	return onnx.ReplaceFile(path, l.whole(fill))
}

// CreateWith is Create for a file that is put into its place together with others.
func (l *Layout) CreateWith(files *onnx.Outputs, path string, fill func(f *os.File) error) error {
	return files.Replace(path, l.whole(fill))
}

// whole writes all of the file: what fill writes, and the header before that.
func (l *Layout) whole(fill func(f *os.File) error) func(f *os.File) error {
	return func(f *os.File) error {
		if err := f.Truncate(l.size); err != nil {
			return err
		}
		if _, err := f.WriteAt(l.header, 0); err != nil {
			return err
		}
		return fill(f)
	}
}

// Reseal writes the header again into a file that is being created, with other
// metadata: of the same keys, and values of the same length, such as a hash that is
// known once the data is written.
func (l *Layout) Reseal(f *os.File, meta map[string]string) error {
	again, err := Plan(l.Tensors, meta)
	if err != nil {
		return err
	}
	if len(again.header) != len(l.header) {
		return fmt.Errorf("header of %d bytes in the place of %d", len(again.header), len(l.header))
	}
	_, err = f.WriteAt(again.header, 0)
	return err
}

// Write writes the file as a whole or not at all; data is asked for each
// tensor in turn and must write exactly its bytes.
func (l *Layout) Write(path string, data func(t Info, w io.Writer) error) error {
	return l.Create(path, l.streamed(data))
}

// WriteWith is Write for a file that is put into its place together with others.
func (l *Layout) WriteWith(files *onnx.Outputs, path string, data func(t Info, w io.Writer) error) error {
	return l.CreateWith(files, path, l.streamed(data))
}

// streamed writes the tensors one after another.
func (l *Layout) streamed(data func(t Info, w io.Writer) error) func(f *os.File) error {
	return func(f *os.File) error {
		for _, t := range l.Tensors {
			w := bufio.NewWriterSize(io.NewOffsetWriter(f, t.Offset), 1<<20)
			n := &counter{w: w}
			err := data(t, n)
			if err == nil && n.n != t.Bytes {
				err = fmt.Errorf("got %d bytes, but %s%v takes %d", n.n, t.DType, t.Shape, t.Bytes)
			}
			if err == nil {
				err = w.Flush()
			}
			if err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
		}
		return nil
	}
}

// counter counts what passes through.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// besideKey is the metadata entry of a file that was written beside a model, as its weights, under
// a name that nobody typed.
const besideKey = "remat.weights"

// Beside are the metadata of a file of weights that is written beside a model.
func Beside() map[string]string { return map[string]string{"format": "pt", besideKey: "1"} }

// CanReplace reports why the weights of a model that is written as out may not take the place
// of the file at path, which is no name that anybody typed: something else is there, such as
// weights that were trained, and nothing else may hold these. What Beside marks may go, and
// what the model at out, which goes too, refers to.
func CanReplace(path, out string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if f, err := Open(path); err == nil {
		_, ours := f.Metadata[besideKey]
		if err := f.Close(); err != nil || ours {
			return err
		}
	}
	if model, err := onnx.MapFile(out); err == nil {
		refers := bytes.Contains(model, []byte(filepath.Base(path)))
		if err := onnx.Unmap(model); err != nil || refers {
			return err
		}
	}
	return fmt.Errorf("%s: the weights of %s would overwrite it, and it does not hold that model's weights: choose another name than %s, or remove it", path, filepath.Base(out), filepath.Base(out))
}
