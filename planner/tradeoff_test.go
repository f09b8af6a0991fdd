package planner

import (
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
	}{
		{"half of the plain step for 5 % more work", falling(none.Peak/2, 0.05), true},
		{"more than the plain step", falling(none.Peak+1, 0.05), false},
		{"half, whatever the work", func(float64) int64 { return none.Peak / 2 }, false},
	} {
		if got := HoldsMore(p, c.limit); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
