package data

// Whether a model shifts its labels itself. At each place where the loss compares,
// the label's position in its sample is known (origin.go), and so is the position of
// the scores that it is compared with:
//
//	label i with scores i       the label is expected to be the next token: next
//	label i with scores i-1     the model shifts, labels are the tokens: same
//
// As many scores as tokens stand in the order of the tokens. Fewer are a part of
// them: the scores are followed back to a tensor with a row for each token, and from
// there on as labels are. Models that shift do so in one of three ways, all of
// which come out: logits without the last and labels without the first position
// (transformers until 2024), padded labels (since), or a label shifted on the way
// to a loss in slices.

import (
	"errors"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// errUnclear is why a shift was not found.
var errUnclear = errors.New("the graph does not show it")

// A comparison is what the loss compares, a position of labels and of scores, both
// counted over the batch.
type comparison struct{ label, score int32 }

// comparisons follows the labels of x to where the loss compares them. The types
// must be inferred without a free dimension.
func (r *graphReading) comparisons(x *meaning, samples, length int64) ([]comparison, error) {
	lists, elements, err := r.labelsAt(x)
	if err != nil || elements != samples*length {
		return nil, errUnclear
	}
	var pairs []comparison
	for k, u := range x.targets {
		scores, err := r.scores(u, int64(len(lists[k])), elements)
		if err != nil {
			return nil, err
		}
		for i, label := range lists[k] {
			if label >= 0 && scores[i] >= 0 {
				pairs = append(pairs, comparison{label, scores[i]})
			}
		}
	}
	if pairs == nil {
		return nil, errUnclear
	}
	return pairs, nil
}

// labelsAt are the labels of x, numbered over its elements, at each place where the loss
// compares them; -1 is none of them.
func (r *graphReading) labelsAt(x *meaning) (lists [][]int32, elements int64, err error) {
	shape, ok := x.input.Type.Shape.Ints()
	first, fits := start(shape)
	if !ok || !fits {
		return nil, 0, errUnclear
	}
	t := &tracer{known: r.known, of: map[*onnx.Value]*origins{x.input: first}}
	for _, n := range r.graph.Nodes {
		t.node(n)
	}
	for _, u := range x.targets {
		at := t.of[u.Node.Inputs[u.Index]]
		if at == nil {
			return nil, 0, errUnclear
		}
		labels := at.from
		if u.Node.Is("GatherND") { // an index of several numbers, one of which is the label
			if labels = compact(labels); labels == nil {
				return nil, 0, errUnclear
			}
		}
		lists = append(lists, labels)
	}
	return lists, int64(len(first.from)), nil
}

// compared says which labels of x the loss compares, as one that shifts leaves some out;
// nil: all, or it is not known.
func (r *graphReading) compared(x *meaning) []bool {
	lists, elements, err := r.labelsAt(x)
	if err != nil {
		return nil
	}
	counted := make([]bool, elements)
	for _, labels := range lists {
		for _, label := range labels {
			if label >= 0 {
				counted[label] = true
			}
		}
	}
	if !slices.Contains(counted, false) {
		return nil
	}
	return counted
}

// compact leaves out what has no origin; nil where nothing is left.
func compact(list []int32) (out []int32) {
	for _, x := range list {
		if x >= 0 {
			out = append(out, x)
		}
	}
	return out
}

// scores are the positions of the rows of scores at a use as labels.
func (r *graphReading) scores(u onnx.Use, rows, tokens int64) ([]int32, error) {
	if rows == tokens {
		all, ok := start([]int64{tokens})
		if !ok {
			return nil, errUnclear
		}
		return all.from, nil
	}
	v := u.Node.In(0)
	feature := 1
	if u.Node.Is("OneHot", "GatherND") || v == nil {
		return nil, errUnclear
	}
	if u.Node.Is("GatherElements") {
		feature = len(v.Type.Shape) - 1
	}
	// Back to a tensor with a row for each token.
	var path []*onnx.Node
	for back := feature != len(v.Type.Shape)-1; back || !hasRows(v, tokens); back = false {
		if v.Producer == nil || len(path) > 64 {
			return nil, errUnclear
		}
		path = append(path, v.Producer)
		if v = passes(v.Producer); v == nil {
			return nil, errUnclear
		}
	}
	shape, _ := v.Type.Shape.Ints()
	at, ok := start(shape[:len(shape)-1])
	if !ok {
		return nil, errUnclear
	}
	for i := len(path) - 1; i >= 0 && at != nil; i-- {
		at = r.onward(path[i], at)
		v = path[i].Outputs[0]
	}
	if at == nil || int64(len(at.from)) != rows || feature != len(v.Type.Shape)-1 && !r.classesMoved(path) {
		return nil, errUnclear
	}
	return at.from, nil
}

// hasRows reports a tensor whose axes but the last have as many elements as there
// are tokens.
func hasRows(v *onnx.Value, tokens int64) bool {
	shape, ok := v.Type.Shape.Ints()
	if !v.Type.Ranked || !ok || len(shape) < 2 {
		return false
	}
	n, ok := onnx.Elements(shape[:len(shape)-1])
	return ok && n == tokens
}

// passes is the input whose rows are the rows of what a node makes, nil where there
// is none.
func passes(n *onnx.Node) *onnx.Value {
	switch {
	case n.Is("Slice", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Identity", "Cast", "MatMul", "Gemm",
		"LogSoftmax", "Softmax", "Tanh", "LayerNormalization", "Dropout"):
		return n.In(0)
	case n.Is("Add", "Sub", "Mul", "Div"):
		for _, v := range n.Reads() {
			if len(v.Type.Shape) == len(n.Outputs[0].Type.Shape) && v.Producer != nil && v.Constant() == nil {
				return v
			}
		}
	}
	return nil
}

// onward follows rows, all axes of a tensor but the last, through a node.
func (r *graphReading) onward(n *onnx.Node, at *origins) *origins {
	out, ok := n.Outputs[0].Type.Shape.Ints()
	if !ok || len(out) < 2 {
		return nil
	}
	rows := out[:len(out)-1]
	size, _ := onnx.Elements(rows)
	switch n.OpType() {
	case "Slice":
		t := &tracer{known: r.known}
		return t.slice(n, at)
	case "Transpose":
		// Only where classes become the second axis: rows stay in order.
		if isClassesSecond(n) {
			return at
		}
		return nil
	}
	if size != int64(len(at.from)) {
		return nil
	}
	return &origins{rows, at.from}
}

// isClassesSecond reports a Transpose that moves the last axis behind the first.
func isClassesSecond(n *onnx.Node) bool {
	perm := n.Ints("perm")
	if len(perm) < 2 || perm[0] != 0 || perm[1] != int64(len(perm)-1) {
		return false
	}
	for i, p := range perm[2:] {
		if p != int64(i+1) {
			return false
		}
	}
	return true
}

// classesMoved reports that the last node before the loss made classes the second
// axis.
func (r *graphReading) classesMoved(path []*onnx.Node) bool {
	return len(path) > 0 && path[0].Is("Transpose") && isClassesSecond(path[0])
}

// shiftOf says what the comparisons make of labels.
func shiftOf(pairs []comparison, length int64) (kind string, err error) {
	offset := int64(0)
	for i, p := range pairs {
		d := int64(p.label - p.score)
		if i > 0 && d != offset || int64(p.label)/length != int64(p.score)/length {
			return "", errUnclear
		}
		offset = d
	}
	switch offset {
	case 0:
		return LabelsNext, nil
	case 1:
		return LabelsSame, nil
	}
	return "", fmt.Errorf("the loss compares the label at position %d with the prediction at position %d", pairs[0].label, pairs[0].score)
}
