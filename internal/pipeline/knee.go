package pipeline

// What a search answers that is given no bound: the knee of its curve of peak against
// work, where a little more work stops saving much memory. The last bytes may cost more
// work than all that were saved before.
//
//	held │ ×  plain
//	     │  ×
//	     │    ×  ◀ knee: least held · 2^(work / pass)
//	     │         ×
//	     │                 ×       × least
//	     └──────────────────────────── work
//
// Held is all that a step holds, parameters and state included, as that has to fit. The
// price is what everybody knows from checkpoints: one more forward pass, a third of the
// step's work. To be worth it, that much work has to halve what is held, and less work in
// proportion: the knee is where the curve of log(held) has that slope. Neither axis is
// scaled to the ends of the curve, so how far a curve goes on does not move its knee. A
// strategy with one plan never holds less than the knee: where the curve bends above what
// these reach, the search goes on to the least work that holds no more, and where it finds
// none to the least peak.

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/planner"
)

// onePass is the work of a forward pass as a share of the plain step's, whose backward
// pass has two products for each of the forward's.
const onePass = 1.0 / 3

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
	if far := p.asked.far; far != nil && p.stopped() { // of a curve that ends early
		ceiling = min(ceiling, far.Peak)
	}
	at, least := bend(list, p.Before.TotalPeak-p.Before.LivePeak, ceiling), list[len(list)-1]
	f, err := p.lowest(list[:at+1], list[at].Overhead)
	if err == nil && (f == nil || f.Peak > ceiling) {
		f, err = p.first(s, Budget{Live: ceiling})
	}
	if err != nil || f == nil || f.Peak > ceiling {
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
// the points up to a peak in bytes; the last where none is. Beside the live peak a step
// holds that many bytes.
func bend(curve []Candidate, beside, ceiling int64) int {
	best, price := len(curve)-1, math.Inf(1)
	for i, c := range curve {
		if at := float64(beside+c.Peak) * math.Exp2(c.Overhead/onePass); c.Peak <= ceiling && at < price {
			best, price = i, at
		}
	}
	return best
}
