package lower

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// A row says how one private operator is replaced.
type row struct {
	op string
	// doc lists the node's inputs, or says what it is or makes.
	doc string
	// lower makes what replaces each output, nil where the output stays or
	// nothing reads it.
	lower func(p *pass, n *onnx.Node) ([]*onnx.Value, error)
}

// What a forward operand is, beside a position among the gradient operator's
// inputs.
const (
	none = -1 - iota // left out
	lost             // not among the inputs: it only lends its type
)

// A stand is the forward operator that a gradient operator belongs to.
type stand struct {
	domain, op string
	// in and out are its operands: positions among the gradient operator's
	// inputs, none, or lost.
	in, out []int
	// grads says of which of in each output of the gradient operator is.
	grads []int
	// dy is the position of the gradient that arrives, shape that of the first
	// operand's shape, where it is an input; 0 counts from 1 (0: none).
	dy, shape int
	attrs     []onnx.Attribute
}

// table lists every private operator known.
var table = []row{
	{"ReluGrad", "dY, Y, or X, which is as positive", reluGrad},
	{"TanhGrad", "dY, Y", rule(stand{op: "Tanh", in: []int{lost}, out: []int{1}, grads: []int{0}})},
	{"SigmoidGrad", "dY, Y", rule(stand{op: "Sigmoid", in: []int{lost}, out: []int{1}, grads: []int{0}})},
	{"LeakyReluGrad", "dY, Y, which has X's sign", rule(stand{op: "LeakyRelu", in: []int{1}, out: []int{lost}, grads: []int{0}})},
	{"GeluGrad", "dY, X", rule(stand{op: "Gelu", in: []int{1}, out: []int{lost}, grads: []int{0}})},
	{"FastGeluGrad", "dY, X", rule(stand{domain: microsoft, op: "FastGelu", in: []int{1}, out: []int{lost}, grads: []int{0}})},
	{"QuickGeluGrad", "dY, X", rule(stand{domain: microsoft, op: "QuickGelu", in: []int{1}, out: []int{lost}, grads: []int{0}})},
	{"BiasGeluGrad_dX", "dY, X, bias", rule(stand{domain: microsoft, op: "BiasGelu", in: []int{1, 2}, out: []int{lost}, grads: []int{0}})},
	{"BiasFastGeluGrad_dX", "dY, X, bias", rule(stand{domain: microsoft, op: "FastGelu", in: []int{1, 2}, out: []int{lost}, grads: []int{0}})},
	{"SoftmaxGrad_13", "dY, Y", rule(stand{op: "Softmax", in: []int{lost}, out: []int{1}, grads: []int{0}})},
	{"LogSoftmaxGrad_13", "dY, Y", rule(stand{op: "LogSoftmax", in: []int{lost}, out: []int{1}, grads: []int{0}})},
	{"SoftmaxGrad", "dY, Y, over all axes from one on", joinedAxes("Softmax")},
	{"LogSoftmaxGrad", "dY, Y, over all axes from one on", joinedAxes("LogSoftmax")},
	{"LayerNormalizationGrad", "dY, X, scale, mean, 1/std", rule(stand{op: "LayerNormalization", in: []int{1, 2, lost}, out: []int{lost, 3, 4}, grads: []int{0, 1, 2}})},
	{"SimplifiedLayerNormalizationGrad", "dY, X, scale, 1/rms", rule(stand{op: "SimplifiedLayerNormalization", in: []int{1, 2}, out: []int{lost, 3}, grads: []int{0, 1}})},
	{"GatherGrad", "shape, indices, dY", rule(stand{op: "Gather", in: []int{lost, 1}, out: []int{lost}, grads: []int{0}, dy: 2, shape: 1})},
	{"GatherElementsGrad", "dY, shape, indices", rule(stand{op: "GatherElements", in: []int{lost, 2}, out: []int{lost}, grads: []int{0}, shape: 2})},
	{"GatherNDGrad", "shape, indices, dY", rule(stand{op: "GatherND", in: []int{lost, 1}, out: []int{lost}, grads: []int{0}, dy: 2, shape: 1})},
	{"SliceGrad", "dY, shape, starts, ends, axes, steps", rule(stand{op: "Slice", in: []int{lost, 2, 3, 4, 5}, out: []int{lost}, grads: []int{0}, shape: 2})},
	{"ConvGrad", "dY, X, W", rule(stand{op: "Conv", in: []int{1, 2, lost}, out: []int{lost}, grads: []int{0, 1, 2}})},
	{"BatchNormalizationGrad", "dY, X, scale, saved mean and 1/std, which are computed again", rule(stand{op: "BatchNormalization", in: []int{1, 2, lost}, out: []int{lost}, grads: []int{0, 1, 2}, attrs: []onnx.Attribute{onnx.IntAttr("training_mode", 1)}})},
	{"MaxPoolGrad", "dY, indices", rule(stand{op: "MaxPool", in: []int{lost}, out: []int{lost, 1}, grads: []int{0}})},
	{"AveragePoolGrad", "dY", rule(stand{op: "AveragePool", in: []int{lost}, out: []int{lost}, grads: []int{0}})},
	{"DropoutGrad", "dY, mask, ratio, training mode", dropoutGrad},
	{"DivGrad", "dY, A, B", divGrad},
	{"SoftmaxCrossEntropyLossGrad", "dY, log probabilities, labels, weights", lossGrad},
	{"SoftmaxCrossEntropyLossInternalGrad", "dY, log probabilities, labels, weights, ignored label", lossGrad},
	{"SoftmaxCrossEntropyLossInternal", "SoftmaxCrossEntropyLoss with the ignored label as an input", internalLoss},
	{"LSTMTraining", "LSTM that also returns cell states and gates", plain("LSTM")},
	{"GRUTraining", "GRU that also returns the gates", plain("GRU")},
	{"BatchNormInternal", "BatchNormalization that also returns what it normalized with", plain("BatchNormalization", onnx.IntAttr("training_mode", 1))},
	{"SplitTraining", "Split", plain("Split")},
	{"ConcatTraining", "Concat that also returns the lengths", concatTraining},
	{"LSTMGrad", "the rule of the LSTM that made the states", recurrentGrad("LSTM", 9, 3)},
	{"GRUGrad", "the rule of the GRU that made the states", recurrentGrad("GRU", 7, 2)},
	{"BroadcastGradientArgs", "shapes of two operands → the axes along which each was stretched", broadcastAxes},
	{"Scale", "X, scale", scale},
	{"ZeroGradient", "zeros", func(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
		c := p.emit.Context(n)
		return []*onnx.Value{c.Zeros(n.In(0))}, nil
	}},
	{"InPlaceAccumulator", "sum, value → sum + value", accumulate},
	{"InPlaceAccumulatorV2", "sum, value, reset → value where reset, else sum + value", accumulate},
	{"AdamWOptimizer", "one update an element of the sequences", adamW},
	{"SGDOptimizerV2", "one update an element of the sequences", sgd},
}

