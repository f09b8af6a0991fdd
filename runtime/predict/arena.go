package predict

// ONNX Runtime's arena, extending as requested: what a step would take from
// the system.
//
//	request ──round up to 256──▶ smallest free chunk that fits ──▶ split it, if
//	         at least half would be wasted, or 128 MiB
//	                       else ▶ a new region of just that size
//	release ──▶ merged with free neighbours in its region
//
// What a session holds is taken from the system directly, at its exact size.
// Source: BFCArena of ONNX Runtime 1.31.1, arena_extend_strategy
// kSameAsRequested. Weakness: among free chunks of equal size the one with the
// lowest address is taken; addresses of regions are assumed to ascend.

import (
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

const (
	arenaUnit     = 256       // bytes
	arenaMostDead = 128 << 20 // bytes that a chunk may hold unused
)

// A chunk is a piece of a region.
type chunk struct {
	at         int64 // address
	size       int64
	free       bool
	prev, next *chunk // within the region
}

// An arena follows requests and releases.
type arena struct {
	free           []*chunk // by size, then address
	top            int64    // next address
	reserved       int64
	inUse, maximum int64
}

func byFit(a, b *chunk) int {
	switch {
	case a.size != b.size && a.size < b.size, a.size == b.size && a.at < b.at:
		return -1
	case a == b:
		return 0
	}
	return 1
}

func (a *arena) insert(c *chunk) {
	c.free = true
	i, _ := slices.BinarySearchFunc(a.free, c, byFit)
	a.free = slices.Insert(a.free, i, c)
}

func (a *arena) remove(c *chunk) {
	if i, ok := slices.BinarySearchFunc(a.free, c, byFit); ok {
		a.free = slices.Delete(a.free, i, i+1)
	}
	c.free = false
}

// alloc hands out a chunk of at least that many bytes.
func (a *arena) alloc(bytes int64) *chunk {
	bytes = (bytes + arenaUnit - 1) / arenaUnit * arenaUnit
	i, _ := slices.BinarySearchFunc(a.free, &chunk{size: bytes, at: -1}, byFit)
	var c *chunk
	if i < len(a.free) {
		c = a.free[i]
		a.remove(c)
		if c.size >= 2*bytes || c.size-bytes >= arenaMostDead {
			rest := &chunk{at: c.at + bytes, size: c.size - bytes, prev: c, next: c.next}
			if c.next != nil {
				c.next.prev = rest
			}
			c.next, c.size = rest, bytes
			a.insert(rest)
		}
	} else {
		c = &chunk{at: a.top, size: bytes}
		a.top += bytes + arenaUnit // regions do not touch
		a.reserved += bytes
	}
	a.inUse += c.size
	a.maximum = max(a.maximum, a.inUse)
	return c
}

// release takes a chunk back.
func (a *arena) release(c *chunk) {
	a.inUse -= c.size
	if n := c.next; n != nil && n.free {
		a.remove(n)
		a.join(c, n)
	}
	if p := c.prev; p != nil && p.free {
		a.remove(p)
		a.join(p, c)
		c = p
	}
	a.insert(c)
}

// join makes b, which follows a chunk, part of it.
func (a *arena) join(c, b *chunk) {
	c.size += b.size
	c.next = b.next
	if b.next != nil {
		b.next.prev = c
	}
}

// reserved returns what the arena would have taken from the system after one
// step, and the most that it would have handed out.
func reserved(s Session, t *ortmodel.Trace) (total, peak int64) {
	a := &arena{}
	a.reserved, a.inUse, a.maximum = s.Bytes(), s.Bytes(), s.Bytes()
	values := map[int]*chunk{}
	var scratch []*chunk
	for _, e := range t.Events {
		switch {
		case e.Alloc && e.Value != ortmodel.None:
			values[e.Value] = a.alloc(e.Bytes)
		case e.Alloc:
			scratch = append(scratch, a.alloc(e.Bytes))
		case e.Value != ortmodel.None:
			a.release(values[e.Value])
			delete(values, e.Value)
		default:
			scratch = a.releaseOne(scratch, e.Bytes)
		}
	}
	return a.reserved, a.maximum
}

// releaseOne releases the last borrowed scratch buffer of that size.
func (a *arena) releaseOne(scratch []*chunk, bytes int64) []*chunk {
	bytes = (bytes + arenaUnit - 1) / arenaUnit * arenaUnit
	for i := len(scratch) - 1; i >= 0; i-- {
		if c := scratch[i]; c.size >= bytes && c.size < 2*bytes {
			a.release(c)
			return slices.Delete(scratch, i, i+1)
		}
	}
	return scratch
}
