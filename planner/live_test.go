package planner

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
)

// TestBelow: a simulation with a limit returns the peak below it, and no less than the
// limit from there on.
func TestBelow(t *testing.T) {
	r := rand.New(rand.NewSource(7))
	problems := map[string]*Problem{"chain": chain(12), "transformer": transformer(3, 64, 32, 32, 2)}
	for i := range 8 {
		problems[fmt.Sprint("random", i)] = random(r, 30)
	}
	early := 0
	for name, p := range problems {
		ix := p.indexed()
		s, low := newLiveSim(ix), newLowerer(ix, ix.plain().order)
		keep := ix.keepAll()
		for try := range 40 {
			for _, v := range ix.stash {
				keep[v] = r.Intn(2) == 0
			}
			s.eraseShapes = try%2 == 0
			schedule := low.scheduleIn(keep, mode(try)%modes)
			peak := s.run(schedule)
			for _, limit := range []int64{1, peak / 2, peak - 1, peak, peak + 1, 2 * peak} {
				got := s.below(schedule, limit)
				if peak < limit && got != peak || peak >= limit && got < limit {
					t.Fatalf("%s: %d within a limit of %d, the peak is %d", name, got, limit, peak)
				}
				if limit < peak && got == limit {
					early++
				}
			}
		}
	}
	if early == 0 {
		t.Error("no simulation ended early")
	}
}

// TestResolve: each read means the latest execution that made its value, and each of those
// is read as often as counted, whatever runs again and whatever does not run at all.
func TestResolve(t *testing.T) {
	r := rand.New(rand.NewSource(11))
	again := 0
	for name, p := range map[string]*Problem{"transformer": transformer(3, 64, 32, 32, 2), "random": random(r, 30), "another": random(r, 60)} {
		ix := p.indexed()
		s, low := newLiveSim(ix), newLowerer(ix, ix.plain().order)
		for try := range 40 {
			keep := ix.keepAll()
			for _, v := range ix.stash {
				keep[v] = r.Intn(2) == 0
			}
			schedule := slices.Clone(low.scheduleIn(keep, mode(try)%modes))
			if try%4 == 0 {
				schedule = schedule[:r.Intn(len(schedule))]
			}
			s.resolve(schedule)
			type output struct{ pos, slot int }
			latest, reads, made := map[int32]output{}, map[output]int32{}, map[int32]output{}
			for pos, op := range schedule {
				for k := range ix.flat.out.of(op) {
					made[s.first[pos]+int32(k)] = output{pos, k}
				}
			}
			seen := map[int]bool{}
			for pos, op := range schedule {
				for k, v := range ix.flat.in.of(op) {
					want, there := latest[v]
					id := s.read[int(s.start[pos])+k]
					if got, ok := made[id]; there != (id >= 0) || there && (!ok || got != want) {
						t.Fatalf("%s: position %d reads input %d of %v (%t), want %v (%t)", name, pos, k, got, id >= 0, want, there)
					}
					if there {
						reads[want]++
					}
				}
				if seen[op] {
					again++
				}
				seen[op] = true
				for k, v := range ix.flat.out.of(op) {
					if v >= 0 {
						latest[v] = output{pos, k}
					}
				}
			}
			for id, out := range made {
				value := ix.flat.out.of(schedule[out.pos])[out.slot]
				held := int32(1)
				if value >= 0 && !ix.flat.values[value].inner {
					held = forever
				}
				if got := s.insts[id]; got.value != value || got.uses != reads[out]+held {
					t.Fatalf("%s: output %v is value %d, read %d times, want value %d, %d", name, out, got.value, got.uses-held, value, reads[out])
				}
			}
		}
	}
	if again == 0 {
		t.Error("nothing ran again")
	}
}

// TestMovesAreSeenOnce: the search finds what it found with every move simulated, and
// simulates fewer.
func TestMovesAreSeenOnce(t *testing.T) {
	for name, make := range map[string]func() *Problem{
		"chain":       func() *Problem { return chain(24) },
		"transformer": func() *Problem { return transformer(4, 64, 32, 32, 2) },
		"random":      func() *Problem { return random(rand.New(rand.NewSource(3)), 40) },
	} {
		search := func(seen map[uint64]struct{}) (*explorer, int64) {
			ix := make().indexed()
			base := ix.lean()
			before := ix.events
			e := newExplorer(ix, base, ix.searchVisits())
			e.seen = seen
			e.seeds(true)
			e.sweep()
			e.localSearch()
			e.paths()
			return e, ix.events - before
		}
		got, simulated := search(map[uint64]struct{}{})
		want, all := search(nil)
		if len(got.front.points) != len(want.front.points) {
			t.Fatalf("%s: %d points, %d with every move simulated", name, len(got.front.points), len(want.front.points))
		}
		for k, q := range want.front.points {
			if p := got.front.points[k]; p.peak != q.peak || p.work != q.work {
				t.Errorf("%s: point %d is (%d, %d), (%d, %d) with every move simulated", name, k, p.peak, p.work, q.peak, q.work)
			}
		}
		if simulated >= all {
			t.Errorf("%s: %d executions, %d with every move simulated", name, simulated, all)
		}
	}
}
