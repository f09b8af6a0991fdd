package pipeline

import (
	"testing"

	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestTimeIsUp: whenever the time is up, after so many looks at the clock, what is
// written holds no more than full with the loss in slices, which takes a moment.
func TestTimeIsUp(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2", optim.AdamW, wideGPT)
	plan := func(o Options, strategy string, budget int64) (*File, *Planner) {
		o.Provider, o.OptLevel, o.Threads = ort.CPU, 1, 1
		p, err := NewPlanner(e, m, o)
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Plan(strategy, budget)
		if f == nil || err != nil && !unmet(err) {
			t.Fatalf("%s within %d: %v", strategy, budget, err)
		}
		return f, p
	}
	full, p := plan(Options{Divisions: Divisions{Chunk: coarse}}, "full", 0)
	if full.Peak > p.Before.LivePeak*2/3 {
		t.Fatalf("full with slices holds %d of %d: it does not reach far", full.Peak, p.Before.LivePeak)
	}
	for _, looks := range []int{0, 10, 100} {
		for _, budget := range []int64{0, 1, full.Peak * 21 / 20} { // none, one that no plan keeps, and one that full does
			left := looks
			f, p := plan(Options{Stop: func() bool { left--; return left < 0 }, TimeLimited: true}, "optimal", budget)
			if _, limited := p.Limited(); !limited {
				t.Errorf("%d looks, budget %d: the time was not up", looks, budget)
			}
			if f.Peak > full.Peak+full.Peak/rough {
				t.Errorf("%d looks, budget %d: live peak %d, full with slices holds %d", looks, budget, f.Peak, full.Peak)
			}
		}
	}
}
