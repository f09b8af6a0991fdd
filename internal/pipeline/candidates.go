package pipeline

// Candidates by ascending work, over all variants of a graph.
//
//	plain   ── 4 % ──────── 9 % ─────────────▶
//	slices  ── 2 % ──── 6 % ──── 11 % ───────▶   work
//	parts   ──── 3 % ── 5 % ─────────────────▶
//
// Each variant's solver yields its frontier by ascending work; this is their
// merge, the variant that changes the graph least first where two are equal. A
// variant is prepared and searched only when no candidate before it is free: what
// costs no work, no other variant can undercut.
//
// What a candidate's file holds does not depend on the budget, and a smaller
// budget leaves fewer candidates. So overhead never falls when the budget does.

import (
	"iter"

	"github.com/onnx-remat/remat/planner"
)

// A Candidate is a variant and a plan for it that is not written yet.
type Candidate struct {
	Variant *Variant
	// Overhead is the share of the plain step's work that the plan repeats.
	Overhead float64
	// Peak is the live peak by the judge, in bytes, which the file hardly undercuts.
	Peak int64
	// Plan spells the plan out.
	Plan func() (*planner.Plan, error)
}

// with is the variant with a plan that is spelled out.
func (v *Variant) with(plan *planner.Plan) Candidate {
	return Candidate{Variant: v, Plan: func() (*planner.Plan, error) { return plan, nil }}
}

// ascending yields the candidates whose own peak keeps the budget, by ascending
// work, until planning is stopped. Known is the least peak of what it yielded that is of
// use, nil where more may be.
func (p *Planner) ascending(s *planner.Solver, budget Budget, known func() int64) iter.Seq2[Candidate, error] {
	return func(yield func(Candidate, error) bool) {
		m := &merge{p: p, solver: s, budget: budget, known: known}
		var stop func()
		m.variant, stop = iter.Pull2(p.allVariants(s))
		defer stop()
		defer m.close()
		for {
			best, err := m.cheapest()
			switch {
			case err != nil:
				yield(Candidate{}, err)
				return
			case best == nil || p.stopped():
				return
			case !yield(Candidate{best.variant, best.head.Overhead, best.head.Peak, best.head.Plan}, nil):
				return
			}
			if err := m.advance(best); err != nil {
				yield(Candidate{}, err)
				return
			}
		}
	}
}

// allVariants yields the variants of all families.
func (p *Planner) allVariants(s *planner.Solver) iter.Seq2[*Variant, error] {
	return func(yield func(*Variant, error) bool) {
		for f, err := range p.families(s) {
			if err != nil {
				yield(nil, err)
				return
			}
			for v, err := range p.variants(s, f) {
				if !yield(v, err) {
					return
				}
			}
		}
	}
}

// A frontier is what one planning problem of a variant offers.
type frontier struct {
	variant *Variant
	next    func() (planner.Candidate, error, bool)
	stop    func()
	head    *planner.Candidate // the cheapest that is left, nil where none is
}

// A merge takes the cheapest of several frontiers.
type merge struct {
	p       *Planner
	solver  *planner.Solver
	budget  Budget
	known   func() int64
	variant func() (*Variant, error, bool) // the next one to open
	all     bool                           // are open
	open    []*frontier
}

// cheapest returns the frontier with the cheapest head, the first of equals; nil
// where all are used up. It opens further variants until one's head is free.
func (m *merge) cheapest() (*frontier, error) {
	for {
		var best *frontier
		for _, f := range m.open {
			if f.head != nil && (best == nil || f.head.Overhead < best.head.Overhead) {
				best = f
			}
		}
		if m.all || best != nil && best.head.Overhead == 0 || len(m.open) > 0 && m.p.stopped() {
			return best, nil
		}
		if err := m.openNext(); err != nil {
			return nil, err
		}
	}
}

// openNext opens the frontiers of the next variant.
func (m *merge) openNext() error {
	v, err, ok := m.variant()
	if !ok || err != nil {
		m.all = true
		return err
	}
	for _, problem := range v.problems() {
		f := &frontier{variant: v}
		f.next, f.stop = iter.Pull2(m.solver.Frontier(problem, m.p.live(m.budget), m.known))
		m.open = append(m.open, f)
		if err := m.advance(f); err != nil {
			return err
		}
	}
	return nil
}

// advance goes on to a frontier's next plan.
func (m *merge) advance(f *frontier) error {
	defer m.p.solving()()
	c, err, ok := f.next()
	if f.head = &c; !ok || err != nil {
		f.head = nil
	}
	return err
}

func (m *merge) close() {
	for _, f := range m.open {
		f.stop()
	}
}
