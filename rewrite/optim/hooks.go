package optim

// What loss scaling changes in updates that are in the graph already. A node of an
// update says so itself: its origin names the parameter and, of the norms that clip,
// the step; a product names the factor that changes nothing.
//
//	Unscale  gradients arrive too large by a factor: it goes into the scalars
//	         that they are multiplied with anyway, and into their norm
//	Skip     where a bool is true a step changes nothing: the gradient becomes
//	         zero (a product with zero would keep NaN), the old state and the
//	         parameter are kept by neutral scalars, so their bits stay; so is
//	         the norm that clips the next step
//
// Skip costs a Where on each gradient, which needs three buffers of its size
// for a moment, and nothing else.
//
// Weakness: a sum of gradients (P.acc) that is -0 becomes 0 in a skipped step,
// which is the same number; only x - 0 leaves the sign of x, x + 0 does not.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

// neutralKey is the entry of a product's metadata that says what its second factor
// must be for the product to change nothing.
const neutralKey = "remat.neutral"

func setNeutral(n *onnx.Node, v float64) {
	n.SetMetadata(neutralKey, strconv.FormatFloat(v, 'g', -1, 64))
}

// neutral is what setNeutral noted.
func neutral(n *onnx.Node) (float64, bool) {
	v, err := strconv.ParseFloat(n.Metadata(neutralKey), 64)
	return v, err == nil && n.Is("Mul") && len(n.Inputs) == 2
}

// hook edits the updates of one model.
type hook struct {
	g     *onnx.Graph
	b     *build.Builder
	cache map[string]*onnx.Value
	// normOf are the norms by parameter, "" for that of all.
	normOf map[string][]*onnx.Value
}

func newHook(m *onnx.Model, types build.Typer) *hook {
	return &hook{g: m.Graph, b: build.New(m.Graph, types, Pass), cache: map[string]*onnx.Value{}}
}

// Unscale multiplies every gradient that an update reads by factor, a float32
// scalar. Outputs P.grad stay as they are. Types may be nil.
func Unscale(m *onnx.Model, factor *onnx.Value, types build.Typer) error {
	h := newHook(m, types)
	var norms []*onnx.Value
	h.eachReader(func(p string, grad *onnx.Value, n *onnx.Node, at int) {
		switch {
		case n.Origin().Step == squareStep:
			for _, v := range h.norms(p) {
				if !slices.Contains(norms, v) {
					norms = append(norms, v)
				}
			}
		case n.Is("Mul") && at == 0:
			n.SetInput(1, h.scalar("unscale", "Mul", n.In(1), factor))
		default:
			h.b.Scope = p
			v := h.scalar(p+"/unscaled", "Mul", grad, factor)
			h.b.Scope = ""
			n.SetInput(at, v)
			if v != nil { // the factor may be infinite
				setNeutral(v.Producer, 0)
			}
		}
	})
	for _, norm := range norms {
		readers := slices.Clone(norm.Uses())
		scaled := h.scalar("norm_unscaled", "Mul", norm, factor)
		for _, u := range readers {
			u.Node.SetInput(u.Index, scaled)
		}
	}
	return h.finish(m)
}

// A Skips says when updates leave everything as it is.
type Skips struct {
	// All is a bool scalar for what all parameters share, and for those that Of does
	// not know.
	All *onnx.Value
	// Of are bool scalars by the parameters' names; nil: All counts for each.
	Of map[string]*onnx.Value
}

func (s *Skips) of(param string) *onnx.Value {
	if v := s.Of[param]; v != nil {
		return v
	}
	return s.All
}

// Skip makes every update leave parameter and state as they are where skips says so.
// Of gradients that are being summed, only those of the step are left out; an update
// that was due comes with the next one. Types may be nil.
func Skip(m *onnx.Model, skips Skips, types build.Typer) error {
	h := newHook(m, types)
	readers := map[*onnx.Value][]string{} // parameters that a gradient updates
	h.eachReader(func(p string, grad *onnx.Value, n *onnx.Node, at int) {
		if n.Origin().Step != nextStep(accState) { // which adds zero
			readers[grad] = append(readers[grad], p)
		}
		n.SetInput(at, h.selected(p+"/finite", skips.of(p), 0, grad))
	})
	said := map[string]bool{} // parameters of which a product says what is neutral
	for _, n := range slices.Clone(m.Graph.Nodes) {
		o := n.Origin()
		if v, ok := neutral(n); ok {
			n.SetInput(1, h.selected("unless_skipped", skips.of(o.Of), v, n.In(1)))
			said[o.Of] = true
		}
		if o.Pass == Pass && o.Step == keptStep && n.Is("Where") { // of zeros: the norm before stays
			n.SetInput(1, h.made("norm_unless_skipped", "Where", n.In(1).Type, build.In(skips.All, n.In(2), n.In(1))))
		}
	}
	var mute []string
	for _, names := range readers { // of which equal nodes were merged
		if !slices.ContainsFunc(names, func(p string) bool { return said[p] }) {
			mute = append(mute, names...)
		}
	}
	if len(mute) > 0 {
		return fmt.Errorf("the update of %q does not say how to skip a step: derive the training graph again", slices.Min(mute))
	}
	return h.finish(m)
}

