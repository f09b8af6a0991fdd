package train

import (
	"bytes"
	"context"
	"errors"
	"math"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// job is a training of a mode in a folder, which the test may change.
func (m mode) job(t *testing.T, change func(*models.Config)) (*Job, *recorder) {
	t.Helper()
	src := m.source(t, change)
	s := m.open(t, src, runtime.Options{})
	t.Cleanup(func() { s.Close() })
	w := &recorder{}
	return &Job{
		Session: s, Accumulate: Accumulation(src.Model.Graph), Batches: tinyData, Watcher: w,
		Folder: folder(t, filepath.Join(t.TempDir(), "run"), 2), Schedule: Schedule{Kind: "constant", LR: 1e-3, Steps: 8},
	}, w
}

// TestStepsAndWhatComesBetween: states and validations come when they are due, each
// after its step was told.
func TestStepsAndWhatComesBetween(t *testing.T) {
	j, w := modes[0].job(t, nil)
	j.SaveEvery, j.EvalEvery = 3, 4
	j.Evaluate = func(context.Context) (Validation, error) {
		if n := int64(len(w.steps)); n%4 != 0 {
			t.Errorf("validated after %d steps", n)
		}
		return Validation{Loss: 1}, nil
	}
	r, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(w.steps) != 8 || !slices.Equal(w.saved, []int64{3, 6, 8}) || len(w.vals) != 2 || w.vals[1].Step != 8 {
		t.Errorf("%d steps, saved %v, validated %v", len(w.steps), w.saved, w.vals)
	}
	if r.Step != 8 || r.Tokens != 8*tinyBatch*tinySeq || r.NewTokens != r.Tokens || r.LossFirst != w.steps[0].Loss || r.LossLast != w.steps[7].Loss || r.StateStep != 8 {
		t.Errorf("%+v", r)
	}
	for _, s := range w.steps {
		if s.LR != 1e-3 || s.Seconds <= 0 || s.LivePeakBytes <= 0 || s.RSSBytes <= 0 || s.LossScale != 0 || s.Skipped {
			t.Errorf("%+v", s)
		}
	}
}

// TestValidationIsLeft: a training whose steps are all done validates, and does no step.
func TestValidationIsLeft(t *testing.T) {
	j, w := modes[0].job(t, nil)
	if _, err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	done := Position{Step: j.Schedule.Steps, Runs: j.Session.Progress().Runs, LossFirst: 7}
	again := &Job{
		Session: j.Session, Accumulate: j.Accumulate, Batches: j.Batches, Schedule: j.Schedule, From: done, Watcher: &recorder{},
		Evaluate: func(ctx context.Context) (Validation, error) { return Validation{Loss: 3}, ctx.Err() },
	}
	r, err := again.Run(context.Background())
	if err != nil || r.Validation == nil || r.Validation.Loss != 3 || r.Validation.Step != j.Schedule.Steps || r.Step != j.Schedule.Steps || !math.IsNaN(r.LossLast) {
		t.Errorf("%+v, %v", r, err)
	}
	if got := again.Watcher.(*recorder); len(got.steps) != 0 || len(got.vals) != 1 {
		t.Errorf("%d steps and %d validations told, after %d steps", len(got.steps), len(got.vals), len(w.steps))
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if r, err := again.Run(ended); !errors.Is(err, ErrInterrupted) || r.Validation != nil {
		t.Errorf("interrupted: %+v, %v", r, err)
	}
	// One that is interrupted in its last step saves, and has its validation left to do.
	j, w = modes[0].job(t, nil)
	j.Evaluate = again.Evaluate
	ended, w.cancel = context.WithCancel(context.Background())
	w.end = j.Schedule.Steps
	if r, err := j.Run(ended); !errors.Is(err, ErrInterrupted) || r.Validation != nil || r.StateStep != j.Schedule.Steps {
		t.Errorf("interrupted in the last step: %+v, %v", r, err)
	}
}

// TestLossOfAccumulation: a step's loss is the mean of its micro-batches, and 4 of them
// update as one batch of 4 times the size.
func TestLossOfAccumulation(t *testing.T) {
	four, w4 := mode{update: func(o *optim.Options) { o.Accumulate = 4 }}.job(t, nil)
	one, w1 := modes[0].job(t, func(c *models.Config) { c.Batch = 4 * tinyBatch })
	one.Batches = joined{4}
	for _, j := range []*Job{four, one} {
		if _, err := j.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if w4.steps[0].Tokens != w1.steps[0].Tokens || four.Accumulate != 4 || one.Accumulate != 1 {
		t.Errorf("%d tokens of %d micro-batches, %d of %d", w4.steps[0].Tokens, four.Accumulate, w1.steps[0].Tokens, one.Accumulate)
	}
	for i := range w1.steps {
		if a, b := w4.steps[i].Loss, w1.steps[i].Loss; math.Abs(a-b) > 2e-6*b {
			t.Errorf("step %d: loss %v in parts, %v as one batch", i+1, a, b)
		}
	}
}

// joined batches are so many micro-batches of tinyData each.
type joined struct{ n int64 }

func (j joined) At(n int64) (map[string]runtime.Tensor, error) {
	out := map[string]runtime.Tensor{}
	for k := range j.n {
		batch, err := tinyData.At(n*j.n + k)
		if err != nil {
			return nil, err
		}
		for name, t := range batch {
			t.Data = append(slices.Clone(out[name].Data), t.Data...)
			t.Shape = []int64{(k + 1) * tinyBatch, tinySeq}
			out[name] = t
		}
	}
	return out, nil
}

// TestLossIsNoNumber: the training stops with the step and what to try; the last good
// state stays.
func TestLossIsNoNumber(t *testing.T) {
	for _, c := range []struct {
		name string
		mode mode
		lr   float64
		want []string
	}{
		{"rate", modes[0], 1e30, []string{"NaN", "lower --lr", "--clip-norm"}},
		{"rate, clipped", modes[5], 1e30, []string{"NaN", "lower --lr"}},
		{"half", mode{half: modes[2].half, scale: 1}, 1e30, []string{"bf16"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, w := c.mode.job(t, nil)
			j.Traits.Clipped = c.mode.update != nil
			if c.mode.half != nil {
				j.Traits.Half = "float16"
			}
			j.Schedule.LR, j.SaveEvery = c.lr, 1
			j.Schedule.Warmup = 2 // the first step has a rate of 0 and is good
			r, err := j.Run(context.Background())
			var bad *NotFiniteError
			if !errors.As(err, &bad) {
				t.Fatalf("ended with %v", err)
			}
			text := err.Error()
			for _, want := range append(c.want, "step ", StatePath(j.Folder.Dir)) {
				if !strings.Contains(text, want) {
					t.Errorf("%q lacks %q", text, want)
				}
			}
			if c.mode.update != nil && strings.Contains(text, "--clip-norm") {
				t.Errorf("%q advises what is done already", text)
			}
			// The state of the step before led to the loss that is none.
			if strings.Contains(text, "\n") || r.StateStep < 1 || r.StateStep >= bad.Step-1 && slices.Contains(w.saved, bad.Step-1) {
				t.Errorf("%q with the state of step %d, saved %v", text, r.StateStep, w.saved)
			}
			if slices.Contains(w.saved, bad.Step-1) != strings.Contains(files(t, j.Folder.Dir), badName) {
				t.Errorf("holds %s", files(t, j.Folder.Dir))
			}
			state, skipped, err := j.Folder.Newest()
			if err != nil || len(skipped) > 0 || state.Position.Step != r.StateStep {
				t.Fatalf("the state is not whole: %v, %v", err, skipped)
			}
			state.Close()
		})
	}
}

// unlabelled batches have no label that counts in one of them.
type unlabelled int64

func (u unlabelled) At(n int64) (map[string]runtime.Tensor, error) {
	out, err := tinyData.At(n)
	if n == int64(u) {
		ignored := slices.Repeat([]int64{Ignored}, tinyBatch*tinySeq)
		out["labels"] = runtime.FromInt64s(ignored, tinyBatch, tinySeq)
	}
	return out, err
}

// TestNoLabels: a batch whose labels are all ignored is said to be one; the state before
// it is as good as any.
func TestNoLabels(t *testing.T) {
	j, w := modes[0].job(t, nil)
	j.Batches, j.SaveEvery = unlabelled(2), 1
	r, err := j.Run(context.Background())
	var bad *NotFiniteError
	if !errors.As(err, &bad) || bad.Step != 3 || !strings.Contains(bad.Cause, "all labels of a micro-batch are ignored") {
		t.Errorf("ended with %v", err)
	}
	if r.StateStep != 2 || !slices.Equal(w.saved, []int64{1, 2}) || strings.Contains(files(t, j.Folder.Dir), badName) {
		t.Errorf("state of step %d, saved %v, holds %s", r.StateStep, w.saved, files(t, j.Folder.Dir))
	}
}

// failing batches have none from some number on.
type failing struct {
	from  int64
	panic bool
}

func (f failing) At(n int64) (map[string]runtime.Tensor, error) {
	if n >= f.from && f.panic {
		panic("fault")
	}
	if n >= f.from {
		return nil, errors.New("no such batch")
	}
	return tinyData.At(n)
}

// TestDataFails: one line with the step, and the state as it was saved.
func TestDataFails(t *testing.T) {
	for _, c := range []struct {
		batches Batches
		want    string
	}{{failing{5, false}, "step 6: no such batch"}, {failing{5, true}, "step 6: batch 5: the data cannot be read"}} {
		j, w := modes[0].job(t, nil)
		j.Batches, j.SaveEvery = c.batches, 2
		_, err := j.Run(context.Background())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || !slices.Equal(w.saved, []int64{2, 4}) {
			t.Errorf("%v with states of %v, want %q", err, w.saved, c.want)
		}
	}
}

// A broken watcher fails at a step.
type broken struct {
	recorder
	at int64
}

func (b *broken) Step(r Record) error {
	if r.Step == b.at {
		return errors.New("log: no space left on device")
	}
	return nil
}

// TestWatcherFails: the step that it failed at is saved.
func TestWatcherFails(t *testing.T) {
	j, _ := modes[0].job(t, nil)
	w := &broken{at: 3}
	j.Watcher = w
	if _, err := j.Run(context.Background()); err == nil || err.Error() != "log: no space left on device" {
		t.Errorf("ended with %v", err)
	}
	if !slices.Equal(w.saved, []int64{3}) {
		t.Errorf("saved %v", w.saved)
	}
}

// TestHopelessOverflow: where every step overflows at the least loss scale, the training
// ends.
func TestHopelessOverflow(t *testing.T) {
	m := mode{half: modes[2].half, scale: 1 << 24, scaling: runtime.Scaling{Min: 1 << 24}}
	j, w := m.job(t, nil)
	j.Schedule.Steps, j.Traits.Half = 100, "float16"
	_, err := j.Run(context.Background())
	var bad *NotFiniteError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "overflow") || len(w.steps) != hopeless-1 {
		t.Errorf("ended after %d steps with %v", len(w.steps), err)
	}
}

// TestEvaluateInPlace: validation reads the parameters of the training session where
// they lie, and changes nothing; its loss is that of a session with a copy of them.
func TestEvaluateInPlace(t *testing.T) {
	m := modes[9] // dropout, which validation leaves out
	src := m.source(t, nil)
	s := m.open(t, src, runtime.Options{})
	defer s.Close()
	forward, err := src.Forward(s.Roles)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range forward.Graph.Nodes {
		if n.Is("Dropout") {
			t.Errorf("%s is left", n.Label())
		}
	}
	inside, err := ortest.Engine(t).Open(forward, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Share: s})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if got := inside.Memory(); got.ParameterBytes > 1000 {
		t.Errorf("validation holds %d bytes of parameters of its own", got.ParameterBytes)
	}
	j := &Job{Session: s, Accumulate: 1, Batches: tinyData, Schedule: Schedule{Kind: "constant", LR: 1e-2, Steps: 4}, EvalEvery: 2,
		Evaluate: func(ctx context.Context) (Validation, error) { return Evaluate(ctx, inside, tinyData, 5) }}
	plain, w := m.job(t, nil)
	plain.Schedule, plain.Folder = j.Schedule, nil
	watched := &recorder{}
	j.Watcher = watched
	for _, j := range []*Job{plain, j} {
		if _, err := j.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range w.steps {
		if w.steps[i].Loss != watched.steps[i].Loss {
			t.Errorf("step %d: loss %v with validation, %v without", i+1, watched.steps[i].Loss, w.steps[i].Loss)
		}
	}
	feed := map[string]runtime.Tensor{}
	for _, name := range s.Updated() {
		if v, _, err := s.Input(name); err == nil && forward.Graph.Value(name) != nil {
			feed[name] = v
		}
	}
	apart, err := ortest.Engine(t).Open(forward, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Feed: feed})
	if err != nil {
		t.Fatal(err)
	}
	defer apart.Close()
	v, err := Evaluate(context.Background(), apart, tinyData, 5)
	if err != nil {
		t.Fatal(err)
	}
	last := watched.vals[1]
	if v.Loss != last.Loss || last.Loss == watched.vals[0].Loss || v.Tokens != 5*tinyBatch*tinySeq || v.Perplexity != math.Exp(v.Loss) {
		t.Errorf("in place %+v, apart %+v", watched.vals, v)
	}
}

// TestEvaluateWeighs: a batch counts as much as it has labels; one without any does not.
func TestEvaluateWeighs(t *testing.T) {
	src := modes[0].source(t, nil)
	forward, err := src.Forward(runtime.Roles{Loss: "loss"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ortest.Engine(t).Open(forward, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, err := Evaluate(context.Background(), s, some{0, 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Evaluate(context.Background(), s, some{1, 2}, 1)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Evaluate(context.Background(), s, some{0, 3}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if all.Tokens != a.Tokens+b.Tokens || a.Tokens == b.Tokens || all.Batches != 3 {
		t.Errorf("%d tokens of %d and %d", all.Tokens, a.Tokens, b.Tokens)
	}
	want := (a.Loss*float64(a.Tokens) + b.Loss*float64(b.Tokens)) / float64(a.Tokens+b.Tokens)
	if math.Abs(all.Loss-want) > 1e-12 {
		t.Errorf("%v, want %v", all.Loss, want)
	}
	if _, err := Evaluate(context.Background(), s, some{2, 3}, 1); err == nil {
		t.Error("evaluated without a label")
	}
}

// some are batches from.. whose labels are partly ignored; number 2 has none.
type some struct{ from, to int64 }

func (s some) At(n int64) (map[string]runtime.Tensor, error) {
	n += s.from
	batch, err := tinyData.At(n)
	if err != nil {
		return nil, err
	}
	ignored := bytes.Repeat([]byte{0x9c, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, tinyBatch*tinySeq)
	count := map[int64]int{1: 7, 2: tinyBatch * tinySeq}[n]
	copy(batch["labels"].Data, ignored[:8*count])
	return batch, nil
}

// TestStepsAllocateLittle: a step's share of Go's heap does not depend on the size of
// the model, and is small.
func TestStepsAllocateLittle(t *testing.T) {
	j, _ := modes[0].job(t, func(c *models.Config) { c.Hidden = 64 })
	j.Folder, j.Watcher = nil, nil
	j.Schedule.Steps = 50
	var before, after goruntime.MemStats
	counting := &heapAt{at: []*goruntime.MemStats{10: &before, 50: &after}}
	j.Watcher = counting
	if _, err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	perStep := float64(after.TotalAlloc-before.TotalAlloc) / 40
	state := 0.0
	for _, name := range j.Session.Updated() {
		_ = j.Session.View(name, func(v runtime.Tensor) error { state += float64(len(v.Data)); return nil })
	}
	t.Logf("%.0f bytes a step, %.0f bytes of state", perStep, state)
	if perStep > 64<<10 {
		t.Errorf("a step takes %.0f bytes of the heap", perStep)
	}
}

// heapAt reads the heap after some steps.
type heapAt struct {
	recorder
	at []*goruntime.MemStats
}

func (c *heapAt) Step(r Record) error {
	if m := c.at[r.Step]; m != nil {
		goruntime.ReadMemStats(m)
	}
	return nil
}
