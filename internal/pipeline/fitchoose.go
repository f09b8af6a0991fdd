package pipeline

// Which split is taken: that whose update has the least work, of those that fit.
//
//	work of an update = runs × (operations + what is done again + balance × bytes that
//	                    the optimizer's nodes move)
//
// Small micro-batches pay for every run's pass over parameters, state and summed
// gradients, large ones for recomputation. No plan is made in vain:
//
//	1  by falling micro-batch, until one fits that computes nothing again: those
//	   below it have more work
//	2  the larger ones, planned in the same order, each only up to the work of the
//	   best so far, and none whose work without any recomputation is more already
//	3  without a split that repeats nothing: the smallest first. All that accumulate
//	   hold one sum of the gradients, so where it does not fit, none of them does
//
// Weakness: operations and bytes stand for time; a run has costs of its own beside.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// workOf is a run's work without recomputation: operations, and the traffic of the
// optimizer's nodes, which have few operations for what they move.
func workOf(v *Variant) float64 {
	work := float64(v.Problem().FLOPs())
	for i, n := range v.Analysis.Nodes {
		if n.MadeBy(optim.Pass) {
			work += balance * float64(v.Problem().Ops[i].Moved) * v.Analysis.CostOfFLOP()
		}
	}
	return work
}

// work is that of an update with the file's recomputation.
func (a *attempt) work(f *File) float64 {
	return float64(a.runs) * (a.plain/float64(a.runs) + f.overhead()*float64(f.Problem().FLOPs()))
}

// most is the overhead with which an update has no less work than that.
func (a *attempt) most(work float64) float64 {
	flops := float64(a.runs) * float64(a.planner.Problem().FLOPs())
	if math.IsInf(work, 1) || flops == 0 {
		return math.Inf(1)
	}
	return (work - a.plain) / flops
}

// keeps reports that all that training takes with a file is within the memory.
func (f *fitting) keeps(a *attempt, file *File) bool {
	return f.o.Memory == 0 || a.budget.Keeps(file.Prediction) && a.bytes(file) <= f.o.Memory
}

// choose plans and returns the attempt that is taken.
func (f *fitting) choose() (*attempt, error) {
	splits, err := f.splits()
	if err != nil {
		return nil, err
	}
	clips := f.o.Derive.Update.ClipNorm > 0
	norm := !f.training && (f.o.Norm == NormAlways || f.o.Norm == NormIfFree && (clips || f.o.Memory == 0))
	if f.o.Memory == 0 {
		a, err := f.attempt(splits[0], norm)
		if err != nil {
			return nil, err
		}
		return a, f.plan(a)
	}
	var free *attempt // that computes nothing again
	var skipped []split
	for _, s := range splits {
		if err := f.ctx.Err(); err != nil {
			return nil, err
		}
		if f.o.Quick && len(splits) > 1 {
			over, err := f.farOver(s)
			if err != nil {
				return nil, err
			}
			if over {
				skipped = append(skipped, s)
				continue
			}
		}
		a, err := f.attempt(s, norm)
		if err != nil {
			return nil, err
		}
		if f.keeps(a, a.planner.asked.reordered) {
			free = a
			break
		}
		f.say("%s: needs %s as it is, %s over", s.text(), units.Bytes(a.bytes(a.planner.asked.reordered)),
			units.Bytes(a.bytes(a.planner.asked.reordered)-f.o.Memory))
	}
	best, least := (*attempt)(nil), math.Inf(1)
	if free != nil {
		least = free.plain
	}
	if n := len(skipped); free != nil && n > 0 { // the next larger one alone
		if skipped = skipped[n-1:]; free.plainOf(skipped[0]) > (1-quickShare)*least {
			skipped = nil
		}
	}
	for _, s := range skipped {
		if _, err := f.attempt(s, norm); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(f.attempts, func(a, b *attempt) int { return cmp.Compare(b.micro, a.micro) })
	attempts, smallest := slices.Clone(f.attempts), (*attempt)(nil)
	if n := len(attempts); free == nil && n > 2 {
		smallest = attempts[n-1]
		attempts = append([]*attempt{smallest}, attempts[:n-1]...)
	}
	for _, a := range attempts {
		if a == free || a.plain >= least || a.planner.fixed > a.budget.Total || a.runs > 1 && smallest != nil && smallest.err != nil {
			continue
		}
		a.planner.opts.most = a.most(least)
		f.say("%s", a.text())
		if err := f.plan(a); err != nil {
			return nil, err
		}
		if a.file != nil && a.err == nil && a.work(a.file) < least {
			best, least = a, a.work(a.file)
		}
	}
	if best == nil && free != nil {
		if best, err = f.withNorm(free, norm); err == nil && best.file == nil {
			err = f.plan(best)
		}
		if err != nil {
			return nil, err
		}
	}
	if best == nil || best.err != nil {
		return nil, f.unfit()
	}
	f.noNorm = best.derived != nil && !best.norm && best.derived.Model.Graph.Value(optim.NormOutput) == nil
	return best, nil
}

// withNorm is the attempt that computes nothing again, with the norm of the gradients
// where that was left open and fits.
func (f *fitting) withNorm(free *attempt, norm bool) (*attempt, error) {
	if norm || f.training || f.o.Norm != NormIfFree {
		return free, nil
	}
	a, err := f.attempt(free.split, true)
	if err != nil || !f.keeps(a, a.planner.asked.reordered) {
		return free, err
	}
	if err := f.plan(a); err != nil || a.err != nil || a.file.overhead() > 0 || a.file.Variant != a.planner.base() {
		return free, err
	}
	return a, nil
}

// quickShare is the share of an update's work that is worth a search, and far how much
// more than there is a step has to take not to be looked at closely.
const quickShare, far = 0.03, 1.05

// farOver reports that a split takes far more than there is where it repeats nothing.
func (f *fitting) farOver(s split) (bool, error) {
	if f.training || f.o.Pipeline.Precision != nil {
		return false, nil
	}
	made, err := f.made(s, f.o.Derive, nil)
	if err != nil {
		return false, err
	}
	return float64(made.Total.Bytes()) > far*float64(f.o.Memory), nil
}

// plainOf is the work of an update by another split of the same batch that repeats
// nothing: as many operations, and the optimizer's traffic in each of its runs.
func (a *attempt) plainOf(s split) float64 {
	v := a.planner.base()
	flops := float64(v.Problem().FLOPs())
	runs := float64(max(a.runs, 1))
	return runs*flops + float64(max(s.runs, 1))*(a.plain/runs-flops)
}

// plan plans an attempt. That nothing fits is its own error, not plan's.
func (f *fitting) plan(a *attempt) error {
	strategy := f.o.Strategy
	if strategy == "" {
		if strategy = "none"; f.o.Memory > 0 {
			strategy = "optimal"
		}
	}
	a.file, a.err = a.planner.PlanWithin(strategy, a.budget)
	if err := f.ctx.Err(); err != nil {
		return err
	}
	switch {
	case a.err != nil && !unmet(a.err) && !errors.Is(a.err, errMost):
		return fmt.Errorf("%s: %w", f.source.Path, a.err)
	case a.err == nil && !f.keeps(a, a.file):
		a.err = &TotalError{Budget: f.o.Memory, Least: TotalOf(a.file.Prediction)}
	}
	return nil
}

// errMost says that what fits has more work than is asked for.
var errMost = errors.New("no plan with less work fits")
