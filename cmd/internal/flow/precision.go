package flow

// Precision comes after normalization, so that ONNX Runtime's optimizer does
// not see the casts, and before analysis, so that the planner does: a cast is
// cheap to run again, and a plan that keeps the smaller of its two sides finds
// that by itself.

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
)

// PrecisionKey is the metadata entry that says how values were made half.
const PrecisionKey = "remat.precision"

// Precision is the entry: the type, and how it is computed with.
type Precision struct {
	Type string `json:"type"`
	// How is native (nodes of the half type), emulated (float32 on rounded
	// values) or stash (float32, but what waits for backward).
	How string `json:"how"`
	// Emulated counts the nodes that compute in float32 between casts.
	Emulated int `json:"emulated_nodes"`
	// Scaled says that the graph scales its loss.
	Scaled bool `json:"loss_scaling"`
}

func howPrecise(o precision.Options, r *precision.Report) Precision {
	p := Precision{Type: o.To.String(), How: "native", Emulated: r.Emulated, Scaled: r.Scaled}
	switch {
	case o.StashOnly:
		p.How = "stash"
	case r.Emulated > 0:
		p.How = "emulated"
	}
	return p
}

// String says what a run of the graph computes in.
func (p Precision) String() string {
	switch p.How {
	case "emulated":
		return "emulated " + p.Type + ": computes in float32 on values rounded to " + p.Type
	case "stash":
		return "float32; what waits for backward waits in " + p.Type
	}
	return p.Type + " by the provider's kernels; the CPU's compute float16 in float32 between casts"
}

// PrecisionOf reads the entry, nil where there is none.
func PrecisionOf(m *onnx.Model) *Precision {
	var p Precision
	text, ok := m.Metadata(PrecisionKey)
	if !ok || json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	return &p
}

// precise converts the prepared model as the options say. What the graph's
// inputs and outputs are is found before: it does not change.
func (p *Prepared) precise(*runtime.Engine) error {
	if had := PrecisionOf(p.Model); had != nil {
		return fmt.Errorf("precision: the graph is converted to %s already: start from the one it was made from", had.Type)
	}
	if glob := p.Options.Precision.Unmatched(p.Model.Graph); glob != "" {
		return fmt.Errorf("--keep-fp32, --half: no node or operator type matches %q", glob)
	}
	a, err := analysis.Analyze(p.Model, analysis.Options{Dims: p.Options.Dims, Roles: p.Options.Roles})
	if err != nil {
		return err
	}
	o := *p.Options.Precision
	o.Dims = p.Options.Dims
	o.Roles = &precision.Roles{Loss: a.Roles.Loss, Grad: a.Roles.Grad, New: a.Roles.New}
	if o.Provider == "" {
		o.Provider = kernels.CPU
	}
	r, err := precision.Apply(p.Model, o)
	if err != nil {
		return err
	}
	if _, ours := p.Model.Metadata(RolesKey); !ours && p.Options.Roles == nil {
		p.Options.Roles = &a.Roles
	}
	p.Precise = r
	if err := SetJSON(p.Model, PrecisionKey, howPrecise(o, r)); err != nil {
		return err
	}
	report := r.Report
	for _, c := range r.Constants {
		report.Skipped = append(report.Skipped, rewrite.Skip{What: "constant " + c.Name, Why: c.Done})
	}
	p.Reports = append(p.Reports, report)
	return nil
}

// cpuEngine is the engine where ONNX Runtime's CPU provider can tell what it
// makes of the graph, and nil for one with kernels that only CUDA has: such a
// graph runs as it is written.
func (o *Options) cpuEngine(e *runtime.Engine) *runtime.Engine {
	if o.nativeHalf() {
		return nil
	}
	return e
}

// nativeHalf reports a graph with half kernels that only CUDA has.
func (o *Options) nativeHalf() bool {
	p := o.Precision
	return p != nil && p.Provider == kernels.CUDA && !p.Emulate && !p.StashOnly
}

// onCUDA reports a graph for the CUDA provider's kernels.
func (o *Options) onCUDA() bool { return o.CUDA || o.nativeHalf() }

// Plan runs a strategy and writes, in memory, the file that it leads to, under a
// budget for its predicted live peak in bytes (0: none); see PlanWithin.
func (p *Planner) Plan(strategy string, budget int64) (*Planned, error) {
	return p.PlanWithin(strategy, Budget{Live: budget})
}

// PlanWithin runs a strategy and writes, in memory, the file that it leads to.
// What is predicted of the file keeps the budget, or the error is a
// planner.InfeasibleError or a TotalError, and what comes with it misses the
// budget by least. Where values wait in half and some are
// computed again, casts that run early and casts that run when they are read
// are both tried: the first let float32 values die, the second bind no order.
func (p *Planner) PlanWithin(strategy string, budget Budget) (*Planned, error) {
	r, err := p.plan(strategy, budget)
	o := p.opts.Precision
	if o == nil || !o.StashOnly || strategy == "none" || err != nil && !unmet(err) || p.stopped() {
		return r, err
	}
	if p.turned == nil {
		turned, other := p.opts, *o
		other.Early = !o.Early
		turned.Precision = &other
		if p.turned, err = NewPlanner(p.engine, p.given, turned); err != nil {
			return nil, err
		}
	}
	other, otherErr := p.turned.plan(strategy, budget)
	switch {
	case otherErr != nil && err != nil:
		return r, err
	case otherErr != nil, err == nil && (budget.none() && r.Peak <= other.Peak || !budget.none() && r.overhead() <= other.overhead()):
		return r, nil
	}
	return other, nil
}

// unmet reports the error of a budget that no plan keeps.
func unmet(err error) bool {
	var live *planner.InfeasibleError
	var total *TotalError
	return errors.As(err, &live) || errors.As(err, &total)
}

// solveEither plans casts like all else. A strategy that searches starts once
// more from casts that run once, the problem pinned (nil without casts): a search
// that finds less among more choices is then no loss.
func solveEither(p, pinned *planner.Problem, strategy string, budget int64) (*planner.Plan, error) {
	plan, err := planner.Solve(p, strategy, budget)
	if pinned == nil || !Budgeted(strategy) {
		return plan, err
	}
	other, otherErr := planner.Solve(pinned, strategy, budget)
	var infeasible *planner.InfeasibleError
	switch {
	case otherErr != nil, err != nil && !errors.As(err, &infeasible):
		return plan, err
	case err != nil:
		return other, nil
	}
	a, err := planner.Judge(p, plan)
	if err != nil {
		return nil, err
	}
	b, err := planner.Judge(p, other)
	if err != nil {
		return nil, err
	}
	if budget > 0 && b.Overhead < a.Overhead || budget == 0 && b.Peak < a.Peak {
		return other, nil
	}
	return plan, nil
}

// castsOnce is the problem in which casts are not computed again, nil where
// there are none.
func castsOnce(a *analysis.Analysis) *planner.Problem {
	p := a.Problem
	ops := slices.Clone(p.Ops)
	found := false
	for i, op := range ops {
		if a.Nodes[i].MadeBy(precision.CastPass) && op.Type == "Cast" {
			ops[i].Recomputable, ops[i].Reason = false, "casts run once"
			found = true
		}
	}
	if !found {
		return nil
	}
	return p.WithOps(ops)
}
