package pipeline

// Whether the loss of a batch is the mean of what each sample makes by itself. That is read
// from extents: with the batch a symbol, each value says whether its elements lie by samples.
//
//	[batch,3] -> [batch,3]      each sample by itself
//	[batch,3] -> [batch,batch]  samples with each other, as a contrastive loss compares them
//	[batch,3] -> [3]            one of all samples: a mean on the way to the loss, or what mixes
//
// From such a mean on, all that follows has to be linear, up to the loss. Extents that are
// not known speak against nothing.

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A sampling is a typed forward graph whose batch is a symbol.
type sampling struct {
	batch   string
	symbols map[string]bool // of the inputs: others are extents that nothing tells
	reached map[*onnx.Value]bool
	deps    *step.Dependencies
	fed     []*onnx.Value
	passed  map[*onnx.Node]bool // by the way from the loss to its means, these included
}

// NoMeanOfSamples says why the loss of a forward model is not the mean of what samples make by
// themselves, "" where nothing speaks against it, or the model does not say what its batch is.
func NoMeanOfSamples(m *onnx.Model, dims map[string]int64, loss string) (why string, err error) {
	if why := noPlainMean(m.Graph, loss); why != "" {
		return why, nil
	}
	b, err := findBatch(m, step.Roles{})
	if err != nil || b.name == "" {
		return "", err
	}
	if m, err = m.Clone(); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	free := maps.Clone(dims)
	delete(free, b.name)
	if err := Type(m, free); err != nil {
		return "", err
	}
	fed, err := fedInputs(m, step.Roles{})
	if err != nil {
		return "", err
	}
	return newSampling(m.Graph, b.name, fed).loss(m.Graph, loss), nil
}

func newSampling(g *onnx.Graph, batch string, fed []*onnx.Value) *sampling {
	s := &sampling{
		batch: batch, symbols: g.InputSymbols(), reached: map[*onnx.Value]bool{}, passed: map[*onnx.Node]bool{},
		deps: step.DependenciesOf(g), fed: fed,
	}
	s.reach(g)
	return s
}

// loss says why the loss is not the mean of what samples make by themselves.
func (s *sampling) loss(g *onnx.Graph, name string) string {
	for _, v := range losses(g, name) {
		if why := s.linear(v, false); why != "" {
			return why
		}
		for _, n := range s.deps.Backward(step.Data, v).Nodes() {
			if why := s.mixes(n); why != "" {
				return why
			}
		}
	}
	return ""
}

// reach notes the values through which gradients of weights may flow.
func (s *sampling) reach(g *onnx.Graph) {
	for _, n := range g.Nodes {
		reached := false
		for i, v := range n.Inputs {
			weight := v != nil && v.Type.DType.IsFloat() && len(v.Type.Shape) > 0 && (v.Init != nil || v.IsInput() && !slices.Contains(s.fed, v))
			reached = reached || carries(n, i) && (weight || s.reached[v])
		}
		for _, v := range n.Outputs {
			s.reached[v] = reached && v != nil && v.Type.DType.IsFloat()
		}
	}
}

// carries reports that elements of the node's input can reach its outputs.
func carries(n *onnx.Node, input int) bool {
	return traits.Carries(n, input) && !(n.Is("CastLike") && input == 1) // whose type alone counts
}

// bySamples counts the axes of a value that hold samples; known is false where an extent
// is not.
func (s *sampling) bySamples(v *onnx.Value) (axes int, known bool) {
	if !v.Type.Ranked {
		return 0, false
	}
	for _, d := range v.Type.Shape {
		names := d.Symbols()
		if !d.Known() || slices.ContainsFunc(names, func(name string) bool { return !s.symbols[name] }) {
			return 0, false
		}
		if slices.Contains(names, s.batch) {
			axes++
		}
	}
	return axes, true
}

// mixes says whether a node makes one of several samples, or compares them.
func (s *sampling) mixes(n *onnx.Node) string {
	if s.passed[n] || len(n.Subgraphs()) > 0 {
		return ""
	}
	gathered := s.gathers(n)
	for _, v := range n.Outputs {
		if !s.reached[v] {
			continue
		}
		switch axes, known := s.bySamples(v); {
		case known && axes > 1:
			return fmt.Sprintf("the loss compares the samples of a batch, by %s", n.Label())
		case known && axes == 0 && gathered:
			return fmt.Sprintf("the loss depends on what the samples of a batch have in common, by %s", n.Label())
		}
	}
	return ""
}

// gathers reports a node that reads a value by samples through which gradients flow.
func (s *sampling) gathers(n *onnx.Node) bool {
	for i, v := range n.Inputs {
		if !s.reached[v] || !carries(n, i) {
			continue
		}
		if axes, known := s.bySamples(v); known && axes > 0 {
			return true
		}
	}
	return false
}

// linear follows the loss through what is linear to the means over samples. counted: what
// is met is divided by the size of the batch or the number of its labels, so a sum is a mean.
func (s *sampling) linear(v *onnx.Value, counted bool) string {
	n := v.Producer
	if n == nil || !s.reached[v] || s.passed[n] || !s.feeds(step.Data, v) {
		return ""
	}
	if axes, known := s.bySamples(v); !known || axes > 0 {
		return ""
	}
	s.passed[n] = true
	if s.gathers(n) {
		switch {
		case n.Is("ReduceMean"), labelled(n, "mean"):
			return ""
		case n.Is("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "ReduceSum", "ReduceSumSquare", "ReduceL1", "MatMul", "Gemm", "Einsum"):
			if counted {
				return ""
			}
			return fmt.Sprintf("the loss is a sum, by %s", n.Label())
		}
		return fmt.Sprintf("the loss depends on what the samples of a batch have in common, by %s", n.Label())
	}
	follow := n.Inputs[:1]
	switch {
	case n.Is("Add", "Sub", "Sum", "Mean"):
		follow = n.Inputs
	case n.Is("Mul", "Div") && len(n.Inputs) == 2:
		scale := n.In(1)
		if n.Is("Mul") && s.feeds(step.Data, scale) && !s.feeds(step.Data, n.In(0)) {
			scale, follow = n.In(0), n.Inputs[1:]
		}
		if n.Is("Mul") && s.feeds(step.Data, scale) {
			return fmt.Sprintf("the loss is no mean over samples, by %s", n.Label())
		}
		if n.Is("Div") && s.feeds(step.Data, scale) && !countsLabels(scale, anyLabel) {
			return divides(n)
		}
		counted = counted || n.Is("Div") && s.feeds(step.Any, scale)
	case n.Is("Neg", "Cast", "ReduceSum", "ReduceMean", "Concat", "Gather", "Slice"), traits.IsView(n):
		if n.Is("Concat") {
			follow = n.Inputs
		}
	default:
		return fmt.Sprintf("the loss is no mean over samples, by %s", n.Label())
	}
	for _, v := range follow {
		if why := s.linear(v, counted); why != "" {
			return why
		}
	}
	return ""
}

// feeds reports that v depends so on what is fed.
func (s *sampling) feeds(along step.Dependency, v *onnx.Value) bool {
	if slices.Contains(s.fed, v) {
		return true
	}
	reads := s.deps.Backward(along, v).Reads()
	return slices.ContainsFunc(s.fed, func(in *onnx.Value) bool { return reads[in] })
}
