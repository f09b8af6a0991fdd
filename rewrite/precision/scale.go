package precision

// Loss scaling inside the graph:
//
//	loss_scale ─┬─▶ Mul(c, ·), of a value or a few: every gradient is larger by it (homogeneous.go)
//	            └─▶ Reciprocal ─▶ Mul(P.grad, ·) in float32, or, where an
//	                optimizer reads the gradients, into its scalars
//	P.grad … ─▶ ReduceSum each ─▶ Concat ─▶ ReduceSum ─▶ ÷scale ┐
//	loss_scale ─▶ Log ─────────────────────────────────────────┴▶ Add ─▶ ·0 ─▶ IsNaN = found_inf
//	found_inf ─▶ the optimizer's updates keep what they have (optim.Skip)
//
// So no update begins before the last gradient is there. Options.Overflow can have
// each update ask its own gradient's sum alone: then none waits, and a step that
// overflows changes the parameters whose gradients did not. A gradient that its update
// computes in slices, and never whole, is summed slice by slice before (ScaleLoss).
//
// A sum is finite if and only if every element is: infinities of both signs make a NaN, and the
// sum is of gradients divided by the scale, which leaves float32's range only
// where an element nearly does. On CUDA a sum over everything borrows nothing; one of
// absolute values goes to cuDNN, and borrows as much as the gradient. A scale has a finite logarithm if and only if
// it is finite and above zero; with any other the gradients say nothing (at 0
// they are all 0, and divided by it NaN), so the step counts as one that
// overflowed.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// Names of the input and the output that the runtime knows.
const (
	ScaleInput  = "loss_scale"
	FoundOutput = "found_inf"
)

// Scales reports options under which the loss is scaled where the graph allows it;
// nil are those of float32.
func (o *Options) Scales() bool {
	return o != nil && o.To == onnx.Float16 && !o.NoScale && !o.StashOnly
}

// scale adds loss scaling where the type needs it and the graph allows it.
func (p *pass) scale() error {
	if !p.o.Scales() || p.forward == nil {
		return nil
	}
	if len(p.grads) == 0 {
		p.unscaled("the gradients of this graph are unknown: name them with --roles, or use bf16")
		return nil
	}
	if p.isScaled() {
		p.keepScaled()
		return nil
	}
	if p.inRows() {
		p.unscaled("updates are in slices of rows already, and their gradients cannot be checked as a whole: give the graph without them, with --update-rows, or use bf16")
		return nil
	}
	if p.g.Value(ScaleInput) != nil || p.g.Value(FoundOutput) != nil {
		p.unscaled("the graph already has a value of that name")
		return nil
	}
	if name := p.foreignUpdate(); name != "" {
		p.unscaled(fmt.Sprintf("a step that overflows would not be skipped: the update of %q is not remat's: give the graph without updates and add them with remat, or use bf16", name))
		return nil
	}
	if name := p.unknownGradient(); name != "" {
		p.unscaled(fmt.Sprintf("the update of %q does not begin with the value that is named as its gradient, as where another tool saved the graph: derive it again, or use bf16", name))
		return nil
	}
	places, beside := p.scalePlaces()
	if len(places) == 0 {
		p.unscaled("no values carry the gradient of the loss alone: use bf16")
		return nil
	}
	backward := map[*onnx.Node]bool{}
	for _, n := range p.backward() {
		backward[n] = true
	}
	if slices.ContainsFunc(p.leadTo(places, backward), inParts) { // what these lose in a half type is lost before the sum is scaled
		p.unscaled("the step is in parts already, and only the sum of their gradients could be scaled: give the graph without them, with --micro-batches or --chunk-loss, or use bf16")
		return nil
	}
	scale := p.g.AddInput(ScaleInput, onnx.TensorOf(onnx.Float32, onnx.StaticShape()))
	for _, c := range places {
		p.scaleAt(c, scale)
	}
	inverse := p.op("remat/scale/inverse", "Reciprocal", build.In(scale))
	for _, v := range beside {
		p.unscale(v, inverse, nil)
	}
	// An optimizer unscales all that it reads or nothing.
	byOptimizer := !slices.ContainsFunc(p.grads, func(g gradient) bool { return g.grad.IsOutput() })
	if !byOptimizer {
		p.unscaleEach(inverse, func(n *onnx.Node) bool { return !backward[n] })
	}
	sums := p.sums()
	total := p.total(sums)
	if byOptimizer {
		total = p.op("remat/scale/total_unscaled", "Mul", build.In(total, inverse))
	}
	log := p.op("remat/scale/log", "Log", build.In(scale))
	skips := optim.Skips{All: p.foundInf(total, log)}
	if p.alone() {
		skips.Of = p.foundInEach(sums, inverse, log, byOptimizer)
	}
	if p.b.Err() != nil {
		return p.b.Err()
	}
	p.b.Flush()
	return p.update(inverse, skips, byOptimizer)
}

