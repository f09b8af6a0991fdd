package pipeline

import (
	"context"
	"os"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestNothingFits: where advice says that nothing fits, no combination of measures does:
// every set of changes, every split of the batch, and each strategy's file of least peak,
// by prediction. REMAT_SWEEP=1 takes a transformer too, four minutes more.
func TestNothingFits(t *testing.T) {
	if testing.Short() {
		t.Skip("plans every combination")
	}
	e := engine(t)
	for _, c := range []struct {
		model string
		dims  map[string]int64
	}{
		{"gpt2-tiny", map[string]int64{"batch": 2, "seq": 16}},
		{"mlp20.ts.onnx", nil},
	} {
		t.Run(c.model, func(t *testing.T) {
			if c.dims != nil && os.Getenv("REMAT_SWEEP") == "" {
				t.Skip("four minutes: REMAT_SWEEP=1")
			}
			source := fitSource(t, c.model)
			o := AdviseOptions{Half: &precision.Options{To: onnx.BFloat16, StashOnly: true}, Lighter: optim.SGD}
			o.Pipeline = Options{Dims: c.dims, Provider: ort.CPU, OptLevel: 1, Threads: 2, Normalize: Auto}
			o.Derive = DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX}, Update: optim.Defaults(optim.AdamW)}
			o.Norm, o.Memory = NormNever, 1
			none, err := Advise(context.Background(), e, source, o)
			if err != nil {
				t.Fatal(err)
			}
			if none.Recommended != nil || none.Nearest == nil {
				t.Fatalf("a byte is enough: %+v", none)
			}
			advice := none
			for o.Memory = none.Nearest.Bytes; ; o.Memory -= o.Memory / 20 { // down to where nothing fits
				if advice, err = Advise(context.Background(), e, source, o); err != nil {
					t.Fatal(err)
				}
				if advice.Recommended == nil {
					break
				}
				if r := advice.Recommended; !r.Fits || r.Bytes > o.Memory {
					t.Fatalf("%d is recommended for %d", r.Bytes, o.Memory)
				}
			}
			t.Logf("nearest %d with %v, memory %d", advice.Nearest.Bytes, advice.Nearest.Changes, o.Memory)
			checkNone(t, &adviser{Fitter: NewFitter(context.Background(), e, source), o: o, advice: advice})
		})
	}
}

// checkNone looks at every combination.
func checkNone(t *testing.T, v *adviser) {
	t.Helper()
	f, splits, err := v.fitting(v.o.FitOptions)
	if err != nil {
		t.Fatal(err)
	}
	v.axis, v.training = f.axis, f.training
	changes, err := v.changes()
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for set := range 1 << len(changes) {
		if !goTogether(changes, set) {
			continue
		}
		o := v.o.FitOptions
		for i, c := range changes {
			if set>>i&1 == 1 && c.apply != nil {
				c.apply(&o)
			}
		}
		f := &fitting{Fitter: v.Fitter, o: o, axis: f.axis}
		for _, s := range splits {
			a, err := f.attempt(s, false)
			if err != nil {
				t.Fatal(err)
			}
			for _, strategy := range []string{"none", "full", "optimal"} {
				file, err := a.planner.PlanWithin(strategy, Budget{})
				if err != nil {
					t.Fatal(err)
				}
				looked++
				if bytes := a.bytes(file); bytes <= o.Memory {
					t.Errorf("changes %b, split %v, %s: takes %d of %d", set, s, strategy, bytes, o.Memory)
				}
			}
		}
	}
	t.Logf("looked at %d combinations", looked)
}

// TestLargestWithAnotherOptimizer: the largest batch is that of what is recommended, where
// the optimizer that was asked for does not fit whatever the batch.
func TestLargestWithAnotherOptimizer(t *testing.T) {
	source := fitSource(t, "gpt2-tiny")
	o := AdviseOptions{Half: &precision.Options{To: onnx.BFloat16, StashOnly: true}, Lighter: optim.SGD}
	o.Pipeline = Options{Dims: map[string]int64{"batch": 1, "seq": 8}, Provider: ort.CPU, OptLevel: 1, Threads: 2, Normalize: Auto}
	o.Derive = DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX}, Update: optim.Defaults(optim.AdamW)}
	o.Norm, o.Memory = NormNever, 1<<40
	ample, err := Advise(context.Background(), engine(t), source, o)
	if err != nil {
		t.Fatal(err)
	}
	fixed := ample.Need.Total.Parameters + ample.Need.Total.State
	o.Memory = fixed - fixed/10
	advice, err := Advise(context.Background(), engine(t), source, o)
	if err != nil {
		t.Fatal(err)
	}
	if r := advice.Recommended; r == nil || r.Options.Derive.Update.Kind != optim.SGD {
		t.Fatalf("for %d bytes, %d of them AdamW's, this is recommended: %+v", o.Memory, fixed, r)
	}
	if advice.Largest == nil {
		t.Fatal("no largest batch")
	}
	if *advice.Largest < 2 {
		t.Errorf("the largest batch with SGD in %d bytes: %d, want more", o.Memory, *advice.Largest)
	}
}
