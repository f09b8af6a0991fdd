package pipeline

// From a budget to a file: the candidates are written by ascending work, and the
// first whose file keeps the budget is the one. Where none does, or there is no
// budget, the plans of least peak are written, and the file that holds least is it.
// A bound on the work is in within.go.

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/predict"
)

// A Planner plans one given graph, as often as wanted.
type Planner struct {
	// Before is the prediction of the given file as it stands.
	Before *predict.Prediction
	// Scheduled is the predicted live peak of the given file only reordered,
	// in bytes.
	Scheduled int64
	// Solving is the time spent in solvers and the judge: what is left of
	// planning is preparing variants, writing and predicting files.
	Solving time.Duration

	engine *runtime.Engine
	given  *onnx.Model
	opts   Options
	asked  *family // the graph as asked for, and divided
	turned *family // see families; nil until one is asked for
	// fixed is what inputs, initializers and the session take at least, in bytes.
	fixed   int64
	state   Progress
	limited bool // see Limited
	excess  excess
}

// NewPlanner prepares the given graph and predicts it as it stands.
func NewPlanner(e *runtime.Engine, given *onnx.Model, o Options) (*Planner, error) {
	p := &Planner{engine: e, given: given, fixed: math.MaxInt64}
	var err error
	if o.Outputs, err = step.OutputsOf(given, o.Outputs); err != nil {
		return nil, err
	}
	if o.Outputs == step.Rows && o.CUDA {
		return nil, fmt.Errorf("--outputs rows: %w", runtime.ErrRowsOnDevice)
	}
	o.Stop = p.heed(o.Stop)
	p.opts = o
	if p.asked, err = p.newFamily(o); err != nil {
		return nil, err
	}
	p.Scheduled = p.asked.reordered.Peak
	before, err := asRead(given, o.Dims)
	if err != nil {
		return nil, err
	}
	if o.provider().Device { // the given file may have what only the written one does without
		if err := ForDevice(before, o.Dims); err != nil {
			return nil, err
		}
	}
	if p.Before, err = Predict(e, before, p.base().Analysis.Roles, o, nil); err != nil {
		return nil, err
	}
	p.fixed = min(p.fixed, fixedBytes(p.Before))
	return p, nil
}

// fixedBytes is what a step takes beside its live peak.
func fixedBytes(q *predict.Prediction) int64 { return q.TotalPeak - q.LivePeak }

// base is the graph as it was asked for.
func (p *Planner) base() *Variant { return p.asked.variants[0] }

// Problem is the planning problem of the graph as it was asked for.
func (p *Planner) Problem() *planner.Problem { return p.base().Problem() }

// Plan runs a strategy and writes, in memory, the file that it leads to, under a
// budget for its predicted live peak in bytes (0: none); see PlanWithin.
func (p *Planner) Plan(strategy string, budget int64) (*File, error) {
	return p.PlanWithin(strategy, Budget{Live: budget})
}

// PlanWithin runs a strategy and writes, in memory, the file that it leads to.
// What is predicted of the file keeps the budget, or the error is a
// planner.InfeasibleError or a TotalError, and what comes with it misses the
// budget by least.
//
// Where a half type costs memory, a search leaves the casts out, and updates may ask
// their own gradients alone (refuse.go).
func (p *Planner) PlanWithin(strategy string, budget Budget) (*File, error) {
	f, err := p.plan(strategy, budget)
	if errors.Is(err, planner.ErrNoBackward) && len(p.opts.DropOutputs) > 0 {
		err = p.droppedAll(err)
	}
	if err == nil && !budget.none() || err != nil && !unmet(err) || f == nil {
		return f, err
	}
	s, _, _ := planner.Find(strategy)
	f, err = p.weighing(strategy, s.Frontier != nil, budget, f, err)
	p.remark(f)
	return f, err
}

// droppedAll is err, that no backward was found, or that --drop-output left none.
func (p *Planner) droppedAll(err error) error {
	if roles, _ := FoundRoles(p.given, p.opts.Roles); !roles.Training() {
		return err
	}
	return fmt.Errorf("--drop-output %s: leaves no gradient and no next value of a parameter, so nothing trains: drop fewer outputs, or only order what is left with --strategy none", strings.Join(p.opts.DropOutputs, ","))
}

