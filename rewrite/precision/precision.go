// Package precision makes graphs compute and keep values in a half type:
// float16 or bfloat16.
//
//	decide.go     which nodes run in half: by class (onnx/traits), by what
//	              they read and who reads them, by the caller's globs
//	scale.go      loss scaling: scale where the gradients begin, unscale where
//	              they end, found_inf, updates skipped (homogeneous.go finds
//	              the place)
//	gradients.go  what waits for its update
//	masters.go    half copies of masters, a side each
//	extremes.go   backward takes the extremes that it compares with anew
//	cast.go       half copies where they are used, of masters, of constants,
//	              of what waits for backward
//
// The masters stay float32 inputs; half copies of them are Cast nodes where
// they are used, so that a plan may run them again instead of keeping them.
// Outputs keep their names and types.
//
// Emulation computes in float32 between casts to the half type at the same
// places. ONNX Runtime 1.31.1 leaves a pair of casts that a file spells out
// alone at every level (it removes only those that it inserted itself), so the
// rounding holds.
//
// Weakness: bodies of control flow stay as they are, and so do their inputs.
package precision

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// Options say how to convert.
type Options struct {
	// To is onnx.Float16 or onnx.BFloat16.
	To onnx.DType
	// StashOnly computes in float32; only what waits from forward for backward
	// waits in half.
	StashOnly bool
	// Early makes the casts of what waits run in forward, by data, so that the
	// float32 values die there; for plans that compute nothing again. Where
	// most values are computed again, it only binds the order.
	Early bool
	// Emulate computes in float32 on values rounded to half.
	Emulate bool
	// KeepFP32 and Half are globs over node names and operator types that
	// override the choice; a star spans slashes. KeepFP32 wins.
	KeepFP32, Half []string
	// Provider is the execution provider whose kernels must do: nodes for
	// which it has none in half stay in float32. The CPU's run float16 nodes
	// through casts that ONNX Runtime inserts; what it cannot run in bfloat16
	// is emulated.
	Provider kernels.Provider
	// Dims are numbers for free dimensions, by symbol.
	Dims map[string]int64
	// Roles overrides the metadata entry step.RolesKey.
	Roles *step.Roles
	// Overflow says what a gradient that overflows keeps from being updated. Apply
	// takes "" and OverflowAuto for OverflowAll.
	Overflow Overflow
	// NoScale leaves loss scaling out; bfloat16 needs none.
	NoScale bool
}

// An Overflow says which parameters a gradient that is not finite leaves as they are.
type Overflow string

// What is left as it is: everything, the step, or the gradient's own parameter. Auto
// leaves the choice to whoever plans.
const (
	OverflowAuto      Overflow = "auto"
	OverflowAll       Overflow = "all"
	OverflowParameter Overflow = "parameter"
)

// Auto reports that the choice is left open.
func (o Overflow) Auto() bool { return o == "" || o == OverflowAuto }

// ParseOverflow reads auto, all or parameter.
func ParseOverflow(s string) (Overflow, error) {
	switch o := Overflow(s); o {
	case OverflowAuto, OverflowAll, OverflowParameter:
		return o, nil
	}
	return OverflowAuto, fmt.Errorf("%q: want %s, %s or %s", s, OverflowAuto, OverflowAll, OverflowParameter)
}

// CastPass and scalePass are what this pass's nodes note as their origin: those that
// compute in half, and those that scale the loss.
const CastPass, scalePass = "cast", "scale"

// A Constant is one that the half type cannot hold, and what was done.
type Constant struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // the first such element
	Done  string  `json:"done"`
}

// A Report says what became of the graph: Requested counts nodes that compute
// in float32 where half would do, Applied those that now run in half.
type Report struct {
	rewrite.Report
	// Casts is the number of Cast nodes added, Stashed of values that wait for
	// backward in half, Emulated of nodes between casts.
	Casts    int `json:"casts"`
	Stashed  int `json:"stashed"`
	Emulated int `json:"emulated"`
	// Scaled says that the graph has loss_scale and found_inf now.
	Scaled    bool       `json:"scaled"`
	Constants []Constant `json:"constants,omitempty"`
}

