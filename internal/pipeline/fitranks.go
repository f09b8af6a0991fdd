package pipeline

// Training by several ranks: what each of them runs, and holds beside a step.
//
//	gradients summed every step   the step's file sums gradients in state, a second file
//	                              updates from the sums of all ranks (optim.Updates);
//	                              divided, each rank runs a part of it (fitshard.go)
//	local steps, an outer one     the file is that of one rank; chunks of the common
//	                              point and of its momentum lie beside it

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

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
	// Shard divides the updates from sums, and the optimizer's state, among ranks.
	Shard bool
	// Stages: each rank runs a stage of a pipeline. Only AdviseRanks reads it.
	Stages bool
}

// sums says that gradients are summed before the update.
func (r Ranks) sums() bool { return r.Size > 0 && r.Every == 0 && !r.Stages }

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
	s := &Summed{}
	switch has, err := m.JSON(summedKey, s); {
	case !has || err != nil:
		return nil, err
	case s.Accumulate < 1 || s.Accumulate > 1<<30:
		return nil, fmt.Errorf("metadata %s: %d runs", summedKey, s.Accumulate)
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
	if r.sums() {
		if err := f.makeUpdates(a); err != nil {
			return err
		}
	}
	if r.Shard {
		return f.besideShards(a, given, elements)
	}
	held := int64(0)
	for rank := range r.Size {
		held = max(held, ranks.HeldBytes(elements, rank, r.Size, r.Every > 0))
		a.sync = max(a.sync, ranks.SyncBytes(elements, rank, r.Size))
	}
	a.beside = append(a.beside, Part{exchanged, held})
	if !r.sums() {
		return nil
	}
	u, err := f.updating(given, a.updates)
	if err != nil {
		return err
	}
	a.beside = append(a.beside, Part{stateApart, u.state}, Part{updateSession, u.session})
	a.between = max(a.between, u.between)
	return nil
}

// What ranks hold beside a step.
const (
	exchanged     = "what ranks exchange and keep"
	stateApart    = "the optimizer's state" // which the step's session has not
	updateSession = "the update's session"
)

// combined are the elements of each parameter that a graph trains.
func combined(m *onnx.Model, roles step.Roles) ([]int64, error) {
	parameters, _, err := runtime.SortInputs(m, roles)
	if err != nil {
		return nil, err
	}
	var elements []int64
	for _, name := range parameters {
		if v := m.Graph.Value(name); roles.Trains(name) {
			bytes, ok := v.Type.Bytes()
			if !ok || v.Type.DType != onnx.Float32 {
				return nil, fmt.Errorf("%q is %s: ranks agree on float32 parameters of fixed shape only", name, v.Type)
			}
			elements = append(elements, bytes/4)
		}
	}
	return elements, nil
}

// makeUpdates makes the graph of updates. What an optimizer asks of the model it sees before
// casts to a half type stand between a parameter and its readers.
func (f *fitting) makeUpdates(a *stepGraph) (err error) {
	var params []*onnx.Value
	for _, p := range a.derived.Params {
		params = append(params, p.Input)
	}
	a.updates, err = optim.Updates(a.source.Model, params, f.update(a.made, f.o.Derive.Update, a.norm))
	return err
}

// An updating is what a session of updates takes, in bytes: state, what it holds from the
// start, and what a run of it takes, between two steps.
type updating struct{ state, session, between int64 }

// updating predicts what a graph of updates takes, but for parameters and sums, which the
// session of the step's graph has.
func (f *fitting) updating(given, m *onnx.Model) (u updating, err error) {
	roles, _, err := step.RolesOf(m, nil)
	if err != nil {
		return u, err
	}
	o := f.o.Pipeline
	o.Dims, o.Precision = nil, nil
	p, err := Predict(f.engine, m, roles, o, nil)
	if err != nil {
		return u, fmt.Errorf("%s: its graph of updates: %w", f.source.Path, err)
	}
	parameters, state, err := runtime.SortInputs(m, roles)
	if err != nil {
		return u, err
	}
	t := TotalOf(p)
	u = updating{t.Parameters + t.State, t.Session + t.Feeds, t.Live + t.Unused}
	for _, v := range m.Graph.Inputs {
		if of := given.Graph.Value(v.Name); of == nil || !of.IsInput() {
			continue
		}
		bytes := v.Type.KnownBytes()
		if slices.Contains(parameters, v.Name) || slices.Contains(state, v.Name) {
			u.state -= bytes
		} else { // sums, to a graph that only squares them
			u.session -= bytes
		}
	}
	return u, nil
}

// updatingPart is updating for a rank's part of the updates, which makes squares first where
// the norm of all gradients is asked for.
func (f *fitting) updatingPart(given *onnx.Model, s *Shard) (updating, error) {
	u, err := f.updating(given, s.Update)
	if err != nil || s.Squares == nil {
		return u, err
	}
	q, err := f.updating(given, s.Squares)
	return updating{u.state + q.state, u.session + q.session, max(u.between, q.between)}, err
}

// besideShards counts what the rank takes that takes most.
func (f *fitting) besideShards(a *stepGraph, given *onnx.Model, elements []int64) error {
	r := f.o.Ranks
	var most [3]int64 // exchanged, state, session: of the rank with the largest sum
	seen := map[string]updating{}
	for rank := range r.Size {
		s, err := ShardOf(given, a.updates, nil, rank, r.Size)
		if err != nil {
			return fmt.Errorf("%s: %w", f.source.Path, err)
		}
		u, known := seen[s.kind(rank)]
		if !known {
			if u, err = f.updatingPart(given, s); err != nil {
				return err
			}
			seen[s.kind(rank)] = u
		}
		held := ranks.Scratch(r.Size) + s.Held(rank)
		if held+u.state+u.session > most[0]+most[1]+most[2] {
			most = [3]int64{held, u.state, u.session}
		}
		a.between = max(a.between, u.between)
		a.sync = max(a.sync, s.SyncBytes(elements, rank, r.Size))
	}
	a.beside = append(a.beside, Part{exchanged, most[0]}, Part{stateApart, most[1]}, Part{updateSession, most[2]})
	return nil
}

// saveUpdates writes the graph of updates that belongs to a step's graph m, which is
// about to be written, and notes in that what it is for.
func (f *fitting) saveUpdates(a *attempt, m *onnx.Model, files *onnx.Outputs) error {
	if a.updates == nil {
		return nil
	}
	if err := m.SetJSON(summedKey, Summed{max(a.runs, 1)}); err != nil {
		return err
	}
	for _, key := range append([]string{runtime.ParametersKey, VersionKey, SourceKey}, step.Noted...) {
		if text, ok := m.Metadata(key); ok {
			a.updates.SetMetadata(key, text)
		}
	}
	return errors.Join(SetRequires(a.updates), a.updates.SaveWith(files, filepath.Join(filepath.Dir(f.o.Out), UpdateFile)))
}