// foreignUpdate is what the graph updates from gradients in a way that package optim did not
// write, "" where there is nothing.
func (p *pass) foreignUpdate() string {
	backward := p.backward()
	var made []*onnx.Value
	for _, n := range backward {
		made = append(made, n.Outputs...)
	}
	after := step.DependenciesOf(p.g).Forward(step.Any, made...)
	for _, v := range p.g.Inputs {
		next := p.g.Value(p.roles.New[v.Name])
		if next == nil || next.Producer == nil || next.Producer.MadeBy(optim.Pass) {
			continue
		}
		if after.Has(next.Producer) || slices.Contains(backward, next.Producer) {
			return v.Name
		}
	}
	return ""
}

// unknownGradient is a parameter that package optim updates from a gradient that is not known, and so
// would stay scaled, "" where there is none.
func (p *pass) unknownGradient() string {
	for _, v := range p.g.Inputs {
		next := p.g.Value(p.roles.New[v.Name])
		if next == nil || next.Producer == nil || !optim.IsUpdate(next.Producer, v.Name) {
			continue
		}
		if !slices.ContainsFunc(p.grads, func(g gradient) bool { return g.param == v }) || p.updated[v] == nil {
			return v.Name
		}
	}
	backward := map[*onnx.Node]bool{}
	for _, n := range p.backward() {
		backward[n] = true
	}
	for _, g := range p.grads {
		for _, u := range g.grad.Uses() { // by way of another node an update would read what is scaled
			if o := u.Node.Out(0); !backward[u.Node] && !u.Node.MadeBy(optim.Pass) && !g.grad.IsOutput() && (o == nil || o.Type.DType.IsFloat()) {
				return g.param.Name
			}
		}
	}
	return ""
}

// unscaled says why there is no loss scaling, before all else that was skipped: without
// it small gradients are lost.
func (p *pass) unscaled(why string) {
	p.report.Skipped = slices.Insert(p.report.Skipped, 0, rewrite.Skip{What: ScaleInput, Why: why})
}

// alone reports that each parameter's own gradient says whether it is updated. Of sums none
// has to wait for the others: ranks drop all of a step in which one overflows.
func (p *pass) alone() bool {
	if p.onlySums() {
		return true
	}
	if p.o.Overflow != OverflowParameter || !p.roles.Updates() {
		return false
	}
	if optim.NeedsAll(p.m) {
		p.skip("overflow by parameter", "the norm of all gradients clips each, and is not finite where one is not: derive the graph with --clip-by parameter or previous")
		return false
	}
	return true
}

// onlySums reports a graph that adds gradients up for another one that updates.
func (p *pass) onlySums() bool {
	return !slices.ContainsFunc(p.grads, func(g gradient) bool { return p.updated[g.param] == nil || p.roles.New[g.param.Name] != "" })
}

// inRows reports updates that were rewritten to slices of rows (package tile): their
// gradients never exist whole.
func (p *pass) inRows() bool {
	return slices.ContainsFunc(p.g.Nodes, func(n *onnx.Node) bool { return n.MadeBy("rows") })
}

// leadTo are the nodes of backward that places are made by.
func (p *pass) leadTo(places []place, backward map[*onnx.Node]bool) []*onnx.Node {
	values := make([]*onnx.Value, len(places))
	for i, c := range places {
		values[i] = c.value
	}
	nodes := step.DependenciesOf(p.g).Backward(needed, values...).Nodes()
	return slices.DeleteFunc(nodes, func(n *onnx.Node) bool { return !backward[n] })
}