// An Error is a graph that cannot be converted.
type Error struct{ Reason string }

func (e *Error) Error() string { return "precision: " + e.Reason }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Apply converts the model in place. After an error it is in an undefined
// state, except for an *Error, which comes before any change.
func Apply(m *onnx.Model, o Options) (*Report, error) {
	p, err := newTyped(m, o)
	if err != nil {
		return nil, err
	}
	if err := p.scale(); err != nil {
		return nil, fmt.Errorf("precision: loss scaling: %w", err)
	}
	p.extremes()
	p.waiting()
	p.decide()
	p.report.Skipped = append(p.report.Skipped, p.remarks...)
	if err := p.zeros(); err != nil {
		return nil, fmt.Errorf("precision: %w", err)
	}
	if err := p.convert(); err != nil {
		return nil, fmt.Errorf("precision: %w", err)
	}
	if err := m.Graph.SortTopologically(); err != nil {
		return nil, fmt.Errorf("precision: %w", err)
	}
	m.Graph.RemoveDead()
	if _, err := infer.Model(m, infer.Options{Dims: o.Dims}); err != nil {
		return nil, fmt.Errorf("precision: %w", err)
	}
	return p.report, m.Check()
}

// pass is one run of Apply.
type pass struct {
	m       *onnx.Model
	g       *onnx.Graph
	b       *build.Builder
	o       Options
	roles   step.Roles
	report  *Report
	remarks []rewrite.Skip // of what was not asked for

	// forward is what the loss needs, and not what it only waits for; nil without
	// gradients.
	forward *step.Slice
	grads   []gradient
	// updated are the gradients that package optim's updates and sums begin with.
	updated map[*onnx.Value]*onnx.Value
	// forced nodes stay float32 for the reason given.
	forced map[*onnx.Node]string

	verdicts map[*onnx.Node]verdict
	angle    map[*onnx.Value]bool // float32 for the sake of a sine (angles.go)
	// inHalf are the values that are of the half type, or rounded to it.
	inHalf map[*onnx.Value]bool
	halves map[*onnx.Value]*onnx.Value
	fulls  map[*onnx.Value]*onnx.Value
	unfits map[*onnx.Value]*fit
	// waits are float32 values of forward whose half copies wait for backward.
	waits map[*onnx.Value]bool
	// late are gradients that wait for their update in half, with their parameters;
	// readBefore is the node of the update that reads one before another node does.
	late       map[*onnx.Value]*onnx.Value
	readBefore map[reading]*onnx.Node
	// zeroes are nodes that make a gradient zero in a skipped step, with what says so;
	// diagonals are those of Trilu, by parameter.
	zeroes    map[*onnx.Node]*onnx.Value
	diagonals map[*onnx.Value]*onnx.Value
	// inBackward are views of masters that wait for backward to begin, before what
	// that needs.
	inBackward map[*onnx.Value]*onnx.Value
	before     *step.Slice
	// asked counts the nodes whose degrees were: the work of finding what to scale.
	asked int
}

// needed is how a graph side is followed: a node that merely has to come earlier
// is no part of it.
const needed = step.Data | step.Shape

// A gradient is a parameter with its gradient.
type gradient struct{ param, grad *onnx.Value }

// newTyped types the graph, and refuses what cannot be converted.
func newTyped(m *onnx.Model, o Options) (*pass, error) {
	if o.To != onnx.Float16 && o.To != onnx.BFloat16 {
		return nil, refuse("%s is not a half type: want float16 or bfloat16", o.To)
	}
	types, err := infer.Model(m, infer.Options{Dims: o.Dims})
	if err != nil {
		return nil, err
	}
	p, err := newPass(m, o, types)
	if err != nil {
		return nil, err
	}
	return p, p.check()
}

