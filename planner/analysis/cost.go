package analysis

import (
	"math"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// The work of one execution. Products are counted exactly (two operations per
// multiply-add); the others by elements, a few operations each. Saturating
// arithmetic: a hostile shape gives a large number, never a negative one.

// Operations per element of the cost classes that are counted by elements.
const (
	transcendentalFLOPs = 8
	reductionFLOPs      = 4
	randomFLOPs         = 16
)

// cost returns a node's floating point operations and bytes moved.
func (a *Analysis) cost(n *onnx.Node, t traits.Traits) (flops, moved int64) {
	var in, out int64
	for _, v := range n.Inputs {
		in = max(in, a.elements(v))
		moved = add(moved, a.bytes(v))
	}
	for _, v := range n.Outputs {
		out = max(out, a.elements(v))
		moved = add(moved, a.bytes(v))
	}
	switch t.Cost {
	case traits.View:
		return 0, 0
	case traits.Copy:
		if traits.Picks(n) {
			moved = mul(2, a.bytes(n.Out(0)))
		}
		return 0, moved
	case traits.Pointwise:
		return out, moved
	case traits.Transcendental:
		return mul(transcendentalFLOPs, out), moved
	case traits.Reduction:
		return mul(reductionFLOPs, max(in, out)), moved
	case traits.Random:
		return mul(randomFLOPs, out), moved
	case traits.Contraction, traits.Convolution, traits.Recurrent:
		return a.product(n, in, out), moved
	}
	return out, moved
}

// measured replaces the estimates of work by measured times, in nanoseconds. What was not
// measured, parts of a node for instance, takes as long as its operations and bytes would at
// the pace of what was, and no less than a node that computes nothing. Products have a
// pace of their own: an operation of theirs takes a small part of what moving a byte does.
func (a *Analysis) measured() {
	if len(a.opts.Costs) == 0 {
		return
	}
	var products, others, any, least pace
	amount := func(op int) float64 { return float64(a.Problem.Ops[op].FLOPs) + float64(a.Problem.Ops[op].Moved) }
	product := func(op int) bool { return CountsProduct(a.Nodes[op].OpType()) }
	for op, n := range a.Nodes {
		cost, ok := a.opts.Costs[n.Name()]
		switch work := amount(op); {
		case !ok:
			continue
		case work == 0:
			least.add(cost, 1)
			continue
		case product(op):
			products.add(cost, work)
		default:
			others.add(cost, work)
		}
		any.add(cost, amount(op))
	}
	for op, n := range a.Nodes {
		cost, ok := a.opts.Costs[n.Name()]
		if !ok {
			own := others
			if product(op) {
				own = products
			}
			cost = max(own.or(any).of(amount(op)), least.of(1))
		}
		a.Counted = append(a.Counted, a.Problem.Ops[op].FLOPs)
		a.Problem.Ops[op].FLOPs = cost
	}
}

// A pace is how long some work took.
type pace struct{ time, work float64 }

func (p *pace) add(cost int64, work float64) { p.time, p.work = p.time+float64(cost), p.work+work }

// or is another pace where nothing was measured.
func (p pace) or(other pace) pace {
	if p.work == 0 {
		return other
	}
	return p
}

// of is how long some work takes at this pace.
func (p pace) of(work float64) int64 {
	if p.work == 0 {
		return 0
	}
	return int64(p.time / p.work * work)
}

func (a *Analysis) bytes(v *onnx.Value) int64 {
	if v == nil {
		return 0
	}
	if id, ok := a.Index[v]; ok {
		return a.Problem.Graph.Values[id].Bytes
	}
	return 0
}

// productRule counts a product's operations from its shapes.
type productRule func(a *Analysis, n *onnx.Node) int64

var productRules = map[string]productRule{
	"MatMul":        (*Analysis).matMul,
	"FusedMatMul":   (*Analysis).matMul,
	"MatMulInteger": (*Analysis).matMul,
	"Gemm":          (*Analysis).matMul,
	"FusedGemm":     (*Analysis).matMul,
	"Conv":          (*Analysis).conv,
	"FusedConv":     (*Analysis).conv,
	"ConvInteger":   (*Analysis).conv,
	"ConvTranspose": (*Analysis).convTranspose,
	"Einsum":        (*Analysis).einsum,
	"LSTM":          (*Analysis).recurrent,
	"GRU":           (*Analysis).recurrent,
	"RNN":           (*Analysis).recurrent,
	"Attention":     (*Analysis).attention,
}

func (a *Analysis) product(n *onnx.Node, in, out int64) int64 {
	if rule, ok := productRules[n.OpType()]; ok {
		return rule(a, n)
	}
	return mul(2, mul(in, int64(math.Sqrt(float64(out)))))
}

// matMul: 2 · elements(Y) · K.
func (a *Analysis) matMul(n *onnx.Node) int64 {
	dims, ok := a.extents(n.In(0))
	if !ok || len(dims) == 0 {
		return 0
	}
	k := dims[len(dims)-1]
	if n.Int("transA", 0) != 0 && len(dims) > 1 {
		k = dims[len(dims)-2]
	}
	return mul(2, mul(a.elements(n.Out(0)), k))
}

// conv: every output element sums over W's input channels and window.
func (a *Analysis) conv(n *onnx.Node) int64 {
	return mul(2, mul(a.elements(n.Out(0)), a.tail(n.In(1))))
}

// convTranspose: every input element is spread over W's outputs and window.
func (a *Analysis) convTranspose(n *onnx.Node) int64 {
	return mul(2, mul(a.elements(n.In(0)), a.tail(n.In(1))))
}

// tail multiplies all extents but the first.
func (a *Analysis) tail(v *onnx.Value) int64 {
	dims, ok := a.extents(v)
	if !ok || len(dims) == 0 {
		return 0
	}
	size := int64(1)
	for _, d := range dims[1:] {
		size = mul(size, d)
	}
	return size
}

// einsum: one multiply-add for each assignment of the labels.
func (a *Analysis) einsum(n *onnx.Node) int64 {
	eq, _ := traits.ParseEquation(n.Str("equation", ""))
	extent := make(map[rune]int64)
	for k, labels := range eq.Terms {
		dims, ok := a.extents(n.In(k))
		if !ok || strings.Contains(labels, ".") || len(labels) != len(dims) {
			return mul(2, a.elements(n.Out(0)))
		}
		for i, l := range labels {
			extent[l] = max(extent[l], dims[i])
		}
	}
	size := int64(2)
	for _, d := range extent {
		size = mul(size, d)
	}
	return size
}

// recurrent: X [seq, batch, in], W [dirs, gates·hidden, in],
// R [dirs, gates·hidden, hidden].
func (a *Analysis) recurrent(n *onnx.Node) int64 {
	x, ok := a.extents(n.In(0))
	if !ok || len(x) != 3 {
		return 0
	}
	return mul(2, mul(mul(x[0], x[1]), add(a.elements(n.In(1)), a.elements(n.In(2)))))
}

// attention: Q·K and P·V over [batch, heads, queries, keys].
func (a *Analysis) attention(n *onnx.Node) int64 {
	q, ok := a.extents(n.In(0))
	k, ok2 := a.extents(n.In(1))
	if !ok || !ok2 || len(q) < 3 || len(k) < 3 {
		return 0
	}
	return mul(4, mul(a.elements(n.In(0)), k[len(k)-2]))
}

// add and mul saturate.
func add(x, y int64) int64 {
	if s := x + y; s >= x {
		return s
	}
	return math.MaxInt64 / 1024
}

func mul(x, y int64) int64 {
	if x <= 0 || y <= 0 {
		return 0
	}
	const most = math.MaxInt64 / 1024
	if x > most/y {
		return most
	}
	return x * y
}

// CostOfFLOP is what the problem's costs count for an operation: 1, or with
// measured costs the nanoseconds that one takes on average.
func (a *Analysis) CostOfFLOP() float64 {
	var cost, counted int64
	for op := range a.Counted {
		cost, counted = cost+a.Problem.Ops[op].FLOPs, counted+a.Counted[op]
	}
	if counted == 0 {
		return 1
	}
	return float64(cost) / float64(counted)
}

// CountsProduct reports that the operations of an operator's products are counted
// from its shapes rather than estimated from its sizes.
func CountsProduct(op string) bool { return productRules[op] != nil }
