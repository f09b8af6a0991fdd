package pipeline

// Sizes that data alone tells, such as how many places NonZero finds in the mask of a
// picture's tokens, or how long the longest sample is. Shapes do not lead to them, but what is
// fed does, where no parameter has a part in it and nothing that takes long: that much of the
// graph is run ahead. What it tells may decide others, so this goes on until no node is left
// whose inputs have sizes and whose outputs have none.

import (
	"errors"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/runtime"
)

// dataRounds bounds how often sizes are looked for that others decide.
const dataRounds = 8

// Sizes finds the shapes of values of a step that are known to data alone, by name; dims are
// numbers for all free dimensions. Those that parameters have a part in are left out.
type Sizes func(m *onnx.Model, roles step.Roles, dims map[string]int64) (map[string]onnx.Shape, error)

// SizesFor finds shapes for the feeds of o: none where each step has feeds of its own, and
// none on a device that computes nothing. What is not fed is random, as in a session of o, or
// an error.
func SizesFor(e *runtime.Engine, o runtime.Options, random bool) Sizes {
	if e == nil || e.Rehearsed() || len(o.Data) > 0 {
		return nil
	}
	return func(m *onnx.Model, roles step.Roles, dims map[string]int64) (map[string]onnx.Shape, error) {
		o := o
		o.Dims = dims
		return dataShapes(e, m, roles, o, random)
	}
}

// of asks where there is something to ask for.
func (s Sizes) of(m *onnx.Model, roles step.Roles, dims map[string]int64) (map[string]onnx.Shape, error) {
	if s == nil || !slices.ContainsFunc(m.Graph.Nodes, toldByData(m.Graph)) {
		return nil, nil
	}
	return s(m, roles, dims)
}

// An AheadError is one of a part of a step that was run ahead for its sizes, and that the step is
// likely to end in too.
type AheadError struct{ error }

func (e *AheadError) Unwrap() error { return e.error }

func dataShapes(e *runtime.Engine, m *onnx.Model, roles step.Roles, o runtime.Options, random bool) (shapes map[string]onnx.Shape, err error) {
	if m, err = m.Clone(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	control.Lift(m.Graph) // what waits needs no more than it did
	fed, err := fedAlone(m, roles)
	if err != nil {
		return nil, err
	}
	o.Feeds = firstSamples(m.Graph, o.Feeds)
	shapes = map[string]onnx.Shape{}
	for range dataRounds {
		if _, err := infer.Model(m, infer.Options{Dims: o.Dims, Shapes: shapes}); err != nil {
			return nil, err
		}
		told := toldByData(m.Graph)
		var open []*onnx.Value
		var sized []*onnx.Node
		for _, n := range m.Graph.Nodes {
			if !told(n) || slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && !v.Type.IsStatic() }) {
				continue
			}
			if !fed.nodes[n] {
				if !fed.sizes(n) {
					continue
				}
				sized = append(sized, n)
			}
			for _, v := range n.Returns() {
				if v.Type.IsStatic() {
					continue
				}
				if _, asked := shapes[v.Name]; !asked {
					open = append(open, v)
				}
			}
		}
		if len(open) == 0 {
			break
		}
		if err := fed.bySize(m.Graph, sized); err != nil {
			return nil, err
		}
		found, err := e.Shapes(m, open, o, random)
		if err != nil {
			return nil, &AheadError{err}
		}
		for _, v := range open {
			shapes[v.Name] = found[v.Name] // nil, and not asked for again, of what is no tensor
		}
	}
	return shapes, nil
}

// firstSamples are feeds of a whole batch cut to the samples that a graph takes of it.
func firstSamples(g *onnx.Graph, feeds map[string]runtime.Tensor) map[string]runtime.Tensor {
	feeds = maps.Clone(feeds)
	for _, v := range g.Inputs {
		t, fed := feeds[v.Name]
		shape, static := v.Type.Shape.Ints()
		if !fed || !static || len(shape) == 0 || len(shape) != len(t.Shape) || t.Shape[0] <= shape[0] || t.Shape[0] == 0 {
			continue
		}
		t.Data = t.Data[:int64(len(t.Data))/t.Shape[0]*shape[0]]
		t.Shape = append([]int64{shape[0]}, t.Shape[1:]...)
		feeds[v.Name] = t
	}
	return feeds
}

