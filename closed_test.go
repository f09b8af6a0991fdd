package remat_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat"
)

// TestClosedGraph: nothing reads a graph that was closed, and closing it again does nothing.
func TestClosedGraph(t *testing.T) {
	dir := t.TempDir()
	rt, graph := opened(t, dir)
	ctx := context.Background()
	plan, err := rt.Plan(ctx, graph, remat.PlanOptions{Strategy: "none"})
	if err != nil {
		t.Fatal(err)
	}
	forward, err := remat.Open(model, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []*remat.Graph{graph, forward, graph, forward} {
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out.onnx")
	schedule := remat.Schedule{Kind: "constant", LR: 1e-3, Steps: 1}
	for name, call := range map[string]func() error{
		"Predict":    func() error { _, err := rt.Predict(graph, remat.Settings{}); return err },
		"Plan":       func() error { _, err := rt.Plan(ctx, graph, remat.PlanOptions{}); return err },
		"NewSession": func() error { _, err := rt.NewSession(graph, remat.SessionOptions{}); return err },
		"Train": func() error {
			_, err := rt.Train(ctx, graph, remat.TrainOptions{Schedule: schedule, Data: digits{}})
			return err
		},
		"Rewrite":  func() error { _, err := plan.Rewrite(out); return err },
		"Derive":   func() error { _, err := forward.Derive(out, remat.DeriveOptions{}); return err },
		"WithLoss": func() error { _, err := forward.WithLoss(out, remat.LossOptions{Kind: "mse"}); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "the graph is closed: open it again") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a file was written")
	}
}

// TestOpenMissing: a program asks whether a file is there.
func TestOpenMissing(t *testing.T) {
	if _, err := remat.Open(filepath.Join(t.TempDir(), "none.onnx"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want one that is os.ErrNotExist", err)
	}
}

// TestTrainSaysWhatWasDamaged: who goes on from an older state learns that, and why.
func TestTrainSaysWhatWasDamaged(t *testing.T) {
	dir := t.TempDir()
	rt, graph := opened(t, dir)
	train := func(steps int64, resume bool) *remat.Training {
		t.Helper()
		done, err := rt.Train(context.Background(), graph, remat.TrainOptions{
			Schedule: remat.Schedule{Kind: "constant", LR: 1e-3, Steps: steps}, Data: digits{}, Dir: filepath.Join(dir, "run"), SaveEvery: 2, Keep: 2, Resume: resume,
		})
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	path := train(4, false).State
	if done := train(6, true); len(done.Damaged) != 0 {
		t.Errorf("of whole states: %v", done.Damaged)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if done := train(8, true); done.Steps != 8 || len(done.Damaged) != 1 || !strings.Contains(done.Damaged[0].Error(), path) {
		t.Errorf("of a state that was changed: %+v", done)
	}
}
