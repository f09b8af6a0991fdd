package grad

import (
	"fmt"
	"iter"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/adapter"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

// A Dialect says which operators may be emitted.
type Dialect int

// The dialects of a written file.
const (
	// DialectONNX stays inside the standard domain.
	DialectONNX Dialect = iota
	// DialectORT also uses com.microsoft operators that ONNX Runtime has on
	// every provider (FusedMatMul).
	DialectORT
)

// ParseDialect reads "onnx" or "ort".
func ParseDialect(s string) (Dialect, error) {
	switch s {
	case "", "onnx":
		return DialectONNX, nil
	case "ort":
		return DialectORT, nil
	}
	return 0, fmt.Errorf("unknown dialect %q: onnx or ort", s)
}

// MinOpset is the lowest standard opset of a training graph: Gelu needs 20.
const MinOpset = 20

// Options say what to differentiate.
type Options struct {
	// Loss is the output to differentiate; "" takes the only scalar float
	// output, or the only one from which a gradient reaches a parameter.
	Loss string
	// Params and Frozen are globs over initializer names. Without Params every
	// candidate is trained; Frozen wins. Params may also name float graph
	// inputs, which get a gradient too.
	Params, Frozen []string
	// Adapters are low-rank pairs to add. Then only these are trained, and what
	// Params name.
	Adapters []adapter.Spec
	// Stop are globs over the names of values through which no gradient flows,
	// or VALUE->NODE, where it is stopped for these readers alone.
	Stop []string
	// Signature is what the export says of its initializers; nil reads it from
	// the model.
	Signature *Signature
	// Tie trains a matrix and its transpose, where the file holds both, as one parameter: what
	// an exporter computed of a tied embedding. With a signature they are one in any case.
	Tie bool
	// Masters holds parameters that the file has in a half type in float32.
	Masters bool
	Dialect Dialect
	// Dims are numbers for free dimensions, by symbol.
	Dims map[string]int64
	// NoPrepare leaves out upgrading and normalizing; for graphs that went
	// through both.
	NoPrepare bool
	// After sees the model as each pass left it.
	After onnx.AfterPass
}

// A Param is one trained parameter.
type Param struct {
	// Name is the name of the input, and of the initializer that it was.
	Name string
	// Input is the graph input, Grad its gradient, which is the graph output
	// NAME.grad of the same shape.
	Input, Grad *onnx.Value
	// Data is the initial value, nil for what was a graph input already.
	Data *onnx.Tensor
}

// A Decision says what became of one candidate and why.
type Decision struct {
	Name    string `json:"name"`
	Shape   string `json:"shape"`
	Trained bool   `json:"trained"`
	Reason  string `json:"reason"`
	// Source is what decided.
	Source Source `json:"source"`
	// Open marks a candidate whose name and content leave it open whether it is
	// a weight or a constant.
	Open bool `json:"open"`
}

// A Source is where the answer comes from whether something is trained.
type Source string

// The sources, the stronger first.
const (
	FromOptions    Source = "options"    // --params or --frozen
	FromParameters Source = "parameters" // the metadata entry remat.parameters
	FromSignature  Source = "signature"  // what the exporter says, see Signature
	FromName       Source = "name"       // a name of PyTorch's state_dict
	FromContent    Source = "content"    // a mask, a table
	FromUse        Source = "use"        // a gradient reaches it
)

// A Result is what Differentiate did to the model.
type Result struct {
	Loss   *onnx.Value
	Params []Param
	// Buffers are the running statistics that a step moves.
	Buffers   []Buffer
	Decisions []Decision
	// Adapters are the pairs that were added.
	Adapters step.Adapters
	// Stops are the places on the way to the loss where the gradient ends.
	Stops    []Stop
	Warnings []string
	// Types knows the types of all values, the new ones included, and serves
	// passes that go on editing the model.
	Types *infer.Result
}

// warn adds a line to what a person should hear of.
func (r *Result) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// warnOf adds a line that names things where it has %s, if there are any.
func (r *Result) warnOf(names []string, format string) {
	if len(names) > 0 {
		r.warn(format, some(names))
	}
}

// Values are the initializers that became inputs, by name, with what they held.
func (r *Result) Values() iter.Seq2[string, *onnx.Tensor] {
	return func(yield func(string, *onnx.Tensor) bool) {
		for _, p := range r.Params {
			if p.Data != nil && !yield(p.Name, p.Data) {
				return
			}
		}
		for _, b := range r.Buffers {
			if !yield(b.Name, b.Data) {
				return
			}
		}
	}
}

// Differentiate adds the backward graph to m: each trained parameter becomes a
// graph input of its name, each gradient the output NAME.grad, and each running statistic
// that a step moves an input with its next value as the output NAME.new. The model is
// brought to one opset and normalized first. After an error the model is in an
// undefined state. Errors that a caller may want to tell apart: LossError,
// ParameterError, MissingRuleError, UnsupportedError, ClashError.
func Differentiate(m *onnx.Model, o Options) (*Result, error) {
	if o.Signature == nil {
		o.Signature = ReadSignature(m)
	}
	if err := accept(m, o); err != nil {
		return nil, err
	}
	res, lists, given := &Result{Adapters: step.Adapters{}}, hasLists(m.Graph), m.Opset("")
	warnUnread(m.Graph, res)
	warnLeftOut(m.Graph, res)
	told := undoExport(m, o, res)
	c := newChooser(m, o)
	c.shared = sharedUses(m.Graph, told)
	if err := checkGlobs(m.Graph, o, res); err != nil {
		return nil, err
	}
	stopJAX(m.Graph)
	if err := insertStops(m.Graph, o.Stop, res); err != nil {
		return nil, err
	}
	// Nothing is computed ahead from a parameter of one element.
	restore := m.Graph.OpenInitializers(c.scalars())
	types, err := prepare(m, o)
	if err != nil {
		return nil, err
	}
	e := newEngine(m, types, o.Dialect)
	loss, err := e.findLoss(o.Loss, c, res)
	if err != nil {
		return nil, err
	}
	dropUntyped(m.Graph, loss, res)
	if !o.NoPrepare {
		if e, types, loss, err = e.openControl(types, loss, c.candidates, o); err != nil {
			return nil, err
		}
	}
	e.lists, e.given = lists, given
	e.lowerScatters(hasNoRule)
	if loss = m.Graph.Value(loss.Name); e.b.Err() != nil {
		return nil, e.b.Err()
	}
	restore()
	res.Types = types
	if err := e.adapt(c, e.reached(loss), types, res); err != nil {
		return nil, err
	}
	params, reach, err := e.trained(loss, c, res)
	if err != nil {
		return nil, err
	}
	name := loss.Name // which another value may take over
	if err := e.emit(name, params, reach, c, res); err != nil {
		return nil, err
	}
	warnChanged(m.Graph, c, res)
	e.warnNodes(c, reach, res)
	if err := e.tidy(types, res); err != nil {
		return nil, err
	}
	if err := res.write(m, name, apart(c.twins, params)); err != nil {
		return nil, err
	}
	return res, o.After.See("differentiate", m)
}

// trained settles what is trained of what the loss reaches, which it returns too.
func (e *engine) trained(loss *onnx.Value, c *chooser, res *Result) (params []*onnx.Value, reach map[*onnx.Value]bool, err error) {
	reach = e.reached(loss)
	if params, err = e.choose(loss, reach, c, res); err != nil {
		return nil, nil, err
	}
	for _, p := range params {
		if e.m.Graph.Value(p.Name+step.GradSuffix) != nil {
			return nil, nil, &ClashError{p.Name + step.GradSuffix}
		}
	}
	if c.o.Masters {
		err = e.masters(params, reach, res)
	}
	return params, reach, err
}

// emit adds the backward graph of the output of that name, with the gradients and the next running
// statistics as outputs.
func (e *engine) emit(name string, params []*onnx.Value, reach map[*onnx.Value]bool, c *chooser, res *Result) (err error) {
	loss, data := e.m.Graph.Value(name), e.m.Graph.LiftInitializers(initializersOf(params))
	e.markNeeds(params)
	e.warnOpen(c, params, reach, res)
	e.warnFlat(c, loss, reach, res)
	if err := e.checkRules(reach); err != nil {
		return err
	}
	e.guardBranches()
	if err := e.sweep(loss); err != nil {
		return err
	}
	res.Loss = e.m.Graph.Value(name)
	for _, p := range params {
		g, err := e.output(p)
		if err != nil {
			return err
		}
		res.Params = append(res.Params, Param{Name: p.Name, Input: p, Grad: g, Data: data[p]})
	}
	res.Buffers, err = e.carry(c.frozen, res)
	return err
}

// write finds the loss of that name and the gradients again, whose names other values may have
// taken over, and notes in the model what was done.
func (r *Result) write(m *onnx.Model, loss string, untied step.Apart) error {
	r.Loss = m.Graph.Value(loss)
	for i := range r.Params {
		p := &r.Params[i]
		p.Grad = m.Graph.Value(p.Name + step.GradSuffix)
	}
	m.ImportUsed("com.microsoft")
	if err := writeRoles(m, r); err != nil {
		return err
	}
	if err := r.Adapters.Write(m); err != nil {
		return err
	}
	return untied.Write(m)
}

// accept brings a model into the form that the passes read, and refuses what none of them can:
// nothing is listed twice, given in two ways or made for nobody, functions are inlined, and each
// node has the inputs that it must have.
func accept(m *onnx.Model, o Options) error {
	for _, t := range m.Graph.Proto.SparseInitializer {
		return fmt.Errorf("initializer %q is sparse, which is not supported: write it as a dense one", t.GetValues().GetName())
	}
	for i := len(m.Graph.Outputs) - 1; i > 0; i-- { // listed twice, which no runtime returns twice
		if slices.Contains(m.Graph.Outputs[:i], m.Graph.Outputs[i]) {
			m.Graph.RemoveOutput(i)
		}
	}
	for _, v := range slices.Clone(m.Graph.Inputs) { // as where keep_initializers_as_inputs was asked for
		if v.Init != nil {
			m.Graph.RemoveInput(v)
		}
	}
	if !o.NoPrepare {
		if err := upgrade.Check(m, MinOpset); err != nil {
			return err
		}
	}
	if err := flatten(m); err != nil {
		return err
	}
	for _, n := range slices.Clone(m.Graph.Nodes) { // which make nothing
		if !slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool { return v != nil }) {
			m.Graph.Remove(n)
		}
	}
	return infer.Inputs(m)
}

