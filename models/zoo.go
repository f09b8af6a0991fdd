// Package models is the zoo: forward graphs with their loss, built from
// nothing, in the form that stock ONNX Runtime runs best and cannot rewrite.
//
// What every graph keeps to:
//
//   - Rows are flattened: activations between blocks are [batch*seq, hidden],
//     every linear layer is one Gemm with its bias, in the layout that its
//     weight has on disk (transA and transB cost nothing).
//   - Attention permutes its operands directly, k to [batch, heads, head,
//     seq], so that no Transpose of the last two axes stands before a MatMul;
//     the scale goes to q, which is small, and never stands beside a MatMul.
//   - The causal mask is added: Where on the scores takes two more buffers of
//     their size.
//   - Between a Gemm and a Tanh or Relu stands a Reshape, which costs nothing
//     and keeps ONNX Runtime from fusing the two.
//   - Cross-entropy is LogSoftmax, in place over the logits, and a
//     GatherElements; its backward is Softmax in place and a scatter.
//
// So the optimization levels of ONNX Runtime find nothing to fuse, which a
// test asserts. Where the sequence is a number, the mask, a constant
// expression of [seq, seq], is all that they fold.
package models

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// Opset is the standard operator set of every graph of the zoo.
const Opset = 20

// A Config is the size of a model. What a model has no use for it ignores.
type Config struct {
	Layers  int64 `json:"layers"`
	Hidden  int64 `json:"hidden"`
	Heads   int64 `json:"heads,omitempty"`
	Vocab   int64 `json:"vocab,omitempty"`
	Classes int64 `json:"classes,omitempty"`
	// Positions is the number of rows of the position embedding; it grows with
	// Seq.
	Positions int64 `json:"positions,omitempty"`
	// Seq and Batch of 0 are the symbols seq and batch.
	Seq   int64 `json:"seq,omitempty"`
	Batch int64 `json:"batch"`
	// Dropout is the ratio after embeddings, attention and linear blocks, as
	// GPT-2 and BERT train; each Dropout has a seed of its own.
	Dropout float64 `json:"dropout,omitempty"`
	Seed    uint64  `json:"seed"`
	// Logits makes the prediction a second output. It then lives through the
	// whole step.
	Logits bool `json:"logits,omitempty"`
}

// A Row is one model of the zoo.
type Row struct {
	Name    string
	Doc     string
	Default Config
	build   func(*net)
}

// Rows is the zoo.
var Rows = []Row{
	{"gpt2", "GPT-2, 124 million parameters", gpt2Config(12, 768, 12), gpt2},
	{"gpt2-medium", "GPT-2, 355 million parameters", gpt2Config(24, 1024, 16), gpt2},
	{"gpt2-large", "GPT-2, 774 million parameters", gpt2Config(36, 1280, 20), gpt2},
	{"gpt2-xl", "GPT-2, 1,558 million parameters", gpt2Config(48, 1600, 25), gpt2},
	{"gpt2-tiny", "GPT-2 with 2 layers of width 64, for tests", Config{
		Layers: 2, Hidden: 64, Heads: 4, Vocab: 512, Positions: 64, Seq: 64, Batch: 2}, gpt2},
	{"encoder", "Transformer encoder as in BERT (post-LayerNorm, exact GELU), mean squared error", Config{
		Layers: 6, Hidden: 768, Heads: 12, Seq: 256, Batch: 4}, encoder},
	{"mlp", "linear layers with tanh, then a linear layer to the classes; cross-entropy", Config{
		Layers: 20, Hidden: 1024, Classes: 10, Batch: 32}, mlp},
	{"heavy", "linear layers with ReLU, mean squared error; also 40 layers with batch 64", Config{
		Layers: 20, Hidden: 4096, Batch: 32}, heavy},
}

func gpt2Config(layers, hidden, heads int64) Config {
	return Config{Layers: layers, Hidden: hidden, Heads: heads, Vocab: 50257, Positions: 1024, Seq: 1024, Batch: 1}
}

// Find returns the row of that name.
func Find(name string) (Row, error) {
	var names []string
	for _, r := range Rows {
		if r.Name == name {
			return r, nil
		}
		names = append(names, r.Name)
	}
	return Row{}, fmt.Errorf("no built-in model %q: choose one of %s", name, strings.Join(names, ", "))
}

// A Parameter is one trained tensor, float32.
type Parameter struct {
	Name  string
	Shape []int64
	Init  weights.Init
	value *onnx.Value
}

// Elements is the number of elements.
func (p Parameter) Elements() int64 {
	n := int64(1)
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// A Built is a forward graph whose parameters are graph inputs, in the order
// of Params, until their values are attached or written.
type Built struct {
	Model  *onnx.Model
	Params []Parameter
	Row    Row
	Config Config
}

// Build makes the forward graph of a row at that size. It has the inputs and
// outputs that the row's builder declares, the loss first.
func (r Row) Build(c Config) (*Built, error) {
	if err := c.check(r); err != nil {
		return nil, fmt.Errorf("model %s: %w", r.Name, err)
	}
	c.Positions = max(c.Positions, c.Seq)
	n := newNet(onnx.NewModel(r.Name, Opset), c)
	r.build(n)
	if err := n.b.Err(); err != nil {
		return nil, fmt.Errorf("model %s: %w", r.Name, err)
	}
	n.b.Flush()
	n.model.SetMetadata("remat.zoo", zooMetadata(r, c))
	if len(n.feeds) > 0 {
		if err := n.model.SetJSON(onnx.FeedsKey, n.feeds); err != nil {
			return nil, fmt.Errorf("model %s: %w", r.Name, err)
		}
	}
	if _, err := infer.Model(n.model, infer.Options{Strict: true}); err != nil {
		return nil, fmt.Errorf("model %s: %w", r.Name, err)
	}
	n.model.Graph.AnnotateTypes()
	if err := n.model.Check(); err != nil {
		return nil, fmt.Errorf("model %s: %w", r.Name, err)
	}
	return &Built{Model: n.model, Params: n.params, Row: r, Config: c}, nil
}

// check refuses sizes that make no model or whose products could overflow.
func (c Config) check(r Row) error {
	for _, f := range []struct {
		flag       string
		n, from    int64
		needed     int64
		upperBound int64
	}{
		{"layers", c.Layers, 1, 1, 1 << 12},
		{"hidden", c.Hidden, 1, 1, 1 << 17},
		{"heads", c.Heads, 1, r.Default.Heads, 1 << 12},
		{"vocab", c.Vocab, 1, r.Default.Vocab, 1 << 22},
		{"classes", c.Classes, 1, r.Default.Classes, 1 << 22},
		{"seq", c.Seq, 0, r.Default.Seq, 1 << 20},
		{"batch", c.Batch, 0, 1, 1 << 20},
	} {
		if f.needed > 0 && (f.n < f.from || f.n > f.upperBound) {
			return fmt.Errorf("--%s %d: must be between %d and %d", f.flag, f.n, f.from, f.upperBound)
		}
	}
	if r.Default.Heads > 0 && c.Hidden%c.Heads != 0 {
		return fmt.Errorf("--hidden %d is not a multiple of --heads %d", c.Hidden, c.Heads)
	}
	if !(c.Dropout >= 0 && c.Dropout < 1) {
		return fmt.Errorf("--dropout %v: must lie in [0, 1)", c.Dropout)
	}
	return nil
}
