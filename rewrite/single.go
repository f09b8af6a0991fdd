package rewrite

// Numbers in float64 that become float32, for runtimes that have no float64.
//
//	step ─▶ Cast(double) ─▶ Pow ─▶ Sub ─▶ Cast(float)   ─▶   step ─▶ Cast(float) ─▶ Pow ─▶ Sub
//
// Optimizers compute the numbers of a step, such as AdamW's bias correction, in float64: in
// float32 the rate is off by up to 1e-5 of itself, in the first steps. Only numbers are changed: where a tensor of more elements is in
// float64, or an input or output, the model itself wants it, and nothing is.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// Single makes the numbers in float64 of a typed graph float32. The report says what is
// left.
func Single(g *onnx.Graph) (Report, error) {
	report := Report{Pass: "single"}
	var doubles []*onnx.Value
	for v := range values(g) {
		if v.Type.DType != onnx.Float64 {
			continue
		}
		report.Requested++
		if n, ok := v.Type.Shape.Elements().Int(); !ok || !v.Type.Ranked || n != 1 || v.IsInput() || v.IsOutput() {
			report.skip(v.Name, "the model computes in float64 itself (%s)", v.Type)
			return report, nil
		}
		doubles = append(doubles, v)
	}
	for _, v := range doubles {
		if err := single(v); err != nil {
			return report, fmt.Errorf("%q: %w", v.Name, err)
		}
		report.Applied++
	}
	for _, n := range g.Nodes { // what was a cast back
		if in, out := n.In(0), n.Out(0); n.Is("Cast") && in.Type.DType == out.Type.DType && !out.IsOutput() {
			g.ReplaceUses(out, in)
		}
	}
	g.RemoveDead()
	return report, nil
}

// values are the inputs, initializers and computed values of a graph.
func values(g *onnx.Graph) func(func(*onnx.Value) bool) {
	return func(yield func(*onnx.Value) bool) {
		for _, list := range [][]*onnx.Value{g.Inputs, g.Initializers} {
			for _, v := range list {
				if !yield(v) {
					return
				}
			}
		}
		for _, n := range g.Nodes {
			for _, v := range n.Returns() {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// single makes one number float32, with what makes it.
func single(v *onnx.Value) error {
	narrow := func(t *onnx.Tensor) (*onnx.Tensor, error) {
		x, err := t.Float64s()
		if err != nil {
			return nil, err
		}
		return onnx.FloatTensor(onnx.Float32, x, t.Dims()...), nil
	}
	v.Type.DType = onnx.Float32
	switch n := v.Producer; {
	case v.Init != nil:
		t, err := narrow(v.Init)
		if err != nil {
			return err
		}
		t.Proto.Name = v.Init.Proto.Name
		v.Init = t
	case n.Is("Cast"):
		n.SetAttr(onnx.IntAttr("to", int64(onnx.Float32)))
	case n.Is("Constant", "ConstantOfShape") && n.TensorAttr("value") != nil:
		t, err := narrow(n.TensorAttr("value"))
		if err != nil {
			return err
		}
		n.SetAttr(onnx.TensorAttrOf("value", t))
	}
	return nil
}
