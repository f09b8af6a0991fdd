package ortmodel

// ONNX Runtime's arena: what a step takes from the system.
//
//	request ──round up to 256──▶ smallest free chunk that fits ──▶ split it, if
//	                             half of it, or MaxDead bytes, would be wasted
//	                       else ▶ a new region: as large as the request, or the
//	                             next size of a growing series
//	release ──▶ merged with free neighbours in its region
//
// Regions are never given back and never merged with each other. What a session
// holds before its steps is taken from the system directly, at its exact size,
// but for what a kernel asks of the arena itself: requests that are Kept.
// The series begins at FirstChunk; a region that was large enough as it stood
// makes the next one twice as large, but at most MaxExtend, and a request that
// is larger than the next doubles it until it fits.
//
// An arena of a device knows by which stream a chunk was used in this run: it merges
// such chunks with one another, and those that no stream used with one another. A request
// in no stream's name gets none that a stream used. After the run, chunks are nobody's
// and are merged.
//
// Source: BFCArena of ONNX Runtime 1.31.1, and its StreamAwareArena, measured. Weakness: of free chunks
// of equal size the one at the lowest address is taken, and where regions lie is
// the system's choice; PlanArena prefers setups for which it does not matter.

import (
	"slices"
)

const (
	arenaUnit = 256 // bytes; every request is rounded up to it
	// MostWaste is the most that rounding adds to a request.
	MostWaste = arenaUnit - 1
	// StreamExtend bounds the growth of a device's arena.
	StreamExtend = 1 << 30
	// DefaultMaxDead is ONNX Runtime's own MaxDead.
	DefaultMaxDead = 128 << 20
)

// Strategies by which an arena takes further regions, as ONNX Runtime numbers
// them.
const (
	PowersOfTwo = 0
	AsRequested = 1
)

// An ArenaSetup says how an arena grows; sizes are bytes. Its JSON form is what
// onnxruntime.OrtArenaCfg takes in Python.
type ArenaSetup struct {
	Strategy int `json:"arena_extend_strategy"`
	// FirstChunk and MaxExtend begin and bound the series of PowersOfTwo.
	FirstChunk int64 `json:"initial_chunk_size_bytes"`
	MaxExtend  int64 `json:"max_power_of_two_extend_bytes"`
	// MaxDead: a chunk is split where as much would lie unused. At least 1.
	MaxDead int64 `json:"max_dead_bytes_per_chunk"`
	// Stream: of a device, where one stream runs the step. Such an arena takes
	// StreamExtend for MaxExtend, whatever it is given.
	Stream bool `json:"-"`
}

// A Request is one allocation or release; ID names the block.
type Request struct {
	ID    int
	Bytes int64
	Alloc bool
	// Kept: made once, before the first step, and never given back.
	Kept bool
	// Unstreamed: see Act.
	Unstreamed bool
}

// ArenaUse is what an arena says after a step, in bytes.
type ArenaUse struct {
	// Reserved is what it took from the system, Peak the most that it handed
	// out, unused ends of chunks included.
	Reserved, Peak int64
}

// Requests lists what a step asks of the allocator, its blocks numbered.
func (t *Trace) Requests() []Request {
	out := make([]Request, len(t.Events))
	value := map[int]int{}
	scratch := map[int]int{} // of the node that runs, by place
	next := 0
	for i, e := range t.Events {
		id := next
		switch {
		case e.Alloc && e.Value != None:
			value[e.Value] = id
			next++
		case e.Alloc:
			scratch[e.Scratch] = id
			next++
		case e.Value != None:
			id = value[e.Value]
		default:
			id = scratch[e.Scratch]
		}
		out[i] = Request{ID: id, Bytes: e.Bytes, Alloc: e.Alloc, Unstreamed: e.Unstreamed}
	}
	return out
}

// After returns what an arena set up like this says after steps that each make
// the requests and then give back what they returned; session is what the
// session holds beside the arena's regions, in bytes.
func (s ArenaSetup) After(steps int, session int64, requests []Request) ArenaUse {
	use := new(arena).run(s, steps, requests, nil)
	return ArenaUse{session + use.Reserved, session + use.Peak}
}

