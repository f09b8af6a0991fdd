package precision

// 300 steps of AdamW on text (Lincoln at Gettysburg, the Declaration of
// Independence, a sonnet by Shakespeare; all in the public domain), a token a
// byte, in float32 and in emulated half types.

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// tiny is gpt2-tiny with its gradients, and initial weights by a seed.
func tiny(t testing.TB, seed uint64) *sample {
	t.Helper()
	row, err := models.Find("gpt2-tiny")
	if err != nil {
		t.Fatal(err)
	}
	c := row.Default
	c.Vocab, c.Batch, c.Seed = 128, 4, seed
	built, err := row.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := built.Describe(); err != nil {
		t.Fatal(err)
	}
	res, err := grad.Differentiate(built.Model, grad.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{model: built.Model, feeds: map[string]runtime.Tensor{}, loss: res.Loss.Name, res: res}
	for _, p := range built.Params {
		data := make([]byte, 4*p.Elements())
		p.Init.Fill(data, seed, p.Name, 0)
		s.feeds[p.Name] = runtime.Tensor{Type: onnx.Float32, Shape: p.Shape, Data: data}
	}
	for _, p := range res.Params {
		s.grads = append(s.grads, p.Grad.Name)
	}
	return s
}

// batches are windows of the text, one a step.
func batches(t testing.TB, steps int, seed uint64) runtime.Tensor {
	t.Helper()
	text, err := os.ReadFile("testdata/text.txt")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 7))
	ids := make([]int64, 0, steps*4*64)
	for range steps * 4 {
		at := r.IntN(len(text) - 64)
		for _, c := range text[at : at+64] {
			ids = append(ids, int64(c&127))
		}
	}
	return runtime.FromInt64s(ids, int64(steps), 4, 64)
}

// A recipe says how to train: clip 0 does not clip.
type recipe struct{ clip, lr float64 }

var usual = recipe{clip: 1, lr: 5e-4}

// train returns the loss of each step and the scaler at the end.
func (s *sample) train(t testing.TB, p Options, r recipe, steps int, seed uint64) ([]float64, *runtime.Scaler) {
	t.Helper()
	o := optim.Defaults(optim.AdamW)
	o.ClipNorm = r.clip
	m := s.training(t, o, p)
	ids := batches(t, steps, seed)
	e, err := ortest.Engine(t).Open(m, runtime.Options{
		Level: 1, Threads: 2, Provider: ort.CPU, Feeds: s.feeds, LR: r.lr,
		Data: map[string]runtime.Tensor{"input_ids": ids, "labels": ids},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var losses []float64
	for range steps {
		step, err := e.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		o, _ := step.Output(s.loss)
		x, err := o.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, x[0])
	}
	return losses, e.Scaler()
}

// final is the mean of the last ten losses.
func final(losses []float64) float64 {
	sum := 0.0
	for _, x := range losses[len(losses)-10:] {
		sum += x
	}
	return sum / 10
}

func TestTraining(t *testing.T) {
	if testing.Short() {
		t.Skip("1,200 steps")
	}
	trainings(t, 0, 1)
}

// BenchmarkTraining is TestTraining with two more seeds.
func BenchmarkTraining(b *testing.B) {
	for range b.N {
		trainings(b, 1, 3)
	}
}

// trainings compares the final losses with float32's, for each seed.
func trainings(t testing.TB, from, to uint64) {
	const steps = 300
	for seed := from; seed < to; seed++ {
		s := tiny(t, seed)
		full, _ := s.train(t, Options{}, usual, steps, seed)
		want := final(full)
		t.Logf("seed %d: float32 %.4f to %.4f", seed, full[0], want)
		if !(want < full[0]*0.7) {
			t.Errorf("seed %d: float32 learns nothing: %g to %g", seed, full[0], want)
		}
		for _, c := range []struct {
			name string
			o    Options
		}{
			{"float16", Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU}},
			{"float16, stash only", Options{To: onnx.Float16, StashOnly: true, Early: true, Provider: kernels.CPU}},
			{"bfloat16", Options{To: onnx.BFloat16, Emulate: true, Provider: kernels.CPU}},
		} {
			losses, scaler := s.train(t, c.o, usual, steps, seed)
			got := final(losses)
			t.Logf("seed %d: %s to %.4f, %+.2f %%", seed, c.name, got, 100*(got/want-1))
			if !(math.Abs(got/want-1) < 0.02) {
				t.Errorf("seed %d: %s ends at %g, float32 at %g", seed, c.name, got, want)
			}
			if scaled := c.o.To == onnx.Float16 && !c.o.StashOnly; scaled != (scaler != nil) {
				t.Errorf("%s: scaled %v", c.name, scaler != nil)
			}
		}
	}
}