// plan is PlanWithin for the precision as it was asked for.
func (p *Planner) plan(strategy string, budget Budget) (*File, error) {
	s, _, err := planner.Find(strategy)
	if err != nil {
		return nil, err
	}
	if budget.Work != nil {
		return p.within(s, budget)
	}
	if len(p.opts.Layers) > 0 {
		return p.heeding(s, budget)
	}
	if s.Unbounded && !budget.none() {
		return nil, fmt.Errorf("strategy %s takes no bound: use optimal", s.Name)
	}
	var best *File
	bounds := s.Frontier != nil && !s.Unbounded
	if bounds && !budget.none() {
		if best, err = p.plain(budget); err != nil || best != nil {
			return best, err
		}
	}
	if p.opts.TimeLimited {
		if err := p.reach(s); err != nil {
			return nil, err
		}
	}
	switch {
	case !bounds:
	case budget.none():
		if best, err = p.atKnee(s); err != nil || best != nil {
			return best, err
		}
	default:
		if best, err = p.first(s, budget); err != nil || best != nil && budget.Keeps(best.Prediction) {
			return best, err
		}
	}
	if err := p.reach(s); err != nil {
		return nil, err
	}
	for f, err := range p.families(s) {
		if err != nil {
			return nil, err
		}
		r, err := p.least(s, strategy, f, budget)
		if err != nil {
			return nil, err
		}
		if best == nil || budget.prefers(r, best) {
			best = r
		}
	}
	if s.Unbounded && best.waits() {
		if best, err = p.orKnee(best); err != nil {
			return nil, err
		}
	}
	if s.Frontier != nil {
		if best, err = p.orNone(best); err != nil {
			return nil, err
		}
	}
	if !budget.Keeps(best.Prediction) {
		return best, budget.exceeded(best)
	}
	return best, nil
}

// plain returns a file that repeats no work, of the graph reordered or as it was
// given, if the given file keeps the budget and so does that one; else nil.
func (p *Planner) plain(budget Budget) (*File, error) {
	if !budget.Keeps(p.Before) {
		return nil, nil
	}
	r, err := p.repeatingNothing(p.asked, budget)
	if err == nil && !budget.Keeps(r.Prediction) {
		r, err = p.asGiven(r)
	}
	if err != nil || !budget.Keeps(r.Prediction) || r.Verdict.Overhead > 0 {
		return nil, err
	}
	return r, nil
}

// repeatingNothing returns the file of a family that repeats no work and holds least.
func (p *Planner) repeatingNothing(f *family, budget Budget) (*File, error) {
	none, _, err := planner.Find("none")
	if err != nil {
		return nil, err
	}
	return p.least(none, none.Name, f, budget)
}

// maxFiles bounds how many candidates that repeat work are written in a family.
const maxFiles = 64

// first returns the file of the candidate with the least work that keeps the
// budget; without one the file that misses it by least, nil where none was written
// or the time is up.
func (p *Planner) first(s *planner.Solver, budget Budget) (*File, error) {
	var closest *File
	files, most := 0, maxFiles
	var fruitless patience
	for c, err := range p.ascending(s, budget, nil) {
		if err != nil {
			return nil, err
		}
		if p.opts.most > 0 && c.Overhead >= p.opts.most {
			return closest, errMost
		}
		if c.Overhead > 0 {
			if p.turned != nil {
				most = 2 * maxFiles
			}
			if files == most {
				break
			}
			p.progress(func(s *Progress) { s.Most = s.Tried + most - files })
		}
		f, err := p.file(c, budget)
		switch {
		case err != nil:
			return nil, err
		case f == nil:
			continue
		case budget.Keeps(f.Prediction):
			return f, nil
		}
		if c.Overhead > 0 {
			files++
		}
		closer := closest == nil || budget.miss(f.Prediction) < budget.miss(closest.Prediction)
		if closer {
			closest = f
		}
		if fruitless.note(f, closer); fruitless.over() {
			break
		}
	}
	p.progress(func(s *Progress) { s.Most = 0 })
	if closest == nil || p.limited { // then the plan of least peak is what to write
		return nil, nil
	}
	return p.finish(closest)
}

// rough: without a budget, a variant that changes the graph more has to lower the
// peak by more than one part in so many.
const rough = 100

// leastCandidates finds, for each variant of a family, the strategy's plans of least
// peak, and which of them has the least; the first of equals, which changes the
// graph least.
//
// What changes the graph most holds least as a rule, so it is solved first, and a
// variant whose lower bound says that it cannot be the one is left out. Once the time is
// up, what was found before counts: by reach, and in variants that were searched.
func (p *Planner) leastCandidates(s *planner.Solver, strategy string, f *family) (list []Candidate, best int, err error) {
	var variants []*Variant
	for v, err := range p.variants(s, f) {
		if err != nil {
			return nil, 0, err
		}
		variants = append(variants, v)
	}
	least := int64(math.MaxInt64)
	if f.far != nil {
		list, least = append(list, *f.far), f.far.Peak
	}
	for i, v := range slices.Backward(variants) {
		if len(list) > 0 && (p.stopped() && !v.Problem().Searched() || almost(planner.LowerBound(v.Problem())) > least) {
			continue
		}
		p.looking(len(variants)-i, len(variants))
		done := p.solving()
		solved, err := v.solve(s, strategy)
		done()
		if err != nil {
			return nil, 0, err
		}
		for _, c := range slices.Backward(solved) {
			list, least = append(list, c), min(least, c.Peak)
		}
	}
	slices.Reverse(list)
	for i, c := range list {
		if c.Peak < almost(list[best].Peak) {
			best = i
		}
	}
	return list, best, nil
}

