package pipeline

// Budgets of layers: what those keep from the forward pass for the backward pass, beside
// what the whole step holds. The planner heeds them (planner.Limit); here they find the
// layers, and the file is held to them.

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
)

// A LayerBudget bounds what the layers keep whose names match a pattern, or the parts of
// modules whose names do: in bytes, or as a share of what they keep where nothing is
// computed again.
type LayerBudget struct {
	Layers string
	Size   units.Size
}

// ParseLayerBudget reads "GLOB=SIZE"; ok is false where the text has no equal sign.
func ParseLayerBudget(text string) (b LayerBudget, ok bool, err error) {
	at := strings.LastIndexByte(text, '=')
	if at < 0 {
		return b, false, nil
	}
	b.Layers = text[:at]
	if _, err := path.Match(b.Layers, ""); err != nil || b.Layers == "" {
		return b, true, fmt.Errorf("%q: %q is not a pattern of names of layers", text, b.Layers)
	}
	if b.Size, err = units.ParseSize(text[at+1:]); err != nil {
		return b, true, fmt.Errorf("%q: %w", text, err)
	}
	return b, true, nil
}

// A WorkError says that no plan is within a bound on the work, or none that is keeps the
// budgets of layers.
type WorkError struct {
	Work float64 // a share of the plain step's
	// Asked is what the slices that were asked for alone compute again, 0 where it is the
	// budgets of layers that ask for more.
	Asked float64
}

func (e *WorkError) Error() string {
	if e.Asked > 0 {
		return fmt.Sprintf("no plan has at most %s more work: the requested slices alone add %s", units.Percent(e.Work), units.Percent(e.Asked))
	}
	return fmt.Sprintf("no plan with at most %s more work keeps the budgets of layers", units.Percent(e.Work))
}

// A noLayerError says that a budget is of layers that a graph has not: one that is divided may
// not have all those of the graph that was given.
type noLayerError struct{ layers string }

func (e *noLayerError) Error() string {
	return fmt.Sprintf("--budget %s=…: no layer has such a name; remat inspect --json lists layer_names", e.layers)
}

// String is what ParseLayerBudget reads.
func (b LayerBudget) String() string { return b.Layers + "=" + b.Size.String() }

// limit gives the problem the budgets of layers as bytes, and notes them in the options.
func (v *Variant) limit() error {
	if len(v.Options.Layers) == 0 {
		return nil
	}
	p := v.Problem()
	budgets := make([]LayerBudget, len(v.Options.Layers))
	for i, b := range v.Options.Layers {
		of, err := operatorsOf(v.Analysis, b.Layers)
		if err != nil {
			return err
		}
		b.Size = units.Size{Bytes: b.Size.Of(p.PlainKept(of))}
		budgets[i] = b
		p.Limits = append(p.Limits, planner.Limit{Name: b.Layers, Of: of, Bytes: b.Size.Bytes})
	}
	v.Options.Layers = budgets
	return nil
}

// operatorsOf are the forward operators of the layers, or modules, that match.
func operatorsOf(a *analysis.Analysis, glob string) ([]bool, error) {
	p := a.Problem
	layer, of, found := p.LayerOf(), make([]bool, len(p.Ops)), false
	for op := range p.Ops {
		if !p.Ops[op].Forward {
			continue
		}
		names := analysis.Enclosing(a.Nodes[op].Module())
		if layer[op] >= 0 {
			name := p.LayerNames[layer[op]]
			module, _, _ := strings.Cut(name, "/") // of the value that the layer ends in
			names = append(names, name, module)
		}
		of[op] = slices.ContainsFunc(names, func(name string) bool { return planner.Match(glob, name) })
		found = found || of[op]
	}
	if !found {
		return nil, &noLayerError{glob}
	}
	return of, nil
}

// limited is the error of the first budget of layers that a file exceeds, nil for none.
func (f *File) limited() error {
	if err := f.Plan.Limited(f.Problem()); err != nil {
		return err
	}
	return nil
}

// LayerBudgets says of each budget of layers what the file keeps.
func (f *File) LayerBudgets() (list []report.LayerBudget) {
	p := f.Problem()
	for _, l := range p.Limits {
		d := report.LayerBudget{Layers: l.Name, BudgetBytes: l.Bytes, PlainBytes: p.PlainKept(l.Of)}
		values, bytes := f.Plan.Keeps(p, l.Of)
		d.KeptBytes = bytes
		for _, v := range values {
			d.Kept = append(d.Kept, p.Values[v].Name)
		}
		list = append(list, d)
	}
	return list
}

// LayerBudgetsIn are those that a file that was written notes in its metadata.
func LayerBudgetsIn(m *onnx.Model) []report.LayerBudget {
	var plan struct {
		LayerBudgets []report.LayerBudget `json:"layer_budgets"`
	}
	if _, err := m.JSON(PlanKey, &plan); err != nil {
		return nil
	}
	return plan.LayerBudgets
}

// heeding returns the file of least work that keeps the budgets of layers and the one of the
// step; with an error, what misses them by least.
func (p *Planner) heeding(s *planner.Solver, budget Budget) (*File, error) {
	if s.Frontier == nil || s.Unbounded {
		return nil, fmt.Errorf("strategy %s has one plan, which no budget of layers changes: use optimal", s.Name)
	}
	if none, err := p.plain(budget); err != nil || none != nil && none.limited() == nil {
		return none, err
	}
	whole := budget
	if budget.none() {
		whole.Live = math.MaxInt64
	}
	var closest *File
	var missed error
	files := 0
	for c, err := range p.ascending(s, whole, nil) {
		if err != nil {
			return nil, err
		}
		if files++; files > maxFiles {
			break
		}
		f, err := p.file(c, whole)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		miss := f.limited()
		switch {
		case !budget.Keeps(f.Prediction):
			miss = budget.exceeded(f)
		case miss == nil:
			return f, nil
		}
		if closest == nil || !whole.Keeps(closest.Prediction) && whole.miss(f.Prediction) < whole.miss(closest.Prediction) {
			closest, missed = f, miss
		}
	}
	if closest != nil {
		return closest, missed
	}
	// No file was found in the budget of the step, or in the time that there is.
	f, err := p.least(s, s.Name, p.asked, Budget{})
	switch {
	case err != nil:
	case !budget.Keeps(f.Prediction):
		err = budget.exceeded(f)
	default:
		err = f.limited()
	}
	return f, err
}
