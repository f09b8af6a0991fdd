package planner

import (
	"testing"
)

// TestLimits: of every limit that some plan keeps, the search's frontier has plans, all of
// them within it, none with more work than the next tighter limit's least; the rest of the
// step is not held to it.
func TestLimits(t *testing.T) {
	const layers = 6
	plain := transformer(layers, 256, 64, 256, 4)
	of := make([]bool, len(plain.Ops))
	for op, layer := range plain.LayerOf() {
		of[op] = layer >= 0 && layer < layers/2
	}
	whole := plain.PlainKept(of)
	if whole <= 0 {
		t.Fatal("the layers keep nothing")
	}
	least := -1.0
	for _, share := range []int64{100, 60, 30, 10} {
		p := transformer(layers, 256, 64, 256, 4)
		p.Limits = []Limit{{"half", of, whole * share / 100}}
		work := -1.0
		for c, err := range optimalFrontier(p, 1<<62, nil) {
			if err != nil {
				t.Fatal(err)
			}
			plan, err := c.Plan()
			if err != nil {
				t.Fatal(err)
			}
			if miss := plan.Limited(p); miss != nil {
				t.Errorf("%d %%: %v", share, miss)
			}
			if work < 0 {
				work = c.Overhead
			}
		}
		if work < 0 {
			t.Fatalf("%d %%: no plan", share)
		}
		if work < least {
			t.Errorf("%d %%: %g more work, more than a tighter limit's %g", share, least, work)
		}
		least = work
	}
	p := transformer(layers, 256, 64, 256, 4)
	p.Limits = []Limit{{"half", of, -1}}
	plan, err := Solve(p, "least")
	if err != nil {
		t.Fatal(err)
	}
	if plan.Limited(p) == nil {
		t.Error("a limit below zero is kept")
	}
}
