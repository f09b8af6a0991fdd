package flow

// Planning closes the loop on the file: what a solver proposes is written,
// what was written is predicted, and where the prediction exceeds the budget
// the next plan is tried (cheapest.go). The file is predicted as it stands
// first, which is quick; the last word has the graph that ONNX Runtime itself
// makes of it at the optimization level asked for.

import (
	"fmt"
	"slices"
	"time"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/predict"
)

// rough: without a budget, a form of the graph that changes it more has to lower
// the peak by more than one part in so many.
const rough = 100

// A Planner plans one given graph, as often as wanted.
type Planner struct {
	// Before is the prediction of the given file as it stands.
	Before *predict.Prediction
	// Scheduled is the predicted live peak of the given file only reordered,
	// in bytes.
	Scheduled int64
	// Solving is the time spent in solvers and the judge: what is left of
	// planning is preparing forms of the graph, writing and predicting files.
	Solving time.Duration

	engine *runtime.Engine
	given  *onnx.Model
	// fixed is what inputs, initializers and the session take at least, in bytes.
	fixed int64
	// turned plans the same graph with the casts of values that wait run early, or
	// at their readers, whichever this one does not; nil until PlanWithin asks.
	turned   *Planner
	opts     Options
	variants []*Prepared // the graph as asked for, then the other forms that optimal may take
	chosen   int         // how many of choices have been prepared; see candidates
	state    Progress
	limited  bool // see Limited
}

// Planned is a plan with the file that it leads to.
type Planned struct {
	Plan       *planner.Plan
	Problem    *planner.Problem
	Analysis   *analysis.Analysis
	Verdict    planner.Verdict
	LowerBound int64
	// Prepared holds the rewritten model; Prediction is of that model, and
	// Peak its live peak in bytes.
	Prepared   *Prepared
	Prediction *predict.Prediction
	Peak       int64
	Reports    []rewrite.Report
}

// NewPlanner prepares the given graph and predicts it as it stands.
func NewPlanner(e *runtime.Engine, given *onnx.Model, o Options) (*Planner, error) {
	p := &Planner{engine: e, given: given}
	o.Stop = p.heed(o.Stop)
	base, err := Prepare(e, given, o)
	if err != nil {
		return nil, err
	}
	p.opts, p.variants = base.Options, []*Prepared{base}
	restore := func() {}
	if len(o.Dims) > 0 {
		restore = given.Graph.AsDeclared()
	}
	before, err := given.Clone()
	restore()
	if err != nil {
		return nil, err
	}
	if p.Before, err = Predict(e, before, base.Analysis.Roles, o, nil); err != nil {
		return nil, err
	}
	none, err := planner.Solve(base.Analysis.Problem, "none", 0)
	if err != nil {
		return nil, err
	}
	scheduled, err := p.applyOnce(Budget{}, nil, base, none)
	if err != nil {
		return nil, err
	}
	p.Scheduled = scheduled.Peak
	fixed := func(q *predict.Prediction) int64 { return q.TotalPeak - q.LivePeak }
	p.fixed = min(fixed(p.Before), fixed(scheduled.Prediction))
	return p, nil
}

// Problem is the planning problem of the graph as it was asked for.
func (p *Planner) Problem() *planner.Problem { return p.variants[0].Analysis.Problem }

// A proposal is a plan for one form of the graph with the peak that the judge
// gives it, in bytes.
type proposal struct {
	form *Prepared
	plan *planner.Plan
	peak int64
}

// solve finds each candidate's plan of least peak, and which of them has the
// least; the first of equals, which changes the graph least.
func (p *Planner) solve(strategy string) (list []proposal, best int, err error) {
	candidates, err := p.candidates(strategy)
	if err != nil {
		return nil, 0, err
	}
	for i, c := range candidates {
		if i > 0 && p.stopped() {
			break
		}
		p.looking(i+1, len(candidates))
		problem := c.Analysis.Problem
		done := p.solving()
		plan, err := solveEither(problem, c.castsOnce(), strategy, 0)
		done()
		if err != nil {
			return nil, 0, err
		}
		verdict, err := planner.Judge(problem, plan)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, proposal{c, plan, verdict.Peak})
		if lowest := list[best].peak; verdict.Peak < lowest-lowest/rough {
			best = i
		}
	}
	return list, best, nil
}

// plan runs a strategy and writes, in memory, the file that it leads to. What is
// predicted of the file keeps the budget, or the error is a
// planner.InfeasibleError or a TotalError. Where no plan that is known to keep
// the budget does, the plan of least peak has the last word.
func (p *Planner) plan(strategy string, budget Budget) (*Planned, error) {
	if !Budgeted(strategy) {
		r, err := p.least(strategy)
		if err == nil && p.costs(r) {
			r, err = p.asGiven(r)
		}
		return within(budget, r, err)
	}
	var closest *Planned
	if !budget.none() {
		r, kept, err := p.cheapest(strategy, budget)
		if kept || err != nil {
			return r, err
		}
		closest = r
	}
	r, err := p.least(strategy)
	if err != nil {
		return nil, err
	}
	if closest != nil && budget.miss(closest.Prediction) < budget.miss(r.Prediction) {
		r = closest
	}
	if min(p.Scheduled, p.Before.LivePeak) <= r.Peak { // a few bytes of shapes outweigh what a tiny graph saves
		none, err := p.plan("none", Budget{})
		if err != nil {
			return nil, err
		}
		if none.Peak <= r.Peak {
			r = none
		}
	}
	return within(budget, r, nil)
}

