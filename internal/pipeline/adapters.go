package pipeline

// Trained low-rank pairs: found again in a state, merged into the forward model that
// they were trained on, or written as PEFT reads them (peft.go).

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/adapter"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// A TrainedPair is one of a state, with the layer of the forward model that it is of.
type TrainedPair struct {
	adapter.Trained
	// Layer bears the name that the pair's parameters are called after.
	Layer grad.Layer
	// Module is the module that the layer is, as a path of attributes, "" for none.
	Module string
	Alpha  float64
}

// TrainedPairs are those of a state.
type TrainedPairs struct {
	List []TrainedPair
	// modules are those of all linear layers of the model.
	modules []string
}

// PairsOf finds the layers of the pairs that a state holds, in the order of the model's
// initializers. Signature is what the export says of the model, and names are those that
// grad gave its initializers.
func PairsOf(m *onnx.Model, s *grad.Signature, f *safetensors.File, names map[string]string) (*TrainedPairs, error) {
	pairs := &TrainedPairs{}
	text, ok := f.Metadata[step.AdaptersKey]
	if !ok {
		return pairs, nil
	}
	left, err := step.ParseAdapters(text)
	if err != nil {
		return nil, err
	}
	// A layer is found by shapes of what its weight becomes, which few exports declare. What cannot be inferred
	// says nothing against the others.
	_, _ = infer.Model(m, infer.Options{})
	s.Rename(names)
	for _, l := range s.Layers(m.Graph, names) {
		module := moduleOf(l)
		pairs.modules = append(pairs.modules, module)
		a, ok := left[l.Name]
		if !ok {
			continue
		}
		delete(left, l.Name)
		p := TrainedPair{Layer: l, Module: module, Alpha: a.Alpha}
		if p.Trained, err = trainedOf(f, l, a); err != nil {
			return nil, err
		}
		pairs.List = append(pairs.List, p)
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("it holds a pair for %q, and the model has no such linear layer: give the model that grad was given, and its --names", slices.Min(slices.Collect(maps.Keys(left))))
	}
	return pairs, nil
}

// trainedOf reads a pair's values.
func trainedOf(f *safetensors.File, l grad.Layer, a step.Adapter) (t adapter.Trained, err error) {
	t = adapter.Trained{Rank: a.Rank, Scale: a.Alpha / float64(a.Rank)}
	if t.A, err = matrixOf(f, l.Name+adapter.SuffixA, l.In, a.Rank); err != nil {
		return t, err
	}
	t.B, err = matrixOf(f, l.Name+adapter.SuffixB, a.Rank, l.Out)
	return t, err
}

func matrixOf(f *safetensors.File, name string, rows, cols int64) ([]float64, error) {
	info, ok := f.Lookup(name)
	switch {
	case !ok:
		return nil, fmt.Errorf("it has no tensor %q", name)
	case !slices.Equal(info.Shape, []int64{rows, cols}) || !info.DType.IsFloat():
		return nil, fmt.Errorf("tensor %q is %s%v, the model needs floats of %v", name, info.DType, info.Shape, []int64{rows, cols})
	}
	return onnx.NewTensor(info.DType, info.Shape, f.Bytes(info)).Float64s()
}
