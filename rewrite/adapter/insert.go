package adapter

// The pair of a linear layer, behind each product by its weight:
//
//	x ─Reshape─▶ [rows,in] ─Gemm(A)─▶ [rows,r] ─Gemm(B, y; alpha/r)─▶ [rows,out] ─Reshape─▶
//	y = x W ──────────────────────────────────────▲
//
// The second Gemm adds y itself, because ONNX Runtime fuses a product of matrices with
// the Add behind it (docs/passes.md), and its alpha is the scale: a Mul would keep or
// scale one more value of the layer's width for the backward pass. A and B are float32
// where the graph computes in a half type: updates are smaller than what a half can hold
// of the parameter.

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
	dtype := l.pairType()
	p := &Pair{Name: name, Rank: rank, Alpha: alpha}
	return p, p.insert(g, types, l, firstA(dtype, name+SuffixA, l.In, rank), onnx.FloatTensor(dtype, make([]float64, rank*l.Out), rank, l.Out))
}

// pairType is the type of a layer's pair.
func (l *Linear) pairType() onnx.DType {
	if d := l.Products[0].In(0).Type.DType; !d.IsHalf() {
		return d
	}
	return onnx.Float32
}

// insert adds the pair with the values A and B behind the products of the layer.
func (p *Pair) insert(g *onnx.Graph, types build.Typer, l *Linear, A, B *onnx.Tensor) error {
	p.A, p.B = g.AddConstant(p.Name+SuffixA, A), g.AddConstant(p.Name+SuffixB, B)
	b := build.New(g, types, Pass)
	for _, n := range l.Products {
		b.From(n, n.Label())
		p.behind(b, l, n)
	}
	return b.Err()
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

// behind adds the pair to what a product returns: its last node takes that one's place
// for everybody else.
func (p *Pair) behind(b *build.Builder, l *Linear, n *onnx.Node) {
	x, y := n.In(0), n.Out(0)
	h := b.Op("Gemm", build.In(rows(b, x, l.In), as(b, p.A, x)), onnx.IntAttr("transA", n.Int("transA", 0)))
	scale := onnx.FloatAttr("alpha", n.Float("alpha", 1)*p.Scale())
	product := rows(b, y, l.Out)
	sum := b.Op("Gemm", build.In(h, as(b, p.B, x), product), scale)
	if b.Err() != nil {
		return
	}
	reader, i := sum.Producer, 2
	if product != y {
		reader, i = product.Producer, 0
		sum = b.Unjoin(sum, x, y.Type.Shape)
	}
	at := slices.Index(b.Graph.Nodes, n)
	b.Graph.Nodes = slices.Insert(b.Graph.Nodes, at+1, b.Take()...)
	b.Graph.TakeOver(y, sum)
	reader.SetInput(i, y)
}

// rows joins the leading axes of a value [...,n].
func rows(b *build.Builder, v *onnx.Value, n int64) *onnx.Value {
	if len(v.Type.Shape) == 2 {
		return v
	}
	return b.Op("Reshape", build.In(v, b.Ints(-1, n)))
}

// as is the parameter in the type that x has.
func as(b *build.Builder, parameter, x *onnx.Value) *onnx.Value {
	if parameter.Type.DType == x.Type.DType {
		return parameter
	}
	return b.Op("Cast", build.In(parameter), onnx.IntAttr("to", int64(x.Type.DType)))
}
