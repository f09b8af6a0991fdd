package ortmodel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// someRequests is a random trace; a tenth of its buffers are never released.
func someRequests(r *rand.Rand, n int) []Request {
	var requests []Request
	var held []Request
	for id := range n {
		for len(held) > 0 && r.IntN(3) > 0 {
			k := r.IntN(len(held))
			release := held[k]
			release.Alloc = false
			requests = append(requests, release)
			held = slices.Delete(held, k, k+1)
		}
		q := Request{ID: id, Bytes: 1 + r.Int64N(1<<r.IntN(20)), Alloc: true, Kept: r.IntN(50) == 0}
		requests = append(requests, q)
		if r.IntN(10) > 0 && !q.Kept {
			held = append(held, q)
		}
	}
	return requests
}

// TestPack: no two buffers that live at once overlap, each has its room, and the slab is
// as high as the highest; what is kept lies outside.
func TestPack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	setup := HostSlab
	inside, packed := 0, int64(0)
	for try := range 100 {
		requests := someRequests(r, 1+r.IntN(200))
		slab := setup.Pack(requests)
		type living struct{ from, to int64 }
		held, alloc, top := map[int]living{}, 0, int64(0)
		live, peak := int64(0), int64(0)
		number := map[int]int{} // of its allocation
		for _, q := range requests {
			if !q.Alloc {
				if _, in := held[q.ID]; in && slab.Until[number[q.ID]] != alloc {
					t.Fatalf("try %d: %d is released before allocation %d, not %d", try, q.ID, alloc, slab.Until[number[q.ID]])
				}
				live -= held[q.ID].to - held[q.ID].from
				delete(held, q.ID)
				continue
			}
			at := slab.Offset[alloc]
			if slab.Bytes[alloc] != q.Bytes {
				t.Fatalf("try %d: allocation %d has %d bytes, want %d", try, alloc, slab.Bytes[alloc], q.Bytes)
			}
			number[q.ID] = alloc
			alloc++
			if q.Kept != (at < 0) {
				t.Fatalf("try %d: %+v lies at %d", try, q, at)
			} else if q.Kept {
				continue
			}
			inside++
			b := living{at, at + (q.Bytes+63)/64*64}
			if at%setup.Align != 0 || b.to > slab.Size {
				t.Fatalf("try %d: %+v at %d in a slab of %d", try, q, at, slab.Size)
			}
			for id, other := range held {
				if other.from < b.to && b.from < other.to {
					t.Fatalf("try %d: %d and %d overlap", try, id, q.ID)
				}
			}
			held[q.ID], top = b, max(top, b.to)
			live += b.to - b.from
			peak = max(peak, live)
		}
		for id := range held {
			if slab.Until[number[id]] != alloc {
				t.Fatalf("try %d: %d lives until allocation %d of %d", try, id, slab.Until[number[id]], alloc)
			}
		}
		if alloc != len(slab.Offset) || top != slab.Size || peak != slab.Peak {
			t.Fatalf("try %d: %d of %d allocations, %d of %d bytes, peak %d, want %d", try, alloc, len(slab.Offset), top, slab.Size, slab.Peak, peak)
		}
		if slab.Peak > 0 {
			packed += slab.Size * 1000 / slab.Peak
		}
	}
	if inside < 1000 {
		t.Errorf("only %d buffers lay inside", inside)
	}
	if mean := packed / 100; mean > 1020 {
		t.Errorf("slabs are %d thousandths of their peaks", mean)
	}
}

