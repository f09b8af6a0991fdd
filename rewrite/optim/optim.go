// Package optim puts the optimizer into a training graph: parameters, state and
// step scalars come in, their next values go out, in ordinary operators.
//
//	lr, step ──▶ scalars (float64 inside) ──┐
//	P.grad ─▶ [accumulate] ─▶ [clip] ───────┴─▶ P.m.new, P.v.new, P.new
//	P.m, P.v ───────────────────────────────▶
//	readers of P ──(empty slice)── barrier ─▶ the node that makes P.new
//
// The optimizers are rows of a table (table.go), their arithmetic PyTorch's where
// it has them, as is that of clip_grad_norm_ with its 1e-6. What depends on lr and step alone
// is computed once in float64 and rounded; clipping, averaging and bias
// correction are folded into those scalars, so that they cost no pass over the
// gradients. An update of n bytes needs 2n bytes beside the gradient at its
// worst moment: ONNX Runtime's elementwise kernels do not run in place.
//
// A parameter and its next value may be bound to the same memory: every reader
// of P is made to come before the node that writes P.new, by data (guard.go).
// A pass that adds readers of a parameter later, as recomputation does, calls
// Guard once more; it adds what is missing.
//
// Nodes are named remat/optim/P/STEP, for people. What a later pass needs to know of
// one stands in its metadata: its origin, and what of a factor changes nothing
// (hooks.go).
package optim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/control"
)

// prefix begins the name of every node that updates.
const prefix = "remat/optim/"

// Pass is what such a node notes as its origin, with the parameter that it updates.
const Pass = "optim"

// A Param is a parameter with its gradient; both float, of one static shape.
type Param struct {
	// Value is a graph input, Grad any value.
	Value, Grad *onnx.Value
}

// Options say how to update.
type Options struct {
	Kind Kind
	// Momentum, WeightDecay, Beta1, Beta2, Eps, RelativeStep, Scale and HiddenOnly are the
	// settings of the table, of which an optimizer reads those of its row.
	Momentum, WeightDecay, Beta1, Beta2, Eps, RelativeStep, Scale, HiddenOnly float64
	// NoDecay exempts parameters from weight decay.
	NoDecay []Exemption
	// ClipNorm bounds the norm that ClipBy names; 0 does not.
	ClipNorm float64
	// ClipBy says whose norm that is; "" is ClipGlobal.
	ClipBy Clip
	// Norm returns the norm of all gradients, of the mean of those that are accumulated
	// and before they are clipped, as the output NormOutput, float32 [].
	Norm bool
	// Accumulate makes N steps one update with the mean of their gradients:
	// state P.acc sums them, every step whose number N divides updates. 0 and 1
	// update always.
	Accumulate int64
	// Sums makes a graph that updates nothing: state P.acc sums the gradients of its
	// runs, and the model that Updates makes of the same options updates.
	Sums bool
	// KeepGrads leaves P.grad among the outputs.
	KeepGrads bool
	// Types infers new nodes' types; nil infers the model's first.
	Types build.Typer
}

// A Result is what Apply added.
type Result struct {
	// States are the inputs that hold optimizer state, of the types that the optimizer's row
	// says and named P.m or after another name of the row, sums of gradients, P.acc, and the
	// norm of the step before, clip_norm, float32 []; all begin as zeros.
	States []*onnx.Value
	// Next maps each input that has a next value to its output.
	Next map[*onnx.Value]*onnx.Value
	// Barriers is how many readers had to be led before an update.
	Barriers int
	// NoDecay are the parameters that Options.NoDecay exempted, Unmatched its patterns that
	// no parameter has.
	NoDecay, Unmatched []string
}

// An Exemption is of the parameters that it has, by their name and rank; Pattern is what
// it was written as.
type Exemption struct {
	Pattern string
	Has     func(name string, rank int) bool
}

func (e *Exemption) has(p *onnx.Value) bool { return e.Has(p.Name, len(p.Type.Shape)) }

// A ClashError names a value of the file whose name the optimizer needs.
type ClashError struct{ Name string }

