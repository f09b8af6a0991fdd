package ort

// The environment: the loaded library and ONNX Runtime's one OrtEnv.
//
// Loading is yalue's work; the version is read before, because a library that
// is too old prints to stderr when it is asked for a newer API.

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "counting.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	yalue "github.com/yalue/onnxruntime_go"

	"github.com/onnx-remat/remat/runtime/ortversion"
)

// ErrClosed is returned by methods of an object that was closed.
var ErrClosed = errors.New("onnx runtime object is closed")

// An Environment is the loaded library. There is one per process: opening it
// again with the same path returns the same one.
type Environment struct {
	path    string
	version string
	env     *C.OrtEnv
	host    *C.OrtMemoryInfo
	users   int
	// register guards the allocator that is registered while a session of a
	// kind of its own is made.
	register sync.Mutex
	watch    atomic.Pointer[func(SessionOptions, time.Duration)]
}

// WatchSessions has every session that is made from now on, or fails to be,
// reported with its options and the time that making it took; nil: none.
func (e *Environment) WatchSessions(report func(SessionOptions, time.Duration)) {
	if report == nil {
		e.watch.Store(nil)
		return
	}
	e.watch.Store(&report)
}

func (e *Environment) made(o SessionOptions, took time.Duration) {
	if report := e.watch.Load(); report != nil {
		(*report)(o, took)
	}
}

// opened is the environment of this process.
var opened struct {
	sync.Mutex
	env *Environment
}

// Open loads ONNX Runtime's shared library. Each Open needs its Close; the
// library cannot be exchanged within one process once it was loaded.
func Open(library string) (*Environment, error) {
	path, err := filepath.Abs(library)
	if err != nil {
		return nil, fmt.Errorf("onnx runtime library %q: %w", library, err)
	}
	opened.Lock()
	defer opened.Unlock()
	if e := opened.env; e != nil {
		if e.path != path {
			return nil, fmt.Errorf("onnx runtime library %s: another library is already loaded: %s", path, e.path)
		}
		if e.users == 0 {
			if err := e.start(); err != nil {
				return nil, err
			}
		}
		e.users++
		return e, nil
	}
	version, err := LibraryVersion(path)
	if err != nil {
		return nil, err
	}
	if ortversion.Older(version, ortversion.Oldest) {
		return nil, fmt.Errorf("onnx runtime library %s is version %s: at least %s is needed (run remat doctor --install cpu)",
			path, version, ortversion.Oldest)
	}
	e := &Environment{path: path, version: version}
	if err := e.start(); err != nil {
		return nil, err
	}
	e.users = 1
	opened.env = e
	return e, nil
}

// telemetryOff is the variable by which ONNX Runtime is told to send nothing (microsoft/onnxruntime#27379). It
// is read once, when the library starts: an official build of 1.31 reports each session and model otherwise,
// and keeps a number that names the machine.
const telemetryOff = "ORT_DISABLE_TELEMETRY"

// withoutTelemetry has ONNX Runtime send nothing, unless the user decided, until what it returns is
// called.
func withoutTelemetry() (restore func()) {
	if _, decided := os.LookupEnv(telemetryOff); decided || os.Setenv(telemetryOff, "1") != nil {
		return func() {}
	}
	return func() { os.Unsetenv(telemetryOff) }
}

// start creates the environment; the caller holds opened.
func (e *Environment) start() error {
	yalue.SetSharedLibraryPath(e.path)
	defer withoutTelemetry()()
	if err := yalue.InitializeEnvironment(yalue.WithLogLevelFatal()); err != nil {
		return fmt.Errorf("onnx runtime library %s: %s", e.path, oneLine(err.Error()))
	}
	cpath := C.CString(e.path)
	defer C.free(unsafe.Pointer(cpath))
	if why := C.remat_bind(cpath); why != nil {
		return errors.Join(fmt.Errorf("onnx runtime library %s: %s", e.path, C.GoString(why)), yalue.DestroyEnvironment())
	}
	if err := statusError(C.ortCreateEnv(&e.env)); err != nil {
		return errors.Join(err, yalue.DestroyEnvironment())
	}
	var err error
	if e.host, err = memoryInfo("Cpu", arenaAllocator, 0); err != nil {
		C.ortReleaseEnv(e.env)
		e.env = nil
		return errors.Join(err, yalue.DestroyEnvironment())
	}
	return nil
}

// Close gives the environment back. Sessions and values must be closed before.
func (e *Environment) Close() error {
	opened.Lock()
	defer opened.Unlock()
	if e.users == 0 {
		return nil
	}
	if e.users--; e.users > 0 {
		return nil
	}
	C.ortReleaseMemoryInfo(e.host)
	C.ortReleaseEnv(e.env)
	e.host, e.env = nil, nil
	return yalue.DestroyEnvironment()
}

// Path is the file that was loaded.
func (e *Environment) Path() string { return e.path }

// Version is the library's own version, such as "1.31.1".
func (e *Environment) Version() string { return e.version }

// Providers lists the execution providers that the library was built with.
// One that is listed may still fail to load: see NewSession.
func (e *Environment) Providers() ([]string, error) {
	var list **C.char
	var n C.int
	if err := statusError(C.ortAvailableProviders(&list, &n)); err != nil {
		return nil, err
	}
	defer C.ortReleaseProviders(list, n)
	var names []string
	for _, p := range unsafe.Slice(list, int(n)) {
		names = append(names, C.GoString(p))
	}
	return names, nil
}

// LibraryVersion reads the version of an ONNX Runtime library without
// starting it.
func LibraryVersion(path string) (string, error) {
	if info, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("onnx runtime library: %w", err)
	} else if info.IsDir() {
		return "", fmt.Errorf("onnx runtime library %s is a folder: name the libonnxruntime.so file in it", path)
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var version *C.char
	if why := C.remat_probe(cpath, &version); why != nil {
		return "", fmt.Errorf("%s cannot be loaded as an onnx runtime library: %s", path, oneLine(C.GoString(why)))
	}
	defer C.free(unsafe.Pointer(version))
	return C.GoString(version), nil
}

// Kinds of allocator, as OrtAllocatorType numbers them.
const (
	deviceAllocator = 0
	arenaAllocator  = 1
)

func memoryInfo(name string, kind, device int) (*C.OrtMemoryInfo, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var m *C.OrtMemoryInfo
	err := statusError(C.ortMemoryInfo(cname, C.int(kind), C.int(device), &m))
	return m, err
}

// An apiEntry is one function of OrtApi that is called here.
type apiEntry struct {
	name  string
	index int
}

// apiEntries lists them for the test against the header.
func apiEntries() []apiEntry {
	var list []apiEntry
	var name *C.char
	var index C.size_t
	for i := 0; C.remat_api_entry(C.size_t(i), &name, &index) != 0; i++ {
		list = append(list, apiEntry{C.GoString(name), int(index)})
	}
	return list
}