// almost is what a variant that changes the graph more has to go below.
func almost(peak int64) int64 { return peak - peak/rough }

// solve runs a strategy for its plans of least peak. One that searches starts once more from
// casts that run once; the plans of the start whose first holds less come first.
func (v *Variant) solve(s *planner.Solver, strategy string) ([]Candidate, error) {
	list, err := v.leastOf(v.Problem(), strategy)
	if err != nil || v.castsOnce == nil || s.Frontier == nil {
		return list, err
	}
	other, err := v.leastOf(v.castsOnce, strategy)
	switch {
	case err != nil:
		return list, nil
	case other[0].Peak < list[0].Peak:
		return append(other, list...), nil
	}
	return append(list, other...), nil
}

// leastOf are the plans of least peak that a strategy makes of a problem of the variant.
func (v *Variant) leastOf(problem *planner.Problem, strategy string) ([]Candidate, error) {
	plans, err := planner.Least(problem, strategy)
	if err != nil {
		return nil, err
	}
	list := make([]Candidate, len(plans))
	for i, plan := range plans {
		if list[i], err = v.judged(plan); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// least runs a strategy for the least peak in a family and writes the file. Where
// that holds more than the judge said, as buffers wait in it to be used again, it
// may not be the least: then what promises less is written too, by one part in rough or,
// while the budget is not kept, by anything.
func (p *Planner) least(s *planner.Solver, strategy string, f *family, budget Budget) (*File, error) {
	list, first, err := p.leastCandidates(s, strategy, f)
	if err != nil {
		return nil, err
	}
	best, err := p.file(list[first], Budget{})
	if err != nil {
		return nil, err
	}
	list = slices.Delete(list, first, first+1)
	slices.SortStableFunc(list, func(a, b Candidate) int { return cmp.Compare(a.Peak, b.Peak) })
	for _, c := range list {
		limit := best.Peak - 1
		if budget.Keeps(best.Prediction) {
			limit = almost(limit)
		}
		if c.Peak > limit || p.stopped() {
			break
		}
		r, err := p.file(c, Budget{Live: limit}) // else it is not finished
		if err != nil {
			return nil, err
		}
		if r != nil && r.Finished && r.Peak < best.Peak {
			best = r
		}
	}
	switch {
	case s.Frontier == nil && p.costs(best):
		return p.asGiven(best)
	case s.Frontier != nil && best.waits():
		return p.orSimpler(f, best)
	}
	return best, nil
}

// simpler are the strategies whose plans a search starts from, as it judges them.
var simpler = []string{"full", "sqrt", "selective"}

// bySimpler are the plans of these strategies for a variant; there are fewer where it has
// no layers.
func (p *Planner) bySimpler(v *Variant) iter.Seq2[*planner.Plan, error] {
	return func(yield func(*planner.Plan, error) bool) {
		for _, strategy := range simpler {
			if p.stopped() {
				return
			}
			done := p.solving()
			plan, err := planner.Solve(v.Problem(), strategy)
			done()
			if !errors.Is(err, planner.ErrNoLayers) && !yield(plan, err) {
				return
			}
		}
	}
}

// orSimpler returns the file of a search's plan, or that of a simpler strategy where
// it holds less. In a tiny graph the shapes that barriers compute, and buffers that
// wait, outweigh what the judge compared.
func (p *Planner) orSimpler(f *family, r *File) (*File, error) {
	base, best := f.variants[0], r
	for plan, err := range p.bySimpler(base) {
		if err != nil {
			return nil, err
		}
		other, err := p.file(base.with(plan), Budget{Live: best.Peak - 1}) // else it is not finished
		if err != nil {
			return nil, err
		}
		if other != nil && other.Finished && other.Peak < best.Peak {
			best = other
		}
	}
	if best != r {
		size := units.Distinct(best.Peak, r.Peak)
		best.Plan.Notes = append(best.Plan.Notes, fmt.Sprintf("strategy %s gives a file that needs less (%s) than the search's (%s): using it", best.Plan.Strategy, size[0], size[1]))
		best.Plan.Strategy = r.Plan.Strategy
	}
	return best, nil
}

// orNone returns the file of a search's plan, or one that computes nothing again
// where it holds no more: a few bytes of shapes outweigh what a tiny graph saves.
func (p *Planner) orNone(best *File) (*File, error) {
	for _, f := range []*family{p.asked, p.turned} {
		if f == nil || min(f.reordered.Peak, p.Before.LivePeak) > best.Peak {
			continue
		}
		r, err := p.repeatingNothing(f, Budget{})
		if err != nil {
			return nil, err
		}
		if r.Peak <= best.Peak && r.limited() == nil {
			best = r
		}
	}
	return best, nil
}

// shapesBytes is the size in bytes up to which files differ by the shapes that
// barriers compute.
const shapesBytes = 4096

// costs reports a file that holds more over a step than the one given, or as much and
// repeats work for it. A few bytes of shapes are no cost where they keep weights from
// being held twice.
func (p *Planner) costs(r *File) bool {
	over := r.Peak - p.Before.LivePeak
	return over > shapesBytes || (over > 0 || over == 0 && r.overhead() > 0) && r.Prediction.TotalPeak >= p.Before.TotalPeak
}

// asGiven returns the given file unchanged, if that holds less than the file of
// a plan and nothing else was done to it: a strategy should never cost memory.
func (p *Planner) asGiven(r *File) (*File, error) {
	if len(p.opts.DropOutputs) > 0 || r.Variant.Divided != (Divided{}) || p.opts.Precision != nil {
		return r, nil
	}
	if p.opts.WebGPU || p.opts.provider().Device && unfit(p.given.Graph) { // the given file is not in the form that it takes
		if p.asked.reordered.Peak < r.Peak {
			return p.finish(p.asked.reordered)
		}
		return r, nil
	}
	m, err := asRead(p.given, nil)
	if err != nil {
		return nil, err
	}
	before := p.Before
	if p.given.Graph.Fixed() { // the file that is written has numbers where the given one has free extents
		if before, err = p.fixedAsGiven(); err != nil || before.LivePeak >= r.Peak {
			return r, err
		}
	}
	note := fmt.Sprintf("the strategy's file would need %s, more than the given one: the input file is kept unchanged", units.Bytes(r.Peak))
	if r.Peak-p.Before.LivePeak <= shapesBytes {
		note = "no order is better than that of the file given: it is written as it was"
	}
	problem := p.Problem()
	plan := &planner.Plan{Strategy: r.Plan.Strategy, Schedule: ortmodel.Order(&problem.Graph),
		Notes: append(slices.Clone(r.Plan.Notes), note)}
	var left []rewrite.Report // what was asked for and left out is said all the same
	for _, rep := range r.Variant.Reports {
		if rep.Applied == 0 && len(rep.Skipped) > 0 {
			left = append(left, rep)
		}
	}
	variant, a := *p.base(), *p.base().Analysis
	a.Roles = a.Roles.Within(m.Graph) // the given file has no sums as outputs
	variant.Analysis = &a
	return &File{
		Variant: &variant, Plan: plan, Reports: left, LowerBound: r.LowerBound, Model: m, Finished: true,
		Verdict:    planner.Verdict{Peak: before.LivePeak, FLOPs: problem.FLOPs()},
		Prediction: before, Peak: before.LivePeak,
	}, nil
}

// fixedAsGiven predicts the given file as it is written, which says more of extents: ONNX Runtime knows
// other buffers to be as large, and at level 0 runs another order.
func (p *Planner) fixedAsGiven() (*predict.Prediction, error) {
	m, err := p.given.Clone()
	if err != nil {
		return nil, err
	}
	return Predict(p.engine, m, p.base().Analysis.Roles.Within(m.Graph), p.opts, nil)
}

// Apply writes, in memory, the file that a plan of this planner's problem
// leads to: the one given, where the plan is its order and writing that anew would
// hold more, as a plan that ended in asGiven says.
func (p *Planner) Apply(plan *planner.Plan) (*File, error) {
	r, err := p.file(p.base().with(plan), Budget{})
	if err != nil || !p.costs(r) || !slices.Equal(plan.Schedule, ortmodel.Order(&p.Problem().Graph)) {
		return r, err
	}
	if r, err = p.asGiven(r); err == nil {
		r.Plan.Notes = plan.Notes
	}
	return r, err
}

// solving counts the time until what it returns is called as the solver's.
func (p *Planner) solving() func() {
	start := time.Now()
	return func() { p.Solving += time.Since(start) }
}

// unmet reports the error of a budget that no plan keeps.
func unmet(err error) bool {
	var live *planner.InfeasibleError
	var total *TotalError
	var layers *planner.LimitError
	return errors.As(err, &live) || errors.As(err, &total) || errors.As(err, &layers)
}
