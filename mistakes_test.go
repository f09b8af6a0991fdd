package remat_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/onnx-remat/remat"
	"github.com/onnx-remat/remat/onnx"
)

// opened is the runtime and a training graph of the small model in a folder below dir.
func opened(t *testing.T, dir string) (*remat.Runtime, *remat.Graph) {
	t.Helper()
	rt, err := remat.LoadRuntime("")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { rt.Close() })
	forward, err := remat.Open(model, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forward.Close() })
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	graph, err := forward.Derive(filepath.Join(dir, "below", "train.onnx"), remat.DeriveOptions{Optimizer: "sgd"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { graph.Close() })
	return rt, graph
}

// unlabelled are batches that lack an input.
type unlabelled struct{ digits }

func (u unlabelled) At(n int64) (map[string]remat.Tensor, error) {
	batch, err := u.digits.At(n)
	delete(batch, "y")
	return batch, err
}

// changed are batches that a function changes, from a number on.
type changed struct {
	from int64
	do   func(batch map[string]remat.Tensor)
}

func (c changed) At(n int64) (map[string]remat.Tensor, error) {
	batch, err := digits{}.At(n)
	if n >= c.from {
		c.do(batch)
	}
	return batch, err
}

func (changed) Len() int64 { return 3 }

// TestMistakes: what cannot be meant is an error that names it, not something else done.
func TestMistakes(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	rt, graph := opened(t, dir)
	session, err := rt.NewSession(graph, remat.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
	open, err := rt.NewSession(graph, remat.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	schedule := remat.Schedule{Kind: "constant", LR: 1e-3, Steps: 1}
	three := remat.Schedule{Kind: "constant", LR: 1e-3, Steps: 3}
	train := func(data remat.Batches, validation remat.BoundedBatches) error {
		_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: three, Data: data, Validation: validation})
		return err
	}
	lacks := func(batch map[string]remat.Tensor) { delete(batch, "y") }
	for want, do := range map[string]func() error{
		"ClipNorm and Accumulate need an Optimizer": func() error {
			_, err := graph.Derive(filepath.Join(dir, "x.onnx"), remat.DeriveOptions{ClipNorm: 1})
			return err
		},
		"a budget of -1 bytes": func() error {
			_, err := rt.Plan(ctx, graph, remat.PlanOptions{Budget: remat.Budget{Total: -1}})
			return err
		},
		"Budget.Work is -0.1": func() error {
			work := -0.1
			_, err := rt.Plan(ctx, graph, remat.PlanOptions{Budget: remat.Budget{Work: &work}})
			return err
		},
		"StashOnly needs a Precision": func() error {
			_, err := rt.Plan(ctx, graph, remat.PlanOptions{StashOnly: true})
			return err
		},
		"Settings.Threads is -1": func() error {
			_, err := rt.Predict(graph, remat.Settings{Threads: -1})
			return err
		},
		"TrainOptions.Data is nil": func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: schedule})
			return err
		},
		"TrainOptions.Resume needs Dir": func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: schedule, Data: digits{}, Resume: true})
			return err
		},
		`no values for input "y"`: func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: schedule, Data: unlabelled{}})
			return err
		},
		"no name of a file to open": func() error {
			_, err := remat.Open("", nil)
			return err
		},
		`no input has a dimension "bach": no dimension is free`: func() error {
			_, err := remat.Open(model, map[string]int64{"bach": 4})
			return err
		},
		"no name of a file to write": func() error {
			_, err := graph.Derive("", remat.DeriveOptions{})
			return err
		},
		`DeriveOptions.Adapters "*:rank=4": no setting`: func() error {
			_, err := graph.Derive(filepath.Join(dir, "x.onnx"), remat.DeriveOptions{Adapters: []string{"*:rank=4"}})
			return err
		},
		"Schedule.Warmup 2 is longer than the training of 1 steps": func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: remat.Schedule{Kind: "constant", Steps: 1, Warmup: 2}, Data: digits{}})
			return err
		},
		"TrainOptions.SaveEvery is -1": func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: schedule, Data: digits{}, SaveEvery: -1})
			return err
		},
		"TrainOptions.SaveEvery needs Dir": func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: schedule, Data: digits{}, SaveEvery: 1})
			return err
		},
		"TrainOptions.EvalEvery needs Validation": func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: schedule, Data: digits{}, EvalEvery: 1})
			return err
		},
		"feed has 4 bytes of data, want 512": func() error {
			_, err := rt.NewSession(graph, remat.SessionOptions{Feeds: map[string]remat.Tensor{"x": remat.Float32s([]float32{1}, 8, 16)}})
			return err
		},
		"closed: no step": func() error {
			_, err := session.Step(ctx)
			return err
		},
		`step 2: batch 1 has no values for input "y", which batch 0 has`: func() error { return train(changed{1, lacks}, nil) },
		`validation: batch 0 has no values for input "y"`:                func() error { return train(digits{}, changed{0, lacks}) },
		`batch 2 has no values for input "y"`:                            func() error { return train(digits{}, changed{2, lacks}) },
		`step 2: input "x": feed has shape [16 8], want [8 16]`: func() error {
			return train(changed{1, func(batch map[string]remat.Tensor) { batch["x"] = remat.Float32s(make([]float32, 128), 16, 8) }}, nil)
		},
		`batch 0 has values for input "lr", which the training sets`: func() error {
			return train(changed{0, func(batch map[string]remat.Tensor) { batch["lr"] = remat.Float32s([]float32{5}) }}, nil)
		},
		`batch 0 has values for input "net.0.bias", which the training sets`: func() error {
			return train(changed{0, func(batch map[string]remat.Tensor) { batch["net.0.bias"] = remat.Float32s(make([]float32, 32), 32) }}, nil)
		},
		`batch 1 has values for input "net.0.bias", which batch 0 has not`: func() error {
			return train(changed{1, func(batch map[string]remat.Tensor) { batch["net.0.bias"] = remat.Float32s(make([]float32, 32), 32) }}, nil)
		},
		"SessionOptions.LR is NaN": func() error {
			_, err := rt.NewSession(graph, remat.SessionOptions{LR: math.NaN()})
			return err
		},
		"train.safetensors: would overwrite an input file": func() error { return open.Save(filepath.Join(dir, "below", "train.safetensors")) },
		"the session is closed":                            func() error { return session.Save(filepath.Join(dir, "s.safetensors")) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestRewriteAgain: a plan is written into one folder after another, also after one from
// which it cannot refer to its weights.
func TestRewriteAgain(t *testing.T) {
	dir := t.TempDir()
	rt, graph := opened(t, dir)
	plan, err := rt.Plan(context.Background(), graph, remat.PlanOptions{Strategy: "full"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plan.Rewrite(filepath.Join(t.TempDir(), "far.onnx")); err == nil {
		t.Error("written where its weights are out of reach")
	}
	for _, name := range []string{"up.onnx", "below/beside.onnx", "up2.onnx"} {
		small, err := plan.Rewrite(filepath.Join(dir, name))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		session, err := rt.NewSession(small, remat.SessionOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if step, err := session.Step(context.Background()); err != nil || step.LivePeak != plan.After.LivePeak {
			t.Errorf("%s: %+v, %v", name, step, err)
		}
		session.Close()
		small.Close()
	}
}

// TestGoroutines: several may read one graph, and it is whole afterwards.
func TestGoroutines(t *testing.T) {
	rt, err := remat.LoadRuntime("")
	if err != nil {
		t.Skip(err)
	}
	defer rt.Close()
	graph, err := remat.Open(model, nil) // its weights lie in the file itself
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Close()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 8 {
				if _, err := rt.Predict(graph, remat.Settings{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if _, err := rt.Predict(graph, remat.Settings{}); err != nil {
		t.Error(err)
	}
}

// unread is digits with an array for an input that nothing reads.
type unread struct{ digits }

func (u unread) At(n int64) (map[string]remat.Tensor, error) {
	batch, err := u.digits.At(n)
	batch["unread"] = remat.Int64s(make([]int64, 8), 8)
	return batch, err
}

func (unread) Len() int64 { return 2 }

// TestUnreadValidates: an input that nothing reads is fed in training, so it is in
// validation too.
func TestUnreadValidates(t *testing.T) {
	rt, forward, dir := openedText(t, strings.Replace(normalizing, "  init ", "  in unread int64[8]\n  init ", 1))
	graph, err := forward.Derive(dir+"/t.onnx", remat.DeriveOptions{Optimizer: "sgd"})
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Close()
	done, err := rt.Train(context.Background(), graph, remat.TrainOptions{
		Schedule: remat.Schedule{Kind: "constant", LR: 1e-3, Steps: 2}, Data: unread{}, Validation: unread{},
	})
	if err != nil || done.Validation == nil {
		t.Errorf("%+v, %v", done, err)
	}
}

// TestFreeDims: whatever needs the size of a free dimension says so by one type.
func TestFreeDims(t *testing.T) {
	rt, err := remat.LoadRuntime("")
	if err != nil {
		t.Skip(err)
	}
	defer rt.Close()
	path := filepath.Join(t.TempDir(), "free.onnx")
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\n  in x float32[n,4]\n  y = ReduceSum(x) {keepdims=0}\n  out y float32[]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	g, err := remat.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	_, predicting := rt.Predict(g, remat.Settings{})
	_, opening := rt.NewSession(g, remat.SessionOptions{})
	for what, err := range map[string]error{"Predict": predicting, "NewSession": opening} {
		var free *remat.FreeDimsError
		if !errors.As(err, &free) || len(free.Names) != 1 || free.Names[0] != "n" {
			t.Errorf("%s: %v", what, err)
		}
	}
}
