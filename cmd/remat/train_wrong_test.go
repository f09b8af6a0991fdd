package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// wrongUses are command lines that ask for what cannot be, with their exit code and what
// the line must say. Each runs in a folder with the files that prepareWrong makes.
var wrongUses = []struct {
	line string
	code int
	want string
}{
	// what is missing, or contradicts itself
	{"train m.onnx --data d.npz --steps 2", 2, "missing -o DIR"},
	{"train --data d.npz --steps 2 -o new", 2, "want one model file"},
	{"train m.onnx t.onnx --data d.npz --steps 2 -o new", 2, "want one model file"},
	{"train m.onnx --data d.npz -o new", 2, "--steps N or --epochs N"},
	{"train m.onnx --data d.npz --steps 2 --epochs 1 -o new", 2, "exclude each other"},
	{"train m.onnx --data d.npz --steps 0 -o new", 2, "--steps 0"},
	{"train m.onnx --data d.npz --steps -3 -o new", 2, "--steps -3"},
	{"train m.onnx --data d.npz --epochs 0 -o new", 2, "--epochs 0"},
	{"train m.onnx --data d.npz --steps ten -o new", 2, "--steps \"ten\": not a valid number"},
	{"train m.onnx --data d.npz --steps 2 --warmup 3 -o new", 2, "--warmup 3 is longer"},
	{"train m.onnx --data d.npz --epochs 1 --warmup 100000 -o new", 2, "--warmup 100000 is longer"},
	{"train m.onnx --data d.npz --steps 2 --schedule cosin -o new", 2, "--schedule \"cosin\": want constant, linear or cosine"},
	{"train m.onnx --data d.npz --steps 2 --schedule linear --lr 1e-3 --min-lr 1e-2 -o new", 2, "--min-lr 0.01 is above the learning rate of 0.001"},
	{"train m.onnx --data d.npz --steps 2 --min-lr 1e-4 -o new", 2, "constant schedule never falls"},
	{"train m.onnx --data d.npz --steps 2 --lr NaN -o new", 2, "--lr NaN"},
	{"train m.onnx --data d.npz --steps 2 --lr=-1 -o new", 2, "--lr -1"},
	{"train m.onnx --data d.npz --steps 2 --keep 0 -o new", 2, "--keep 0"},
	{"train m.onnx --data d.npz --steps 2 --save-every -1 -o new", 2, "--save-every -1"},
	{"train m.onnx --data d.npz --steps 2 --eval-every 1 -o new", 2, "--val"},
	{"train m.onnx --data d.npz --steps 2 --log-every 0 -o new", 2, "--log-every 0"},
	{"train m.onnx --data d.npz --steps 2 --loss-scale -1 -o new", 2, "--loss-scale -1"},
	{"train m.onnx --data d.npz --steps 2 --rehearse --provider cuda -o new", 2, "--rehearse"},
	{"train --config typo.yaml", 2, "typo.yaml:3: \"warm-up\": no flag of train; the nearest is \"warmup\""},

	// data
	{"train m.onnx --steps 2 -o new", 2, "no data"},
	{"train m.onnx --data d.npz --text long.txt --steps 2 -o new", 2, "exclude each other"},
	{"train m.onnx --data none.npz --steps 2 -o new", 2, "none.npz"},
	{"train m.onnx --data m.onnx --steps 2 -o new", 2, "m.onnx"},
	{"train m.onnx --data ids.npz --steps 2 -o new", 2, "labels"},
	{"train m.onnx --data short.npz --steps 2 -o new", 2, "input_ids"},
	{"train m.onnx --data beyond.npz --steps 2 -o new", 2, "97"},
	{"train m.onnx --text long.txt --steps 2 -o new", 2, "outside the model's vocabulary of 97"},
	{"train w.onnx --text tiny.txt --steps 2 -o new", 2, "tiny.txt"},
	{"train w.onnx --text none.txt --steps 2 -o new", 2, "none.txt"},
	{"train m.onnx --data d.npz --val 100% --steps 2 -o new", 2, "--val"},
	{"train m.onnx --data d.npz --val none.npz --steps 2 -o new", 2, "none.npz"},
	{"train m.onnx --data d.npz --batch 3 --steps 2 -o new", 2, "batch is fixed"},
	{"train free.onnx --data x.npz --batch 4 --steps 2 -o new", 2, "an axis of steps, each of which is a batch: leave --batch out"},
	{"train mixed.onnx --data mixed.npz --batch 4 --steps 2 -o new", 2, "the model's batch is 2, fixed in the file"},
	{"train x.onnx --data one.npz --batch 4 --steps 2 -o new", 2, "1 sample, fewer than the 2 of a batch"},
	{"train x.onnx --data nan.npz --params * --steps 2 -o new", 1, "step 2: the loss is NaN; input \"x\" of its batch holds a NaN: mend those samples, or leave them out; no good state was saved"},
	{"train columns.onnx --data columns.npz --params * --steps 2 -o new", 2, "step 2: input \"x\": 4 lies outside of what a part of it indexes in second: feed 0 to 2 there"},

	// models
	{"train none.onnx --data d.npz --steps 2 -o new", 2, "none.onnx"},
	{"train d.npz --data d.npz --steps 2 -o new", 2, "d.npz"},
	{"train g.onnx --data d.npz --steps 2 -o new", 2, "updates nothing"},
	{"train t.onnx --data d.npz --steps 2 --optimizer sgd -o new", 2, "--optimizer"},
	{"train t.onnx --data d.npz --steps 2 --accumulate 2 -o new", 2, "--accumulate"},
	{"train fixed.onnx --data x.npz --steps 2 --lr 1e-2 -o new", 2, "--lr: the graph has no input lr"},
	{"train m.onnx --data d.npz --steps 2 --memory 50KiB -o new", 1, "50.0 KiB"},
	{"train m.onnx --data d.npz --steps 2 --memory-limit 100KiB -o new", 1, "more than the limit of 100.0 KiB"},
	{"train m.onnx --data d.npz --steps 3 --lr 1e30 -o new", 1, "step 2: the loss is NaN"},

	// folders and states
	{"train m.onnx --data d.npz --steps 2 --resume -o new", 2, "no state to go on from"},
	{"train --resume -o new", 2, "new: no state to go on from: leave out --resume"},
	{"train m.onnx --data d.npz --steps 8 -o run", 2, "add --resume"},
	{"train m.onnx --data d.npz --steps 2 -o d.npz", 2, "not a folder"},
	{"train m.onnx --data d.npz --steps 2 -o no/such/folder", 2, "no/such/folder"},
	{"train m.onnx --data d.npz --steps 2 -o /proc/self", 2, "/proc/self"},
	{"train w.onnx --resume --steps 8 -o run", 2, "made from another model than w.onnx"},
	{"train --resume -o run", 2, "nothing is left to do"},
	{"train --resume --steps 8 --seed 7 -o run", 2, "seed"},
	{"train --resume --steps 8 --data other.npz -o run", 2, "the data is not what the run was fed"},
	{"train --resume --steps 8 --shuffle -o run", 2, "shuffle"},
	{"train --resume --steps 8 --batch 8 -o run", 2, "--batch 8: the graph in run was made without that flag"},
	{"train --resume --steps 8 --accumulate 2 -o run", 2, "leave --accumulate out"},
	{"train --resume --steps 8 --dim n=8 -o run", 2, "--dim n: no input"},
	{"train --resume --steps 8 --optimizer sgd -o run", 2, "the graph in run was made"},
	{"train --resume --steps 8 --weight-decay 0.5 -o run", 2, "the graph in run was made"},
	{"train --resume --steps 8 --no-decay vectors -o run", 2, "the graph in run was made"},
	{"train --resume --steps 8 --strategy full -o run", 2, "the graph in run was made"},
	{"train --resume --steps 8 --memory 1GiB -o run", 2, "--memory 1GiB: the graph in run was made without that flag"},
	{"train --resume --steps 8 --gradient-norm=false -o run", 2, "--gradient-norm false: the graph in run was made without that flag"},
	{"train --resume --steps 8 --precision bf16 -o run", 2, "the graph in run was made"},
	{"train --resume --steps 8 -o damaged", 2, "damaged"},
	{"train --resume --steps 8 -o foreign", 2, "another graph"},

	// ranks
	{"train m.onnx --data d.npz --steps 2 --ranks 0 -o new", 2, "--ranks 0"},
	{"train m.onnx --data d.npz --steps 2 --ranks -1 -o new", 2, "--ranks -1"},
	{"train m.onnx --data d.npz --steps 2 --ranks 5000 -o new", 2, "want 1 to 1024"},
	{"train m.onnx --data d.npz --steps 2 --sync step -o new", 2, "requires --ranks"},
	{"train m.onnx --data d.npz --steps 2 --ranks 2 --sync local=0 -o new", 2, "--sync \"local=0\""},
	{"train m.onnx --data d.npz --steps 2 --ranks 2 --sync all -o new", 2, "want step, shard, or local=H"},
	{"train m.onnx --data d.npz --steps 3 --ranks 2 --sync local=2 -o new", 2, "a multiple of the 2 steps"},
	{"train m.onnx --data d.npz --steps 2 --ranks 2 --outer-lr 1 -o new", 2, "--outer-lr: requires --sync local=H"},
	{"train m.onnx --data d.npz --steps 2 --ranks 2 --sync local=2 --outer-momentum 1 -o new", 2, "--outer-momentum 1"},
	{"train m.onnx --data d.npz --steps 2 --ranks 64 -o new", 2, "64 ranks: the data are"},
	{"train m.onnx --data d.npz --steps 2 --ranks 2 --buckets 2 --precision fp16 -o new", 2, "leave --buckets out"},
	{"train m.onnx --data d.npz --steps 2 --ranks 2 --memory-limit 1GiB -o new", 2, "use --memory"},
	{"train t.onnx --data d.npz --steps 2 --ranks 2 -o new", 2, "updates within a run"},
	{"train --resume --steps 8 --ranks 2 -o run", 2, "updates within a run"},
	{"train --resume --steps 8 --ranks 2 --sync local=2 -o run", 2, "rank1: no state of this rank"},

	// eval
	{"eval m.onnx", 2, "no data"},
	{"eval none.onnx --data d.npz", 2, "none.onnx"},
	{"eval x.onnx --data x.npz --state run/state.safetensors", 2, "no tensor matches"},
	{"eval t.onnx --data d.npz --state part.safetensors", 2, "no value for"},
	{"eval m.onnx --data d.npz --state d.npz", 2, "d.npz"},
	{"eval noloss.onnx --data x.npz", 2, "loss"},
}

