package pipeline

// What the loss of a batch is a mean of: whether the mean over batches is that over all data, and
// a batch may be split.

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// noPlainMean says why the loss of a batch is not the mean over its labels, "" where
// nothing speaks against it: the mean of such losses depends on how data are divided.
func noPlainMean(g *onnx.Graph, loss string) string {
	for _, v := range losses(g, loss) {
		for v != nil && v.Producer != nil {
			n := v.Producer
			if labelled(n, "sum") || n.Is("ReduceSum", "ReduceSumSquare", "ReduceL1") {
				return fmt.Sprintf("the loss is a sum, by %s", n.Label())
			}
			if !traits.IsView(n) {
				break
			}
			v = n.In(0)
		}
	}
	for n := range terms(g, loss) {
		if labelled(n, "mean") && weighs(n.In(2)) {
			return fmt.Sprintf("the loss weighs classes, by %s", n.Label())
		}
	}
	return ""
}

// labelled reports a loss over labels that is reduced so.
func labelled(n *onnx.Node, reduction string) bool {
	return n.Is("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") && n.Str("reduction", "mean") == reduction
}

// terms are the nodes whose values the loss is a sum of, each times a number.
func terms(g *onnx.Graph, loss string) iter.Seq[*onnx.Node] {
	return func(yield func(*onnx.Node) bool) {
		seen := map[*onnx.Value]bool{}
		for list := losses(g, loss); len(list) > 0; {
			v := list[len(list)-1]
			list = list[:len(list)-1]
			if v == nil || v.Producer == nil || seen[v] {
				continue
			}
			seen[v] = true
			switch n := v.Producer; {
			case n.Is("Add", "Sub", "Sum", "Mean", "Concat"):
				list = append(list, n.Inputs...)
			case n.Is("Mul") && n.In(0).Stored():
				list = append(list, n.In(1))
			case n.Is("Neg", "Cast"), traits.IsView(n), n.Is("Mul", "Div") && n.In(1).Stored(),
				n.Is("ReduceSum", "ReduceMean") && n.In(0).Producer != nil && n.In(0).Producer.Is("Concat"):
				list = append(list, n.In(0))
			default:
				if !yield(n) {
					return
				}
			}
		}
	}
}

// BesideLabels says by which node the loss has a term beside a mean over the labels that count, ""
// where it has none: how many of these a batch has is no weight of both.
func BesideLabels(m *onnx.Model, loss string) (string, error) {
	fed, err := fedInputs(m, step.Roles{})
	if err != nil {
		return "", err
	}
	deps, labels, beside := step.DependenciesOf(m.Graph), false, ""
	for n := range terms(m.Graph, loss) {
		reads := deps.Backward(step.Data, n.Outputs[0]).Reads()
		switch {
		case !slices.ContainsFunc(fed, func(in *onnx.Value) bool { return reads[in] }): // as a penalty on weights
		case labelled(n, "mean"), n.Is("Div") && countsLabels(n.In(1), anyLabel):
			labels = true
		default:
			beside = fmt.Sprintf("the loss has a term that is no mean over labels, by %s", n.Label())
		}
	}
	if !labels {
		return "", nil
	}
	return beside, nil
}

// losses are the output of that name, or all scalars of floats.
func losses(g *onnx.Graph, name string) []*onnx.Value {
	return slices.DeleteFunc(slices.Clone(g.Outputs), func(v *onnx.Value) bool {
		return name != "" && v.Name != name || name == "" && (!v.Type.DType.IsFloat() || !v.Type.Ranked || len(v.Type.Shape) > 0)
	})
}

// DividedByData says which node divides the loss by what the data give, as a mean over a mask
// that is fed, "" where none does or it is the number of labels that are not ignored.
func DividedByData(g *onnx.Graph, loss string, ignored int64) string {
	for _, v := range losses(g, loss) {
		for v != nil && v.Producer != nil {
			n := v.Producer
			scales := n.Is("Mul", "Div") && n.In(1).Stored()
			if n.Is("Div") && !scales && fed(g, n.In(1)) && !countsLabels(n.In(1), ignored) {
				return divides(n)
			}
			if !scales && !n.Is("Neg") && !traits.IsView(n) {
				break
			}
			v = n.In(0)
		}
	}
	return ""
}

func divides(n *onnx.Node) string {
	return fmt.Sprintf("the loss is divided by what the data give, by %s", n.Label())
}

// fed reports that elements of what is fed reach v.
func fed(g *onnx.Graph, v *onnx.Value) bool {
	reads := step.DependenciesOf(g).Backward(step.Data, v).Reads()
	return slices.ContainsFunc(g.Inputs, func(in *onnx.Value) bool { return in.Init == nil && reads[in] })
}

// anyLabel stands for whatever label a model ignores.
const anyLabel = math.MinInt64

// countsLabels reports the number of labels that differ from the one, perhaps with a least one.
func countsLabels(v *onnx.Value, but int64) bool {
	n := v.Producer
	if n == nil {
		return false
	}
	switch {
	case n.Is("Cast", "ReduceSum", "Max", "Clip"), traits.IsView(n):
		return countsLabels(n.In(0), but)
	case n.Is("Not"):
		return isLabel(n.In(0), but)
	case n.Is("Where"):
		return isLabel(n.In(0), but) && isNumber(n.In(1), 0) && isNumber(n.In(2), 1)
	}
	return false
}

// isLabel reports a condition that holds where labels are the one.
func isLabel(v *onnx.Value, label int64) bool {
	n := v.Producer
	return n != nil && n.Is("Equal") && slices.ContainsFunc(n.Inputs, func(side *onnx.Value) bool {
		x, ok := side.Number()
		return ok && (x == float64(label) || label == anyLabel && !side.Type.DType.IsFloat())
	})
}

func isNumber(v *onnx.Value, want float64) bool {
	x, ok := v.Number()
	return ok && x == want
}

// weighs reports weights of classes, unless they are known to be one number.
func weighs(v *onnx.Value) bool {
	if v == nil {
		return false
	}
	if c := v.Constant(); c != nil {
		if x, err := c.Float64s(); err == nil {
			return len(slices.Compact(x)) > 1
		}
	}
	return true
}