// undoExport takes back what exporters make of a model that trains, as far as the file tells, and
// warns of what it cannot take back. It reports, as unmerge does, that calls tell what is shared.
func undoExport(m *onnx.Model, o Options, res *Result) (told bool) {
	told = unmerge(m, o.Signature, res)
	if !o.Signature.known && o.Tie {
		retieAlike(m.Graph, res)
	}
	if n := trainNorms(m); n > 0 {
		res.warn("%d × BatchNormalization normalizes by its batch, since the exported model was in train(); the exported file has stored statistics there", n)
	}
	dropping, lost := trainDropouts(m)
	if dropping > 0 {
		res.warn("%d × attention drops, since the exported model was in train(); the exported file drops nothing there", dropping)
	}
	if lost > 0 {
		res.warn("%d × attention drops in the exported program, and the exporter removed it: nothing is dropped there; %s", lost, optimizeFalse)
	}
	res.warnOf(separate(m), mergedEqual)
	ownStatistics(m.Graph) // of what calls did not tell apart
	return told
}

// tidy takes off what only differentiating needed, writes operators without a kernel out, and merges
// what is equal.
func (e *engine) tidy(types *infer.Result, res *Result) error {
	m := e.m
	e.b.Flush()
	if len(res.Buffers) > 0 { // whose normalizations read new nodes
		if err := m.Graph.SortTopologically(); err != nil {
			return err
		}
	}
	e.removeGuards()
	normalize.RemoveStops(m.Graph)
	m.Graph.RemoveDead()
	e.lowerLosses()
	e.useMasks()
	e.lowerScatters(traits.Races) // now: the gradient of one that adds is a GatherND
	e.widenScatters()
	m.Graph.RemoveDead()
	if err := e.b.Err(); err != nil {
		return err
	}
	if _, err := normalize.Unfuse(m, types); err != nil {
		return err
	}
	normalize.MergeEqual(m.Graph)
	if _, err := normalize.Quotients(m, types); err != nil {
		return err
	}
	if err := readBiases(m.Graph); err != nil {
		return err
	}
	for _, name := range traits.Racing(m.Graph) {
		res.warn("node %q: %s", name, traits.WhyRaces)
	}
	return nil
}

