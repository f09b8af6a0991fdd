// Package loss adds a loss to a forward model that was exported without one.
//
//	… ─▶ prediction          becomes          … ─▶ prediction ─┐
//	                                                 labels ───┴▶ loss ─▶ mean
//
// The labels are a new input, the loss is the only output but for those that are to
// stay. A prediction that a Softmax or a Sigmoid made, as those of Keras, gives way to
// what that read, see before.go: a cross entropy takes logits, and of probabilities it
// would be another function. What the past of a decoder is, keys and values of earlier tokens,
// is empty in training; see past.go.
//
// Sources: SoftmaxCrossEntropyLoss of ONNX opset 13; PyTorch's functions of the same
// names, whose means these are.
package loss

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

// Pass is what every node that is made notes as its origin (onnx.Origin).
const Pass = "loss"

// opset is the first with SoftmaxCrossEntropyLoss as it is written here.
const opset = 13

// Ignored is the label that takes no part in a cross entropy, as in PyTorch.
const Ignored = -100

// Options say what loss of what.
type Options struct {
	Kind Kind
	// Output names the prediction; "": the only float output, or the one called logits.
	Output string
	// Labels is the name of the new input; "": "labels".
	Labels string
	// ClassAxis is the axis of the classes, from the end where negative; nil: the only
	// one beside the rows, or that of a Softmax that made the prediction.
	ClassAxis *int
	// Ignore is the label that takes no part; nil: Ignored.
	Ignore *int64
	// Keep are patterns of outputs that stay.
	Keep []string
	// Dims are numbers for free dimensions, by symbol.
	Dims map[string]int64
}

// A Result says what was added.
type Result struct {
	// Loss is the output, Prediction what it is of, Labels the input.
	Loss, Prediction string
	Labels           *onnx.Value
	// Through is the operator whose output gave way to what it read, "" where none did.
	Through string
	// Empty are inputs of the past that are gone, Dropped outputs that are.
	Empty, Dropped []string
}

// An OutputError says that the prediction is not what the loss can be of.
type OutputError struct {
	// Name is the output, "" where none could be settled on.
	Name, Reason string
}

func (e *OutputError) Error() string {
	if e.Name == "" {
		return e.Reason
	}
	return fmt.Sprintf("output %q: %s", e.Name, e.Reason)
}

// Add adds a loss to m, in place. Errors are an *OutputError where the prediction is
// missing or does not suit the kind.
func Add(m *onnx.Model, o Options) (*Result, error) {
	if m.Opset("") > infer.LastOpset {
		_, err := infer.Model(m, infer.Options{Dims: o.Dims, Strict: true})
		return nil, err
	}
	if _, err := upgrade.Functions(m); err != nil { // one may end in a Softmax
		return nil, err
	}
	if err := upgrade.Model(m, opset); err != nil {
		return nil, err
	}
	types, err := infer.Model(m, infer.Options{Dims: o.Dims})
	if err != nil {
		return nil, err
	}
	g, res := m.Graph, &Result{}
	prediction, err := find(g, o.Output)
	if err != nil {
		return nil, err
	}
	res.Prediction = prediction.Name
	var caches []*onnx.Value
	for _, v := range g.Outputs {
		if isCache(v) {
			caches = append(caches, v)
		}
	}
	stays, err := drop(g, prediction, o.Keep, res)
	if err != nil {
		return nil, err
	}
	if len(caches) > 0 {
		if types, err = emptyPast(m, types, o.Dims, caches, prediction, res); err != nil {
			return nil, err
		}
	}
	a := &adder{o, build.New(g, types, Pass)}
	a.Labels = cmp.Or(a.Labels, "labels")
	if g.Value(a.Labels) != nil {
		return nil, fmt.Errorf("the model has a value %q already: name the new input with --labels", a.Labels)
	}
	y, err := a.add(prediction, res)
	if err != nil {
		return nil, err
	}
	if !stays {
		g.RemoveOutput(slices.Index(g.Outputs, prediction))
	}
	lead(g, y)
	g.RemoveDead()
	return res, nil
}

// find settles on the prediction.
func find(g *onnx.Graph, name string) (*onnx.Value, error) {
	if name != "" {
		v := g.Value(name)
		if v == nil || !v.IsOutput() {
			return nil, &OutputError{name, "the model has no output of that name; it has " + names(g.Outputs)}
		}
		if !v.Type.DType.IsFloat() {
			return nil, &OutputError{name, fmt.Sprintf("it is %s, want floats", v.Type)}
		}
		return v, nil
	}
	var list []*onnx.Value
	for _, v := range g.Outputs {
		if v.Type.DType.IsFloat() && !isCache(v) {
			list = append(list, v)
		}
	}
	if i := slices.IndexFunc(list, func(v *onnx.Value) bool { return v.Name == "logits" }); i >= 0 {
		return list[i], nil
	}
	switch len(list) {
	case 0:
		return nil, &OutputError{Reason: "no output is a prediction in floats"}
	case 1:
		return list[0], nil
	}
	return nil, &OutputError{Reason: "several outputs could be the prediction: " + names(list) + ": choose one with --output"}
}

