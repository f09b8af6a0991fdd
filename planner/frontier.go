package planner

import (
	"math"
	"slices"
	"sort"
)

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
	// nil before it was asked for, and judged its peak; plan is that plan moved, and moved
	// its peak.
	counted       int64
	overhead      float64
	legal, plan   *Plan
	judged, moved int64
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

// limit is the peak from which on a plan of that work is covered.
func (f *frontier) limit(work int64) int64 {
	k := sort.Search(len(f.points), func(i int) bool { return f.points[i].work <= work })
	if k == len(f.points) {
		return math.MaxInt64
	}
	return f.points[k].peak
}

// add inserts a point that is not covered, and removes those that it covers.
func (f *frontier) add(p *point) {
	k := sort.Search(len(f.points), func(i int) bool { return f.points[i].peak >= p.peak })
	end := k
	for end < len(f.points) && f.points[end].work >= p.work {
		end++
	}
	f.points = slices.Replace(f.points, k, end, p)
}

// An explorer visits keep sets of one problem.
type explorer struct {
	ix    *index
	base  *baseOrder
	low   *lowerer
	sim   *liveSim
	front frontier
	// narrow is what the search found that keeps all that backward views, by ascending peak.
	narrow []*point
	// cuts are the minimum cuts of the sweep, found once.
	cuts [][]bool
	// visits counts the evaluations left, added the points that joined the frontier.
	visits, added int
	// seen are the schedules that moves led to, by hash; nil: simulate each.
	seen map[uint64]struct{}
	// stopped reports that the search is to end.
	stopped func() bool
}

func newExplorer(ix *index, base *baseOrder, visits int) *explorer {
	return &explorer{ix: ix, base: base, low: base.lowerer(ix), sim: newLiveSim(ix), visits: visits, seen: map[uint64]struct{}{}, stopped: func() bool { return false }}
}

// visit evaluates a keep set and records it. It copies keep if it stays.
func (e *explorer) visit(keep []bool) (peak, work int64, better bool) {
	return e.visitIn(keep, held)
}

func (e *explorer) visitIn(keep []bool, m mode) (peak, work int64, better bool) {
	e.count()
	peak = e.sim.run(e.low.scheduleIn(keep, m))
	return peak, e.low.work, e.record(keep, m, peak)
}

// try is visitIn for a move, of which nobody asks what it holds. A third of them and more
// lead to a schedule that another one led to, which is not simulated again (of two with
// one hash, the second is never found); and the simulation ends where a known point is
// as good.
func (e *explorer) try(keep []bool, m mode) {
	e.count()
	if !e.ix.keepsLimits(keep) {
		return
	}
	schedule := e.low.scheduleIn(keep, m)
	key := hashOf(schedule, e.sim.eraseShapes)
	if _, ok := e.seen[key]; ok {
		return
	}
	if e.seen != nil {
		e.seen[key] = struct{}{}
	}
	limit := e.front.limit(e.low.work)
	if peak := e.sim.below(schedule, limit); peak < limit {
		e.record(keep, m, peak)
	}
}

// count counts a visit.
func (e *explorer) count() {
	if e.visits--; e.stopped() {
		e.visits = 0
	}
}

// record adds what was visited last, unless some point is as good. It copies keep.
func (e *explorer) record(keep []bool, m mode, peak int64) bool {
	work := e.low.work
	if e.front.covered(peak, work) || !e.ix.keepsLimits(keep) {
		return false
	}
	e.added++
	e.front.add(&point{peak: peak, work: work, mode: m, base: e.base, eraseShapes: e.sim.eraseShapes, keep: append([]bool(nil), keep...)})
	return true
}

// hashOf is the FNV-1a hash of a schedule, operator by operator, and a flag.
func hashOf(schedule []int, flag bool) uint64 {
	h := uint64(14695981039346656037)
	if flag {
		h ^= 1
	}
	for _, op := range schedule {
		h = (h ^ uint64(op)) * hashPrime
	}
	return h
}
