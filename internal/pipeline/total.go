package pipeline

// What a step takes of memory, all told, and bounds on it.
//
//	parameters + state + feeds     inputs and initializers
//	+ session                      packed weights, what was computed ahead
//	+ live peak                    what the step holds at most
//	+ unused                       what is reserved beyond both
//	= bytes                        what has to be there
//
// The step lies in one slab, as run and train have it and the file's table says. ONNX
// Runtime's own arena, under the setup that the file carries, reserves more: Arena.

import (
	"fmt"
	"math"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/runtime/predict"
)

// A Total is what a step takes, in bytes.
type Total struct {
	Parameters, State, Feeds, Session, Live, Unused int64
	// Reserved is what the allocator takes from the system: the slab, which is the live
	// peak and what is unused, and that part of Session which lies in the allocator.
	Reserved int64
	// Exact: nothing had to be guessed; else all are lower bounds.
	Exact bool
}

// Bytes is the sum.
func (t Total) Bytes() int64 {
	return t.Parameters + t.State + t.Feeds + t.Session + t.Live + t.Unused
}

// Parts are what the sum is of.
func (t Total) Parts() []Part {
	return []Part{
		{"parameters", t.Parameters}, {"state", t.State}, {"feeds", t.Feeds}, {"session", t.Session},
		{"live peak", t.Live}, {"reserved beyond it", t.Unused},
	}
}

// TotalOf sums up a prediction.
func TotalOf(p *predict.Prediction) Total {
	t := Total{
		Parameters: p.Parameters, State: p.State, Feeds: p.Feeds, Session: p.Session.Bytes(), Live: p.LivePeak,
		Reserved: p.Reserved(), Exact: p.Exact(),
	}
	t.Unused = t.Reserved - p.Session.Allocated() - p.LivePeak
	return t
}

// A Budget bounds the written file's step: in bytes, which the least work is to keep, 0
// for no bound, or in work, within which it is to hold least.
type Budget struct {
	// Live bounds the predicted live peak, Total that and all else; see Total.
	Live, Total int64
	// Work, unless nil, bounds what is computed again, as a share of the plain step's
	// work. It does not go with the other two.
	Work *float64
}

// none: there is no bound in bytes.
func (b Budget) none() bool { return b.Live == 0 && b.Total == 0 }

// Keeps reports that a prediction is within the budget.
func (b Budget) Keeps(p *predict.Prediction) bool {
	return (b.Live == 0 || p.LivePeak <= b.Live) && (b.Total == 0 || p.TotalPeak <= b.Total && TotalOf(p).Bytes() <= b.Total)
}

// miss is how far, in bytes, a prediction is from the budget, 0 or less within
// it; the slab is not packed closely, so Keeps may hold all the same.
func (b Budget) miss(p *predict.Prediction) int64 {
	over := int64(math.MinInt64)
	if b.Live > 0 {
		over = p.LivePeak - b.Live
	}
	if b.Total > 0 {
		reserved := p.TotalPeak - b.Total // that of a slab without waste
		if reserved <= 0 {
			reserved += p.RoughlyReserved() - p.Session.Allocated() - p.LivePeak
		}
		over = max(over, reserved)
	}
	return over
}

// missed reports a prediction that does not keep the budget, looking closely
// only where a rough look does not tell.
func (b Budget) missed(p *predict.Prediction) bool { return b.miss(p) > 0 && !b.Keeps(p) }

// prefers reports that a file is better than another under the budget, where a plan
// for it was not searched for: one that keeps it before one that does not, then the
// one with less work, without a budget the one that holds less.
func (b Budget) prefers(f, other *File) bool {
	switch keeps := b.Keeps(f.Prediction); {
	case b.none():
		return f.Peak < other.Peak
	case keeps != b.Keeps(other.Prediction):
		return keeps
	case keeps:
		return f.overhead() < other.overhead()
	}
	return b.miss(f.Prediction) <= b.miss(other.Prediction)
}

// live is the largest live peak of a plan that may keep the budget.
func (p *Planner) live(b Budget) int64 {
	if b.Total == 0 {
		return b.Live
	}
	most := b.Total - p.fixed
	if b.Live > 0 {
		most = min(most, b.Live)
	}
	return max(most, 1)
}

// exceeded is the error for a file that does not keep the budget.
func (b Budget) exceeded(r *File) error {
	if b.Live > 0 && r.Peak > b.Live {
		return &planner.InfeasibleError{Budget: b.Live, Least: r.Peak, LowerBound: r.LowerBound}
	}
	return &TotalError{Budget: b.Total, Least: TotalOf(r.Prediction)}
}

// A TotalError says that no plan was found whose total keeps the budget.
type TotalError struct {
	Budget int64 // bytes
	// Least is the total of the plan that holds least.
	Least Total
}

// Error describes what the total consists of, in one line.
func (e *TotalError) Error() string {
	var parts []string
	for _, p := range e.Least.Parts() {
		parts = append(parts, p.What+" "+units.Bytes(p.Bytes))
	}
	size := units.Distinct(e.Budget, e.Least.Bytes())
	return fmt.Sprintf("total budget of %s cannot be met: the least found is %s (%s)", size[0], size[1], strings.Join(parts, ", "))
}
