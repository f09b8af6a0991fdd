package pipeline

// From a model and a memory to the file that is trained.
//
//	forward model ─ derive ─┐
//	                        ├─▶ one attempt for each micro-batch ─▶ the one with the
//	training graph ─────────┘   planned within what is left         least work ─▶ file
//
// What counts is all that a training takes: the total of a step (total.go), the
// batches that wait for their turn, and a session that validates. Of one batch there
// may be several splits into micro-batches whose gradients are added up
// (fitsplit.go). An attempt is a split with its graph; which one is taken is in
// fitchoose.go, what was decided and what it costs in fitdecide.go, and where the
// weights go in place.go.
//
// Weakness: the process itself (code, the graph as ONNX Runtime holds it, threads) is
// not in the sum, nor is what the counting allocator keeps for reuse.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// FitOptions say what is trained, and within what.
type FitOptions struct {
	// Pipeline says how the step is planned; Dims have a number for every free
	// dimension. AsIs keeps what is wide in one part.
	Pipeline Options
	// Derive says how the training graph of a forward model is derived. Its
	// Update.Accumulate, 0 for any, is how many runs make an update; with 0 and a
	// Memory the batch may be split.
	Derive DeriveOptions
	// Batch is what an update takes, where that is not what Dims say of one run: in a
	// model of fixed shapes, a multiple of its batch. 0: no more than a run.
	Batch int64
	// Whole keeps a Memory from splitting the batch.
	Whole bool
	// Quick plans few of the splits: the largest that repeats nothing, and the next larger
	// one, if that promises to save more than quickShare of an update's work.
	Quick bool
	// Norm says whether the graph returns the norm of its gradients.
	Norm Norm
	// Strategy is the planner's, "" for optimal within a memory and none without.
	Strategy string
	// Memory bounds all that training takes, in bytes; 0 does not.
	Memory int64
	// Validate: a session of the forward part is open beside the training's.
	Validate bool
	// Ahead is how many batches wait beside the one that is trained on.
	Ahead int64
	// Ranks are those that train together, each within Memory.
	Ranks Ranks
	// Out is the file to write; "" writes none.
	Out string
	// Say, unless nil, is told what is looked at, as a line.
	Say func(line string)
}

// Norm says whether the norm of the gradients is an output of the graph.
type Norm int

// NormIfFree leaves it out where it would stand in the way of the memory.
const (
	NormIfFree Norm = iota
	NormAlways
	NormNever
)

// A Part is something that takes memory, in bytes.
type Part struct {
	What  string
	Bytes int64
}

// A Fitted is a file that trains within a memory; of a FitError, one that does not.
type Fitted struct {
	// Path is where it was written, "" for nowhere.
	Path string
	// MicroBatch is what a run of the file takes of the batch, 0 where no axis is
	// known to be that; Accumulate is how many runs make an update.
	MicroBatch, Accumulate int64
	// Dims are the numbers of the free dimensions of the model that was given.
	Dims map[string]int64
	// Total is what a step takes, Beside what is there while it runs, and Bytes all
	// of it, which Memory bounds, 0 for no bound.
	Total  Total
	Beside []Part
	Bytes  int64
	Memory int64
	// Overhead is the work that is done again, as a share of the plain step's, and More
	// what an update has more of than one of the whole batch that repeats nothing, as a
	// share of that.
	Overhead, More float64
	// OfData: Total is of sizes that the data of Options.Sizes tells.
	OfData bool
	// Sync is the most that a rank sends each time that ranks agree, in bytes.
	Sync      int64
	Decisions []Decision
	// Warnings say what the forward model leaves open about what is trained.
	Warnings []string
	Document report.Plan
}

// Fit writes the file that trains a model within a memory. Where nothing fits the
// error is a *FitError. Nothing is written then. The folder of the file is made if its
// own folder is there.
func Fit(ctx context.Context, e *runtime.Engine, source *Source, o FitOptions) (*Fitted, error) {
	return NewFitter(ctx, e, source).Fit(o)
}

// A Fitter fits one model under several options, and prepares each graph once.
type Fitter struct {
	ctx    context.Context
	engine *runtime.Engine
	source *Source
	graphs map[string]*stepGraph
	steps  map[string]*Need // predictions of steps that were only derived
}

// NewFitter fits the model of a source, which must outlive it.
func NewFitter(ctx context.Context, e *runtime.Engine, source *Source) *Fitter {
	return &Fitter{ctx: ctx, engine: e, source: source, graphs: map[string]*stepGraph{}, steps: map[string]*Need{}}
}