func names(list []*onnx.Value) string {
	return strings.Join(onnx.Names(list), ", ")
}

// drop takes the outputs off the list that do not match keep, but for the prediction,
// and reports whether that stays when the loss is there.
func drop(g *onnx.Graph, prediction *onnx.Value, keep []string, res *Result) (bool, error) {
	used := make([]bool, len(keep))
	wanted := func(v *onnx.Value) (any bool) {
		for i, glob := range keep {
			hit := planner.Match(glob, v.Name)
			any, used[i] = any || hit, used[i] || hit
		}
		return any
	}
	stays := false
	for _, v := range slices.Clone(g.Outputs) {
		switch hit := wanted(v); {
		case v == prediction:
			stays = hit
		case !hit:
			g.RemoveOutput(slices.Index(g.Outputs, v))
			res.Dropped = append(res.Dropped, v.Name)
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return false, fmt.Errorf("--keep: no output matches %q", keep[i])
	}
	return stays, nil
}

// lead makes y the first output.
func lead(g *onnx.Graph, y *onnx.Value) {
	g.AddOutput(y)
	for i := len(g.Outputs) - 1; i > 0; i-- {
		v := g.Outputs[i-1]
		g.SetOutput(i-1, g.Outputs[i])
		g.SetOutput(i, v)
	}
}

// An adder writes the nodes of a loss.
type adder struct {
	Options
	*build.Builder
}

// add writes the loss of a prediction.
func (a *adder) add(prediction *onnx.Value, res *Result) (*onnx.Value, error) {
	k := a.Kind.row()
	x, made, err := a.before(prediction, k)
	if err != nil {
		return nil, &OutputError{res.Prediction, err.Error()}
	}
	if made != nil {
		res.Through = made.op
	}
	if !x.Type.Ranked || len(x.Type.Shape) == 0 {
		return nil, &OutputError{res.Prediction, fmt.Sprintf("it is %s, of a rank that cannot have a loss", x.Type)}
	}
	if d := x.Type.DType; d != onnx.Float32 && d != onnx.Float64 {
		x = a.Op("Cast", build.In(x), onnx.IntAttr("to", int64(onnx.Float32)))
	}
	y, err := k.emit(a, x, made)
	if err != nil {
		return nil, &OutputError{res.Prediction, err.Error()}
	}
	if err := a.Err(); err != nil {
		return nil, err
	}
	a.Flush()
	if a.Graph.Value("loss") == nil {
		a.Graph.Rename(y, "loss")
	}
	res.Loss, res.Labels = y.Name, a.Graph.Value(a.Labels)
	return y, nil
}

// input declares the labels.
func (a *adder) input(d onnx.DType, s onnx.Shape) *onnx.Value {
	s = slices.Clone(s)
	for i := range s {
		if !s[i].Known() {
			s[i] = onnx.Symbol(fmt.Sprintf("%s.%d", a.Labels, i))
		}
	}
	return a.Graph.AddInput(a.Labels, onnx.TensorOf(d, s))
}

// classAxis is the axis of the classes of x: as asked, that of the Softmax that made
// the prediction, or the second of two.
func (a *adder) classAxis(x *onnx.Value, made *source) (int, error) {
	rank := len(x.Type.Shape)
	asked, summed := -1, -1
	if a.ClassAxis != nil {
		axis, ok := onnx.Axis(int64(*a.ClassAxis), rank)
		if !ok {
			return 0, fmt.Errorf("it is %s, without an axis %d", x.Type, *a.ClassAxis)
		}
		asked = axis
	}
	if made != nil {
		summed = made.axis
	}
	switch {
	case asked >= 0 && summed >= 0 && asked != summed:
		return 0, fmt.Errorf("a %s over axis %d made it, the classes cannot lie along axis %d", made.op, summed, asked)
	case asked >= 0 || summed >= 0:
		return max(asked, summed), nil
	case rank == 2:
		return 1, nil
	}
	return 0, fmt.Errorf("it is %s: say with --class-axis which axis holds the classes", x.Type)
}

// ignore is the attribute of the label that takes no part.
func (a *adder) ignore() int64 {
	if a.Ignore != nil {
		return *a.Ignore
	}
	return Ignored
}

// entropy is the mean of -log softmax(x)[label]: x [rows, classes], or [n, classes, d…]
// with labels [n, d…].
func (a *adder) entropy(x, labels *onnx.Value) *onnx.Value {
	return a.Op("SoftmaxCrossEntropyLoss", build.In(x, labels), onnx.StringAttr("reduction", "mean"), onnx.IntAttr("ignore_index", a.ignore()))
}

// rows are x [d…, classes] as [Πd, classes], and labels [d…] as [Πd].
func (a *adder) rows(x, labels *onnx.Value) (*onnx.Value, *onnx.Value) {
	if rank := len(x.Type.Shape); rank != 2 {
		x = a.Op("Flatten", build.In(x), onnx.IntAttr("axis", int64(rank-1)))
		labels = a.Op("Reshape", build.In(labels, a.Ints(-1)))
	}
	return x, labels
}

func crossEntropy(a *adder, x *onnx.Value, made *source) (*onnx.Value, error) {
	axis, err := a.classAxis(x, made)
	if err != nil {
		return nil, err
	}
	rank := len(x.Type.Shape)
	if rank < 2 {
		return nil, fmt.Errorf("it is %s, want rows of classes", x.Type)
	}
	if x.Type.Shape[axis].Is(1) {
		return nil, fmt.Errorf("it is %s, of one class, whose entropy is 0 whatever it is: %s is for one logit of two classes", x.Type, Binary)
	}
	labels := a.input(onnx.Int64, slices.Delete(slices.Clone(x.Type.Shape), axis, axis+1))
	if axis == 1 && rank > 2 {
		return a.entropy(x, labels), nil
	}
	if axis != rank-1 {
		var perm []int
		for i := range rank {
			if i != axis {
				perm = append(perm, i)
			}
		}
		x = a.Op("Transpose", build.In(x), build.PermAttr(append(perm, axis)...))
	}
	return a.entropy(a.rows(x, labels)), nil
}

// nextToken compares each token's prediction with the label after it; the last one of
// a sequence has none. The labels are moved, since the logits are large.
func nextToken(a *adder, x *onnx.Value, made *source) (*onnx.Value, error) {
	s := x.Type.Shape
	if len(s) != 3 {
		return nil, fmt.Errorf("it is %s, want [batch, sequence, classes]", x.Type)
	}
	a.ClassAxis = new(2)
	if _, err := a.classAxis(x, made); err != nil {
		return nil, err
	}
	labels := a.input(onnx.Int64, s[:2])
	next := a.Op("Pad", build.In(labels, a.Ints(0, -1, 0, 1), a.Int(a.ignore())))
	return a.entropy(a.rows(x, next)), nil
}

// binaryEntropy is the mean of log(1+e^x) - x·y, which is that of
// -y·log σ(x) - (1-y)·log(1-σ(x)) and overflows nowhere.
func binaryEntropy(a *adder, x *onnx.Value, _ *source) (*onnx.Value, error) {
	y := a.input(x.Type.DType, x.Type.Shape)
	return a.mean(a.Op("Sub", build.In(a.softplus(x), a.Op("Mul", build.In(x, y))))), nil
}

// softplus is log(1+e^x); in float64, for which ONNX Runtime has no Softplus, as the
// second of -log softmax(x, 0).
func (a *adder) softplus(x *onnx.Value) *onnx.Value {
	if x.Type.DType != onnx.Float64 {
		return a.Op("Softplus", build.In(x))
	}
	rank := len(x.Type.Shape)
	pads := make([]int64, 2*rank+2)
	pads[2*rank+1] = 1
	pair := a.Op("Pad", build.In(a.Op("Unsqueeze", build.In(x, a.Ints(int64(rank)))), a.Ints(pads...)))
	second := a.Const(onnx.Int64Tensor([]int64{1}))
	return a.Op("Neg", build.In(a.Op("Gather", build.In(a.Op("LogSoftmax", build.In(pair), onnx.IntAttr("axis", -1)), second), onnx.IntAttr("axis", int64(rank)))))
}

func squares(a *adder, x *onnx.Value, _ *source) (*onnx.Value, error) {
	d := a.Op("Sub", build.In(x, a.input(x.Type.DType, x.Type.Shape)))
	return a.mean(a.Op("Mul", build.In(d, d))), nil
}

func distances(a *adder, x *onnx.Value, _ *source) (*onnx.Value, error) {
	return a.mean(a.Op("Abs", build.In(a.Op("Sub", build.In(x, a.input(x.Type.DType, x.Type.Shape)))))), nil
}

func (a *adder) mean(x *onnx.Value) *onnx.Value {
	return a.Op("ReduceMean", build.In(x), onnx.IntAttr("keepdims", 0))
}
