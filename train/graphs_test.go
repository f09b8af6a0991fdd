package train

// Graphs and data for this package's tests: a GPT-2 of few numbers, with the optimizer,
// the half type and the accumulation that a test asks for.

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

const (
	tinyVocab = 61
	tinySeq   = 8
	tinyBatch = 3
)

// A mode is what a training graph is derived and written with.
type mode struct {
	name     string
	update   func(*optim.Options)
	half     *precision.Options
	dropout  float64
	strategy string
	// scaling of the loss, so that it falls and rises within a few steps
	scale   float64
	scaling runtime.Scaling
}

// modes are what resuming is tested with.
var modes = []mode{
	{name: "fp32"},
	{name: "sgd momentum", update: func(o *optim.Options) { *o = optim.Defaults(optim.SGD); o.Momentum = 0.9 }},
	{name: "fp16", half: &precision.Options{To: onnx.Float16, Provider: "cpu"}, scale: 1 << 23, scaling: runtime.Scaling{Interval: 3}},
	{name: "bf16 emulated", half: &precision.Options{To: onnx.BFloat16, Provider: "cpu", Emulate: true}},
	{name: "accumulate 4", update: func(o *optim.Options) { o.Accumulate = 4 }},
	{name: "clip global", update: func(o *optim.Options) { o.ClipNorm = 0.1 }},
	{name: "clip parameter", update: func(o *optim.Options) { o.ClipNorm, o.ClipBy = 0.1, optim.ClipParameter }},
	{name: "clip previous", update: func(o *optim.Options) { o.ClipNorm, o.ClipBy = 0.1, optim.ClipPrevious }},
	{name: "fp16 accumulate 3 clip previous", half: &precision.Options{To: onnx.Float16, Provider: "cpu"}, scale: 1 << 23, scaling: runtime.Scaling{Interval: 4},
		update: func(o *optim.Options) { o.Accumulate, o.ClipNorm, o.ClipBy = 3, 0.1, optim.ClipPrevious }},
	// whose vectors of odd lengths leave no tensor of a state aligned, and whose sums show it
	{name: "adafactor", update: func(o *optim.Options) { *o = optim.Defaults(optim.Adafactor) }},
	{name: "dropout", dropout: 0.2},
	{name: "dropout, recomputed", dropout: 0.2, strategy: "full"},
}

// source derives the mode's training graph, writes and opens it.
func (m mode) source(t testing.TB, change func(*models.Config)) *pipeline.Source {
	t.Helper()
	dir := t.TempDir()
	row, err := models.Find("gpt2-tiny")
	if err != nil {
		t.Fatal(err)
	}
	c := row.Default
	c.Layers, c.Hidden, c.Heads, c.Vocab, c.Positions, c.Seq, c.Batch, c.Dropout = 1, 16, 2, tinyVocab, tinySeq, tinySeq, tinyBatch, m.dropout
	if change != nil {
		change(&c)
	}
	built, err := row.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "m.onnx")
	if err := built.Save(path); err != nil {
		t.Fatal(err)
	}
	forward := load(t, path)
	o := optim.Defaults(optim.AdamW)
	if m.update != nil {
		m.update(&o)
	}
	d, err := forward.Derive(pipeline.DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX}, Update: o})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "train.onnx")
	if err := d.Save(path); err != nil {
		t.Fatal(err)
	}
	src := load(t, path)
	if m.half == nil && m.strategy == "" {
		return src
	}
	sized, err := src.Sized(nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.NewPlanner(ortest.Engine(t), sized, pipeline.Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Precision: m.half})
	if err != nil {
		t.Fatal(err)
	}
	strategy := m.strategy
	if strategy == "" {
		strategy = "none"
	}
	f, err := p.PlanWithin(strategy, pipeline.Budget{})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "half.onnx")
	if err := f.Save(src, path, p.Document(f, pipeline.Budget{})); err != nil {
		t.Fatal(err)
	}
	return load(t, path)
}

func load(t testing.TB, path string) *pipeline.Source {
	t.Helper()
	src, err := pipeline.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

// open makes a session of a training graph that goes on from a position.
func (m mode) open(t testing.TB, src *pipeline.Source, o runtime.Options) *runtime.Session {
	t.Helper()
	o.Level, o.Threads, o.Provider = 1, 1, ort.CPU
	o.LossScale, o.Scaling = m.scale, m.scaling
	s, err := ortest.Engine(t).OpenLoaded(src.Model, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// drawn are batches of random tokens, each from its number.
type drawn struct {
	vocab, seq, batch int64
	ignored           bool // some labels are
}

var tinyData = drawn{tinyVocab, tinySeq, tinyBatch, false}

func (d drawn) At(n int64) (map[string]runtime.Tensor, error) {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	tensor := func() runtime.Tensor {
		t := runtime.Tensor{Type: onnx.Int64, Shape: []int64{d.batch, d.seq}, Data: make([]byte, 8*d.batch*d.seq)}
		for i := 0; i < len(t.Data); i += 8 {
			binary.LittleEndian.PutUint64(t.Data[i:], uint64(r.Int64N(d.vocab)))
		}
		return t
	}
	return map[string]runtime.Tensor{"input_ids": tensor(), "labels": tensor()}, nil
}

// A recorder keeps what it is told, and may end the run after a step.
type recorder struct {
	steps  []Record
	vals   []Validation
	saved  []int64
	end    int64 // the context is cancelled after this step
	cancel context.CancelFunc
}

func (r *recorder) Step(rec Record) error {
	r.steps = append(r.steps, rec)
	if r.end == rec.Step {
		r.cancel()
	}
	return nil
}

func (r *recorder) Validated(v Validation) error { r.vals = append(r.vals, v); return nil }

func (r *recorder) Saved(_ string, step int64) error { r.saved = append(r.saved, step); return nil }

func (r *recorder) Close() error { return nil }
