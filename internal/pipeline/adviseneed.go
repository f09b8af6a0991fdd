package pipeline

// What a model needs as it is made, and which of its parameters could be frozen.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/predict"
)

// A Need is what a step takes, in bytes, where nothing is done about it: its nodes run
// in the order in which they were made, and all gradients are kept to the end of the
// step, as the training loops of frameworks keep them.
type Need struct {
	Total Total
	// Activations, Gradients and Temporaries are live at the peak, and Outputs those that
	// are neither.
	Activations, Gradients, Temporaries, Outputs int64
	Trained, Frozen                              report.ParameterSum
	beside                                       []Part
}

// bytes is all that training takes with that step.
func (n *Need) bytes() int64 { return n.Total.Bytes() + sum(n.beside) }

// CountParameter adds a typed parameter to a sum.
func CountParameter(s *report.ParameterSum, v *onnx.Value) {
	bytes := v.Type.KnownBytes()
	s.Count, s.Bytes = s.Count+1, s.Bytes+bytes
	if bits := int64(v.Type.DType.Bits()); bits > 0 {
		s.Elements += bytes * 8 / bits
	}
}

// IsWeight reports a constant that weights are held in: floats, or the codes of quantized
// ones. What gradients alone read is none.
func IsWeight(v *onnx.Value) bool {
	t := v.Type.DType
	if !t.IsFloat() && t != onnx.Int4 && t != onnx.Int8 {
		return false
	}
	return len(v.Uses()) == 0 || slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !u.Node.MadeBy(grad.Pass) })
}

// made predicts the step of a split as it is derived, as it stands or, with an engine, as
// ONNX Runtime runs it. A training graph is made already.
func (f *fitting) made(s split, o DeriveOptions, e *runtime.Engine) (_ *Need, err error) {
	key := fmt.Sprintf("%v %v %v %+v", s, f.o.Pipeline.Dims, e != nil, o)
	if known := f.steps[key]; known != nil {
		return known, nil
	}
	n, dims := &Need{}, f.axis.with(f.o.Pipeline.Dims, s.micro)
	defer func() {
		if err == nil {
			f.steps[key] = n
		}
	}()
	m, err := f.typedStep(s, o)
	if err != nil {
		return nil, err
	}
	roles, _ := FoundRoles(m, f.o.Pipeline.Roles)
	if err := n.parameters(m, roles); err != nil {
		return nil, err
	}
	po := f.o.Pipeline
	po.Dims, po.Precision = dims, nil
	if po.provider().Device {
		if err := ForDevice(m, dims); err != nil {
			return nil, fmt.Errorf("%s: %w", f.source.Path, err)
		}
	}
	p, err := Predict(e, m, roles, po, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.source.Path, err)
	}
	n.Total = TotalOf(p)
	n.beside = f.ahead(m, roles)
	for _, h := range p.Trace.AtPeak() {
		c := predict.Temporary
		if h.Value != ortmodel.None {
			c = p.Category(h.Value)
		}
		switch c {
		case predict.Activation:
			n.Activations += h.Bytes
		case predict.Gradient:
			n.Gradients += h.Bytes
		case predict.Temporary:
			n.Temporaries += h.Bytes
		default:
			n.Outputs += h.Bytes
		}
	}
	return n, nil
}

// parameters counts what is trained and what is frozen.
func (n *Need) parameters(m *onnx.Model, roles step.Roles) error {
	parameters, state, err := runtime.SortInputs(m, roles)
	if err != nil {
		return err
	}
	held := map[string]bool{}
	for _, name := range state {
		held[name] = true
	}
	for _, name := range parameters {
		v := m.Graph.Value(name)
		if roles.Trains(name) {
			CountParameter(&n.Trained, v)
		} else if !held[name] {
			CountParameter(&n.Frozen, v)
		}
		held[name] = true
	}
	for _, v := range m.Graph.Initializers {
		if size, _ := v.Init.Elements(); size > 1 && IsWeight(v) && !held[v.Name] {
			CountParameter(&n.Frozen, v)
		}
	}
	return nil
}

