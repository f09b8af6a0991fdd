package infer

// Control flow has the types that its subgraphs declare.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// body is a graph attribute.
func (c *ctx) body(name string) (*pb.GraphProto, error) {
	g := c.n.Attr(name).GetG()
	if g == nil {
		return nil, fmt.Errorf("no attribute %s", name)
	}
	return g, nil
}

func (c *ctx) declared(t *pb.ValueInfoProto) onnx.Type {
	return c.r.subst(onnx.TypeFromProto(t.GetType()))
}

// ifElse: what both branches declare, or the one that is known to be taken.
func ifElse(c *ctx) error {
	then, err := c.body("then_branch")
	if err != nil {
		return err
	}
	other, err := c.body("else_branch")
	if err != nil {
		return err
	}
	if len(then.Output) != len(c.types) || len(other.Output) != len(c.types) {
		return fmt.Errorf("branches of %d and %d outputs for %d", len(then.Output), len(other.Output), len(c.types))
	}
	if t := c.in(0); t.DType != onnx.Undefined && t.DType != onnx.Bool {
		return fmt.Errorf("the condition is %s, want one bool", t)
	}
	if s, ok := c.shape(0); ok {
		if count, ok := s.Elements().Int(); ok && count != 1 {
			return fmt.Errorf("the condition has %d elements, want one", count)
		}
	}
	taken := map[bool]*pb.GraphProto{true: then, false: other}
	cond, known := c.scalar(0).Int()
	for i := range c.types {
		if known {
			c.types[i] = c.declared(taken[cond != 0].Output[i])
			continue
		}
		c.types[i] = common(c.declared(then.Output[i]), c.declared(other.Output[i]))
	}
	return nil
}

// common is what two types agree on.
func common(a, b onnx.Type) onnx.Type {
	if a.Other != nil || b.Other != nil || !a.Known() || !b.Known() || a.DType != b.DType {
		if a.Other != nil && b.Other != nil {
			return a
		}
		return onnx.Type{}
	}
	if !a.Ranked || !b.Ranked || len(a.Shape) != len(b.Shape) {
		return onnx.Type{DType: a.DType}
	}
	out := unknowns(len(a.Shape))
	for i := range out {
		if a.Shape[i] == b.Shape[i] {
			out[i] = a.Shape[i]
		}
	}
	return onnx.TensorOf(a.DType, out)
}

// loop: the carried values, then per scan output a dimension of the trips.
func loop(c *ctx) error {
	body, err := c.body("body")
	if err != nil {
		return err
	}
	carried := max(len(c.n.Inputs)-2, 0)
	if len(body.Output) != len(c.types)+1 || carried > len(c.types) {
		return fmt.Errorf("a body of %d outputs, %d carried values and %d outputs", len(body.Output), carried, len(c.types))
	}
	for i := range c.types {
		t := c.declared(body.Output[i+1])
		if i < carried {
			c.types[i] = t
			// The value that goes in is returned where no trip is made, and a
			// body may change its extents from trip to trip.
			if in := c.in(i + 2); t.Other == nil && in.Known() {
				c.types[i] = common(t, in)
				c.types[i].DType = in.DType
			}
			continue
		}
		if c.types[i], err = stacked(t, 0, onnx.Dim{}); err != nil {
			return err
		}
	}
	return nil
}

// stacked is the type of n tensors of a type, stacked along an axis of the result.
func stacked(t onnx.Type, axis int64, n onnx.Dim) (onnx.Type, error) {
	if !t.Ranked {
		return onnx.Type{DType: t.DType}, nil
	}
	k, err := normAxis(axis, len(t.Shape)+1)
	if err != nil {
		return t, err
	}
	return onnx.TensorOf(t.DType, splice(t.Shape, k, k, n)), nil
}

// scan (opset 9): the states, then per scan output a dimension of the
// sequence, at its axis.
func scan(c *ctx) error {
	body, err := c.body("body")
	if err != nil {
		return err
	}
	states := int64(len(c.n.Inputs)) - c.n.Int("num_scan_inputs", 0)
	if states < 0 || states > int64(len(c.types)) || len(body.Output) != len(c.types) {
		return fmt.Errorf("a body of %d outputs, %d states and %d outputs", len(body.Output), states, len(c.types))
	}
	length := c.scanLength(int(states))
	axes := c.n.Ints("scan_output_axes")
	for i := range c.types {
		t := c.declared(body.Output[i])
		k := i - int(states)
		if k < 0 {
			c.types[i] = t
			if in := c.in(i); in.Known() {
				c.types[i] = in
			}
			continue
		}
		axis := int64(0)
		if k < len(axes) {
			axis = axes[k]
		}
		if c.types[i], err = stacked(t, axis, length); err != nil {
			return err
		}
	}
	return nil
}

// scanLength is the extent that the scan inputs share.
func (c *ctx) scanLength(states int) onnx.Dim {
	axes := c.n.Ints("scan_input_axes")
	length := onnx.Dim{}
	for i := states; i < len(c.n.Inputs); i++ {
		s, ok := c.shape(i)
		if !ok || len(s) == 0 {
			continue
		}
		axis := 0
		if k := i - states; k < len(axes) {
			var err error
			if axis, err = normAxis(axes[k], len(s)); err != nil {
				continue
			}
		}
		if d, err := unify(length, s[axis]); err == nil {
			length = d
		}
	}
	return length
}
