package flow

// The cheapest plan within a budget, of all forms of a graph.
//
// A form's solver knows plans by ascending work, each with the peak that the
// judge gives it. The file may hold a little more: shapes that barriers
// compute, a guard against a fusion. So the plans of all forms are taken by
// ascending work, and the first whose file keeps the budget is it:
//
//	plain   ── 4 % ──────── 9 % ─────────────▶
//	slices  ── 2 % ──── 6 % ──── 11 % ───────▶   work
//	parts   ──── 3 % ── 5 % ─────────────────▶
//
// What a plan's file holds does not depend on the budget, and a smaller budget
// leaves fewer plans. So overhead never falls when the budget does.

import (
	"iter"

	"github.com/onnx-remat/remat/planner"
)

// maxFiles bounds how many plans' files are looked at.
const maxFiles = 64

// A line is what one form of the graph offers.
type line struct {
	form *Prepared
	next func() (planner.Candidate, error, bool)
	plan *planner.Candidate // the next one; nil: no more
}

// cheapest returns the plan with the least work whose file keeps the budget, the
// first of equals, which changes the graph least; without one it returns, not
// kept, the file that misses the budget by least, nil where none was tried.
func (p *Planner) cheapest(strategy string, budget Budget) (r *Planned, kept bool, err error) {
	forms, err := p.candidates(strategy)
	if err != nil {
		return nil, false, err
	}
	t := &trial{p: p, budget: budget}
	var lines []*line
	for i, form := range forms {
		if i > 0 && p.stopped() {
			break
		}
		p.looking(i+1, len(forms))
		for _, problem := range form.problems() {
			next, stop := iter.Pull2(planner.Ascending(problem, p.live(budget)))
			defer stop()
			l := &line{form: form, next: next}
			if err := p.advance(l); err != nil {
				return nil, false, err
			}
			lines = append(lines, l)
		}
		if r, err := t.free(lines); r != nil || err != nil {
			return r, true, err
		}
	}
	p.progress(func(s *Progress) { s.Most = s.Tried + maxFiles })
	for range maxFiles {
		best := first(lines)
		if best == nil || p.stopped() {
			break
		}
		if r, err := t.try(best); r != nil || err != nil {
			return r, true, err
		}
	}
	p.progress(func(s *Progress) { s.Most = 0 })
	if t.closest == nil || p.limited { // then the plan of least peak is what to write
		return nil, false, nil
	}
	r, err = p.apply(p.engine, t.form, t.closest.Plan)
	return r, false, err
}

// A trial looks at plans' files under one budget.
type trial struct {
	p      *Planner
	budget Budget
	// closest misses the budget by least; it is of that form.
	closest *Planned
	form    *Prepared
}

// try returns the file of a line's next plan if it keeps the budget, else nil,
// and goes on to the one behind it.
func (t *trial) try(l *line) (*Planned, error) {
	r, kept, err := t.p.keeping(t.budget, l)
	if err != nil || kept {
		return r, err
	}
	if t.closest == nil || t.budget.miss(r.Prediction) < t.budget.miss(t.closest.Prediction) {
		t.closest, t.form = r, l.form
	}
	return nil, t.p.advance(l)
}

// free looks at plans without work, which no other form can undercut.
func (t *trial) free(lines []*line) (*Planned, error) {
	for _, l := range lines {
		for l.plan != nil && l.plan.Overhead == 0 && !t.p.stopped() {
			if r, err := t.try(l); r != nil || err != nil {
				return r, err
			}
		}
	}
	return nil, nil
}

// first returns the line with the cheapest plan, nil where none has any.
func first(lines []*line) *line {
	var best *line
	for _, l := range lines {
		if l.plan != nil && (best == nil || l.plan.Overhead < best.plan.Overhead) {
			best = l
		}
	}
	return best
}

// advance goes on to a line's next plan.
func (p *Planner) advance(l *line) error {
	defer p.solving()()
	plan, err, ok := l.next()
	if l.plan = &plan; !ok || err != nil {
		l.plan = nil
	}
	return err
}

// problems are the form's planning problem and, where it has casts, the one in
// which these run once: a search that finds less among more choices is then no
// loss.
func (p *Prepared) problems() []*planner.Problem {
	list := []*planner.Problem{p.Analysis.Problem}
	if once := p.castsOnce(); once != nil {
		list = append(list, once)
	}
	return list
}

// castsOnce is the problem in which casts run once, made at the first call, so
// that its search runs once; nil without casts.
func (p *Prepared) castsOnce() *planner.Problem {
	if p.pinned == nil {
		p.pinned = castsOnce(p.Analysis)
	}
	return p.pinned
}
