package ort

// A session: one model, loaded and initialized.
//
// A session with an allocator of its own gets it through the environment:
// registered there, seen by the session while it is made, and taken off again
// at once, so that every counted session has its own Counter and others see
// none. ONNX Runtime keeps what a session saw alive by shared pointers.

/*
#include <stdlib.h>
#include "counting.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Info describes an input or output of a session.
type Info struct {
	Name  string
	Type  DType    // Undefined for what is not a tensor
	Shape []int64  // -1 where a dimension is not fixed
	Dims  []string // the symbolic names, "" where a dimension has none
	Kind  Kind
	// Host says of an input of a session on a device that a node of the host reads it. A
	// value in other memory is copied once, as it is bound.
	Host bool
}

// A Session is a model that can run. It is safe for use by one goroutine at a
// time.
type Session struct {
	Inputs, Outputs []Info

	env        *Environment
	ptr        *C.OrtSession
	counter    *Counter                   // of the host's memory
	device     *Counter                   // of the device's; nil on the CPU
	allocators map[string]*C.OrtAllocator // by the name of their memory
	keep       keepers
	options    SessionOptions
}

// NewSession loads a model from a file. External data is found beside it.
func (e *Environment) NewSession(path string, o SessionOptions) (*Session, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("model %s: not a file", path)
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	s, err := e.newSession(o, func(so *C.OrtSessionOptions, out **C.OrtSession) *C.OrtStatus {
		return C.ortCreateSession(e.env, cpath, so, out)
	})
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return s, nil
}

// NewSessionFromBytes loads a model from memory, which is not kept.
func (e *Environment) NewSessionFromBytes(model []byte, o SessionOptions) (*Session, error) {
	if len(model) == 0 {
		return nil, errors.New("model: no bytes")
	}
	return e.newSession(o, func(so *C.OrtSessionOptions, out **C.OrtSession) *C.OrtStatus {
		return C.ortCreateSessionFromArray(e.env, unsafe.Pointer(&model[0]), C.size_t(len(model)), so, out)
	})
}

// NewSessionFromOwnFormat loads a model in ONNX Runtime's own format, as a session saved it
// (OwnFormat), without optimizing it. Its constants stay where they are, in the mapped file that
// the bytes are: release ends the mapping once the session and what it returned are closed, or at once
// after an error. Till then only pages that are read take memory.
func (e *Environment) NewSessionFromOwnFormat(model []byte, release func(), o SessionOptions) (*Session, error) {
	o = o.WithConfig(map[string]string{keyLoadFormat: ownFormat, keyBytesDirectly: "1", keyBytesForInitializers: "1"})
	s, err := e.NewSessionFromBytes(model, o)
	if err != nil {
		release()
		return nil, err
	}
	s.keep = append(s.keep, newKeeper(release))
	unix.Madvise(model, unix.MADV_DONTNEED) // if it cannot, they stay
	return s, nil
}

type createFunc func(*C.OrtSessionOptions, **C.OrtSession) *C.OrtStatus

// newSession makes a session by one of the library's two functions.
func (e *Environment) newSession(o SessionOptions, create createFunc) (*Session, error) {
	if e.env == nil {
		return nil, ErrClosed
	}
	so, err := o.build(e.path)
	if err != nil {
		return nil, err
	}
	defer so.Destroy()
	raw, err := rawOptions(so)
	if err != nil {
		return nil, err
	}
	s := &Session{env: e, options: o}
	start := time.Now()
	err = s.create(raw, create)
	e.made(o, time.Since(start))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.Inputs, err = s.infos(0); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.Outputs, err = s.infos(1); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err = s.locateInputs(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// create makes the session with the allocator that its options ask for. All
// sessions are made one after another: one made meanwhile without an allocator
// of its own does not look at the environment's, but one of the other kind
// would see a foreign one.
func (s *Session) create(raw *C.OrtSessionOptions, create createFunc) (err error) {
	e := s.env
	switch s.options.Allocator {
	case Counting, OwnArena:
	default:
		return s.open(raw, create)
	}
	e.register.Lock()
	defer e.register.Unlock()
	registered, err := s.registerAllocators()
	if err == nil {
		err = s.open(raw, create)
	}
	for _, r := range registered {
		err = errors.Join(err, statusError(C.ortUnregister(e.env, r.info)))
		if r.own {
			C.ortReleaseMemoryInfo(r.info)
		}
	}
	return err
}

// A registration is an allocator in the environment: what it is known by there, and
// whether that is to be released.
type registration struct {
	info *C.OrtMemoryInfo
	own  bool
}

// registerAllocators puts the session's allocators into the environment, of the host
// and of the session's device. It returns those before one that failed, too.
func (s *Session) registerAllocators() (registered []registration, err error) {
	places := []int{hostMemory}
	if s.options.Provider == CUDA {
		places = append(places, s.options.Device)
	}
	for _, device := range places {
		var r registration
		if s.options.Allocator == Counting {
			r.info, err = s.registerCounter(device)
		} else {
			r, err = s.env.registerArena(device, &s.options.Arena)
		}
		if err != nil {
			return registered, fmt.Errorf("register allocator: %w", err)
		}
		registered = append(registered, r)
	}
	return registered, nil
}

func (s *Session) registerCounter(device int) (*C.OrtMemoryInfo, error) {
	c, err := newCounter(device)
	if err != nil {
		return nil, err
	}
	if device == hostMemory {
		s.counter = c
	} else {
		s.device = c
	}
	s.keep = append(s.keep, newKeeper(c.release))
	return C.counter_info(c.ptr), statusError(C.ortRegister(s.env.env, C.counter_allocator(c.ptr)))
}

func (s *Session) open(raw *C.OrtSessionOptions, create createFunc) error {
	var ptr *C.OrtSession // C may not see a pointer into s, which holds Go pointers
	err := statusError(create(raw, &ptr))
	s.ptr = ptr
	return err
}

// Options returns the options that the session was made with.
func (s *Session) Options() SessionOptions { return s.options }

// Counter is the session's counting allocator, nil unless its options ask for
// Counting.
func (s *Session) Counter() *Counter { return s.counter }

// DeviceCounter is Counter for the memory of the session's device: the host's on the
// CPU.
func (s *Session) DeviceCounter() *Counter {
	if s.options.Provider == CUDA {
		return s.device
	}
	return s.counter
}

// Close releases the session, then lets go of its allocators. Values that it
// made or returned stay valid until they are closed.
func (s *Session) Close() error {
	if s.ptr != nil {
		C.ortReleaseSession(s.ptr)
		s.ptr = nil
	}
	for _, c := range []*Counter{s.counter, s.device} {
		if c != nil {
			c.close()
		}
	}
	s.allocators = nil
	s.keep.give()
	return nil
}

func (s *Session) infos(output C.int) ([]Info, error) {
	var n C.size_t
	if err := statusError(C.ortCount(s.ptr, output, &n)); err != nil {
		return nil, err
	}
	list := make([]Info, int(n))
	for i := range list {
		if err := s.info(output, i, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// locateInputs notes which inputs are read on the host.
func (s *Session) locateInputs() error {
	if s.options.Provider == CPU || len(s.Inputs) == 0 {
		return nil
	}
	kinds, infos := make([]C.int, len(s.Inputs)), make([]*C.OrtMemoryInfo, len(s.Inputs))
	err := statusError(C.ortInputDevices(s.ptr, &infos[0], &kinds[0], C.size_t(len(kinds))))
	for i := range kinds {
		s.Inputs[i].Host = kinds[i] == 0
	}
	return err
}

// info describes input or output i (output is 1 for outputs).
func (s *Session) info(output C.int, i int, to *Info) error {
	var name *C.char
	if err := statusError(C.ortName(s.ptr, output, C.size_t(i), &name)); err != nil {
		return err
	}
	to.Name = C.GoString(name)
	C.ortFreeString(name)
	var t *C.OrtTypeInfo
	if err := statusError(C.ortTypeInfo(s.ptr, output, C.size_t(i), &t)); err != nil {
		return err
	}
	defer C.ortReleaseTypeInfo(t)
	var kind C.int
	if err := statusError(C.ortTypeKind(t, &kind)); err != nil {
		return err
	}
	if to.Kind = Kind(kind); to.Kind != Tensor {
		return nil
	}
	var shape *C.OrtShapeInfo // owned by t
	if err := statusError(C.ortTypeShape(t, &shape)); err != nil {
		return err
	}
	var err error
	if to.Type, to.Shape, err = readShape(shape); err != nil || len(to.Shape) == 0 {
		return err
	}
	symbols := make([]*C.char, len(to.Shape))
	if err := statusError(C.ortShapeSymbols(shape, &symbols[0], C.size_t(len(symbols)))); err != nil {
		return err
	}
	for _, p := range symbols {
		to.Dims = append(to.Dims, C.GoString(p))
	}
	return nil
}

func readShape(s *C.OrtShapeInfo) (DType, []int64, error) {
	var t C.int
	if err := statusError(C.ortShapeType(s, &t)); err != nil {
		return 0, nil, err
	}
	var rank C.size_t
	if err := statusError(C.ortShapeRank(s, &rank)); err != nil {
		return 0, nil, err
	}
	shape := make([]int64, int(rank))
	if rank > 0 {
		if err := statusError(C.ortShapeDims(s, (*C.int64_t)(&shape[0]), rank)); err != nil {
			return 0, nil, err
		}
	}
	return DType(t), shape, nil
}
