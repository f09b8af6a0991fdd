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
// price is that of checkpoints: one more forward pass, a third of the step's work. To be
// worth it, that much work has to halve what is held, and less work in proportion: the knee
// is where the curve of log(held) has that slope. Neither axis is scaled to the ends of the
// curve, so how far a curve goes on does not move its knee, and the search ends where no plan
// of more work can cost less.
//
// A strategy with one plan never holds less than the knee: where the curve bends above what
// these reach, the search goes on to the least work that holds no more, and where it finds
// none to the least peak.

import (
	"math"

	"github.com/onnx-remat/remat/planner"
)

// onePass is the work of a forward pass as a share of the plain step's, whose backward
// pass has two products for each of the forward's.
const onePass = 1.0 / 3

// atKnee returns the file of least peak with at most the work of the knee, and says so in it;
// nil where the search found no plan in time, or where a strategy with one plan may hold less.
func (p *Planner) atKnee(s *planner.Solver) (*File, error) {
	f, more, err := p.knee(s)
	if f == nil || err != nil {
		return nil, err
	}
	if f, err = p.orNone(f); err == nil && more {
		f.Plan.Notes = append(f.Plan.Notes, "no bound was given: this is the knee of the curve; --strategy least may hold less for more work, --overhead and --budget choose a point between")
	}
	return f, err
}

// orKnee returns the file of a search for the least peak, or that of the knee where it holds
// less: where files hold much more than the judge says, as with weights in codes, whose wide
// copies wait for the next one of their shape, the least of what is judged is not the least.
func (p *Planner) orKnee(best *File) (*File, error) {
	if p.stopped() {
		return best, nil
	}
	s, _, err := planner.Find("optimal")
	if err != nil {
		return nil, err
	}
	f, _, err := p.knee(s)
	if err != nil || f == nil || f.Peak >= best.Peak {
		return best, err
	}
	f.Plan.Strategy = best.Plan.Strategy
	return f, nil
}

// knee is the file of atKnee, not yet weighed against one that computes nothing again; more
// reports that the curve goes on behind it.
func (p *Planner) knee(s *planner.Solver) (f *File, more bool, err error) {
	ceiling, err := p.simplest()
	if err != nil {
		return nil, false, err
	}
	b := newBargain(fixedBytes(p.Before), ceiling)
	if err := p.follow(s, math.Inf(1), b); err != nil {
		return nil, false, err
	}
	if far := p.asked.far; far != nil && p.stopped() { // of a curve that ends early
		ceiling = min(ceiling, far.Peak)
	}
	at := b.knee(ceiling)
	if at < 0 {
		return nil, false, nil
	}
	f, err = p.lowest(b.curve[:at+1], b.curve[at].Overhead)
	if err == nil && (f == nil || f.Peak > ceiling) {
		f, err = p.first(s, Budget{Live: ceiling})
	}
	if err != nil || f == nil || f.Peak > ceiling {
		return nil, false, err
	}
	return f, b.cut || at < len(b.curve)-1, nil
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

// A bargain is the curve as far as it is known, by ascending work and descending peak, and
// the least price on it, infinite while no plan counts.
type bargain struct {
	beside  int64 // what a step holds beside the live peak, in bytes
	ceiling int64 // what a plan holds at most to count
	curve   []Candidate
	least   int64 // held by the last of the curve
	price   float64
	cut     bool // the price left plans out that may hold less than that
	// thorough: the least memory within a bound on the work is asked for, so each problem is
	// searched twice, and the choices that are for bounds are looked at.
	thorough bool
}

func newBargain(beside, ceiling int64) *bargain {
	return &bargain{beside: beside, ceiling: ceiling, least: math.MaxInt64, price: math.Inf(1)}
}

// of is the price of a candidate.
func (b *bargain) of(c Candidate) float64 {
	return float64(b.beside+c.Peak) * math.Exp2(c.Overhead/onePass)
}

// add has a candidate of no less work than those before.
func (b *bargain) add(c Candidate) {
	if c.Peak >= b.least {
		return
	}
	b.curve, b.least = append(b.curve, c), c.Peak
	if c.Peak <= b.ceiling {
		b.price = min(b.price, b.of(c))
	}
}

// useful is what a plan of some work has to hold less than, to be on the curve and to cost
// less; not positive where none can.
func (b *bargain) useful(work float64) int64 {
	limit := b.limit(work)
	b.cut = b.cut || limit < b.least
	return limit
}

// limit is useful for who leaves nothing out yet.
func (b *bargain) limit(work float64) int64 {
	if limit := b.price/math.Exp2(work/onePass) - float64(b.beside); limit < float64(b.least) {
		return int64(limit)
	}
	return b.least
}

// hopeless reports that no plan of a problem is of use, whatever it repeats. It leaves them out.
func (b *bargain) hopeless(p *planner.Problem) bool {
	hopeless := b.outbids(planner.HoldsMore, p, 0)
	b.cut = b.cut || hopeless
	return hopeless
}

// outbids reports that no plan of a problem costs less than what was found, by a bound on what
// plans hold for their work, with so much work added to each, as a share of the plain step's.
func (b *bargain) outbids(hold func(*planner.Problem, func(work float64) int64) bool, p *planner.Problem, added float64) bool {
	return !math.IsInf(b.price, 1) && hold(p, func(work float64) int64 { return b.limit(work + added) })
}

// hopelessSliced reports that no plan of a variant with so much work, as a share of the plain
// step's, is of use once its updates are in slices; nil: nothing is known of the variant. Slices
// of updates read what the updates did, so what has to be held for readers, or computed again
// for them, stays: a bound on that counts here, one on what updates themselves hold would not.
// It leaves the plans out.
func (b *bargain) hopelessSliced(whole *Variant, floor float64) bool {
	if whole == nil {
		return false
	}
	for _, p := range whole.problems() {
		if slicing := floor - p.Floor(); slicing <= 0 || !b.outbids(planner.KeepsMore, p, slicing) {
			return false
		}
	}
	b.cut = true
	return true
}

// knee is the place of least price among the candidates up to a peak in bytes; the last
// where none is, -1 where there are none.
func (b *bargain) knee(ceiling int64) int {
	best, price := len(b.curve)-1, math.Inf(1)
	for i, c := range b.curve {
		if at := b.of(c); c.Peak <= ceiling && at < price {
			best, price = i, at
		}
	}
	return best
}
