package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestLeaks: outputs that the caller keeps are found within 50 steps, and 2,000 steps
// that keep nothing are called clean.
func TestLeaks(t *testing.T) {
	dir := newFolder(t)
	at := dir.at
	for _, args := range [][]string{
		{"model", "mlp", "--layers", "2", "--hidden", "256", "--batch", "2", "-o", at("m.onnx")},
		{"grad", at("m.onnx"), "-o", at("t.onnx"), "--quiet"},
	} {
		dir.do(args...)
	}
	steps := 2000
	if testing.Short() {
		steps = 400
	}
	monitored := func(steps int, each func(*subject)) error {
		e := newEnv(context.Background(), new(bytes.Buffer), new(bytes.Buffer))
		defer e.close()
		e.quiet = true
		feeds := remat.Options{Level: 1, Threads: 1, Provider: ort.CPU}
		return runModel(e, at("t.onnx"), feeds, runOptions{steps: steps, monitor: monitorOptions{on: true, fail: true, each: each}})
	}
	var kept [][]byte
	err := monitored(50, func(s *subject) {
		outputs, err := s.session.Last()
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range outputs {
			kept = append(kept, bytes.Clone(o.Data))
		}
	})
	var leak *checkError
	if !errors.As(err, &leak) {
		t.Errorf("%d outputs kept: %v", len(kept), err)
	}
	t.Log(err)
	kept = nil
	if err := monitored(steps, nil); err != nil {
		t.Errorf("%d clean steps: %v", steps, err)
	}
}
