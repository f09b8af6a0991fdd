package planner

import "sort"

// The plans visited by a search, reduced to those that no other one beats in
// both peak and repeated work.
//
//	work │ ×                    × on the frontier
//	     │   ×   ·              · dominated
//	     │      ×  ·
//	     │           ×    ×
//	     └──────────────────── peak

// A point is one visited plan.
type point struct {
	peak int64
	work int64 // cost of the repeated executions
	keep []bool
	mode mode
	base *baseOrder
	// eraseShapes: see Plan.EraseShapes.
	eraseShapes bool
	// counted is the judge's peak of the point's own order, 0 before it was
	// asked, and overhead the share of work repeated. legal is the legalized plan,
	// nil before it was asked for, and judged its peak; plan is that plan moved.
	counted     int64
	overhead    float64
	legal, plan *Plan
	judged      int64
	// tried: its neighbours have been visited.
	tried bool
}

// A frontier holds points by ascending peak and so by descending work.
type frontier struct{ points []*point }

// covered reports whether some point is at least as good.
func (f *frontier) covered(peak, work int64) bool {
	k := sort.Search(len(f.points), func(i int) bool { return f.points[i].peak > peak })
	return k > 0 && f.points[k-1].work <= work
}

// add inserts a point that is not covered, and removes those that it covers.
func (f *frontier) add(p *point) {
	k := sort.Search(len(f.points), func(i int) bool { return f.points[i].peak >= p.peak })
	end := k
	for end < len(f.points) && f.points[end].work >= p.work {
		end++
	}
	if k == end {
		f.points = append(f.points, nil)
		copy(f.points[k+1:], f.points[k:])
	} else {
		f.points = append(f.points[:k+1], f.points[end:]...)
	}
	f.points[k] = p
}

// An explorer visits keep sets of one problem.
type explorer struct {
	ix    *index
	base  *baseOrder
	low   *lowerer
	sim   *liveSim
	front frontier
	// cuts are the minimum cuts of the sweep, found once.
	cuts [][]bool
	// visits counts the evaluations left.
	visits int
	// stopped reports that the search is to end.
	stopped func() bool
}

func newExplorer(ix *index, base *baseOrder, visits int) *explorer {
	return &explorer{ix: ix, base: base, low: newLowerer(ix, base.order), sim: newLiveSim(ix), visits: visits, stopped: func() bool { return false }}
}

// visit evaluates a keep set and records it. It copies keep if it stays.
func (e *explorer) visit(keep []bool) (peak, work int64, better bool) {
	return e.visitIn(keep, held)
}

func (e *explorer) visitIn(keep []bool, m mode) (peak, work int64, better bool) {
	if e.visits--; e.stopped() {
		e.visits = 0
	}
	schedule := e.low.scheduleIn(keep, m)
	work, peak = e.low.work, e.sim.run(schedule)
	if e.front.covered(peak, work) {
		return peak, work, false
	}
	e.front.add(&point{peak: peak, work: work, mode: m, base: e.base, eraseShapes: e.sim.eraseShapes, keep: append([]bool(nil), keep...)})
	return peak, work, true
}
