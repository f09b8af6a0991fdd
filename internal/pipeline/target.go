package pipeline

// What a bundle is made for: the runtimes, as one table.

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// A Target is a runtime that a bundle is for.
type Target struct {
	Name string
	// Doc says which package it is.
	Doc string
	// Newest is the newest release that it comes with.
	Newest kernels.Release
	// Outputs is how it gets next values unless another way is asked for. Fixed: it has
	// no other.
	Outputs step.Outputs
	Fixed   bool
	// WebGPU: it may run on WebGPU.
	WebGPU bool
}

// Targets are the runtimes. Newest is what their registries had when the table was made.
var Targets = []Target{
	{Name: "python", Doc: "onnxruntime", Newest: 32, Outputs: step.Bound},
	{Name: "node", Doc: "onnxruntime-node", Newest: 30, Outputs: step.Bound},
	{Name: "web", Doc: "onnxruntime-web", Newest: 30, Outputs: step.Returned, Fixed: true, WebGPU: true},
	{Name: "java", Doc: "com.microsoft.onnxruntime", Newest: 29, Outputs: step.Bound},
	{Name: "c", Doc: "the C API", Newest: 32, Outputs: step.Bound},
	{Name: "go", Doc: "yalue/onnxruntime_go", Newest: 32, Outputs: step.Bound},
}

// FindTarget returns the target of that name.
func FindTarget(name string) (*Target, error) {
	for i := range Targets {
		if Targets[i].Name == name {
			return &Targets[i], nil
		}
	}
	return nil, fmt.Errorf("%q: want %s", name, TargetNames(" or "))
}

// TargetNames lists them.
func TargetNames(between string) string {
	var names []string
	for i := range Targets {
		names = append(names, Targets[i].Name)
	}
	return strings.Join(names, between)
}

// Ask makes options those of the target.
func (t *Target) Ask(o *Options) error {
	if t.Fixed && o.Outputs != "" && o.Outputs != t.Outputs {
		return fmt.Errorf("outputs %s: %s has outputs %s only", o.Outputs, t.Name, t.Outputs)
	}
	if o.Outputs == step.Rows { // the manifest and the programs know one output for an input
		return errors.New("outputs rows: a bundle's next values are whole: use outputs bound")
	}
	o.Outputs = cmp.Or(o.Outputs, t.Outputs)
	o.WebGPU = t.WebGPU
	return nil
}

// serves reports that the newest release for the target runs a typed model.
func (t *Target) serves(m *onnx.Model) bool { return needs(m) <= t.Newest }