// inParts reports a node that computes for a slice of the batch or of the tokens (package tile).
func inParts(n *onnx.Node) bool { return n.MadeBy("batch") || n.MadeBy("chunk") }

// ScaleLoss is the part of Apply that scales the loss, for a pass between the two that
// is to see it: one that computes updates in slices takes the sum of a gradient in
// slices, too. It says why there is no scaling, or nothing. Apply finds it done.
func ScaleLoss(m *onnx.Model, o Options) (why string, err error) {
	p, err := newTyped(m, o)
	if err != nil {
		return "", err
	}
	if err := p.scale(); err != nil {
		return "", fmt.Errorf("precision: loss scaling: %w", err)
	}
	if p.report.Scaled {
		_, err = infer.Model(m, infer.Options{Dims: o.Dims})
		return "", err
	}
	if len(p.report.Skipped) > 0 {
		return p.report.Skipped[0].Why, nil
	}
	return "there is no backward to scale", nil
}

// isScaled reports a graph whose loss ScaleLoss has scaled.
func (p *pass) isScaled() bool {
	return slices.ContainsFunc(p.g.Nodes, func(n *onnx.Node) bool { return n.MadeBy(scalePass) })
}

// keepScaled keeps in float32 what ScaleLoss added: of updates, what selects; the rest
// of that are scalars.
func (p *pass) keepScaled() {
	p.report.Scaled = true
	force := func(n *onnx.Node) { p.forced[n] = "loss scaling" }
	for _, n := range p.g.Nodes {
		if n.MadeBy(scalePass) || n.MadeBy(optim.Pass) && n.Is("Where") {
			force(n)
		}
	}
	for _, u := range p.g.Value(ScaleInput).Uses() { // those of slices, too, which other passes made
		force(u.Node)
		if !u.Node.Is("Reciprocal") {
			continue
		}
		for _, w := range u.Node.Outputs[0].Uses() {
			force(w.Node)
		}
	}
}

// scaleAt multiplies what is at a place, in float32: a half type does not reach the
// first scales.
func (p *pass) scaleAt(at place, scale *onnx.Value) {
	c := at.value
	uses := append([]onnx.Use(nil), c.Uses()...)
	name, d := "remat/scale/"+c.Name, c.Type.DType
	if at.by != nil {
		uses = []onnx.Use{{Node: at.by, Index: at.input}}
		name += "/" + at.by.Name()
	}
	wide := c
	if d.IsHalf() {
		wide = p.op(name+"/float", "Cast", build.In(c), onnx.IntAttr("to", int64(onnx.Float32)))
	}
	scaled := p.op(name, "Mul", build.In(wide, scale))
	if d.IsHalf() {
		scaled = p.op(name+"/half", "Cast", build.In(scaled), onnx.IntAttr("to", int64(d)))
	}
	for _, u := range uses {
		if u.Index >= 0 {
			u.Node.SetInput(u.Index, scaled)
		}
	}
}

// unscale puts Mul(·, inverse) behind an output, which keeps its name, and returns
// it. The readers that it is for read it; the others, those of backward above all,
// go on reading what is scaled.
func (p *pass) unscale(raw, inverse *onnx.Value, readers func(*onnx.Node) bool) *onnx.Value {
	uses := append([]onnx.Use(nil), raw.Uses()...)
	whole := p.op("remat/scale/"+raw.Name, "Mul", build.In(raw, inverse))
	if whole == nil {
		return raw
	}
	for _, u := range uses {
		if u.Index >= 0 && readers != nil && readers(u.Node) {
			u.Node.SetInput(u.Index, whole)
		}
	}
	for i, o := range p.g.Outputs {
		if o == raw {
			p.g.SetOutput(i, whole)
		}
	}
	name := raw.Name
	p.g.Rename(raw, p.g.FreshValueName("remat/scale/"+name+"/scaled"))
	p.g.Rename(whole, name)
	return whole
}

