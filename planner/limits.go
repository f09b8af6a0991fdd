package planner

// Bounds on what some layers keep, beside the one on the whole step.
//
//	layers 0 … 5   ─ kept ≤ 30 % of what they would keep ─┐
//	layers 6 … 11  ─ as the whole step wants it ──────────┴─▶ one plan
//
// What a set of operators keeps is the forward values that they make and that something
// after the forward part reads as they were made, each buffer once: what backward reads and
// what recomputation begins with. A search visits only sets that keep every limit. Where a
// minimum cut exceeds one, its values get a price of their own on top, the least that brings
// the cut within the limit (a Lagrange multiplier, by bisection); what the next smaller price
// would have kept is then added in forward order as far as it fits.
//
// Weakness: where several limits overlap, each is priced by itself, in turn.

import (
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/ortmodel"
)

// A Limit bounds what operators keep.
type Limit struct {
	// Name is what a user calls the operators; Of says of each whether it is one.
	Name  string
	Of    []bool
	Bytes int64
}

// A LimitError says that a plan keeps more of some layers than it may.
type LimitError struct {
	Name string
	// Bytes is the limit, Least the least that was found.
	Bytes, Least int64
}

// Error names the layers and both figures, in one line.
func (e *LimitError) Error() string {
	size := units.Distinct(e.Bytes, e.Least)
	return fmt.Sprintf("budget of %s for what %s keeps cannot be met: the least found is %s", size[0], e.Name, size[1])
}

// Keeps returns the values that the given operators keep under a plan, one for each buffer,
// and their bytes.
func (pl *Plan) Keeps(p *Problem, of []bool) (values []int, bytes int64) {
	ix := p.indexed()
	seen := map[int]bool{}
	for _, v := range pl.Kept(p) {
		if r := ix.root[v]; !seen[r] && ix.limited(r, of) {
			seen[r] = true
			values, bytes = append(values, r), bytes+p.Graph.Values[r].Bytes
		}
	}
	return values, bytes
}

// Limited returns the error of the first limit that a plan exceeds, nil where it keeps all.
func (pl *Plan) Limited(p *Problem) *LimitError {
	for _, l := range p.Limits {
		if _, bytes := pl.Keeps(p, l.Of); bytes > l.Bytes {
			return &LimitError{l.Name, l.Bytes, bytes}
		}
	}
	return nil
}

// PlainKept is what the operators keep where nothing is computed again, in bytes.
func (p *Problem) PlainKept(of []bool) int64 {
	ix := p.indexed()
	return ix.keptOf(ix.keepAll(), of)
}

// limited reports a buffer of the step that one of the operators makes.
func (ix *index) limited(r int, of []bool) bool {
	op := ix.producer[r]
	return op >= 0 && of[op] && ix.p.Graph.Values[r].Kind == ortmodel.Inner
}

// keptOf is what the operators keep under a keep set, in bytes: what is wanted after
// forward, and kept or never dropped.
func (ix *index) keptOf(keep []bool, of []bool) (bytes int64) {
	seen, again := make([]bool, len(ix.root)), make([]bool, len(ix.reads))
	var want func(v int)
	want = func(v int) {
		op, r := ix.producer[v], ix.root[v]
		switch {
		case op < 0 || !ix.p.Ops[op].Forward:
		case ix.kept(keep, v):
			if !seen[r] && ix.limited(r, of) {
				bytes += ix.p.Graph.Values[r].Bytes
			}
			seen[r] = true
		case !again[op]:
			again[op] = true
			for _, u := range ix.reads[op] {
				want(u)
			}
		}
	}
	for op := range ix.reads {
		if !ix.p.Ops[op].Forward {
			for _, v := range ix.reads[op] {
				want(v)
			}
		}
	}
	return bytes
}

// keepsLimits reports that a keep set is within all limits.
func (ix *index) keepsLimits(keep []bool) bool {
	return !slices.ContainsFunc(ix.p.Limits, func(l Limit) bool { return ix.keptOf(keep, l.Of) > l.Bytes })
}

// keepNone is the keep set that holds everything but what a limit counts.
func (ix *index) keepNone() []bool {
	keep := ix.keepAll()
	for r := range keep {
		for _, l := range ix.p.Limits {
			keep[r] = keep[r] && !ix.limited(r, l.Of)
		}
	}
	return keep
}

// tighten returns the cut for prices of memory with what each limit's values have to cost
// on top.
func (c *keepCut) tighten(price []int64) []bool {
	keep := c.keep(price)
	price = append([]int64(nil), price...)
	for range c.ix.p.Limits { // a price for one may move what another one counts
		if c.ix.keepsLimits(keep) {
			break
		}
		for _, l := range c.ix.p.Limits {
			keep = c.within(l, price, keep)
		}
	}
	return keep
}

// within raises the prices of what a limit counts until the cut keeps it.
func (c *keepCut) within(l Limit, price []int64, keep []bool) []bool {
	ix := c.ix
	fits := func(keep []bool) bool { return ix.keptOf(keep, l.Of) <= l.Bytes }
	if fits(keep) {
		return keep
	}
	priced := func(step int) []int64 {
		more := append([]int64(nil), price...)
		for i, r := range ix.stash {
			if ix.limited(r, l.Of) {
				more[i] += int64(min(ix.tune.sweepFrom*math.Pow(2, float64(step)/4)*float64(ix.p.Graph.Values[r].Bytes), infinite/1024)) + 1
			}
		}
		return more
	}
	low, high := -1, 4*ix.tune.sweepSteps
	above, below := keep, c.keep(priced(high))
	for low+1 < high {
		mid := (low + high) / 2
		if at := c.keep(priced(mid)); fits(at) {
			high, below = mid, at
		} else {
			low, above = mid, at
		}
	}
	copy(price, priced(high))
	for _, r := range ix.stash { // what the cheaper cut kept, as far as it fits
		if above[r] && !below[r] {
			if below[r] = true; !fits(below) {
				below[r] = false
			}
		}
	}
	return below
}
