package grad

// The losses have no kernel in ONNX Runtime: it expands them into some twenty
// nodes with full-size transposes. They are emitted again, forward and backward
// together. With z the scores, s the gradient that one sample's loss gets:
//
//	forward   loss_i = logΣexp z_i - z_i[label]     two reads of z, no copy
//	backward  dz     = (softmax(z), then one taken off at the labels) * s
//
// Softmax runs in place when nothing else reads z, and so does the scatter; s
// is left to the next product (see partial), which multiplies its other, smaller
// operand.
// Ignored labels point at class 0 with weight 0.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var lossRules = []Rule{
	{Op: "SoftmaxCrossEntropyLoss", Since: 12, Doc: "softmax(z)*s - s at the label, s = g*weight/Σweight", Inputs: []int{0}, Grad: gradSoftmaxLoss},
	{Op: "NegativeLogLikelihoodLoss", Since: 12, Doc: "-s at the label, s = g*weight/Σweight", Inputs: []int{0}, Grad: gradNLL},
}

// A lossForm is the part that the two losses share.
type lossForm struct {
	index  *onnx.Value // labels, ignored ones replaced, with a class axis of one
	counts *onnx.Value // 0 where the label is ignored, nil for ones; both per sample with that axis
	weight *onnx.Value // counts, and the class's weight
	total  *onnx.Value // Σ weight, for reduction mean with weights
}

// lossForward emits the forward loss from each sample's negative log
// likelihood and puts it in the node's place.
func lossForward(c *Context, nll func(index *onnx.Value) *onnx.Value) lossForm {
	var f lossForm
	c.Forward(func() {
		x, labels := c.In(0), c.In(1)
		safe, mask := labels, (*onnx.Value)(nil)
		if c.Node.Has("ignore_index") {
			ignore := c.Const(intTensor(labels.Type.DType, c.Node.Int("ignore_index", 0)))
			zero := c.Const(intTensor(labels.Type.DType, 0))
			mask = c.Do("Not", c.Do("Equal", labels, ignore))
			safe = c.Where(mask, labels, zero)
		}
		f.index = c.Unsqueeze(safe, 1)
		if mask != nil {
			f.counts = c.Unsqueeze(c.Mask(mask, x), 1)
			f.weight = f.counts
		}
		if w := c.In(2); w != nil {
			picked := c.Unsqueeze(c.Op("Gather", build.In(w, safe), onnx.IntAttr("axis", 0)), 1)
			if f.weight == nil {
				f.weight = picked
			} else {
				f.weight = c.Do("Mul", picked, f.weight)
			}
		}
		loss := nll(f.index)
		if f.weight != nil {
			loss = c.Do("Mul", loss, f.weight)
		}
		if share := smoothing(c.Node); share > 0 {
			loss = c.Plus(c.Scale(loss, 1-share), c.Scale(c.weighted(spreadLoss(c), f.counts), share))
		}
		switch c.Node.Str("reduction", "mean") {
		case "none":
			loss = c.Do("Squeeze", loss, c.IntList(1))
		case "sum":
			loss = c.Op("ReduceSum", build.In(loss), onnx.IntAttr("keepdims", 0))
		default:
			if f.weight == nil {
				loss = c.Op("ReduceMean", build.In(loss), onnx.IntAttr("keepdims", 0))
				break
			}
			f.total = c.Op("ReduceSum", build.In(f.weight), onnx.IntAttr("keepdims", 0))
			loss = c.Do("Div", c.Op("ReduceSum", build.In(loss), onnx.IntAttr("keepdims", 0)), f.total)
		}
		c.Replace(0, loss)
	})
	return f
}

// sampleGradient is s: the gradient of each sample's negative log likelihood,
// with a class axis of one, or loose.
func sampleGradient(c *Context, f lossForm, g *onnx.Value, index *onnx.Value) *onnx.Value {
	mean := false
	switch c.Node.Str("reduction", "mean") {
	case "none":
		if len(g.Type.Shape) > 0 {
			g = c.Unsqueeze(g, 1)
		}
	case "sum":
	default:
		mean = true
		if f.total == nil {
			g = c.perElement(g, index, c.axesFrom(index, 0))
		}
	}
	if f.weight != nil {
		g = c.Times(g, f.weight)
	}
	if mean && f.total != nil {
		g = c.Over(g, f.total) // in this order: 1/total*weight would be fused
	}
	return g
}

