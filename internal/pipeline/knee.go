package pipeline

// What a search answers that is given no bound: the knee of its curve of peak against
// work, where a little more work stops saving much memory. The last bytes may cost more
// work than all that were saved before.
//
//	peak │ ×  plain
//	     │  ×
//	     │    ×  ◀ knee: furthest below the chord
//	     │         ×
//	     │                 ×       × least
//	     └──────────────────────────── work
//
// Both axes run from 0 to 1 between the ends of the curve, so the chord is peak + work
// = 1 and the point furthest below it has the least sum (Satopää et al. 2011, "Finding
// a Kneedle in a Haystack"). Where the whole curve takes less work than littleWork, the
// axis of work runs to that: little work is no reason to stop. A strategy with one plan never holds less than the knee:
// where the curve bends above what these reach, the search goes on to the least peak.

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/planner"
)

// littleWork is a share of the plain step's work.
const littleWork = 0.1

// knee returns the file of least peak with at most the work of the knee; nil where the
// search found no plan in time, or where a strategy with one plan may hold less.
func (p *Planner) knee(s *planner.Solver) (*File, error) {
	list, err := p.curve(s, math.Inf(1))
	if err != nil || len(list) == 0 {
		return nil, err
	}
	ceiling, err := p.simplest()
	if err != nil {
		return nil, err
	}
	if far := p.asked.far; far != nil {
		ceiling = min(ceiling, far.Peak)
	}
	at, least := bend(list, almost(ceiling)), list[len(list)-1]
	f, err := p.lowest(list[:at+1], list[at].Overhead)
	if err != nil || f == nil || f.Peak > almost(ceiling) {
		return nil, err
	}
	if list[at].Peak > least.Peak {
		f.Plan.Notes = append(f.Plan.Notes, fmt.Sprintf("no bound was given: this is the knee of the curve; --strategy least holds about %s for %s more work, --overhead and --budget choose a point between",
			report.Bytes(least.Peak), report.Percent(least.Overhead)))
	}
	return p.orNone(f)
}

// simplest is the least peak that a strategy with one plan reaches, in bytes, as it is
// judged.
func (p *Planner) simplest() (int64, error) {
	least := int64(math.MaxInt64)
	for plan, err := range p.bySimpler(p.base()) {
		if err != nil {
			return 0, err
		}
		v, err := planner.Judge(p.Problem(), plan)
		if err != nil {
			return 0, err
		}
		least = min(least, v.Peak)
	}
	return least, nil
}

// bend is the place of the knee on a curve by ascending work and descending peak, among
// the points up to a peak in bytes; the last where none is.
func bend(curve []Candidate, ceiling int64) int {
	first, last := curve[0], curve[len(curve)-1]
	best, sum := len(curve)-1, 1.0
	for i, c := range curve {
		peak := float64(c.Peak-last.Peak) / float64(max(first.Peak-last.Peak, 1))
		work := (c.Overhead - first.Overhead) / max(last.Overhead-first.Overhead, littleWork)
		if c.Peak <= ceiling && peak+work < sum {
			best, sum = i, peak+work
		}
	}
	return best
}
