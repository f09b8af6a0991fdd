package lower

import (
	"errors"
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// lossGrad differentiates the forward node that made the log probabilities:
// they need not be kept, and the node itself, which has no kernel, goes too.
func lossGrad(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	lp := n.In(1)
	if lp == nil || lp.Producer == nil || !lp.Producer.Is("SoftmaxCrossEntropyLoss") || lp != lp.Producer.Out(1) {
		return nil, errors.New("its log probabilities are not from a SoftmaxCrossEntropyLoss")
	}
	forward := lp.Producer
	loss := forward.Out(0)
	if loss == nil {
		return nil, errors.New("the loss that it belongs to has been removed")
	}
	name := loss.Name
	n.SetInput(1, nil)
	got, err := p.emit.Gradients(forward, []*onnx.Value{n.In(0)}, []bool{true})
	if err != nil {
		return nil, err
	}
	p.loss = p.g.Value(name)
	return got[:1], nil
}

// internalLoss is SoftmaxCrossEntropyLoss with ignore_index as an attribute.
func internalLoss(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	if v := n.In(3); v != nil {
		label, ok := p.emit.Context(n).Ints(v)
		if !ok || len(label) != 1 {
			return nil, fmt.Errorf("the ignored label %q is not a constant", v.Name)
		}
		n.SetAttr(onnx.IntAttr("ignore_index", label[0]))
		n.SetInput(3, nil)
		n.Inputs = n.Inputs[:3]
	}
	return plain("SoftmaxCrossEntropyLoss")(p, n)
}

// joinedAxes is the softmax of opsets below 13: over all axes from one on.
func joinedAxes(op string) func(*pass, *onnx.Node) ([]*onnx.Value, error) {
	return func(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
		c := p.emit.Context(n)
		dy, y := n.In(0), n.In(1)
		axis := c.Axis("axis", 1, y)
		if axis == c.Rank(y)-1 {
			return p.byRule(stand{op: op, in: []int{lost}, out: []int{1}, grads: []int{0}}, n)
		}
		two := onnx.Shape{y.Type.Shape[:axis].Elements(), y.Type.Shape[axis:].Elements()}
		dy2, y2 := c.ReshapeDims(dy, two), c.ReshapeDims(y, two)
		if dy2 == nil || y2 == nil {
			return nil, p.b.Err()
		}
		f := grad.Stand("", op, n.Label(), []*onnx.Value{p.emit.Placeholder(y2.Type, nil)}, []*onnx.Value{y2}, nil)
		got, err := p.emit.Gradients(f, []*onnx.Value{dy2}, []bool{true})
		if err != nil {
			return nil, err
		}
		return []*onnx.Value{c.Reshape(got[0], y)}, nil
	}
}

// divGrad makes the quotient again, which the operator does not get.
func divGrad(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	c := p.emit.Context(n)
	a, b := n.In(1), n.In(2)
	y := p.emit.Placeholder(n.In(0).Type, nil)
	if n.Out(1) != nil {
		if y = c.Do("Div", a, b); y == nil {
			return nil, p.b.Err()
		}
	}
	f := grad.Stand("", "Div", n.Label(), []*onnx.Value{a, b}, []*onnx.Value{y}, nil)
	if a == b {
		f.Inputs[1] = p.emit.Placeholder(b.Type, nil)
		return nil, errors.New("a quotient of a value by itself")
	}
	got, err := p.emit.Gradients(f, []*onnx.Value{n.In(0)}, []bool{n.Out(0) != nil, n.Out(1) != nil})
	return got, err
}

// dropoutGrad: without a training mode the operator trains.
func dropoutGrad(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	s := stand{op: "Dropout", in: []int{lost, 2, 3}, out: []int{lost, 1}, grads: []int{0}}
	if n.In(3) == nil {
		yes := p.emit.Context(n).Const(onnx.NewTensor(onnx.Bool, nil, []byte{1}))
		for len(n.Inputs) < 3 {
			n.SetInput(len(n.Inputs), nil)
		}
		n.SetInput(3, yes)
	}
	return p.byRule(s, n)
}

func scale(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	c := p.emit.Context(n)
	factor := c.CastTo(n.In(1), n.In(0))
	op := "Mul"
	if n.Int("scale_down", 0) != 0 {
		op = "Div"
	}
	return []*onnx.Value{c.Do(op, n.In(0), factor)}, nil
}

// accumulate adds to a sum, or starts a new one. Where the operator only returned
// that it has done so, the sum itself takes the name: bound onto the buffer it
// is the same update.
func accumulate(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	c := p.emit.Context(n)
	value := n.In(1)
	sum := c.Plus(n.In(0), value)
	if reset := n.In(2); reset != nil && n.OpType() == "InPlaceAccumulatorV2" {
		// Not a product with zero: the old sum may hold anything.
		sum = c.Where(reset, value, sum)
	}
	if sum == nil {
		return nil, p.b.Err()
	}
	p.sums[value.Name] = sum
	if n.OpType() == "InPlaceAccumulator" {
		return []*onnx.Value{sum}, nil
	}
	if v := n.Out(1); v != nil {
		flag := c.Const(onnx.NewTensor(onnx.Bool, []int64{1}, []byte{1}))
		return []*onnx.Value{c.Do("Identity", flag), sum}, nil
	}
	return []*onnx.Value{sum}, nil
}

// broadcastAxes: constants where the shapes are known; else, with ones in front
// of the shorter shape, the axes where the operand has one and the result more.
func broadcastAxes(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	c := p.emit.Context(n)
	result := make([]*onnx.Value, 2)
	known := make([][]int64, 2)
	all := true
	for i := range known {
		ok := n.Out(i) == nil
		if !ok {
			known[i], ok = c.Ints(n.Out(i))
		}
		all = all && ok
	}
	if all {
		for i, axes := range known {
			if n.Out(i) != nil {
				result[i] = c.Do("Identity", c.IntList(axes...))
			}
		}
		return result, nil
	}
	a, b := n.In(0), n.In(1)
	rank := c.Do("Max", c.Do("Shape", a), c.Do("Shape", b))
	aligned := func(s *onnx.Value) *onnx.Value {
		ones := c.Do("Expand", c.IntList(1), c.Minus(rank, c.Do("Shape", s)))
		return c.Op("Concat", []*onnx.Value{ones, s}, onnx.IntAttr("axis", 0))
	}
	full := c.Do("Max", aligned(a), aligned(b))
	for i, s := range []*onnx.Value{a, b} {
		if n.Out(i) == nil {
			continue
		}
		differ := c.Do("Not", c.Do("Equal", aligned(s), full))
		result[i] = c.Do("Squeeze", c.Do("NonZero", differ), c.IntList(0))
	}
	return result, nil
}
