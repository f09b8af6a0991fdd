package data

// Arrays that stay in their file: what a batch needs is read where it lies. A file
// is read and not mapped, though either is bounded by the page cache: a mapping
// counts as memory of the process under a limit of its address space, and a file
// that is cut short while it is mapped kills the process.

import (
	"archive/zip"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// An array is elements in row order, little-endian.
type array struct {
	kind  onnx.DType
	shape []int64
	from  io.ReaderAt
	base  int64
}

// bytes is the length of a row, an element of the leading axis.
func (a *array) row() int64 {
	n, _ := onnx.Elements(a.shape[1:])
	return n * a.kind.Size()
}

// read fills dst from a byte of the array on.
func (a *array) read(dst []byte, at int64) error {
	if n, err := a.from.ReadAt(dst, a.base+at); n < len(dst) {
		if err == io.EOF {
			return errors.New("the file is shorter than when it was opened")
		}
		return err
	}
	return nil
}

// inMemory is an array of a tensor.
func inMemory(t runtime.Tensor) *array {
	return &array{kind: t.Type, shape: t.Shape, from: bytes.NewReader(t.Data)}
}

// openFile opens a file that must not be empty; errors name it and what it is for.
func openFile(flag, path string) (*os.File, int64, error) {
	f, size, err := onnx.OpenRegular(path)
	switch {
	case err != nil:
		if info, serr := os.Stat(path); serr == nil && info.IsDir() {
			err = errors.New("is a folder, want a file")
		}
		return nil, 0, fmt.Errorf("%s %s: %w", flag, path, err)
	case size == 0:
		f.Close()
		return nil, 0, fmt.Errorf("%s %s: the file is empty", flag, path)
	}
	return f, size, nil
}

// openNPY opens the array of an .npy file. Elements in another order than a tensor
// has them are read into memory.
func openNPY(f *os.File, path string, size int64) (*array, error) {
	h, err := runtime.ReadNPYHeader(io.NewSectionReader(f, 0, size), size)
	if err != nil {
		return nil, err
	}
	if !h.Plain() {
		t, err := runtime.ReadNPY(path)
		if err != nil {
			return nil, err
		}
		return inMemory(t), nil
	}
	return &array{kind: h.Type, shape: h.Shape, from: f, base: h.Bytes}, nil
}

// openNPZ opens the arrays of an archive by key. What is stored as it is stays in
// the file; what is compressed, or in another order, is read into memory. Keys of
// what is not an array of numbers map to nil.
func openNPZ(f *os.File, size int64) (map[string]*array, error) {
	z, err := zip.NewReader(f, size)
	if err != nil {
		return nil, errors.New("not an .npz file, or truncated: write it with numpy.savez")
	}
	out := map[string]*array{}
	for _, entry := range z.File {
		key, ok := bytes.CutSuffix([]byte(entry.Name), []byte(".npy"))
		if !ok {
			continue
		}
		a, err := openEntry(f, size, entry)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", key, err)
		}
		out[string(key)] = a
	}
	return out, nil
}

func openEntry(f *os.File, whole int64, entry *zip.File) (*array, error) {
	if entry.Method == zip.Store && entry.UncompressedSize64 == entry.CompressedSize64 {
		at, err := entry.DataOffset()
		if err != nil {
			return nil, err
		}
		size := int64(entry.UncompressedSize64)
		if size < 0 || at > whole-size {
			return nil, errors.New("the archive is cut short")
		}
		h, err := runtime.ReadNPYHeader(bufio.NewReader(io.NewSectionReader(f, at, size)), size)
		if errors.Is(err, runtime.ErrNotNumeric) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Plain() {
			if size <= wholeCheck {
				if err := runtime.CheckNPZEntry(entry); err != nil {
					return nil, err
				}
			}
			return &array{kind: h.Type, shape: h.Shape, from: f, base: at + h.Bytes}, nil
		}
	}
	t, err := runtime.ReadNPZEntry(entry)
	if errors.Is(err, runtime.ErrNotNumeric) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return inMemory(t), nil
}
