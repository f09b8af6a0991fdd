package pipeline

// What a program needs to know to train from a bundle, as JSON: several runtimes do not
// show a file's metadata.

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/predict"
)

// ManifestFile and GraphFile are what a bundle's files are called.
const (
	ManifestFile = "manifest.json"
	GraphFile    = "train.onnx"
)

// A Manifest describes a bundle; docs/cli.md has its fields. Paths are relative to it.
type Manifest struct {
	Version     int    `json:"version"`
	For         string `json:"for"`
	ONNXRuntime string `json:"onnxruntime"`
	Graph       string `json:"graph"`
	// External lists the files that the graph itself refers to.
	External []string         `json:"external"`
	Session  ManifestSession  `json:"session"`
	Next     step.Outputs     `json:"next_values"`
	Loss     string           `json:"loss"`
	Inputs   []ManifestInput  `json:"inputs"`
	Outputs  []ManifestOutput `json:"outputs"`
	// Updates are the graphs of updates outside the graph; absent where it updates itself.
	Updates []ManifestUpdate `json:"updates,omitempty"`
	// Predicted is of a step; null where it cannot be predicted to the byte.
	Predicted *ManifestPrediction `json:"predicted"`
}

// ManifestSession is the options under which the prediction holds.
type ManifestSession struct {
	MemoryPattern bool   `json:"memory_pattern"`
	Arena         bool   `json:"arena"`
	Optimization  string `json:"graph_optimization_level"`
	Threads       int    `json:"intra_op_num_threads"`
}

// A ManifestInput is an input of the graph.
type ManifestInput struct {
	Name  string  `json:"name"`
	Type  string  `json:"type"`
	Shape []int64 `json:"shape"`
	// Fed is what feeds it: "batch", "parameter", "state", "lr", "step" or "loss_scale"; in a
	// graph of updates "gradient" too.
	Fed string `json:"fed"`
	// Below bounds the integers of a batch, where the graph shows it.
	Below int64 `json:"below,omitempty"`
	// Next is the output that becomes its value, Gradient the one that is its gradient.
	Next     string `json:"next,omitempty"`
	Gradient string `json:"gradient,omitempty"`
	// Initial is where its first value lies; without it state begins with zeros.
	Initial *ManifestValue `json:"initial,omitempty"`
	// Value is the first of a loss scale.
	Value float64 `json:"value,omitempty"`
}

// A ManifestValue is bytes of a file, little-endian.
type ManifestValue struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
}

// A ManifestOutput is an output of the graph.
type ManifestOutput struct {
	Name  string  `json:"name"`
	Type  string  `json:"type"`
	Shape []int64 `json:"shape"`
}

// ManifestPrediction is what a step takes, in bytes.
type ManifestPrediction struct {
	LivePeak   int64 `json:"live_peak_bytes"`
	Parameters int64 `json:"parameter_bytes"`
	State      int64 `json:"state_bytes"`
	Feeds      int64 `json:"feed_bytes"`
	Session    int64 `json:"session_bytes"`
	Reserved   int64 `json:"reserved_bytes"`
	Total      int64 `json:"total_bytes"`
}

// optimizationLevels are what levels are called in every binding.
var optimizationLevels = map[int]string{0: "disabled", 1: "basic", 99: "all"}

// manifest describes a file that is written for a target.
func (f *File) manifest(t *Target) (*Manifest, error) {
	m, o, roles := f.Model, &f.Variant.Options, f.Roles()
	d := &Manifest{
		Version: 1, For: t.Name, ONNXRuntime: RequiresOf(m).ONNXRuntime, Graph: GraphFile, External: []string{},
		Session: ManifestSession{Arena: true, Optimization: optimizationLevels[o.OptLevel], Threads: o.Threads},
		Next:    o.Outputs, Loss: roles.Loss,
	}
	seen := map[string]bool{}
	for _, v := range m.Graph.Initializers {
		if !v.Init.IsExternal() {
			continue
		}
		x, err := v.Init.External()
		if err != nil {
			return nil, err
		}
		if !seen[x.Location] {
			seen[x.Location] = true
			d.External = append(d.External, x.Location)
		}
	}
	var err error
	if d.Inputs, err = manifestInputs(m, roles); err != nil {
		return nil, err
	}
	for _, v := range m.Graph.Outputs {
		shape, err := extents(v)
		if err != nil {
			return nil, err
		}
		d.Outputs = append(d.Outputs, ManifestOutput{v.Name, v.Type.DType.String(), shape})
	}
	d.Predicted = manifestPrediction(f.Prediction)
	return d, nil
}

// manifestPrediction is nil for a prediction that is not exact.
func manifestPrediction(of *predict.Prediction) *ManifestPrediction {
	if !of.Exact() {
		return nil
	}
	p := TotalOf(of)
	return &ManifestPrediction{LivePeak: p.Live, Parameters: p.Parameters, State: p.State, Feeds: p.Feeds,
		Session: p.Session, Reserved: p.Reserved, Total: p.Bytes()}
}

func manifestInputs(m *onnx.Model, roles step.Roles) ([]ManifestInput, error) {
	parameters, state, err := runtime.SortInputs(m, roles)
	if err != nil {
		return nil, err
	}
	located, err := runtime.ReadLocations(m)
	if err != nil {
		return nil, err
	}
	fed := map[string]string{}
	for _, name := range parameters {
		fed[name] = "parameter"
	}
	for _, name := range state {
		fed[name] = "state"
	}
	list := []ManifestInput{}
	for _, v := range m.Graph.Inputs {
		if v.Init != nil {
			continue // its initializer is the default
		}
		shape, err := extents(v)
		if err != nil {
			return nil, err
		}
		in := ManifestInput{Name: v.Name, Type: v.Type.DType.String(), Shape: shape, Fed: fed[v.Name], Next: roles.New[v.Name], Gradient: roles.Grad[v.Name]}
		switch at := located[v.Name]; {
		case in.Fed == "" && runtime.IsTrainingScalar(v):
			if in.Fed = v.Name; v.Name == "loss_scale" {
				in.Value = runtime.DefaultLossScale
			}
		case in.Fed == "":
			in.Fed, in.Below = "batch", runtime.FeedLimit(m, v)
		case at.File != "":
			in.Initial = &ManifestValue{at.File, at.Offset, at.Bytes}
		}
		list = append(list, in)
	}
	return list, nil
}

// extents are the numbers of a value's shape.
func extents(v *onnx.Value) ([]int64, error) {
	shape := []int64{}
	for _, d := range v.Type.Shape {
		n, known := d.Int()
		if !known {
			return nil, fmt.Errorf("%q has the shape %s: a bundle needs a size for every dimension, from --dim", v.Name, v.Type)
		}
		shape = append(shape, n)
	}
	if !v.Type.Ranked {
		return nil, fmt.Errorf("%q has no known shape: a bundle needs one", v.Name)
	}
	return shape, nil
}