// TestPackIsOne: in which order buffers are released between two allocations changes no
// place.
func TestPackIsOne(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	setup := HostSlab
	for try := range 40 {
		requests := someRequests(r, 1+r.IntN(200))
		other := slices.Clone(requests)
		for i := 0; i < len(other); {
			end := i
			for end < len(other) && !other[end].Alloc {
				end++
			}
			slices.Reverse(other[i:end])
			i = end + 1
		}
		a, b := setup.Pack(requests), setup.Pack(other)
		if a.Size != b.Size || !slices.Equal(a.Offset, b.Offset) {
			t.Fatalf("try %d: a slab of %d, or of %d", try, a.Size, b.Size)
		}
		if rough := setup.Rough(requests); rough.Size < a.Size {
			t.Errorf("try %d: a slab of %d, and a rough one of %d", try, a.Size, rough.Size)
		}
	}
}

// TestPackSearches: the search takes more than half of what the largest first leaves unused.
func TestPackSearches(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	first, found := int64(0), int64(0)
	for range 40 {
		requests := someRequests(r, 200)
		placed, searched := HostSlab.pack(requests), HostSlab.Pack(requests)
		if searched.Size > placed.Size {
			t.Errorf("a slab of %d, of %d without a search", searched.Size, placed.Size)
		}
		first, found = first+placed.Size-placed.Peak, found+searched.Size-searched.Peak
	}
	if t.Logf("%d bytes unused, %d without a search", found, first); found > first/2 {
		t.Error("the search hardly helps")
	}
}

// TestPackMany: of a trace of many buffers those are searched over that live when the most does, which
// leaves less unused for the same work, or for less.
func TestPackMany(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	few, many := int64(0), int64(0)
	for range 4 {
		var requests []Request
		for part := range 20 { // one in the middle holds the most
			held := map[int]bool{}
			for _, q := range multiples(r, 500) {
				if q.ID += 500 * part; part != 10 {
					q.Bytes /= 2
				}
				requests, held[q.ID] = append(requests, q), q.Alloc
			}
			for id, alive := range held {
				if alive {
					requests = append(requests, Request{ID: id})
				}
			}
		}
		round := packRound{packMost, packWork / 4, packRest, packRest}
		searched := HostSlab.pack(requests, round)
		if _, buffers := HostSlab.lifetimes(requests); len(buffers) < 9*packMost {
			t.Fatalf("%d buffers are not many", len(buffers))
		}
		round.most = math.MaxInt
		all := HostSlab.pack(requests, round)
		t.Logf("%d live, %d packed, %d where all were searched over", searched.Peak, searched.Size, all.Size)
		few, many = few+searched.Size-searched.Peak, many+all.Size-all.Peak
	}
	if few > many/2 {
		t.Errorf("%d bytes unused, %d where all were searched over", few, many)
	}
}

// TestPackGivesUp: a trace of many buffers takes a bounded amount of work.
func TestPackGivesUp(t *testing.T) {
	var requests []Request
	for id := range 4000 {
		requests = append(requests, Request{ID: id, Bytes: 8 << 10, Alloc: true})
	}
	if slab := HostSlab.Pack(requests); slab.Size != 4000*8<<10 {
		t.Errorf("%d bytes", slab.Size)
	}
}

// TestPackHard: a step whose buffers are a few multiples of one width, as an encoder's
// are, is packed within a fiftieth of its live peak, where the first two rounds fail.
func TestPackHard(t *testing.T) {
	requests := multiples(rand.New(rand.NewPCG(3, 4)), 2000)
	short := HostSlab.pack(requests, rounds[:len(rounds)-1]...)
	if short.Size <= short.Peak+short.Peak/packFar {
		t.Fatalf("the first two rounds need %d for %d: the trace is too easy", short.Size, short.Peak)
	}
	slab := HostSlab.Pack(requests)
	t.Logf("%d live, %d after two rounds, %d in the end", slab.Peak, short.Size, slab.Size)
	if slab.Size > slab.Peak+slab.Peak/packFar {
		t.Errorf("a slab of %d for %d that live at once", slab.Size, slab.Peak)
	}
}

