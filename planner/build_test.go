package planner

import (
	"fmt"
	"math/rand"

	"github.com/onnx-remat/remat/ortmodel"
)

// A builder makes training steps for tests: a forward graph of a few kinds of
// operators, and the backward that follows from it.
type builder struct {
	p       *Problem
	classes map[int64]int
	tape    []func()
	grads   map[int]int // forward value -> its gradient so far
	weights map[int]bool
}

func newBuilder() *builder {
	return &builder{p: &Problem{Loss: ortmodel.None}, classes: map[int64]int{}, grads: map[int]int{}, weights: map[int]bool{}}
}

func (b *builder) value(name string, bytes int64, kind ortmodel.Kind, role Role) int {
	c, ok := b.classes[bytes]
	if !ok {
		c = len(b.classes)
		b.classes[bytes] = c
	}
	b.p.Graph.Values = append(b.p.Graph.Values, ortmodel.Value{Bytes: bytes, Class: c, Kind: kind})
	b.p.Values = append(b.p.Values, ValueInfo{Name: name, Role: role})
	return len(b.p.Values) - 1
}

func (b *builder) op(typ string, flops int64, inputs []int, out int) int {
	var moved int64
	for _, v := range append([]int{out}, inputs...) {
		moved += b.p.Graph.Values[v].Bytes
	}
	b.p.Graph.Nodes = append(b.p.Graph.Nodes, ortmodel.Node{Inputs: inputs, Outputs: []int{out}})
	forward := b.p.Values[out].Role == Activation || b.p.Values[out].Role == Index
	b.p.Ops = append(b.p.Ops, Op{Name: fmt.Sprintf("%s_%d", typ, len(b.p.Ops)), Type: typ, FLOPs: flops, Moved: moved,
		Forward: forward, Recomputable: forward})
	return out
}

func (b *builder) bytes(v int) int64 { return b.p.Graph.Values[v].Bytes }

func (b *builder) feed(name string, bytes int64) int {
	return b.value(name, bytes, ortmodel.Feed, Feed)
}

func (b *builder) weight(name string, bytes int64) int {
	v := b.value(name, bytes, ortmodel.Feed, Parameter)
	b.weights[v] = true
	return v
}

func (b *builder) act(typ string, flops, bytes int64, inputs ...int) int {
	out := b.value(fmt.Sprintf("%s.%d", typ, len(b.p.Values)), bytes, ortmodel.Inner, Activation)
	return b.op(typ, flops, inputs, out)
}

// flow computes a gradient of v from the values read.
func (b *builder) flow(v int, typ string, flops int64, read ...int) {
	if b.p.Values[v].Role == Feed {
		return
	}
	kind, role := ortmodel.Inner, Gradient
	if b.weights[v] {
		kind, role = ortmodel.Output, Returned
	}
	g := b.value(fmt.Sprintf("d%s.%d", b.p.Values[v].Name, len(b.p.Values)), b.bytes(v), kind, role)
	b.op(typ, flops, read, g)
	if old, ok := b.grads[v]; ok {
		sum := b.value(fmt.Sprintf("s%s.%d", b.p.Values[v].Name, len(b.p.Values)), b.bytes(v), ortmodel.Inner, Gradient)
		g = b.op("AddGrad", b.bytes(v)/4, []int{old, g}, sum)
	}
	b.grads[v] = g
}

func (b *builder) matmul(x, w int, bytes, flops int64) int {
	y := b.act("MatMul", flops, bytes, x, w)
	b.tape = append(b.tape, func() {
		b.flow(x, "MatMulGradX", flops, b.grads[y], w)
		b.flow(w, "MatMulGradW", flops, b.grads[y], x)
	})
	return y
}

// unary is an elementwise op whose backward reads its output, or its input.
func (b *builder) unary(typ string, x int, readsOutput bool) int {
	y := b.act(typ, b.bytes(x), b.bytes(x), x)
	if readsOutput {
		n := &b.p.Graph.Nodes[len(b.p.Graph.Nodes)-1]
		n.InPlace = []ortmodel.Pair{{Input: 0, Output: 0}}
	}
	b.tape = append(b.tape, func() {
		read := x
		if readsOutput {
			read = y
		}
		b.flow(x, typ+"Grad", b.bytes(x), b.grads[y], read)
	})
	return y
}

// sloped is an elementwise op whose derivative is computed from its input alone, without the gradient.
func (b *builder) sloped(typ string, x int, slopeBytes int64) int {
	y := b.act(typ, b.bytes(x), b.bytes(x), x)
	b.tape = append(b.tape, func() {
		slope := b.value(fmt.Sprintf("%sSlope.%d", typ, len(b.p.Values)), slopeBytes, ortmodel.Inner, Gradient)
		b.op(typ+"Slope", b.bytes(x), []int{x}, slope)
		b.flow(x, typ+"Grad", b.bytes(x), b.grads[y], slope)
	})
	return y
}

func (b *builder) view(x int) int {
	y := b.act("Reshape", 0, b.bytes(x), x)
	b.p.Graph.Nodes[len(b.p.Graph.Nodes)-1].Alias = []ortmodel.Pair{{Input: 0, Output: 0}}
	b.tape = append(b.tape, func() {
		b.flow(x, "ReshapeGrad", 0, b.grads[y])
	})
	return y
}

