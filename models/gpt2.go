package models

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
)

// gpt2 is GPT2LMHeadModel: pre-LayerNorm blocks, learned positions, GELU by
// tanh, the head tied to the token embedding.
//
//	input_ids ─▶ wte ─▶ + wpe ─▶ [ +attn(ln_1) ─▶ +mlp(ln_2) ]×layers ─▶ ln_f ─▶ wteᵀ ─▶ loss
//
// Inputs input_ids and labels, int64 [batch, seq]; outputs loss [], and logits
// [batch, seq, vocab] where they are asked for. The labels are shifted inside:
// position i predicts labels[i+1], the last position nothing. Shifting labels
// costs a few bytes, shifting logits a copy of the largest tensor there is.
//
// Source: Radford et al., "Language Models are Unsupervised Multitask
// Learners" (2019); names and initialization of Hugging Face's
// modeling_gpt2.py.
func gpt2(n *net) {
	c := n.cfg
	ids := n.input("input_ids", onnx.Int64, c.Vocab, n.batch, n.seq)
	labels := n.input("labels", onnx.Int64, c.Vocab, n.batch, n.seq)
	n.scope = "transformer"
	n.setHeads(ids)
	mask := n.causalMask(ids)
	wte := n.param("transformer.wte.weight", weights.Normal(0.02), c.Vocab, c.Hidden)
	h := n.embed(ids, wte)
	for i := range c.Layers {
		h = n.gpt2Block(fmt.Sprintf("transformer.h.%d", i), h, mask)
	}
	n.scope = "transformer"
	h = n.layerNorm("ln_f", "transformer.ln_f", h, c.Hidden, 1e-5)
	n.scope = ""
	logits := n.op("logits_rows", "Gemm", in(h, wte), onnx.IntAttr("transB", 1))
	n.scope = "loss"
	next := n.op("next_tokens", "Pad", in(labels, n.b.Ints(0, -1, 0, 1), n.b.Int(ignored)))
	n.output(n.crossEntropy(logits, next), onnx.Float32)
	if c.Logits {
		shape := n.b.Ints(c.Batch, c.Seq, c.Vocab)
		if c.Batch == 0 {
			shape = n.b.Ints(-1, c.Seq, c.Vocab)
		}
		if c.Seq == 0 {
			shape = n.op("logits_shape", "Concat", in(n.shape(ids, 0, 2), n.b.Ints(c.Vocab)), onnx.IntAttr("axis", 0))
		}
		n.output(n.op("logits", "Reshape", in(logits, shape)), onnx.Float32, n.batch, n.seq, onnx.Static(c.Vocab))
	}
}

// embed is the sum of token and position embeddings, as rows.
func (n *net) embed(ids, wte *onnx.Value) *onnx.Value {
	c := n.cfg
	at := n.param("transformer.wpe.weight", weights.Normal(0.02), c.Positions, c.Hidden)
	if c.Seq != c.Positions {
		end := n.b.Ints(c.Seq)
		if c.Seq == 0 {
			end = n.shape(ids, 1, 2)
		}
		at = n.op("positions", "Slice", in(at, n.b.Ints(0), end, n.b.Ints(0)))
	}
	tokens := n.op("tokens", "Gather", in(wte, ids))
	h := n.op("embedded", "Add", in(tokens, at))
	return n.dropout("embedded_dropped", n.rows("embedded_rows", h, c.Hidden))
}

// causalMask is [seq, seq]: 0 where a position may look, -Inf after it. It is
// made from a boolean, so that it is not a candidate for training.
func (n *net) causalMask(ids *onnx.Value) *onnx.Value {
	s := n.cfg.Seq
	var visible *onnx.Value
	if s == 0 {
		seq := n.op("seq", "Squeeze", in(n.shape(ids, 1, 2)))
		place := n.op("places", "Range", in(n.b.Int(0), seq, n.b.Int(1)))
		row := n.op("places_column", "Unsqueeze", in(place, n.b.Ints(1)))
		visible = n.op("visible", "GreaterOrEqual", in(row, place))
	} else {
		data := make([]byte, s*s)
		for i := range s {
			for j := range i + 1 {
				data[i*s+j] = 1
			}
		}
		visible = n.model.Graph.AddConstant("transformer/visible", onnx.NewTensor(onnx.Bool, []int64{s, s}, data))
	}
	return n.op("mask", "Where", in(visible, n.f32(0), n.f32(math.Inf(-1))))
}

// gpt2Block adds attention and the two-layer perceptron to the residual
// stream, [rows, hidden] in and out.
func (n *net) gpt2Block(name string, x, mask *onnx.Value) *onnx.Value {
	c := n.cfg
	weight := weights.Normal(0.02)
	// Every block adds two branches to the stream; their last layers start
	// smaller, so that its variance does not grow with depth.
	residual := weights.Normal(0.02 / math.Sqrt(float64(2*c.Layers)))
	n.scope = name
	h := n.layerNorm("ln_1", name+".ln_1", x, c.Hidden, 1e-5)
	n.scope = name + "/attn"
	qkv := n.linear("c_attn", name+".attn.c_attn", h, c.Hidden, 3*c.Hidden, weight)
	parts := n.b.NodeNamed("", "Split", n.scope+"/split", in(qkv), []string{n.scope + "/q", n.scope + "/k", n.scope + "/v"},
		onnx.IntAttr("axis", 1), onnx.IntAttr("num_outputs", 3))
	scale := 1 / math.Sqrt(float64(c.Hidden/c.Heads))
	q := n.op("q_scaled", "Mul", in(parts[0], n.f32(scale)))
	h = n.attention(q, parts[1], parts[2], mask)
	h = n.linear("c_proj", name+".attn.c_proj", h, c.Hidden, c.Hidden, residual)
	h = n.dropout("dropped", h)
	n.scope = name
	x = n.op("after_attn", "Add", in(x, h))
	h = n.layerNorm("ln_2", name+".ln_2", x, c.Hidden, 1e-5)
	n.scope = name + "/mlp"
	h = n.linear("c_fc", name+".mlp.c_fc", h, c.Hidden, 4*c.Hidden, weight)
	h = n.op("act", "Gelu", in(h), onnx.StringAttr("approximate", "tanh"))
	h = n.linear("c_proj", name+".mlp.c_proj", h, 4*c.Hidden, c.Hidden, residual)
	h = n.dropout("dropped", h)
	n.scope = name
	return n.op("after_mlp", "Add", in(x, h))
}
