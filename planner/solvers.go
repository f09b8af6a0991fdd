package planner

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
)

// ErrNoBackward says that a graph has no backward part to plan for.
var ErrNoBackward = errors.New("no backward found: run remat grad first")

// ErrNoLayers says that a strategy by layers has nothing to go by.
var ErrNoLayers = errors.New("no layers found: no single value separates one part of the forward from the next; use layers=GLOB, selective or optimal")

// Options are what a solver is asked for.
type Options struct {
	// Solver is its name, and Argument what follows the strategy's equal sign, or empty.
	Solver, Argument string
}

// strategy is what was asked for.
func (o Options) strategy() string {
	if o.Argument == "" {
		return o.Solver
	}
	return o.Solver + "=" + o.Argument
}

// count is the argument as a number.
func (o Options) count() (int, error) {
	k, err := strconv.Atoi(o.Argument)
	if err != nil || k < 1 {
		return 0, errors.New("want a whole number of at least 1")
	}
	return k, nil
}

// A Solver is one row of the table of strategies: a pure function from a
// problem to a plan.
type Solver struct {
	Name string
	// Argument names what follows an equal sign; empty: nothing may.
	Argument string
	Doc      string
	// Solve returns the solver's plan; of a search, the plan of least peak.
	Solve func(*Problem, Options) (*Plan, error)
	// Frontier yields plans whose judged peak keeps a budget in bytes, by ascending
	// work. For a smaller budget there are fewer plans, never others. Nil: the
	// solver has one plan, and no budget changes it.
	//
	// Known is asked before each plan for the least peak of those that take no more
	// work, found in other problems; nil: there are none. A plan that clearly holds
	// more is not judged.
	Frontier func(p *Problem, budget int64, known func() int64) iter.Seq2[Candidate, error]
	// Unbounded: the solver goes for the least peak, whatever work that repeats. One
	// that searches and is given no bound stops at the knee of its frontier otherwise.
	Unbounded bool
}

// A Candidate is a plan on a solver's frontier, not spelled out yet.
type Candidate struct {
	// Overhead is the share of the plain step's work that it repeats.
	Overhead float64
	// Peak is what the judge counts, in bytes. The written file may hold a little
	// more: shapes that barriers compute, guards against fusions.
	Peak int64
	plan func() (*Plan, error)
}

// Plan returns the plan, with the schedule that its file can run.
func (c Candidate) Plan() (*Plan, error) { return c.plan() }

// Solvers is the table of strategies.
var Solvers = []Solver{
	{"none", "", "keep everything; only the order is chosen", solveNone, nil, false},
	{"sqrt", "", "⌈√L⌉ segments over the L layers found (Chen et al. 2016)", solveSqrt, nil, false},
	{"every", "K", "a boundary at every K-th layer", solveEvery, nil, false},
	{"segments", "K", "K segments of nearly equal length, the last one kept, as checkpoint_sequential does", solveSegments, nil, false},
	{"layers", "GLOB", "boundaries are the layers, forward values or operators whose name matches", solveLayers, nil, false},
	{"full", "", "a boundary at each layer", solveFull, nil, false},
	{"selective", "", "inside layers recompute only what is large and cheap: attention scores, activation functions, norms (Korthikanti et al. 2022)", solveSelective, nil, false},
	{"optimal", "", "single operators, found by search: the least work within the budget, or the least peak within --overhead; with neither the knee of the curve of peak against work", solveSearch, optimalFrontier, false},
	{"least", "", "the least peak that optimal's search finds, whatever work that repeats", solveSearch, optimalFrontier, true},
}

// Usage is the strategy as a user writes it: its name, and what follows an equal sign.
func (s *Solver) Usage() string {
	if s.Argument == "" {
		return s.Name
	}
	return s.Name + "=" + s.Argument
}

// Find returns the solver that a strategy such as "every=2" asks for, and its
// argument.
func Find(strategy string) (*Solver, string, error) {
	name, arg, has := strings.Cut(strategy, "=")
	var names []string
	for i := range Solvers {
		s := &Solvers[i]
		if s.Name != name {
			names = append(names, s.Usage())
			continue
		}
		if has != (s.Argument != "") || has && arg == "" {
			if s.Argument == "" {
				return nil, "", fmt.Errorf("strategy %q: %s takes no argument", strategy, s.Name)
			}
			return nil, "", fmt.Errorf("strategy %q: write %s=%s", strategy, s.Name, s.Argument)
		}
		return s, arg, nil
	}
	slices.Sort(names)
	return nil, "", fmt.Errorf("strategy %q: want one of %s", strategy, strings.Join(names, ", "))
}

// Solve runs a strategy by its name, for example "sqrt" or "every=2". Without
// a backward only "none" makes sense; the others return ErrNoBackward.
func Solve(p *Problem, strategy string) (*Plan, error) {
	s, arg, err := Find(strategy)
	if err != nil {
		return nil, err
	}
	if s.Name != "none" && !p.HasBackward() {
		return nil, ErrNoBackward
	}
	plan, err := s.Solve(p, Options{s.Name, arg})
	if err != nil {
		return nil, fmt.Errorf("strategy %s: %w", strategy, err)
	}
	return plan, nil
}

// Least returns the plans of a strategy among which the written files decide which holds
// least, the most likely first: several of a search in a small graph, else the one of Solve.
func Least(p *Problem, strategy string) ([]*Plan, error) {
	if s, _, err := Find(strategy); err == nil && s.Frontier != nil && p.HasBackward() {
		return leastPlans(p, s.Name)
	}
	plan, err := Solve(p, strategy)
	return []*Plan{plan}, err
}

// An InfeasibleError says that no plan was found within the budget.
type InfeasibleError struct {
	// Budget is what was asked for, Least the least peak found, and LowerBound
	// the peak below which no plan of this graph can go, in bytes.
	Budget, Least, LowerBound int64
}

// Error describes the three figures in one line.
func (e *InfeasibleError) Error() string {
	size := units.Distinct(e.Budget, e.Least, e.LowerBound)
	return fmt.Sprintf("budget of %s cannot be met: the least peak found is %s, and no plan needs less than %s", size[0], size[1], size[2])
}