// nearest is Fit, with the file that comes closest where nothing fits.
func (r *Fitter) nearest(o FitOptions) (*Fitted, error) {
	fitted, err := r.Fit(o)
	if unfit, ok := errors.AsType[*FitError](err); ok {
		return unfit.Nearest, nil
	}
	return fitted, err
}

// Fit is the function of that name.
func (r *Fitter) Fit(o FitOptions) (fitted *Fitted, err error) {
	dir := filepath.Dir(o.Out)
	if o.Out != "" && os.Mkdir(dir, 0o755) == nil {
		defer func() {
			if err != nil {
				os.Remove(dir) // if it is empty
			}
		}()
	}
	if err := CanWrite(r.source.Files(), o.Out); err != nil {
		return nil, err
	}
	f := &fitting{Fitter: r, o: o}
	if err := f.look(); err != nil {
		return nil, err
	}
	if fitted, err = f.asGiven(); fitted != nil || err != nil {
		return fitted, err
	}
	a, err := f.choose()
	if err != nil {
		return nil, err
	}
	if fitted, err = f.fitted(a); err != nil {
		return nil, err
	}
	return fitted, f.save(a, fitted.Document)
}

// fitted describes an attempt that was planned.
func (f *fitting) fitted(a *attempt) (*Fitted, error) {
	decisions, err := f.decisions(a)
	if err != nil {
		return nil, err
	}
	splits, err := f.splits()
	if err != nil {
		return nil, err
	}
	warnings, err := f.warnings(a)
	if err != nil {
		return nil, err
	}
	return &Fitted{
		Path: f.o.Out, MicroBatch: a.micro, Accumulate: a.runs, Dims: a.dims, Warnings: warnings,
		Total: TotalOf(a.file.Prediction), Beside: a.beside, Bytes: a.bytes(a.file), Memory: f.o.Memory,
		OfData:   f.o.Pipeline.byData(a.file.Variant.Model, a.file.Roles()),
		Overhead: a.file.overhead(), More: a.work(a.file)/a.plainOf(splits[0]) - 1, Sync: a.sync,
		Decisions: decisions, Document: a.planner.Document(a.file, a.budget),
	}, nil
}

// leftWhole says why parts that were asked for divide nothing.
func (f *fitting) leftWhole(v *Variant) (list []string) {
	for _, asked := range f.o.Pipeline.Divisions.Asked() {
		for _, r := range v.Reports {
			if r.Pass == asked.Pass && r.Applied == 0 {
				list = append(list, fmt.Sprintf("--%s divides nothing: %s", asked.Flag, Note(r).Reason))
			}
		}
	}
	return list
}

// warnings are what the model leaves open about what is trained, why an update by several
// runs is not what one by a batch of all their samples would be, and what was asked for in vain.
func (f *fitting) warnings(a *attempt) ([]string, error) {
	whole := f.leftWhole(a.file.Variant)
	if a.derived == nil {
		return whole, nil
	}
	list, runs := append(slices.Clone(a.derived.Warnings), whole...), max(a.runs, 1)
	if f.o.Ranks.sums() {
		runs *= int64(f.o.Ranks.Size)
	}
	if runs == 1 || f.divisible {
		return list, nil
	}
	why, err := NoMeanOfSamples(f.source.Model, f.o.Pipeline.Dims, f.o.Derive.Grad.Loss)
	if err != nil {
		return nil, err
	}
	if why != "" {
		list = append(list, fmt.Sprintf("%s: an update by the mean of %d runs is not that of one batch of all their samples", why, runs))
	}
	return list, nil
}

// A fitting is one run of Fit.
type fitting struct {
	*Fitter
	o FitOptions
	// training: the source is a training graph; axis is its batch.
	training bool
	axis     batchAxis
	attempts []*attempt // in the order in which they were made
	noNorm   bool       // the norm was left out
	whole    string     // why the batch is not split, ""
	// divisible: the loss is found to be the mean of what samples make by themselves.
	divisible bool
}

// look finds out what the source is.
func (f *fitting) look() error {
	m, err := f.source.Typed(f.o.Pipeline.Dims)
	if err != nil {
		return err
	}
	roles, _ := FoundRoles(m, f.o.Pipeline.Roles)
	if f.training = roles.Training(); f.training && f.o.Ranks.sums() {
		return fmt.Errorf("%s: the graph updates within a run, so its ranks cannot sum gradients first: train its forward model, or use --sync local=H", f.source.Path)
	}
	if f.training && !roles.Updates() {
		return fmt.Errorf("%s: the graph returns gradients and updates nothing: train its forward model, or derive it with remat grad --optimizer", f.source.Path)
	}
	f.axis, err = findBatch(f.source.Model, roles)
	return err
}

