package pipeline

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestWithinWork: a file with a bound on its work keeps it and holds no more than with a
// tighter one, and what it holds cannot be had for less work: a budget of its peak finds
// no plan that repeats more.
func TestWithinWork(t *testing.T) {
	e := engine(t)
	small := func(c *models.Config) {
		if c.Layers = 4; c.Seq > 0 {
			c.Seq = 32
		}
		if c.Vocab > 0 {
			c.Vocab = 300
		}
		c.Hidden, c.Batch = 32, 4
		if c.Heads > 0 {
			c.Heads = 2
		}
	}
	graphs := map[string]func(t *testing.T) (*onnx.Model, map[string]int64){}
	for _, g := range []struct {
		name   string
		update optim.Kind
		change func(*models.Config)
	}{{"gpt2", optim.AdamW, wideGPT}, {"gpt2", optim.SGD, small}, {"mlp", optim.AdamW, small}, {"heavy", optim.SGD, small}, {"encoder", optim.AdamW, small}} {
		graphs[fmt.Sprint(g.name, " ", g.update)] = func(t *testing.T) (*onnx.Model, map[string]int64) {
			return zooStep(t, g.name, g.update, g.change), nil
		}
	}
	for _, name := range []string{"llama_tiny.dyn", "bert_tiny.ts", "resnet18_like.ts", "seq20_relu.dyn", "nanogpt_tril.ts_op17"} {
		graphs[name] = func(t *testing.T) (*onnx.Model, map[string]int64) {
			m, _, dims := derived(t, sample(name+".onnx"))
			return m, dims
		}
	}
	for name, graph := range graphs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, dims := graph(t)
			p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Dims: dims, Normalize: Auto})
			if err != nil {
				t.Fatal(err)
			}
			last, files := p.Scheduled+shapesBytes, []*File{}
			for _, work := range []float64{0, 0.05, 0.1, 0.2, 100} {
				f, err := p.PlanWithin("optimal", Budget{Work: &work})
				if err != nil {
					t.Fatal(err)
				}
				if f.overhead() > work || f.Peak > last {
					t.Errorf("at most %g: %g more work, %d bytes, %d before", work, f.overhead(), f.Peak, last)
				}
				last, files = f.Peak, append(files, f)
				dual, err := p.PlanWithin("optimal", Budget{Live: f.Peak})
				if err != nil {
					t.Fatal(err)
				}
				if dual.overhead() > f.overhead()+1e-3 {
					t.Errorf("at most %g: %d bytes for %g, by a budget for %g", work, f.Peak, f.overhead(), dual.overhead())
				}
				if d := p.Document(f, Budget{Work: &work}); d.OverheadLimit == nil || !d.Feasible {
					t.Errorf("%+v", d)
				}
			}
			least, err := p.Plan("least", 0)
			if err != nil {
				t.Fatal(err)
			}
			if last > least.Peak+least.Peak/rough {
				t.Errorf("without a real bound %d bytes, by the search for the least %d", last, least.Peak)
			}
			knee, err := p.Plan("optimal", 0)
			if err != nil {
				t.Fatal(err)
			}
			ceiling := int64(math.MaxInt64)
			for _, strategy := range []string{"full", "sqrt", "selective"} {
				f, err := p.Plan(strategy, 0)
				if err != nil {
					t.Fatal(err)
				}
				ceiling = min(ceiling, f.Peak)
			}
			bends(t, knee, ceiling, files)
		})
	}
	half := 0.5
	p, err := NewPlanner(e, trainingGraph(t, "gpt2", wideGPT), Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, strategy := range []string{"full", "least"} {
		if _, err := p.PlanWithin(strategy, Budget{Work: &half}); err == nil {
			t.Errorf("strategy %s takes a bound on its work", strategy)
		}
	}
	if _, err := p.Plan("least", 1<<20); err == nil {
		t.Error("strategy least takes a bound on the memory")
	}
	if _, err := p.PlanWithin("optimal", Budget{Work: &half, Live: 1 << 20}); err == nil {
		t.Error("a bound on the work goes with one on the memory")
	}
	// Slices that are asked for are work that no plan is without.
	chunk, err := ParseSlices("4")
	if err != nil {
		t.Fatal(err)
	}
	p, err = NewPlanner(e, trainingGraph(t, "gpt2", wideGPT), Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Divisions: Divisions{Chunk: chunk}})
	if err != nil {
		t.Fatal(err)
	}
	hardly := 1e-4
	var beyond *WorkError
	f, err := p.PlanWithin("optimal", Budget{Work: &hardly})
	if !errors.As(err, &beyond) || beyond.Asked <= hardly || f == nil || p.Document(f, Budget{Work: &hardly}).Feasible {
		t.Errorf("at most %g: %v", hardly, err)
	}
	if f, err = p.PlanWithin("optimal", Budget{Work: &half}); err != nil || f.overhead() < beyond.Asked {
		t.Errorf("at most %g: %v", half, err)
	}
}

