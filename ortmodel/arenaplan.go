package ortmodel

// Which setup of the arena reserves least, by trying them on the requests of a
// step, which are known beforehand:
//
//	one first chunk ─ of the height that an endless one is filled to
//	                ─ of sizes between the live peak and the best so far
//	two chunks      ─ the second opened when something does not fit the first
//	several         ─ those after the first of the size of a large buffer
//	neighbours      ─ of the best so far
//
// with chunks split always, or only where much would be wasted. Fitting is by
// best fit whatever the setup, so luck decides about fragments, and trying
// thousands of sizes is worth more than reasoning about one. Tried for a fixed
// amount of work at most, with random numbers of a fixed seed: the same requests
// always get the same setup.
//
// Weakness: where large buffers that live long lie between small ones that do
// not, best fit wastes more than a tenth under every setup tried (RATIONALE.md).

import (
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// mostChunk is what ONNX Runtime's 32 bits hold as the size of the first chunk.
	mostChunk = 1<<31 - arenaUnit
	// planWork and planTries bound the search, in requests simulated (about
	// half a second) and in setups.
	planWork  = 1 << 21
	planTries = 8000
	// The search ends at a waste of leastWaste, as a share, soon after its
	// start, and towards its bounds at mostWaste.
	leastWaste, mostWaste = 0.01, 0.1
	// spare is the size from which further regions grow should a step need more
	// than was planned.
	spare = 1 << 20
)

// maxDeads are the values of MaxDead that are tried.
var maxDeads = []int64{1, 1, 1, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20, DefaultMaxDead}

// PlanArena returns the setup that reserves least for steps that make these
// requests, and what the arena will say; session is what the session holds
// beside the arena's regions, in bytes. Stream is ArenaSetup's.
func PlanArena(session int64, requests []Request, stream bool) (ArenaSetup, ArenaUse) {
	p := &arenaPlan{requests: requests, peak: livePeak(requests), work: planWork, rng: rand.New(rand.NewPCG(1, 1))}
	p.best = ArenaSetup{Strategy: AsRequested, FirstChunk: spare, MaxExtend: spare, MaxDead: 1, Stream: stream}
	p.use = p.best.After(1, 0, requests)
	if !p.certain(p.best, p.use) {
		p.use.Reserved = math.MaxInt64 // whatever is certain is better
	}
	if p.peak > 0 {
		p.search()
	}
	return p.best, p.best.After(1, session, requests)
}

// mostOrdered is the largest number of regions of which all orders are tried.
const mostOrdered = 4

// orders are the ways in which so many regions can lie.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, shorter := range orders(n - 1) {
		for at := range n {
			out = append(out, slices.Insert(slices.Clone(shorter), at, n-1))
		}
	}
	return out
}

// certain reports that a setup gives the same use wherever the system puts its
// regions, and that a second step needs no more: where equally good chunks have
// to be chosen from, all orders of the regions are tried, if they are few.
func (p *arenaPlan) certain(s ArenaSetup, use ArenaUse) bool {
	p.work -= 2 * len(p.requests)
	if p.arena.run(s, 2, p.requests, nil) != use {
		return false
	}
	if !p.arena.tied {
		return true
	}
	if p.arena.regions > mostOrdered {
		return false
	}
	for _, order := range orders(p.arena.regions) {
		p.work -= 2 * len(p.requests)
		if p.arena.run(s, 2, p.requests, order) != use {
			return false
		}
	}
	return true
}

type arenaPlan struct {
	requests []Request
	peak     int64   // most held, rounded to arenaUnit
	large    []int64 // sizes of the largest blocks
	work     int     // of these, those left
	rng      *rand.Rand
	best     ArenaSetup
	use      ArenaUse
	arena    arena // its memory is used again
}

// livePeak is the most that a step holds, each block rounded up.
func livePeak(requests []Request) (peak int64) {
	var live int64
	for _, r := range requests {
		if !r.Alloc {
			live -= roundUp(r.Bytes)
			continue
		}
		live += roundUp(r.Bytes)
		peak = max(peak, live)
	}
	return peak
}

