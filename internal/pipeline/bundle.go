package pipeline

// A bundle is a folder that a runtime trains from as it stands:
//
//	manifest.json   what feeds each input, what becomes what, options, the predicted peak
//	train.onnx      the graph
//	update0.onnx    with updates outside the graph: what updates parameters of one shape
//	weights/        files that hold first values of parameters, and frozen weights
//
// Values that the source makes from a seed are made here, as no other program knows how.

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
)

// madeFile holds the values that are made from seeds.
const madeFile = WeightsFolder + "/made.safetensors"

// Bundle writes a planned file of a source for a target, as a new folder, with graphs of
// updates by an optimizer unless that is None, which are predicted with the engine.
func (f *File) Bundle(e *runtime.Engine, source *Source, dir string, t *Target, document report.Plan, updates optim.Kind) error {
	if need := RequiresOf(f.Model).ONNXRuntime; !t.serves(f.Model) {
		return fmt.Errorf("%s: needs ONNX Runtime %s, and the newest for %s is %s: export the model with an older opset", source.Path, need, t.Name, t.Newest)
	}
	return onnx.MakeFolder(dir, func(dir string) error {
		graph := filepath.Join(dir, GraphFile)
		err := f.save(source, graph, document, func(m *onnx.Model, files *onnx.Outputs) error {
			p, err := newPlaces(source, files, graph, func(string, ...any) {})
			if err != nil {
				return err
			}
			if err := p.move(m); err != nil {
				return err
			}
			return makeValues(m, dir)
		})
		if err != nil {
			return err
		}
		manifest, err := f.manifest(t)
		if err != nil {
			return err
		}
		if updates != optim.None {
			if manifest.Updates, err = f.updates(e, dir, t, updates); err != nil {
				return err
			}
		}
		text, err := json.MarshalIndent(manifest, "", " ")
		if err != nil {
			return err
		}
		return onnx.WriteFile(filepath.Join(dir, ManifestFile), append(text, '\n'))
	})
}

// makeValues writes the parameters that are made from a seed into a file of the folder,
// and notes where they are.
func makeValues(m *onnx.Model, dir string) error {
	located, err := runtime.ReadLocations(m)
	if err != nil {
		return err
	}
	var infos []safetensors.Info
	for _, v := range m.Graph.Inputs {
		at := located[v.Name]
		if at.File != "" || !at.Known() || v.Type.DType != onnx.Float32 {
			continue
		}
		shape, err := extents(v)
		if err != nil {
			return err
		}
		infos = append(infos, safetensors.Info{Name: v.Name, DType: v.Type.DType, Shape: shape})
	}
	if len(infos) == 0 {
		return nil
	}
	layout, err := safetensors.Plan(infos, map[string]string{"format": "pt"})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, WeightsFolder), 0o755); err != nil {
		return err
	}
	err = layout.Write(filepath.Join(dir, madeFile), func(t safetensors.Info, w io.Writer) error {
		at, data := located[t.Name], make([]byte, t.Bytes)
		at.Fill(data, at.Seed, t.Name, 0)
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	entries, err := parameterEntries(m)
	if err != nil {
		return err
	}
	for _, t := range layout.Tensors {
		entries[t.Name] = map[string]any{"file": madeFile, "offset": t.Offset, "bytes": t.Bytes}
	}
	return m.SetJSON(runtime.ParametersKey, entries)
}
