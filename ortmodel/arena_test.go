package ortmodel

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// asked makes requests of a script: +n allocates n bytes, -k releases the k-th
// block.
func asked(script ...int64) []Request {
	var out []Request
	var sizes []int64
	for _, s := range script {
		if s > 0 {
			out = append(out, Request{ID: len(sizes), Bytes: s, Alloc: true})
			sizes = append(sizes, s)
		} else {
			out = append(out, Request{ID: int(-s) - 1, Bytes: sizes[-s-1]})
		}
	}
	return out
}

// TestArenaByHand: the rules, each by sizes worked out by hand and seen in ONNX
// Runtime's log.
func TestArenaByHand(t *testing.T) {
	requested := ArenaSetup{Strategy: AsRequested, MaxDead: 1}
	lax := ArenaSetup{Strategy: AsRequested, MaxDead: DefaultMaxDead}
	for _, c := range []struct {
		name     string
		setup    ArenaSetup
		steps    int
		requests []Request
		want     ArenaUse
	}{
		{"rounded up", requested, 1, asked(1, 256, 257), ArenaUse{1024, 1024}},
		{"a chunk is used again", requested, 1, asked(1000, -1, 900), ArenaUse{1024, 1024}},
		{"split", requested, 1, asked(1024, -1, 512, 512), ArenaUse{1024, 1024}},
		{"split always", requested, 1, asked(1024, -1, 768, 256), ArenaUse{1024, 1024}},
		{"split at half only", lax, 1, asked(1024, -1, 768, 256), ArenaUse{1280, 1280}},
		{"half is enough", lax, 1, asked(1024, -1, 512, 512), ArenaUse{1024, 1024}},
		{"regions do not merge", requested, 1, asked(512, 512, -1, -2, 1024), ArenaUse{2048, 1024}},
		{"chunks of a region do", requested, 1, asked(1024, -1, 512, 512, -2, -3, 1024), ArenaUse{1024, 1024}},
		{"the next step finds all free", requested, 3, asked(512, 1024), ArenaUse{1536, 1536}},
		{"one chunk", ArenaSetup{FirstChunk: 10000, MaxExtend: 256, MaxDead: 1}, 1, asked(1000, 2000), ArenaUse{10240, 3072}},
		{"series", ArenaSetup{FirstChunk: 1000000, MaxExtend: 1 << 30, MaxDead: 1}, 1,
			asked(1000, 2000, 900000, 200000, 1500000, 5000000), ArenaUse{11002112, 7603712}},
		{"bounded series", ArenaSetup{FirstChunk: 1000000, MaxExtend: 4096, MaxDead: 1}, 1,
			asked(1000, 2000, 900000, 200000, 5000, 5000, 5000, 10000, 20000, 4000, 4000), ArenaUse{1262336, 1157376}},
	} {
		if got := c.setup.After(c.steps, 0, c.requests); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if got := c.setup.After(c.steps, 100, c.requests); got.Reserved != c.want.Reserved+100 || got.Peak != c.want.Peak+100 {
			t.Errorf("%s: with a session of 100 bytes: %+v", c.name, got)
		}
	}
}

// TestRequestsOfScratch: of buffers of one size, the one that the kernel gives back is
// released, not the last.
func TestRequestsOfScratch(t *testing.T) {
	sum := Node{Outputs: []int{0}, Scratch: []int64{8, 8, 8},
		Script: []Act{{Kind: Borrow, Index: 0}, {Kind: Borrow, Index: 1}, {Kind: GiveBack, Index: 0}, {Kind: Borrow, Index: 2}, {Kind: GiveBack, Index: 1}, {Kind: Take, Index: 0}}}
	g := &Graph{Nodes: []Node{sum}, Values: []Value{{Bytes: 8, Kind: Output, Class: None}}}
	var got []int
	for _, r := range Simulate(g, []int{0}).Requests() {
		if got = append(got, r.ID+1); !r.Alloc {
			got[len(got)-1] = -r.ID - 1
		}
	}
	if want := []int{1, 2, -1, 3, -2, 4, -3}; !slices.Equal(got, want) {
		t.Errorf("blocks %v, want %v", got, want)
	}
}

