package planner

import (
	"cmp"
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// Moves: a schedule is improved where it holds most.
//
//	peak ─▶ moves past it ─▶ around the peak ─▶ the best as a whole ─▶ better? taken
//	 ▲      (shifts.go)      (ortmodel.Window)  (ortmodel.Simulator)          │
//	 └────────────────────────────────────────────────────────────────────────┘
//
// Better is a lower peak; or a peak as high at fewer places, as the layers of a stack
// come one by one; or less held close to it. It ends where no move helps at the first
// of the peaks, or the work is done that it may do, which is counted in nodes
// simulated.
//
// An order that places in the file cannot say takes control edges. The best of the
// orders on the way is the one whose control edges are worth it; it holds less than
// what it began with, or there is none.
//
// Weakness: one move at a time. Two that only help together are not found.

// A mover improves the order of one legalized plan.
type mover struct {
	s      *legalized
	tune   *tuning
	window *ortmodel.Window
	*links

	order   []int
	pos     []int32
	last    []int32 // root -> place that reads it last, behind all where it outlives the step
	profile []int64 // of the order
	height
	near  int64 // see height.above
	early int
	left  int // nodes that may still be simulated

	in    []int32 // node -> number of the set that it was in
	set   int32   // number of the set being made
	stack []int32
}

// A height says how much is held: the most, in bytes, at how many places, and the sum
// of what is held above near.
type height struct {
	peak, above int64
	top         int
}

// compare orders heights, the better first.
func (h height) compare(o height) int {
	return cmp.Or(cmp.Compare(h.peak, o.peak), cmp.Compare(h.top, o.top), cmp.Compare(h.above, o.above))
}

// join is the height of two stretches.
func (h height) join(o height) height {
	j := height{max(h.peak, o.peak), h.above + o.above, 0}
	for _, x := range [2]height{h, o} {
		if x.peak == j.peak {
			j.top += x.top
		}
	}
	return j
}

func (m *mover) heightOf(profile []int64) (h height) {
	for _, b := range profile {
		if b > h.peak {
			h.peak, h.top = b, 0
		}
		if b == h.peak {
			h.top++
		}
		h.above += max(0, b-m.near)
	}
	return h
}

// moved returns the counted plan with a better order, if one is found.
func (p *Problem) moved(s *legalized) *legalized {
	if !s.tune.runs(stageMoves) || len(s.wanted) == 0 {
		return s
	}
	if order := newMover(p, s).improve(); order != nil {
		if next := p.waiting(s, order); next != nil && next.peak < s.peak {
			return next
		}
	}
	return s
}

func newMover(p *Problem, s *legalized) *mover {
	n := len(s.wanted)
	return &mover{s: s, tune: s.tune, window: ortmodel.NewWindow(s.sim), links: newLinks(p, s),
		order: slices.Clone(s.wanted), pos: make([]int32, n), last: make([]int32, len(s.graph.Values)), in: make([]int32, n),
		early: len(s.early), left: s.tune.moveNodes + s.tune.moveSteps*n}
}

// improve returns the best order found, nil if that is none.
func (m *mover) improve() (best []int) {
	m.near = m.s.peak - part(m.tune.moveNear, m.s.peak)
	m.height = m.look(m.order)
	early, worth := m.early, m.peak
	for stalled := 0; m.left > 0 && stalled < m.tune.moveStalls; {
		was := m.height
		if !m.step() {
			break
		}
		if stalled++; m.peak < was.peak || m.top < was.top {
			stalled = 0
		}
		// Each control edge more has to save its share.
		if w := m.peak + int64(m.early-early)*part(m.tune.edgeGain, m.s.peak); m.peak < m.s.peak && w < worth {
			worth, best = w, slices.Clone(m.order)
		}
		m.near = m.peak - part(m.tune.moveNear, m.peak)
		m.height = m.heightOf(m.profile)
	}
	return best
}

// look simulates an order.
func (m *mover) look(order []int) height {
	m.profile = append(m.profile[:0], m.s.sim.Profile(order)...)
	m.left -= len(order)
	return m.heightOf(m.profile)
}

// step takes a move past the first of the peaks: a promising one close to it, else a
// run of nodes, else one that goes farther.
func (m *mover) step() bool {
	m.survey()
	t := slices.Index(m.profile, m.peak)
	close, far := m.shifts(t)
	from, to := m.close(t)
	m.window.At(m.order, from, to)
	m.left -= 2 * len(m.order)
	taken, checked := m.around(from, to, close)
	if taken {
		return true
	}
	if checked {
		m.look(m.order)
		m.window.At(m.order, from, to)
		m.left -= 2 * len(m.order)
	}
	if taken, _ = m.around(from, to, m.runs(t)); taken {
		return true
	}
	return m.anywhere(far)
}

// survey notes where everything is.
func (m *mover) survey() {
	for v := range m.last {
		m.last[v] = -1
		if m.s.graph.Values[v].Kind == ortmodel.Output {
			m.last[v] = int32(len(m.order))
		}
	}
	for k, i := range m.order {
		m.pos[i] = int32(k)
		for _, r := range m.reads.of(i) {
			m.last[r] = max(m.last[r], int32(k))
		}
	}
}

// around takes the best of some moves between two places, for which the window is set.
// It says whether one was taken, and whether any was simulated as a whole, after which
// the window has to be set again.
func (m *mover) around(from, to int, list []shift) (taken, checked bool) {
	rest := m.heightOf(m.profile[:from]).join(m.heightOf(m.profile[to:]))
	type tried struct {
		c *shift
		height
	}
	var good []tried
	stretch := make([]int, to-from)
	for k := range list {
		m.apply(stretch, &list[k], from)
		m.left -= len(stretch)
		if h := rest.join(m.heightOf(m.window.Profile(stretch))); m.better(h) {
			good = append(good, tried{&list[k], h})
		}
	}
	slices.SortStableFunc(good, func(a, b tried) int { return a.compare(b.height) })
	order := slices.Clone(m.order)
	for k := 0; k < min(len(good), m.tune.moveChecks); k++ {
		m.apply(order[from:to], good[k].c, from)
		if m.take(order) {
			return true, true
		}
	}
	return false, len(good) > 0
}

// anywhere takes the first of some moves that helps.
func (m *mover) anywhere(list []shift) bool {
	order := make([]int, len(m.order))
	for k := range list {
		m.apply(order, &list[k], 0)
		if m.take(order) {
			return true
		}
	}
	return false
}

// better reports less than the order holds, by more than a trifle.
func (m *mover) better(h height) bool {
	return h.peak < m.peak || h.peak == m.peak && (h.top < m.top || h.top == m.top && h.above < m.above-part(m.tune.moveShare, m.peak))
}

// take takes an order if it is better as a whole.
func (m *mover) take(order []int) bool {
	was := m.profile
	m.profile = nil
	if h := m.look(order); m.better(h) {
		m.left -= len(order)
		if early := len(m.s.orders.EarlyNodes(order)); early <= len(m.s.early)+m.tune.moveEdges {
			m.order, m.height, m.early = slices.Clone(order), h, early
			return true
		}
	}
	m.profile = was
	return false
}