func newPass(m *onnx.Model, o Options, types build.Typer) (*pass, error) {
	p := &pass{
		m: m, g: m.Graph, b: build.New(m.Graph, types, CastPass), o: o,
		report:     &Report{Report: rewrite.Report{Pass: "precision"}},
		forced:     map[*onnx.Node]string{},
		verdicts:   map[*onnx.Node]verdict{},
		angle:      map[*onnx.Value]bool{},
		inHalf:     map[*onnx.Value]bool{},
		halves:     map[*onnx.Value]*onnx.Value{},
		fulls:      map[*onnx.Value]*onnx.Value{},
		unfits:     map[*onnx.Value]*fit{},
		waits:      map[*onnx.Value]bool{},
		late:       map[*onnx.Value]*onnx.Value{},
		readBefore: map[reading]*onnx.Node{},
		zeroes:     map[*onnx.Node]*onnx.Value{},

		diagonals:  map[*onnx.Value]*onnx.Value{},
		inBackward: map[*onnx.Value]*onnx.Value{},
	}
	p.g.NameNodes()
	var err error
	if p.roles, _, err = step.RolesOf(m, o.Roles); err != nil {
		return nil, err
	}
	p.findGradients()
	if loss := p.g.Value(p.roles.Loss); loss != nil && (len(p.grads) > 0 || p.roles.Updates()) {
		p.forward = step.DependenciesOf(p.g).Backward(needed, loss)
	}
	return p, nil
}

// findGradients lists the gradients: outputs by role, and, where package optim made an
// update or a sum of them, values named P.grad, which it took off the outputs. What
// another optimizer reads could not be unscaled.
func (p *pass) findGradients() {
	p.updated = optim.Gradients(p.g, p.roles.New)
	for _, v := range p.g.Inputs {
		grad := p.g.Value(p.roles.Grad[v.Name])
		if grad == nil || grad.Producer != nil && grad.Producer.MadeBy(optim.Pass) {
			grad = p.updated[v]
		}
		if grad != nil && grad.Producer != nil && grad.Type.DType.IsFloat() {
			p.grads = append(p.grads, gradient{v, grad})
		}
	}
}

func (p *pass) skip(what, format string, args ...any) {
	p.report.Skipped = append(p.report.Skipped, rewrite.Skip{What: what, Why: fmt.Sprintf(format, args...)})
}

// remark says what was not asked for, after all that was and is left out.
func (p *pass) remark(what, format string, args ...any) {
	p.remarks = append(p.remarks, rewrite.Skip{What: what, Why: fmt.Sprintf(format, args...)})
}

// check refuses what is there already, before anything is changed.
func (p *pass) check() error {
	floats, halves, doubles := 0, 0, 0
	for _, n := range p.g.Nodes {
		for _, o := range n.Returns() {
			switch o.Type.DType {
			case onnx.Float32:
				floats++
			case onnx.Float16, onnx.BFloat16:
				halves++
			case onnx.Float64:
				doubles++
			}
		}
	}
	if floats == 0 && halves > 0 {
		return refuse("the graph already computes in a half type: leave --precision out")
	}
	if floats == 0 {
		return refuse("the graph has no float32 to convert")
	}
	for _, g := range p.grads {
		// In a half type the quotient by the scale would lose what the scale saved.
		if d := g.grad.Type.DType; d != onnx.Float32 && p.o.Scales() {
			return refuse("loss scaling needs float32 gradients, and that of %q is %s: derive the graph with an optimizer, which trains half parameters in float32, or export the model in float32; bf16 needs no scaling", g.param.Name, d)
		}
	}
	if halves > 0 {
		p.remark("half values", "%d values are of a half type already and stay as they are", halves)
	}
	if doubles > 0 {
		p.remark("float64 values", "%d values are float64 and stay as they are", doubles)
	}
	return nil
}
