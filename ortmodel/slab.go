package ortmodel

// A slab: one region of memory, in which each buffer of a step has its place, given
// before the step begins. An arena takes requests as they come, and what lives long
// between what does not keeps free memory apart; whoever knows all requests beforehand
// can do better.
//
//	buffers, the largest first ─▶ each at the lowest place that is free while it lives
//	again below a limit that is nearer to the live peak: who ends above it loses its place and
//	takes the one that costs least, from those that lie there while it lives, and so do they;
//	lower and lower, from many starts, until that is hardly possible, or for a fixed amount of
//	work; for twelve times as much where one part in fifty is still exceeded
//
// Packing intervals of time into least height is NP-hard (dynamic storage allocation:
// Garey and Johnson, SR2). The search is that of ejection chains (Glover, 1996), in which, as in
// Nagata and Bräysy's for vehicles (2009), the place of a buffer costs more each time that it
// had to take others'. Only large buffers are searched over; small ones then fill what is free
// between them. Of many, as of a step in micro-batches, only those are searched over that live when the
// most does: of 13,187 buffers of GPT-2 in eight 1,483 are large and live while more than seven eighths of the peak
// do, and the others find their places below.

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
	// Stacking a buffer counts as packSort of them, taking a place or trying one as packStep. A first round takes a
	// sixteenth.
	packWork, packSort, packStep = 1 << 27, 16, 32
	// packHard is how many times that work is spent, some nine seconds, while a slab takes
	// more than one part in packFar beyond the live peak.
	packHard, packFar = 12, 50
	// packMost is how many buffers are searched over, and packHardMost how many where that fails; packHottest
	// bounds how near to the peak a time has to be for more of them to be left out.
	packMost, packHardMost, packHottest = 1000, 4000, 32
	// packOrders bounds it for few buffers: so many pairs of each two.
	packOrders = 1 << 13
	// packStarts is how many parts the work has, and packTurns how many starts make a round: in
	// the first each takes one part, in the next two, and so on; a start that is going to
	// succeed does so early. Every other round begins with no buffer placed.
	packStarts, packTurns = 30, 3
	// packNear is by which part of what is between them a limit is nearer to the live peak.
	packNear = 8
	// packShare is what of the live peak may remain unused, packRest the same where not all large buffers are
	// searched over, and packLarge what a buffer takes at least that is: one part in so many. Where no more
	// than one in packNearly remains, only a first round is worth its time.
	packShare, packRest, packLarge, packNearly = 4096, 1024, 16384, 512
)

// rounds are the searches of Pack, and the first one is Rough's.
var rounds = []packRound{
	{packMost, packWork / 16, packShare, packShare},
	{packMost, packWork, packShare, packNearly},
	{packHardMost, packHard * packWork, packFar, packFar},
}

// A packed buffer lives from its own allocation until before another, and takes size
// bytes. In which order buffers are released between two allocations changes nothing.
type packed struct {
	from, to int // among all allocations
	size     int64
	offset   int64
	weight   int64 // what its place costs, once
	tries    int64 // how often it had to look for one that is taken, and once more
	out      bool  // has none
}

// Pack gives the buffers of a step their places.
func (s SlabSetup) Pack(requests []Request) Slab {
	return s.pack(requests, rounds...)
}

// Rough is Pack after its first round, a sixteenth of its time at most: its slab is as
// large, or larger.
func (s SlabSetup) Rough(requests []Request) Slab { return s.pack(requests, rounds[0]) }

// A packRound is one search: over how many buffers, about; how much work it is given; and what part of the live
// peak, one in so many, may remain unused for it to end, and not to begin.
type packRound struct {
	most          int
	work          int
	share, worthy int64
}

func (s SlabSetup) pack(requests []Request, rounds ...packRound) Slab {
	out, buffers := s.lifetimes(requests)
	live := liveOf(buffers, len(out.Offset))
	out.Peak = slices.Max(live)
	out.Size = inOrder(buffers)
	out.take(buffers)
	best := slices.Clone(buffers)
	for _, r := range rounds {
		first, all := hottest(buffers, live, r.most)
		if !all {
			r.share = min(r.share, packRest)
		}
		enough := out.Peak + out.Peak/r.share
		if out.Size <= out.Peak+out.Peak/min(r.share, r.worthy) {
			break
		}
		peak := slices.Max(liveOf(buffers[:first], len(out.Offset)))
		others := max(0, out.Size-stackAll(buffers[:first], endless())) // what they add
		search(buffers[:first], peak, max(peak, enough-others), min(r.work, packOrders*first*first))
		if height := stackAll(buffers, endless()); height < out.Size {
			out.Size = height
			out.take(buffers)
			copy(best, buffers)
		} else {
			copy(buffers, best)
		}
	}
	return out
}

