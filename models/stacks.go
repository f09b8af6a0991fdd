package models

import (
	"cmp"
	"fmt"
	"math"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
)

// encoder is BERT's encoder without embeddings: LayerNorm after each residual
// sum, GELU by erf.
//
//	x ─▶ [ ln(x+attn(x)) ─▶ ln(x+ff(x)) ]×layers ─▶ mean((·-target)²)
//
// Inputs x and target, float32 [batch, seq, hidden]; outputs loss [], and
// prediction [batch, seq, hidden] where it is asked for. The attention's scale
// is the alpha and beta of q's Gemm.
//
// Source: Devlin et al., "BERT" (2018); names of Hugging Face's
// modeling_bert.py, LayerNorm's epsilon 1e-12.
func encoder(n *net) {
	c := n.cfg
	dims := []onnx.Dim{n.batch, n.seq, onnx.Static(c.Hidden)}
	x := n.input("x", onnx.Float32, 0, dims...)
	target := n.input("target", onnx.Float32, 0, dims...)
	n.scope = "encoder"
	n.setHeads(x)
	h := n.rows("x_rows", x, c.Hidden)
	for i := range c.Layers {
		h = n.encoderLayer(fmt.Sprintf("encoder.layer.%d", i), h)
	}
	n.scope = "loss"
	want := n.rows("target_rows", target, c.Hidden)
	n.output(n.squaredError(h, want), onnx.Float32)
	if c.Logits {
		shape := n.b.Ints(c.Batch, c.Seq, c.Hidden)
		if c.Batch == 0 || c.Seq == 0 {
			shape = n.shape(x, 0, 3)
		}
		n.output(n.op("prediction", "Reshape", in(h, shape)), onnx.Float32, dims...)
	}
}

func (n *net) encoderLayer(name string, x *onnx.Value) *onnx.Value {
	c := n.cfg
	weight := weights.Normal(0.02)
	n.scope = name + "/attention"
	self := name + ".attention.self."
	q := n.dense("query", self+"query", x, c.Hidden, c.Hidden, weight, 1/math.Sqrt(float64(c.Hidden/c.Heads)))
	k := n.dense("key", self+"key", x, c.Hidden, c.Hidden, weight, 1)
	v := n.dense("value", self+"value", x, c.Hidden, c.Hidden, weight, 1)
	h := n.attention(q, k, v, nil)
	h = n.dense("output", name+".attention.output.dense", h, c.Hidden, c.Hidden, weight, 1)
	h = n.dropout("dropped", h)
	x = n.layerNorm("norm", name+".attention.output.LayerNorm", n.op("sum", "Add", in(h, x)), c.Hidden, 1e-12)
	n.scope = name + "/feed_forward"
	h = n.dense("intermediate", name+".intermediate.dense", x, c.Hidden, 4*c.Hidden, weight, 1)
	h = n.op("act", "Gelu", in(h))
	h = n.dense("output", name+".output.dense", h, 4*c.Hidden, c.Hidden, weight, 1)
	h = n.dropout("dropped", h)
	return n.layerNorm("norm", name+".output.LayerNorm", n.op("sum", "Add", in(h, x)), c.Hidden, 1e-12)
}

// mlp is a stack of linear layers with tanh and a linear head. Inputs x
// float32 [batch, hidden] and labels int64 [batch]; outputs loss [], and logits
// [batch, classes] where they are asked for. Weights keep the signal's size
// from layer to layer (Glorot and Bengio, 2010).
func mlp(n *net) {
	c := n.cfg
	x := n.input("x", onnx.Float32, 0, n.batch, onnx.Static(c.Hidden))
	labels := n.input("labels", onnx.Int64, c.Classes, n.batch)
	weight := weights.Normal(math.Sqrt(1 / float64(c.Hidden)))
	h := n.stack(x, "Tanh", weight)
	n.scope = ""
	logits := n.dense("logits", "head", h, c.Hidden, c.Classes, weight, 1)
	n.output(n.crossEntropy(logits, labels), onnx.Float32)
	if c.Logits {
		n.output(logits, onnx.Float32, n.batch, onnx.Static(c.Classes))
	}
}

// heavy is a stack of linear layers with ReLU, the last one included. Inputs x
// and target, float32 [batch, hidden]; outputs loss [], and prediction [batch,
// hidden] where it is asked for. Weights after He et al., 2015.
func heavy(n *net) {
	c := n.cfg
	x := n.input("x", onnx.Float32, 0, n.batch, onnx.Static(c.Hidden))
	target := n.input("target", onnx.Float32, 0, n.batch, onnx.Static(c.Hidden))
	h := n.stack(x, "Relu", weights.Normal(math.Sqrt(2/float64(c.Hidden))))
	n.output(n.squaredError(h, target), onnx.Float32)
	if c.Logits {
		n.scope = ""
		n.output(n.op("prediction", "Identity", in(h)), onnx.Float32, n.batch, onnx.Static(c.Hidden))
	}
}

// stack applies a linear layer and the activation as often as there are
// layers. Weights are layers.N.weight [hidden, hidden], as PyTorch's Linear.
func (n *net) stack(h *onnx.Value, activation string, weight weights.Init) *onnx.Value {
	width := n.cfg.Hidden
	batch := cmp.Or(n.cfg.Batch, -1)
	for i := range n.cfg.Layers {
		n.scope = fmt.Sprintf("layers.%d", i)
		h = n.dense("linear", n.scope, h, width, width, weight, 1)
		h = n.op("apart", "Reshape", in(h, n.b.Ints(batch, width)))
		h = n.op("act", activation, in(h))
		h = n.dropout("dropped", h)
	}
	return h
}
