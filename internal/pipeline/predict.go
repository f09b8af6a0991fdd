package pipeline

// Predicting a file: as it stands, or as the graph that ONNX Runtime makes of
// it.

import (
	"maps"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/predict"
)

// Predict says what ONNX Runtime will do with a model at an optimization
// level. It asks ONNX Runtime for the graph that it makes of the
// file, without running anything; for CUDA only above level 0 or where the file alone
// does not say all, and only where that provider can be had. Bound names the outputs that lie in memory of
// their own; nil means, unless outputs are returned, the next values that may be written
// over their inputs, as a session of package runtime does.
func Predict(e *runtime.Engine, m *onnx.Model, roles step.Roles, o Options, bound []string) (*predict.Prediction, error) {
	if !o.provider().Device {
		return predictBy(e, true, ort.CPU, m, roles, o, bound)
	}
	if err := runtime.NoKernel(m.Graph); err != nil {
		return nil, err
	}
	var p *predict.Prediction
	if o.OptLevel == 0 || !e.HasCUDA() {
		var err error
		if o.OptLevel > 0 && e != nil {
			if m, err = folded(e, m, o.Dims); err != nil {
				return nil, err
			}
		}
		if p, err = predictBy(e, false, ort.CUDA, m, roles, o, bound); err != nil || p.Exact() || !e.HasCUDA() {
			return p, err
		}
	}
	return predictBy(e, true, ort.CUDA, m, roles, o, bound)
}

// folded returns a model whose constants are computed as every provider has them
// computed, on the CPU; the model itself where there are none.
func folded(e *runtime.Engine, m *onnx.Model, dims map[string]int64) (*onnx.Model, error) {
	clone, err := asRead(m, dims)
	if err != nil {
		return nil, err
	}
	if _, err := infer.Model(clone, infer.Options{Dims: dims}); err != nil {
		return nil, err
	}
	values := rewrite.Folded(clone.Graph)
	if len(values) == 0 {
		return m, clone.Close()
	}
	return clone, fold(e, clone, values)
}

// predictBy predicts the graph that a provider makes of the model, if that is to be dumped
// and there is an engine, and else the model as it is.
func predictBy(e *runtime.Engine, dump bool, on ort.Provider, m *onnx.Model, roles step.Roles, o Options, bound []string) (*predict.Prediction, error) {
	parameters, state, err := runtime.SortInputs(m, roles)
	if err != nil {
		return nil, err
	}
	po := predict.Options{Threads: o.Threads, On: o.provider(), Workspace: o.Workspace, Bound: bound, Roles: roles, Parameters: parameters, State: state}
	given := m
	if e != nil && dump {
		dumped, err := executed(e, m, ort.SessionOptions{Level: o.OptLevel, Threads: 1, Provider: on, Dims: o.Dims, Purpose: "predict"})
		if err != nil {
			return nil, err
		}
		po = predict.ForSaved(m, dumped, po)
		takeOrigins(dumped, given)
		m = dumped
		po.Told = outerTypes(m)
	} else if o.unchanged {
		po = predict.ForSaved(m, m, po)
	}
	way, err := step.OutputsOf(given, o.Outputs)
	if err != nil {
		return nil, err
	}
	if bound == nil {
		if po.Bound, err = runtime.InPlace(given.Graph, roles, way, func() (*onnx.Graph, error) { return m.Graph, nil }); err != nil {
			return nil, err
		}
	}
	dims := o.Dims
	if len(o.Free) > 0 {
		dims = maps.Clone(o.Free)
		maps.Copy(dims, o.Dims)
	}
	shapes, err := o.Sizes.of(given, roles, dims)
	if err != nil {
		return nil, err
	}
	if _, err := infer.Model(m, infer.Options{Dims: dims, Shapes: shapes}); err != nil {
		return nil, err
	}
	if po.On.Device {
		e.NoteWorkspaces(m, o.GPU)
	}
	p, err := predict.Predict(m, po)
	if err != nil {
		return nil, err
	}
	if m != given && !po.On.Device { // a device's session holds its constants
		computed, err := step.Computed(m.Graph, given.Graph)
		if err != nil {
			return nil, err
		}
		gone, err := step.Computed(given.Graph, m.Graph)
		if err != nil {
			return nil, err
		}
		// Parameters are those of the file, as a session counts them, and what ONNX
		// Runtime folded is of the session; p counted all that the dump has.
		p.Session.Computed = computed
		p.Parameters += gone - computed
		p.TotalPeak += gone
	}
	return p, nil
}

// takeOrigins notes again which pass made a node, by its name: a graph that ONNX Runtime
// saves has no metadata of nodes.
func takeOrigins(saved, given *onnx.Model) {
	made := map[string]onnx.Origin{}
	for _, n := range given.Graph.Nodes {
		if o := n.Origin(); o != (onnx.Origin{}) && n.Name() != "" {
			made[n.Name()] = o
		}
	}
	for _, n := range saved.Graph.Nodes {
		if o, ok := made[n.Name()]; ok && n.Origin() == (onnx.Origin{}) {
			n.SetOrigin(o)
		}
	}
}

// outerTypes are the types of the model's inputs and outputs, by name.
func outerTypes(m *onnx.Model) map[string]onnx.Type {
	types := map[string]onnx.Type{}
	for _, list := range [][]*onnx.Value{m.Graph.Inputs, m.Graph.Outputs} {
		for _, v := range list {
			types[v.Name] = v.Type
		}
	}
	return types
}