func roundUp(bytes int64) int64 { return (bytes + arenaUnit - 1) / arenaUnit * arenaUnit }

// A chunk is a piece of a region, named by its place in arena.chunks.
type chunk struct {
	at, size   int64 // address and bytes
	prev, next int32 // within the region, or None
	free       bool
	used       bool // by the stream, in this run
}

type arena struct {
	setup    ArenaSetup
	order    []int // place of each region by address; by age where it ends
	next     int64 // size of the next region
	chunks   []chunk
	unused   []int32 // places in chunks that hold none
	free     []int32 // chunks by size, then address
	blocks   []int32 // chunk by block, or None
	regions  int
	reserved int64
	// tied: chunks of one size in different regions fitted equally well.
	tied        bool
	inUse, peak int64
	// request is the place of the one that is served, worst the growth that left most
	// memory lying free.
	request int
	worst   Growth
}

// A Growth is a moment at which the arena took a further region, as no free chunk was
// large enough; sizes are bytes.
type Growth struct {
	// Request is the place, among the requests, of the one that was served, and Bytes
	// its size.
	Request int
	Bytes   int64
	// Live was handed out just before, Reserved taken from the system, and Largest the
	// largest free chunk.
	Live, Reserved, Largest int64
}

// Free is what lay free, though the arena had to grow.
func (g Growth) Free() int64 { return g.Reserved - g.Live }

// Worst returns the growth at which most memory lay free, in the first step; with Bytes 0
// where the arena never grew beyond a free chunk.
func (s ArenaSetup) Worst(requests []Request) Growth {
	a := new(arena)
	a.run(s, 1, requests, nil)
	return a.worst
}

// regionSpan separates the addresses of regions.
const regionSpan = 1 << 48

// run follows steps from nothing on, in the memory of the run before.
func (a *arena) run(s ArenaSetup, steps int, requests []Request, order []int) ArenaUse {
	*a = arena{setup: s, order: order, next: roundUp(max(s.FirstChunk, 1)),
		chunks: a.chunks[:0], unused: a.unused[:0], free: a.free[:0], blocks: a.blocks[:0]}
	for _, r := range requests {
		if r.Kept {
			a.alloc(roundUp(r.Bytes), false)
		}
	}
	for range steps {
		for i, r := range requests {
			a.request = i
			switch {
			case r.Kept:
			case r.Alloc:
				a.take(&r)
			default:
				a.giveBack(r.ID)
			}
		}
		if s.Stream {
			a.endRun()
		}
		for id := range a.blocks {
			a.giveBack(id)
		}
	}
	return ArenaUse{a.reserved, a.peak}
}

func (a *arena) take(r *Request) {
	for len(a.blocks) <= r.ID {
		a.blocks = append(a.blocks, None)
	}
	a.blocks[r.ID] = a.alloc(roundUp(r.Bytes), a.setup.Stream && !r.Unstreamed)
}

func (a *arena) giveBack(block int) {
	if c := a.blocks[block]; c != None {
		a.release(c)
		a.blocks[block] = None
	}
}

// make adds a chunk.
func (a *arena) make(c chunk) int32 {
	if n := len(a.unused); n > 0 {
		i := a.unused[n-1]
		a.unused = a.unused[:n-1]
		a.chunks[i] = c
		return i
	}
	a.chunks = append(a.chunks, c)
	return int32(len(a.chunks) - 1)
}