// firstHalf names the parameters that the first half of the layers reads first, as
// patterns for --frozen, and says so; none where no parameter would be left.
func (v *adviser) firstHalf() (globs []string, text string, err error) {
	f, splits, err := v.fitting(v.o.FitOptions)
	if err != nil {
		return nil, "", err
	}
	o := v.o.Derive
	o.Unordered, o.Grad.Dims = true, f.axis.with(v.o.Pipeline.Dims, splits[0].micro)
	d, err := v.source.Derive(o)
	if err != nil {
		return nil, "", err
	}
	base, err := analysis.Analyze(d.Model, analysis.Options{Dims: o.Grad.Dims})
	if err != nil {
		return nil, "", err
	}
	at := onnx.Places(base.Nodes)
	layer := base.Problem.LayerOf()
	half := base.Problem.LayerCount() / 2
	begins := slices.Index(layer, half) // the place at which the second half does
	type placed struct {
		name  string
		first int
		bytes int64
		below bool
	}
	var list []placed
	for _, p := range d.Params {
		in := d.Model.Graph.Value(p.Name)
		if in == nil {
			continue
		}
		first := firstReader(in, at)
		if first < 0 {
			continue
		}
		list = append(list, placed{p.Name, first, in.Type.KnownBytes(), first < begins})
	}
	slices.SortStableFunc(list, func(a, b placed) int { return a.first - b.first })
	if half == 0 { // no layers are known: the first half of the bytes
		var sum, all int64
		for _, p := range list {
			all += p.bytes
		}
		for i := range list {
			sum += list[i].bytes
			list[i].below = sum <= all/2
		}
	}
	var frozen, trained []string
	var bytes int64
	for _, p := range list {
		if p.below {
			frozen, bytes = append(frozen, p.name), bytes+p.bytes
		} else {
			trained = append(trained, p.name)
		}
	}
	if len(frozen) == 0 || len(trained) == 0 {
		return nil, "", nil
	}
	what := "the first half of the parameters"
	if half > 0 {
		what = fmt.Sprintf("the first %d of %d layers", half, base.Problem.LayerCount())
	}
	return patternsOf(frozen, trained), fmt.Sprintf("%s, %s", what, units.Bytes(bytes)), nil
}

// firstReader is the place of the first forward node that computes with a parameter, of
// what is made from parameters alone the place of who reads that; -1 without one.
func firstReader(x *onnx.Value, at map[*onnx.Node]int) int {
	first := -1
	for _, u := range x.Uses() {
		i, ok := at[u.Node]
		if !ok {
			continue
		}
		if made := fromParameters(u.Node); made {
			i = -1
			for _, out := range u.Node.Returns() {
				i = max(i, firstReader(out, at))
			}
		}
		if i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	return first
}

// fromParameters reports that a node reads nothing that a node made, or is fed with data.
func fromParameters(n *onnx.Node) bool {
	seen := 0
	for _, v := range n.Reads() {
		if v.Init == nil {
			seen++
		}
	}
	return seen == 1 && len(n.Inputs) > 0 && n.Is("Transpose", "Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze")
}

// patternsOf are patterns that match all of some names and none of others: a name's
// shortest part that ends in a dot or a slash and begins none of the others, with a star.
func patternsOf(names, others []string) []string {
	var list []string
	for _, name := range names {
		pattern := name
		for i, c := range name {
			if c != '.' && c != '/' {
				continue
			}
			part := name[:i+1]
			if !strings.ContainsAny(part, `*?[\`) && !slices.ContainsFunc(others, func(o string) bool { return strings.HasPrefix(o, part) }) {
				pattern = part + "*"
				break
			}
		}
		if !slices.Contains(list, pattern) {
			list = append(list, pattern)
		}
	}
	return list
}

// typedStep is the training graph of a split, ready to be planned.
func (f *fitting) typedStep(s split, o DeriveOptions) (*onnx.Model, error) {
	source, _, err := f.stepSource(s, o, f.o.Norm == NormAlways)
	if err != nil {
		return nil, err
	}
	defer f.adopt(source)
	return source.Sized(f.axis.with(f.o.Pipeline.Dims, s.micro))
}