// toldByData reports nodes of g with an output that has an extent which shapes do not lead to:
// an unknown one, or one that a file names, as PyTorch's exporter does, and no input has.
func toldByData(g *onnx.Graph) func(*onnx.Node) bool {
	free := g.InputSymbols()
	open := func(d onnx.Dim) bool {
		return !d.Known() || slices.ContainsFunc(d.Symbols(), func(s string) bool { return !free[s] })
	}
	return func(n *onnx.Node) bool {
		return slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool {
			return v != nil && v.Type.Other == nil && (!v.Type.Ranked || slices.ContainsFunc(v.Type.Shape, open))
		})
	}
}

// byData reports that sizes of a graph are those of the data of the options.
func (o *Options) byData(m *onnx.Model, roles step.Roles) bool {
	return o.Sizes != nil && AsksForData(m, roles)
}

// AsksForData reports a graph with sizes that a batch would tell; its values have types.
func AsksForData(m *onnx.Model, roles step.Roles) bool {
	told := toldByData(m.Graph)
	if !slices.ContainsFunc(m.Graph.Nodes, told) {
		return false
	}
	fed, err := fedAlone(m, roles)
	return err == nil && slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return told(n) && (fed.nodes[n] || fed.sizes(n)) })
}

// fedOnly is what feeds and constants alone lead to.
type fedOnly struct {
	nodes   map[*onnx.Node]bool
	trained map[string]bool
}

// sizedByRest are operators of whose first input the size alone decides the size of what they
// make, beside the content of the others.
var sizedByRest = []string{"Expand", "Pad", "Reshape", "Resize", "Slice", "Split", "Tile", "TopK"}

// sizes reports a node whose outputs have sizes that feeds tell, whatever the data is: of
// tokens that are cut to the longest sample.
func (f *fedOnly) sizes(n *onnx.Node) bool {
	return n.Domain() == "" && slices.Contains(sizedByRest, n.OpType()) &&
		n.In(0) != nil && slices.Contains([]onnx.DType{onnx.Float16, onnx.Float32, onnx.Float64}, n.In(0).Type.DType) &&
		!slices.ContainsFunc(n.Inputs[1:], f.other) &&
		slices.ContainsFunc(n.Inputs[1:], func(v *onnx.Value) bool { return v != nil && v.Constant() == nil })
}

// bySize has such nodes read zeros of the size of what they read first, which feeds lead to.
func (f *fedOnly) bySize(g *onnx.Graph, nodes []*onnx.Node) error {
	b := build.New(g, nil, "sizes")
	for _, n := range nodes {
		x := n.In(0)
		shape, _ := x.Type.Shape.Ints()
		n.SetInput(0, b.Op("ConstantOfShape", build.In(b.Ints(shape...)), onnx.TensorAttrOf("value", onnx.FloatTensor(x.Type.DType, []float64{0}, 1))))
		g.InsertBefore(n, b.Take()...)
		f.nodes[n] = true
	}
	return b.Err()
}

// other reports a value that takes more than feeds and constants.
func (f *fedOnly) other(v *onnx.Value) bool {
	return v != nil && (v.Producer != nil && !f.nodes[v.Producer] || f.trained[v.Name])
}

// fedAlone finds the nodes that feeds and constants alone lead to, without products, which
// take long, and without numbers that are drawn.
func fedAlone(m *onnx.Model, roles step.Roles) (*fedOnly, error) {
	parameters, state, err := runtime.SortInputs(m, roles)
	if err != nil {
		return nil, err
	}
	fed, drawn := &fedOnly{map[*onnx.Node]bool{}, map[string]bool{}}, map[*onnx.Node]bool{}
	for _, n := range traits.Drawing(m.Graph) {
		drawn[n] = true
	}
	for _, name := range slices.Concat(parameters, state) {
		fed.trained[name] = true
	}
	for _, n := range m.Graph.Nodes {
		t, known := traits.Of(n)
		fed.nodes[n] = known && !t.Product() && !drawn[n] && !slices.ContainsFunc(n.Inputs, fed.other) && !slices.ContainsFunc(n.Captures, fed.other)
	}
	return fed, nil
}
