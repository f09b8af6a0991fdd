package grad

// The padding of an embedding. torch.nn.Embedding(padding_idx=p) reads row p like any
// other and hands it no gradient, so that what stands for no token is not trained.
// ONNX's Gather cannot say so, but PyTorch's dynamo exporter notes the call that a
// node comes from, whose third argument p is (-1 for none, and then left out):
//
//	call_function[target=torch.ops.aten.embedding.default](args = (%weight, %ids, 1), …)
//
// TorchScript's exporter writes nothing of it.

import (
	"regexp"
	"strconv"

	"github.com/onnx-remat/remat/onnx"
)

var (
	paddedCall = regexp.MustCompile(`target=torch\.ops\.aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)[,)]`)
	scaledCall = regexp.MustCompile(`target=torch\.ops\.aten\.embedding\.default\]\(args = \(%\w+, %\w+, -?\d+, True`)
)

// paddingOf is the row of its table that an embedding hands no gradient.
func paddingOf(n *onnx.Node) (row int64, ok bool) {
	call := paddedCall.FindStringSubmatch(n.TorchCall())
	if call == nil {
		return 0, false
	}
	row, err := strconv.ParseInt(call[1], 10, 64)
	return row, err == nil
}

// withoutPadding is the gradient g of rows, as a Gather along the first axis read
// them, with zeros where the index is the padding. The mask has one element a row.
func (c *Context) withoutPadding(idx, g *onnx.Value) *onnx.Value {
	row, ok := paddingOf(c.Node)
	if !ok {
		return g
	}
	read := c.Mask(c.Do("Not", c.Do("Equal", c.cast(idx, onnx.Int64), c.e.b.Int(row))), g)
	axes := make([]int, c.Rank(g)-c.Rank(idx))
	for i := range axes {
		axes[i] = c.Rank(idx) + i
	}
	return c.Do("Mul", g, c.Unsqueeze(read, axes...))
}

// calledSo names the nodes of an operator that come from such a call.
func calledSo(g *onnx.Graph, op string, call *regexp.Regexp) (names []string) {
	for _, n := range g.Nodes {
		if n.Is(op) && call.MatchString(n.TorchCall()) {
			names = append(names, n.Name())
		}
	}
	return names
}
