package infer

// Normalizations and losses.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// batchNorm: Y like X; in training mode the running mean and variance, like
// those that went in.
func batchNorm(c *ctx) error {
	if c.opset >= 14 && len(c.n.Outputs) > 3 {
		return fmt.Errorf("%d outputs, and from opset 14 on there are 3, so ONNX Runtime refuses the file: TorchScript's exporter writes this of an InstanceNorm with track_running_stats=True; export with dynamo=True", len(c.n.Outputs))
	}
	s, ok := c.shape(0)
	if ok && len(s) > 1 {
		for i := 1; i < 5; i++ {
			t, ok, err := c.need(i, 1)
			if err != nil {
				return err
			}
			if ok {
				if _, err := unify(s[1], t[0]); err != nil {
					return fmt.Errorf("input %d: %w", i, err)
				}
			}
		}
	}
	for o := 1; o < len(c.types); o++ {
		c.like(o, 3+(o-1)%2)
	}
	return same(c)
}

// scaledNorm: Y like X, of whose type scale and bias are.
func scaledNorm(c *ctx) error {
	c.like(0, 0)
	_, err := c.sameDType(0, 1, 2)
	return err
}

// layerNorm: Y like X, of whose type scale and bias are from opset 17 on, where the operator
// is ONNX's; mean and inverse standard deviation with the normalized dimensions 1, element
// type stash_type.
func layerNorm(c *ctx) error {
	if c.n.Is("LayerNormalization") && c.opset >= 17 {
		if _, err := c.sameDType(0, 1, 2); err != nil {
			return err
		}
	}
	stash, err := c.dtypeAttr("stash_type", onnx.Float32)
	if err != nil {
		stash = onnx.Float32
	}
	return c.normStats(stash)
}

// normStats types output 0 like X and all others as statistics over the axis
// and what follows it.
func (c *ctx) normStats(stash onnx.DType) error {
	c.like(0, 0)
	s, ok := c.shape(0)
	if !ok {
		for o := 1; o < len(c.types); o++ {
			c.setDType(o, stash)
		}
		return nil
	}
	axis, err := normAxis(c.n.Int("axis", -1), len(s))
	if err != nil {
		return err
	}
	out := append(onnx.Shape{}, s...)
	for i := axis; i < len(out); i++ {
		out[i] = onnx.Static(1)
	}
	for o := 1; o < len(c.types); o++ {
		c.set(o, stash, out)
	}
	return nil
}

// crossEntropy: the loss, scalar or of the labels' shape without reduction,
// and the log probabilities like the scores.
func crossEntropy(c *ctx) error {
	c.like(1, 0)
	return nll(c)
}

// nll: NegativeLogLikelihoodLoss.
func nll(c *ctx) error {
	s, ok1 := c.shape(0)
	t, ok2 := c.shape(1)
	if d := c.dtype(1); d.IsFloat() {
		return fmt.Errorf("labels are %s, as probabilities of classes are, where ONNX takes the classes: write the loss out, as in -(p * log_softmax(z, 1)).sum(1).mean()", d)
	}
	if ok1 && ok2 {
		if len(s) < 2 || len(t) != len(s)-1 {
			return fmt.Errorf("scores of rank %d, labels of rank %d", len(s), len(t))
		}
		if _, err := unifyShapes(splice(s, 1, 2), t); err != nil {
			if _, e := unifyShapes(s[:len(t)], t); e == nil {
				return fmt.Errorf("scores %s, labels %s: %w: the classes stand last, not second; TorchScript's exporter drops a transpose between log_softmax and nll_loss: write cross_entropy of the transposed scores, or export with dynamo=True", s, t, err)
			}
			return fmt.Errorf("scores %s, labels %s: %w", s, t, err)
		}
	}
	if c.n.Str("reduction", "mean") == "none" {
		c.likeAs(0, 1, c.dtype(0))
	} else {
		c.set(0, c.dtype(0), nil)
	}
	return nil
}
