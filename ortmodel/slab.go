package ortmodel

// A slab: one region of memory, in which each buffer of a step has its place, given
// before the step begins. An arena takes requests as they come, and what lives long
// between what does not keeps free memory apart; whoever knows all requests beforehand
// can do better.
//
//	buffers, the largest first ─▶ each at the lowest place that is free while it lives
//	again, with those first that reached the top, until nothing is gained
//
// Packing intervals of time into least height is NP-hard (dynamic storage allocation:
// Garey and Johnson, SR2); largest first is within some percent of the live peak on
// training steps, since the buffers that make the peak are few and large.

import (
	"cmp"
	"math"
	"slices"
)

// A Slab says where buffers lie.
type Slab struct {
	// Offset[i] is where the i-th allocation lies, -1 for outside. Bytes[i] is its size.
	Offset, Bytes []int64
	// Until[i] is the allocation before which what lies there is released: the number of
	// all for the step's end, 0 for what lies outside.
	Until []int
	// Size is what the slab takes, and Peak the most that lies in it at once, with what
	// each buffer takes besides its bytes.
	Size, Peak int64
}

// A SlabSetup says what a slab looks like, in bytes: what each buffer takes besides its
// own, what offsets are multiples of, and how large a buffer has to be to lie in it.
type SlabSetup struct{ Header, Align, Least int64 }

// packWork bounds the search after its first try, in pairs of buffers compared: some
// hundredths of a second; packTries bounds how often in turn it may gain nothing.
const (
	packWork  = 1 << 23
	packTries = 16
)

// A packed buffer lives from its own allocation until before another, and takes size
// bytes. In which order buffers are released between two allocations changes nothing.
type packed struct {
	from, to int // among all allocations
	size     int64
	offset   int64
	weight   int64 // the larger, the earlier it is placed
}

// Pack gives the buffers of a step their places.
func (s SlabSetup) Pack(requests []Request) Slab {
	var out Slab
	var buffers []*packed
	byID := map[int]*packed{}
	for _, r := range requests {
		if !r.Alloc {
			if b := byID[r.ID]; b != nil {
				b.to = len(out.Offset)
			}
			continue
		}
		out.Offset, out.Bytes, out.Until = append(out.Offset, -1), append(out.Bytes, r.Bytes), append(out.Until, 0)
		if r.Bytes < s.Least || r.Kept {
			continue
		}
		size := (r.Bytes + s.Header + s.Align - 1) / s.Align * s.Align
		b := &packed{from: len(out.Offset) - 1, to: math.MaxInt, size: size, weight: size}
		byID[r.ID] = b
		buffers = append(buffers, b)
	}
	for _, b := range buffers {
		b.to = min(b.to, len(out.Offset))
		out.Until[b.from] = b.to
	}
	out.Peak = peakOf(buffers, len(out.Offset))
	for work, idle := packWork, -1; ; idle++ {
		slices.SortStableFunc(buffers, func(a, b *packed) int {
			return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(b.to-b.from, a.to-a.from), cmp.Compare(a.from, b.from))
		})
		height := stack(buffers, &work)
		if idle < 0 || height < out.Size {
			out.Size, idle = height, 0
			for _, b := range buffers {
				out.Offset[b.from] = b.offset
			}
		}
		if work <= 0 || idle == packTries || out.Size <= out.Peak+out.Peak/1000 {
			return out
		}
		// What reached the top comes earlier.
		for _, b := range buffers {
			if b.offset+b.size == height && b.weight < 1<<61 {
				b.weight += max(1, b.weight/2)
			}
		}
	}
}

// peakOf is the most that buffers take at once.
func peakOf(buffers []*packed, allocations int) int64 {
	change := make([]int64, allocations+1)
	for _, b := range buffers {
		change[b.from] += b.size
		change[b.to] -= b.size
	}
	live, peak := int64(0), int64(0)
	for _, c := range change {
		live += c
		peak = max(peak, live)
	}
	return peak
}

// stack gives each buffer, in this order, the lowest place that is free while it lives,
// and returns the height that they need.
func stack(buffers []*packed, work *int) int64 {
	placed := make([]*packed, 0, len(buffers)) // by offset
	height := int64(0)
	for _, b := range buffers {
		at := int64(0)
		i := 0
		for ; i < len(placed); i++ {
			p := placed[i]
			if p.from >= b.to || b.from >= p.to || p.offset+p.size <= at {
				continue
			}
			if p.offset-at >= b.size {
				break
			}
			at = p.offset + p.size
		}
		*work -= i + 1
		b.offset = at
		j, _ := slices.BinarySearchFunc(placed, at, func(p *packed, at int64) int { return cmp.Compare(p.offset, at) })
		placed = slices.Insert(placed, j, b)
		height = max(height, at+b.size)
	}
	return height
}