// NeedsAll reports updates that begin with the norm of all gradients of the step.
func NeedsAll(m *onnx.Model) bool {
	is := func(step string) bool {
		return slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool {
			return n.Origin() == onnx.Origin{Pass: Pass, Step: step}
		})
	}
	return is(normStep) && !is(keptStep)
}

// The steps of clipping that loss scaling asks for.
const (
	squareStep = "square" // reads a gradient for its norm
	normStep   = "norm"
	watchStep  = "watched norm" // of all, which clips nothing
	keptStep   = "kept norm"    // is the next step's norm before
	rowsStep   = "squares"      // joins the squares of all gradients
)

// momentState is the state that averages gradients, accState their sum up to an update.
const momentState, accState = "m", "acc"

// nextStep makes the next value of a state, of the parameter where that is "".
func nextStep(state string) string {
	if state == "" {
		return "next"
	}
	return "next." + state
}

// Moments are the outputs that are next averages of gradients, by name. A pass that makes
// one in another way keeps the step.
func Moments(g *onnx.Graph) map[string]bool {
	moments := map[string]bool{}
	for _, v := range g.Outputs {
		if v.Producer != nil && v.Producer.Origin().Step == nextStep(momentState) {
			moments[v.Name] = true
		}
	}
	return moments
}

// sumStep is a sum that an update takes over what it made of its gradient.
const sumStep = "sum"

// IsSum reports such a sum, or that of a gradient's squares for a norm: its summands may be
// added in parts.
func IsSum(n *onnx.Node) bool {
	o := n.Origin()
	return o.Pass == Pass && (o.Step == sumStep || o.Step == squareStep)
}

// norms are those that the gradient of the parameter p is part of: that of all, and
// its own.
func (h *hook) norms(p string) []*onnx.Value {
	if h.normOf == nil {
		h.normOf = map[string][]*onnx.Value{}
		for _, n := range h.g.Nodes {
			if o := n.Origin(); o.Pass == Pass && (o.Step == normStep || o.Step == watchStep) && n.Out(0) != nil {
				h.normOf[o.Of] = append(h.normOf[o.Of], n.Out(0))
			}
		}
	}
	return append(slices.Clone(h.normOf[""]), h.normOf[p]...)
}

// IsUpdate reports a node of the update that Apply made for the parameter p.
func IsUpdate(n *onnx.Node, p string) bool {
	o := n.Origin()
	return o.Pass == Pass && o.Of == p
}

// Gradients are those that the updates of a graph begin with, or its sums of gradients, by
// parameter; next are the outputs that inputs become. A gradient bears the name P.grad, and
// is that of other parameters too where equal gradients were merged, as ONNX Runtime does.
func Gradients(g *onnx.Graph, next map[string]string) map[*onnx.Value]*onnx.Value {
	gradients, named := map[*onnx.Value]*onnx.Value{}, map[*onnx.Value]bool{}
	for _, p := range g.Inputs {
		grad := step.GradientOf(g, p)
		if grad == nil {
			continue
		}
		named[grad] = true
		if slices.ContainsFunc(grad.Uses(), func(u onnx.Use) bool { return IsUpdate(u.Node, p.Name) }) {
			gradients[p] = grad
		}
	}
	for _, p := range g.Inputs {
		if gradients[p] != nil {
			continue
		}
		for _, old := range []string{p.Name, p.Name + "." + accState} {
			v := g.Value(next[old])
			if v == nil || v.Producer == nil || !IsUpdate(v.Producer, p.Name) { // state is no parameter
				continue
			}
			if grad := begunWith(v, named, map[*onnx.Value]bool{}); grad != nil {
				gradients[p] = grad
				break
			}
		}
	}
	return gradients
}

