package pipeline

// Free dimensions of a model's inputs, and the numbers that they were fixed to.
// A file that is written for certain sizes says which, by name, so that a later
// --dim that agrees is no mistake, and one that does not can be told.

import (
	"maps"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// FreeDims lists the named dimensions of the model's inputs that have no number,
// sorted.
func FreeDims(m *onnx.Model) []string {
	return slices.Sorted(maps.Keys(m.Graph.InputSymbols()))
}

// FixedDims are the numbers that the model's dimensions were fixed to when the
// file was written, by name; empty where it does not say. A note that does not
// parse counts as none: it is a hint for messages.
func FixedDims(m *onnx.Model) map[string]int64 {
	dims := map[string]int64{}
	if _, err := m.JSON(DimsKey, &dims); err != nil || dims == nil { // null
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
	return m.SetJSON(DimsKey, fixed)
}
