package grad

// What recurrences begin with, and their biases, in files that say nothing of parameters.
//
// Keras and others begin a recurrence with a state of zeros, which an exporter writes as an
// initializer where the size of the batch is fixed: a gradient reaches it, and it is no
// parameter. It is an input of the node (ONNX operators RNN, GRU, LSTM), or what a Loop or a
// Scan carries and its body changes; weights are carried, too, and handed on as they are. Where the
// steps are written out, as jax2onnx writes a cell that is called several times, the state has a row a sample, and
// is multiplied with weights or with what else has a row a sample.
//
// These nodes have two biases, which are added; an exporter whose layer has one leaves the
// other zeros.

import (
	"bytes"
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// beginnings are the initializers of zeros that are nothing but such states.
func beginnings(g *onnx.Graph) map[*onnx.Value]bool {
	list := map[*onnx.Value]bool{}
	samples := samplesOf(g)
	var factor *onnx.Value // one of a row a sample
	var beside []*onnx.Value
	for _, v := range g.Initializers {
		if !v.Type.DType.IsFloat() || len(v.Uses()) == 0 {
			continue
		}
		state := servesOnly(v, isState)
		rows, times := beginsRows(v, samples)
		switch {
		case !state && !rows || !v.IsZero(): // the values are read last
		case state:
			list[v] = true
		case times:
			list[v] = true
			factor = v
		default:
			beside = append(beside, v)
		}
	}
	for _, v := range beside { // an LSTM has two
		if factor != nil && v.Type.Shape.Equal(factor.Type.Shape) {
			list[v] = true
		}
	}
	return list
}

// samplesOf is the first extent of all inputs that have one, none where they differ.
func samplesOf(g *onnx.Graph) (samples onnx.Dim) {
	for _, v := range g.Inputs {
		switch s := v.Type.Shape; {
		case len(s) == 0 || v.IsConstant():
		case samples == (onnx.Dim{}):
			samples = s[0]
		case s[0] != samples:
			return onnx.Dim{}
		}
	}
	return samples
}

// beginsRows reports what has a row a sample, and is only read as a recurrence's state is: as the left factor of
// a product with weights, or beside what has as many rows. times: somewhere as such a factor.
func beginsRows(v *onnx.Value, samples onnx.Dim) (rows, times bool) {
	s := v.Type.Shape
	if len(s) < 2 || samples == (onnx.Dim{}) || s[0] != samples {
		return false, false
	}
	rows = servesOnly(v, func(u onnx.Use) bool {
		n := u.Node
		switch {
		case n.Is("MatMul") && u.Index == 0, n.Is("Gemm") && u.Index == 0 && n.Int("transA", 0) == 0:
			times = true
			w := n.In(1).Behind("Cast", "Transpose", "Identity")
			return w != nil && w.Init != nil
		case n.Is("Mul", "Add", "Sub") && len(n.Inputs) == 2:
			other := n.In(1 - u.Index)
			return other != nil && other.Producer != nil && (!other.Type.Ranked || other.Type.Shape.Equal(n.In(u.Index).Type.Shape))
		}
		return false
	})
	return rows, times
}

// isState reports that a recurrence begins with what it reads there.
func isState(u onnx.Use) bool {
	switch n := u.Node; {
	case n.Is("LSTM"):
		return u.Index == 5 || u.Index == 6
	case n.Is("RNN", "GRU"):
		return u.Index == 5
	case n.Is("Loop"): // its body returns the condition first
		return u.Index >= 2 && changes(n, u.Index, u.Index-1)
	case n.Is("Scan"):
		return u.Index < len(n.Inputs)-int(n.Int("num_scan_inputs", 0)) && changes(n, u.Index, u.Index)
	}
	return false
}

// changes reports that a loop's body does not hand on one of its inputs as one of its outputs.
func changes(n *onnx.Node, in, out int) bool {
	body := n.Attr("body").GetG()
	if in >= len(body.GetInput()) || out >= len(body.GetOutput()) {
		return false
	}
	name := body.Output[out].GetName()
	for i := len(body.Node) - 1; i >= 0; i-- {
		if by := body.Node[i]; by.GetOpType() == "Identity" && len(by.Input) == 1 && len(by.Output) == 1 && by.Output[0] == name {
			name = by.Input[0]
		}
	}
	return name != body.Input[in].GetName()
}

// loneBiases says of biases of recurrences whose second half is zeros, and the first is not,
// what it means that both are trained.
func loneBiases(g *onnx.Graph) map[string]string {
	texts := map[string]string{}
	for _, n := range g.Nodes {
		if !n.Is("RNN", "GRU", "LSTM") {
			continue
		}
		if b := n.In(3); b != nil && b.IsConstant() && secondZero(b) {
			texts[b.Name] = fmt.Sprintf("parameter %q holds two biases that are added, and the second is zeros, as where a layer has one: both are trained, so that their sum moves twice as far as one would", b.Name)
		}
	}
	return texts
}

// secondZero reports a bias [directions, 2 × gates × hidden] whose second half alone is zeros.
func secondZero(b *onnx.Value) bool {
	data, err := b.Init.Bytes()
	s := b.Type.Shape
	if err != nil || len(s) != 2 {
		return false
	}
	directions, ok := s[0].Int()
	if !ok || directions < 1 || len(data)%(2*int(directions)) > 0 {
		return false
	}
	half := len(data) / (2 * int(directions))
	isZero := func(data []byte) bool { return len(bytes.Trim(data, "\x00")) == 0 }
	first := false
	for at := 0; at < len(data); at += 2 * half {
		first = first || !isZero(data[at:at+half])
		if !isZero(data[at+half : at+2*half]) {
			return false
		}
	}
	return first
}
