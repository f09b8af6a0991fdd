package precision

// Training in half: overflow, and what loss scaling is for.

import (
	"bytes"
	"context"
	"math"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// training is the sample with an optimizer, converted.
func (s *sample) training(t testing.TB, o optim.Options, p Options) *onnx.Model {
	t.Helper()
	m := clone(t, s.model)
	var params []optim.Param
	for _, q := range s.res.Params {
		params = append(params, optim.Param{Value: m.Graph.Value(q.Input.Name), Grad: m.Graph.Value(q.Grad.Name)})
	}
	if _, err := optim.Apply(m, params, o); err != nil {
		t.Fatal(err)
	}
	if p.To != onnx.Undefined {
		if _, err := Apply(m, p); err != nil {
			t.Fatal(err)
		}
	}
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestOverflow makes gradients overflow at chosen steps, by a scale that half
// cannot hold: nothing changes in those steps, not a bit of a parameter or of
// the optimizer's state, the scale halves, and training goes on.
func TestOverflow(t *testing.T) {
	s := load(t, "gpt2_tiny_mask.ts")
	sgd := optim.Options{Kind: optim.SGD, Momentum: 0.9, WeightDecay: 0.01, ClipNorm: 1}
	cases := map[string]optim.Options{"adamw": optim.Defaults(optim.AdamW), "clipped sgd": sgd}
	for _, by := range []optim.Clip{optim.ClipParameter, optim.ClipPrevious} {
		sgd.ClipBy = by
		cases["sgd clipped by "+string(by)] = sgd
	}
	for name, o := range cases {
		for _, keep := range []bool{false, true} {
			o.KeepGrads = keep
			m := s.training(t, o, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
			e, err := ortest.Engine(t).Open(m, runtime.Options{
				Level: 1, Threads: 2, Provider: ort.CPU, Feeds: s.feeds, LR: 1e-2,
				LossScale: 1 << 30, Scaling: runtime.Scaling{Interval: 3, Backoff: 1.0 / (1 << 8), Growth: 1 << 12, Max: 1 << 40},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			skipped, went := 0, 0
			first, last := math.NaN(), 0.0
			for i := range 12 {
				before, scale := state(t, e), e.Scaler().Scale
				step, err := e.Step(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				loss, _ := step.Output(s.loss)
				values, err := loss.Float64s()
				if err != nil || math.IsNaN(values[0]) || math.IsInf(values[0], 0) {
					t.Fatalf("%s: step %d: loss %v %v", name, i, values, err)
				}
				if i == 0 {
					first = values[0]
				}
				last = values[0]
				after := state(t, e)
				changed := 0
				for n := range before {
					if !bytes.Equal(before[n], after[n]) {
						changed++
					}
				}
				switch {
				case step.Skipped && changed > 0:
					t.Errorf("%s: step %d was skipped and changed %d of %d", name, i, changed, len(before))
				case step.Skipped && e.Scaler().Scale != scale/(1<<8):
					t.Errorf("%s: step %d: scale %g after %g", name, i, e.Scaler().Scale, scale)
				case !step.Skipped && changed < len(before)*9/10:
					t.Errorf("%s: step %d changed only %d of %d", name, i, changed, len(before))
				}
				if step.Skipped {
					skipped++
				} else {
					went++
				}
			}
			if skipped < 2 || went < 6 {
				t.Errorf("%s: %d steps skipped, %d not", name, skipped, went)
			}
			if !(last < first) {
				t.Errorf("%s: the loss goes from %g to %g", name, first, last)
			}
		}
	}
}

// state is everything that steps update; NaN and infinity are errors.
func state(t *testing.T, s *runtime.Session) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range s.Updated() {
		v, _, err := s.Input(name)
		if err != nil {
			t.Fatal(err)
		}
		x, err := v.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		for _, y := range x {
			if math.IsNaN(y) || math.IsInf(y, 0) {
				t.Fatalf("%s holds %v", name, y)
			}
		}
		all[name] = v.Data
	}
	return all
}
