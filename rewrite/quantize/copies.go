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
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

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
		if n.Is("MatMul", "Gemm") {
			for i := range 2 {
				if d, other := n.Inputs[i].Producer, n.Inputs[1-i]; widens(d) && !other.IsConstant() && !widens(other.Producer) {
					b.From(n, n.Label())
					n.SetInput(i, own(b, d, other))
				}
			}
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

// widens reports a node that widens a constant.
func widens(n *onnx.Node) bool {
	return n != nil && n.Is("DequantizeLinear") && n.In(0).IsConstant() && n.In(1).IsConstant()
}

// own is a wide copy that a node makes, made once more, when other is there.
func own(b *build.Builder, d *onnx.Node, other *onnx.Value) *onnx.Value {
	inputs := append([]*onnx.Value{}, d.Inputs...)
	hides := inputs[0].Type.DType.Bits() >= 8
	if hides {
		inputs[0] = control.WaitHidden(b, inputs[0], other)
	} else {
		inputs[1] = control.Wait(b, inputs[1], other)
	}
	w := b.Op("DequantizeLinear", inputs, d.Proto.GetAttribute()...)
	if w == nil {
		return nil
	}
	w.Type = d.Outputs[0].Type
	if hides {
		o := w.Producer.Origin()
		o.Step = onnx.HiddenStep
		w.Producer.SetOrigin(o)
	}
	return w
}
