package pipeline

// Training by several ranks: what each of them runs, and holds beside a step.
//
//	gradients summed every step   the step's file sums gradients in state, a second file
//	                              updates from the sums of all ranks (optim.Updates)
//	local steps, an outer one     the file is that of one rank; chunks of the common
//	                              point and of its momentum lie beside it

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
)

// Ranks say who trains together; the zero value is one rank alone.
type Ranks struct {
	// Size is how many there are, 0 for none that agree.
	Size int
	// Every is how many steps there are from one outer step to the next; 0: the
	// gradients of all are summed every step.
	Every int64
}

// sums says that gradients are summed before the update.
func (r Ranks) sums() bool { return r.Size > 0 && r.Every == 0 }

// UpdateFile is the graph of updates, beside that of gradients.
const UpdateFile = "update.onnx"

// summedKey is the entry of a graph that sums gradients.
const summedKey = "remat.summed"

// Summed is what such a graph says of the update that it is made for.
type Summed struct {
	// Accumulate is how many runs of a rank make an update.
	Accumulate int64 `json:"accumulate"`
}

// SummedOf returns what a graph of gradients says of itself, nil for another graph.
func SummedOf(m *onnx.Model) (*Summed, error) {
	text, ok := m.Metadata(summedKey)
	if !ok {
		return nil, nil
	}
	s := &Summed{}
	err := json.Unmarshal([]byte(text), s)
	if err == nil && (s.Accumulate < 1 || s.Accumulate > 1<<30) {
		err = fmt.Errorf("%d runs", s.Accumulate)
	}
	if err != nil {
		return nil, fmt.Errorf("metadata %s: %w", summedKey, err)
	}
	return s, nil
}

// update are the options of the optimizer for a split.
func (f *fitting) update(s split, o optim.Options, norm bool) optim.Options {
	o.Accumulate, o.Norm, o.Sums = s.runs, norm, f.o.Ranks.sums()
	return o
}

// besideRanks counts what a rank takes beside a step: that of them which takes most.
func (f *fitting) besideRanks(a *stepGraph, given *onnx.Model, roles step.Roles) error {
	r := f.o.Ranks
	if r.Size == 0 {
		return nil
	}
	elements, err := combined(given, roles)
	if err != nil {
		return err
	}
	held := int64(0)
	for rank := range r.Size {
		held = max(held, ranks.HeldBytes(elements, rank, r.Size, r.Every > 0))
		a.sync = max(a.sync, ranks.SyncBytes(elements, rank, r.Size))
	}
	a.beside = append(a.beside, Part{"what ranks exchange and keep", held})
	if !r.sums() {
		return nil
	}
	return f.besideUpdates(a, given, roles)
}

// combined are the elements of each parameter that a graph trains.
func combined(m *onnx.Model, roles step.Roles) ([]int64, error) {
	parameters, _, err := runtime.SortInputs(m, roles)
	if err != nil {
		return nil, err
	}
	var elements []int64
	for _, name := range parameters {
		if v := m.Graph.Value(name); roles.New[name] != "" || roles.Grad[name] != "" {
			bytes, ok := v.Type.Bytes()
			if !ok || v.Type.DType != onnx.Float32 {
				return nil, fmt.Errorf("%q is %s: ranks agree on float32 parameters of fixed shape only", name, v.Type)
			}
			elements = append(elements, bytes/4)
		}
	}
	return elements, nil
}

// stateApart is what the session of the updates has, and the step's has not.
const stateApart = "the optimizer's state"

// besideUpdates makes the graph of updates and counts what its session holds, but for
// the parameters and sums, which the step's session has.
func (f *fitting) besideUpdates(a *stepGraph, given *onnx.Model, roles step.Roles) error {
	options := f.update(a.made, f.o.Derive.Update, a.norm)
	var params []*onnx.Value
	shared := int64(0)
	for _, p := range a.derived.Params {
		bytes, _ := p.Input.Type.Bytes()
		params, shared = append(params, p.Input), shared+2*bytes
	}
	var err error
	if a.updates, err = optim.Updates(given, params, options); err != nil {
		return err
	}
	made, _, err := step.RolesOf(a.updates, nil)
	if err != nil {
		return err
	}
	o := f.o.Pipeline
	o.Dims, o.Precision = nil, nil
	p, err := Predict(f.engine, a.updates, made, o, nil)
	if err != nil {
		return fmt.Errorf("%s: its graph of updates: %w", f.source.Path, err)
	}
	t := TotalOf(p)
	a.beside = append(a.beside,
		Part{stateApart, t.Parameters + t.State - shared},
		Part{"the update's session", t.Session + t.Feeds})
	a.between = max(a.between, t.Live+t.Unused)
	return nil
}

// saveUpdates writes the graph of updates that belongs to a step's graph m, which is
// about to be written, and notes in that what it is for.
func (f *fitting) saveUpdates(a *attempt, m *onnx.Model) error {
	if a.updates == nil {
		return nil
	}
	if err := SetJSON(m, summedKey, Summed{max(a.runs, 1)}); err != nil {
		return err
	}
	for _, key := range []string{runtime.ParametersKey, VersionKey, SourceKey, step.AdaptersKey} {
		if text, ok := m.Metadata(key); ok {
			a.updates.SetMetadata(key, text)
		}
	}
	return errors.Join(SetRequires(a.updates), a.updates.Save(filepath.Join(filepath.Dir(f.o.Out), UpdateFile)))
}
