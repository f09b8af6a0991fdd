package main

// Must a training that is killed lose anything? The real program is killed with
// SIGKILL at random moments, in the midst of steps and of saving, and resumed until it
// is done: its last state is, byte for byte, that of a training that nobody killed.
//
// make test kills it a few times, in the modes that differ most; REMAT_KILLS=20 (make
// kills) as often in each mode.

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	remat "github.com/onnx-remat/remat/runtime"
)

// killModes are flags of grad, of rewrite ("" for none) and of train. The first ones
// are killed in make test.
var killModes = []struct{ name, grad, rewrite, train string }{
	{"fp16, accumulated, clipped by the step before", "--accumulate 4 --clip-norm 0.1 --clip-by previous", "--precision fp16", "--loss-scale 8388608 --loss-scale-interval 5"},
	{"fp32", "", "", ""},
	{"fp16", "", "--precision fp16", "--loss-scale 8388608 --loss-scale-interval 5"},
	{"bf16 emulated", "", "--precision bf16 --emulate", ""},
	{"accumulated", "--accumulate 4", "", ""},
	{"clipped by all", "--clip-norm 0.1", "", ""},
	{"clipped by the step before", "--clip-norm 0.1 --clip-by previous", "", ""},
	{"recomputed", "--clip-norm 0.1 --clip-by previous", "--strategy full", ""},
}

func TestKilled(t *testing.T) {
	kills, modes := 3, killModes[:2]
	if text := os.Getenv("REMAT_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		kills, modes = n, killModes
	}
	program := asProgram(t)
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			do(t, "model gpt2-tiny --layers 1 --hidden 32 --heads 2 --vocab 97 --seq 16 --batch 4 -o "+at("m.onnx"))
			graph := at("t.onnx")
			do(t, "grad "+at("m.onnx")+" --optimizer adamw --quiet -o "+graph+" "+m.grad)
			if m.rewrite != "" {
				graph = at("r.onnx")
				do(t, "rewrite "+at("t.onnx")+" --quiet -o "+graph+" --strategy none "+m.rewrite)
			}
			writeBatches(t, at("d.npz"), 37, 4, 16, 97)
			steps := strconv.Itoa(20 + 20*kills)
			args := strings.Fields("train " + graph + " --data " + at("d.npz") + " --shuffle --seed 3 --steps " + steps + " --lr 1e-3 --warmup 10 --schedule cosine --save-every 1 --quiet " + m.train)
			do(t, strings.Join(args, " ")+" -o "+at("whole"))
			killed := 0
			for killed < kills {
				if !killOnce(t, program, args, at("parts"), killed) {
					break
				}
				killed++
			}
			if killed < kills {
				t.Errorf("killed %d times only", killed)
			}
			if err := program(resumed(args, at("parts"))...).Run(); err != nil && killed == kills {
				t.Fatalf("resuming after %d kills: %v", killed, err)
			}
			var states [2][]byte
			for i, dir := range []string{"whole", "parts"} {
				data, err := os.ReadFile(at(dir + "/state.safetensors"))
				if err != nil {
					t.Fatal(err)
				}
				states[i] = data
			}
			if !bytes.Equal(states[0], states[1]) {
				t.Errorf("after %d kills the state is another", killed)
			}
			if a, b := logOf(t, at("whole")), logOf(t, at("parts")); a != b {
				t.Errorf("after %d kills the log reads\n%s, want\n%s", killed, b, a)
			}
			if left, _ := filepath.Glob(at("parts/.*")); len(left) > 0 {
				t.Errorf("%s was left", left)
			}
		})
	}
}

// logOf is a run's log without what it took.
func logOf(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return took.ReplaceAllString(string(data), "")
}

var took = regexp.MustCompile(`"(seconds|rss_bytes|reserved_bytes)": [^,]*,`)

// killOnce runs the training and kills it at a random moment; false where it ended
// before that.
func killOnce(t *testing.T, program func(...string) *exec.Cmd, args []string, dir string, n int) bool {
	t.Helper()
	c := program(resumed(args, dir)...)
	var text bytes.Buffer
	c.Stderr = &text
	before := modified(dir)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	if n%4 != 3 { // else anywhere, before the first step too
		for modified(dir).Equal(before) && len(done) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("it failed by itself: %v: %s", err, text.String())
		}
		return false
	case <-time.After(time.Duration(rand.Int64N(int64(40 * time.Millisecond)))):
	}
	_ = c.Process.Signal(syscall.SIGKILL)
	<-done
	return true
}

// resumed are the arguments that begin a training, or go on with it.
func resumed(args []string, dir string) []string {
	args = append(args[:len(args):len(args)], "-o", dir)
	if modified(dir).IsZero() {
		return args
	}
	return append(args, "--resume")
}

// modified is when the folder's state was written, zero without one.
func modified(dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, "state.safetensors"))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// asProgram makes commands of the real program: this test's binary under its name.
func asProgram(t *testing.T) func(...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "remat")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) *exec.Cmd { return exec.Command(link, args...) }
}

// do runs a command in this process.
func do(t *testing.T, line string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), strings.Fields(line), &stdout, &stderr); code != 0 {
		t.Fatalf("%s: exit code %d: %s", line, code, stderr.String())
	}
	return stdout.String()
}

// writeBatches writes an archive of token ids and labels, so many batches.
func writeBatches(t *testing.T, path string, count, batch, seq, vocab int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	tensor := func() remat.Tensor {
		values := make([]int64, count*batch*seq)
		for i := range values {
			values[i] = r.Int64N(vocab)
		}
		return remat.FromInt64s(values, count, batch, seq)
	}
	if err := remat.WriteNPZ(path, map[string]remat.Tensor{"input_ids": tensor(), "labels": tensor()}); err != nil {
		t.Fatal(err)
	}
}
