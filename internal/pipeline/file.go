package pipeline

// From a candidate to its file, in memory, in two steps.
//
//	write    recomputation, schedule; predicted as it stands
//	finish   guards against what ONNX Runtime's highest level would fuse; predicted
//	         by what it makes of the file at the level asked for
//
// A session of ONNX Runtime takes longer than all else together. Writing needs
// none, and a file that misses its budget as it is written is not finished.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/predict"
)

// A File is a plan with the graph that it leads to.
type File struct {
	Variant    *Variant
	Plan       *planner.Plan
	Verdict    planner.Verdict
	LowerBound int64 // below which no plan's peak can be, in bytes
	Model      *onnx.Model
	// Prediction is of the model, and Peak its live peak in bytes.
	Prediction *predict.Prediction
	Peak       int64
	// Reports say what the passes did, those of the variant first.
	Reports []rewrite.Report
	// Finished: the file is guarded, and ONNX Runtime was asked what it makes of it.
	Finished bool
	// asked: ONNX Runtime was asked, though the file may not be guarded.
	asked bool

	written   *rewriting // nil for the file as it was given
	unchanged bool       // ONNX Runtime was seen to leave the model as it is
}

// Problem is the planning problem that the plan solves.
func (f *File) Problem() *planner.Problem { return f.Variant.Problem() }

// Roles are those of the graph that was planned.
func (f *File) Roles() step.Roles { return f.Variant.Analysis.Roles }

// overhead is the work that is done again, as a share of the plain step's.
func (f *File) overhead() float64 { return f.Plan.Overhead(f.Problem()) }

// waits reports a file that holds more than its plan as it is judged, by more than one part in
// rough: buffers wait in it to be used again.
func (f *File) waits() bool { return f.Peak > f.Verdict.Peak+f.Verdict.Peak/rough }

// asRun is the plan with the schedule that the file runs, nil where that is its own
// or is none: writing can move an update behind a reader that is computed again, or
// merge equal nodes.
func (f *File) asRun() *planner.Plan {
	if f.written == nil {
		return nil
	}
	next := *f.Plan
	next.Schedule = f.written.ran
	if slices.Equal(next.Schedule, f.Plan.Schedule) || next.Check(f.Problem()) != nil {
		return nil
	}
	return &next
}

// write writes a plan's file and predicts it as it stands.
func (p *Planner) write(v *Variant, plan *planner.Plan) (*File, error) {
	f, err := p.writeHiding(v, plan, nil)
	if err != nil {
		return nil, err
	}
	return p.hiding(f)
}

// writeHiding is write, with the shapes of some values hidden.
func (p *Planner) writeHiding(v *Variant, plan *planner.Plan, list []hidden) (*File, error) {
	problem := v.Problem()
	plan, verdict, err := v.updatesBehind(plan)
	if err != nil {
		return nil, err
	}
	w, err := v.rewriting()
	if err != nil {
		return nil, err
	}
	w.hidden = list
	if err := w.follow(plan); err != nil {
		return nil, err
	}
	f := &File{
		Variant: v, Plan: plan, Verdict: verdict, LowerBound: planner.LowerBound(problem),
		Model: w.model, written: w,
	}
	return f, p.predict(nil, f)
}

// maxReapply bounds how often a plan is written anew because its file runs
// another schedule.
const maxReapply = 3

// Finish asks an engine what ONNX Runtime makes of a file of a planner that has none, and
// guards it. What comes back is predicted as it runs.
func (p *Planner) Finish(e *runtime.Engine, f *File) (*File, error) {
	p.engine = e
	if f.written == nil { // the file as it was given
		return f, p.predict(e, f)
	}
	f.Finished = false
	return p.finish(f)
}

// finish guards a file that was written. The plan of what comes back has the
// schedule that it runs, and leads to this file itself.
func (p *Planner) finish(f *File) (*File, error) {
	for try := 0; ; try++ {
		next := f.asRun()
		switch {
		case next != nil && try <= maxReapply:
			var err error
			if f, err = p.write(f.Variant, next); err != nil {
				return nil, err
			}
		case f.Finished:
			return f, nil
		}
		if err := p.guard(f); err != nil {
			return nil, err
		}
	}
}

