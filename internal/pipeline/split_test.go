package pipeline

// Stages, run one after the other over each other's outputs, are the whole graph: losses,
// gradients and next values, bit for bit.

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/stage"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// stepOf runs a model once and returns copies of its outputs.
func stepOf(t *testing.T, e *runtime.Engine, m *onnx.Model, o runtime.Options) (map[string]runtime.Tensor, int64) {
	t.Helper()
	o.Threads, o.Provider = 1, ort.CPU
	s, err := e.Open(m, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Last()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]runtime.Tensor{}
	for _, v := range all {
		if v.Err == nil {
			out[v.Name] = runtime.Tensor{Type: v.Type, Shape: v.Shape, Data: bytes.Clone(v.Data)}
		}
	}
	return out, step.LivePeakBytes
}

// inputsOf are the values that a session gives to the inputs of a model.
func inputsOf(t *testing.T, e *runtime.Engine, m *onnx.Model, o runtime.Options) map[string]runtime.Tensor {
	t.Helper()
	o.Threads, o.Provider = 1, ort.CPU
	s, err := e.Open(m, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	given := map[string]runtime.Tensor{}
	for _, v := range m.Graph.Inputs {
		if x, ok, err := s.Input(v.Name); err != nil {
			t.Fatal(err)
		} else if ok {
			given[v.Name] = x
		}
	}
	return given
}

// sameInStages compares a training graph with its stages, where it can be split.
func sameInStages(t *testing.T, e *runtime.Engine, m *onnx.Model, o SplitOptions, feeds map[string]runtime.Tensor) (split *stage.Split) {
	t.Helper()
	src := &Source{Path: "m.onnx", Model: m, hash: "test"}
	split, err := src.SplitStages(o)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	options := runtime.Options{Dims: o.Pipeline.Dims, Feeds: feeds}
	given := inputsOf(t, e, whole, options)
	options = runtime.Options{Dims: o.Pipeline.Dims, Feed: given}
	want, _ := stepOf(t, e, whole, options)
	got, made := map[string]runtime.Tensor{}, map[string]runtime.Tensor{}
	for _, g := range split.Groups {
		if g == nil {
			continue
		}
		name := StageFileName(g.Stage, g.Backward)
		fed := options
		fed.Feed = map[string]runtime.Tensor{}
		for name, v := range given {
			if in := g.Model.Graph.Value(name); in != nil && in.IsInput() {
				fed.Feed[name] = v
			}
		}
		for _, v := range g.In {
			if _, ok := made[v.Name]; !ok {
				t.Fatalf("%s reads %q, which nothing before makes", name, v.Name)
			}
			fed.Feed[v.Name] = made[v.Name]
		}
		p, err := Predict(e, g.Model, step0(t, g.Model), Options{Dims: o.Pipeline.Dims, Threads: 1}, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		outputs, live := stepOf(t, e, g.Model, fed)
		if p.Exact() && p.LivePeak != live {
			t.Errorf("%s: predicted %d, took %d", name, p.LivePeak, live)
		}
		for name, v := range outputs {
			made[name] = v
			if _, ok := want[name]; ok {
				got[name] = v
			}
		}
	}
	for name, v := range want {
		if w, ok := got[name]; !ok || !bytes.Equal(v.Data, w.Data) {
			t.Errorf("%q is another in stages (made: %t)", name, ok)
		}
	}
	return split
}

func step0(t *testing.T, m *onnx.Model) runtime.Roles {
	t.Helper()
	r, err := runtime.FindRoles(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// small makes a model of the zoo one of four small layers.
func small(c *models.Config) {
	c.Layers = min(c.Layers, 4)
	c.Hidden, c.Batch = 32, 4
	if c.Heads > 0 {
		c.Heads = 4
	}
	if c.Vocab > 0 {
		c.Vocab = 101
	}
	if c.Seq > 0 {
		c.Seq = 24
	}
}

func TestZooInStages(t *testing.T) {
	e := engine(t)
	for _, row := range models.Rows {
		t.Run(row.Name, func(t *testing.T) {
			m := trainingGraph(t, row.Name, small)
			for _, o := range []stage.Options{{Stages: 2, Balance: stage.Memory}, {Stages: 4, Balance: stage.Time}} {
				split := sameInStages(t, e, m, SplitOptions{Options: o}, nil)
				for _, g := range split.Groups {
					if g == nil {
						t.Errorf("%d stages: an empty group", o.Stages)
					}
				}
			}
		})
	}
}

func TestSamplesInStages(t *testing.T) {
	e := engine(t)
	paths, err := filepath.Glob(sample("*.onnx"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d samples: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, feeds, dims := derived(t, path)
			sameInStages(t, e, m, SplitOptions{Pipeline: Options{Dims: dims}, Options: stage.Options{Stages: 3, Balance: stage.Memory}}, feeds)
		})
	}
}

func TestRandomInStages(t *testing.T) {
	e := engine(t)
	split := 0
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m, err := randomJoint(nil, seed, many)
			dims := map[string]int64(nil)
			if freeRows(seed) {
				dims = map[string]int64{"n": rows}
			}
			if err != nil {
				t.Skip(err)
			}
			m.SetMetadata(VersionKey, "test")
			for _, k := range []int{2, 3} {
				sameInStages(t, e, m, SplitOptions{Pipeline: Options{Dims: dims}, Options: stage.Options{Stages: k, Balance: []stage.Balance{stage.Memory, stage.Time}[seed%2]}}, nil)
				split++
			}
		})
	}
	if split < 40 {
		t.Errorf("only %d splits", split)
	}
}