// prepare upgrades, normalizes and infers.
func prepare(m *onnx.Model, o Options) (*infer.Result, error) {
	if !o.NoPrepare {
		if m.Opset("") > infer.LastOpset {
			_, err := infer.Model(m, infer.Options{Dims: o.Dims, Strict: true})
			return nil, err
		}
		if err := upgrade.Model(m, MinOpset); err != nil {
			return nil, err
		}
		if err := o.After.See("upgrade", m); err != nil {
			return nil, err
		}
		return normalized(m, o)
	}
	m.Graph.NameNodes()
	seedDropouts(m.Graph)
	return infer.Model(m, infer.Options{Dims: o.Dims})
}

// output makes the gradient of p the graph output P.grad.
func (e *engine) output(p *onnx.Value) (*onnx.Value, error) {
	e.b.Scope = p.Name
	g := e.expandTo(e.accumulate(p), p)
	if g == nil {
		g = e.zeros(p) // reached by structure only: every path ends in a zero
	}
	if err := e.b.Err(); err != nil {
		return nil, err
	}
	e.markMine()
	name := p.Name + step.GradSuffix
	if g.Producer == nil || g.IsOutput() || !e.own[g.Producer] {
		g = e.b.Op("Identity", []*onnx.Value{g})
	}
	if err := e.b.Err(); err != nil {
		return nil, err
	}
	g.Type = p.Type
	e.m.Graph.Rename(g, name)
	e.m.Graph.AddOutput(g)
	return g, nil
}

func writeRoles(m *onnx.Model, res *Result) error {
	r := step.Roles{Loss: res.Loss.Name, Grad: map[string]string{}, New: map[string]string{}}
	for _, p := range res.Params {
		r.Grad[p.Input.Name] = p.Grad.Name
	}
	for _, b := range res.Buffers {
		r.New[b.Name], r.Buffers = b.Next, append(r.Buffers, b.Name)
	}
	return r.Write(m)
}