// An attempt is a split of the batch with the graph that runs a part of it.
type attempt struct {
	split
	*stepGraph
	budget Budget
	file   *File
	err    error // of planning it
}

// A stepGraph is one that runs a part of a batch, ready to be planned.
type stepGraph struct {
	made    split // what it is made for
	dims    map[string]int64
	derived *Derivation // nil where the source is a training graph
	norm    bool        // of the gradients is returned
	source  *Source     // the training graph
	planner *Planner
	beside  []Part
	// updates is the graph of updates, nil where they are in the step's.
	updates *onnx.Model
	// between is the most that a run between two steps holds beside its session, in
	// bytes: that of the validation, or of the updates.
	between int64
	// sync is the most that a rank sends each time that ranks agree, in bytes.
	sync int64
	// plain is the work of an update that repeats nothing.
	plain float64
	// full is the file that computes all again, nil until it is asked for.
	full *File
}

// attempt prepares a split, unless one like it is prepared.
func (f *fitting) attempt(s split, norm bool) (*attempt, error) {
	key := f.key(s, norm)
	p := f.graphs[key]
	if p == nil {
		f.say("%s: preparing", s.text())
		var err error
		if p, err = f.prepare(s, norm); err != nil {
			return nil, err
		}
		f.graphs[key] = p
	}
	o := &p.planner.opts
	o.AsIs, o.most = f.o.Pipeline.AsIs, 0
	a := &attempt{split: s, stepGraph: p}
	if f.o.Memory > 0 {
		a.budget.Total = max(1, f.o.Memory-sum(a.beside))
	}
	f.attempts = append(f.attempts, a)
	return a, nil
}

// key tells apart the graphs that a source is made into: all that is prepared
// depends on, but for how it is planned.
func (f *fitting) key(s split, norm bool) string {
	o := f.o
	o.Pipeline.AsIs, o.Pipeline.Stop, o.Pipeline.Progress, o.Pipeline.Precision = false, nil, nil, nil
	half := ""
	if p := f.o.Pipeline.Precision; p != nil {
		half = fmt.Sprintf("%+v", *p)
	}
	return fmt.Sprintf("%v %v %+v %+v %s %v %d %v", s, norm, o.Pipeline, o.Derive, half, o.Validate, o.Ahead, o.Ranks)
}

func (f *fitting) prepare(s split, norm bool) (*stepGraph, error) {
	if f.o.Ranks.sums() { // that of the updates, whose graph has whole gradients
		norm = f.o.Norm != NormNever
	}
	a := &stepGraph{made: s, dims: f.axis.with(f.o.Pipeline.Dims, s.micro), norm: norm}
	var err error
	if a.source, a.derived, err = f.stepSource(s, f.o.Derive, norm); err != nil {
		return nil, err
	}
	defer f.adopt(a.source)
	given, err := a.source.Sized(a.dims)
	if err != nil {
		return nil, err
	}
	o := f.o.Pipeline
	o.Dims = a.dims
	if a.planner, err = NewPlanner(f.engine, given, o); err != nil {
		return nil, fmt.Errorf("%s: %w", f.source.Path, err)
	}
	if err := f.besides(a, a.planner.base().Model, a.planner.base().Analysis.Roles); err != nil {
		return nil, err
	}
	a.plain = float64(max(s.runs, 1)) * workOf(a.planner.base())
	return a, nil
}

// stepSource is the training graph of a split: the source itself where it is one, else
// what is derived from it.
func (f *fitting) stepSource(s split, o DeriveOptions, norm bool) (*Source, *Derivation, error) {
	if f.training {
		return f.source, nil, nil
	}
	o.Grad.Dims, o.Update = f.axis.with(f.o.Pipeline.Dims, s.micro), f.update(s, o.Update, norm)
	d, err := f.source.Derive(o)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.source.Path, err)
	}
	return f.source.With(d.Model), d, nil
}

// adopt has the weights of copies of a step's graph live as long as the source.
func (f *fitting) adopt(s *Source) {
	if s != f.source {
		f.source.copies = append(f.source.copies, s.copies...)
		s.copies = nil
	}
}

