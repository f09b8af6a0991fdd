package ort

// Arenas: how one is set up, and what it says of itself.

// #include <stdlib.h>
// #include "api.h"
import "C"

import (
	"strconv"
	"unsafe"
)

// Stats is what an arena says of itself, in bytes; 0 where it says nothing.
type Stats struct {
	InUse    int64
	MaxInUse int64
	Reserved int64 // what it holds from the system ("TotalAllocated")
	Limit    int64
	// Raw holds every figure by ONNX Runtime's name.
	Raw map[string]string
}

// HostStats are the figures of the session's host arena.
func (s *Session) HostStats() (Stats, error) { return s.stats("Cpu", 0) }

// DeviceStats are the figures of the arena on the session's device: the host's
// for a CPU session.
func (s *Session) DeviceStats() (Stats, error) { return s.stats(s.deviceName(), s.options.Device) }

func (s *Session) deviceName() string {
	if s.options.Provider == CUDA {
		return "Cuda"
	}
	return "Cpu"
}

// allocator is the session's allocator of that name, made when it is first asked
// for. It lives as long as the session and all that keeps what the session keeps.
func (s *Session) allocator(name string, device int) (*C.OrtAllocator, error) {
	if s.ptr == nil {
		return nil, ErrClosed
	}
	if a := s.allocators[name]; a != nil {
		return a, nil
	}
	info, err := memoryInfo(name, arenaAllocator, device)
	if err != nil {
		return nil, err
	}
	defer C.ortReleaseMemoryInfo(info)
	var a *C.OrtAllocator
	if err := statusError(C.ortCreateAllocator(s.ptr, info, &a)); err != nil {
		return nil, err
	}
	s.keep = append(s.keep, newKeeper(func() { C.ortReleaseAllocator(a) }))
	if s.allocators == nil {
		s.allocators = map[string]*C.OrtAllocator{}
	}
	s.allocators[name] = a
	return a, nil
}

// stats asks the session's allocator of that name for its figures.
func (s *Session) stats(name string, device int) (Stats, error) {
	a, err := s.allocator(name, device)
	if err != nil {
		return Stats{}, err
	}
	var kv *C.OrtStatistics
	if err := statusError(C.ortStats(a, &kv)); err != nil || kv == nil {
		return Stats{}, err
	}
	defer C.ortReleaseStats(kv)
	var keys, values **C.char
	var n C.size_t
	C.ortStatPairs(kv, &keys, &values, &n)
	out := Stats{Raw: make(map[string]string, int(n))}
	for i, k := range unsafe.Slice(keys, int(n)) {
		out.Raw[C.GoString(k)] = C.GoString(unsafe.Slice(values, int(n))[i])
	}
	for key, to := range map[string]*int64{"InUse": &out.InUse, "MaxInUse": &out.MaxInUse,
		"TotalAllocated": &out.Reserved, "Limit": &out.Limit} {
		// A figure that is missing or no number stays 0.
		*to, _ = strconv.ParseInt(out.Raw[key], 10, 64)
	}
	return out, nil
}

// registerArena puts an arena of the host's memory, or of a CUDA device's, into the
// environment, for the sessions made next.
func (e *Environment) registerArena(device int, c *ArenaConfig) (registration, error) {
	provider, r := "CPUExecutionProvider", registration{info: e.host}
	if device != hostMemory {
		info, err := memoryInfo("Cuda", arenaAllocator, device)
		if err != nil {
			return r, err
		}
		provider, r = "CUDAExecutionProvider", registration{info, true}
	}
	names, sizes := c.keys()
	keys, values := make([]*C.char, len(names)), make([]C.size_t, len(names))
	for i := range names {
		keys[i], values[i] = C.CString(names[i]), C.size_t(sizes[i])
		defer C.free(unsafe.Pointer(keys[i]))
	}
	name := C.CString(provider)
	defer C.free(unsafe.Pointer(name))
	err := statusError(C.ortRegisterArena(e.env, name, r.info, &keys[0], &values[0], C.size_t(len(keys))))
	if err != nil && r.own {
		C.ortReleaseMemoryInfo(r.info)
	}
	return r, err
}
