package pipeline

// Precision comes after normalization, so that ONNX Runtime's optimizer does
// not see the casts, and before analysis, so that the planner does: a cast is
// cheap to run again, and a plan that keeps the smaller of its two sides finds
// that by itself.

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
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

// ParseHalf reads the name of a half type; Undefined for fp32 and "".
func ParseHalf(name string) (onnx.DType, error) {
	switch name {
	case "", "fp32":
		return onnx.Undefined, nil
	case "fp16":
		return onnx.Float16, nil
	case "bf16":
		return onnx.BFloat16, nil
	}
	return onnx.Undefined, fmt.Errorf("%q: want fp32, fp16 or bf16", name)
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
	if has, err := m.JSON(PrecisionKey, &p); !has || err != nil {
		return nil
	}
	return &p
}

// unscaled says why the loss is not scaled though the type wants it, "" where it is or
// need not be.
func (f *File) unscaled() string {
	for _, r := range f.Reports {
		for _, s := range r.Skipped {
			if s.What == precision.ScaleInput {
				return s.Why
			}
		}
	}
	return ""
}

// precise converts the prepared model as the options say. What the graph's
// inputs and outputs are is found before: it does not change.
func (p *preparation) precise(*runtime.Engine) error {
	if had := PrecisionOf(p.Model); had != nil {
		return fmt.Errorf("precision: the graph was already converted to %s: start from its source", had.Type)
	}
	if glob := p.Options.Precision.Unmatched(p.Model.Graph); glob != "" {
		return fmt.Errorf("--keep-fp32, --half: no node or operator type matches %q", glob)
	}
	o, err := p.conversion()
	if err != nil {
		return err
	}
	r, err := precision.Apply(p.Model, o)
	if err != nil {
		return err
	}
	p.noteRoles(o)
	if p.unscaled != "" {
		r.Report.Skipped = slices.Insert(r.Report.Skipped, 0, rewrite.Skip{What: precision.ScaleInput, Why: p.unscaled})
	}
	if err := p.Model.SetJSON(PrecisionKey, howPrecise(o, r)); err != nil {
		return err
	}
	report := r.Report
	for _, c := range r.Constants {
		report.Skipped = append(report.Skipped, rewrite.Skip{What: "constant " + c.Name, Why: c.Done})
	}
	p.Reports = append(p.Reports, report)
	return nil
}

// conversion are the options of the conversion of the model as it stands.
func (p *preparation) conversion() (precision.Options, error) {
	a, err := analysis.Analyze(p.Model, analysis.Options{Dims: p.Options.Dims, Roles: p.roles})
	if err != nil {
		return precision.Options{}, err
	}
	o := *p.Options.Precision
	o.Dims = p.Options.Dims
	o.Roles = &a.Roles
	o.Provider = cmp.Or(o.Provider, kernels.CPU)
	o.NoScale = o.NoScale || p.unscaled != ""
	return o, nil
}

// scale scales the loss ahead of the conversion, and of what divides the step: of a step in
// parts, the sum of their gradients could be scaled, too, and those of a part be lost before.
func (p *preparation) scale(*runtime.Engine) error {
	o, err := p.conversion()
	if err != nil {
		return err
	}
	p.noteRoles(o)
	p.unscaled, err = precision.ScaleLoss(p.Model, o)
	return err
}

// noteRoles keeps those that were found in a graph that does not name them.
func (p *preparation) noteRoles(o precision.Options) {
	if _, ours := p.Model.Metadata(step.RolesKey); !ours && p.roles == nil {
		p.roles = o.Roles
	}
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

// provider is whose kernels the graph is planned and predicted for.
func (o *Options) provider() *step.Provider {
	if o.CUDA || o.nativeHalf() {
		return step.CUDA
	}
	return step.CPU
}

// castsOnce is the problem in which casts are not computed again, nil where
// there are none.
func castsOnce(a *analysis.Analysis) *planner.Problem {
	p := a.Problem
	ops := slices.Clone(p.Ops)
	found := false
	for i, op := range ops {
		if a.Nodes[i].MadeBy(precision.CastPass) && op.Type == "Cast" {
			ops[i].Recomputable, ops[i].Reason = false, "casts run only once"
			found = true
		}
	}
	if !found {
		return nil
	}
	return p.WithOps(ops)
}