func (e *ClashError) Error() string {
	return fmt.Sprintf("the file already has a value named %q, which the optimizer needs: rename it with --names MAP.json, or in the model", e.Name)
}

// Apply adds the update of every parameter to the model. With Kind None it adds
// the gradients as outputs only. Gradients are named P.grad, P being the
// parameter's name; the metadata entry remat.roles is kept true.
func Apply(m *onnx.Model, params []Param, o Options) (*Result, error) {
	a, err := begin(m, m, params, o)
	if err != nil {
		return nil, err
	}
	for _, e := range o.NoDecay {
		if !slices.ContainsFunc(params, func(p Param) bool { return e.has(p.Value) }) {
			a.res.Unmatched = append(a.res.Unmatched, e.Pattern)
		}
	}
	a.nameGradients(params)
	switch {
	case o.Kind == None:
	case o.Sums:
		a.sum(params)
	default:
		a.scalars(params)
		for _, p := range params {
			a.update(p)
		}
	}
	return a.finish(params)
}

// begin checks what is asked for, before anything is changed: updates in m of what is
// trained to lower the loss of a model, which may be the same.
func begin(m, loss *onnx.Model, params []Param, o Options) (*applier, error) {
	a := &applier{m: m, g: m.Graph, o: o, params: params, res: &Result{Next: map[*onnx.Value]*onnx.Value{}}, loss: loss, apart: m != loss}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("optimizer %s: %w", o.Kind, err)
	}
	if err := a.checkParams(params); err != nil {
		return nil, fmt.Errorf("optimizer %s: %w", o.Kind, err)
	}
	if o.Types == nil {
		types, err := infer.Model(m, infer.Options{})
		if err != nil {
			return nil, err
		}
		a.o.Types = types
	}
	a.b = build.New(a.g, a.o.Types, Pass)
	return a, nil
}

// finish puts what was made into the graph, and notes the roles.
func (a *applier) finish(params []Param) (*Result, error) {
	m, o := a.m, a.o
	if err := a.b.Err(); err != nil {
		return nil, fmt.Errorf("optimizer %s: %w", o.Kind, err)
	}
	var err error
	if a.b.Nodes, err = control.Lower(a.g, a.b.Nodes); err != nil {
		return nil, fmt.Errorf("optimizer %s: %w", o.Kind, err)
	}
	a.b.Flush()
	if o.Kind != None {
		if !o.KeepGrads && !a.apart {
			a.dropGradients(params)
		}
		a.g.RemoveDead() // a scalar that no parameter asked for
	}
	var refused []Refusal
	if a.res.Barriers, refused, err = Guard(m, a.res.Next); err != nil {
		return nil, fmt.Errorf("optimizer %s: %w", o.Kind, err)
	}
	if len(refused) > 0 {
		r := refused[0]
		return nil, fmt.Errorf("optimizer %s: %q cannot be updated in place: %s", o.Kind, r.Value, r.Why())
	}
	return a.res, a.writeRoles(params)
}

func (o *Options) check() error {
	if _, err := ParseKind(string(o.Kind)); err != nil {
		return err
	}
	if r := o.Kind.row(); r != nil {
		for _, d := range r.settings {
			if err := d.check(o); err != nil {
				return err
			}
		}
	}
	if o.WeightDecay > 0 && o.WeightDecay < 1e-12 {
		return fmt.Errorf("weight decay %v must be 0 or at least 1e-12", o.WeightDecay)
	}
	if !(o.ClipNorm >= 0 && o.ClipNorm <= 1e30) {
		return fmt.Errorf("clip norm %v must be between 0 and 1e30", o.ClipNorm)
	}
	if o.Accumulate < 0 {
		return fmt.Errorf("accumulate %d must not be negative", o.Accumulate)
	}
	_, err := ParseClip(string(o.ClipBy))
	return err
}

