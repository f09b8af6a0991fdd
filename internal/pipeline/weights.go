package pipeline

// Where the values of parameters lie: the metadata entry remat.parameters, and the
// file of those that the model held itself.

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// parameterEntries are those of the metadata entry remat.parameters. They may hold
// more than a location, which is kept.
func parameterEntries(m *onnx.Model) (map[string]map[string]any, error) {
	var entries map[string]map[string]any
	if _, err := m.JSON(runtime.ParametersKey, &entries); err != nil {
		return nil, err
	}
	if entries == nil { // none, or null
		entries = map[string]map[string]any{}
	}
	return entries, nil
}

// moveParameters gives the files of the metadata entry remat.parameters the location
// that to returns for their own, and reports whether it names any.
func moveParameters(m *onnx.Model, to func(location string) (string, error)) (bool, error) {
	entries, err := parameterEntries(m)
	if err != nil {
		return false, err
	}
	used := false
	for _, entry := range entries {
		if file, ok := entry["file"].(string); ok && file != "" {
			if entry["file"], err = to(file); err != nil {
				return false, err
			}
			used = true
		}
	}
	if !used {
		return false, nil
	}
	return true, m.SetJSON(runtime.ParametersKey, entries)
}

// placeParameters records where each parameter's values lie: external ones in
// their own file, which at finds, inline ones streamed into OUT.safetensors, which
// beside names and which files put into its place with the model. There go the initializers
// that are held in fewer bits, too.
func placeParameters(m *onnx.Model, d *Derivation, files *onnx.Outputs, at func(location string) (string, error), beside func() (string, error)) error {
	places, err := parameterEntries(m)
	if err != nil {
		return err
	}
	var names []string
	inline := map[string]*onnx.Tensor{}
	model := placesIn(d.source)
	for name, data := range d.Values() {
		if !data.IsExternal() {
			names, inline[name] = append(names, name), data
			continue
		}
		x, err := data.External()
		if err != nil {
			return err
		}
		size, err := data.ByteSize()
		if err != nil {
			return err
		}
		file, err := at(x.Location)
		if err != nil {
			return err
		}
		places[name] = map[string]any{"file": file, "offset": x.Offset, "bytes": size}
		if path, err := d.source.Model.Files().Resolve(x.Location); err == nil {
			if info, err := os.Stat(path); err == nil {
				places[name]["file_bytes"] = info.Size()
			}
		}
		x.Length = size
		model.note(places[name], name, x)
	}
	for _, v := range d.narrow(m.Graph) {
		names, inline[v.Name] = append(names, v.Name), v.Init
	}
	if len(names) == 0 {
		return m.SetJSON(runtime.ParametersKey, places)
	}
	file, err := beside()
	if err != nil {
		return err
	}
	layout, err := WriteTensors(files, file, names, inline, safetensors.Beside())
	if err != nil {
		return err
	}
	for _, t := range layout.Tensors {
		if v := m.Graph.Value(t.Name); v != nil && v.IsConstant() {
			v.Init = onnx.ExternalTensor(t.Name, v.Init.DType(), v.Init.Dims(), filepath.Base(file), t.Offset, t.Bytes)
			continue
		}
		places[t.Name] = map[string]any{"file": filepath.Base(file), "offset": t.Offset, "bytes": t.Bytes}
	}
	return m.SetJSON(runtime.ParametersKey, places)
}

// sourcePlaces are where the forward model's file says that its initializers lie in others.
type sourcePlaces struct {
	path    string
	byName  map[string]onnx.External
	byPlace map[onnx.External]string // a name of each
}

// placesIn finds them in the model as it was read, as passes rename what they changed.
func placesIn(source *Source) sourcePlaces {
	s := sourcePlaces{path: source.Path, byName: map[string]onnx.External{}, byPlace: map[onnx.External]string{}}
	for _, v := range source.Model.Graph.Initializers {
		at, err := v.Init.External()
		if err != nil {
			continue // in the file itself
		}
		s.byName[v.Name] = at
		if other, ok := s.byPlace[at]; !ok || v.Name < other {
			s.byPlace[at] = v.Name
		}
	}
	return s
}

// note has an entry of remat.parameters say which model's file knows where the parameter lies, so
// that a file whose parameters lie in another order, as of another export, is told from one with other values.
func (s sourcePlaces) note(entry map[string]any, name string, at onnx.External) {
	if s.byName[name] != at {
		other, ok := s.byPlace[at]
		if !ok {
			return
		}
		entry["initializer"] = other
	}
	if model, err := filepath.Rel(filepath.Dir(filepath.FromSlash(at.Location)), filepath.Base(s.path)); err == nil {
		entry["model"] = filepath.ToSlash(model)
	}
}

// narrow lists the initializers of a graph made of the derived one that hold frozen
// weights in fewer bits.
func (d *Derivation) narrow(g *onnx.Graph) (list []*onnx.Value) {
	for _, w := range d.Quantized {
		for _, name := range w.Holds() {
			if v := g.Value(name); v != nil && v.IsConstant() && !v.Init.IsExternal() {
				list = append(list, v)
			}
		}
	}
	return list
}

// WriteTensors writes tensors into one safetensors file, in the order of names, which is put
// into its place with others. The format has no elements of less than a byte: these are
// written as bytes.
func WriteTensors(files *onnx.Outputs, path string, names []string, tensors map[string]*onnx.Tensor, meta map[string]string) (*safetensors.Layout, error) {
	infos := make([]safetensors.Info, len(names))
	for i, name := range names {
		t := tensors[name]
		infos[i] = safetensors.Info{Name: name, DType: t.DType(), Shape: t.Dims()}
		if t.DType().Bits() < 8 {
			bytes, err := t.ByteSize()
			if err != nil {
				return nil, err
			}
			infos[i].DType, infos[i].Shape = onnx.Uint8, []int64{bytes}
		}
	}
	layout, err := safetensors.Plan(infos, meta)
	if err != nil {
		return nil, err
	}
	return layout, layout.WriteWith(files, path, func(t safetensors.Info, w io.Writer) error {
		data, err := tensors[t.Name].Bytes()
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
}

// CanSave refuses to save the state of a session that has none, or values of two steps.
func CanSave(s *runtime.Session, path string) error {
	if len(s.Updated()) == 0 {
		return fmt.Errorf("%s: the graph has no update: derive it with remat grad --optimizer", path)
	}
	if err := s.Whole(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// SaveState writes every input that a session updates, from where it lies.
func SaveState(s *runtime.Session, path string) error {
	if err := CanSave(s, path); err != nil {
		return err
	}
	names := s.Updated()
	infos := make([]safetensors.Info, len(names))
	for i, name := range names {
		dtype, shape, err := s.ShapeOf(name)
		if err != nil {
			return err
		}
		infos[i] = safetensors.Info{Name: name, DType: dtype, Shape: shape}
	}
	meta := map[string]string{"format": "pt"}
	for _, key := range step.Noted {
		if text, ok := s.Model.Metadata(key); ok {
			meta[key] = text
		}
	}
	layout, err := safetensors.Plan(infos, meta)
	if err != nil {
		return err
	}
	return layout.Write(path, func(t safetensors.Info, w io.Writer) error {
		return s.View(t.Name, func(v runtime.Tensor) error {
			_, err := w.Write(v.Data)
			return err
		})
	})
}