// bends checks the file of an optimal plan without a bound beside those of the least peak
// within some work, by ascending work: it lies between them, and no other one is worth its
// work more, unless a strategy with one plan holds less than that.
func bends(t *testing.T, knee *File, ceiling int64, files []*File) {
	t.Helper()
	first, last := files[0], files[len(files)-1]
	t.Logf("plain %d bytes; knee %d bytes, %.3g more work; least %d, %.3g", first.Peak, knee.Peak, knee.overhead(), last.Peak, last.overhead())
	if knee.overhead() > last.overhead()+1e-9 || knee.Peak > first.Peak {
		t.Errorf("the knee lies beside the curve")
	}
	if knee.Peak > ceiling {
		t.Errorf("the knee holds %d bytes, a strategy with one plan %d", knee.Peak, ceiling)
	}
	price := func(f *File) float64 { return float64(f.Prediction.TotalPeak) * math.Exp2(3*f.overhead()) }
	for _, f := range files {
		if f.Peak <= ceiling && price(f) < 0.99*price(knee) {
			t.Errorf("%d bytes for %g more work are worth more than the knee", f.Peak, f.overhead())
		}
	}
}

// TestLossInFourWithinBounds: a bound on the work, or on memory, is kept with no more memory,
// or work, than with the loss in four slices, as who asks for these gets them: what more
// slices read again may be better spent elsewhere.
func TestLossInFourWithinBounds(t *testing.T) {
	m := zooStep(t, "gpt2", optim.SGD, func(c *models.Config) { c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 96, 4, 8000, 256, 8 })
	asked := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}
	few := asked
	few.Divisions = Divisions{Chunk: Parts(4), Tile: auto}
	plan := func(o Options, within Budget) *File {
		p, err := NewPlanner(engine(t), m, o)
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.PlanWithin("optimal", within)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	work := 0.05
	four := plan(few, Budget{Work: &work})
	if four.Variant.Divided.Loss != 4 {
		t.Fatalf("%d slices", four.Variant.Divided.Loss)
	}
	if f := plan(asked, Budget{Work: &work}); f.Peak > four.Peak || f.overhead() > work {
		t.Errorf("%d bytes for %.4f more work, in four slices %d for %.4f", f.Peak, f.overhead(), four.Peak, four.overhead())
	}
	if f := plan(asked, Budget{Live: four.Peak}); f.Peak > four.Peak || f.overhead() > four.overhead() {
		t.Errorf("within %d bytes %.4f more work, in four slices %.4f", four.Peak, f.overhead(), four.overhead())
	}
}

// The knee does not move with the end of the curve, which may lie far out: a graph whose
// least peak takes much more work has the knee that its first points have, and what follows
// is not looked for.
func TestKneeIgnoresTheEnd(t *testing.T) {
	curve := []Candidate{{Peak: 1000}, {Peak: 600, Overhead: 0.02}, {Peak: 700, Overhead: 0.05}, {Peak: 400, Overhead: 0.1}, {Peak: 390, Overhead: 0.2}}
	far := append(slices.Clone(curve), Candidate{Peak: 350, Overhead: 3})
	for _, c := range []struct {
		curve           []Candidate
		beside, ceiling int64
		want, seen      int // candidates of the curve
	}{
		{curve, 0, 1000, 2, 4},
		{far, 0, 1000, 2, 4},
		{far, 1000, 1000, 1, 4},
		{curve, 10000, 1000, 0, 2}, // what is saved is little of what is held
		{far, 10000, 395, 3, 4},    // what other strategies reach
		{far, 0, 100, 4, 5},        // nothing does
		{curve[:1], 10, 1000, 0, 1},
		{nil, 0, 100, -1, 0},
	} {
		b := newBargain(c.beside, c.ceiling)
		for _, x := range c.curve {
			if b.useful(x.Overhead) > 0 {
				b.add(x)
			}
		}
		if more := len(c.curve) > 1 && c.want < 4; b.cut != more {
			t.Errorf("beside %d, at most %d: plans were left out: %v", c.beside, c.ceiling, b.cut)
		}
		if got := b.knee(c.ceiling); got != c.want || len(b.curve) != c.seen {
			t.Errorf("beside %d, at most %d: point %d of %d, want %d of %d", c.beside, c.ceiling, got, len(b.curve), c.want, c.seen)
		}
	}
}

// TestHopeless: a form of the graph none of whose plans can cost less than what was found is
// left out, and the bargain knows; none is while there is no price, or where a plan may.
func TestHopeless(t *testing.T) {
	p, err := NewPlanner(engine(t), norms(t, 4), Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		peak int64 // of the plan that was found, 0: none was
		want bool
	}{{0, false}, {1, true}, {p.Scheduled, false}} {
		b := newBargain(0, math.MaxInt64)
		if c.peak > 0 {
			b.add(Candidate{Peak: c.peak})
		}
		if got := b.hopeless(p.Problem()); got != c.want || b.cut != c.want {
			t.Errorf("%d bytes found of %d: hopeless %t, left out %t, want %t", c.peak, p.Scheduled, got, b.cut, c.want)
		}
	}
}