// largest are the distinct sizes of the blocks that take a fiftieth of the peak
// and more, at least one.
func largest(requests []Request, peak int64) []int64 {
	var sizes []int64
	for _, r := range requests {
		sizes = append(sizes, roundUp(r.Bytes))
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	least, _ := slices.BinarySearch(sizes, peak/50)
	return sizes[min(least, len(sizes)-1):]
}

func (p *arenaPlan) search() {
	p.large = largest(p.requests, p.peak)
	for _, dead := range []int64{1, DefaultMaxDead} {
		p.try(p.height(dead), spare, dead)
	}
	for try := 0; !p.done(try); try++ {
		dead := maxDeads[p.rng.IntN(len(maxDeads))]
		first := p.between(p.peak/20, p.peak)
		switch p.rng.IntN(4) {
		case 0:
			p.try(p.between(p.peak, p.most()), spare, dead)
		case 1:
			p.try(first, p.between(p.peak, p.most())-first, dead)
		case 2:
			u := p.rng.Float64() // the largest are tried most
			p.try(first, p.large[len(p.large)-1-int(u*u*float64(len(p.large)))], dead)
		default:
			p.neighbour(dead)
		}
	}
}

// done reports that so many tries were enough.
func (p *arenaPlan) done(tries int) bool {
	spent := max(float64(tries)/planTries, 1-float64(p.work)/planWork)
	waste := leastWaste + spent*(mostWaste-leastWaste)
	return spent >= 1 || float64(p.use.Reserved) <= (1+waste)*float64(p.peak)
}

// neighbour tries the best so far with its sizes changed a little.
func (p *arenaPlan) neighbour(dead int64) {
	s := p.best
	near := func(size int64) int64 { return p.between(size-p.peak/50, size+p.peak/100) }
	if p.rng.IntN(2) == 0 {
		dead = s.MaxDead
	}
	switch p.rng.IntN(3) {
	case 0:
		p.try(near(s.FirstChunk), s.MaxExtend, dead)
	case 1:
		p.try(s.FirstChunk, near(s.MaxExtend), dead)
	default:
		p.try(near(s.FirstChunk), near(s.MaxExtend), dead)
	}
}

// most is what a setup may reserve to be of interest.
func (p *arenaPlan) most() int64 { return min(p.use.Reserved, 2*p.peak) }

// between draws a size.
func (p *arenaPlan) between(low, high int64) int64 {
	if high <= low {
		return low
	}
	return low + p.rng.Int64N(high-low)
}

// height is how far one chunk without end is filled, in bytes.
func (p *arenaPlan) height(dead int64) int64 {
	p.work -= len(p.requests)
	const endless = 1 << 60
	p.arena.run(ArenaSetup{FirstChunk: endless, MaxDead: dead, Stream: p.best.Stream}, 0, nil, nil)
	var top int64
	for _, r := range p.requests {
		if !r.Alloc {
			p.arena.giveBack(r.ID)
			continue
		}
		p.arena.take(&r)
		c := p.arena.chunks[p.arena.blocks[r.ID]]
		top = max(top, c.at+c.size)
	}
	return top
}

// try keeps a setup that is certain to reserve less than the best.
func (p *arenaPlan) try(first, extend, dead int64) {
	s := ArenaSetup{
		Strategy: PowersOfTwo, MaxDead: dead, Stream: p.best.Stream,
		FirstChunk: roundUp(min(max(first, arenaUnit), mostChunk)), MaxExtend: roundUp(max(extend, arenaUnit)),
	}
	if s.Stream {
		s.MaxExtend = StreamExtend
	}
	p.work -= len(p.requests)
	use := p.arena.run(s, 1, p.requests, nil)
	if use.Reserved < p.use.Reserved && p.certain(s, use) {
		p.best, p.use = s, use
	}
}