// unscaleEach unscales each gradient once: it may be that of several parameters.
func (p *pass) unscaleEach(inverse *onnx.Value, readers func(*onnx.Node) bool) {
	unscaled := map[*onnx.Value]*onnx.Value{}
	for i, g := range p.grads {
		if unscaled[g.grad] == nil {
			unscaled[g.grad] = p.unscale(g.grad, inverse, readers)
		}
		p.grads[i].grad = unscaled[g.grad]
	}
}

// sums are those of each gradient as it is now, float32 [].
func (p *pass) sums() []*onnx.Value {
	var sums []*onnx.Value
	for _, g := range p.grads {
		sums = append(sums, p.op("remat/scale/"+g.param.Name+"/sum", "ReduceSum", build.In(g.grad), onnx.IntAttr("keepdims", 0)))
	}
	return sums
}

// total is the sum of the sums.
func (p *pass) total(sums []*onnx.Value) *onnx.Value {
	var rows []*onnx.Value
	for i, g := range p.grads {
		rows = append(rows, p.op("remat/scale/"+g.param.Name+"/row", "Reshape", build.In(sums[i], p.b.Ints(1))))
	}
	all := p.op("remat/scale/sums", "Concat", rows, onnx.IntAttr("axis", 0))
	return p.op("remat/scale/total", "ReduceSum", build.In(all), onnx.IntAttr("keepdims", 0))
}

// foundInf makes the output found_inf of the sum of the unscaled gradients.
func (p *pass) foundInf(total, log *onnx.Value) *onnx.Value {
	both := p.op("remat/scale/checked", "Add", build.In(total, log))
	none := p.op("remat/scale/nothing", "Mul", build.In(both, p.b.Scalar(onnx.Float32, 0)))
	found := p.b.NodeNamed("", "IsNaN", "remat/scale/found_inf", build.In(none), []string{FoundOutput})[0]
	if found == nil {
		return nil
	}
	p.g.AddOutput(found)
	p.report.Scaled = true
	return found
}

// foundInEach says the same of each gradient, by its parameter's name.
func (p *pass) foundInEach(sums []*onnx.Value, inverse, log *onnx.Value, scaled bool) map[string]*onnx.Value {
	zero := p.op("remat/scale/zero", "Mul", build.In(log, p.b.Scalar(onnx.Float32, 0))) // or NaN
	found := map[string]*onnx.Value{}
	for i, g := range p.grads {
		name, sum := "remat/scale/"+g.param.Name, sums[i]
		if scaled {
			sum = p.op(name+"/sum_unscaled", "Mul", build.In(sum, inverse))
		}
		none := p.op(name+"/nothing", "Mul", build.In(sum, zero))
		found[g.param.Name] = p.b.NodeNamed("", "IsNaN", name+"/found_inf", build.In(none), []string{name + "/found_inf"})[0]
	}
	return found
}

// op makes a node of one output, both of that name, which stays float32.
func (p *pass) op(name, op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	v := p.b.NodeNamed("", op, name, in, []string{name}, attrs...)[0]
	if v != nil {
		v.Producer.SetOrigin(onnx.Origin{Pass: scalePass})
		p.forced[v.Producer] = "loss scaling"
	}
	return v
}

// update lets the optimizer in the graph, if any, use what is unscaled and
// skip what is not finite.
func (p *pass) update(inverse *onnx.Value, skips optim.Skips, byOptimizer bool) error {
	if err := p.g.SortTopologically(); err != nil {
		return err
	}
	if !p.roles.Updates() {
		return nil
	}
	before := map[*onnx.Node]bool{}
	for _, n := range p.g.Nodes {
		before[n] = true
	}
	if byOptimizer {
		if err := optim.Unscale(p.m, inverse, nil); err != nil {
			return fmt.Errorf("unscaling: %w", err)
		}
	}
	if err := optim.Skip(p.m, skips, nil); err != nil {
		return fmt.Errorf("skipping: %w", err)
	}
	for _, n := range p.g.Nodes {
		if !before[n] {
			p.forced[n] = "loss scaling"
		}
	}
	return nil
}
