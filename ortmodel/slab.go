package ortmodel

// A slab: one region of memory, in which each buffer of a step has its place, given
// before the step begins. An arena takes requests as they come, and what lives long
// between what does not keeps free memory apart; whoever knows all requests beforehand
// can do better.
//
//	buffers, the largest first ─▶ each at the lowest place that is free while it lives
//	again, with those moved forward that ended above the live peak, from many starts, until
//	that is hardly exceeded, or for a fixed amount of work; for eight times as much where
//	one part in fifty is still exceeded
//
// Packing intervals of time into least height is NP-hard (dynamic storage allocation:
// Garey and Johnson, SR2). What is moved forward is what the order treated badly, as in
// squeaky wheel optimization (Joslin and Clements, 1999). Only large buffers are searched
// over; small ones then fill what is free between them.

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// A Slab says where buffers lie.
type Slab struct {
	// Offset[i] is where the i-th allocation lies, -1 for outside. Bytes[i] is its size.
	Offset, Bytes []int64
	// Until[i] is the allocation before which what lies there is released: the number of
	// all for the step's end, 0 for what lies outside.
	Until []int
	// Size is what the slab takes, and Peak the most that lies in it at once, each buffer
	// rounded up to the alignment.
	Size, Peak int64
}

// A SlabSetup says what a slab looks like: what offsets in it are multiples of, in bytes.
type SlabSetup struct{ Align int64 }

// Slabs of the host's memory, and of a device's.
var (
	HostSlab   = SlabSetup{Align: 64}
	DeviceSlab = SlabSetup{Align: 256}
)

const (
	// packWork bounds the search, in pairs of buffers compared: less than a second.
	// Sorting a buffer into an order counts as packSort of them. A first round takes a
	// sixteenth.
	packWork, packSort = 1 << 27, 16
	roughWork          = packWork / 16
	// packHard is how many times that work is spent, some two seconds, while a slab takes
	// more than one part in packFar beyond the live peak.
	packHard, packFar = 8, 50
	// packOrders bounds it for few buffers: so many pairs of each two.
	packOrders = 1 << 13
	// packTries bounds how often in turn a start may gain nothing.
	packTries = 200
	// packShare is what of the live peak may remain unused, and packLarge what a buffer
	// takes at least that is searched over: one part in so many.
	packShare, packLarge = 256, 8192
	// packShift is how finely weights differ.
	packShift = 10
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
	return s.pack(requests, packRound{roughWork, packShare}, packRound{packWork, packShare}, packRound{packHard * packWork, packFar})
}

// Rough is Pack after its first round, a sixteenth of its time at most: its slab is as
// large, or larger.
func (s SlabSetup) Rough(requests []Request) Slab {
	return s.pack(requests, packRound{roughWork, packShare})
}

// A packRound is one search: how much work it is given, and what part of the live peak,
// one in so many, may remain unused for it to end, or not to begin.
type packRound struct {
	work  int
	share int64
}

func (s SlabSetup) pack(requests []Request, rounds ...packRound) Slab {
	out, buffers := s.lifetimes(requests)
	out.Peak = peakOf(buffers, len(out.Offset))
	inOrder(buffers)
	out.Size = stack(buffers, new(int))
	out.take(buffers)
	large, _ := slices.BinarySearchFunc(buffers, out.Peak/packLarge, func(b *packed, least int64) int { return cmp.Compare(least, b.size) })
	for _, r := range rounds {
		enough := out.Peak + out.Peak/r.share
		if out.Size <= enough {
			break
		}
		search(buffers[:large], out.Peak, enough, min(r.work, packOrders*large*large))
		if height := stack(buffers, new(int)); height < out.Size {
			out.Size = height
			out.take(buffers)
		}
	}
	return out
}

// take notes where the buffers lie.
func (s *Slab) take(buffers []*packed) {
	for _, b := range buffers {
		s.Offset[b.from] = b.offset
	}
}

// lifetimes lists the buffers that are to lie in the slab.
func (s SlabSetup) lifetimes(requests []Request) (out Slab, buffers []*packed) {
	byID := map[int]*packed{}
	for _, r := range requests {
		if !r.Alloc {
			if b := byID[r.ID]; b != nil {
				b.to = len(out.Offset)
			}
			continue
		}
		out.Offset, out.Bytes, out.Until = append(out.Offset, -1), append(out.Bytes, r.Bytes), append(out.Until, 0)
		if r.Kept {
			continue
		}
		size := (r.Bytes + s.Align - 1) / s.Align * s.Align
		b := &packed{from: len(out.Offset) - 1, to: math.MaxInt, size: size, weight: size}
		byID[r.ID] = b
		buffers = append(buffers, b)
	}
	for _, b := range buffers {
		b.to = min(b.to, len(out.Offset))
		out.Until[b.from] = b.to
	}
	return out, buffers
}

// inOrder sorts buffers as they are to be placed.
func inOrder(buffers []*packed) {
	slices.SortFunc(buffers, func(a, b *packed) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(b.to-b.from, a.to-a.from), cmp.Compare(a.from, b.from))
	})
}

// A packing is a search among orders in which buffers are placed.
type packing struct {
	buffers      []*packed
	peak, enough int64
	r            *rand.Rand

	best  []*packed // the order that needs the least height so far
	least int64
	work  int // until now the search goes on, in pairs compared
}

