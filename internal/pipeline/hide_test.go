package pipeline

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestHidden: in half types, on CUDA, a file holds less as it hides the shapes of what
// dead buffers would wait for; none of them for nothing. Its plan leads to it again. In
// float32, and for the CPU, nothing is hidden.
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
		var hidden []string
		if f.written != nil {
			hidden = f.written.hidden
		}
		if want := o.CUDA && o.Precision != nil; (len(hidden) > 0) != want {
			t.Errorf("%+v: hides %q, want some: %t", o.Precision, hidden, want)
			continue
		}
		for i := range hidden { // each does something
			rest := append(append([]string(nil), hidden[:i]...), hidden[i+1:]...)
			less, err := p.writeHiding(f.Variant, f.Plan, rest)
			if err != nil {
				t.Fatal(err)
			}
			if less.Peak <= f.Peak {
				t.Errorf("%s: hidden for nothing: %d bytes without, %d with it", hidden[i], less.Peak, f.Peak)
			}
		}
		if again, err := p.Apply(f.Plan); err != nil || again.Peak != f.Peak {
			t.Errorf("the plan leads to a file of %d bytes, was %d: %v", again.Peak, f.Peak, err)
		}
	}
}
