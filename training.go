package remat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/train"
	"github.com/onnx-remat/remat/train/data"
)

// What a training is fed, and what it tells.
type (
	// Batches give micro-batches by number, from 0 and over the whole training; At is
	// called from another goroutine, one call at a time. A batch is a function of its
	// number, so that a training can go on.
	Batches = train.Batches
	// BoundedBatches have an end: validation data.
	BoundedBatches = train.Bounded
	// Schedule gives each step its learning rate.
	Schedule = train.Schedule
	// TrainRecord is one step.
	TrainRecord = train.Record
	// Validation is the mean loss over validation data.
	Validation = train.Validation
	// TrainWatcher is told of each step, validation and state.
	TrainWatcher = train.Watcher
	// NotFiniteError says that a loss is NaN or infinite, why, and what to try.
	NotFiniteError = train.NotFiniteError
)

// ErrInterrupted says that the context ended a training after a step.
var ErrInterrupted = train.ErrInterrupted

// TrainOptions say how a training graph is trained.
type TrainOptions struct {
	// Schedule has the number of steps, those before Resume included, and the rates. A
	// step is an update: of a graph that accumulates, several micro-batches.
	Schedule Schedule
	// Data gives each batch, with values for every input that the graph reads, and the same
	// inputs each time; parameters, state and rates are not among them.
	Data Batches
	// Validation, if any, is passed over every EvalEvery steps, 0: after the last one.
	Validation BoundedBatches
	EvalEvery  int64
	// Dir is the folder of states, "" for none: the last Keep are kept, 0: one, and one is
	// saved every SaveEvery steps, 0: after the last one. With Resume training goes on from
	// the last one there.
	Dir       string
	SaveEvery int64
	Keep      int
	Resume    bool
	// Watcher, if any, is told what happens. The caller closes it.
	Watcher  TrainWatcher
	Seed     uint64
	Settings Settings
}

// A Training is what came of one.
type Training struct {
	// Steps and Tokens are of the whole training, FirstLoss and LastLoss of its first
	// and last steps; the latter NaN where all steps were done before.
	Steps, Tokens       int64
	FirstLoss, LastLoss float64
	// Validation is the last one, nil without.
	Validation *Validation
	// State is the file of the last state, "" without.
	State string
	// Damaged says, of a training that was resumed, why newer states than the one that it
	// went on from were left out.
	Damaged []error
}

// Train trains a training graph with an optimizer, as remat train does. Where the
// context ends first, the step that runs is finished and saved, and the error is
// ErrInterrupted; a loss that is no number is a NotFiniteError.
func (r *Runtime) Train(ctx context.Context, g *Graph, o TrainOptions) (done *Training, err error) {
	if err := o.Settings.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), err)
	}
	switch {
	case o.Data == nil:
		return nil, fmt.Errorf("%s: TrainOptions.Data is nil: it gives the batches", g.Path())
	case o.Resume && o.Dir == "":
		return nil, fmt.Errorf("%s: TrainOptions.Resume needs Dir, the folder of the state to go on from", g.Path())
	case o.SaveEvery < 0 || o.EvalEvery < 0 || o.Keep < 0:
		return nil, fmt.Errorf("%s: TrainOptions.SaveEvery is %d, EvalEvery %d and Keep %d: want 0, for the default, or more", g.Path(), o.SaveEvery, o.EvalEvery, o.Keep)
	case o.SaveEvery > 0 && o.Dir == "":
		return nil, fmt.Errorf("%s: TrainOptions.SaveEvery needs Dir, the folder of states", g.Path())
	case o.EvalEvery > 0 && o.Validation == nil:
		return nil, fmt.Errorf("%s: TrainOptions.EvalEvery needs Validation, the data to pass over", g.Path())
	}
	if err := o.Schedule.Check(); err != nil {
		if e, ok := errors.AsType[*train.ScheduleError](err); ok {
			err = fmt.Errorf("TrainOptions.Schedule.%s %s", e.Field, e.Reason)
		}
		return nil, fmt.Errorf("%s: %w", g.Path(), err)
	}
	if err := g.read(); err != nil {
		return nil, err
	}
	opened := sync.OnceFunc(g.reading.Unlock) // steps read nothing of the file
	defer opened()
	identity, err := g.source.Identity()
	if err != nil {
		return nil, err
	}
	frozen, err := g.source.Frozen()
	if err != nil {
		return nil, err
	}
	job := &train.Job{
		Accumulate: train.Accumulation(g.source.Model.Graph), Batches: o.Data, Schedule: o.Schedule, Watcher: o.Watcher,
		EvalEvery: o.EvalEvery, SaveEvery: o.SaveEvery, Validation: o.Validation, From: train.Start(identity, o.Data, o.Seed),
	}
	job.From.Frozen = frozen
	options := o.Settings.session(g)
	options.Seed = o.Seed
	var state *train.State
	var damaged []error
	if o.Dir != "" {
		if job.Folder, err = train.OpenFolder(o.Dir, o.Keep); err != nil {
			return nil, err
		}
		defer job.Folder.Close()
		if state, damaged, err = lastState(job, o.Resume); err != nil {
			return nil, err
		}
		if state != nil {
			defer state.Close()
			job.From, options.Own, options.From = state.Position, state.Values(), state.Position.Progress()
		}
	}
	if job.Session, err = r.open(g, options, job); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, job.Session.Close()) }()
	if state != nil {
		if err := state.Fits(job.Session); err != nil {
			return nil, err
		}
	}
	if p := pipeline.PrecisionOf(g.source.Model); p != nil {
		job.Traits.Half = p.Type
	}
	if o.Validation != nil {
		inside, err := r.openForward(g, job, options)
		if err != nil {
			return nil, fmt.Errorf("%s: validation: %w", g.Path(), err)
		}
		defer inside.Close()
		job.Validate(inside)
	}
	opened()
	result, err := job.Run(ctx)
	return &Training{
		Steps: result.Step, Tokens: result.Tokens, FirstLoss: result.LossFirst, LastLoss: result.LossLast,
		Validation: result.Validation, State: result.State, Damaged: damaged,
	}, err
}

