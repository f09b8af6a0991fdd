package pipeline

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestHidden: in half types, on CUDA, a file holds less as it hides the shapes of what
// dead buffers would wait for; none of them for nothing. Its plan leads to it again. In
// float32, and for the CPU, nothing is hidden where no shape is erased.
func TestHidden(t *testing.T) {
	m := trainingGraph(t, "gpt2", wideGPT)
	for _, o := range []Options{
		{CUDA: true, Precision: &precision.Options{To: onnx.Float16, Provider: kernels.CUDA}},
		{CUDA: true, Precision: &precision.Options{To: onnx.BFloat16, Provider: kernels.CUDA}},
		{CUDA: true},
		{Precision: &precision.Options{To: onnx.Float16, Provider: kernels.CPU}},
	} {
		o.Provider, o.OptLevel, o.Threads = ort.CPU, 1, 1
		p, err := NewPlanner(engine(t), m, o)
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Plan("full", 0)
		if err != nil {
			t.Fatal(err)
		}
		var list []hidden
		if f.written != nil {
			list = f.written.hidden
		}
		if want := o.CUDA && o.Precision != nil; (len(list) > 0) != want {
			t.Errorf("%+v: hides %v, want some: %t", o.Precision, list, want)
			continue
		}
		hiddenForSomething(t, p, f, list)
		if again, err := p.Apply(f.Plan); err != nil || again.Peak != f.Peak {
			t.Errorf("the plan leads to a file of %d bytes, was %d: %v", again.Peak, f.Peak, err)
		}
	}
}

// hiddenForSomething: without any one of what a file hides, it holds more.
func hiddenForSomething(t *testing.T, p *Planner, f *File, list []hidden) {
	t.Helper()
	for i, h := range list {
		if h.follows {
			continue
		}
		next := i + 1
		for next < len(list) && list[next].follows {
			next++
		}
		less, err := p.writeHiding(f.Variant, f.Plan, slices.Concat(list[:i], list[next:]))
		if err != nil {
			t.Fatal(err)
		}
		if less.Peak <= f.Peak {
			t.Errorf("%s: hidden for nothing: %d bytes without, %d with it", h.name, less.Peak, f.Peak)
		}
	}
}

// TestHiddenAmongErased: where a plan erases shapes, a file holds nearer to what the plan does as it
// hides those that are told all the same, of large values by views and of small ones without a
// node; no less, as plans are chosen by that.
func TestHiddenAmongErased(t *testing.T) {
	bert, _, _ := derived(t, sample("bert_tiny.ts.onnx"))
	if err := Order(bert, Options{}); err != nil {
		t.Fatal(err)
	}
	joint, err := onnx.Load(sample("joint/gpt2_tiny_eager.step_adamw.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	defer joint.Close()
	for _, c := range []struct {
		m            *onnx.Model
		strategy     string
		budget, most int64
	}{{bert, "least", 0, 164036}, {joint, "optimal", 1237772, 1199428}} {
		p, err := NewPlanner(engine(t), c.m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Plan(c.strategy, c.budget)
		if err != nil {
			t.Fatal(err)
		}
		list := f.written.hidden
		if !f.Plan.EraseShapes || len(list) == 0 || f.Peak > c.most || f.Peak < f.Verdict.Peak {
			t.Errorf("shapes erased: %t, hidden: %v, %d bytes, want at most %d and at least the plan's %d", f.Plan.EraseShapes, list, f.Peak, c.most, f.Verdict.Peak)
		}
		if !slices.ContainsFunc(list, func(h hidden) bool { return h.follows }) {
			t.Errorf("hidden: %v, and none that follows another one", list)
		}
		hiddenForSomething(t, p, f, list)
		if again, err := p.Apply(f.Plan); err != nil || again.Peak != f.Peak {
			t.Errorf("the plan leads to a file of %d bytes, was %d: %v", again.Peak, f.Peak, err)
		}
	}
}
