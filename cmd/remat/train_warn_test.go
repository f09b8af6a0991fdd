package main

import (
	"bytes"
	"context"
	"fmt"
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
	said := func(args ...string) string { return warned(t, args...) }
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

// warned are the warnings of a command.
func warned(t *testing.T, args ...string) string {
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

// TestTrainWarnsOfRuns: where the loss is no mean over samples, an update by several runs, or
// ranks, is another one than by a large batch, and train says so. So does eval where no weight of a batch is right.
func TestTrainWarnsOfRuns(t *testing.T) {
	at := newFolder(t).at
	for name, loss := range map[string]string{"sum": "ReduceSum", "mean": "ReduceMean"} {
		m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[batch,2]\ninit w float32[2,2] = [1,2,3,4]\nh = MatMul(x, w)\nsq = Mul(h, h)\nloss = " +
			loss + "(sq) {keepdims=0}\nout loss float32[]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Save(at(name + ".onnx")); err != nil {
			t.Fatal(err)
		}
	}
	labelled, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[batch,2]\nin y int64[batch]\ninit w float32[2,2] = [1,2,3,4]\nh = MatMul(x, w)\nloss = SoftmaxCrossEntropyLoss(h, y) {ignore_index=-1}\nout loss float32[]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := labelled.Save(at("labelled.onnx")); err != nil {
		t.Fatal(err)
	}
	if err := remat.WriteNPZ(at("d.npz"), map[string]remat.Tensor{"x": remat.FromFloat32s(make([]float32, 16), 8, 2), "y": remat.FromInt64s([]int64{0, 1, 1, -1, 1, 0, 0, -1}, 8)}); err != nil {
		t.Fatal(err)
	}
	both, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[batch,2]\nin y int64[batch]\nin z int64[batch]\ninit w float32[2,2] = [1,2,3,4]\nh = MatMul(x, w)\n" +
		"a = SoftmaxCrossEntropyLoss(h, y) {ignore_index=-1}\nb = SoftmaxCrossEntropyLoss(h, z) {ignore_index=-1}\nloss = Add(a, b)\nout loss float32[]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := both.Save(at("both.onnx")); err != nil {
		t.Fatal(err)
	}
	for name, z := range map[string][]int64{"both.npz": {0, 1, 1, 1, 1, 0, 0, 0}, "uneven.npz": {-1, 1, 1, 1, -1, 0, 0, 0}} {
		if err := remat.WriteNPZ(at(name), map[string]remat.Tensor{"x": remat.FromFloat32s(make([]float32, 16), 8, 2), "y": remat.FromInt64s([]int64{0, 1, 1, -1, 1, 0, 0, -1}, 8), "z": remat.FromInt64s(z, 8)}); err != nil {
			t.Fatal(err)
		}
	}
	for name, term := range map[string]string{"beside": "c", "penalized": "p"} {
		m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[batch,2]\nin y int64[batch]\ninit w float32[2,2] = [1,2,3,4]\ninit half float32[] = 0.5\nh = MatMul(x, w)\n" +
			"a = SoftmaxCrossEntropyLoss(h, y) {ignore_index=-1}\nsq = Mul(h, h)\nb = ReduceMean(sq) {keepdims=0}\nc = Mul(half, b)\np = ReduceSumSquare(w) {keepdims=0}\n" +
			"loss = Add(a, " + term + ")\nout loss float32[]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Save(at(name + ".onnx")); err != nil {
			t.Fatal(err)
		}
	}
	for flags, want := range map[string]string{
		"both --data both.npz --batch 4":   "",
		"both --data both.npz --batch 8":   "",
		"labelled --data d.npz --batch 2":  "",
		"penalized --data d.npz --batch 2": "",
		"beside --data d.npz --batch 4":    "",
		"beside --data d.npz --batch 2":    "1 to 2 labels of a batch count, and the loss has a term that is no mean over labels, by ReduceMean that makes b: the mean and the perplexity are averages over batches of 2",
		"both --data both.npz --batch 2":   "1 to 2 labels in y of a batch count, and each batch weighs the same: the mean and the perplexity are averages over batches of 2",
	} {
		args := strings.Fields(flags)
		if got := warned(t, "eval", at(args[0]+".onnx"), args[1], at(args[2]), args[3], args[4]); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("eval %s: warns %q, want %q", flags, got, want)
		}
	}
	for i, c := range []struct {
		model, flags, want string
	}{
		{"both", "--data both.npz --batch 4 --accumulate 2", ""},
		{"both", "--data both.npz --batch 2 --accumulate 2", "1 to 2 labels in y of a micro-batch count, and each micro-batch weighs the same: an update by the mean of 2 runs"},
		{"both", "--data uneven.npz --batch 2 --accumulate 2", "1 to 2 labels in y and 1 to 2 labels in z of a micro-batch count"},
		{"labelled", "--batch 2", ""},
		{"labelled", "--batch 4 --accumulate 2", ""},
		{"labelled", "--batch 2 --accumulate 2", "1 to 2 labels of a micro-batch count, and each micro-batch weighs the same: an update by the mean of 2 runs"},
		{"labelled", "--batch 2 --ranks 2", "1 to 2 labels of a micro-batch count"},
		{"sum", "--batch 2", ""},
		{"mean", "--batch 2 --accumulate 2", ""},
		{"sum", "--batch 2 --accumulate 2", "the loss is a sum, by ReduceSum that makes loss: an update by the mean of 2 runs"},
		{"sum", "--batch 2 --ranks 4", "an update by the mean of 4 runs"},
	} {
		data, flags := "d.npz", strings.Fields(c.flags)
		if flags[0] == "--data" {
			data, flags = flags[1], flags[2:]
		}
		args := append([]string{"train", at(c.model + ".onnx"), "--data", at(data), "--steps", "1", "-o", at(fmt.Sprint(i))}, flags...)
		if got := warned(t, args...); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: warns %q, want %q", c.model, c.flags, got, c.want)
		}
	}
}