// hottest moves the buffers first that a search is worth for, and counts them: all large ones, or of more
// than so many those that live when nearly as much does as at the peak.
func hottest(buffers []*packed, live []int64, most int) (first int, all bool) {
	peak := slices.Max(live)
	for part := int64(1); part == 1 || first > most && part <= packHottest; part *= 2 {
		first, all = moveFirst(buffers, hot(live, peak-peak/part, peak/packLarge)), part == 1
	}
	return first, all
}

// hot picks the buffers of some bytes or more that live while so much lives.
func hot(live []int64, least, bytes int64) func(*packed) bool {
	before := make([]int, len(live)+1) // how many times as hot are before each
	for i, l := range live {
		before[i+1] = before[i]
		if l >= least {
			before[i+1]++
		}
	}
	return func(b *packed) bool { return b.size >= bytes && before[b.to] > before[b.from] }
}

// moveFirst brings the buffers picked before all others, both in their order, and counts them.
func moveFirst(buffers []*packed, pick func(*packed) bool) int {
	var others []*packed
	first := 0
	for _, b := range buffers {
		if pick(b) {
			buffers[first] = b
			first++
		} else {
			others = append(others, b)
		}
	}
	copy(buffers[first:], others)
	return first
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
		b := &packed{from: len(out.Offset) - 1, to: math.MaxInt, size: size}
		byID[r.ID] = b
		buffers = append(buffers, b)
	}
	for _, b := range buffers {
		b.to = min(b.to, len(out.Offset))
		out.Until[b.from] = b.to
	}
	return out, buffers
}

// inOrder sorts buffers as they are to be placed, the largest first, and returns the height that
// they need so. Those of one size come as they are made, which needs the fewest places for them
// (colouring of intervals), or those first that live long, whichever is lower.
func inOrder(buffers []*packed) int64 {
	sorted := func(then func(a, b *packed) int) ([]*packed, int64) {
		list := slices.Clone(buffers)
		slices.SortFunc(list, func(a, b *packed) int {
			return cmp.Or(cmp.Compare(b.size, a.size), then(a, b), cmp.Compare(a.from, b.from))
		})
		return list, stackAll(list, endless())
	}
	long, low := sorted(func(a, b *packed) int { return cmp.Compare(b.to-b.from, a.to-a.from) })
	made, height := sorted(func(*packed, *packed) int { return 0 })
	if height <= low {
		copy(buffers, made)
		return height
	}
	copy(buffers, long)
	return stackAll(buffers, endless()) // else they lie as in made
}

// A packing is a search: for places below a limit that all buffers have.
type packing struct {
	peak, enough int64
	r            *rand.Rand
	work         int // until now the search goes on, in pairs compared

	best  []*packed // the order in which stacking needs the least height so far
	least int64
	lie   []span // where all lie then, by their starts

	limit        int64
	starts, ends []span    // what lies where now: by starts, and the same by ends
	pool         []*packed // what has no place
}

// search leaves the buffers in the order that was found to need the least height.
func search(buffers []*packed, peak, enough int64, work int) {
	p := &packing{peak: peak, enough: enough, work: work, r: rand.New(rand.NewPCG(1, 2)), best: slices.Clone(buffers)}
	p.keep()
	for start := 0; p.goesOn(0); start++ {
		round := start / packTurns
		p.begin(start)
		p.lower()
		if round%2 > 0 {
			p.eject(math.MaxInt64, -1, nil)
		}
		for end := p.work - work/packStarts*(1+round); p.goesOn(end); p.lower() {
			for len(p.pool) > 0 && p.work > end {
				p.place()
			}
			if len(p.pool) == 0 {
				for i, s := range p.starts {
					p.best[i] = s.b
				}
				p.keep()
			}
		}
	}
	copy(buffers, p.best)
}

// goesOn reports that neither is the height good enough nor the work done, down to end.
func (p *packing) goesOn(end int) bool { return p.work > max(0, end) && p.least > p.enough }

// keep stacks the best order, in which each goes down as far as it can, and notes where all lie.
func (p *packing) keep() {
	if p.least = stack(p.best, &p.work); p.work <= 0 {
		return
	}
	p.lie = p.lie[:0]
	for _, b := range p.best {
		p.lie = append(p.lie, b.span())
	}
	slices.SortFunc(p.lie, byStart)
	p.restore()
}

