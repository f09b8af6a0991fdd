package ort

// The counting allocator: every allocation and release of a session, exact to
// the byte, in order.
//
//	session ──Alloc(n)──▶ Counter: live += n, peak, event ──▶ posix_memalign
//	        ──Free(p)───▶          live -= n, event       ──▶ free
//
// It is written in C (counting.c), because worker threads of ONNX Runtime call
// it; one lock is held for a few additions. ONNX Runtime's arena would round
// to 256 bytes and keep chunks unsplit. Large blocks are kept for reuse, by all
// sessions together, within an eighth above their live peak, or each step would pay for fresh pages (a third
// of the time of a step of GPT-2 124M). Weakness: for the same reason the
// process is up to that eighth larger than what is live.
//
// A device's memory is counted in the same way, over cudaMalloc: a session's nodes run
// on one stream, so a block that is released may be handed on at once. There, as much
// again as the live peak may be kept, as long as there is memory.
//
// ONNX Runtime does not look whether an allocator returns NULL; it writes there.
// So where there is no memory, or the limit that was set leaves none, the
// allocator throws std::bad_alloc, as ONNX Runtime's own does, and Run returns an
// error.

/*
#cgo CFLAGS: -fexceptions
#include <malloc.h>
#include "counting.h"
*/
import "C"

import "fmt"

// A Counter counts what one session allocates. It is read at any time, also
// after its session was closed.
type Counter struct {
	ptr    *C.Counter
	closed bool
	last   CounterState
}

// A CounterState is what a Counter says at one moment, in bytes.
type CounterState struct {
	Live        int64 // handed out and not yet released
	Peak        int64 // largest Live since the mark
	Base        int64 // Live at the mark
	Allocations int64 // since the mark
	Blocks      int64 // handed out and not yet released
	Refused     int64 // what would have been live above Base with the first request since the mark that was refused, 0 for none
	Asked       int64 // that request
}

// An Event is one allocation or release.
type Event struct {
	Alloc bool
	Bytes int64
	// ID numbers the allocation; its release carries the same.
	ID uint64
}

// hostMemory stands for no device.
const hostMemory = -1

// newCounter counts the host's memory, or that of a CUDA device.
func newCounter(device int) (*Counter, error) {
	name, number := "Cpu", 0
	if device != hostMemory {
		name, number = "Cuda", device
	}
	info, err := memoryInfo(name, deviceAllocator, number)
	if err != nil {
		return nil, err
	}
	var why *C.char
	c := C.counter_new(info, C.int(device), &why)
	if c == nil {
		C.ortReleaseMemoryInfo(info)
		if why != nil {
			return nil, fmt.Errorf("the counting allocator: %s", C.GoString(why))
		}
		return nil, fmt.Errorf("the counting allocator: %w", ErrMemory)
	}
	return &Counter{ptr: c}, nil
}

// Mark starts a step: Peak restarts from Live, and the events from none. With
// trace, events are recorded from here on.
func (c *Counter) Mark(trace bool) {
	if c.closed {
		return
	}
	t := C.int(0)
	if trace {
		t = 1
	}
	C.counter_mark(c.ptr, t)
}

// State reads the counter. After its session's Close it is the state then.
func (c *Counter) State() CounterState {
	if c.closed {
		return c.last
	}
	var s C.CounterState
	C.counter_state(c.ptr, &s)
	return CounterState{
		Live: int64(s.live), Peak: int64(s.peak), Base: int64(s.base),
		Allocations: int64(s.allocations), Blocks: int64(s.blocks), Refused: int64(s.refused), Asked: int64(s.asked),
	}
}

// Limit bounds what may be live: a request beyond it is refused as if there were
// no memory. 0 takes the bound away.
func (c *Counter) Limit(bytes int64) {
	if !c.closed {
		C.counter_limit(c.ptr, C.int64_t(bytes))
	}
}

// Within bounds what the host's counters hold together, with what they keep for
// reuse: they keep less where that would be more. 0 takes the bound away.
func Within(bytes int64) { C.counter_within(C.int64_t(bytes)) }

// Kept is what counters together keep for reuse, in bytes.
func Kept() int64 { return int64(C.counter_kept()) }

// Events returns what happened since the mark, in order.
func (c *Counter) Events() ([]Event, error) {
	if c.closed {
		return nil, ErrClosed
	}
	var s C.CounterState
	C.counter_state(c.ptr, &s)
	if s.lost != 0 {
		return nil, fmt.Errorf("the allocation trace is incomplete: %w", ErrMemory)
	}
	raw := make([]C.CounterEvent, int(s.events))
	if len(raw) == 0 {
		return nil, nil
	}
	raw = raw[:int(C.counter_events(c.ptr, &raw[0], C.size_t(len(raw))))]
	events := make([]Event, len(raw))
	for i, r := range raw {
		e := Event{Alloc: r.bytes >= 0, Bytes: int64(r.bytes), ID: uint64(r.id)}
		if !e.Alloc {
			e.Bytes = ^e.Bytes
		}
		events[i] = e
	}
	return events, nil
}

// close ends the counting with its session.
func (c *Counter) close() {
	c.last = c.State()
	c.closed = true
}

// release gives the C side up, which goes with its last block. Values without
// elements have none, but are released through the allocator all the same.
func (c *Counter) release() { C.counter_close(c.ptr) }

// Trim gives memory that is held free back to the system: what counters keep for
// the next step, and what loading and optimizing a model has left.
func Trim() {
	C.counter_drain()
	C.malloc_trim(0)
}
