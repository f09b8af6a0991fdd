package runtime

import (
	"bytes"
	"context"
	"maps"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Evaluate runs a model that has no inputs once, on the CPU, and returns its
// outputs by name. Outputs whose elements cannot be read are left out.
func (e *Engine) Evaluate(m *onnx.Model) (map[string]Tensor, error) {
	values := map[string]Tensor{}
	err := e.evaluate(m, Options{Purpose: "compute constants"}, func(o Output) {
		if o.Err == nil {
			t := o.Tensor
			t.Data = bytes.Clone(t.Data) // the session's
			values[o.Name] = t
		}
	})
	return values, err
}

// Shapes finds the shapes that values of a graph have in a step with the feeds of o, by name:
// what leads to them runs once, on the CPU. It must not lead there from parameters, whose
// values it does not know. An input without a feed is random, as in a session, or a FeedError.
func (e *Engine) Shapes(m *onnx.Model, values []*onnx.Value, o Options, random bool) (map[string]onnx.Shape, error) {
	part, err := m.CloneOf(values)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	part.Proto.MetadataProps = nil // speaks of what is gone
	feeds := maps.Clone(o.Feeds)
	if feeds == nil {
		feeds = map[string]Tensor{}
	}
	maps.Copy(feeds, o.Feed)
	given, err := newFeeds(part, &Options{Dims: o.Dims, Feeds: feeds})
	if err != nil {
		return nil, err
	}
	below := map[string]onnx.Fed{}
	for _, v := range part.Graph.Inputs {
		if !random && !given.has(v.Name) {
			return nil, &FeedError{v.Name, "sizes depend on it, and the batch has no value"}
		}
		if limit := FeedLimit(m, m.Graph.Value(v.Name)); limit > 0 {
			below[v.Name] = onnx.Fed{Below: limit}
		}
	}
	if err := part.SetJSON(onnx.FeedsKey, below); err != nil {
		return nil, err
	}
	shapes := map[string]onnx.Shape{}
	err = e.evaluate(part, Options{Dims: o.Dims, Feeds: feeds, Seed: o.Seed, Purpose: "find sizes"}, func(o Output) {
		if o.Err == nil {
			shapes[o.Name] = onnx.StaticShape(o.Shape...)
		}
	})
	return shapes, err
}

// evaluate runs one step of a model on the CPU, and shows its outputs while they last.
func (e *Engine) evaluate(m *onnx.Model, o Options, see func(Output)) error {
	o.Provider, o.Threads = ort.CPU, 1
	s, err := e.Open(m, o)
	if err != nil {
		return err
	}
	defer s.Close()
	step, err := s.Step(context.Background())
	if err != nil {
		return err
	}
	for _, o := range step.Outputs {
		see(o)
	}
	return nil
}