// restore has all lie as in the best order.
func (p *packing) restore() {
	p.pool, p.starts = p.pool[:0], p.starts[:0]
	for _, s := range p.lie {
		s.cost, s.b.out = s.b.cost(), false
		p.starts = append(p.starts, s)
	}
	p.ends = append(p.ends[:0], p.starts...)
	slices.SortFunc(p.ends, byEnd)
}

// begin starts from the best order. What a place costs is by turns the same for all, the root of
// a buffer's size, and its size: which is good differs from step to step.
func (p *packing) begin(start int) {
	for _, b := range p.best {
		b.tries = 1
		switch start % 3 {
		case 0:
			b.weight = 1
		case 1:
			b.weight = 1 + int64(math.Sqrt(float64(b.size)))
		case 2:
			b.weight = 1 + b.size>>6
		}
	}
	p.restore()
}

// lower sets the limit nearer to the peak than what was reached, and takes their places from
// those that end above it.
func (p *packing) lower() {
	p.limit = p.least - max(1, (p.least-p.peak)/packNear)
	p.eject(math.MaxInt64, p.limit, nil)
}

// eject takes their places from those that begin below one place and end above another while a
// buffer lives; nil: at any time.
func (p *packing) eject(below, above int64, during *packed) {
	p.work -= 2 * packStep
	first, taken := -1, len(p.pool)
	for i := range p.starts {
		s := &p.starts[i]
		if s.start >= below {
			break
		}
		if s.end > above && (during == nil || s.meets(during)) {
			if first < 0 {
				first = i
			}
			s.b.out = true
			p.pool = append(p.pool, s.b)
		}
	}
	if first >= 0 {
		from, _ := slices.BinarySearchFunc(p.ends, above, func(s span, place int64) int { return cmp.Compare(s.end, place+1) })
		p.starts = without(p.starts, first, len(p.pool)-taken)
		p.ends = without(p.ends, from, len(p.pool)-taken)
	}
	p.work -= 2 * len(p.starts)
}

// without closes the gaps of so many that have no place any more, from one on.
func without(spans []span, from, gaps int) []span {
	to := from
	for i := from; gaps > 0; i++ {
		if !spans[i].b.out {
			continue
		}
		to += copy(spans[to:], spans[from:i])
		from = i + 1
		gaps--
	}
	to += copy(spans[to:], spans[from:])
	return spans[:to]
}

// place gives the next of the pool the place that costs least: nothing where one is free, else
// what those cost that lie there, who lose theirs. Then this one costs more from now on.
func (p *packing) place() {
	b := p.next()
	at, cost := p.cheapest(b)
	b.offset, b.out = at, false
	if cost > 0 {
		b.tries++
	}
	s := b.span()
	if cost > 0 {
		p.eject(s.end, s.start, b)
	}
	i, _ := slices.BinarySearchFunc(p.starts, s, byStart)
	p.starts = slices.Insert(p.starts, i, s)
	i, _ = slices.BinarySearchFunc(p.ends, s, byEnd)
	p.ends = slices.Insert(p.ends, i, s)
}

// next takes the largest out of the pool; of several, any.
func (p *packing) next() *packed {
	last := len(p.pool) - 1
	for i, b := range p.pool {
		if b.size > p.pool[last].size {
			p.pool[i], p.pool[last] = p.pool[last], p.pool[i]
		}
	}
	b := p.pool[last]
	p.pool = p.pool[:last]
	return b
}

// cheapest finds where below the limit a buffer may lie, and what those cost that lie there while
// it lives. It is at 0 or at another's end: going down from elsewhere to the next such
// place meets none that did not lie in the way.
func (p *packing) cheapest(b *packed) (at, least int64) {
	least = math.MaxInt64
	begun, ended, alike := 0, 0, 0
	cost := int64(0) // of those that begin below the place's end and end above its start
	for place := int64(0); least > 0 && place+b.size <= p.limit; {
		for ; begun < len(p.starts) && p.starts[begun].start < place+b.size; begun++ {
			if s := &p.starts[begun]; s.meets(b) {
				cost += s.cost
			}
		}
		next := int64(math.MaxInt64)
		for ; ended < len(p.ends); ended++ {
			if s := &p.ends[ended]; s.meets(b) {
				if s.end > place {
					next = s.end
					break
				}
				cost -= s.cost
			}
		}
		switch {
		case cost < least:
			at, least, alike = place, cost, 1
		case cost == least: // any of them
			if alike++; p.r.IntN(alike) == 0 {
				at = place
			}
		}
		if next == math.MaxInt64 {
			break
		}
		place = next
	}
	p.work -= begun + ended + packStep
	return at, least
}