func lookup(op string) *row {
	for i := range table {
		if table[i].op == op {
			return &table[i]
		}
	}
	return nil
}

// rule replaces a gradient operator by what the rule of its forward operator
// emits.
func rule(s stand) func(*pass, *onnx.Node) ([]*onnx.Value, error) {
	return func(p *pass, n *onnx.Node) ([]*onnx.Value, error) { return p.byRule(s, n) }
}

func (p *pass) byRule(s stand, n *onnx.Node) ([]*onnx.Value, error) {
	dy := n.In(s.dy)
	if dy == nil {
		return nil, fmt.Errorf("no gradient at input %d", s.dy)
	}
	wanted := make([]bool, len(s.in))
	ins := make([]*onnx.Value, len(s.in))
	for i, at := range s.in {
		o := slices.Index(s.grads, i)
		if o >= 0 && n.Out(o) != nil {
			wanted[i] = true
		}
		switch {
		case at >= 0:
			ins[i] = n.In(at)
		case at == lost && o >= 0 && n.Out(o) != nil:
			v, err := p.lostOperand(n, o, s)
			if err != nil {
				return nil, err
			}
			ins[i] = v
		}
	}
	outs := make([]*onnx.Value, len(s.out))
	for i, at := range s.out {
		switch {
		case at >= 0:
			outs[i] = n.In(at)
		case at == lost:
			outs[i] = p.emit.Placeholder(dy.Type, nil)
		}
	}
	f := grad.Stand(s.domain, s.op, n.Label(), ins, outs, n.Proto.GetAttribute())
	for _, a := range s.attrs {
		f.Proto.Attribute = append(slices.Clone(f.Proto.Attribute), (*onnxpb.AttributeProto)(a))
	}
	got, err := p.emit.Gradients(f, []*onnx.Value{dy}, wanted)
	if err != nil {
		return nil, err
	}
	result := make([]*onnx.Value, len(n.Outputs))
	for o := range result {
		if n.Out(o) == nil || o >= len(s.grads) {
			continue
		}
		if result[o] = got[s.grads[o]]; result[o] == nil {
			return nil, fmt.Errorf("no gradient flows to its output %d", o)
		}
	}
	return result, nil
}

