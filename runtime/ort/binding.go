package ort

// IoBinding: which value each input reads and each output writes.
//
// An output that is bound to memory of ONNX Runtime's choice keeps its value
// after a run and would be written again by the next; Outputs hands the values
// over, so such outputs must be bound again before each run (Rebind, ClearOutputs).

/*
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// A Binding holds the inputs and outputs of a session's runs.
type Binding struct {
	session *Session
	ptr     *C.OrtIoBinding
	outputs []string
	// where says of each output on which device ONNX Runtime allocates it; "" for one
	// that is bound to a value.
	where  []Provider
	device int
	keep   [2]keepers // of what is bound: inputs, outputs
}

// NewBinding makes an empty binding. It is of no use once its session is closed.
func (s *Session) NewBinding() (*Binding, error) {
	if s.ptr == nil {
		return nil, ErrClosed
	}
	b := &Binding{session: s}
	if err := statusError(C.ortCreateBinding(s.ptr, &b.ptr)); err != nil {
		return nil, err
	}
	return b, nil
}

// BindInput makes an input read v. The memory of v's must stay until the last run.
func (b *Binding) BindInput(name string, v *Value) error { return b.bind(0, name, v) }

// BindOutput makes an output write into v. Whether v aliases an input is not
// checked.
func (b *Binding) BindOutput(name string, v *Value) error {
	if err := b.bind(1, name, v); err != nil {
		return err
	}
	b.outputs, b.where = append(b.outputs, name), append(b.where, "")
	return nil
}

func (b *Binding) bind(output C.int, name string, v *Value) error {
	if b.closed() || v.ptr == nil {
		return ErrClosed
	}
	b.keep[output].take(b.session.keep) // bound from another device it is copied into the session's memory
	b.keep[output].take(v.keep)
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	if err := statusError(C.ortBind(b.ptr, output, cname, v.ptr)); err != nil {
		return fmt.Errorf("bind %q: %w", name, err)
	}
	return nil
}

// BindOutputToDevice lets ONNX Runtime allocate an output, on the given
// provider's device. Binding to a device that the session does not have is no
// error there: look at the value's OnHost.
func (b *Binding) BindOutputToDevice(name string, p Provider, device int) error {
	if b.closed() {
		return ErrClosed
	}
	b.keep[1].take(b.session.keep)
	if p != CUDA {
		p = CPU
	}
	if err := b.bindDevice(name, p, device); err != nil {
		return err
	}
	b.outputs, b.where, b.device = append(b.outputs, name), append(b.where, p), device
	return nil
}

func (b *Binding) bindDevice(name string, p Provider, device int) error {
	where := "Cpu"
	if p == CUDA {
		where = "Cuda"
	}
	info, err := memoryInfo(where, deviceAllocator, device)
	if err != nil {
		return fmt.Errorf("bind %q: %w", name, err)
	}
	defer C.ortReleaseMemoryInfo(info)
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	if err := statusError(C.ortBindDevice(b.ptr, cname, info)); err != nil {
		return fmt.Errorf("bind %q: %w", name, err)
	}
	return nil
}

// Rebind binds again what ONNX Runtime allocates, and lets go of the values of the last
// run that are still held; outputs that are bound to values stay so.
func (b *Binding) Rebind() error {
	if b.closed() {
		return ErrClosed
	}
	for i, p := range b.where {
		if p == "" {
			continue
		}
		if err := b.bindDevice(b.outputs[i], p, b.device); err != nil {
			return err
		}
	}
	return nil
}

// A Bound is an output after a run.
type Bound struct {
	Name  string
	Value *Value
	Err   error // why the value cannot be read: a sequence, a string tensor
}

// Outputs returns the outputs of the last run in the order in which they were
// bound. The values are the caller's to close; those bound to a value of the
// caller's share its memory.
func (b *Binding) Outputs() ([]Bound, error) { return b.values(true) }

// Allocated is Outputs without those that are bound to values of the caller's: their
// Value and Err are nil.
func (b *Binding) Allocated() ([]Bound, error) { return b.values(false) }

func (b *Binding) values(all bool) ([]Bound, error) {
	if b.closed() {
		return nil, ErrClosed
	}
	var list **C.OrtValue
	var n C.size_t
	if err := statusError(C.ortBoundOutputs(b.ptr, &list, &n)); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	defer C.ortFreeValues(list)
	values := unsafe.Slice(list, int(n))
	if len(values) != len(b.outputs) {
		for _, v := range values {
			C.ortReleaseValue(v)
		}
		return nil, fmt.Errorf("onnx runtime returned %d outputs for %d that are bound", len(values), len(b.outputs))
	}
	var kept keepers
	kept.take(b.keep[0])
	kept.take(b.keep[1])
	defer kept.give()
	out := make([]Bound, len(values))
	for i, p := range values {
		out[i].Name = b.outputs[i]
		if !all && b.where[i] == "" {
			C.ortReleaseValue(p)
			continue
		}
		if p == nil {
			out[i].Err = fmt.Errorf("the value is absent")
			continue
		}
		out[i].Value, out[i].Err = adopt(p, kept)
	}
	return out, nil
}

// ClearInputs forgets the inputs.
func (b *Binding) ClearInputs() { b.clear(0) }

// ClearOutputs forgets the outputs, and lets go of the values of a run that
// are still held.
func (b *Binding) ClearOutputs() {
	b.clear(1)
	b.outputs, b.where = nil, nil
}

func (b *Binding) clear(output C.int) {
	if b.ptr != nil {
		C.ortClear(b.ptr, output)
	}
	b.keep[output].give()
}

// closed reports that the binding is, or its session, to which it points.
func (b *Binding) closed() bool { return b.ptr == nil || b.session.ptr == nil }

// Synchronize waits for the copies of bound inputs and outputs between devices.
func (b *Binding) Synchronize() error {
	if b.closed() {
		return ErrClosed
	}
	if err := statusError(C.ortSynchronize(b.ptr, 0)); err != nil {
		return err
	}
	return statusError(C.ortSynchronize(b.ptr, 1))
}

// Close releases the binding, not the values.
func (b *Binding) Close() error {
	if b == nil || b.ptr == nil {
		return nil
	}
	C.ortReleaseBinding(b.ptr)
	b.ptr = nil
	b.keep[0].give()
	b.keep[1].give()
	return nil
}
