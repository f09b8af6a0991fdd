package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/rewrite/optim"
)

// TestSweptInMemory: a point that is not measured puts no file beside the model, and one that is
// takes its files away; so a sweep that is killed as it predicts leaves nothing.
func TestSweptInMemory(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "m.onnx")
	do(t, "model gpt2-tiny --layers 1 --batch 0 --seq 8 -o "+model)
	files := func() int {
		t.Helper()
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := files()
	for _, measure := range []bool{false, true} {
		w := &sweeper{e: newEnv(context.Background(), io.Discard, io.Discard), o: sweepOptions{optimizer: optim.AdamW, measure: measure}}
		g, err := w.graph(sweepSize{model: model, batch: 2})
		if err != nil {
			t.Fatal(err)
		}
		if n := files(); measure != (n > before) {
			t.Errorf("measured %v: %d files lie beside the model, %d before", measure, n, before)
		}
		if _, err := g.source.Sized(g.dims); err != nil {
			t.Errorf("measured %v: %v", measure, err)
		}
		g.close()
		if n := files(); n != before {
			t.Errorf("measured %v: %d files lie beside the model afterwards, %d before", measure, n, before)
		}
	}
}