// liveOf is what buffers take at once, from each allocation until the next.
func liveOf(buffers []*packed, allocations int) []int64 {
	live := make([]int64, allocations+1)
	for _, b := range buffers {
		live[b.from] += b.size
		live[b.to] -= b.size
	}
	for i := range allocations {
		live[i+1] += live[i]
	}
	return live
}

// A span of a slab that is taken for a time.
type span struct {
	from, to   int
	start, end int64
	cost       int64 // of taking it
	b          *packed
}

func byStart(a, b span) int { return cmp.Compare(a.start, b.start) }
func byEnd(a, b span) int   { return cmp.Compare(a.end, b.end) }

// meets reports that it is taken while a buffer lives.
func (s *span) meets(b *packed) bool { return s.from < b.to && b.from < s.to }

// cost is what it costs to take a buffer's place.
func (b *packed) cost() int64 { return b.weight * b.tries }

// span is where a buffer lies, and when.
func (b *packed) span() span { return span{b.from, b.to, b.offset, b.offset + b.size, b.cost(), b} }

// stack gives each buffer, in this order, the lowest place that is free while it lives,
// and returns the height that they need. It ends, and the height is endless, where the work is
// done before.
func stack(buffers []*packed, work *int) int64 {
	return stackBy([]stretches{always()}, buffers, work)
}

// endless is work that is never done.
func endless() *int { return new(math.MaxInt) }

// stackAll is stack for many buffers, most of which do not live long: each is compared with those
// alone that lie in a stretch of time which it lives in.
func stackAll(buffers []*packed, work *int) int64 {
	end := 0
	for _, b := range buffers {
		end = max(end, b.to)
	}
	var levels []stretches
	for _, parts := range []int{stretchParts, stretchParts / 8} {
		if half := end / parts / 2; half >= stretchLeast {
			levels = append(levels, stretches{half, make([][]lying, end/half+1)})
		}
	}
	return stackBy(append(levels, always()), buffers, work)
}

// stackBy compares each buffer with those in a stretch that it lives in, of the first level that
// has one. The last level has one for all.
func stackBy(levels []stretches, buffers []*packed, work *int) int64 {
	height := int64(0)
	for _, b := range buffers {
		if *work <= 0 {
			return math.MaxInt64
		}
		k := slices.IndexFunc(levels, func(l stretches) bool { return b.to-b.from <= l.half })
		l := &levels[k]
		var asked int
		b.offset, asked = lowest(l.lie[b.from/l.half], b)
		*work -= asked + packSort
		height = max(height, b.offset+b.size)
		is := lying{int32(b.from), int32(b.to), b.offset, b.offset + b.size}
		for k := range levels {
			levels[k].add(is)
		}
	}
	return height
}

// stretchParts is how many stretches there are of the shortest, and stretchLeast half of what is
// worth one, in allocations.
const stretchParts, stretchLeast = 64, 16

// stretches divide time: the k-th begins at the k-th multiple of half and is twice as long, so
// what lives no longer than half lies in one of them.
type stretches struct {
	half int
	lie  [][]lying // in each, by their starts
}

// always is one stretch of all time.
func always() stretches { return stretches{math.MaxInt32, make([][]lying, 1)} }

// A lying buffer is a span without what a search asks of it.
type lying struct {
	from, to   int32
	start, end int64
}

// add has a buffer lie in all stretches that it lives in.
func (l *stretches) add(b lying) {
	for k := max(0, int(b.from)/l.half-1); k < len(l.lie) && k*l.half < int(b.to); k++ {
		if int(b.from) < (k+2)*l.half {
			at, _ := slices.BinarySearchFunc(l.lie[k], b.start, func(o lying, start int64) int { return cmp.Compare(o.start, start) })
			l.lie[k] = slices.Insert(l.lie[k], at, b)
		}
	}
}

// lowest is the lowest place that is free while a buffer lives, between those that lie there by
// their starts, and how many of them were asked.
func lowest(lie []lying, b *packed) (at int64, asked int) {
	for i := range lie {
		o := &lie[i]
		if int(o.from) >= b.to || b.from >= int(o.to) || o.end <= at {
			continue
		}
		if o.start-at >= b.size {
			return at, i
		}
		at = o.end
	}
	return at, len(lie)
}