// search leaves the buffers in the order that was found to need the least height.
func search(buffers []*packed, peak, enough int64, work int) {
	p := &packing{buffers: buffers, peak: peak, enough: enough, r: rand.New(rand.NewPCG(1, 2)),
		best: slices.Clone(buffers), least: math.MaxInt64}
	for _, way := range []func(){p.overtaking, p.raising, p.warm, p.cool} {
		p.work = work / 4
		way()
	}
	copy(buffers, p.best)
}

// goesOn reports that neither is the height good enough nor the work done.
func (p *packing) goesOn() bool { return p.work > 0 && p.least > p.enough }

// try places the buffers in their order.
func (p *packing) try() int64 {
	height := stack(p.buffers, &p.work)
	if height < p.least {
		p.least = height
		copy(p.best, p.buffers)
	}
	return height
}

func (p *packing) overtaking() { p.fromStarts(p.overtake) }
func (p *packing) raising()    { p.fromStarts(func(int64) { p.raise() }) }

// fromStarts has an order follow from the one before and its height until that gains
// nothing for a while, then begins anew: with the largest first, then at random near that.
func (p *packing) fromStarts(follow func(height int64)) {
	for start := 0; p.goesOn(); start++ {
		for _, b := range p.buffers {
			b.weight = b.size << packShift
			if start > 0 {
				b.weight += b.size * p.r.Int64N(1<<packShift)
			}
		}
		lowest := int64(math.MaxInt64)
		for idle := 0; idle < packTries && p.goesOn(); idle++ {
			inOrder(p.buffers)
			height := p.try()
			if height < lowest {
				lowest, idle = height, 0
			}
			follow(min(height, p.least))
		}
	}
}

// raise has all that ended above the peak come earlier.
func (p *packing) raise() {
	for _, b := range p.buffers {
		if b.offset+b.size > p.peak && b.weight < 1<<60 {
			b.weight += 1 + b.weight>>packShift*p.r.Int64N(1<<packShift)
		}
	}
}

// overtake has one to three of those that reached a height come just before others.
func (p *packing) overtake(height int64) {
	tops := p.above(height - 1)
	for range 1 + p.r.IntN(3) {
		b := p.buffers[tops[p.r.IntN(len(tops))]]
		if j, ok := p.meanwhile(b, len(p.buffers)); ok && p.buffers[j].weight >= b.weight {
			b.weight = p.buffers[j].weight + 1
		}
	}
}

// above are the places in the order of those that ended above a height.
func (p *packing) above(height int64) []int {
	var list []int
	for i, b := range p.buffers {
		if b.offset+b.size > height {
			list = append(list, i)
		}
	}
	return list
}

// meanwhile picks another of the first n that lives while b does.
func (p *packing) meanwhile(b *packed, n int) (int, bool) {
	for range 20 {
		j := p.r.IntN(n)
		if o := p.buffers[j]; o != b && o.from < b.to && b.from < o.to {
			return j, true
		}
	}
	return 0, false
}

func (p *packing) warm() { p.anneal(100) }
func (p *packing) cool() { p.anneal(400) }

// anneal moves buffers in the order, by what that costs, from a temperature of one part
// in so many of the peak down to none.
func (p *packing) anneal(part int64) {
	copy(p.buffers, p.best)
	before, all := slices.Clone(p.buffers), p.work
	cost := p.cost(p.try())
	for p.goesOn() {
		copy(before, p.buffers)
		tops := p.above(p.peak)
		for range 1 + p.r.IntN(2) {
			p.move(tops[p.r.IntN(len(tops))])
		}
		temperature := float64(p.peak) / float64(part) * float64(p.work) / float64(all)
		next := p.cost(p.try())
		if next > cost && float64(next-cost) > temperature*p.r.ExpFloat64() {
			copy(p.buffers, before)
			stack(p.buffers, &p.work)
			continue
		}
		cost = next
	}
}

// cost is what is above the peak, and some of what ends there, so that a move counts
// that leaves the height as it is.
func (p *packing) cost(height int64) int64 {
	over := int64(0)
	for _, b := range p.buffers {
		over += max(0, b.offset+b.size-p.peak) / 64
	}
	return height - p.peak + over
}

// move has a buffer come before one that lives meanwhile, or, one time in four, such a
// one come anywhere.
func (p *packing) move(from int) {
	n := len(p.buffers)
	if p.r.IntN(4) == 0 {
		if j, ok := p.meanwhile(p.buffers[from], n); ok {
			p.insert(j, p.r.IntN(n))
		}
	} else if from > 0 {
		if j, ok := p.meanwhile(p.buffers[from], from); ok {
			p.insert(from, j)
		}
	}
}

// insert takes what is at one place of the order to another.
func (p *packing) insert(from, to int) {
	b := p.buffers[from]
	p.buffers = slices.Insert(slices.Delete(p.buffers, from, from+1), to, b)
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

// A span of a slab that is taken for a time.
type span struct {
	from, to   int
	start, end int64
}

// stack gives each buffer, in this order, the lowest place that is free while it lives,
// and returns the height that they need.
func stack(buffers []*packed, work *int) int64 {
	placed := make([]span, 0, len(buffers)) // by place
	height := int64(0)
	for _, b := range buffers {
		at := int64(0)
		i := 0
		for ; i < len(placed); i++ {
			p := &placed[i]
			if p.from >= b.to || b.from >= p.to || p.end <= at {
				continue
			}
			if p.start-at >= b.size {
				break
			}
			at = p.end
		}
		*work -= i + packSort
		b.offset = at
		for i > 0 && placed[i-1].start >= at {
			i--
		}
		placed = slices.Insert(placed, i, span{b.from, b.to, at, at + b.size})
		height = max(height, at+b.size)
	}
	return height
}
