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
	"github.com/onnx-remat/remat/report"
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
	// turned plans the same graph with casts of what waits the other way; Plan.
	turned   *Planner
	opts     Options
	variants []*Prepared // the graph as asked for, then what optimal may take
}

// choices are the forms of a graph among which a strategy that looks for the
// best plan may choose, unless the user did: the graph as it is, with its loss
// in slices, and with wide products in parts too.
var choices = []struct{ chunk, tile int }{{0, 0}, {AutoChunk, 0}, {AutoChunk, AutoChunk}}

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
	base, err := Prepare(e, given, o)
	if err != nil {
		return nil, err
	}
	p := &Planner{engine: e, given: given, opts: base.Options, variants: []*Prepared{base}}
	before, err := given.Clone()
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
	scheduled, err := p.applyOnce(nil, base, none)
	if err != nil {
		return nil, err
	}
	p.Scheduled = scheduled.Peak
	return p, nil
}

// Problem is the planning problem of the graph as it was asked for.
func (p *Planner) Problem() *planner.Problem { return p.variants[0].Analysis.Problem }

// candidates are the forms of the graph that a strategy may choose from.
func (p *Planner) candidates(strategy string) ([]*Prepared, error) {
	if !Budgeted(strategy) || p.opts.Chunk != 0 || p.opts.Tile != 0 || p.opts.AsIs || !p.Problem().HasBackward() {
		return p.variants[:1], nil
	}
	for _, c := range choices[len(p.variants):] {
		o := p.opts
		o.Chunk, o.Tile = c.chunk, c.tile
		v, err := Prepare(p.engine, p.given, o)
		if err != nil {
			return nil, err
		}
		p.variants = append(p.variants, v)
	}
	return p.variants, nil
}

// solve finds among the candidates the strategy's plan of least peak; the first
// of equals, which changes the graph least.
func (p *Planner) solve(strategy string) (*Prepared, *planner.Plan, error) {
	candidates, err := p.candidates(strategy)
	if err != nil {
		return nil, nil, err
	}
	var best *Prepared
	var plan *planner.Plan
	var lowest int64
	for _, c := range candidates {
		problem := c.Analysis.Problem
		done := p.solving()
		found, err := solveEither(problem, c.castsOnce(), strategy, 0)
		done()
		if err != nil {
			return nil, nil, err
		}
		verdict, err := planner.Judge(problem, found)
		if err != nil {
			return nil, nil, err
		}
		if best == nil || verdict.Peak < lowest-lowest/rough {
			best, plan, lowest = c, found, verdict.Peak
		}
	}
	return best, plan, nil
}

// plan runs a strategy and writes, in memory, the file that it leads to. Under
// a budget in bytes (0: none) the file's predicted live peak keeps it, or the
// error is a planner.InfeasibleError. Where no plan that is known to keep the
// budget does, the plan of least peak has the last word.
func (p *Planner) plan(strategy string, budget int64) (*Planned, error) {
	if !Budgeted(strategy) {
		r, err := p.within(strategy, budget)
		if err == nil && r.Peak > p.Before.LivePeak {
			return p.asGiven(r)
		}
		return r, err
	}
	if budget > 0 {
		if r, err := p.cheapest(strategy, budget); r != nil || err != nil {
			return r, err
		}
	}
	r, err := p.within(strategy, 0)
	if err != nil {
		return nil, err
	}
	if min(p.Scheduled, p.Before.LivePeak) <= r.Peak { // a few bytes of shapes outweigh what a tiny graph saves
		none, err := p.plan("none", 0)
		if err != nil {
			return nil, err
		}
		if none.Peak <= r.Peak {
			r = none
		}
	}
	if budget > 0 && r.Peak > budget {
		return nil, &planner.InfeasibleError{Budget: budget, Least: r.Peak, LowerBound: r.LowerBound}
	}
	return r, nil
}

// within runs a strategy and writes its file; with a budget other than 0, that
// has to keep it.
func (p *Planner) within(strategy string, budget int64) (*Planned, error) {
	form, plan, err := p.solve(strategy)
	if err != nil {
		return nil, err
	}
	r, err := p.apply(p.engine, form, plan)
	if err == nil && budget > 0 && r.Peak > budget {
		return nil, &planner.InfeasibleError{Budget: budget, Least: r.Peak, LowerBound: r.LowerBound}
	}
	return r, err
}

// solving counts the time until what it returns is called as the solver's.
func (p *Planner) solving() func() {
	start := time.Now()
	return func() { p.Solving += time.Since(start) }
}

// overhead is the share of the work that is done again.
func (r *Planned) overhead() float64 { return r.Plan.Overhead(r.Problem) }

// keeping writes a plan's file; with a budget it is first predicted as it
// stands, which is quick, and only what keeps the budget then is finished.
func (p *Planner) keeping(budget int64, form *Prepared, plan *planner.Plan) (*Planned, error) {
	if budget > 0 {
		r, err := p.applyOnce(nil, form, plan)
		if err != nil || r.Peak > budget {
			return r, err
		}
	}
	return p.apply(p.engine, form, plan)
}

// shapesBytes is the size in bytes up to which files differ by the shapes that
// barriers compute.
const shapesBytes = 4096

