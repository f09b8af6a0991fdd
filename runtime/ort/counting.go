package ort

// The counting allocator: every allocation and release of a session, exact to
// the byte, in order.
//
//	session ──Alloc(n)──▶ Counter: live += n, peak, event ──▶ posix_memalign
//	        ──Free(p)───▶          live -= n, event       ──▶ free
//
// It is written in C (counting.c), because worker threads of ONNX Runtime call
// it; one lock is held for a few additions. ONNX Runtime's arena would round
// to 256 bytes and keep chunks unsplit. Where a step's requests are known, its blocks lie
// in a slab (Place). Large blocks elsewhere are kept for reuse, by all
// sessions together, within an eighth above their live peak, or each step would pay for
// fresh pages (a third of the time of a step of GPT-2 124M).
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
	Reserved    int64 // what was used of the slab since the mark, and the most that lay outside it
	Allocations int64 // since the mark
	Blocks      int64 // handed out and not yet released
	Refused     int64 // what would have been live above Base with the first request since the mark that was refused, 0 for none
	Asked       int64 // that request
	Astray      int64 // bytes of requests since the mark that did not get the place that they should have, or were not known; see Place
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
		Live: int64(s.live), Peak: int64(s.peak), Base: int64(s.base), Reserved: int64(s.reserved),
		Allocations: int64(s.allocations), Blocks: int64(s.blocks), Refused: int64(s.refused), Asked: int64(s.asked), Astray: int64(s.astray),
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

// A Place is where a request of a step is to lie: its size and its offset in the slab,
// in bytes; an offset below 0: outside.
type Place struct{ Bytes, Offset int64 }

// SlabAlign is what offsets in a slab are multiples of.
const SlabAlign = C.kSlabAlign

// Place says where the requests after each mark are to lie, in their order, in a slab of
// so many bytes. All sessions on a device share one slab, as large as the largest, and
// so do those on the host. A request of another size than the next ones, and one whose
// place is taken, lies outside: places that are wrong cost memory, and no more. They must
// be multiples of SlabAlign.
func (c *Counter) Place(places []Place, slab int64) error {
	raw := make([]C.Place, len(places))
	for i, p := range places {
		if err := p.check(slab); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		raw[i] = C.Place{bytes: C.int64_t(p.Bytes), offset: C.int64_t(p.Offset)}
	}
	if c.closed || len(raw) == 0 {
		return nil
	}
	if C.counter_place(c.ptr, &raw[0], C.size_t(len(raw)), C.int64_t(slab)) == 0 {
		return fmt.Errorf("the places of a step: %w", ErrMemory)
	}
	C.counter_alone() // what lies outside
	return nil
}

// check says why a place cannot be one of a slab of so many bytes.
func (p Place) check(slab int64) error {
	if p.Offset >= 0 && (p.Offset%SlabAlign != 0 || p.Bytes <= 0 || p.Bytes > slab || p.Offset > slab-p.Bytes) {
		return fmt.Errorf("no place at %d for %d bytes in a slab of %d", p.Offset, p.Bytes, slab)
	}
	return nil
}

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
