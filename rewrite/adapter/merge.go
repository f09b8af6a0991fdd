package adapter

// The product of a trained pair, added to its weight:
//
//	W' = W + (alpha / r) A B
//
// in the layout that W has, each element summed in float64 and rounded once. What else
// reads a tied weight goes on reading W: the products get a weight of their own. To codes
// nothing can be added: there the pair stays beside the weight, as it was trained.

import (
	"errors"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// Trained are the values of a pair, row by row: A [in,r], B [r,out].
type Trained struct {
	Rank  int64
	Scale float64
	A, B  []float64
}

// Turned are the values as torch.nn.Linear has them, [r,in] and [out,r], in float32.
func (t Trained) Turned(in, out int64) (a, b *onnx.Tensor) {
	return onnx.FloatTensor(onnx.Float32, transposed(t.A, in, t.Rank), t.Rank, in),
		onnx.FloatTensor(onnx.Float32, transposed(t.B, t.Rank, out), out, t.Rank)
}

// Codes reports a weight that a pair cannot be added to.
func (l *Linear) Codes() bool { return l.Quantized || !l.Weight.Init.DType().IsFloat() }

// Beside puts a trained pair beside the weight of a linear layer, as Insert does, unless one
// stands there.
func Beside(g *onnx.Graph, types build.Typer, l *Linear, name string, t Trained) error {
	if g.Value(name+SuffixA) != nil || g.Value(name+SuffixB) != nil {
		return errors.New("the model has a pair beside it already: give the model that grad was given")
	}
	dtype := l.pairType()
	p := &Pair{Name: name, Rank: t.Rank, Alpha: t.Scale * float64(t.Rank)}
	return p.insert(g, types, l, onnx.FloatTensor(dtype, t.A, l.In, t.Rank), onnx.FloatTensor(dtype, t.B, t.Rank, l.Out))
}

// Merge gives the products of a linear layer, whose weight is none of codes, the merged
// weight, and returns it: the layer's own, or beside a tied one a new initializer.
func Merge(g *onnx.Graph, l *Linear, t Trained) (*onnx.Value, error) {
	merged, err := l.sum(t)
	if err != nil {
		return nil, err
	}
	w := l.Weight
	if l.Tied() {
		w = g.AddConstant(w.Name+".merged", merged)
		l.readInstead(g, w)
		return w, nil
	}
	merged.Proto.Name = new(w.Name)
	w.Init = merged
	return w, nil
}

// sum is the weight with the pair's product, row by row of the weight's own layout.
func (l *Linear) sum(t Trained) (*onnx.Tensor, error) {
	rows, cols, left, right := l.In, l.Out, t.A, t.B
	if l.Transposed { // (A B)ᵀ = Bᵀ Aᵀ
		rows, cols, left, right = l.Out, l.In, transposed(t.B, t.Rank, l.Out), transposed(t.A, l.In, t.Rank)
	}
	dtype := l.Weight.Init.DType()
	data, err := l.Weight.Init.Bytes()
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(data))
	width := cols * dtype.Size()
	for i := range rows {
		row, err := onnx.NewTensor(dtype, []int64{cols}, data[i*width:(i+1)*width]).Float64s()
		if err != nil {
			return nil, err
		}
		addRow(row, left[i*t.Rank:(i+1)*t.Rank], right, t.Scale)
		bytes, err := onnx.FloatTensor(dtype, row, cols).Bytes()
		if err != nil {
			return nil, err
		}
		out = append(out, bytes...)
	}
	return onnx.NewTensor(dtype, l.Weight.Init.Dims(), out), nil
}

// addRow adds scale times the product of a row [r] and a matrix [r,cols].
func addRow(row, left, right []float64, scale float64) {
	sum := make([]float64, len(row))
	for k, x := range left {
		for j, y := range right[k*len(row) : (k+1)*len(row)] {
			sum[j] += x * y
		}
	}
	for j := range row {
		row[j] += scale * sum[j]
	}
}

// transposed exchanges the axes of a matrix.
func transposed(m []float64, rows, cols int64) []float64 {
	out := make([]float64, len(m))
	for i := range rows {
		for j := range cols {
			out[j*rows+i] = m[i*cols+j]
		}
	}
	return out
}

// readInstead lets the products read another weight of the same layout, through copies
// of the nodes between.
func (l *Linear) readInstead(g *onnx.Graph, w *onnx.Value) {
	for _, n := range l.Products {
		n.SetInput(1, l.copied(g, n.In(1), w, n))
	}
}

// copied is v computed from w as it is from the layer's weight; copies stand before at.
func (l *Linear) copied(g *onnx.Graph, v, w *onnx.Value, at *onnx.Node) *onnx.Value {
	if v == l.Weight {
		return w
	}
	n := v.Producer
	inputs := slices.Clone(n.Inputs)
	inputs[0] = l.copied(g, n.In(0), w, at)
	c := g.CloneNode(n, inputs, func(name string) string { return name + ".merged" })
	g.InsertBefore(at, c)
	return c.Out(0)
}
