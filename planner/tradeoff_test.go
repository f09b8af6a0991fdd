package planner

import (
	"fmt"
	"math"
	"testing"
)

// TestTradeoff: with no work repeated the bound is most of what the plain step holds, where
// LowerBound is what one operator takes; it falls as work rises, and none of the plans that
// a search finds lies under it.
func TestTradeoff(t *testing.T) {
	p := transformer(12, 1024, 256, 256, 8)
	p.Added, p.Reread = p.FLOPs()/10, p.FLOPs()/50
	ix := p.indexed()
	least := ix.tradeoff()
	none := peaks(t, p, "none")
	if at := least(0); at < none.Peak*3/4 || at > none.Peak || LowerBound(p) > none.Peak/4 {
		t.Errorf("no work: %d bytes at least, %d in any plan; the plain step holds %d", at, LowerBound(p), none.Peak)
	}
	for c, err := range optimalFrontier(p, math.MaxInt64, nil) {
		if err != nil {
			t.Fatal(err)
		}
		again := (c.Overhead - p.Floor()) * float64(p.FLOPs())
		if bound := least(again - 1); c.Peak < bound || bound < least(again) {
			t.Errorf("%d bytes for a share of %g, at least %d", c.Peak, c.Overhead, bound)
		}
		if work := LeastWork(p, c.Peak); c.Overhead < work-1e-9 || work < p.Floor() {
			t.Errorf("a share of %g for %d bytes, at least %g", c.Overhead, c.Peak, work)
		}
	}
	if work := LeastWork(p, none.Peak/2); work < p.Floor()+0.01 {
		t.Errorf("a share of %g at least for half of what the plain step holds: nothing is told", work)
	}
}

// TestTradeoffOfSlopes: a backward operator that does not wait for the gradient, as one that computes a slope
// from an activation, runs early and what it makes is held, or late and what it reads is.
func TestTradeoffOfSlopes(t *testing.T) {
	b := newBuilder()
	x := b.feed("x", 1<<20)
	for i := range 12 {
		x = b.matmul(x, b.weight(fmt.Sprint("w", i), 1<<16), 1<<20, 1<<28)
		x = b.sloped("Gelu", x, 1<<20)
	}
	p := b.finish(x, nil)
	none := peaks(t, p, "none")
	if at := p.indexed().tradeoff()(0); at < none.Peak*3/4 || at > none.Peak {
		t.Errorf("no work: %d bytes at least; the plain step holds %d", at, none.Peak)
	}
}

// TestHoldsMore: with a limit that all plans miss the bound says so, and with one that some
// plan keeps, or that never falls, it does not.
func TestHoldsMore(t *testing.T) {
	p := transformer(12, 1024, 256, 256, 8)
	p.Added = p.FLOPs() / 10
	none := peaks(t, p, "none")
	falling := func(from int64, share float64) func(float64) int64 {
		return func(work float64) int64 { return int64(float64(from) * (1 - (work-p.Floor())/share)) }
	}
	for _, c := range []struct {
		name  string
		limit func(float64) int64
		want  bool
		bound bool // LowerBound alone says so
	}{
		{"half of the plain step for 5 % more work", falling(none.Peak/2, 0.05), true, false},
		{"more than the plain step", falling(none.Peak+1, 0.05), false, false},
		{"half, whatever the work", func(float64) int64 { return none.Peak / 2 }, false, false},
		{"what no plan goes below, whatever the work", func(float64) int64 { return LowerBound(p) }, true, true},
	} {
		if got := HoldsMore(p, c.limit); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
		if got := KeepsMore(p, c.limit); got != (c.want && !c.bound) {
			t.Errorf("%s: kept %t, want %t", c.name, got, c.want && !c.bound)
		}
	}
}

// TestCheapest: the plan is one of the frontier, and none of it costs less by more than what
// the search's count and the judge's may differ.
func TestCheapest(t *testing.T) {
	p := transformer(6, 1024, 256, 256, 8)
	for _, beside := range []int64{0, 1 << 24, 1 << 28} {
		cost := func(work float64, peak int64) float64 { return float64(beside+peak) * math.Exp2(3*work) }
		best, err := Cheapest(p, cost)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for c, err := range optimalFrontier(p, math.MaxInt64, nil) {
			if err != nil {
				t.Fatal(err)
			}
			found = found || c.Overhead == best.Overhead && c.Peak == best.Peak
			if least := cost(best.Overhead, best.Peak); cost(c.Overhead, c.Peak) < 0.99*least {
				t.Errorf("beside %d: %d bytes at %g cost %g, and %d at %g cost %g", beside, best.Peak, best.Overhead, least, c.Peak, c.Overhead, cost(c.Overhead, c.Peak))
			}
		}
		if !found {
			t.Errorf("beside %d: %d bytes at %g are not on the frontier", beside, best.Peak, best.Overhead)
		}
	}
}
