package pipeline

// Free dimensions of a model's inputs, and the numbers that they were fixed to.
// A file that is written for certain sizes says which, by name, so that a later
// --dim that agrees is no mistake, and one that does not can be told.

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// FreeDims lists the named dimensions of the model's inputs that have no number,
// sorted.
func FreeDims(m *onnx.Model) []string {
	names := map[string]bool{}
	for _, v := range m.Graph.Inputs {
		for _, d := range v.Type.Shape {
			for _, s := range d.Symbols() {
				names[s] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// FixedDims are the numbers that the model's dimensions were fixed to when the
// file was written, by name; empty where it does not say. A note that does not
// parse counts as none: it is a hint for messages.
func FixedDims(m *onnx.Model) map[string]int64 {
	dims := map[string]int64{}
	if text, ok := m.Metadata(DimsKey); ok && json.Unmarshal([]byte(text), &dims) != nil {
		return map[string]int64{}
	}
	return dims
}

// NoteDims records in the model which of its free dimensions dims fix, beside
// those that were fixed before.
func NoteDims(m *onnx.Model, free []string, dims map[string]int64) error {
	fixed := FixedDims(m)
	for _, name := range free {
		if n, ok := dims[name]; ok {
			fixed[name] = n
		}
	}
	if len(fixed) == 0 {
		return nil
	}
	return SetJSON(m, DimsKey, fixed)
}

// NamelessDim returns an error for the first input with a dimension that has
// neither a number nor a name.
func NamelessDim(m *onnx.Model) error {
	for _, v := range m.Graph.Inputs {
		if !v.Type.Ranked {
			continue // inference says what is wrong with it
		}
		for axis, d := range v.Type.Shape {
			if !d.Known() {
				return fmt.Errorf("input %q is %s: axis %d has neither size nor name: export with a fixed shape, or name the dimension", v.Name, v.Type, axis)
			}
		}
	}
	return nil
}
