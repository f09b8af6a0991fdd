package models

// Writing a built model: where its parameters' values come from, and where
// they go. Three forms of the same graph:
//
//	external   initializers that point into a safetensors file beside the model
//	inline     initializers inside the model, for small ones
//	none       graph inputs; the metadata entry remat.parameters says how
//	           each is made, and whoever runs the model makes the same values
//
// Weights from a file are converted to float32 where they are half as wide. A
// file in the model's own folder that needs no conversion is referred to, not
// copied.

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
)

// A Place is an entry of the metadata remat.parameters: where a parameter's
// values lie, or how they are made where File is empty.
type Place struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	*weights.Init
	Seed uint64 `json:"seed,omitempty"`
}

func zooMetadata(r Row, c Config) string {
	text, err := json.Marshal(struct {
		Name string `json:"name"`
		Config
	}{r.Name, c})
	if err != nil {
		panic("models: " + err.Error())
	}
	return string(text)
}

// Describe leaves the parameters graph inputs and records how their values are
// made. Nothing is generated.
func (m *Built) Describe() error {
	places := map[string]Place{}
	for _, p := range m.Params {
		places[p.Name] = Place{Bytes: 4 * p.Elements(), Init: &p.Init, Seed: m.Config.Seed}
	}
	return m.record(places)
}

// SaveBare writes the graph without its weights, which are described.
func (m *Built) SaveBare(path string) error {
	if err := m.Describe(); err != nil {
		return err
	}
	return m.Model.Save(path)
}

// record writes the metadata entry remat.parameters, which also tells what is
// a parameter and what a constant.
func (m *Built) record(places map[string]Place) error {
	return m.Model.SetJSON("remat.parameters", places)
}

// Values generates one parameter as a tensor.
func (m *Built) Values(p Parameter) *onnx.Tensor {
	data := make([]byte, 4*p.Elements())
	p.Init.Fill(data, m.Config.Seed, p.Name, 0)
	return onnx.NewTensor(onnx.Float32, p.Shape, data)
}

// Inline makes the parameters initializers that hold their values.
func (m *Built) Inline() {
	for i := range m.Params {
		m.toInitializer(&m.Params[i], m.Values(m.Params[i]))
	}
}

// Save writes the model to path and generates its weights into a safetensors
// file of the same name beside it.
func (m *Built) Save(path string) error { return m.saveDrawn(path, math.MaxInt64) }

// hollow is the size in bytes from which SaveHollow leaves a weight out: nothing that
// predicts a step looks into larger ones.
const hollow = 1 << 20

// SaveHollow is Save for a model that is never run: of large weights the file has the
// place, and takes no room for it.
func (m *Built) SaveHollow(path string) error { return m.saveDrawn(path, hollow) }

// saveDrawn is Save, with weights of at most so many bytes drawn, and zeros for others.
func (m *Built) saveDrawn(path string, most int64) error {
	file, err := weightPath(path)
	if err != nil {
		return err
	}
	if err := safetensors.CanReplace(file, path); err != nil {
		return err
	}
	layout, err := safetensors.Plan(m.tensors(), safetensors.Beside())
	if err != nil {
		return err
	}
	return onnx.Together(func(files *onnx.Outputs) error {
		err := layout.CreateWith(files, file, func(f *os.File) error { return m.generate(f, layout, most) })
		if err != nil {
			return err
		}
		return m.saveReferring(files, path, filepath.Base(file), layout.Lookup)
	})
}

// weightPath is the file beside the model that holds its weights.
func weightPath(path string) (string, error) {
	file := strings.TrimSuffix(path, filepath.Ext(path)) + ".safetensors"
	if file == path {
		return "", fmt.Errorf("%s: the weights need that name: end the model's name in .onnx", path)
	}
	return file, nil
}

func (m *Built) tensors() []safetensors.Info {
	out := make([]safetensors.Info, len(m.Params))
	for i, p := range m.Params {
		out[i] = safetensors.Info{Name: p.Name, DType: onnx.Float32, Shape: p.Shape}
	}
	return out
}

// chunk is the part of a parameter that one worker generates at a time.
const chunk = 16 * weights.BlockElements

// generate fills the file on all cores, with weights of at most so many bytes.
func (m *Built) generate(f *os.File, layout *safetensors.Layout, most int64) error {
	type job struct {
		param int
		first int64
	}
	jobs := make(chan job)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			buffer := make([]byte, 4*chunk)
			for j := range jobs {
				p := m.Params[j.param]
				part := buffer[:4*min(chunk, p.Elements()-j.first)]
				p.Init.Fill(part, m.Config.Seed, p.Name, j.first)
				if _, err := f.WriteAt(part, layout.Tensors[j.param].Offset+4*j.first); err != nil && errs[w] == nil {
					errs[w] = err
				}
			}
		})
	}
	for i, p := range m.Params {
		if 4*p.Elements() > most {
			continue
		}
		for first := int64(0); first < p.Elements(); first += chunk {
			jobs <- job{i, first}
		}
	}
	close(jobs)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// saveReferring writes the model with its parameters as initializers in that
// file, which lies in the model's folder.
func (m *Built) saveReferring(files *onnx.Outputs, path, location string, lookup func(string) (safetensors.Info, bool)) error {
	places := map[string]Place{}
	for i := range m.Params {
		p := &m.Params[i]
		info, ok := lookup(p.Name)
		if !ok {
			return fmt.Errorf("%s: no tensor %q", location, p.Name)
		}
		m.toInitializer(p, onnx.ExternalTensor(p.Name, onnx.Float32, p.Shape, location, info.Offset, info.Bytes))
		places[p.Name] = Place{File: location, Offset: info.Offset, Bytes: info.Bytes}
	}
	if err := m.record(places); err != nil {
		return err
	}
	return m.Model.SaveWith(files, path)
}

// toInitializer turns the parameter's input into an initializer of that name.
func (m *Built) toInitializer(p *Parameter, t *onnx.Tensor) {
	g := m.Model.Graph
	old := p.value
	v := g.AddConstant(p.Name+".value", t)
	g.ReplaceUses(old, v)
	g.RemoveInput(old)
	g.Rename(v, p.Name)
	p.value = v
}
