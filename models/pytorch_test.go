package models_test

import (
	"context"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// references are the models whose answers from PyTorch are in testdata.
var references = map[string]models.Config{
	"gpt2": {Layers: 2, Hidden: 24, Heads: 3, Vocab: 61, Positions: 12, Seq: 12, Batch: 2, Logits: true},
	"mlp":  {Layers: 20, Hidden: 16, Classes: 10, Batch: 8},
}

// derived is a zoo model with the weights of testdata and its gradients; the
// feeds are those of testdata and the weights.
func derived(t *testing.T, name string) (*onnx.Model, *grad.Result, map[string]runtime.Tensor) {
	t.Helper()
	r, err := models.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	built, err := r.Build(references[name])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := built.SaveWith(path, "testdata/"+name+"_reference.safetensors"); err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	feeds, err := runtime.ReadNPZ("testdata/" + name + "_reference.npz")
	if err != nil {
		t.Fatal(err)
	}
	return m, differentiate(t, m, feeds), feeds
}

// differentiate derives the training graph and adds the parameters to the feeds.
func differentiate(t *testing.T, m *onnx.Model, feeds map[string]runtime.Tensor) *grad.Result {
	t.Helper()
	res, err := grad.Differentiate(m, grad.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.Params {
		data, err := p.Data.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		feeds["param:"+p.Name] = runtime.Tensor{Type: onnx.Float32, Shape: p.Data.Dims(), Data: data}
	}
	return res
}

func session(t *testing.T, m *onnx.Model, o runtime.Options) *runtime.Session {
	t.Helper()
	o.Threads, o.Provider = 1, ort.CPU
	s, err := ortest.Engine(t).Open(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestEqualsPyTorch compares loss, logits and every gradient: of GPT-2 with
// transformers' GPT2LMHeadModel (scripts/gpt2_reference.py), of the mlp with
// torch.nn (scripts/mlp_reference.py).
func TestEqualsPyTorch(t *testing.T) {
	for name, values := range map[string]int{"gpt2": 2 + 28, "mlp": 1 + 42} {
		m, _, feeds := derived(t, name)
		for _, level := range []int{0, 1, 99} {
			step, err := session(t, m, runtime.Options{Level: level, Feeds: feeds}).Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			for key, want := range feeds {
				out, isOut := strings.CutPrefix(key, "out:")
				if p, ok := strings.CutPrefix(key, "grad:"); ok {
					out, isOut = p+".grad", true
				}
				if !isOut {
					continue
				}
				seen++
				got, ok := step.Output(out)
				if !ok {
					t.Errorf("%s: no output %s", name, out)
				} else if d := difference(t, got.Tensor, want); d > 1e-5 {
					t.Errorf("%s, level %d: %s differs from PyTorch by %.2g of its largest value", name, level, out, d)
				}
			}
			if seen != values {
				t.Errorf("%s: compared %d values, not %d", name, seen, values)
			}
		}
	}
}

// TestNothingLeftToFuse: no level of ONNX Runtime changes what a model of the
// zoo is made of, but for the constant mask that it computes beforehand.
func TestNothingLeftToFuse(t *testing.T) {
	for _, r := range models.Rows {
		c := r.Default
		c.Layers, c.Hidden, c.Heads = 2, 32, min(c.Heads, 4)
		c.Vocab, c.Positions, c.Seq, c.Batch = min(c.Vocab, 64), min(c.Positions, 8), min(c.Seq, 8), 2
		built, err := r.Build(c)
		if err != nil {
			t.Fatal(err)
		}
		want := count(built.Model)
		for _, level := range []int{1, 99} {
			m, err := ortest.Engine(t).Dump(built.Model, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
			if err != nil {
				t.Fatal(err)
			}
			got := count(m)
			if r.Default.Vocab > 0 {
				got["Where"]++
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: level %d runs %v where the file has %v", r.Name, level, got, want)
			}
			m.Close()
		}
	}
}

func count(m *onnx.Model) map[string]int {
	out := map[string]int{}
	for _, n := range m.Graph.Nodes {
		out[n.OpType()]++
	}
	return out
}

// difference is the largest deviation as a share of the largest value, of
// 1e-6 at least: a key's bias has a gradient of pure noise.
func difference(t *testing.T, a, b runtime.Tensor) float64 {
	t.Helper()
	x, err := a.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Float64s()
	if err != nil || len(x) != len(y) {
		t.Fatalf("%d and %d values, %v", len(x), len(y), err)
	}
	largest, off := 1e-6, 0.0
	for i := range y {
		largest = math.Max(largest, math.Abs(y[i]))
		off = math.Max(off, math.Abs(x[i]-y[i]))
	}
	return off / largest
}
