package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// TestTrainWarns: train says what the file leaves open about what it trains, as grad
// does, also with --json and --quiet: another model may be trained than was meant.
func TestTrainWarns(t *testing.T) {
	at := newFolder(t).at
	m, err := onnx.Parse(`model ir=9 opset=20
graph g {
in x float32[4,2]
init s float32[2] = [1,1]
init mean float32[2] = [0,0]
init var float32[2] = [1,1]
h = BatchNormalization(x, s, s, mean, var)
sq = Mul(h, h)
loss = ReduceMean(sq) {keepdims=0}
out loss float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save(at("m.onnx")); err != nil {
		t.Fatal(err)
	}
	x := remat.FromFloat32s([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2)
	if err := remat.WriteNPZ(at("d.npz"), map[string]remat.Tensor{"x": x}); err != nil {
		t.Fatal(err)
	}
	said := func(args ...string) string {
		t.Helper()
		var out, stderr bytes.Buffer
		if code := run(context.Background(), args, &out, &stderr); code != exitDone {
			t.Fatalf("%v: exit code %d, %s", args, code, stderr.String())
		}
		var warnings []string
		for line := range strings.Lines(stderr.String()) {
			if strings.HasPrefix(line, "warning: ") {
				warnings = append(warnings, line)
			}
		}
		return strings.Join(warnings, "")
	}
	want := said("grad", at("m.onnx"), "-o", at("g.onnx"))
	if !strings.Contains(want, "stored statistics") {
		t.Fatalf("grad warns %q", want)
	}
	train := []string{"train", at("m.onnx"), "--data", at("d.npz"), "--steps", "1", "-o"}
	if got := said(append(train, at("a"))...); got != want {
		t.Errorf("train warns %q, grad %q", got, want)
	}
	if got := said(append([]string{"--json"}, append(train, at("b"))...)...); got != want {
		t.Errorf("train --json warns %q, grad %q", got, want)
	}
	if got := said(append([]string{"--quiet"}, append(train, at("c"))...)...); got != want {
		t.Errorf("train --quiet warns %q, grad %q", got, want)
	}
}
