package quantize

// A wide copy of a large weight, such as a language model's output layer, over slices of
// the axis along which no blocks lie, so that it never exists whole:
//
//	codes, scales ─▶ Slice ─▶ DequantizeLinear ─▶ product ─┬▶ Concat   of columns
//	                                                       └▶ Add      of summands
//
// Products that sum over the sliced axis add in another order than the whole one, so
// results may differ in their last bits. Codes of four bits stay whole: no Slice takes
// them. So do copies that take no more than what their slices add: the columns a second
// time as Concat joins them, or of summands the slices of the other operand and a sum.
//
// Codes wait for the product's other operand, as they do whole (copies.go), and the
// shapes of their slices are hidden as the copy's is: ONNX Runtime would know the copy by
// them, and keep its buffer for the next one. The edges stay when the file is planned
// anew, and so do the slices.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
)

// Limits say which wide copies are made in slices: those of more than Over bytes, in
// slices of Most at most.
type Limits struct{ Over, Most int64 }

// Large are the limits at which the nodes of slices are few beside what they save.
var Large = Limits{Over: 64 << 20, Most: 32 << 20}

// A cutting is how the product n, with the wide copy of its input at, is computed over
// slices.
type cutting struct {
	b  *build.Builder
	n  *onnx.Node
	at int
	// widen makes the whole copy, along is its sliced axis, of that extent, and step of a slice.
	widen        *onnx.Node
	along        int
	extent, step int64
	// sums: the product sums over the sliced axis.
	sums bool
}

// cutting returns how a product is computed over slices; false where its wide copy is
// not worth it, or cannot be sliced.
func (l Limits) cutting(b *build.Builder, n *onnx.Node, at int) (cutting, bool) {
	v, other, y, d := n.Inputs[at], n.Inputs[1-at], n.Outputs[0], widener(n.Inputs[at])
	wide, known := v.Type.Bytes()
	if !known || wide <= l.Over || d != v.Producer || d.Inputs[0].Type.DType.Bits() < 8 || len(v.Type.Shape) != 2 || d.In(2) != nil {
		return cutting{}, false
	}
	sum, why := summed(onnx.Use{Node: n, Index: at})
	along := 1 - int(d.Int("axis", 1))
	added := n.In(2)
	if why != "" || along < 0 || along > 1 || len(other.Type.Shape) < 2 || len(y.Type.Shape) < 2 ||
		added != nil && (at == 0 || sum != along && !added.Type.Ranked) {
		return cutting{}, false
	}
	c := cutting{b: b, n: n, at: at, widen: d, along: along, extent: d.Inputs[0].Init.Dims()[along], sums: sum == along}
	parts := (wide + l.Most - 1) / l.Most
	c.step = (c.extent + parts - 1) / parts
	more, known := y.Type.Bytes()
	if c.sums && known {
		var operand int64
		operand, known = other.Type.Bytes()
		more += operand / parts
	}
	return c, known && parts > 1 && wide/parts+more < wide
}

// over has the product computed over slices.
func (c *cutting) over() {
	b, other := c.b, c.n.Inputs[1-c.at]
	codes, scales := control.WaitHidden(b, c.widen.Inputs[0], other), control.WaitHidden(b, c.widen.Inputs[1], other)
	var made []*onnx.Value
	for first := int64(0); first < c.extent; first += c.step {
		last := min(first+c.step, c.extent)
		wide := c.hidden(b.Op("DequantizeLinear", build.In(
			c.hidden(c.slice(codes, c.along, first, last)),
			c.hidden(c.slice(scales, c.along, first, last))), c.widen.Proto.GetAttribute()...))
		factors := build.In(other, other)
		factors[c.at] = wide
		if c.sums {
			factors[1-c.at] = c.slice(other, summedOf(c.n, 1-c.at), first, last)
		}
		if added := c.added(first, last); added != nil {
			factors = append(factors, added)
		}
		made = append(made, b.Op(c.n.OpType(), factors, c.n.Proto.GetAttribute()...))
	}
	y := made[0]
	if !c.sums {
		y = b.Op("Concat", made, onnx.IntAttr("axis", int64(len(c.n.Outputs[0].Type.Shape)-2+c.at)))
	} else {
		for _, x := range made[1:] {
			y = b.Op("Add", build.In(y, x))
		}
	}
	if b.Err() == nil {
		b.Graph.TakeOver(c.n.Outputs[0], y)
	}
}

// hidden hides the type of a value.
func (c *cutting) hidden(v *onnx.Value) *onnx.Value {
	if c.b.Err() == nil {
		o := v.Producer.Origin()
		o.Step = onnx.HiddenStep
		v.Producer.SetOrigin(o)
	}
	return v
}

// added is what the product adds to the slice from first to before last, nil for nothing:
// of summands, the first one gets it all.
func (c *cutting) added(first, last int64) *onnx.Value {
	a := c.n.In(2)
	switch {
	case a == nil || c.sums && first > 0:
		return nil
	case c.sums:
		return a
	}
	rank := len(a.Type.Shape)
	if rank == 0 || a.Type.Shape[rank-1] != onnx.StaticShape(c.extent)[0] {
		return a
	}
	return c.slice(a, rank-1, first, last)
}

// slice is x from first to before last along an axis.
func (c *cutting) slice(x *onnx.Value, axis int, first, last int64) *onnx.Value {
	return c.b.Op("Slice", build.In(x, c.b.Ints(first), c.b.Ints(last), c.b.Ints(int64(axis))))
}

// summedOf is the axis of a product's operand that it sums over, of any rank.
func summedOf(n *onnx.Node, at int) int {
	row, column := traits.MatrixAxes(n, at)
	if at == 0 {
		return column
	}
	return row
}

// Sliced has the products with wide copies of large weights computed over slices, and
// returns how many are.
func Sliced(g *onnx.Graph, types build.Typer, l Limits) (int, error) {
	b := build.New(g, types, Pass)
	count := 0
	var order []*onnx.Node
	for _, n := range slices.Clone(g.Nodes) {
		if at, ok := wideInput(n); ok {
			if c, ok := l.cutting(b, n, at); ok {
				b.From(n, n.Label())
				c.over()
				count++
			}
		}
		order = append(append(order, b.Take()...), n)
	}
	if err := b.Err(); err != nil || count == 0 {
		return count, err
	}
	var err error
	if g.Nodes, err = control.Lower(g, order); err == nil {
		g.RemoveDead()
	}
	return count, err
}
