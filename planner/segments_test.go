package planner

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

// heavyChain is an MLP whose weights, and so their returned gradients,
// outweigh all activations; the first layer reads the step's input.
func heavyChain(layers int) *Problem {
	b := newBuilder()
	x := b.feed("x", 1<<16)
	cuts := []int{ortmodel.None}
	for i := range layers {
		x = b.unary("Tanh", b.matmul(x, b.weight(fmt.Sprint("w", i), 1<<22), 1<<16, 1<<26), true)
		cuts = append(cuts, x)
	}
	p := b.finish(x, cuts[1:])
	p.Layers = cutAt(cuts...)
	return p
}

// leftBehind is what forward leaves behind in a strategy's plan, its peak and
// its notes.
func leftBehind(t *testing.T, p *Problem, strategy string) (left, peak int64, notes string) {
	t.Helper()
	plan, err := Solve(p, strategy)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Judge(p, plan)
	if err != nil {
		t.Fatal(err)
	}
	sim := newLiveSim(p.indexed())
	sim.run(plan.Schedule)
	return sim.leftBehind(plan.Schedule), v.Peak, strings.Join(plan.Notes, "\n")
}

// TestForwardSaves: where returned gradients are the peak, checkpointing lowers
// what forward leaves behind by all but the boundaries and the last segment,
// and no peak rises; the plan says what is in the way.
func TestForwardSaves(t *testing.T) {
	const layers = 20
	p := heavyChain(layers)
	none, plain, _ := leftBehind(t, p, "none")
	layer := none / layers
	for _, c := range []struct {
		strategy string
		kept     int64 // boundaries, and the last segment's values
	}{
		{"sqrt", 5 + 4},
		{"segments=4", 3 + 5},
		{"segments=2", 1 + 10},
		{"every=5", 4 + 5},
	} {
		left, peak, notes := leftBehind(t, p, c.strategy)
		t.Logf("%s: %d layers' values of %d left behind, peak %d of %d: %s", c.strategy, left/layer, layers, peak, plain, notes)
		if left > (c.kept+1)*layer {
			t.Errorf("%s: forward leaves %d layers' values behind, want about %d", c.strategy, left/layer, c.kept)
		}
		if peak > plain {
			t.Errorf("%s: peak %d above the plain %d", c.strategy, peak, plain)
		}
		if !strings.Contains(notes, "does not lower the peak") || !strings.Contains(notes, "outputs of the step") {
			t.Errorf("%s: notes %q", c.strategy, notes)
		}
	}
	_, _, notes := leftBehind(t, p, "full") // each value that backward reads is a boundary
	if !strings.Contains(notes, "no recomputation") {
		t.Errorf("full: notes %q", notes)
	}
}

// TestBesideStays: what lives beside boundaries is kept by plans by segments,
// unless dropping it lowers the peak at hardly any work.
func TestBesideStays(t *testing.T) {
	b := newBuilder()
	x := b.feed("x", 1<<20)
	e := b.unary("Tanh", b.matmul(x, b.weight("we", 1<<14), 1<<20, 1<<28), true)
	cuts := []int{e}
	y := e
	for i := range 6 {
		y = b.unary("Tanh", b.matmul(b.add(y, e), b.weight(fmt.Sprint("w", i), 1<<14), 1<<20, 1<<24), true)
		cuts = append(cuts, y)
	}
	p := b.finish(y, cuts)
	p.Layers, p.Beside = cutAt(cuts[1:]...), []int{e}
	for _, s := range []string{"full", "sqrt", "segments=2"} {
		plan, err := Solve(p, s)
		if err != nil {
			t.Fatal(err)
		}
		runs := 0
		for _, op := range plan.Schedule {
			if op == p.indexed().producer[e] {
				runs++
			}
		}
		if runs != 1 {
			t.Errorf("%s: what lives beside the boundaries is computed %d times", s, runs)
		}
	}
}

// TestManySmallValues: the values of an unrolled recurrence may be dropped,
// though each is small; in a problem of some large values small ones may not.
func TestManySmallValues(t *testing.T) {
	b := newBuilder()
	w := b.weight("w", 1<<12)
	x := b.feed("x", 1<<12)
	for range 2000 {
		x = b.unary("Tanh", b.matmul(x, w, 1<<12, 1<<14), false)
	}
	p := b.finish(x, nil)
	if n := len(p.indexed().stash); n < 2000 {
		t.Errorf("%d values of 2000 steps may be dropped", n)
	}
	b = newBuilder()
	x = b.matmul(b.feed("x", 1<<22), b.weight("w", 1<<12), 1<<22, 1<<20)
	x = b.unary("Tanh", b.matmul(x, b.weight("v", 1<<12), 1<<12, 1<<20), false)
	p = b.finish(x, nil)
	for _, v := range p.indexed().stash {
		if p.Graph.Values[v].Bytes <= 1<<12 {
			t.Errorf("%s of %d bytes may be dropped", p.Values[v].Name, p.Graph.Values[v].Bytes)
		}
	}
}

// TestPolishRaisesNoPeak: on random chains and transformers no plan by
// segments needs more than its unpolished boundaries.
func TestPolishRaisesNoPeak(t *testing.T) {
	r := rand.New(rand.NewSource(7))
	for range 10 {
		p := transformer(2+r.Intn(6), int64(64+r.Intn(256)), 64, 64, int64(1+r.Intn(4)))
		ix := p.indexed()
		bounds := every(p.Layers, 1+r.Intn(3))
		keep := ix.segmentKeep(bounds)
		e := newExplorer(ix, ix.plain(), 0)
		before, _, _ := e.visit(keep)
		e.polish(keep, bounds, tailOf(bounds), false)
		if after, _, _ := e.visit(keep); after > before {
			t.Errorf("polished, %d bytes; before, %d", after, before)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*.bias", "h.0.bias", true},
		{"*bias", "/h/0/bias", true},
		{"/h/*/bias", "/h/0/attn/bias", true},
		{"h?0", "h/0", true},
		{"h/0", "h.0", false},
		{"h[0]", "h[0]", true},
		{"h[0]", "h0", true},
		{"h[0", "h[0", true},
		{"", "", true},
	} {
		if got := Match(c.pattern, c.name); got != c.want {
			t.Errorf("Match(%q, %q) is %v", c.pattern, c.name, got)
		}
	}
}
