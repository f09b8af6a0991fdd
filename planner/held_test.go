package planner

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

// TestHeld: what is there from the step's begin is added to every peak and bound, and changes
// no plan.
func TestHeld(t *testing.T) {
	const held = 1 << 20
	for _, make := range []func() *Problem{
		func() *Problem { return transformer(3, 64, 32, 32, 2) },
		func() *Problem { return random(rand.New(rand.NewSource(5)), 40) },
	} {
		p, with := make(), make()
		with.Graph.Held = held
		if got, want := LowerBound(with), LowerBound(p)+held; got != want {
			t.Errorf("lower bound %d, want %d", got, want)
		}
		for _, strategy := range []string{"none", "selective", "optimal", "least"} {
			plan := mustSolve(t, p, strategy)
			v, err := Judge(p, plan)
			if err != nil {
				t.Fatal(err)
			}
			w, err := Judge(with, plan)
			if err != nil {
				t.Fatal(err)
			}
			if w.Peak != v.Peak+held {
				t.Errorf("%s: peak %d, want %d", strategy, w.Peak, v.Peak+held)
			}
			if got := newLiveSim(with.indexed()).run(plan.Schedule); got != newLiveSim(p.indexed()).run(plan.Schedule)+held {
				t.Errorf("%s: the search's peak is %d", strategy, got)
			}
		}
		prog, err := Expand(with, mustSolve(t, p, "selective"))
		if err != nil {
			t.Fatal(err)
		}
		g, _ := prog.Graph(with)
		sim, order := ortmodel.NewSimulator(g), ortmodel.FileSchedule(len(g.Nodes))
		profile := slices.Clone(sim.Profile(order))
		w := ortmodel.NewWindow(sim)
		w.At(order, 3, 9)
		if got := w.Profile(order[3:9]); !slices.Equal(got, profile[3:9]) {
			t.Errorf("a stretch holds %v, in the whole %v", got, profile[3:9])
		}
	}
}

func mustSolve(t *testing.T, p *Problem, strategy string) *Plan {
	t.Helper()
	plan, err := Solve(p, strategy)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestDeferralIntoGivenMemory: a product that frees a large value runs early by a control edge
// also where what it makes lies in memory that somebody gave, however large that is.
func TestDeferralIntoGivenMemory(t *testing.T) {
	const large, small, huge = 1 << 20, 1 << 10, 1 << 21
	for _, kind := range []ortmodel.Kind{ortmodel.Bound, ortmodel.Inner} {
		b := newBuilder()
		x := b.value("x", small, ortmodel.Feed, Feed)
		big := b.act("Big", 1, large, x)
		v := b.act("Small", 1, small, big)
		for range 40 {
			v = b.act("Step", 1, small, v)
		}
		product := b.value("product", huge, kind, Returned)
		b.op("Product", 1, []int{big}, product)
		end := b.value("end", 4, ortmodel.Output, Returned)
		b.op("End", 1, []int{v, product}, end)
		ix := b.p.indexed()
		order := ix.topo
		at := func(name string) int {
			return slices.IndexFunc(order, func(op int) bool { return b.p.Ops[op].Type == name })
		}
		if at("Product") < at("Step") {
			t.Fatal("the product runs early already")
		}
		found := len(ix.deferrals(order, newLiveSim(ix))) > 0
		if found != (kind == ortmodel.Bound) {
			t.Errorf("kind %d: brought in: %v", kind, found)
		}
	}
}