// session are the settings as options of a session.
func (s Settings) session(g *Graph) runtime.Options {
	return runtime.Options{Level: s.Level, Threads: s.threads(), Provider: ort.CPU, Dims: maps.Clone(g.dims)}
}

// lastState opens the state that a training goes on from, nil for a new one.
func lastState(job *train.Job, resume bool) (state *train.State, damaged []error, err error) {
	switch holds := job.Folder.Holds(); {
	case !resume && holds:
		return nil, nil, fmt.Errorf("%s: holds the states of a training: resume it, or name another folder", job.Folder.Dir)
	case !resume:
		return nil, nil, nil
	}
	if state, damaged, err = job.Folder.Newest(); err != nil {
		return nil, nil, err
	}
	if err := state.Continues(job.From, job.Batches); err != nil {
		return nil, nil, errors.Join(err, state.Close())
	}
	return state, damaged, nil
}

// open makes the session that trains.
func (r *Runtime) open(g *Graph, o runtime.Options, job *train.Job) (*runtime.Session, error) {
	m, err := g.source.Typed(g.dims)
	if err != nil {
		return nil, err
	}
	if o.Feed, err = job.Batches.At(int64(job.From.Runs)); err != nil {
		return nil, err
	}
	s, err := r.session(g, m, o)
	if err != nil {
		return nil, err
	}
	if err := feeds(s, o.Feed); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: batch %d %w", g.Path(), job.From.Runs, err), s.Close())
	}
	if !s.Roles.Updates() {
		return nil, errors.Join(fmt.Errorf("%s: the graph updates nothing: derive it with an optimizer", g.Path()), s.Close())
	}
	return s, nil
}

// feeds says which input a batch lacks, whose values would be drawn at random, and which
// it must not have: parameters, state and rates are the training's.
func feeds(s *runtime.Session, batch map[string]Tensor) error {
	given := map[string]bool{}
	for _, in := range s.Feeds() {
		given[in.Name] = !runtime.IsTrainingScalar(in)
		if _, ok := batch[in.Name]; !ok && !data.Unread(in) {
			return fmt.Errorf("has no values for input %q", in.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(batch)) {
		if !given[name] {
			return fmt.Errorf("has values for input %q, which the training sets: leave it out", name)
		}
	}
	return nil
}

// openForward makes the session that validates, on the parameters of the one that trains.
func (r *Runtime) openForward(g *Graph, job *train.Job, o runtime.Options) (*runtime.Session, error) {
	m, err := g.source.Forward(job.Session.Roles)
	if err != nil {
		return nil, err
	}
	o.Own, o.From, o.Share = nil, runtime.Progress{}, job.Session
	if o.Feed, err = job.Validation.At(0); err != nil {
		return nil, err
	}
	s, err := r.engine.Open(m, o)
	if err != nil {
		return nil, err
	}
	if err := feeds(s, o.Feed); err != nil {
		return nil, errors.Join(fmt.Errorf("batch 0 %w", err), s.Close())
	}
	return s, nil
}