func (b *builder) add(x, y int) int {
	z := b.act("Add", b.bytes(x)/4, b.bytes(x), x, y)
	b.tape = append(b.tape, func() {
		b.flow(x, "Pass", 0, b.grads[z])
		b.flow(y, "Pass", 0, b.grads[z])
	})
	return z
}

// cutAt has a cut at each value; none where that is ortmodel.None, the step's inputs.
func cutAt(values ...int) []Cut {
	cuts := make([]Cut, len(values))
	for i, v := range values {
		if v != ortmodel.None {
			cuts[i] = Cut{v}
		}
	}
	return cuts
}

// finish adds the loss and the backward.
func (b *builder) finish(x int, layers []int) *Problem {
	loss := b.value("loss", 4, ortmodel.Output, Activation)
	b.op("Loss", b.bytes(x), []int{x}, loss)
	b.p.Loss = loss
	seed := b.value("seed", b.bytes(x), ortmodel.Inner, Gradient)
	b.op("LossGrad", b.bytes(x), []int{x}, seed)
	b.grads[x] = seed
	for i := len(b.tape) - 1; i >= 0; i-- {
		b.tape[i]()
	}
	b.p.Cuts, b.p.Layers, b.p.Static = cutAt(layers...), cutAt(layers...), true
	if err := b.p.Validate(); err != nil {
		panic(err)
	}
	return b.p
}

// chain is an MLP: a matrix product and an activation function per layer.
func chain(layers int) *Problem {
	b := newBuilder()
	x := b.unary("Tanh", b.matmul(b.feed("x", 1<<20), b.weight("w", 1<<14), 1<<20, 1<<24), true)
	cuts := []int{x}
	for i := range layers {
		x = b.unary("Tanh", b.matmul(x, b.weight(fmt.Sprint("w", i), 1<<14), 1<<20, 1<<24), true)
		cuts = append(cuts, x)
	}
	return b.finish(x, cuts)
}

// transformer is a stack of pre-norm blocks: t tokens, width h, s the length
// of a sequence, 4 bytes a number.
func transformer(layers int, t, h, s, heads int64) *Problem {
	b := newBuilder()
	act := 4 * t * h
	x := b.matmul(b.feed("ids", 8*t), b.weight("wte", 4*1000*h), act, t*h)
	cuts := []int{x}
	for i := range layers {
		w := func(name string, n int64) int { return b.weight(fmt.Sprintf("%s%d", name, i), 4*n) }
		n := b.unary("LayerNorm", x, false)
		q := b.matmul(n, w("wq", h*h), act, 2*t*h*h)
		k := b.matmul(n, w("wk", h*h), act, 2*t*h*h)
		v := b.matmul(n, w("wv", h*h), act, 2*t*h*h)
		scores := b.product(q, k, 4*t*s*heads, 2*t*s*h)
		prob := b.unary("Softmax", b.unary("Scale", scores, false), true)
		ctx := b.view(b.product(prob, v, act, 2*t*s*h))
		x = b.add(x, b.matmul(ctx, w("wo", h*h), act, 2*t*h*h))
		n = b.unary("LayerNorm", x, false)
		f := b.unary("Gelu", b.matmul(n, w("w1", 4*h*h), 4*act, 8*t*h*h), false)
		x = b.add(x, b.matmul(f, w("w2", 4*h*h), act, 8*t*h*h))
		cuts = append(cuts, x)
	}
	logits := b.matmul(b.unary("LayerNorm", x, false), b.weight("head", 4*1000*h), 4*t*1000, 2*t*h*1000)
	return b.finish(logits, cuts)
}

// product multiplies two activations.
func (b *builder) product(x, y int, bytes, flops int64) int {
	z := b.act("MatMul", flops, bytes, x, y)
	b.tape = append(b.tape, func() {
		b.flow(x, "ProductGradA", flops, b.grads[z], y)
		b.flow(y, "ProductGradB", flops, b.grads[z], x)
	})
	return z
}

// random is a graph of n forward operators and a loss.
func random(r *rand.Rand, n int) *Problem { return randomOf(r, n, 6) }

// randomOf is random with so many forms of operators; the seventh is sloped.
func randomOf(r *rand.Rand, n, forms int) *Problem {
	b := newBuilder()
	size := func() int64 { return int64(1+r.Intn(8)) << 13 }
	pool := []int{b.matmul(b.feed("x", 1<<14), b.weight("w", 1<<13), size(), 1<<16)}
	for i := 1; i < n-1; i++ {
		x := pool[max(0, len(pool)-1-r.Intn(3))]
		var y int
		switch r.Intn(forms) {
		case 6:
			y = b.sloped("Gelu", x, size())
		case 0:
			y = b.unary("Tanh", x, true)
		case 1:
			y = b.unary("Gelu", x, false)
		case 2:
			y = b.view(x)
		case 3:
			y = b.product(x, pool[r.Intn(len(pool))], size(), int64(r.Intn(1<<18)))
		default:
			y = b.matmul(x, b.weight(fmt.Sprint("w", i), size()), size(), int64(r.Intn(1<<18)))
		}
		pool = append(pool, y)
	}
	// The loss reads the last value; loose ends are joined into it.
	x := pool[len(pool)-1]
	return b.finish(x, []int{pool[0], x})
}