// applier is one run of Apply.
type applier struct {
	m   *onnx.Model
	g   *onnx.Graph
	b   *build.Builder
	o   Options
	res *Result
	s   scalars
	// apart: the graph has no gradients, only their sums.
	apart bool
	// loss is the model that computes the loss: m, unless the updates are apart.
	loss *onnx.Model
	// params are what is updated, hiddens which of them are matrices of hidden layers (muon.go).
	params  []Param
	hiddens map[string]bool
}

// checkParams refuses what cannot be updated, before anything is changed.
func (a *applier) checkParams(params []Param) error {
	var names []string
	if a.o.Kind != None && !a.o.Sums {
		names = append(names, "lr", "step")
		if a.apart {
			names = append(names, ShareInput)
		}
		if a.o.Norm {
			names = append(names, NormOutput)
		}
		if a.o.ClipNorm > 0 && a.o.ClipBy == ClipPrevious {
			names = append(names, normInput, normInput+".new")
		}
	}
	for _, p := range params {
		v := p.Value
		if v == nil || p.Grad == nil && !a.apart {
			return fmt.Errorf("a parameter or its gradient is missing")
		}
		if _, static := v.Type.Bytes(); !v.IsInput() || !v.Type.DType.IsFloat() || !static {
			return fmt.Errorf("parameter %q: %s is not a float input of fixed shape", v.Name, v.Type)
		}
		if old := step.GradientOf(a.g, v); old != nil && old != p.Grad {
			return &ClashError{old.Name}
		}
		for _, suffix := range a.stateSuffixes(v) {
			names = append(names, v.Name+suffix, v.Name+suffix+".new")
		}
		if a.o.Kind != None && !a.o.Sums {
			names = append(names, v.Name+".new")
		}
	}
	for _, name := range names {
		if a.g.Value(name) != nil {
			return &ClashError{name}
		}
	}
	return nil
}

// stateSuffixes are those of the state tensors of a parameter: ".m".
func (a *applier) stateSuffixes(p *onnx.Value) []string {
	var s []string
	if a.o.Sums && a.o.Kind != None {
		return []string{"." + accState}
	}
	if r := a.o.Kind.row(); r != nil {
		for _, h := range r.state(a, p) {
			s = append(s, "."+h.name)
		}
		if a.o.Accumulate > 1 || a.apart {
			s = append(s, "."+accState)
		}
	}
	return s
}

// nameGradients gives every gradient its name and a place among the outputs; a
// value that has a name to keep gets a copy.
func (a *applier) nameGradients(params []Param) {
	for i := range params {
		p := &params[i]
		name := p.Value.Name + step.GradSuffix
		if p.Grad.Name != name {
			if p.Grad.Producer == nil || p.Grad.IsOutput() {
				a.b.Scope = p.Value.Name
				p.Grad = a.b.Op("Identity", build.In(p.Grad))
				if p.Grad == nil {
					return
				}
			}
			a.g.Rename(p.Grad, name)
		}
		if !p.Grad.IsOutput() {
			a.g.AddOutput(p.Grad)
		}
	}
}

// dropGradients takes the gradients off the outputs.
func (a *applier) dropGradients(params []Param) {
	grads := map[*onnx.Value]bool{}
	for _, p := range params {
		grads[p.Grad] = true
	}
	a.g.RemoveOutputs(func(v *onnx.Value) bool { return grads[v] })
}

func (a *applier) writeRoles(params []Param) error {
	r, _, err := step.RolesOf(a.m, nil)
	if err != nil {
		return err
	}
	r.Grad = map[string]string{}
	maps.DeleteFunc(r.New, func(in, _ string) bool { return !slices.Contains(r.Buffers, in) })
	if r.New == nil {
		r.New = map[string]string{}
	}
	for _, p := range params {
		switch {
		case a.apart:
		case a.o.Sums && a.o.Kind != None:
			r.Grad[p.Value.Name] = a.g.Value(p.Value.Name + "." + accState + ".new").Name
		case p.Grad.IsOutput():
			r.Grad[p.Value.Name] = p.Grad.Name
		}
	}
	for in, out := range a.res.Next {
		r.New[in.Name] = out.Name
	}
	return r.Write(a.m)
}