// TestUpdatesInStages: graphs that update are the same in stages, or are refused where one
// norm scales all updates, or two updates want each other's weights.
func TestUpdatesInStages(t *testing.T) {
	e := engine(t)
	split := 0
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m, o, err := randomStep(nil, seed, many)
			if err != nil || o.Kind == optim.None {
				t.Skip("updates nothing")
			}
			m.SetMetadata(VersionKey, "test")
			so := SplitOptions{Options: stage.Options{Stages: 2, Balance: stage.Memory}}
			if _, err := (&Source{Path: "m.onnx", Model: m, hash: "test"}).SplitStages(so); err != nil {
				if !strings.Contains(err.Error(), "clip by parameter") || o.ClipNorm == 0 || o.ClipBy == optim.ClipParameter {
					t.Error(err)
				}
				return
			}
			sameInStages(t, e, m, so, nil)
			split++
		})
	}
	if split < 20 {
		t.Errorf("only %d splits", split)
	}
}

// TestPlannedInStages: a file that computes layers again is cut where it may be, within such a layer too, and gives
// the same in stages. Each stage reads its own weights and no other's.
func TestPlannedInStages(t *testing.T) {
	e := engine(t)
	for _, strategy := range []string{"sqrt", "full", "least"} {
		for _, kind := range []optim.Kind{optim.SGD, optim.AdamW} {
			m := zooStep(t, "gpt2-tiny", kind, func(c *models.Config) { c.Layers, c.Seq, c.Batch, c.Dropout = 7, 48, 2, 0.1 })
			f := inParts(t, e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}, strategy)
			if !slices.ContainsFunc(f.Model.Graph.Nodes, func(n *onnx.Node) bool { return n.MadeBy(onnx.RecomputePass) }) {
				t.Fatalf("%s computes nothing again", strategy)
			}
			for _, o := range []stage.Options{{Stages: 2, Balance: stage.Memory}, {Stages: 3, Balance: stage.Memory}, {Stages: 4, Balance: stage.Time}} {
				t.Run(fmt.Sprintf("%s %s %d", strategy, kind, o.Stages), func(t *testing.T) {
					again := 0
					split := sameInStages(t, e, f.Model, SplitOptions{Options: o}, nil)
					for _, g := range split.Groups {
						for _, n := range g.Model.Graph.Nodes {
							if n.MadeBy(onnx.RecomputePass) {
								again++
							}
						}
					}
					if again == 0 {
						t.Error("nothing is computed again")
					}
					for name, readers := range split.Readers {
						if strings.HasPrefix(name, "transformer.h.") && len(readers) > 1 {
							t.Errorf("%q is read in stages %v", name, readers)
						}
					}
				})
			}
		}
	}
}

// TestStagesPromiseNothingOfTheWhole: a stage of a planned file has none of the peak, the arena and the places that
// the whole step has; nor has a file that cannot be predicted to the byte those of the one that it was made of.
func TestStagesPromiseNothingOfTheWhole(t *testing.T) {
	e := engine(t)
	f := asWritten(t, e, "full")
	f.Model.SetMetadata(ReservedKey, "1")
	f.Model.SetMetadata(SessionKey, "{}")
	path := filepath.Join(t.TempDir(), "full.onnx")
	if err := f.Model.Save(path); err != nil {
		t.Fatal(err)
	}
	src, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	split, err := src.SplitStages(SplitOptions{Options: stage.Options{Stages: 2, Balance: stage.Memory}, Pipeline: Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	none := func(m *onnx.Model, keys ...string) {
		for _, key := range keys {
			if text, ok := m.Metadata(key); ok {
				t.Errorf("%s is there: %.20s", key, text)
			}
		}
	}
	for _, g := range split.Groups {
		none(g.Model, PlanKey, PeakKey, PromiseKey, ReservedKey, SessionKey, runtime.SlabKey)
	}
	guessed := *f.Prediction
	guessed.Unknown = []string{"a size"}
	f.Prediction = &guessed
	if err := f.Save(src, filepath.Join(filepath.Dir(path), "guessed.onnx"), report.Plan{}); err != nil {
		t.Fatal(err)
	}
	none(f.Model, PeakKey, PromiseKey, ReservedKey, runtime.SlabKey)
}