// lostOperand stands for a forward operand that the gradient operator does not
// get: it has the type of its gradient.
func (p *pass) lostOperand(n *onnx.Node, o int, s stand) (*onnx.Value, error) {
	t := n.Out(o).Type
	t.DType = n.In(s.dy).Type.DType
	var shape *onnx.Value
	if s.shape > 0 && o == 0 {
		shape = n.In(s.shape - 1)
	}
	if !t.Ranked && shape != nil && shape.Type.Ranked && len(shape.Type.Shape) == 1 {
		if rank, ok := shape.Type.Shape[0].Int(); ok && rank >= 0 && rank < 64 {
			t = onnx.TensorOf(t.DType, make(onnx.Shape, rank))
		}
	}
	if !t.Ranked {
		t = p.forwardInput(n, s)
	}
	if !t.Ranked {
		return nil, fmt.Errorf("the shape of its output %q is not known", n.Out(o).Name)
	}
	return p.emit.Placeholder(t, shape), nil
}

// forwardInput is the type of what the forward operator read, where all
// operators in the graph that may be it agree: same kind, same attributes, an
// output like the gradient that arrives.
func (p *pass) forwardInput(n *onnx.Node, s stand) onnx.Type {
	var found onnx.Type
	for _, f := range p.g.Nodes {
		if !f.Is(s.op) || f.In(0) == nil || f.Out(0) == nil || !f.Out(0).Type.Same(n.In(s.dy).Type) {
			continue
		}
		if s.op == "MaxPool" && f.Out(1) != n.In(1) {
			continue
		}
		same := true
		for _, name := range []string{"kernel_shape", "strides", "pads", "dilations"} {
			same = same && slices.Equal(f.Ints(name), n.Ints(name))
		}
		if !same {
			continue
		}
		if found.Ranked && !found.Same(f.In(0).Type) {
			return onnx.Type{}
		}
		found = f.In(0).Type
	}
	return found
}

// reluGrad: where a MaxPool follows, the training package hands over the input of
// Relu instead of its output. It is as positive, but not zero elsewhere.
func reluGrad(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	if y := n.In(1); y.Producer == nil || !y.Producer.Is("Relu") {
		n.SetInput(1, p.b.Op("Relu", []*onnx.Value{y}))
	}
	return p.byRule(stand{op: "Relu", in: []int{lost}, out: []int{1}, grads: []int{0}}, n)
}