// BenchmarkWild trains at a rate and without clipping, where a small change of
// the first weights changes the final loss by percents: float32 from weights
// that are off by the last digit and by a unit of each half type, beside the
// half types.
func BenchmarkWild(b *testing.B) {
	const steps = 300
	wild := recipe{clip: 0, lr: 2e-3}
	for range b.N {
		worst := map[string]float64{}
		for seed := range uint64(3) {
			s := tiny(b, seed)
			given := s.feeds
			plain, _ := s.train(b, Options{}, wild, steps, seed)
			end := func(what string, o Options) {
				losses, _ := s.train(b, o, wild, steps, seed)
				d := final(losses)/final(plain) - 1
				worst[what] = max(worst[what], math.Abs(d))
				b.Logf("seed %d: float32 %.4f, %s %+.2f %%", seed, final(plain), what, 100*d)
			}
			for _, u := range []float64{0x1p-23, unit[onnx.Float16], unit[onnx.BFloat16]} {
				for n := range uint64(2) {
					s.feeds = s.nudged(b, u, n)
					end(fmt.Sprintf("nudged by 2^%g", math.Log2(u)), Options{})
					s.feeds = given
				}
			}
			for _, to := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
				end(to.String(), Options{To: to, Emulate: true, Provider: kernels.CPU})
			}
		}
		for what, d := range worst {
			b.ReportMetric(100*d, "%"+strings.ReplaceAll(what, " ", "-"))
		}
	}
}

// TestUnderflow shows what the scale is for: gradients of a loss that is small
// leave float16's range. Gradients with the scale keep what float32 has.
func TestUnderflow(t *testing.T) {
	s := tiny(t, 1)
	ids := batches(t, 1, 1)
	ids.Shape = ids.Shape[1:]
	s.feeds["input_ids"], s.feeds["labels"] = ids, ids
	want := run(t, clone(t, s.model), s.feeds, 0, 0)
	lost := map[bool]float64{}
	for _, scaled := range []bool{true, false} {
		m := clone(t, s.model)
		if _, err := Apply(m, Options{To: onnx.Float16, Emulate: true, NoScale: !scaled, Provider: kernels.CPU}); err != nil {
			t.Fatal(err)
		}
		m.Graph.AnnotateTypes()
		got := run(t, m, s.feeds, 1, 65536)
		worst, zeros, all := 0.0, 0, 0
		for _, g := range s.grads {
			if rms(want[g]) < 1e-8 {
				continue
			}
			worst = max(worst, distance(got[g], want[g]))
			for i, x := range want[g] {
				if x != 0 {
					all++
					if got[g][i] == 0 {
						zeros++
					}
				}
			}
		}
		lost[scaled] = float64(zeros) / float64(all)
		t.Logf("scaled %v: worst gradient off by %.3g, %.2f %% of the elements vanish", scaled, worst, 100*lost[scaled])
	}
	if !(lost[true] < 0.001 && lost[false] > 10*lost[true]) {
		t.Errorf("with the scale %.3g of the elements vanish, without %.3g", lost[true], lost[false])
	}
}
