package ort

// Copies between host and device.
//
// OrtApi's own CopyTensors needs a provider registered as a plugin, so a
// session of one Identity node does it: the input is bound to the source, the
// output to the destination, and IoBinding moves both to and from the device.
// Weakness: host to host it is a copy inside a run, slower than memmove.

import (
	"context"
	"fmt"
	"slices"
)

// A Copier copies tensors of one type and rank to and from one device.
type Copier struct {
	session *Session
	binding *Binding
	dtype   DType
	rank    int
}

// NewCopier makes the session for it.
func (e *Environment) NewCopier(p Provider, device int, t DType, rank int) (*Copier, error) {
	if t.Size() == 0 {
		return nil, fmt.Errorf("copy: %s tensors are not supported", t)
	}
	shape := slices.Repeat([]int64{-1}, rank)
	model := wireModel([]wireNode{{"Identity", "copy", []string{"from"}, []string{"to"}}},
		[]wireValue{{"from", t, shape}}, []wireValue{{"to", t, shape}})
	s, err := e.NewSessionFromBytes(model, SessionOptions{Provider: p, Device: device, Threads: 1, Allocator: NoArena})
	if err != nil {
		return nil, fmt.Errorf("copy: %w", err)
	}
	b, err := s.NewBinding()
	if err != nil {
		s.Close()
		return nil, err
	}
	return &Copier{session: s, binding: b, dtype: t, rank: rank}, nil
}

// Copy fills to with from's contents. Type and shape must agree.
func (c *Copier) Copy(to, from *Value) error {
	for _, v := range []*Value{to, from} {
		if v.Type != c.dtype || len(v.Shape) != c.rank {
			return fmt.Errorf("copy: %s tensor %v in a copier of %s with rank %d", v.Type, v.Shape, c.dtype, c.rank)
		}
	}
	if !slices.Equal(to.Shape, from.Shape) {
		return fmt.Errorf("copy: shape %v into %v", from.Shape, to.Shape)
	}
	defer c.binding.ClearInputs()
	defer c.binding.ClearOutputs()
	if err := c.binding.BindInput("from", from); err != nil {
		return err
	}
	if err := c.binding.BindOutput("to", to); err != nil {
		return err
	}
	if err := c.session.Run(context.Background(), c.binding, "copy"); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return c.binding.Synchronize()
}

// Close releases the copier.
func (c *Copier) Close() error {
	c.binding.Close()
	return c.session.Close()
}
