package pipeline

// A half type is to save memory. Where it does not,
//
//   - and gradients that wait to be known finite are the reason, each update asks its
//     own gradient alone, unless the user chose otherwise (precision.OverflowAuto);
//   - a search leaves the casts out;
//   - a file that holds more than the one given says why.

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// mayRefuse reports that the search may leave the casts out: a user who asks for
// emulation wants its numbers.
func (p *Planner) mayRefuse(searches bool) bool {
	return searches && p.opts.Precision != nil && !p.opts.Precision.Emulate && !p.stopped()
}

// maySplit reports that each update of a file may ask its own gradient alone, for
// kernels in half: the CPU's save nothing.
func (p *Planner) maySplit(f *File) bool {
	return p.opts.nativeHalf() && p.opts.Precision.Overflow.Auto() && f.waiting() > 0 && !p.stopped()
}

// weighing returns a strategy's file in a half type, which comes with its error, or what
// is better under the budget: the one whose updates ask alone, where float32 would hold
// no more than the file, and, of a search, that in float32.
func (p *Planner) weighing(strategy string, searches bool, budget Budget, half *File, missed error) (*File, error) {
	refuses, splits := p.mayRefuse(searches), p.maySplit(half)
	if !refuses && !splits {
		return half, missed
	}
	var whole *File
	var err error
	if refuses || budget.none() && half.Peak < p.Before.LivePeak {
		whole, err = p.under(strategy, budget, func(o *Options) { o.Precision = nil })
		if whole == nil || err != nil && !unmet(err) {
			return half, missed
		}
	}
	if splits && (!budget.none() || whole == nil || whole.Peak <= half.Peak) {
		half, missed = p.splitting(strategy, budget, half, missed)
	}
	if !refuses || !budget.betters(whole, half) {
		return half, missed
	}
	size := units.Distinct(half.Peak, whole.Peak)
	note := fmt.Sprintf("the casts to %s were left out, as they raise the peak: %s with them, %s without", p.opts.Precision.To, size[0], size[1])
	note += p.whyMore(half)
	if p.opts.provider().Device {
		note += "; on a GPU they save time as well: --strategy full keeps them"
	}
	whole.Plan.Notes = append(whole.Plan.Notes, note)
	return whole, err
}

// splitting returns the strategy's file whose updates ask their own gradients alone,
// where that is better.
func (p *Planner) splitting(strategy string, budget Budget, half *File, missed error) (*File, error) {
	each, err := p.under(strategy, budget, func(o *Options) {
		alone := *o.Precision
		alone.Overflow = precision.OverflowParameter
		o.Precision = &alone
	})
	if each == nil || err != nil && !unmet(err) || !budget.betters(each, half) {
		return half, missed
	}
	size := units.Distinct(half.Peak, each.Peak)
	each.Plan.Notes = append(each.Plan.Notes, fmt.Sprintf("overflow parameter: a gradient that overflows keeps its own parameter from being updated; were it all, %s of gradients would wait (--overflow all), and the step hold %s instead of %s",
		units.Bytes(half.waiting()), size[0], size[1]))
	return each, err
}

// under plans the given graph with other options.
func (p *Planner) under(strategy string, budget Budget, change func(*Options)) (*File, error) {
	o := p.opts
	change(&o)
	other, err := NewPlanner(p.engine, p.given, o)
	if err != nil {
		return nil, err
	}
	f, err := other.plan(strategy, budget)
	p.Solving += other.Solving
	p.limited = p.limited || other.limited
	return f, err
}

// betters reports that a file is better than one in half: without a budget it holds
// less, under one it misses it by less.
func (b Budget) betters(f, half *File) bool {
	if b.none() {
		return f.Peak < half.Peak
	}
	return !b.Keeps(half.Prediction) && b.miss(f.Prediction) < b.miss(half.Prediction)
}

// remark notes why a file in half holds more than the one given.
func (p *Planner) remark(f *File) {
	if f == nil || f.Variant.Options.Precision == nil || f.Peak <= p.Before.LivePeak {
		return
	}
	size := units.Distinct(f.Peak, p.Before.LivePeak)
	note := fmt.Sprintf("in %s the step needs %s, more than the %s of the file given", p.opts.Precision.To, size[0], size[1])
	f.Plan.Notes = append(f.Plan.Notes, note+p.whyMore(f))
}

// whyMore says what of a half type takes memory, ": …", or nothing.
func (p *Planner) whyMore(f *File) string {
	var why []string
	o := p.opts.Precision
	if n := f.waiting(); n > 0 && f.Variant.Options.Precision.Overflow != precision.OverflowParameter {
		why = append(why, fmt.Sprintf("%s of gradients wait until all are known to be finite (--overflow parameter updates each at once)", units.Bytes(n)))
	}
	if o.Provider != kernels.CUDA && !o.StashOnly {
		why = append(why, "the CPU's kernels compute in float32, between casts (--provider cuda plans for kernels in half)")
	}
	if len(why) == 0 {
		return ""
	}
	return ": " + strings.Join(why, "; ")
}

// waiting is the size in bytes of the gradients that updates read once found_inf is
// known, as they wait.
func (f *File) waiting() int64 {
	g, sum := f.Variant.Model.Graph, int64(0)
	if g.Value(precision.FoundOutput) == nil {
		return 0
	}
	for _, in := range g.Inputs {
		grad := step.GradientOf(g, in)
		if f.Roles().New[in.Name] == "" || grad == nil || grad.IsOutput() {
			continue
		}
		sum += f.waitingBytes(in)
	}
	return sum
}

// waitingBytes is the size in bytes of a parameter's gradient as it waits for its update: in
// fp16 that of a matrix in half. It goes by the parameter, since the gradient's own type may
// be hidden from ONNX Runtime.
func (f *File) waitingBytes(param *onnx.Value) int64 {
	t := param.Type
	if len(t.Shape) > 1 && f.Variant.Model.Graph.Value(precision.FoundOutput) != nil {
		t.DType = onnx.Float16
	}
	return t.KnownBytes()
}
