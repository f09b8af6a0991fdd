package runtime

// Parameters: inputs whose values lie in files that the metadata entry
// remat.parameters names.
//
//	{"P": {"file": "out.safetensors", "offset": 512, "bytes": 4096}}
//
// A file that is the forward model's may be written anew by who exports it again, with
// other values, or with others at these places. How large it was ("file_bytes") tells most such
// files apart, and the forward model ("model", from the file's folder), where it still lies there, says whether the
// parameter, which it may call by another name ("initializer"), is where it was.
//
// A file is mapped privately: what is only read is shared with the page cache,
// and an update in place makes pages of the process's own, never of the file.
// Paths are resolved inside the model's folder, as external data is.
//
// An entry without a file describes values that are made when they are needed:
//
//	{"P": {"file": "", "init": "normal", "scale": 0.02, "seed": 1}}

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
)

// ParametersKey is the metadata entry that says where parameters are.
const ParametersKey = "remat.parameters"

// A Location is where a parameter's bytes lie; the path is relative to the
// model's file.
type Location struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	// FileBytes is how large the file was, 0 where nobody noted it.
	FileBytes int64 `json:"file_bytes,omitempty"`
	// Model is the forward model that the file belongs to, "" where nobody noted it, seen from the file's
	// folder; Initializer is what it calls the parameter, "" for the same name.
	Model       string `json:"model,omitempty"`
	Initializer string `json:"initializer,omitempty"`
	// Where File is empty, Init and Seed may say how the values are made.
	weights.Init
	Seed uint64 `json:"seed"`
}

// ReadLocations returns the entry remat.parameters of a model, nil where there
// is none.
func ReadLocations(m *onnx.Model) (map[string]Location, error) {
	var out map[string]Location
	if _, err := m.JSON(ParametersKey, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// mappings are the parameter files of one session, each mapped once.
type mappings struct {
	files  map[string][]byte
	models map[string]map[string]onnx.External // where forward models have their initializers, by location
	taken  []span                              // what inputs have of them
}

// A span is where bytes of a mapping lie in memory.
type span struct{ from, to uintptr }

// take notes that an input has its value in bytes of a mapping, and reports whether
// none before has any of them.
func (p *mappings) take(data []byte) bool {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	s := span{from, from + uintptr(len(data))}
	free := !slices.ContainsFunc(p.taken, func(t span) bool { return s.from < t.to && t.from < s.to })
	p.taken = append(p.taken, s)
	return free
}

// slice returns the bytes of one parameter.
func (p *mappings) slice(m *onnx.Model, name string, at Location, want int64) ([]byte, error) {
	if at.Bytes != want {
		return nil, fmt.Errorf("parameter %q: %d bytes in %s, its type needs %d", name, at.Bytes, at.File, want)
	}
	data, err := p.file(m, at.File)
	if err != nil {
		return nil, fmt.Errorf("parameter %q: %w", name, err)
	}
	if at.FileBytes != 0 && int64(len(data)) != at.FileBytes {
		return nil, fmt.Errorf("parameter %q: %s has %d bytes, and had %d when the graph was derived: derive it from the file as it is now",
			name, at.File, len(data), at.FileBytes)
	}
	if at.Offset < 0 || at.Offset > int64(len(data)) || at.Bytes > int64(len(data))-at.Offset {
		return nil, fmt.Errorf("parameter %q: bytes %d to %d lie outside %s (%d bytes)",
			name, at.Offset, at.Offset+at.Bytes, at.File, len(data))
	}
	if p.moved(m, name, at) {
		return nil, fmt.Errorf("parameter %q: %s says that it lies elsewhere in %s than when the graph was derived: derive it from the model as it is now",
			name, path.Join(path.Dir(at.File), at.Model), at.File)
	}
	return data[at.Offset : at.Offset+at.Bytes : at.Offset+at.Bytes], nil
}

// moved reports that the forward model has the parameter at another place of the same file now. Where it is
// gone, or has no such initializer there, nobody can tell.
func (p *mappings) moved(m *onnx.Model, name string, at Location) bool {
	if at.Model == "" {
		return false
	}
	location := path.Join(path.Dir(at.File), at.Model)
	places, read := p.models[location]
	if !read {
		if file, err := m.Files().Resolve(location); err == nil {
			places, _ = onnx.ExternalPlaces(file)
		}
		if p.models == nil {
			p.models = map[string]map[string]onnx.External{}
		}
		p.models[location] = places
	}
	now, known := places[cmp.Or(at.Initializer, name)]
	return known && path.Join(path.Dir(location), now.Location) == path.Clean(at.File) &&
		(now.Offset != at.Offset || now.Length >= 0 && now.Length != at.Bytes)
}

// file maps a data file of the model, privately: what is written there stays in
// memory.
func (p *mappings) file(m *onnx.Model, location string) ([]byte, error) {
	path, err := m.Files().Resolve(location)
	if err != nil {
		return nil, err
	}
	if data, ok := p.files[path]; ok {
		return data, nil
	}
	data, err := onnx.MapPrivate(path)
	if err == nil && len(data) == 0 {
		err = errors.New("no data")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", location, err)
	}
	if p.files == nil {
		p.files = map[string][]byte{}
	}
	p.files[path] = data
	return data, nil
}

func (p *mappings) close() error {
	var first error
	for _, data := range p.files {
		if err := unix.Munmap(data); err != nil && first == nil {
			first = err
		}
	}
	p.files, p.taken = nil, nil
	return first
}
