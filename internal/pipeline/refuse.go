package pipeline

// A half type is to save memory. Where it does not, a search leaves the casts out,
// and a file that holds more than the one given says why.

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// mayRefuse reports that the search may leave the casts out: a user who asks for
// emulation wants its numbers.
func (p *Planner) mayRefuse(searches bool) bool {
	return searches && p.opts.Precision != nil && !p.opts.Precision.Emulate && !p.stopped()
}

// refusing returns the file of a search in float32 where that is better under the
// budget than the one in half, which comes with its error.
func (p *Planner) refusing(strategy string, budget Budget, half *File, missed error) (*File, error) {
	o := p.opts
	o.Precision = nil
	whole, err := NewPlanner(p.engine, p.given, o)
	if err != nil {
		return nil, err
	}
	other, err := whole.plan(strategy, budget)
	p.Solving += whole.Solving
	p.limited = p.limited || whole.limited
	if other == nil || err != nil && !unmet(err) || !budget.betters(other, half) {
		return half, missed
	}
	note := fmt.Sprintf("the casts to %s were left out, as they raise the peak: %d bytes with them, %d without", p.opts.Precision.To, half.Peak, other.Peak)
	other.Plan.Notes = append(other.Plan.Notes, note+p.whyMore(half))
	return other, err
}

// betters reports that a file in float32 is better than one in half: without a
// budget it holds less, under one it misses it by less.
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
	note := fmt.Sprintf("in %s the step needs %d bytes, more than the %d of the file given", p.opts.Precision.To, f.Peak, p.Before.LivePeak)
	f.Plan.Notes = append(f.Plan.Notes, note+p.whyMore(f))
}

// whyMore says what of a half type takes memory, ": …", or nothing.
func (p *Planner) whyMore(f *File) string {
	var why []string
	o := p.opts.Precision
	if n := f.waiting(); n > 0 && o.Overflow != precision.OverflowParameter {
		why = append(why, fmt.Sprintf("%s of gradients wait until all are known to be finite (--overflow parameter updates each at once)", report.Bytes(n)))
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
		grad := g.Value(in.Name + ".grad")
		if f.Roles().New[in.Name] == "" || grad == nil || grad.IsOutput() {
			continue
		}
		t := grad.Type
		if len(t.Shape) > 1 {
			t.DType = onnx.Float16
		}
		n, _ := t.Bytes()
		sum += n
	}
	return sum
}
