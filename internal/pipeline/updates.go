package pipeline

// Updates outside the graph, for a runtime that writes no next value over its input: state
// would go in and come out with every step, three times the parameters with AdamW.
//
//	train.onnx     parameters, batch ─▶ loss, gradients
//	update0.onnx   lr, step, parameter, parameter.grad, parameter.m, parameter.v ─▶ parameter.new, …
//
// Parameters of one shape share a graph, which is run for one after another; state stays
// with the program. What an update takes is predicted as a step is.

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
)

// updated is what the parameter of a graph of updates is called.
const updated = "parameter"

// A ManifestUpdate is a graph that updates one parameter at a time.
type ManifestUpdate struct {
	Graph string `json:"graph"`
	// Parameters are the inputs of the bundle's graph that it is for.
	Parameters []string        `json:"parameters"`
	Inputs     []ManifestInput `json:"inputs"`
	// Predicted is of one update; null where it cannot be predicted to the byte.
	Predicted *ManifestPrediction `json:"predicted"`
}

// CanUpdateApart refuses updates outside a graph where they would take more, or miss
// something.
func (t *Target) CanUpdateApart(kind optim.Kind) error {
	if !t.Fixed {
		return fmt.Errorf("%s writes next values over their inputs: put the optimizer into the graph, with remat grad --optimizer %s", t.Name, kind)
	}
	if kind == optim.Muon {
		return fmt.Errorf("%s chooses the matrices of hidden layers in the graph of the loss: put it there, with remat grad --optimizer %s", kind, kind)
	}
	return nil
}

// updates writes the graphs that update by an optimizer what the graph has gradients of.
func (f *File) updates(e *runtime.Engine, dir string, t *Target, kind optim.Kind) ([]ManifestUpdate, error) {
	m, roles := f.Model, f.Roles()
	if roles.Updates() || len(roles.Grad) == 0 {
		return nil, errors.New("--updates: the graph has no gradients among its outputs, or updates parameters itself: derive it with remat grad --optimizer none")
	}
	if m.Graph.Value("loss_scale") != nil {
		return nil, errors.New("--updates: the gradients of a scaled loss are left to the graph: leave out --precision fp16")
	}
	list, at := []ManifestUpdate{}, map[string]int{}
	for _, in := range m.Graph.Inputs {
		if roles.Grad[in.Name] == "" {
			continue
		}
		if d := in.Type.DType; d.IsHalf() {
			return nil, fmt.Errorf("--updates: %q is %s, and parameters in half are trained in float32: put the optimizer into the graph, with remat grad --optimizer %s, or export the model in float32", in.Name, d, kind)
		}
		i, known := at[in.Type.String()]
		if !known {
			i = len(list)
			at[in.Type.String()] = i
			u, err := update(m, in.Type, t, kind)
			if err != nil {
				return nil, fmt.Errorf("--updates: %q: %w", in.Name, err)
			}
			entry := ManifestUpdate{Graph: fmt.Sprintf("update%d.onnx", i)}
			if err := f.writeUpdate(e, u, filepath.Join(dir, entry.Graph), &entry); err != nil {
				return nil, fmt.Errorf("--updates: %q: %w", in.Name, err)
			}
			list = append(list, entry)
		}
		list[i].Parameters = append(list[i].Parameters, in.Name)
	}
	return list, nil
}

// update makes the graph for parameters of a type, in the operator set of a model.
func update(of *onnx.Model, typ onnx.Type, t *Target, kind optim.Kind) (*onnx.Model, error) {
	m := onnx.NewModel("update", of.Opset(""))
	value, grad := m.Graph.AddInput(updated, typ), m.Graph.AddInput(updated+step.GradSuffix, typ)
	if _, err := optim.Apply(m, []optim.Param{{Value: value, Grad: grad}}, optim.Defaults(kind)); err != nil {
		return nil, err
	}
	if t.WebGPU {
		if _, err := rewrite.Single(m.Graph); err != nil {
			return nil, err
		}
	}
	return m, SetRequires(m)
}

// writeUpdate saves a graph of updates and notes what it reads and takes.
func (f *File) writeUpdate(e *runtime.Engine, m *onnx.Model, path string, entry *ManifestUpdate) error {
	roles, _, err := step.RolesOf(m, nil)
	if err != nil {
		return err
	}
	if entry.Inputs, err = updateInputs(m, roles); err != nil {
		return err
	}
	m.SetMetadata(step.OutputsKey, string(step.Returned))
	o := f.Variant.Options
	p, err := Predict(e, m, roles, Options{OptLevel: o.OptLevel, Threads: o.Threads, Outputs: step.Returned}, nil)
	if err != nil {
		return err
	}
	entry.Predicted = manifestPrediction(p)
	SetPromise(m, p)
	return m.Save(path)
}

func updateInputs(m *onnx.Model, roles step.Roles) ([]ManifestInput, error) {
	list, err := manifestInputs(m, roles)
	for i := range list {
		switch in := &list[i]; {
		case in.Name == updated+step.GradSuffix:
			in.Fed = "gradient"
		case in.Name != updated && in.Next != "":
			in.Fed = "state"
		}
	}
	return list, err
}
