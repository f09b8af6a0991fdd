package quantize

// Who reads which wide copy.
//
//	Together   codes, scales ─▶ DequantizeLinear ─┬▶ product    as passes take it that
//	                                              └▶ product    divide products
//	Apart      codes, scales ─┬▶ DequantizeLinear ─▶ product    as it runs
//	                          └▶ DequantizeLinear ─▶ product
//
// Apart has each copy wait for its product's other operand, so that the copies differ
// and ONNX Runtime neither merges them nor fuses one with its product. Codes of a byte
// wait, and a view of them hides the shape of the copy: else its buffer would stay
// until the next copy of that shape. Codes of less have no view; there the scales wait.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
)

// InBlocks reports a graph that widens blocks.
func InBlocks(g *onnx.Graph) bool {
	return slices.ContainsFunc(g.Nodes, traits.WidensBlocks)
}

// Together has all readers of a quantized weight read one wide copy again, up to equal
// nodes, and reports whether there was any for a single one.
func Together(g *onnx.Graph) bool {
	changed := false
	for _, n := range g.Nodes {
		if !n.Is("DequantizeLinear") {
			continue
		}
		for i, v := range n.Inputs {
			if w := control.Past(v); w != v && w.IsConstant() {
				n.SetInput(i, w)
				n.SetOrigin(onnx.Origin{Pass: Pass, Of: n.Origin().Of}) // what it returns is hidden no more
				changed = true
			}
		}
	}
	if changed {
		g.RemoveDead()
	}
	return changed
}

// Apart gives each product that reads a widened constant a copy of its own, made right
// before it.
func Apart(g *onnx.Graph) error {
	b := build.New(g, nil, Pass)
	var order []*onnx.Node
	for _, n := range g.Nodes {
		if at, ok := wideInput(n); ok {
			b.From(n, n.Label())
			n.SetInput(at, own(b, n.Inputs[at], n.Inputs[1-at]))
		}
		order = append(append(order, b.Take()...), n)
	}
	if err := b.Err(); err != nil {
		return err
	}
	var err error
	if g.Nodes, err = control.Lower(g, order); err == nil {
		g.RemoveDead()
	}
	return err
}

// Widens reports that a product reads a widened constant.
func Widens(g *onnx.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *onnx.Node) bool { _, ok := wideInput(n); return ok })
}

// wideInput is the input of a product that is a widened constant, where the other one is
// none and no constant.
func wideInput(n *onnx.Node) (at int, ok bool) {
	if !n.Is("MatMul", "Gemm") {
		return 0, false
	}
	for i := range 2 {
		if other := n.Inputs[1-i]; widener(n.Inputs[i]) != nil && !other.IsConstant() && widener(other) == nil {
			return i, true
		}
	}
	return 0, false
}

// widener is the node that widens a constant to v, or to the list that v is made of; nil
// where none does.
func widener(v *onnx.Value) *onnx.Node {
	d := v.Producer
	if d != nil && d.Is("Reshape") && d.In(1).IsConstant() && d.In(0) != nil {
		d = d.Inputs[0].Producer
	}
	if d == nil || !d.Is("DequantizeLinear") || !d.In(0).IsConstant() || !d.In(1).IsConstant() {
		return nil
	}
	return d
}

// own is a wide copy like v, made when other is there.
func own(b *build.Builder, v, other *onnx.Value) *onnx.Value {
	d := widener(v)
	inputs := slices.Clone(d.Inputs)
	hides := inputs[0].Type.DType.Bits() >= 8
	if hides {
		inputs[0] = control.WaitHidden(b, inputs[0], other)
	} else {
		inputs[1] = control.Wait(b, inputs[1], other)
	}
	w := b.Op("DequantizeLinear", inputs, d.Proto.GetAttribute()...)
	if b.Err() != nil {
		return nil
	}
	w.Type = d.Outputs[0].Type
	if hides {
		o := w.Producer.Origin()
		o.Step = onnx.HiddenStep
		w.Producer.SetOrigin(o)
	}
	if d == v.Producer {
		return w
	}
	w = b.Op("Reshape", build.In(w, v.Producer.Inputs[1]), v.Producer.Proto.GetAttribute()...)
	w.Type = v.Type
	return w
}
