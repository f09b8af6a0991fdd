package quantize

// A wide copy of a large weight, such as a language model's output layer, over slices of
// the axis along which no blocks lie, so that it never exists whole:
//
//	codes, scales ─▶ Slice ─▶ DequantizeLinear ─▶ product ─┬▶ Concat   of columns
//	                                                       └▶ Add      of summands
//
// Products that sum over the sliced axis add in another order than the whole one, so
// results may differ in their last bits. Codes of four bits stay whole: no Slice takes
// them.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

const (
	// sliceOver is the size in bytes above which a wide copy is made in slices, and
	// sliceBytes that of a slice at most.
	sliceOver, sliceBytes = 64 << 20, 32 << 20
)

// A slicer computes products over slices of a weight.
type slicer struct {
	b *build.Builder
	// over and most are sliceOver and sliceBytes.
	over, most int64
}

// product computes a product with the wide copy n.Inputs[at] over slices, and reports
// false where that is not large, or cannot be sliced.
func (s *slicer) product(n *onnx.Node, at int) bool {
	v, other := n.Inputs[at], n.Inputs[1-at]
	size, known := v.Type.Bytes()
	d := widener(v)
	sum, why := summed(onnx.Use{Node: n, Index: at})
	if !known || size <= s.over || d != v.Producer || d.Inputs[0].Type.DType.Bits() < 8 || len(v.Type.Shape) != 2 || why != "" || d.In(2) != nil {
		return false
	}
	block := int(d.Int("axis", 1))
	along, dims := 1-block, d.Inputs[0].Init.Dims()
	if n.In(2) != nil && (at == 0 || sum != along && !n.In(2).Type.Ranked) {
		return false
	}
	if block < 0 || len(other.Type.Shape) < 2 || len(n.Outputs[0].Type.Shape) < 2 {
		return false
	}
	parts := (size + s.most - 1) / s.most
	step := (dims[along] + parts - 1) / parts
	codes, scales := control.WaitHidden(s.b, d.Inputs[0], other), control.Wait(s.b, d.Inputs[1], other)
	var made []*onnx.Value
	for first := int64(0); first < dims[along]; first += step {
		last := min(first+step, dims[along])
		wide := s.b.Op("DequantizeLinear", build.In(s.slice(codes, along, first, last), s.slice(scales, along, first, last)), d.Proto.GetAttribute()...)
		factors := build.In(other, other)
		factors[at] = wide
		if sum == along {
			factors[1-at] = s.slice(other, summedOf(n, 1-at), first, last)
		}
		if c := n.In(2); c != nil && sum != along {
			factors = append(factors, s.added(c, dims[along], first, last))
		} else if c != nil && first == 0 {
			factors = append(factors, c)
		}
		y := s.b.Op(n.OpType(), factors, n.Proto.GetAttribute()...)
		if s.b.Err() != nil {
			return false
		}
		o := wide.Producer.Origin()
		o.Step = onnx.HiddenStep
		wide.Producer.SetOrigin(o)
		made = append(made, y)
	}
	y := made[0]
	if sum == along {
		for _, x := range made[1:] {
			y = s.b.Op("Add", build.In(y, x))
		}
	} else {
		y = s.b.Op("Concat", made, onnx.IntAttr("axis", int64(len(n.Outputs[0].Type.Shape)-2+at)))
	}
	if s.b.Err() == nil {
		s.b.Graph.TakeOver(n.Outputs[0], y)
	}
	return true
}

// added is what a product of n columns adds to those from first to before last.
func (s *slicer) added(c *onnx.Value, n, first, last int64) *onnx.Value {
	rank := len(c.Type.Shape)
	if rank == 0 || c.Type.Shape[rank-1] != onnx.StaticShape(n)[0] {
		return c
	}
	return s.slice(c, rank-1, first, last)
}

// slice is x from first to before last along an axis.
func (s *slicer) slice(x *onnx.Value, axis int, first, last int64) *onnx.Value {
	return s.b.Op("Slice", build.In(x, s.b.Ints(first), s.b.Ints(last), s.b.Ints(int64(axis))))
}

// summedOf is the axis of a product's operand that it sums over, of any rank.
func summedOf(n *onnx.Node, at int) int {
	rank := len(n.Inputs[at].Type.Shape)
	columns := at == 0
	if n.Is("Gemm") && n.Int([]string{"transA", "transB"}[at], 0) != 0 {
		columns = !columns
	}
	if columns {
		return rank - 1
	}
	return rank - 2
}

// Sliced has the products with wide copies of large weights computed over slices, and
// returns how many are.
func Sliced(g *onnx.Graph, types build.Typer) (int, error) {
	return sliced(g, types, sliceOver, sliceBytes)
}

func sliced(g *onnx.Graph, types build.Typer, over, most int64) (int, error) {
	b := build.New(g, types, Pass)
	s, count := &slicer{b, over, most}, 0
	var order []*onnx.Node
	for _, n := range slices.Clone(g.Nodes) {
		if n.Is("MatMul", "Gemm") {
			for i := range 2 {
				if widener(n.Inputs[i]) == nil || n.Inputs[1-i].IsConstant() || widener(n.Inputs[1-i]) != nil {
					continue
				}
				b.From(n, n.Label())
				if s.product(n, i) {
					count++
					break
				}
			}
		}
		order = append(append(order, b.Take()...), n)
	}
	if err := b.Err(); err != nil {
		return count, err
	}
	var err error
	if g.Nodes, err = control.Lower(g, order); err == nil {
		g.RemoveDead()
	}
	return count, err
}
