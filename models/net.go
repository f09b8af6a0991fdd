package models

import (
	"fmt"
	"math"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// net is a model under construction. Scope names where the next nodes belong;
// a node and its value are called scope/what.
type net struct {
	model  *onnx.Model
	b      *build.Builder
	cfg    Config
	params []Parameter
	// feeds are the integer inputs, for random feeds.
	feeds map[string]onnx.Fed
	scope string
	drops int64

	batch, seq onnx.Dim
	// heads4 is the int64 shape [batch, seq, heads, hidden/heads].
	heads4 *onnx.Value
	shapes map[string]*onnx.Value
}

func newNet(m *onnx.Model, c Config) *net {
	n := &net{model: m, cfg: c, feeds: map[string]onnx.Fed{}, shapes: map[string]*onnx.Value{}}
	n.b = build.New(m.Graph, nil, "")
	n.batch, n.seq = extent(c.Batch, "batch"), extent(c.Seq, "seq")
	return n
}

func extent(n int64, symbol string) onnx.Dim {
	if n == 0 {
		return onnx.Symbol(symbol)
	}
	return onnx.Static(n)
}

// op makes a node called scope/what.
func (n *net) op(what, op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	name := what
	if n.scope != "" {
		name = n.scope + "/" + what
	}
	return n.b.NodeNamed("", op, name, in, []string{name}, attrs...)[0]
}

// in names a list of inputs.
func in(v ...*onnx.Value) []*onnx.Value { return v }

// param declares a parameter; asked for twice, it is the same (tied).
func (n *net) param(name string, init weights.Init, shape ...int64) *onnx.Value {
	if v := n.model.Graph.Value(name); v != nil {
		return v
	}
	v := n.model.Graph.AddInput(name, onnx.TensorOf(onnx.Float32, onnx.StaticShape(shape...)))
	n.params = append(n.params, Parameter{Name: name, Shape: shape, Init: init, value: v})
	return v
}

// input declares a feed; below bounds the values of an integer one.
func (n *net) input(name string, d onnx.DType, below int64, dims ...onnx.Dim) *onnx.Value {
	if below > 0 {
		n.feeds[name] = onnx.Fed{Below: below, Each: below}
	}
	return n.model.Graph.AddInput(name, onnx.TensorOf(d, onnx.Shape(dims)))
}

// output declares the value under its own name.
func (n *net) output(v *onnx.Value, d onnx.DType, dims ...onnx.Dim) {
	if v != nil {
		v.Type = onnx.TensorOf(d, onnx.Shape(dims))
		n.model.Graph.AddOutput(v)
	}
}

func (n *net) f32(v float64) *onnx.Value { return n.b.Scalar(onnx.Float32, v) }

// rows flattens x to [batch*seq, width].
func (n *net) rows(what string, x *onnx.Value, width int64) *onnx.Value {
	return n.op(what, "Reshape", in(x, n.b.Ints(n.rowCount(), width)))
}

// rowCount is batch*seq, or -1 for "whatever there is".
func (n *net) rowCount() int64 {
	if n.cfg.Batch == 0 || n.cfg.Seq == 0 {
		return -1
	}
	return n.cfg.Batch * n.cfg.Seq
}

// linear is x·W + b over rows, in one Gemm; its weight is [from, to], as
// GPT-2's Conv1D has it.
func (n *net) linear(what, name string, x *onnx.Value, from, to int64, init weights.Init) *onnx.Value {
	w := n.param(name+".weight", init, from, to)
	return n.op(what, "Gemm", in(x, w, n.param(name+".bias", weights.Constant(0), to)))
}

// dense is scale·(x·Wᵀ + b) over rows, in one Gemm; its weight is [to, from],
// as PyTorch's Linear has it.
func (n *net) dense(what, name string, x *onnx.Value, from, to int64, init weights.Init, scale float64) *onnx.Value {
	w := n.param(name+".weight", init, to, from)
	attrs := []onnx.Attribute{onnx.IntAttr("transB", 1)}
	if scale != 1 {
		attrs = append(attrs, onnx.FloatAttr("alpha", scale), onnx.FloatAttr("beta", scale))
	}
	return n.op(what, "Gemm", in(x, w, n.param(name+".bias", weights.Constant(0), to)), attrs...)
}

func (n *net) layerNorm(what, name string, x *onnx.Value, width int64, epsilon float64) *onnx.Value {
	w, b := n.param(name+".weight", weights.Constant(1), width), n.param(name+".bias", weights.Constant(0), width)
	return n.op(what, "LayerNormalization", in(x, w, b), onnx.IntAttr("axis", -1), onnx.FloatAttr("epsilon", epsilon))
}

// dropout is x where there is none. Its seeds differ from node to node: two
// with the same one would draw the same mask.
func (n *net) dropout(what string, x *onnx.Value) *onnx.Value {
	if n.cfg.Dropout == 0 {
		return x
	}
	n.drops++
	// One output: the mask is asked for by the gradient.
	training := n.b.Const(onnx.NewTensor(onnx.Bool, nil, []byte{1}))
	seed := onnx.IntAttr("seed", int64(n.cfg.Seed&math.MaxInt32)<<16+n.drops)
	return n.op(what, "Dropout", in(x, n.f32(n.cfg.Dropout), training), seed)
}

// attention is softmax(q·kᵀ + mask)·v over heads; q is scaled already; q, k, v
// and the result are rows of width hidden. Mask may be nil.
func (n *net) attention(q, k, v, mask *onnx.Value) *onnx.Value {
	permuted := func(what string, x *onnx.Value, perm ...int64) *onnx.Value {
		split := n.op(what+"_heads", "Reshape", in(x, n.heads4))
		return n.op(what+"_permuted", "Transpose", in(split), onnx.IntsAttr("perm", perm...))
	}
	qh := permuted("q", q, 0, 2, 1, 3)
	kh := permuted("k", k, 0, 2, 3, 1)
	vh := permuted("v", v, 0, 2, 1, 3)
	scores := n.op("scores", "MatMul", in(qh, kh))
	if mask != nil {
		scores = n.op("masked", "Add", in(scores, mask))
	}
	p := n.op("probabilities", "Softmax", in(scores), onnx.IntAttr("axis", -1))
	p = n.dropout("probabilities_dropped", p)
	context := n.op("context", "MatMul", in(p, vh))
	back := n.op("context_permuted", "Transpose", in(context), onnx.IntsAttr("perm", 0, 2, 1, 3))
	return n.rows("context_rows", back, n.cfg.Hidden)
}

// setHeads makes the shape that splits rows into heads. Of is an input
// [batch, seq, …] for the case that the sequence is free.
func (n *net) setHeads(of *onnx.Value) {
	c := n.cfg
	head := c.Hidden / c.Heads
	switch {
	case c.Seq == 0:
		n.heads4 = n.op("head_shape", "Concat", in(n.shape(of, 0, 2), n.b.Ints(c.Heads, head)), onnx.IntAttr("axis", 0))
	case c.Batch == 0:
		n.heads4 = n.b.Ints(-1, c.Seq, c.Heads, head)
	default:
		n.heads4 = n.b.Ints(c.Batch, c.Seq, c.Heads, head)
	}
}

// shape is the extents from to end of v, one node for each such part.
func (n *net) shape(v *onnx.Value, from, end int64) *onnx.Value {
	key := fmt.Sprint(v.Name, from, end)
	if n.shapes[key] == nil {
		n.shapes[key] = n.op("extents", "Shape", in(v), onnx.IntAttr("start", from), onnx.IntAttr("end", end))
	}
	return n.shapes[key]
}

// ignored is the label that takes no part in the loss.
const ignored = -100

// crossEntropy is the mean over rows of -log softmax(logits)[label], rows
// labelled -100 left out; NaN where none is left, as PyTorch has it. Logits
// [rows, classes], labels int64 with one element a row.
func (n *net) crossEntropy(logits, labels *onnx.Value) *onnx.Value {
	n.scope = "loss"
	b := n.b
	label := n.op("labels", "Reshape", in(labels, b.Ints(-1, 1)))
	skip := n.op("skipped", "Equal", in(label, b.Int(ignored)))
	index := n.op("index", "Where", in(skip, b.Int(0), label))
	weight := n.op("weight", "Where", in(skip, n.f32(0), n.f32(1)))
	logp := n.op("log_probabilities", "LogSoftmax", in(logits), onnx.IntAttr("axis", -1))
	picked := n.op("picked", "GatherElements", in(logp, index), onnx.IntAttr("axis", 1))
	counted := n.op("counted", "Mul", in(picked, weight))
	whole := onnx.IntAttr("keepdims", 0)
	sum := n.op("sum", "ReduceSum", in(counted), whole)
	count := n.op("count", "ReduceSum", in(weight), whole)
	mean := n.op("mean", "Div", in(sum, count))
	n.scope = ""
	return n.op("loss", "Neg", in(mean))
}

// squaredError is the mean of (x-target)².
func (n *net) squaredError(x, target *onnx.Value) *onnx.Value {
	n.scope = "loss"
	d := n.op("difference", "Sub", in(x, target))
	square := n.op("square", "Mul", in(d, d))
	n.scope = ""
	return n.op("loss", "ReduceMean", in(square), onnx.IntAttr("keepdims", 0))
}
