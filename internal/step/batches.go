package step

import "github.com/onnx-remat/remat/onnx"

// LayersKey is the metadata entry of a step over micro-batches that says where the layers of
// each end (package planner/analysis).
const LayersKey = "remat.layers"

// ForwardBy is how forward depends on values: in all ways, except that the loss of a step over
// micro-batches waits for the backward part of the slices before, which is no forward.
func ForwardBy(m *onnx.Model) Dependency {
	if _, sliced := m.Metadata(LayersKey); sliced {
		return Data
	}
	return Any
}
