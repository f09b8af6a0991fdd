package flow

// From a plan to its file, in memory.
//
//	plan ─▶ sketch ─▶ the schedule that the file runs ─▶ guards ─▶ predict
//
// A session of ONNX Runtime takes longer than all else together, so a sketch,
// which asks for none, comes first: it tells the schedule that a file will run, and
// a file that misses its budget as it stands needs no more.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/predict"
)

// maxReapply bounds how often a plan is written anew because its file runs
// another schedule.
const maxReapply = 3

// apply writes a plan's file. Without an engine nothing is guarded, and the
// prediction is of the file as it stands. The plan that comes back has the
// schedule that the file runs, and leads to this file itself: writing can move
// an update behind a reader that is computed again, or merge equal nodes.
func (p *Planner) apply(engine *runtime.Engine, base *Prepared, plan *planner.Plan) (*Planned, error) {
	return p.applyWithin(Budget{}, engine, base, plan)
}

// applyWithin is apply, but where the file misses a budget as it stands, nothing
// is guarded, and the prediction is of that. Which schedule a file runs hardly ever
// hangs on guards, so it is found first, without a session of ONNX Runtime.
func (p *Planner) applyWithin(budget Budget, engine *runtime.Engine, base *Prepared, plan *planner.Plan) (*Planned, error) {
	p.looking(0, 0)
	if engine = p.opts.cpuEngine(engine); engine != nil {
		r, err := p.sketch(budget, base, plan)
		if err != nil || r.Prediction != nil && budget.missed(r.Prediction) {
			return r, err
		}
		if next := r.asRun(); next != nil {
			plan = next
		}
	}
	for try := 0; ; try++ {
		r, err := p.applyOnce(budget, engine, base, plan)
		if err != nil {
			return nil, err
		}
		next := r.asRun()
		if next == nil || try == maxReapply || budget.missed(r.Prediction) {
			p.tried(r.Peak)
			return r, nil
		}
		plan = next
	}
}

// asRun is the plan with the schedule that the file runs, nil where that is its own
// or is none.
func (r *Planned) asRun() *planner.Plan {
	next := *r.Plan
	next.Schedule = r.Prepared.ran
	if slices.Equal(next.Schedule, r.Plan.Schedule) || next.Check(r.Problem) != nil {
		return nil
	}
	return &next
}

// sketch writes a plan's file without asking ONNX Runtime, and with a budget
// predicts it as it stands.
func (p *Planner) sketch(budget Budget, base *Prepared, plan *planner.Plan) (*Planned, error) {
	r, err := p.write(nil, base, plan, nil)
	if err != nil || budget.none() {
		return r, err
	}
	if r.Prediction, err = p.predicted(nil, r.Prepared); err != nil {
		return nil, err
	}
	if r.Peak = r.Prediction.LivePeak; budget.missed(r.Prediction) {
		p.tried(r.Peak)
	}
	return r, nil
}

// applyOnce writes a plan's file, whatever schedule it runs.
func (p *Planner) applyOnce(budget Budget, engine *runtime.Engine, base *Prepared, plan *planner.Plan) (*Planned, error) {
	var first *predict.Prediction // of the file as it is first written
	var look func(*Prepared) (bool, error)
	if !budget.none() {
		look = func(fresh *Prepared) (ok bool, err error) {
			first, err = p.predicted(nil, fresh)
			return err == nil && !budget.missed(first), err
		}
	}
	r, err := p.write(engine, base, plan, look)
	if err != nil {
		return nil, err
	}
	fresh := r.Prepared
	if fresh.settled && p.opts.OptLevel != 99 { // there the layout of convolutions may still change
		engine = nil
	}
	if r.Prediction = first; first == nil || !budget.missed(first) && (engine != nil || fresh.guarded) {
		if r.Prediction, err = p.predicted(engine, fresh); err != nil {
			return nil, err
		}
	}
	r.Peak = r.Prediction.LivePeak
	return r, nil
}

// write writes a plan's file and predicts nothing; look, unless nil, is asked as
// Prepared.look.
func (p *Planner) write(engine *runtime.Engine, base *Prepared, plan *planner.Plan, look func(*Prepared) (bool, error)) (*Planned, error) {
	problem := base.Analysis.Problem
	plan = base.updatesBehind(plan)
	verdict, err := planner.Judge(problem, plan)
	if err != nil {
		return nil, err
	}
	m, err := base.Model.Clone()
	if err != nil {
		return nil, err
	}
	fresh := &Prepared{Model: m, Options: base.Options, added: base.added, reread: base.reread}
	if err := retype(m, base.Model); err != nil {
		return nil, err
	}
	if err := fresh.Analyze(); err != nil {
		return nil, err
	}
	if look != nil {
		fresh.look = func() (bool, error) { return look(fresh) }
	}
	if err := fresh.Rewrite(engine, plan); err != nil {
		return nil, err
	}
	return &Planned{
		Plan: plan, Problem: problem, Analysis: base.Analysis, Verdict: verdict,
		LowerBound: planner.LowerBound(problem), Prepared: fresh,
		Reports: append(slices.Clone(base.Reports), fresh.Reports...),
	}, nil
}

// predicted predicts the model of a written file.
func (p *Planner) predicted(engine *runtime.Engine, written *Prepared) (*predict.Prediction, error) {
	m, err := written.Model.Clone()
	if err != nil {
		return nil, err
	}
	return Predict(engine, m, written.Analysis.Roles, p.opts, nil)
}

// retype copies inferred types to a clone's values.
func retype(to, from *onnx.Model) error {
	copyTypes := func(values []*onnx.Value) error {
		for _, v := range values {
			if v == nil {
				continue
			}
			w := to.Graph.Value(v.Name)
			if w == nil {
				return fmt.Errorf("clone lost value %q", v.Name)
			}
			w.Type = v.Type
		}
		return nil
	}
	if err := copyTypes(from.Graph.Inputs); err != nil {
		return err
	}
	for _, n := range from.Graph.Nodes {
		if err := copyTypes(n.Outputs); err != nil {
			return err
		}
	}
	return nil
}
