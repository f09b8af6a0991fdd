package lower

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// plain turns a private forward operator into the standard one that it extends.
// The outputs that only the private one has stay until the gradient operators
// that read them are gone.
func plain(op string, attrs ...onnx.Attribute) func(*pass, *onnx.Node) ([]*onnx.Value, error) {
	return func(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
		n.Proto.Domain = new("")
		n.SetOpType(op)
		for _, a := range attrs {
			n.SetAttr(a)
		}
		return nil, nil
	}
}

// plainOutputs is how many outputs the standard form of an operator has at
// most, for those that plain makes.
func plainOutputs(n *onnx.Node) int {
	switch {
	case n.Is("LSTM", "BatchNormalization"):
		return 3
	case n.Is("GRU"):
		return 2
	case n.Is("Concat"):
		return 1
	}
	return len(n.Outputs)
}

// concatTraining is Concat; the lengths are constants, or read off the inputs.
func concatTraining(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	if _, err := plain("Concat")(p, n); err != nil {
		return nil, err
	}
	if lengths := n.Out(1); lengths == nil || lengths.Dead() {
		return nil, nil
	}
	c := p.emit.Context(n)
	axis := c.Axis("axis", 0, n.In(0))
	var known []int64
	for _, v := range n.Inputs {
		if c.Rank(v) <= axis {
			return nil, fmt.Errorf("axis %d of %q", axis, v.Name)
		}
		if d, ok := v.Type.Shape[axis].Int(); ok {
			known = append(known, d)
		}
	}
	if len(known) == len(n.Inputs) {
		return []*onnx.Value{nil, c.Do("Identity", c.IntList(known...))}, nil
	}
	var parts []*onnx.Value
	for _, v := range n.Inputs {
		parts = append(parts, c.Op("Shape", []*onnx.Value{v}, onnx.IntAttr("start", int64(axis)), onnx.IntAttr("end", int64(axis+1))))
	}
	return []*onnx.Value{nil, c.Op("Concat", parts, onnx.IntAttr("axis", 0))}, nil
}

// recurrentGrad is the rule of the forward node, which is found by the states
// that it made; the gradients of its outputs begin at input first.
func recurrentGrad(op string, first, count int) func(*pass, *onnx.Node) ([]*onnx.Value, error) {
	return func(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
		var forward *onnx.Node
		for _, v := range n.Reads() {
			if v.Producer != nil && v.Producer.Is(op) {
				forward = v.Producer
			}
		}
		if forward == nil {
			return nil, fmt.Errorf("no %s made its states", op)
		}
		arrived := make([]*onnx.Value, count)
		for i := range arrived {
			arrived[i] = n.In(first + i)
		}
		// Outputs: X, W, R, B, then the states, which come after the lengths.
		wanted := make([]bool, 7)
		from := []int{0, 1, 2, 3, 5, 6}
		for o, i := range from {
			wanted[i] = n.Out(o) != nil && forward.In(i) != nil
		}
		if n.Out(6) != nil && !n.Out(6).Dead() {
			return nil, fmt.Errorf("a gradient of peephole weights")
		}
		got, err := p.emit.Gradients(forward, arrived, wanted)
		if err != nil {
			return nil, err
		}
		result := make([]*onnx.Value, len(from))
		for o, i := range from {
			result[o] = got[i]
		}
		return result, nil
	}
}
