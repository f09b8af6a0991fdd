package runtime

// Outputs that are written over inputs: a next value over all of its input, and in the way
// Rows the parts that it joins each over their rows. A part is bound, like the whole, to
// memory that is there; what a step returns has the whole only.

import (
	"errors"
	"fmt"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// ErrRowsOnDevice says that a part of a value on a device cannot be bound.
var ErrRowsOnDevice = errors.New("a part of a value on a device cannot be bound: use --outputs bound")

// A target is the input that an output becomes the value of, or rows of that value; or the
// gradient in whose memory it is summed up.
type target struct {
	in   *input
	part []int64 // the extents of a part; nil: it is the whole
	at   int64   // the byte of the value at which the part begins
	sum  *sum
}

// aside reports an output that no step returns.
func (t target) aside(name string) bool {
	return t.part != nil || t.sum != nil && name != t.sum.gradient()
}

// targets are those of the outputs that have one.
func (s *Session) targets() map[string]target {
	from := map[string]target{}
	for _, in := range s.inputs {
		if in.next == "" {
			continue
		}
		from[in.next] = target{in: in}
		if !in.inPlace || s.way != step.Rows {
			continue
		}
		at := int64(0)
		for _, part := range step.RowsOf(s.Model.Graph.Value(in.next)) {
			extents, _ := part.Type.Shape.Ints()
			from[part.Name] = target{in: in, part: extents, at: at}
			at += part.Type.KnownBytes() // as its extents are
		}
	}
	for _, sum := range s.sums {
		for _, name := range sum.outputs {
			from[name] = target{sum: sum}
		}
	}
	return from
}

// bindOutputs binds each output to the value that over gives for the input
// whose next value it is, or to that of the sum of which it is one, else to memory of ONNX
// Runtime's on the host.
func (s *Session) bindOutputs(b *ort.Binding, over func(*input) (*ort.Value, error)) error {
	values := map[*input]*ort.Value{}
	for _, o := range s.ort.Outputs {
		to, known := s.next[o.Name]
		if !known {
			if err := b.BindOutputToDevice(o.Name, ort.CPU, 0); err != nil {
				return err
			}
			continue
		}
		if to.sum != nil {
			if err := b.BindOutput(o.Name, to.sum.value); err != nil {
				return err
			}
			continue
		}
		v, asked := values[to.in]
		if !asked {
			var err error
			if v, err = over(to.in); err != nil {
				return err
			}
			values[to.in] = v
		}
		if err := s.bindOver(b, o.Name, to, v); err != nil {
			return err
		}
	}
	return nil
}

// bindOver binds an output to a value, or to the part of it that is the output's; nil leaves
// it to ONNX Runtime.
func (s *Session) bindOver(b *ort.Binding, name string, to target, v *ort.Value) error {
	switch {
	case v == nil:
		return b.BindOutputToDevice(name, ort.CPU, 0)
	case to.part == nil:
		return b.BindOutput(name, v)
	case !v.OnHost():
		return fmt.Errorf("output %q: %w", name, ErrRowsOnDevice)
	}
	part, err := s.engine.Env.TensorOver(v.Bytes()[to.at:], v.Type, to.part)
	if err != nil {
		return fmt.Errorf("output %q: %w", name, err)
	}
	// The binding has a value of its own over the same memory, which is the input's.
	return errors.Join(b.BindOutput(name, part), part.Close())
}

// Bound lists the outputs that the session writes over inputs, or sums up in one memory.
func (s *Session) Bound() []string {
	bound := []string{}
	for _, in := range s.inputs {
		if in.inPlace {
			bound = append(bound, onnx.Names(step.BoundWith(s.Model.Graph.Value(in.next), s.way))...)
		}
	}
	for _, sum := range s.sums {
		bound = append(bound, sum.outputs...)
	}
	return bound
}
