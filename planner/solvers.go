package planner

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// ErrNoBackward says that a graph has no backward part to plan for.
var ErrNoBackward = errors.New("no backward found: run remat grad first")

// Options are what a solver is asked for.
type Options struct {
	// Argument is what follows the strategy's equal sign, or empty.
	Argument string
	// Budget bounds the peak in bytes; 0: none.
	Budget int64
}

func (o Options) name(solver string) string {
	if o.Argument == "" {
		return solver
	}
	return solver + "=" + o.Argument
}

func (o Options) count(solver string) (int, error) {
	k, err := strconv.Atoi(o.Argument)
	if err != nil || k < 1 {
		return 0, fmt.Errorf("%s=%s: want a whole number of at least 1", solver, o.Argument)
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
	// Budgeted solvers obey Options.Budget; the others have one plan.
	Budgeted bool
	Solve    func(*Problem, Options) (*Plan, error)
}

// Solvers is the table of strategies.
var Solvers = []Solver{
	{"none", "", "keep everything; only the order is chosen", false, solveNone},
	{"sqrt", "", "⌈√L⌉ segments over the L layers found (Chen et al. 2016)", false, solveSqrt},
	{"every", "K", "a boundary at every K-th layer", false, solveEvery},
	{"segments", "K", "K segments of nearly equal length, the last one kept, as checkpoint_sequential does", false, solveSegments},
	{"layers", "GLOB", "boundaries are the layers, forward values or operators whose name matches", false, solveLayers},
	{"full", "", "a boundary at each layer", false, solveFull},
	{"selective", "", "inside layers recompute only what is large and cheap: attention scores, activation functions, norms (Korthikanti et al. 2022)", false, solveSelective},
	{"optimal", "", "the least work within the budget, single operators, found by search; without a budget the least peak", true, solveOptimal},
}

// Find returns the solver that a strategy such as "every=2" asks for, and its
// argument.
func Find(strategy string) (*Solver, string, error) {
	name, arg, has := strings.Cut(strategy, "=")
	var names []string
	for i := range Solvers {
		s := &Solvers[i]
		if s.Name != name {
			if s.Argument != "" {
				names = append(names, s.Name+"="+s.Argument)
			} else {
				names = append(names, s.Name)
			}
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
	sort.Strings(names)
	return nil, "", fmt.Errorf("strategy %q: want one of %s", strategy, strings.Join(names, ", "))
}

// Solve runs a strategy by its name, for example "sqrt" or "every=2". Without
// a backward only "none" makes sense; the others return ErrNoBackward.
func Solve(p *Problem, strategy string, budget int64) (*Plan, error) {
	s, arg, err := Find(strategy)
	if err != nil {
		return nil, err
	}
	if s.Name != "none" && !p.HasBackward() {
		return nil, ErrNoBackward
	}
	plan, err := s.Solve(p, Options{Argument: arg, Budget: budget})
	if err != nil {
		return nil, fmt.Errorf("strategy %s: %w", strategy, err)
	}
	return plan, nil
}

// An InfeasibleError says that no plan was found within the budget.
type InfeasibleError struct {
	// Budget is what was asked for, Least the least peak found, and LowerBound
	// the peak below which no plan of this graph can go, in bytes.
	Budget, Least, LowerBound int64
}

// Error describes the three figures in one line.
func (e *InfeasibleError) Error() string {
	return fmt.Sprintf("budget of %d bytes cannot be met: the least peak found is %d bytes, and no plan needs less than %d",
		e.Budget, e.Least, e.LowerBound)
}