// besides counts what training takes beside a step: the batches that wait, and what
// a session for validation holds, or takes in its own step above the training's.
func (f *fitting) besides(a *stepGraph, given *onnx.Model, roles step.Roles) error {
	a.beside = f.ahead(given, roles)
	if err := f.besideRanks(a, given, roles); err != nil {
		return err
	}
	if !f.o.Validate {
		return nil
	}
	m, err := a.source.Forward(roles)
	if err != nil {
		return err
	}
	o := f.o.Pipeline
	o.Dims, o.Precision = a.dims, nil
	if o.provider().Device {
		if err := ForDevice(m, o.Dims); err != nil {
			return err
		}
	}
	p, err := Predict(f.engine, m, step.Roles{Loss: roles.Loss}, o, nil)
	if err != nil {
		return fmt.Errorf("%s: its forward part, for validation: %w", f.source.Path, err)
	}
	t := TotalOf(p)
	a.beside = append(a.beside, Part{"the validation's session", t.Session})
	a.between = max(a.between, t.Live+t.Unused)
	return nil
}

// ahead is what the batches of a typed model take that wait, if any.
func (f *fitting) ahead(m *onnx.Model, roles step.Roles) []Part {
	if bytes := f.o.Ahead * fedBytes(m, roles); bytes > 0 {
		return []Part{{"batches prepared ahead", bytes}}
	}
	return nil
}

// bytes is all that training takes with a file.
func (a *stepGraph) bytes(file *File) int64 { return a.all(TotalOf(file.Prediction)) }

// all is all that training takes with a step. A validation and updates of their own run
// between steps: only what they hold above a step's peak comes on top.
func (a *stepGraph) all(t Total) int64 {
	return t.Bytes() + sum(a.beside) + max(0, a.between-t.Live-t.Unused)
}

func sum(parts []Part) (total int64) {
	for _, p := range parts {
		total += p.Bytes
	}
	return total
}

// asGiven writes a training graph as it is, where nothing else is asked for and it
// fits: it may be a plan of the user's own, which planning anew would undo. It returns
// nil where the graph is to be planned.
func (f *fitting) asGiven() (*Fitted, error) {
	o := f.o.Pipeline
	if !f.training || f.o.Strategy != "" || o.divides() || o.Precision != nil || o.provider().Device && unfit(f.source.Model.Graph) {
		return nil, nil
	}
	splits, err := f.splits()
	if err != nil {
		return nil, err
	}
	a := &attempt{split: splits[0], stepGraph: &stepGraph{dims: o.Dims, source: f.source}}
	m, err := f.source.Sized(o.Dims)
	if err != nil {
		return nil, err
	}
	roles, _ := FoundRoles(m, o.Roles)
	if err := f.besides(a.stepGraph, m, roles); err != nil {
		return nil, err
	}
	out, err := f.source.copy() // without the types that were inferred
	if err == nil {
		out.SetMetadata(SourceKey, f.source.Hash()) // what a resumed training is held to
		err = NoteDims(out, FreeDims(out), o.Dims)
	}
	if err != nil {
		return nil, err
	}
	predicted, err := Predict(f.engine, m, roles, o, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.source.Path, err)
	}
	total := TotalOf(predicted)
	if f.o.Memory > 0 && a.all(total) > f.o.Memory {
		return nil, nil
	}
	if f.o.Out != "" {
		err = onnx.Together(func(files *onnx.Outputs) error {
			p, err := newPlaces(f.source, files, f.o.Out, f.say)
			if err != nil {
				return err
			}
			if err := p.move(out); err != nil {
				return err
			}
			return out.SaveWith(files, f.o.Out)
		})
	}
	if err != nil {
		return nil, err
	}
	return &Fitted{
		Path: f.o.Out, MicroBatch: a.micro, Accumulate: a.runs, Dims: a.dims, Total: total, Beside: a.beside, Bytes: a.all(total), Memory: f.o.Memory, Sync: a.sync,
		OfData:    o.byData(m, roles),
		Decisions: []Decision{{Measure: "plan", Did: "the graph is trained as it is"}},
	}, nil
}

func (f *fitting) say(format string, args ...any) {
	if f.o.Say != nil {
		f.o.Say(fmt.Sprintf(format, args...))
	}
}

// save writes the file of an attempt, and the weights beside it that it cannot refer to.
func (f *fitting) save(a *attempt, document report.Plan) error {
	if f.o.Out == "" {
		return nil
	}
	return a.file.save(a.source, f.o.Out, document, func(m *onnx.Model, files *onnx.Outputs) error {
		p, err := newPlaces(f.source, files, f.o.Out, f.say)
		if err != nil {
			return err
		}
		if err := p.move(m); err != nil {
			return err
		}
		if a.derived == nil {
			return nil
		}
		weights, err := Beside(f.o.Out, f.source.DataFiles()...)
		if err := placeParameters(m, a.derived, files, p.at, func() (string, error) { return weights, err }); err != nil {
			return err
		}
		return f.saveUpdates(a, m, files)
	})
}
