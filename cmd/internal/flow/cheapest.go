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
	form     *Prepared
	next     func() (*planner.Plan, error, bool)
	plan     *planner.Plan // the next one; nil: no more
	overhead float64
}

// cheapest returns the plan with the least work whose file keeps the budget in
// bytes, the first of equals, which changes the graph least; else nil.
func (p *Planner) cheapest(strategy string, budget int64) (*Planned, error) {
	forms, err := p.candidates(strategy)
	if err != nil {
		return nil, err
	}
	var lines []*line
	for _, form := range forms {
		for _, problem := range form.problems() {
			next, stop := iter.Pull2(planner.Ascending(problem, budget))
			defer stop()
			l := &line{form: form, next: next}
			if err := p.advance(l); err != nil {
				return nil, err
			}
			lines = append(lines, l)
		}
		if r, err := p.free(lines, budget); r != nil || err != nil {
			return r, err
		}
	}
	for range maxFiles {
		best := first(lines)
		if best == nil {
			return nil, nil
		}
		r, err := p.keeping(budget, best.form, best.plan)
		if err != nil || r.Peak <= budget {
			return r, err
		}
		if err := p.advance(best); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// free looks at plans without work, which no other form can undercut.
func (p *Planner) free(lines []*line, budget int64) (*Planned, error) {
	for _, l := range lines {
		for l.plan != nil && l.overhead == 0 {
			r, err := p.keeping(budget, l.form, l.plan)
			if err != nil || r.Peak <= budget {
				return r, err
			}
			if err := p.advance(l); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// first returns the line with the cheapest plan, nil where none has any.
func first(lines []*line) *line {
	var best *line
	for _, l := range lines {
		if l.plan != nil && (best == nil || l.overhead < best.overhead) {
			best = l
		}
	}
	return best
}

// advance goes on to a line's next plan.
func (p *Planner) advance(l *line) error {
	defer p.solving()()
	plan, err, ok := l.next()
	if l.plan = plan; !ok || err != nil {
		l.plan = nil
		return err
	}
	l.overhead = plan.Overhead(l.form.Analysis.Problem)
	return nil
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
		p.pinned = castsOnce(p.Analysis.Problem)
	}
	return p.pinned
}
