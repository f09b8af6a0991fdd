package ort

// Values: tensors over the caller's memory, over memory of their own, or
// handed out by ONNX Runtime.
//
// Memory of the caller's is never copied. If it is Go memory it stays pinned
// until Close; mapped and C memory only have to outlive the value.

/*
#include <stdlib.h>
#include "api.h"

enum { kTensorAlign = 64 };

static void *aligned(size_t n) {
  void *p = NULL;
  return posix_memalign(&p, kTensorAlign, n ? n : 1) ? NULL : p;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

// A Kind is what a value holds, as ONNXType numbers it.
type Kind int

// Kinds of values; only tensors can be read and made.
const (
	Tensor   Kind = 1
	Sequence Kind = 2
	Map      Kind = 3
	Optional Kind = 6
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case Tensor:
		return "tensor"
	case Sequence:
		return "sequence"
	case Map:
		return "map"
	case Optional:
		return "optional"
	}
	return fmt.Sprintf("kind %d", int(k))
}

// A Value is a tensor.
type Value struct {
	Type  DType
	Shape []int64

	ptr  *C.OrtValue
	data unsafe.Pointer // nil on another device
	size int64
	own  unsafe.Pointer // freed by Close
	pin  runtime.Pinner
	host bool
	keep keepers
}

// TensorOver makes a tensor of the given memory, which it neither copies nor
// frees. The memory must be as long as type and shape need; what is more is
// left alone.
func (e *Environment) TensorOver(memory []byte, t DType, shape []int64) (*Value, error) {
	size, err := ByteSize(t, shape)
	if err != nil {
		return nil, err
	}
	if int64(len(memory)) < size {
		return nil, fmt.Errorf("%s tensor %v needs %d bytes, the memory has %d", t, shape, size, len(memory))
	}
	v := &Value{}
	p := unsafe.Pointer(&emptyTensor[0])
	if size > 0 {
		p = unsafe.Pointer(unsafe.SliceData(memory))
	}
	v.pin.Pin(p)
	if err := v.over(e, p, size, t, shape); err != nil {
		v.pin.Unpin()
		return nil, err
	}
	return v, nil
}

// Aligned reports memory that begins where memory of NewTensor may.
func Aligned(data []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(data)))%tensorAlign == 0
}

// tensorAlign is what tensors of NewTensor begin at multiples of.
const tensorAlign = C.kTensorAlign

// emptyTensor is where tensors without elements point.
var emptyTensor [64]byte

// NewTensor makes a tensor of zeros in memory of its own, which no session's
// allocator sees.
func (e *Environment) NewTensor(t DType, shape []int64) (*Value, error) {
	size, err := ByteSize(t, shape)
	if err != nil {
		return nil, err
	}
	p := C.aligned(C.size_t(size))
	if p == nil {
		return nil, fmt.Errorf("a %s tensor %v of %d bytes: %w", t, shape, size, syscall.ENOMEM)
	}
	clear(unsafe.Slice((*byte)(p), size))
	v := &Value{own: p}
	if err := v.over(e, p, size, t, shape); err != nil {
		C.free(p)
		return nil, err
	}
	return v, nil
}

func (v *Value) over(e *Environment, p unsafe.Pointer, size int64, t DType, shape []int64) error {
	if e.env == nil {
		return ErrClosed
	}
	v.Type, v.Shape, v.data, v.size, v.host = t, append([]int64{}, shape...), p, size, true
	var dims *C.int64_t
	if len(shape) > 0 {
		dims = (*C.int64_t)(unsafe.Pointer(&v.Shape[0]))
	}
	return statusError(C.ortTensorOver(e.host, p, C.size_t(size), dims, C.size_t(len(shape)), C.int(t), &v.ptr))
}

// NewDeviceTensor makes a tensor, not initialized, in the memory of the
// session's device, from the session's allocator.
func (s *Session) NewDeviceTensor(t DType, shape []int64) (*Value, error) {
	size, err := ByteSize(t, shape)
	if err != nil {
		return nil, err
	}
	a, err := s.allocator(s.deviceName(), s.options.Device)
	if err != nil {
		return nil, err
	}
	v := &Value{Type: t, Shape: append([]int64{}, shape...), size: size}
	var dims *C.int64_t
	if len(shape) > 0 {
		dims = (*C.int64_t)(unsafe.Pointer(&v.Shape[0]))
	}
	if err := statusError(C.ortTensorFrom(a, dims, C.size_t(len(shape)), C.int(t), &v.ptr)); err != nil {
		return nil, err
	}
	v.keep.take(s.keep)
	if err := v.locate(); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// adopt takes over a value that ONNX Runtime made of what is kept. An absent
// optional, a sequence, a map and a string tensor are refused.
func adopt(ptr *C.OrtValue, kept keepers) (*Value, error) {
	v := &Value{ptr: ptr}
	v.keep.take(kept)
	if err := v.read(); err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// read asks a value for its type, shape and place.
func (v *Value) read() error {
	var has, kind C.int
	if err := statusError(C.ortHasValue(v.ptr, &has)); err != nil {
		return err
	}
	if has == 0 {
		return fmt.Errorf("the value is absent")
	}
	if err := statusError(C.ortValueKind(v.ptr, &kind)); err != nil {
		return err
	}
	if Kind(kind) != Tensor {
		return fmt.Errorf("%s values are not supported", Kind(kind))
	}
	var info *C.OrtShapeInfo
	if err := statusError(C.ortTensorShape(v.ptr, &info)); err != nil {
		return err
	}
	defer C.ortReleaseShapeInfo(info)
	var err error
	if v.Type, v.Shape, err = readShape(info); err != nil {
		return err
	}
	if v.size, err = ByteSize(v.Type, v.Shape); err != nil {
		return err
	}
	return v.locate()
}

// locate finds out where the data is, and its address if that is the host.
func (v *Value) locate() error {
	var device C.int
	if err := statusError(C.ortTensorDevice(v.ptr, &device)); err != nil {
		return err
	}
	if v.host = device == 0; !v.host {
		return nil
	}
	return statusError(C.ortTensorData(v.ptr, &v.data))
}

// OnHost says whether the data can be read by the CPU.
func (v *Value) OnHost() bool { return v.host }

// ByteSize is the size of the data in bytes.
func (v *Value) ByteSize() int64 { return v.size }

// Bytes is the tensor's memory, not a copy, valid until Close; nil when it is
// on another device or the value is closed.
func (v *Value) Bytes() []byte {
	if v.data == nil || v.ptr == nil {
		return nil
	}
	return unsafe.Slice((*byte)(v.data), v.size)
}

// SameMemory says whether both values start at the same host address.
func (v *Value) SameMemory(w *Value) bool { return v.data != nil && v.data == w.data }

// Close releases the value, then lets go of what its memory came from.
func (v *Value) Close() error {
	if v == nil || v.ptr == nil {
		return nil
	}
	C.ortReleaseValue(v.ptr)
	v.ptr = nil
	v.pin.Unpin()
	C.free(v.own)
	v.own, v.data = nil, nil
	v.keep.give()
	return nil
}