// least runs a strategy for the least peak and writes the file. Where that holds
// more than the judge said, as buffers wait in it to be used again, it may not be
// the least: then what promises less is written too.
func (p *Planner) least(strategy string) (*Planned, error) {
	list, first, err := p.solve(strategy)
	if err != nil {
		return nil, err
	}
	best, err := p.apply(p.engine, list[first].form, list[first].plan)
	if err != nil {
		return nil, err
	}
	for i, q := range list {
		if i == first || q.peak >= best.Peak-best.Peak/rough {
			continue
		}
		if p.stopped() {
			break
		}
		r, err := p.apply(p.engine, q.form, q.plan)
		if err != nil {
			return nil, err
		}
		if r.Peak < best.Peak {
			best = r
		}
	}
	if Budgeted(strategy) && best.Peak > list[first].peak+list[first].peak/rough {
		return p.orSimpler(best)
	}
	return best, nil
}

// simpler are the strategies whose plans a search starts from, as it judges them.
var simpler = []string{"full", "sqrt", "selective"}

// orSimpler returns the file of a search's plan, or that of a simpler strategy where
// it holds less. In a tiny graph the shapes that barriers compute, and buffers that
// wait, outweigh what the judge compared.
func (p *Planner) orSimpler(r *Planned) (*Planned, error) {
	form, best := p.variants[0], r
	for _, strategy := range simpler {
		if p.stopped() {
			break
		}
		done := p.solving()
		plan, err := planner.Solve(form.Analysis.Problem, strategy, 0)
		done()
		if err != nil {
			return nil, err
		}
		other, err := p.apply(p.engine, form, plan)
		if err != nil {
			return nil, err
		}
		if other.Peak < best.Peak {
			best = other
		}
	}
	if best != r {
		best.Plan.Notes = append(best.Plan.Notes, fmt.Sprintf("strategy %s gives a smaller file (%d bytes) than the search (%d): using the smaller one", best.Plan.Strategy, best.Peak, r.Peak))
		best.Plan.Strategy = r.Plan.Strategy
	}
	return best, nil
}

// within passes on what was planned, with an error where it misses the budget.
func within(budget Budget, r *Planned, err error) (*Planned, error) {
	if err == nil && !budget.Keeps(r.Prediction) {
		err = budget.exceeded(r)
	}
	return r, err
}

// solving counts the time until what it returns is called as the solver's.
func (p *Planner) solving() func() {
	start := time.Now()
	return func() { p.Solving += time.Since(start) }
}

// overhead is the work that is done again, as a share of the plain step's.
func (r *Planned) overhead() float64 { return r.Plan.Overhead(r.Problem) }

// keeping writes the file of a line's plan and reports whether that keeps the
// budget. The file is first predicted as it stands, which is quick, and only if
// it keeps the budget then is it finished.
func (p *Planner) keeping(budget Budget, l *line) (*Planned, bool, error) {
	done := p.solving()
	plan, err := l.plan.Plan()
	if done(); err != nil {
		return nil, false, err
	}
	r, err := p.applyWithin(budget, p.engine, l.form, plan)
	if err != nil {
		return nil, false, err
	}
	return r, budget.Keeps(r.Prediction), nil
}

// shapesBytes is the size in bytes up to which files differ by the shapes that
// barriers compute.
const shapesBytes = 4096

// costs reports a file that holds more over a step than the one given. A few bytes
// of shapes are no cost where they keep weights from being held twice.
func (p *Planner) costs(r *Planned) bool {
	over := r.Peak - p.Before.LivePeak
	return over > shapesBytes || over > 0 && r.Prediction.TotalPeak >= p.Before.TotalPeak
}

// asGiven returns the given file unchanged, if that holds less than the file of
// a plan and nothing else was asked for: a strategy should never cost memory.
func (p *Planner) asGiven(r *Planned) (*Planned, error) {
	o := p.opts
	if len(o.DropOutputs) > 0 || o.Chunk != 0 || o.Tile != 0 || o.Rows != 0 || o.Precision != nil {
		return r, nil
	}
	m, err := p.given.Clone()
	if err != nil {
		return nil, err
	}
	base := p.variants[0]
	problem := base.Analysis.Problem
	note := fmt.Sprintf("the strategy's file would need %d bytes, more than the given one: the input file is kept unchanged", r.Peak)
	if r.Peak-p.Before.LivePeak <= shapesBytes {
		note = "no order is better than that of the file given: it is written as it was"
	}
	plan := &planner.Plan{Strategy: r.Plan.Strategy, Schedule: ortmodel.Order(&problem.Graph),
		Notes: append(slices.Clone(r.Plan.Notes), note)}
	return &Planned{
		Plan: plan, Problem: problem, Analysis: base.Analysis, LowerBound: r.LowerBound,
		Verdict:  planner.Verdict{Peak: p.Before.LivePeak, FLOPs: problem.FLOPs()},
		Prepared: &Prepared{Model: m, Analysis: base.Analysis, Options: o}, Prediction: p.Before, Peak: p.Before.LivePeak,
	}, nil
}

// Budgeted reports a strategy that looks for a plan within a budget.
func Budgeted(strategy string) bool {
	s, _, err := planner.Find(strategy)
	return err == nil && s.Budgeted
}

// Apply writes, in memory, the file that a plan of this planner's problem
// leads to: the one given, where the plan is its order and writing that anew would
// hold more, as a plan that ended in asGiven says.
func (p *Planner) Apply(plan *planner.Plan) (*Planned, error) {
	r, err := p.apply(p.engine, p.variants[0], plan)
	if err != nil || !p.costs(r) || !slices.Equal(plan.Schedule, ortmodel.Order(&p.Problem().Graph)) {
		return r, err
	}
	if r, err = p.asGiven(r); err == nil {
		r.Plan.Notes = plan.Notes
	}
	return r, err
}