// TestPackSlices: a step over slices of its batch, of thousands of buffers of few sizes, is packed
// within a fiftieth of its live peak without a search, which so many would not leave time for.
func TestPackSlices(t *testing.T) {
	slab := HostSlab.pack(inSlices(12, 8))
	if t.Logf("%d live, %d packed", slab.Peak, slab.Size); slab.Size > slab.Peak+slab.Peak/packFar {
		t.Errorf("a slab of %d for %d that live at once", slab.Size, slab.Peak)
	}
}

// TestStackAll: buffers lie where each would if it were compared with all before it, and those
// of a long step, which hardly live, are compared with few.
func TestStackAll(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	stacked := func(requests []Request, by func([]*packed, *int) int64) (offsets []int64, height int64, pairs int) {
		_, buffers := HostSlab.lifetimes(requests)
		slices.SortStableFunc(buffers, func(a, b *packed) int { return int(b.size - a.size) })
		work := endless()
		height = by(buffers, work)
		for _, b := range buffers {
			offsets = append(offsets, b.offset)
		}
		return offsets, height, math.MaxInt - *work
	}
	for try := range 60 {
		requests := someRequests(r, 1+r.IntN(3000))
		want, high, _ := stacked(requests, stack)
		got, height, _ := stacked(requests, stackAll)
		if !slices.Equal(got, want) || height != high {
			t.Fatalf("try %d: %d buffers lie elsewhere: height %d, want %d", try, len(want), height, high)
		}
	}
	requests := inSlices(48, 8)
	want, high, all := stacked(requests, stack)
	got, height, few := stacked(requests, stackAll)
	if !slices.Equal(got, want) || height != high {
		t.Errorf("height %d, want %d, in the same places", height, high)
	}
	if t.Logf("%d buffers, %d pairs for %d", len(want), few, all); few > all/2 {
		t.Errorf("%d pairs compared, all are %d", few, all)
	}
}

// inSlices is what a stack of layers asks for over slices of its batch: forward keeps some of
// a layer's values, backward computes the others again, and each weight's sum so far goes on
// in another buffer.
func inSlices(layers, batches int) (requests []Request) {
	r := rand.New(rand.NewPCG(9, 10))
	alloc := func(units int64) Request {
		q := Request{ID: len(requests), Bytes: units << 16, Alloc: true}
		requests = append(requests, q)
		return q
	}
	free := func(list ...Request) {
		for _, q := range list {
			requests = append(requests, Request{ID: q.ID})
		}
	}
	values := []int64{12, 12, 36, 12, 12, 48, 12}
	weights := map[int]int64{2: 7, 3: 2, 5: 9, 6: 9}
	sums := map[int]Request{}
	for range batches {
		kept := map[int]Request{}
		x := alloc(12)
		for v := range layers * len(values) {
			y := alloc(values[v%len(values)])
			if free(x); r.IntN(4) == 0 {
				kept[v] = y
				y = alloc(12)
			}
			x = y
		}
		g := alloc(140)
		free(x)
		for v := layers*len(values) - 1; v >= 0; v-- {
			y, again := kept[v]
			if !again {
				y = alloc(values[v%len(values)])
			}
			next := alloc(values[v%len(values)])
			if units := weights[v%len(values)]; units > 0 {
				sum := alloc(units)
				if before, ok := sums[v]; ok {
					free(before)
				}
				sums[v] = sum
			}
			free(y, g)
			g = next
		}
		free(g)
	}
	return requests
}

// multiples is a random trace of buffers of 1, 3, 4, 12 and 16 units; about a hundred live at once.
func multiples(r *rand.Rand, n int) (requests []Request) {
	var held []Request
	for id := range n {
		for len(held) > 0 && r.IntN(100) < len(held)-50 {
			k := r.IntN(len(held))
			requests = append(requests, Request{ID: held[k].ID})
			held = slices.Delete(held, k, k+1)
		}
		q := Request{ID: id, Bytes: []int64{1, 3, 4, 12, 16}[r.IntN(5)] << 16, Alloc: true}
		requests, held = append(requests, q), append(held, q)
	}
	return requests
}
