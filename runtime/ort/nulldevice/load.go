//go:build linux && amd64

package nulldevice

/*
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "device.h"
#include "load.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Device is the null device of this process. There is one at most, and it stays.
type Device struct{ options Options }

var loaded struct {
	sync.Mutex
	device *Device
}

// Load makes the device and puts its libraries where ONNX Runtime's CUDA provider
// finds them. It must come before the first session with that provider. Where it was
// loaded before, the device takes on the new options; what is allocated stays.
func Load(o Options) (*Device, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.device == nil {
		if err := refuseReal(); err != nil {
			return nil, err
		}
	}
	if why := C.device_open(C.int64_t(o.Memory), C.int(o.Devices)); why != nil {
		return nil, &SetupError{"memory", C.GoString(why)}
	}
	C.cudnn_workspace(C.int64_t(o.Workspace))
	if loaded.device == nil {
		for _, l := range libraries() {
			if err := l.load(); err != nil {
				return nil, err
			}
		}
		loaded.device = &Device{}
	}
	loaded.device.options = o
	return loaded.device, nil
}

// Workspace is what each plan of cuDNN's asks for, in bytes.
func (d *Device) Workspace() int64 {
	loaded.Lock()
	defer loaded.Unlock()
	return d.options.Workspace
}

// Loaded returns the device of this process, nil where there is none.
func Loaded() *Device {
	loaded.Lock()
	defer loaded.Unlock()
	return loaded.device
}

// Options are what the device is set to.
func (d *Device) Options() Options {
	loaded.Lock()
	defer loaded.Unlock()
	return d.options
}

// Counters reads the counters.
func (d *Device) Counters() Counters {
	var c C.Counters
	C.device_counters(&c)
	return Counters{
		CopiesToHost: int64(c.to_host), BytesToHost: int64(c.to_host_bytes),
		CopiesToDevice: int64(c.to_device), BytesToDevice: int64(c.to_device_bytes),
		CopiesOnDevice: int64(c.on_device), BytesOnDevice: int64(c.on_device_bytes),
		Synchronizations: int64(c.synchronizations), Kernels: int64(c.kernels), LibraryCalls: int64(c.library_calls),
		Allocations: int64(c.allocations), Releases: int64(c.releases), Refused: int64(c.refused),
		Live: int64(c.live), Peak: int64(c.peak), Blocks: int64(c.blocks),
		HostLive: int64(c.host_live), HostBlocks: int64(c.host_blocks), Handles: int64(c.handles),
	}
}

// ResetPeak has Peak start again from what is live.
func (d *Device) ResetPeak() { C.device_restart_peak() }

// Refusal is the last allocation that did not fit; ok is false where all did.
func (d *Device) Refusal() (r Refusal, ok bool) {
	var c C.Counters
	C.device_counters(&c)
	r = Refusal{Asked: int64(c.refused_asked), Live: int64(c.refused_live), Memory: int64(c.refused_memory), Host: c.refused_by_host != 0}
	return r, c.refused > 0
}

// libraries reads the table of stand-ins.
func libraries() []*sharedLibrary {
	var list []*sharedLibrary
	for i := 0; ; i++ {
		c := C.library(C.size_t(i))
		if c == nil {
			return list
		}
		l := &sharedLibrary{soname: C.GoString(c.soname)}
		if c.version != nil {
			l.version = C.GoString(c.version)
		}
		if c.count != nil {
			for _, s := range unsafe.Slice(c.symbols, int(*c.count)) {
				l.symbols = append(l.symbols, symbol{C.GoString(s.name), uint64(uintptr(s.function))})
			}
		}
		list = append(list, l)
	}
}

// refuseReal fails where one of the libraries is in the process already: the provider
// would call it.
func refuseReal() error {
	for _, l := range libraries() {
		name := C.CString(l.soname)
		path := C.loaded_from(name)
		C.free(unsafe.Pointer(name))
		if path != nil {
			return &SetupError{l.soname, fmt.Sprintf("a real one is loaded already, from %s: start without it (LD_PRELOAD)", C.GoString(path))}
		}
	}
	return nil
}

// load writes the library to a file in memory and takes it in. The file stays open: its
// path is what the dynamic loader knows the library by, so no other may get it.
func (l *sharedLibrary) load() error {
	fd, err := memoryFile(l.soname)
	if err != nil {
		return &SetupError{l.soname, fmt.Sprintf("no file in memory: %v", err)}
	}
	if err := writeAll(fd, l.encode()); err != nil {
		return &SetupError{l.soname, err.Error()}
	}
	if why := loadFile(fmt.Sprintf("/proc/self/fd/%d", fd)); why != "" {
		return &SetupError{l.soname, why}
	}
	return l.verify()
}

// loadFile takes a library into this process for good, and says what went wrong.
func loadFile(path string) string {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	return C.GoString(C.load(cpath))
}

// memoryFile makes a file that cannot be executed where the kernel knows such, since some
// systems allow no others.
func memoryFile(name string) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	return fd, err
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// verify asks the dynamic loader for each symbol by its version.
func (l *sharedLibrary) verify() error {
	for _, s := range l.symbols {
		if got := lookUp(l.soname, s.name, l.version); got != s.address {
			return &SetupError{l.soname, fmt.Sprintf("the dynamic loader finds %s at %#x, not %#x", s.name, got, s.address)}
		}
	}
	return nil
}

// lookUp is the address of a symbol of a library that is loaded, 0 for none.
func lookUp(soname, name, version string) uint64 {
	csoname, cname := C.CString(soname), C.CString(name)
	defer C.free(unsafe.Pointer(csoname))
	defer C.free(unsafe.Pointer(cname))
	var cversion *C.char
	if version != "" {
		cversion = C.CString(version)
		defer C.free(unsafe.Pointer(cversion))
	}
	return uint64(uintptr(C.look_up(csoname, cname, cversion)))
}
