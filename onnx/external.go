package onnx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Files maps the external data files of one model, each once. Nothing is read
// until a tensor's bytes are touched. The folder is the model's own: paths that
// leave it (.., absolute, through a link) are refused, because a model file is
// not trusted to name files of the machine.
type Files struct {
	dir  string
	mu   sync.Mutex
	maps map[string][]byte // by clean location
}

func newFiles(dir string) *Files { return &Files{dir: dir, maps: map[string][]byte{}} }

// Resolve returns the path of an external data file inside the model's folder.
func (f *Files) Resolve(location string) (string, error) {
	if f == nil {
		return "", fmt.Errorf("external data %q: the model has no folder", location)
	}
	clean := filepath.Clean(filepath.FromSlash(location))
	if !filepath.IsLocal(clean) {
		return "", fmt.Errorf("external data %q lies outside the model's folder", location)
	}
	path := filepath.Join(f.dir, clean)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("external data %q: %w", location, PathCause(err))
	}
	root, err := filepath.EvalSymlinks(f.dir)
	if err != nil {
		return "", fmt.Errorf("external data %q: %w", location, PathCause(err))
	}
	rel, err := filepath.Rel(root, real)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("external data %q lies outside the model's folder through a link", location)
	}
	return path, nil
}

// PathCause drops the paths from a file error, which the caller names already, and the call of
// the system's that failed.
func PathCause(err error) error {
	var at *os.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &at):
		err = at.Err
	case errors.As(err, &link):
		err = link.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

// Map returns the whole file at that location, mapped read-only.
func (f *Files) Map(location string) ([]byte, error) {
	if f == nil {
		return nil, fmt.Errorf("external data %q: the model has no folder", location)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m, ok := f.maps[filepath.Clean(location)]; ok {
		return m, nil
	}
	path, err := f.Resolve(location)
	if err != nil {
		return nil, err
	}
	m, err := MapFile(path)
	if err != nil {
		return nil, fmt.Errorf("external data %q: %w", location, err)
	}
	f.maps[filepath.Clean(location)] = m
	return m, nil
}

// MapFile maps a regular file read-only; an empty one maps to no bytes. Its errors
// do not name the file.
func MapFile(path string) ([]byte, error) { return mapFile(path, unix.PROT_READ, unix.MAP_SHARED) }

// MapPrivate is MapFile, but the bytes may be written: that stays in memory.
func MapPrivate(path string) ([]byte, error) {
	return mapFile(path, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_NORESERVE)
}

func mapFile(path string, protection, flags int) ([]byte, error) {
	file, size, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if int64(int(size)) != size {
		return nil, errors.New("too large to be mapped on this machine")
	}
	if size == 0 {
		return []byte{}, nil
	}
	return unix.Mmap(int(file.Fd()), 0, int(size), protection, flags)
}

// OpenRegular opens a regular file for reading and returns its size. Its errors do
// not name the file.
func OpenRegular(path string) (*os.File, int64, error) {
	// Without O_NONBLOCK, opening a named pipe waits for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, PathCause(err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		file.Close()
		return nil, 0, PathCause(err)
	}
	return file, info.Size(), nil
}

// Unmap gives a mapping back.
func Unmap(m []byte) error {
	if len(m) == 0 {
		return nil
	}
	return unix.Munmap(m)
}

// tensor returns the bytes of one tensor in its external file.
func (f *Files) tensor(t *Tensor, size int64) ([]byte, error) {
	e, err := t.External()
	if err != nil {
		return nil, err
	}
	m, err := f.Map(e.Location)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", t.Proto.GetName(), err)
	}
	if e.Length >= 0 && e.Length != size {
		return nil, fmt.Errorf("tensor %q: external length %d where %s%v takes %d", t.Proto.GetName(), e.Length, t.DType(), t.Dims(), size)
	}
	if e.Offset > int64(len(m)) || size > int64(len(m))-e.Offset {
		return nil, fmt.Errorf("tensor %q: %d bytes from %d on lie beyond the end of %q (%d bytes)", t.Proto.GetName(), size, e.Offset, e.Location, len(m))
	}
	return m[e.Offset : e.Offset+size : e.Offset+size], nil
}

// Close unmaps the files. No tensor that lies in them may be used after it.
func (f *Files) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var first error
	for location, m := range f.maps {
		if err := Unmap(m); err != nil && first == nil {
			first = err
		}
		delete(f.maps, location)
	}
	return first
}

// shapeBytes is up to which size what may tell a shape is taken into the graph.
const shapeBytes = 1024

// takeInShapes has small integers, and floats that tell a shape, in the graph where a
// writer put them beside it. ONNX Runtime infers shapes with them, opens no other file
// for that, and refuses the graph. What cannot be read stays where it is said to be.
func (g *Graph) takeInShapes() {
	for _, v := range g.Initializers {
		t := v.Init
		if !t.IsExternal() || t.DType().IsFloat() && !v.tellsShape() {
			continue
		}
		if size, err := t.ByteSize(); err != nil || size > shapeBytes {
			continue
		}
		if data, err := t.Bytes(); err == nil {
			t.Proto.RawData, t.Proto.ExternalData, t.Proto.DataLocation = slices.Clone(data), nil, nil
		}
	}
}

// tellsShape reports a value that only operators read which compute a shape of floats.
func (v *Value) tellsShape() bool {
	return len(v.uses) > 0 && !slices.ContainsFunc(v.uses, func(u Use) bool { return !u.Node.Is("Resize", "Upsample", "Range") })
}