func TestWrongTraining(t *testing.T) {
	prepareWrong(t)
	if len(wrongUses) < 30 {
		t.Errorf("only %d uses", len(wrongUses))
	}
	before := listing(t)
	state, err := os.ReadFile("run/state.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range wrongUses {
		t.Run(u.line, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(context.Background(), append(strings.Fields(u.line), "--quiet"), &stdout, &stderr)
			text := stderr.String()
			if code != u.code || strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "remat: ") || !strings.Contains(text, u.want) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, u.code, u.want, text)
			}
			if strings.Contains(text, "internal error") {
				t.Error("a bug")
			}
			if err := os.RemoveAll("new"); err != nil {
				t.Fatal(err)
			}
		})
	}
	if after := listing(t); after != before {
		t.Errorf("the folder held\n%s\nand holds\n%s", before, after)
	}
	if now, err := os.ReadFile("run/state.safetensors"); err != nil || !bytes.Equal(now, state) {
		t.Error("the state was touched")
	}
}

func listing(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("*")
	if err != nil {
		t.Fatal(err)
	}
	inside, err := filepath.Glob("*/state*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(names, inside...), "\n")
}

// prepareWrong makes the files that wrongUses name, in a folder that becomes the
// process's.
func prepareWrong(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	do(t, "model gpt2-tiny --layers 1 --hidden 16 --heads 2 --vocab 97 --seq 16 --batch 4 -o m.onnx --quiet")
	do(t, "model gpt2-tiny --layers 1 --hidden 8 --heads 2 --vocab 50257 --seq 64 --batch 4 -o w.onnx --quiet")
	do(t, "grad m.onnx --optimizer adamw -o t.onnx --quiet")
	do(t, "grad m.onnx -o g.onnx --quiet")
	writeBatches(t, "d.npz", 10, 4, 16, 97)
	writeBatches(t, "other.npz", 11, 4, 16, 97)
	writeBatches(t, "short.npz", 10, 4, 15, 97)
	writeBatches(t, "beyond.npz", 10, 4, 16, 98)
	d, err := remat.ReadNPZ("d.npz")
	if err != nil {
		t.Fatal(err)
	}
	delete(d, "labels")
	archive := func(path string, values map[string]remat.Tensor) {
		if err := remat.WriteNPZ(path, values); err != nil {
			t.Fatal(err)
		}
	}
	archive("ids.npz", d)
	archive("x.npz", map[string]remat.Tensor{"x": remat.FromFloat32s([]float32{1, 2, 3, 4}, 2, 2)})
	archive("nan.npz", map[string]remat.Tensor{"x": remat.FromFloat32s([]float32{1, 2, 3, float32(math.NaN())}, 4)})
	archive("columns.npz", map[string]remat.Tensor{"x": remat.FromInt64s([]int64{0, 1, 1, 4, 4, 2}, 3, 2)})
	archive("one.npz", map[string]remat.Tensor{"x": remat.FromFloat32s([]float32{1}, 1)})
	archive("mixed.npz", map[string]remat.Tensor{"x": remat.FromFloat32s([]float32{1, 2, 3, 4}, 4), "s": remat.FromFloat32s([]float32{1}, 1)})
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("long.txt", strings.Repeat("Alice was beginning to get very tired. ", 100))
	write("tiny.txt", "Alice.")
	write("typo.yaml", "train:\n  arguments: [m.onnx]\n  warm-up: 10\n")
	parsed := func(path, text string) {
		m, err := onnx.Parse(text)
		if err == nil {
			err = m.Save(path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const head = "model ir=9 opset=20\ngraph g {\nin x float32[2]\n"
	parsed("x.onnx", head+"init V float32[2] = [1,2]\np = Mul(x, V)\nloss = ReduceSum(p) {keepdims=0}\nout loss float32[]\n}\n")
	parsed("free.onnx", "model ir=9 opset=20\ngraph g {\nin x float32[n]\ninit V float32[1] = [1]\np = Mul(x, V)\nloss = ReduceMean(p) {keepdims=0}\nout loss float32[]\n}\n")
	parsed("mixed.onnx", head+"in s float32[1]\ninit V float32[2] = [1,2]\np = Mul(x, V)\nq = Mul(p, s)\nloss = ReduceMean(q) {keepdims=0}\nout loss float32[]\n}\n")
	parsed("columns.onnx", "model ir=9 opset=20\ngraph g {\nin x int64[1,2]\ninit V float32[5,1] = [1,2,3,4,5]\ninit W float32[3,1] = [1,2,3]\ninit first int64[] = 0\ninit last int64[] = 1\n"+
		"i = Gather(x, first) {axis=1}\nk = Gather(x, last) {axis=1}\np = Gather(V, i)\nq = Gather(W, k) \"second\"\ns = Mul(p, q)\nloss = ReduceMean(s) {keepdims=0}\nout loss float32[]\n}\n")
	parsed("noloss.onnx", head+"p = Mul(x, x)\nout p float32[2]\n}\n")
	parsed("fixed.onnx", head+"in W float32[2]\np = Mul(x, W)\nloss = ReduceSum(p) {keepdims=0}\nW.new = Sub(W, x)\nout loss float32[]\nout W.new float32[2]\n}\n")
	do(t, "train m.onnx --data d.npz --steps 4 --seed 5 --quiet -o run")
	do(t, "train m.onnx --data d.npz --steps 4 --seed 5 --quiet --optimizer sgd -o foreign")
	do(t, "train m.onnx --data d.npz --steps 4 --quiet -o damaged")
	state, err := os.ReadFile("damaged/state.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	state[len(state)-1] ^= 1
	write("damaged/state.safetensors", string(state))
	if state, err = os.ReadFile("run/state.safetensors"); err != nil {
		t.Fatal(err)
	}
	write("foreign/state.safetensors", string(state))
	part, err := safetensors.Plan([]safetensors.Info{{Name: "transformer.ln_f.bias", DType: onnx.Float32, Shape: []int64{16}}}, nil)
	if err == nil {
		err = part.Write("part.safetensors", func(_ safetensors.Info, w io.Writer) error { _, err := w.Write(make([]byte, 64)); return err })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEvalNotFinite: the batch whose loss is no number is named, with its input where that holds
// one; the exit code is that of what ran.
func TestEvalNotFinite(t *testing.T) {
	t.Chdir(t.TempDir())
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[2]\ninit V float32[2] = [1,2]\np = Mul(x, V)\ns = Sqrt(p)\nloss = ReduceMean(s) {keepdims=0}\nout loss float32[]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save("x.onnx"); err != nil {
		t.Fatal(err)
	}
	for want, x := range map[string][]float32{
		"remat: x.onnx: the loss of batch 2 of 3 is NaN: its input \"x\" holds a NaN\n": {1, 2, 3, float32(math.NaN()), 1, 2},
		"remat: x.onnx: the loss of batch 3 of 3 is NaN\n":                              {1, 2, 3, 4, -1, 2},
		"": {1, 2, 3, 4, 1, 2},
	} {
		if err := remat.WriteNPZ("x.npz", map[string]remat.Tensor{"x": remat.FromFloat32s(x, 6)}); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), strings.Fields("eval x.onnx --data x.npz --quiet"), &stdout, &stderr); code != exitDone || stderr.String() != want {
			t.Errorf("exit code %d, %q, want %q", code, &stderr, want)
		}
	}
}

// TestTrainingUndone: what fails before its first step takes the graph and the weights that it
// wrote away again, and leaves what was there before.
func TestTrainingUndone(t *testing.T) {
	t.Chdir(t.TempDir())
	do(t, "model gpt2-tiny --layers 1 --hidden 16 --heads 2 --vocab 97 --seq 16 --batch 4 -o m.onnx --quiet")
	writeBatches(t, "d.npz", 10, 4, 16, 97)
	if err := os.Mkdir("old", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("old/notes.txt", []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"train m.onnx --data d.npz --steps 2 --loss-scale 8 -o new":            "no input loss_scale",
		"train m.onnx --data d.npz --steps 2 --loss-scale 8 -o old":            "no input loss_scale",
		"train m.onnx --data d.npz --steps 2 --loss-scale 8 --ranks 2 -o new":  "no input loss_scale",
		"train m.onnx --data d.npz --steps 2 --memory-limit 40KiB -o new":      "before a step",
		"train m.onnx --data d.npz --steps 2 --loss-scale 8 --resume -o begun": "no input loss_scale",
	} {
		if strings.Contains(line, "begun") {
			do(t, "train m.onnx --data d.npz --steps 1 --quiet -o begun")
		}
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), append(strings.Fields(line), "--quiet"), &stdout, &stderr); code == exitDone || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, want %q:\n%s", line, code, want, &stderr)
		}
		if strings.Contains(line, "begun") {
			if _, err := os.Stat("begun/train.onnx"); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if _, err := os.Stat("new"); !os.IsNotExist(err) {
		left, _ := filepath.Glob("new/*")
		t.Errorf("new holds %v", left)
	}
	if left, err := filepath.Glob("old/*"); err != nil || len(left) != 1 {
		t.Errorf("old holds %v, want notes.txt alone", left)
	}
}