func intTensor(d onnx.DType, v int64) *onnx.Tensor {
	if d == onnx.Int32 {
		u := uint32(int32(v))
		return onnx.NewTensor(onnx.Int32, nil, []byte{byte(u), byte(u >> 8), byte(u >> 16), byte(u >> 24)})
	}
	return onnx.Int64Tensor([]int64{v})
}

func gradSoftmaxLoss(c *Context) {
	x := c.In(0)
	c.Rank(x)
	c.Rank(c.In(1))
	if c.e.b.Err() != nil {
		return
	}
	g := c.Loose(0)
	if lp := c.Out(1); lp != nil && !lp.Dead() {
		gradLogProb(c)
	}
	if g == nil {
		return
	}
	f := lossForward(c, func(index *onnx.Value) *onnx.Value { return crossEntropy(c, index) })
	if !c.Needs(0) || c.e.b.Err() != nil {
		return
	}
	s := sampleGradient(c, f, g, f.index)
	if share := smoothing(c.Node); share > 0 && c.In(2) == nil {
		addSmoothed(c, f.index, share, s)
		return
	} else if share > 0 {
		f.weight = f.counts
		addSpread(c, c.Scale(sampleGradient(c, f, g, f.index), share))
		s = c.Scale(s, 1-share)
	}
	if len(x.Type.Shape) == 2 {
		c.AddFactored(0, onesOff(c, x, f.index), s)
		return
	}
	p := c.Op("Softmax", build.In(x), onnx.IntAttr("axis", softmaxAxis(x)))
	off := c.Expand(c.Scale(s, -1), f.index)
	c.Add(0, c.e.scatterAdd(c.Times(p, s), f.index, off, 1))
}

// crossEntropy is logΣexp z - z[label] of each sample.
func crossEntropy(c *Context, index *onnx.Value) *onnx.Value {
	x := c.In(0)
	lse := c.Op("ReduceLogSumExp", build.In(x, c.IntList(1)), onnx.IntAttr("keepdims", 1))
	return c.Minus(lse, c.Op("GatherElements", build.In(x, index), onnx.IntAttr("axis", 1)))
}

// negative is -z[label] of each sample.
func negative(c *Context, index *onnx.Value) *onnx.Value {
	return c.Do("Neg", c.Op("GatherElements", build.In(c.In(0), index), onnx.IntAttr("axis", 1)))
}

// lowerLosses emits the forward of losses that no gradient passed.
func (e *engine) lowerLosses() {
	for _, n := range slices.Clone(e.m.Graph.Nodes) {
		entropy := n.Is("SoftmaxCrossEntropyLoss")
		if !entropy && !n.Is("NegativeLogLikelihoodLoss") || !n.In(0).Type.Ranked || !n.In(1).Type.Ranked {
			continue
		}
		e.b.From(n, n.Label())
		c := &Context{Node: n, Opset: e.m.Opset(""), e: e}
		if lp := n.Out(1); lp != nil && !lp.Dead() {
			gradLogProb(c)
		}
		if y := n.Out(0); y == nil || y.Dead() {
			continue
		}
		lossForward(c, func(index *onnx.Value) *onnx.Value {
			if entropy {
				return crossEntropy(c, index)
			}
			return negative(c, index)
		})
	}
}

// softmaxAxis writes the class axis as -1 where it is the last, for which
// ONNX Runtime has the kernel that runs in place.
func softmaxAxis(x *onnx.Value) int64 {
	if len(x.Type.Shape) == 2 {
		return -1
	}
	return 1
}

// gradLogProb gives the second output, the log probabilities, a node of their
// own, and its gradient a way back.
func gradLogProb(c *Context) {
	x := c.In(0)
	g := c.Grad(1)
	var out *onnx.Value
	c.Forward(func() {
		out = c.Op("LogSoftmax", build.In(x), onnx.IntAttr("axis", softmaxAxis(x)))
		c.Replace(1, out)
	})
	if g != nil {
		c.Add(0, c.Minus(g, c.Times(c.Sum(g, true, 1), c.Do("Exp", out))))
	}
}

func gradNLL(c *Context) {
	x := c.In(0)
	c.Rank(x)
	c.Rank(c.In(1))
	g := c.Loose(0)
	if g == nil || c.e.b.Err() != nil {
		return
	}
	f := lossForward(c, func(index *onnx.Value) *onnx.Value { return negative(c, index) })
	if !c.Needs(0) || c.e.b.Err() != nil {
		return
	}
	s := c.Scale(sampleGradient(c, f, g, f.index), -1)
	c.AddScatter(0, 1, f.index, c.Expand(s, f.index))
}