// asGiven returns the given file unchanged, if that holds less than the file of
// a plan and nothing else was asked for: a strategy should never cost memory.
func (p *Planner) asGiven(r *Planned) (*Planned, error) {
	o := p.opts
	if len(o.DropOutputs) > 0 || o.Chunk != 0 || o.Tile != 0 || o.Precision != nil {
		return r, nil
	}
	m, err := p.given.Clone()
	if err != nil {
		return nil, err
	}
	base := p.variants[0]
	problem := base.Analysis.Problem
	note := fmt.Sprintf("the strategy's file would hold %d bytes, more than the one given: it is written as it was", r.Peak)
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
// leads to.
func (p *Planner) Apply(plan *planner.Plan) (*Planned, error) {
	return p.apply(p.engine, p.variants[0], plan)
}

// maxReapply bounds how often a plan is written anew because its file runs
// another schedule.
const maxReapply = 3

// apply writes a plan's file. Without an engine nothing is guarded, and the
// prediction is of the file as it stands. The plan that comes back has the
// schedule that the file runs, and leads to this file itself: writing can move
// an update behind a reader that is computed again, or merge equal nodes.
func (p *Planner) apply(engine *runtime.Engine, base *Prepared, plan *planner.Plan) (*Planned, error) {
	for try := 0; ; try++ {
		r, err := p.applyOnce(engine, base, plan)
		if err != nil || try == maxReapply || slices.Equal(r.Prepared.ran, plan.Schedule) {
			return r, err
		}
		next := *plan
		next.Schedule = r.Prepared.ran
		if next.Check(base.Analysis.Problem) != nil {
			return r, nil
		}
		plan = &next
	}
}

// applyOnce writes a plan's file, whatever schedule it runs.
func (p *Planner) applyOnce(engine *runtime.Engine, base *Prepared, plan *planner.Plan) (*Planned, error) {
	problem := base.Analysis.Problem
	verdict, err := planner.Judge(problem, plan)
	if err != nil {
		return nil, err
	}
	m, err := base.Model.Clone()
	if err != nil {
		return nil, err
	}
	fresh := &Prepared{Model: m, Options: base.Options}
	if err := retype(m, base.Model); err != nil {
		return nil, err
	}
	if err := fresh.Analyze(); err != nil {
		return nil, err
	}
	if err := fresh.Rewrite(engine, plan); err != nil {
		return nil, err
	}
	r := &Planned{
		Plan: plan, Problem: problem, Analysis: base.Analysis, Verdict: verdict,
		LowerBound: planner.LowerBound(problem), Prepared: fresh,
		Reports: append(slices.Clone(base.Reports), fresh.Reports...),
	}
	written, err := m.Clone()
	if err != nil {
		return nil, err
	}
	if fresh.settled && p.opts.OptLevel != 99 { // there the layout of convolutions may still change
		engine = nil
	}
	if r.Prediction, err = Predict(engine, written, fresh.Analysis.Roles, p.opts, nil); err != nil {
		return nil, err
	}
	r.Peak = r.Prediction.LivePeak
	return r, nil
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

// Layers draws the plan over the layers that were found, in forward order.
func (r *Planned) Layers() []report.PlanLayer {
	p := r.Problem
	if p.LayerCount() == 0 {
		return nil
	}
	layer := r.layerOf()
	out := make([]report.PlanLayer, p.LayerCount())
	boundary := map[int]bool{}
	for _, v := range r.Plan.Boundaries {
		boundary[v] = true
	}
	for i := range out {
		out[i].Layer = p.Values[p.Layers[i+1]].Name
		out[i].Boundary = boundary[p.Layers[i+1]]
	}
	producer := map[int]int{}
	for op := range p.Graph.Nodes {
		for _, v := range p.Graph.Nodes[op].Outputs {
			producer[v] = op
		}
	}
	for _, v := range r.Plan.Kept(p) {
		if l := layer[producer[v]]; l >= 0 {
			out[l].KeptValues++
			out[l].KeptBytes += p.Graph.Values[v].Bytes
		}
	}
	for op, n := range r.Plan.Recomputed(p) {
		if l := layer[op]; n > 0 && l >= 0 {
			out[l].RecomputedNodes += n
			for _, v := range p.Graph.Nodes[op].Outputs {
				if v >= 0 {
					out[l].RecomputedBytes += p.Graph.Values[v].Bytes
				}
			}
		}
	}
	return out
}

// layerOf says which layer a forward operator belongs to, -1 for none: the
// last one whose input it depends on and whose output it does not.
func (r *Planned) layerOf() []int {
	p := r.Problem
	depth := make([]int, len(p.Values)) // layers begun before the value
	begin := map[int]int{}
	for i, v := range p.Layers {
		begin[v] = i + 1
	}
	out := make([]int, len(p.Ops))
	for op, n := range p.Graph.Nodes {
		out[op] = -1
		if !p.Ops[op].Forward {
			continue
		}
		d := 0
		for _, v := range n.Inputs {
			if v >= 0 {
				d = max(d, depth[v])
			}
		}
		for _, v := range n.Outputs {
			if v < 0 {
				continue
			}
			depth[v] = d
			if b, ok := begin[v]; ok {
				depth[v] = b
			}
		}
		if d > 0 && d <= p.LayerCount() {
			out[op] = d - 1
		}
	}
	return out
}