// randomRequests is a step of n blocks; one in four outlives it.
func randomRequests(rng *rand.Rand, n int) []Request {
	var out []Request
	var held []int
	sizes := make([]int64, n)
	for id := range n {
		sizes[id] = 1 + rng.Int64N(1<<(4+rng.IntN(20)))
		out = append(out, Request{ID: id, Bytes: sizes[id], Alloc: true})
		if rng.IntN(4) > 0 {
			held = append(held, id)
		}
		for len(held) > 0 && rng.IntN(2) == 0 {
			k := rng.IntN(len(held))
			out = append(out, Request{ID: held[k], Bytes: sizes[held[k]]})
			held[k] = held[len(held)-1]
			held = held[:len(held)-1]
		}
	}
	return out
}

// TestPlanArena: what is chosen is reached, never worse than growing as
// requested, independent of where regions lie, the same in later steps, and
// found again.
func TestPlanArena(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for trial := range 12 {
		r := randomRequests(rng, 2+rng.IntN(60))
		setup, use := PlanArena(1000, r, trial%2 == 1)
		again, _ := PlanArena(1000, r, trial%2 == 1)
		if again != setup {
			t.Errorf("trial %d: %+v, then %+v", trial, setup, again)
		}
		elsewhere := new(arena).run(setup, 3, r, []int{5, 2, 7, 0, 6, 1, 4, 3})
		elsewhere.Reserved += 1000
		elsewhere.Peak += 1000
		if use != setup.After(1, 1000, r) || use != setup.After(4, 1000, r) || use != elsewhere {
			t.Errorf("trial %d: %+v promises %+v, and gives %+v after one step, %+v after four, %+v elsewhere", trial, setup, use,
				setup.After(1, 1000, r), setup.After(4, 1000, r), elsewhere)
		}
		requested := ArenaSetup{Strategy: AsRequested, MaxDead: 1}.After(2, 1000, r)
		if use.Reserved > requested.Reserved || use.Reserved < 1000+livePeak(r) || setup.MaxDead < 1 || setup.FirstChunk >= 1<<31 {
			t.Errorf("trial %d: %+v reserves %+v for %d live; as requested: %+v", trial, setup, use, livePeak(r), requested)
		}
	}
	// Nothing to place, and one buffer beyond the largest first chunk.
	if _, use := PlanArena(5, nil, false); use != (ArenaUse{5, 5}) {
		t.Errorf("no requests: %+v", use)
	}
	if _, use := PlanArena(0, asked(3<<30), false); use != (ArenaUse{3 << 30, 3 << 30}) {
		t.Errorf("3 GiB: %+v", use)
	}
}

// Two thousand requests are planned in well under a second.
func BenchmarkPlanArena(b *testing.B) {
	r := randomRequests(rand.New(rand.NewPCG(3, 3)), 1000)
	for b.Loop() {
		PlanArena(0, r, false)
	}
}

// TestKept: what is kept stays through all steps, in the arena's regions.
func TestKept(t *testing.T) {
	step := asked(1000, 500, -1, 2000)
	setup := ArenaSetup{Strategy: AsRequested, MaxDead: 1}
	kept := append([]Request{{ID: len(step), Bytes: 700, Alloc: true, Kept: true}}, step...)
	for steps := 1; steps < 4; steps++ {
		without, with := setup.After(steps, 10, step), setup.After(steps, 10, kept)
		if with.Reserved != without.Reserved+768 || with.Peak != without.Peak+768 {
			t.Errorf("%d steps: %+v with 700 bytes kept, %+v without", steps, with, without)
		}
	}
}

// TestWorst: the arena grows though two freed blocks lie apart that are together large
// enough.
func TestWorst(t *testing.T) {
	requests := []Request{
		{ID: 0, Bytes: 1024, Alloc: true}, {ID: 1, Bytes: 256, Alloc: true}, {ID: 2, Bytes: 1024, Alloc: true},
		{ID: 0, Bytes: 1024}, {ID: 2, Bytes: 1024}, {ID: 3, Bytes: 2048, Alloc: true}, {ID: 1, Bytes: 256}, {ID: 3, Bytes: 2048},
	}
	g := ArenaSetup{Strategy: AsRequested, FirstChunk: 1, MaxExtend: 1, MaxDead: 1}.Worst(requests)
	if want := (Growth{Request: 5, Bytes: 2048, Live: 256, Reserved: 2304, Largest: 1024}); g != want || g.Free() != 2048 {
		t.Errorf("%+v, want %+v", g, want)
	}
	if g := (ArenaSetup{Strategy: AsRequested, FirstChunk: 1, MaxExtend: 1, MaxDead: 1}).Worst(requests[:3]); g.Bytes != 0 {
		t.Errorf("an arena that had nothing free: %+v", g)
	}
}
