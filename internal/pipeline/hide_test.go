package pipeline

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
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

// TestHiddenAmongErased: where a plan erases shapes, a file holds less as it hides those that
// are told all the same, small ones too, for which it takes no node.
func TestHiddenAmongErased(t *testing.T) {
	followed := 0
	for name, most := range map[string]int64{"bert_tiny.ts.onnx": 164036, "nanogpt_tril.ts_op17.onnx": 632836} {
		m, _, dims := derived(t, sample(name))
		if name == "bert_tiny.ts.onnx" {
			if err := Order(m, Options{Dims: dims}); err != nil {
				t.Fatal(err)
			}
		} else {
			withOptimizer(t, m, differentiated(m), optim.Defaults(optim.AdamW))
		}
		p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Dims: dims})
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Plan("least", 0)
		if err != nil {
			t.Fatal(err)
		}
		if !f.Plan.EraseShapes || len(f.written.hidden) == 0 || f.Peak > most {
			t.Errorf("%s: shapes erased: %t, hidden: %v, %d bytes, want at most %d", name, f.Plan.EraseShapes, f.written.hidden, f.Peak, most)
		}
		hiddenForSomething(t, p, f, f.written.hidden)
		for _, h := range f.written.hidden {
			if h.follows {
				followed++
			}
		}
		if again, err := p.file(f.Variant.with(f.Plan), Budget{}); err != nil || again.Peak != f.Peak {
			t.Errorf("%s: the plan leads to a file of %d bytes, was %d: %v", name, again.Peak, f.Peak, err)
		}
	}
	if followed == 0 {
		t.Error("no small value follows another one")
	}
}
