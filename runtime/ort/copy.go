package ort

// Copies between host and device.
//
// OrtApi's own CopyTensors needs a provider registered as a plugin, so a
// session of one Identity node does it: the input is bound to the source, the
// output to the destination, and IoBinding moves both to and from the device.
// Tensors are copied as the bytes that they are: one session serves all types and
// shapes. On a device each costs memory, for the handles of cuBLAS and cuDNN.
// Weakness: host to host it is a copy inside a run, slower than memmove.

import (
	"context"
	"fmt"
	"slices"
)

// #include "api.h"
import "C"

// A Copier copies tensors to and from one device.
type Copier struct {
	session *Session
	binding *Binding
}

// NewCopier makes the session for it.
func (e *Environment) NewCopier(p Provider, device int) (*Copier, error) {
	bytes := []int64{-1}
	model := wireModel([]wireNode{{"Identity", "copy", []string{"from"}, []string{"to"}}},
		[]wireValue{{"from", Uint8, bytes}}, []wireValue{{"to", Uint8, bytes}})
	s, err := e.NewSessionFromBytes(model, SessionOptions{Provider: p, Device: device, Threads: 1, Allocator: NoArena})
	if err != nil {
		return nil, err // it names the provider
	}
	b, err := s.NewBinding()
	if err != nil {
		s.Close()
		return nil, err
	}
	return &Copier{session: s, binding: b}, nil
}

// Copy fills to with from's contents. Type and shape must agree.
func (c *Copier) Copy(to, from *Value) error {
	if to.Type != from.Type || !slices.Equal(to.Shape, from.Shape) {
		return fmt.Errorf("copy: %s %v into %s %v", from.Type, from.Shape, to.Type, to.Shape)
	}
	if to.size == 0 {
		return nil
	}
	defer c.binding.ClearInputs()
	defer c.binding.ClearOutputs()
	source, err := from.bytesOver()
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := to.bytesOver()
	if err != nil {
		return err
	}
	defer target.Close()
	if err := c.binding.BindInput("from", source); err != nil {
		return err
	}
	if err := c.binding.BindOutput("to", target); err != nil {
		return err
	}
	if err := c.session.Run(context.Background(), c.binding, "copy"); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return c.binding.Synchronize()
}

// bytesOver is a vector of bytes in the memory of a value, which outlives it.
func (v *Value) bytesOver() (*Value, error) {
	b := &Value{Type: Uint8, Shape: []int64{v.size}, size: v.size, host: v.host}
	return b, statusError(C.ortBytesOver(v.ptr, C.size_t(v.size), C.int(b.Type), &b.ptr))
}

// Close releases the copier.
func (c *Copier) Close() error {
	c.binding.Close()
	return c.session.Close()
}
