package pipeline

// From a forward model to its training graph.
//
//	Source ─▶ names ─▶ differentiate ─▶ optimizer ─▶ order ─▶ Derivation ─▶ file
//
// The parameters become inputs; their values stay in the model's own data files,
// those that it held itself go to a file beside the training graph.

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/quantize"
)

// DeriveOptions say how a training graph is derived.
type DeriveOptions struct {
	// Grad is what reverse mode is told: the loss, what to train, the dimensions.
	Grad grad.Options
	// Names are new names of parameters, by the model's own.
	Names map[string]string
	// Update is the optimizer that is put into the graph.
	Update optim.Options
	// Quantize is what frozen weights are held in.
	Quantize quantize.Kind
	// Unordered leaves the nodes in the order in which they were made: updates come
	// after the backward pass.
	Unordered bool
}

// A Derivation is a training graph, in memory.
type Derivation struct {
	*grad.Result
	Model *onnx.Model
	// Quantized are the frozen weights that could be held in fewer bits.
	Quantized []*quantize.Weight
	// ForwardNodes is the number of nodes of the forward model.
	ForwardNodes int
	source       *Source
}

// Derive makes the training graph of the source's model. Its errors do not name the
// file. The source must outlive the derivation.
func (s *Source) Derive(o DeriveOptions) (*Derivation, error) {
	if err := s.Model.Check(); err != nil {
		return nil, err
	}
	m, err := s.copy()
	if err != nil {
		return nil, err
	}
	o.Grad.Signature = grad.ReadSignature(m)
	if err := NoteDims(m, FreeDims(m), o.Grad.Dims); err != nil {
		return nil, err
	}
	if err := renameInitializers(m.Graph, o.Names); err != nil {
		return nil, err
	}
	o.Grad.Signature.Rename(o.Names)
	o.Grad.Masters = o.Update.Kind != optim.None
	if err := NotTraining(m); err != nil {
		return nil, err
	}
	d := &Derivation{Model: m, ForwardNodes: len(m.Graph.Nodes), source: s}
	if d.Result, err = grad.Differentiate(m, o.Grad); err != nil {
		return nil, err
	}
	if err := needDecisions(d.Result, o); err != nil {
		return nil, err
	}
	if d.Quantized, err = quantize.Frozen(m, o.Quantize, d.Types); err != nil {
		return nil, err
	}
	if quantize.InBlocks(m.Graph) { // those that the file held
		if err := quantize.Apart(m.Graph); err != nil {
			return nil, err
		}
	}
	if o.Quantize != quantize.None && len(d.narrow(m.Graph)) == 0 {
		d.Warnings = append(d.Warnings, "--quantize-frozen found no frozen weight of two or more axes, in float32, that products read: all stay as they are")
	}
	if err := o.Grad.After.See("quantize", m); err != nil {
		return nil, err
	}
	if err := addOptimizer(m, d.Result, o); err != nil {
		return nil, err
	}
	if err := o.Grad.After.See("optimizer", m); err != nil {
		return nil, err
	}
	s.sign(m)
	if !o.Unordered {
		if err := Order(m, Options{Dims: o.Grad.Dims, After: o.Grad.After}); err != nil {
			return nil, err
		}
	}
	return d, SetRequires(m)
}

// Save writes the training graph and, beside it, the values of parameters that the
// forward model held itself, into a file of the same name that ends in
// .safetensors.
func (d *Derivation) Save(out string) error {
	if err := d.Model.Check(); err != nil {
		return fmt.Errorf("%s: %w", d.source.Path, err)
	}
	weights, weightsErr := Beside(out, d.source.DataFiles()...)
	if err := Rebase(d.Model, d.source.Path, out); err != nil {
		return err
	}
	dir, err := between(out, d.source.Path)
	if err != nil {
		return err
	}
	at := func(location string) (string, error) {
		file := filepath.ToSlash(filepath.Join(dir, location))
		if strings.HasPrefix(file, "../") {
			return "", outOfReach(out, d.source.Path)
		}
		return file, nil
	}
	return onnx.Together(func(files *onnx.Outputs) error {
		if err := placeParameters(d.Model, d, files, at, func() (string, error) { return weights, weightsErr }); err != nil {
			return err
		}
		return d.Model.SaveWith(files, out)
	})
}

// renameInitializers gives parameters the user's names.
func renameInitializers(g *onnx.Graph, names map[string]string) error {
	order := slices.Sorted(maps.Keys(names))
	values := make([]*onnx.Value, len(order))
	for i, from := range order {
		if values[i] = g.Value(from); values[i] == nil || values[i].Init == nil {
			return fmt.Errorf("--names: the model has no initializer %q", from)
		}
	}
	for i, from := range order { // out of the way first: names may be exchanged
		if names[from] != from {
			g.Rename(values[i], g.FreshValueName(from+".old"))
		}
	}
	for i, from := range order {
		if to := names[from]; to != from {
			if to == "" {
				return fmt.Errorf("--names: %q has no new name", from)
			}
			if g.FreshValueName(to) != to {
				return fmt.Errorf("--names: %q is already used in the model", to)
			}
			g.Rename(values[i], to)
		}
	}
	return nil
}

// NotTraining refuses a graph that says of itself that it trains.
func NotTraining(m *onnx.Model) error {
	if roles, _, err := step.RolesOf(m, nil); err == nil && roles.Training() {
		return errors.New("already a training graph: pass it to remat plan or remat rewrite, or derive from the forward model")
	}
	return nil
}

// An UnclearError asks whether initializers are weights that an optimizer may
// change: nothing in the file tells.
type UnclearError struct{ Names []string }

// Error names them in one line.
func (e *UnclearError) Error() string {
	return "nothing in the file tells whether these are weights or constants: " + strings.Join(e.Names, ", ") + ": say which to train"
}

// needDecisions asks for an explicit choice where an optimizer would change
// something that may be no weight.
func needDecisions(res *grad.Result, o DeriveOptions) error {
	if o.Update.Kind == optim.None || len(o.Grad.Params) > 0 || len(o.Grad.Frozen) > 0 {
		return nil
	}
	var open []string
	for _, d := range res.Decisions {
		if d.Open {
			open = append(open, d.Name)
		}
	}
	if len(open) > 0 {
		return &UnclearError{open}
	}
	return nil
}

// addOptimizer puts the updates into the graph.
func addOptimizer(m *onnx.Model, res *grad.Result, o DeriveOptions) error {
	if o.Update.Kind == optim.None {
		return nil
	}
	params := make([]optim.Param, len(res.Params))
	for i, p := range res.Params {
		params[i] = optim.Param{Value: p.Input, Grad: p.Grad}
	}
	options := o.Update
	options.Types = res.Types
	added, err := optim.Apply(m, params, options)
	if err != nil {
		return err
	}
	for _, pattern := range added.Unmatched {
		res.Warnings = append(res.Warnings, fmt.Sprintf("--no-decay %q matches no parameter that is trained", pattern))
	}
	return nil
}