// place is where in the list of free chunks one of that size and address is,
// or would be.
func (a *arena) place(size, at int64) int {
	low, high := 0, len(a.free)
	for low < high {
		mid := (low + high) / 2
		if c := &a.chunks[a.free[mid]]; c.size < size || c.size == size && c.at < at {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

func (a *arena) insert(c int32) {
	k := &a.chunks[c]
	k.free = true
	a.free = slices.Insert(a.free, a.place(k.size, k.at), c)
}

func (a *arena) remove(c int32) {
	k := &a.chunks[c]
	i := a.place(k.size, k.at)
	a.free = slices.Delete(a.free, i, i+1)
	k.free = false
}

// fit finds the smallest free chunk of at least that many bytes for the stream, or for
// nobody, or None.
func (a *arena) fit(bytes int64, stream bool) int32 {
	i := a.place(bytes, -1)
	for !stream && i < len(a.free) && a.chunks[a.free[i]].used {
		i++
	}
	if i == len(a.free) {
		return None
	}
	last := a.place(a.chunks[a.free[i]].size, 1<<62) - 1
	if !a.tied && a.region(i) != a.region(last) {
		// Regions that are free as a whole are as good as each other, if all or none are the stream's.
		used := a.chunks[a.free[i]].used
		a.tied = slices.ContainsFunc(a.free[i:last+1], func(c int32) bool { return !a.chunks[c].whole() || a.chunks[c].used != used })
	}
	return a.free[i]
}

// region is that of the i-th free chunk.
func (a *arena) region(i int) int64 { return a.chunks[a.free[i]].at / regionSpan }

// whole reports a chunk that is all of its region.
func (c *chunk) whole() bool { return c.prev == None && c.next == None }

// alloc hands out a chunk of at least that many bytes, a multiple of arenaUnit, to the
// stream or to nobody.
func (a *arena) alloc(bytes int64, used bool) int32 {
	c := a.fit(bytes, used)
	if c == None {
		a.extend(bytes)
		c = a.fit(bytes, used)
	}
	a.remove(c)
	if k := a.chunks[c]; k.size >= 2*bytes || k.size-bytes >= a.setup.MaxDead {
		rest := a.make(chunk{at: k.at + bytes, size: k.size - bytes, prev: c, next: k.next, used: k.used})
		if k.next != None {
			a.chunks[k.next].prev = rest
		}
		a.chunks[c].next, a.chunks[c].size = rest, bytes
		a.insert(rest)
	}
	a.chunks[c].used = a.chunks[c].used || used
	a.inUse += a.chunks[c].size
	a.peak = max(a.peak, a.inUse)
	return c
}

// extend takes a region of at least that many bytes from the system.
func (a *arena) extend(bytes int64) {
	if g := (Growth{Request: a.request, Bytes: bytes, Live: a.inUse, Reserved: a.reserved}); g.Free() > a.worst.Free() {
		if n := len(a.free); n > 0 {
			g.Largest = a.chunks[a.free[n-1]].size
		}
		a.worst = g
	}
	size := bytes
	if a.setup.Strategy == PowersOfTwo {
		grown := false
		for a.next < bytes {
			a.next, grown = 2*a.next, true
		}
		size = a.next
		if !grown {
			a.next = min(2*a.next, a.setup.MaxExtend)
		}
	}
	k := a.regions
	if k < len(a.order) {
		k = a.order[k]
	}
	a.regions++
	a.reserved += size
	a.insert(a.make(chunk{at: int64(k) * regionSpan, size: size, prev: None, next: None}))
}

// release takes a chunk back.
func (a *arena) release(c int32) {
	a.inUse -= a.chunks[c].size
	if n := a.chunks[c].next; n != None && a.mergeable(c, n) {
		a.remove(n)
		a.join(c, n)
	}
	if p := a.chunks[c].prev; p != None && a.mergeable(c, p) {
		a.remove(p)
		a.join(p, c)
		c = p
	}
	a.insert(c)
}

// mergeable reports that d is free, and nobody's if c is.
func (a *arena) mergeable(c, d int32) bool {
	return a.chunks[d].free && a.chunks[c].used == a.chunks[d].used
}

// endRun makes all chunks nobody's, and merges those that are free.
func (a *arena) endRun() {
	for c := range a.chunks {
		a.chunks[c].used = false
	}
	for _, c := range slices.Clone(a.free) {
		if !a.chunks[c].free {
			continue // merged into another
		}
		for n := a.chunks[c].next; n != None && a.chunks[n].free; n = a.chunks[c].next {
			a.remove(n)
			a.remove(c)
			a.join(c, n)
			a.insert(c)
		}
	}
}

// join makes chunk d, which follows c, part of it.
func (a *arena) join(c, d int32) {
	k := a.chunks[d]
	a.chunks[c].size += k.size
	a.chunks[c].next = k.next
	if k.next != None {
		a.chunks[k.next].prev = c
	}
	a.unused = append(a.unused, d)
}
