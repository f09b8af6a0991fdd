package adapter

// The pair of a linear layer. Each product by the weight gets one of these behind it:
//
//	MatMul   x ─MatMul(A)─▶ h ─Mul(alpha/r)─▶ ─MatMul(B)─▶ ─Add(y)─▶
//	Gemm     x ─Gemm(A)───▶ h ─Gemm(B, y; alpha/r)────────▶
//
// A Gemm adds y itself, because ONNX Runtime fuses a MatMul of matrices with the Add
// behind it (docs/passes.md). The scale is multiplied onto h, the smallest value there
// is. A and B are float32 where the graph computes in a half type: updates are smaller
// than what a half can hold of the parameter.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A Pair is what was added for one weight: the initializers A [in,r] and B [r,out].
type Pair struct {
	Name  string
	Rank  int64
	Alpha float64
	A, B  *onnx.Value
}

// Scale is what (x A) B is multiplied by.
func (p *Pair) Scale() float64 { return p.Alpha / float64(p.Rank) }

// Insert adds the pair of a linear layer to a graph whose types are known: its
// parameters are name.lora_A and name.lora_B, which have to be free.
func Insert(g *onnx.Graph, types build.Typer, l *Linear, name string, rank int64, alpha float64) (*Pair, error) {
	dtype := l.Products[0].In(0).Type.DType
	if dtype == onnx.Float16 || dtype == onnx.BFloat16 {
		dtype = onnx.Float32
	}
	p := &Pair{Name: name, Rank: rank, Alpha: alpha}
	p.A = g.AddConstant(name+SuffixA, firstA(dtype, name+SuffixA, l.In, rank))
	p.B = g.AddConstant(name+SuffixB, onnx.FloatTensor(dtype, make([]float64, rank*l.Out), rank, l.Out))
	b := build.New(g, types, Pass)
	for _, n := range l.Products {
		b.From(n, n.Label())
		if n.Is("Gemm") {
			p.behindGemm(b, n)
		} else {
			p.behindMatMul(b, n)
		}
	}
	return p, b.Err()
}

// firstA are the first values of A: a function of its name.
func firstA(dtype onnx.DType, name string, in, rank int64) *onnx.Tensor {
	data := make([]byte, 4*in*rank)
	weights.Uniform(1/math.Sqrt(float64(in))).Fill(data, 0, name, 0)
	t := onnx.NewTensor(onnx.Float32, []int64{in, rank}, data)
	if dtype == onnx.Float32 {
		return t
	}
	values, _ := t.Float64s()
	return onnx.FloatTensor(dtype, values, in, rank)
}

func (p *Pair) behindMatMul(b *build.Builder, n *onnx.Node) {
	x, y := n.In(0), n.Out(0)
	h := b.Op("MatMul", build.In(x, as(b, p.A, x)))
	if p.Scale() != 1 {
		h = b.Op("Mul", build.In(h, b.Scalar(x.Type.DType, p.Scale())))
	}
	z := b.Op("MatMul", build.In(h, as(b, p.B, x)))
	behind(b, n, b.Op("Add", build.In(y, z)), 0)
}

func (p *Pair) behindGemm(b *build.Builder, n *onnx.Node) {
	x, y := n.In(0), n.Out(0)
	h := b.Op("Gemm", build.In(x, as(b, p.A, x)), onnx.IntAttr("transA", n.Int("transA", 0)))
	scale := n.Float("alpha", 1) * p.Scale()
	behind(b, n, b.Op("Gemm", build.In(h, as(b, p.B, x), y), onnx.FloatAttr("alpha", scale)), 2)
}

// as is the parameter in the type that x has.
func as(b *build.Builder, parameter, x *onnx.Value) *onnx.Value {
	if parameter.Type.DType == x.Type.DType {
		return parameter
	}
	return b.Op("Cast", build.In(parameter), onnx.IntAttr("to", int64(x.Type.DType)))
}

// behind puts the nodes that were built behind n; sum, which reads n's output as its
// input i, takes that one's place for everybody else.
func behind(b *build.Builder, n *onnx.Node, sum *onnx.Value, i int) {
	nodes := b.Take()
	if b.Err() != nil {
		return
	}
	g, y := b.Graph, n.Out(0)
	at := slices.Index(g.Nodes, n)
	g.Nodes = slices.Insert(g.Nodes, at+1, nodes...)
	g.TakeOver(y, sum)
	sum.Producer.SetInput(i, y)
}
