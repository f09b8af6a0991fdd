package grad

// A trained bias beside weights that stand still. ONNX Runtime's recurrences on CUDA lay out W
// and R for cuDNN once where both are constant, and with them the bias if that is constant
// too. One that is not is left out of every step, without a word (cudnn_rnn_base.cc,
// CacheCudnnRnnWeights; the bias is looked at again only where nothing was laid out). So a
// step that trains the bias alone has W wait for it: then W is computed, and all three
// are laid out in every step.
//
//	W ─▶ Wait ─▶ LSTM
//	B ────┴──────▶┘

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

// readBiases has recurrences read a bias that a step may change beside weights that none does:
// ONNX Runtime computes ahead what no input reaches.
func readBiases(g *onnx.Graph) error {
	recurrent := func(n *onnx.Node) bool { return n.Is("LSTM", "GRU", "RNN") && n.In(3) != nil }
	if !slices.ContainsFunc(g.Nodes, recurrent) {
		return nil
	}
	fed := step.DependenciesOf(g).Forward(step.Any, g.Inputs...)
	given := func(v *onnx.Value) bool { return v != nil && (v.IsInput() || v.Producer != nil && fed.Has(v.Producer)) }
	b := build.New(g, nil, "recurrent bias")
	var order []*onnx.Node
	for _, n := range g.Nodes {
		if recurrent(n) && !given(n.In(1)) && !given(n.In(2)) && given(n.In(3)) {
			b.From(n, n.Label())
			n.SetInput(1, control.WaitHidden(b, n.Inputs[1], n.Inputs[3]))
		}
		order = append(append(order, b.Take()...), n)
	}
	if err := b.Err(); err != nil || len(order) == len(g.Nodes) {
		return err
	}
	var err error
	g.Nodes, err = control.Lower(g, order)
	return err
}