// Apart gives gradients that a scatter adds to their sums right away (rewrite.ScatterInto, in
// this preparation or in the one that wrote the file) values of their own again, P.grad: loss
// scaling unscales each before it is summed up, and leaves it out where it is not finite. It
// returns how many.
func Apart(m *onnx.Model) (int, error) {
	g, count := m.Graph, 0
	b, backward := build.New(g, nil, Pass), build.New(g, nil, "grad")
	for _, p := range g.Inputs {
		acc := g.Value(p.Name + "." + accState)
		if acc == nil || !acc.IsInput() || step.GradientOf(g, p) != nil {
			continue
		}
		dims, ok := acc.Type.Shape.Ints()
		for _, u := range slices.Clone(acc.Uses()) {
			n := u.Node
			if n == nil || u.Index != 0 || !ok || !n.Is("ScatterElements", "ScatterND") || n.Str("reduction", "none") != "add" {
				continue
			}
			sum := n.Outputs[0]
			backward.Scope, b.Scope = p.Name+"/zeros", p.Name
			zeros := backward.Op("Expand", build.In(backward.Scalar(acc.Type.DType, 0), backward.Ints(dims...)))
			added := b.Op("Add", build.In(acc, sum))
			if err := cmp.Or(backward.Err(), b.Err()); err != nil {
				return 0, err
			}
			zeros.Type, added.Type = sum.Type, sum.Type
			n.SetInput(0, zeros)
			g.TakeOver(sum, added)
			added.Producer.SetInput(1, sum)
			g.Rename(sum, p.Name+step.GradSuffix)
			count++
			break
		}
	}
	if count == 0 {
		return 0, nil
	}
	backward.Flush()
	b.Flush()
	return count, g.SortTopologically()
}

// begunWith is the gradient that the update of a parameter makes v of, nil for none.
func begunWith(v *onnx.Value, named, seen map[*onnx.Value]bool) *onnx.Value {
	switch {
	case named[v]:
		return v
	case v == nil || seen[v] || v.Producer == nil:
		return nil
	}
	seen[v] = true
	read := v.Producer.Inputs
	switch n := v.Producer; {
	case control.Is(n):
		read = read[:1]
	case !updates(n) && !n.Is("Cast"): // a gradient may wait in a half type
		return nil
	}
	for _, in := range read {
		if grad := begunWith(in, named, seen); grad != nil {
			return grad
		}
	}
	return nil
}

// updates reports a node of the update of a parameter.
func updates(n *onnx.Node) bool {
	o := n.Origin()
	return o.Pass == Pass && o.Of != ""
}

// eachReader calls f for every place where an update reads a gradient, with the name of
// the parameter that is updated.
func (h *hook) eachReader(f func(p string, grad *onnx.Value, n *onnx.Node, at int)) {
	for _, in := range h.g.Inputs {
		grad := step.GradientOf(h.g, in)
		if grad == nil {
			continue
		}
		for _, u := range slices.Clone(grad.Uses()) {
			if updates(u.Node) {
				p := u.Node.Origin().Of
				h.b.Scope = p // what is made for it is part of this update
				f(p, grad, u.Node, u.Index)
			}
		}
		h.b.Scope = ""
	}
}

// scalar makes x·factor once for each x.
func (h *hook) scalar(what, op string, x, factor *onnx.Value) *onnx.Value {
	if d := x.Type.DType; d != onnx.Float32 {
		factor = h.once("factor "+d.String(), func() *onnx.Value {
			return h.made("factor", "Cast", onnx.TensorOf(d, onnx.StaticShape()), build.In(factor), to(d))
		})
	}
	return h.once(op+x.Name, func() *onnx.Value { return h.made(what, op, x.Type, build.In(x, factor)) })
}

// selected makes Where(skip, v, x) once for each v and x.
func (h *hook) selected(what string, skip *onnx.Value, v float64, x *onnx.Value) *onnx.Value {
	return h.once(fmt.Sprint(v, " ", x.Name, " ", skip.Name), func() *onnx.Value {
		return h.made(what, "Where", x.Type, build.In(skip, h.b.Scalar(x.Type.DType, v), x))
	})
}

func (h *hook) once(key string, make func() *onnx.Value) *onnx.Value {
	if h.cache[key] == nil {
		h.cache[key] = make()
	}
	return h.cache[key]
}

func (h *hook) made(what, op string, t onnx.Type, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	v := h.b.NodeNamed("", op, prefix+what, in, []string{prefix + what}, attrs...)[0]
	if v != nil {
		v.Type = t
	}
	return v
}

func (h *hook) finish(m *onnx.Model) error {
	if err := h.b.Err(); err != nil {
		return err
	}
	h.b.Flush()
	return m.Graph.SortTopologically()
}