// guard guards a file, and predicts it anew where it is changed by that, or ONNX
// Runtime changes it.
func (p *Planner) guard(f *File) error {
	f.Finished, f.asked = true, true
	engine := p.opts.cpuEngine(p.engine)
	changed := false
	if engine != nil {
		guarded, unchanged, err := f.written.guard(engine)
		if err != nil {
			return err
		}
		unchanged = unchanged && p.opts.OptLevel != 99 // where the layout of convolutions may still change
		if unchanged {
			engine = nil
		}
		f.unchanged = unchanged && !p.opts.CUDA && !p.opts.WebGPU
		changed = guarded || !unchanged || f.unchanged && !f.Prediction.Exact()
	}
	if !p.opts.CUDA && !p.opts.WebGPU {
		if !changed {
			return nil
		}
		return p.predict(engine, f)
	}
	var aside *File
	if p.opts.WebGPU {
		var err error
		if aside, err = f.again(); err != nil {
			return err
		}
	}
	settled, err := f.written.settle(true)
	if err != nil || !changed && !settled {
		return err
	}
	if err := p.predict(engine, f); err != nil || aside == nil {
		return err
	}
	return p.keepAside(engine, f, aside)
}

// again is a copy of a file that was written.
func (f *File) again() (*File, error) {
	m, err := f.Model.Clone()
	if err != nil {
		return nil, err
	}
	other, w := *f, *f.written
	w.model, other.Model, other.written = m, m, &w
	return &other, nil
}

// keepAside takes the copy of a file for WebGPU with its edges aside of the stream where
// the file holds more: past the views of triggers ONNX Runtime hands on other buffers.
func (p *Planner) keepAside(engine *runtime.Engine, f, aside *File) error {
	if _, err := aside.written.settle(false); err != nil {
		return err
	}
	err := p.predict(engine, aside)
	if err == nil && aside.Peak+shapesBytes < f.Peak {
		*f = *aside
	}
	return err
}

// predict predicts a file, with an engine as the graph that ONNX Runtime makes of it.
func (p *Planner) predict(engine *runtime.Engine, f *File) error {
	m, err := f.Model.Clone()
	if err != nil {
		return err
	}
	if f.written != nil {
		f.Reports = slices.Concat(f.Variant.Reports, f.written.reports, f.written.scheduled)
	}
	o := p.opts
	o.unchanged = f.unchanged
	if f.Prediction, err = Predict(engine, m, f.Roles(), o, nil); err == nil {
		f.Peak = f.Prediction.LivePeak
	}
	return err
}

// An excess is by what ratio files that ONNX Runtime was asked about hold more than they
// promised as they were written, the least of so many. Where it computes float16 between
// casts of its own, all of a graph's do (step/widen.go).
type excess struct {
	least float64
	files int
}

// excessFiles is how many files an excess is known from, and excessShare what of it the next
// one has at least.
const excessFiles, excessShare = 3, 0.95

// known reports that every file held more than it promised, by one part in rough.
func (e *excess) known() bool {
	return e.files >= excessFiles && e.least > 1+1.0/rough
}

func (e *excess) note(promised, held int64) {
	ratio := float64(held) / float64(max(promised, 1))
	if e.files++; e.files == 1 || ratio < e.least {
		e.least = ratio
	}
}

// beyond reports a file that is going to hold more than a limit, in bytes, which it promises
// to keep.
func (e *excess) beyond(promised, limit int64) bool {
	return e.files >= excessFiles && limit > 0 && float64(promised)*e.least*excessShare > float64(limit)
}

// finishWithin finishes a file. Where files are known to hold more than they promise, ONNX
// Runtime is asked first whether it misses the budget, and then it is not guarded: asking takes
// one session, guards take two more.
func (p *Planner) finishWithin(f *File, budget Budget) (*File, error) {
	engine := p.opts.cpuEngine(p.engine)
	if engine == nil || p.opts.CUDA || p.opts.WebGPU || budget.none() || !p.excess.known() {
		return p.finish(f)
	}
	if err := p.predict(engine, f); err != nil {
		return nil, err
	}
	if f.asked = true; budget.missed(f.Prediction) {
		return f, nil
	}
	return p.finish(f)
}

// file writes a candidate's file, and finishes it if it keeps the budget as it stands; nil
// where it is not going to.
func (p *Planner) file(c Candidate, budget Budget) (*File, error) {
	done := p.solving()
	plan, err := c.Plan()
	if done(); err != nil {
		return nil, err
	}
	p.looking(0, 0)
	f, err := p.write(c.Variant, plan)
	if err != nil {
		return nil, err
	}
	if promised := f.Peak; !budget.missed(f.Prediction) {
		if p.excess.beyond(promised, p.live(budget)) {
			return nil, nil
		}
		if f, err = p.finishWithin(f, budget); err != nil {
			return nil, err
		}
		p.excess.note(promised, f.Peak)
	}
	p.tried(f.Peak)
	return f, nil
}

// rewriting is a copy of the variant's graph, to be written.
func (v *Variant) rewriting() (*rewriting, error) {
	m, err := v.Model.Clone()
	if err != nil {
		return nil, err
	}
	a, err := v.Analysis.On(v.Model.Graph, m.Graph)
	return &rewriting{variant: v, model: m, analysis: a}, err
}
