package grad

// What PyTorch's dynamo exporter leaves out of an operator without a word, as ONNX's has no
// such thing: label smoothing, which the loss is given again, the divisor of a pooling, and the mean
// of a scatter. TorchScript's leaves out the sum of one.
// The node notes the call that it comes from, whose sixth argument label smoothing is (not
// there where it is 0):
//
//	call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (%x, %labels, None, 1, -100, 0.1), …)
//
// Of C classes with weights w, a share ε of the label's loss goes to all of them:
//
//	loss_i = (1-ε) w[label] (logΣexp z_i - z_i[label]) + ε mean_c w[c] (logΣexp z_i - z_i[c])
//
// A mean divides by Σ w[label], as without. TorchScript's exporter refuses it.

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var smoothedCall = regexp.MustCompile(`target=torch\.ops\.aten\.cross_entropy_loss\.default\]\(args = \([^,]+, [^,]+, [^,]+, [^,]+, [^,]+, ([^,)]+)\)`)

// smoothing is the share of a loss that the exported program spreads over all classes.
func smoothing(n *onnx.Node) float64 {
	share := sharedBy(smoothedCall, n)
	if !n.Is("SoftmaxCrossEntropyLoss") || !(share > 0 && share <= 1) { // as torch has it
		return 0
	}
	return share
}

// sharedBy is the number that a node's call has where the pattern's group is, 0 for another call.
func sharedBy(pattern *regexp.Regexp, n *onnx.Node) float64 {
	call := pattern.FindStringSubmatch(n.TorchCall())
	if call == nil {
		return 0
	}
	share, err := strconv.ParseFloat(call[1], 64)
	if err != nil {
		return 0
	}
	return share
}

// classWeights are the weights of the classes, shaped to go with the scores, and their
// mean; nil for ones.
func classWeights(c *Context) (w, mean *onnx.Value) {
	if c.In(2) == nil {
		return nil, nil
	}
	axes := []int{0}
	for axis := 2; axis < c.Rank(c.In(0)); axis++ {
		axes = append(axes, axis)
	}
	return c.Unsqueeze(c.In(2), axes...), c.Mean(c.In(2), false, 0)
}

// spreadLoss is the mean of what each class would lose as the label, per sample.
func spreadLoss(c *Context) *onnx.Value {
	z := c.In(0)
	w, mean := classWeights(c)
	all := c.Op("ReduceLogSumExp", build.In(z, c.IntList(1)), onnx.IntAttr("keepdims", 1))
	return c.Minus(c.weighted(all, mean), c.Mean(c.weighted(z, w), true, 1))
}

// weighted is v*by, and v where there are no weights.
func (c *Context) weighted(v, by *onnx.Value) *onnx.Value {
	if by == nil {
		return v
	}
	return c.Times(v, by)
}

// addSmoothed hands back the gradient of a smoothed loss without weights, which gets s of
// each sample: the softmax less what each class has of the label, in place as far as it goes.
func addSmoothed(c *Context, index *onnx.Value, share float64, s *onnx.Value) {
	z := c.In(0)
	classes := c.Count(z, 1)
	each := c.Scalar(z, share)
	if n, ok := classes.Number(); ok {
		each = c.Scalar(z, share/n)
	} else {
		each = c.Over(each, classes)
	}
	p := c.Minus(c.Op("Softmax", build.In(z), onnx.IntAttr("axis", softmaxAxis(z))), each)
	p = c.e.scatterAdd(p, index, c.Expand(c.Scalar(z, share-1), index), 1)
	if len(z.Type.Shape) == 2 {
		c.AddFactored(0, p, s)
		return
	}
	c.Add(0, c.Times(p, s))
}

// addSpread hands back the gradient of spreadLoss with weights, which gets s of each sample.
func addSpread(c *Context, s *onnx.Value) {
	z := c.In(0)
	w, mean := classWeights(c)
	p := c.Times(c.Op("Softmax", build.In(z), onnx.IntAttr("axis", softmaxAxis(z))), mean)
	c.Add(0, c.Times(c.Minus(p, c.Over(w, c.Count(z, 1))), s))
}

// dividedCall is a pooling whose windows are divided by a number of the model's, which both
// exporters leave out; TorchScript's says nothing of it.
var dividedCall = regexp.MustCompile(`target=torch\.ops\.aten\.avg_pool[23]d\.default\]\(args = \(%\w+(?:, \[[^\]]*\]){3}, \w+, \w+, \d+\)`)

// meanCall is a scatter that takes the mean of what goes to one place, which ONNX has no reduction
// for. The exporter writes one that keeps the last.
var meanCall = regexp.MustCompile(`^%(\w+) : .*target=torch\.ops\.aten\.scatter_reduce\.two\]\(args = \([^()]*, mean\)`)

// warnLeftOut names the nodes that the file has otherwise than the exported program: scaled
// gradients of embeddings, smoothed losses, divisors of poolings, means and sums of scatters.
func warnLeftOut(g *onnx.Graph, res *Result) {
	res.warnOf(calledSo(g, "Gather", scaledCall), "scale_grad_by_freq=True is ignored, gradients of rows are not divided by how often they were read: %s")
	var smoothed, means []string
	for _, n := range g.Nodes {
		if share := smoothing(n); share > 0 {
			smoothed = append(smoothed, fmt.Sprintf("%s (%v)", n.Name(), share))
		}
		if call := meanCall.FindStringSubmatch(n.TorchCall()); call != nil && n.Is("ScatterElements") && !slices.Contains(means, call[1]) {
			means = append(means, call[1])
		}
	}
	res.warnOf(smoothed, "the exporter left label smoothing out of the file; the training graph's loss has it: %s")
	res.warnOf(calledSo(g, "AveragePool", dividedCall), "the exporter left divisor_override out of the file, which divides by the size of a window: write it as a factor: %s")
	res.warnOf(means, "the exporter left the mean out of scatter_reduce, so that the last value at a place counts: write it as a sum, divided by how many there are: %s")
	res.warnOf(lostSums(g), "where indices repeat, the last value at a place counts, and not the sum, which TorchScript leaves out of index_add and index_put(accumulate=True): write it as scatter_add, or export with dynamo=True: %s")
}

// lostSums are scatters into zeros that are then added, by indices that may repeat: so TorchScript
// writes index_add and an index_put that accumulates, of which PyTorch has the sum at a place and the
// file the last value.
func lostSums(g *onnx.Graph) []string {
	var names []string
	for _, n := range g.Nodes {
		if n.Is("ScatterND", "ScatterElements") && n.Str("reduction", "none") == "none" && n.TorchCall() == "" &&
			n.In(0).Behind("Expand").IsZero() && addedOnly(n.Out(0)) && mayRepeat(n.In(1)) {
			names = append(names, n.Name())
		}
	}
	return names
}

// addedOnly reports a value that is only added to others.
func addedOnly(v *onnx.Value) bool {
	return v != nil && !v.IsOutput() && len(v.Uses()) > 0 &&
		!slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !u.Node.Is("Add") })
}

// mayRepeat reports indices that are not a constant list of different ones.
func mayRepeat(index *onnx.Value) bool {
	t := index.Behind("Expand", "Unsqueeze", "Reshape", "Cast").Constant()
	if t == nil {
		return true
	}
	list, err := t.Int64s()
	if err != nil {
		return true
	}
	slices.Sort(list)
	return len(slices.Compact(list)) < len(list)
}
