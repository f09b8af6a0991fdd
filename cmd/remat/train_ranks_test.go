package main

// Ranks: --ranks N --sync step computes what one rank does that accumulates N
// micro-batches, bit for bit, and within rounding what one does with batches N times as
// large. Under mpirun the same bits come out, whoever is killed on the way.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/models/safetensors"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/mpi"
)

const ranksModel = "gpt2-tiny --layers 1 --hidden 32 --heads 2 --vocab 97 --seq 16"

// prepareRanks makes a model of a batch of 4, and data for it.
func prepareRanks(t *testing.T) (at func(string) string) {
	t.Helper()
	dir := t.TempDir()
	at = func(name string) string { return filepath.Join(dir, name) }
	do(t, "model "+ranksModel+" --batch 4 -o "+at("m.onnx"))
	writeBatches(t, at("d.npz"), 24, 4, 16, 97)
	return at
}

// tensorsOf are the tensors of a state, by name.
func tensorsOf(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]byte{}
	for _, i := range f.Tensors {
		all[i.Name] = slices.Clone(f.Bytes(i))
	}
	return all
}

// trainedAs are the parts of a training's document that these tests read.
type trainedAs struct {
	LossFirst float64      `json:"loss_first"`
	LossLast  float64      `json:"loss_last"`
	Tokens    int64        `json:"tokens"`
	Ranks     trainedRanks `json:"ranks"`
	Memory    struct {
		Session          int64 `json:"session_bytes"`
		PredictedSession int64 `json:"predicted_session_bytes"`
		Live             int64 `json:"live_peak_bytes"`
		PredictedLive    int64 `json:"predicted_live_peak_bytes"`
		Parameters       int64 `json:"parameter_bytes"`
		State            int64 `json:"state_bytes"`
		Feeds            int64 `json:"feed_bytes"`
		// PredictedReserved is what the arena takes.
		PredictedReserved int64 `json:"predicted_reserved_bytes"`
	} `json:"memory"`
}

func documentOf(t *testing.T, text string) (d trainedAs) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return d
}

// TestRanksSum: the states of N ranks, with their updates divided or not, and of one that
// accumulates are equal byte for byte, and so are losses and norms.
func TestRanksSum(t *testing.T) {
	at := prepareRanks(t)
	for i, flags := range []string{
		"--clip-norm 0.5",
		"--optimizer sgd --momentum 0.9 --weight-decay 0.1",
		"--clip-norm 0.1 --clip-by parameter --optimizer lion",
		"--clip-norm 0.1 --clip-by previous --schedule cosine --warmup 2",
		"--optimizer muon",
		"--optimizer adafactor --gradient-norm=false",
	} {
		n := []int{2, 4}[i%2]
		line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --steps 4 --lr 1e-2 " + flags + " -o "
		dirs := [2]string{at(fmt.Sprint("one", i)), at(fmt.Sprint("ranks", i))}
		norm := " --gradient-norm"
		if strings.Contains(flags, norm) {
			norm = ""
		}
		one := documentOf(t, do(t, line+dirs[0]+norm+fmt.Sprint(" --accumulate ", n)))
		all := documentOf(t, do(t, line+dirs[1]+fmt.Sprint(" --ranks ", n)))
		a, b := tensorsOf(t, filepath.Join(dirs[0], "state.safetensors")), tensorsOf(t, filepath.Join(dirs[1], "state.safetensors"))
		if !maps.EqualFunc(a, b, bytes.Equal) {
			t.Errorf("%s: %d ranks have another state", flags, n)
		}
		compared := int64(4 * n * 4 * 15) // of 16 a row, whose first label the model shifts away
		if one.LossFirst != all.LossFirst || one.LossLast != all.LossLast || one.Tokens != all.Tokens || all.Tokens != compared {
			t.Errorf("%s: %+v, one rank: %+v", flags, all, one)
		}
		if a, b := normsOf(t, dirs[0]), normsOf(t, dirs[1]); a != b || a == "" {
			t.Errorf("%s: norms %s, one rank: %s", flags, b, a)
		}
		divided := at(fmt.Sprint("divided", i))
		shard := documentOf(t, do(t, line+divided+fmt.Sprint(" --sync shard --ranks ", n)))
		sameStates(t, dirs[1], divided)
		if a, b := normsOf(t, dirs[1]), normsOf(t, divided); a != b || shard.LossLast != all.LossLast {
			t.Errorf("%s, divided: norms %s, want %s; %+v", flags, b, a, shard)
		}
		if shard.Memory.State >= all.Memory.State {
			t.Errorf("%s, divided: state of %d bytes, of %d undivided", flags, shard.Memory.State, all.Memory.State)
		}
	}
}

// TestRanksInHalf: ranks that compute in a half type sum float32 gradients, divided or not to
// the same bits; they take what was predicted, and come to where one that accumulates comes.
// A step in which gradients of one rank overflow is skipped by all, which go on with one scale.
func TestRanksInHalf(t *testing.T) {
	at := prepareRanks(t)
	line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --steps 6 --lr 1e-3 "
	for i, c := range []struct{ flags, scales string }{
		{"--precision bf16", "null null null null null null"},
		{"--precision bf16 --accumulate 2 --memory 1GiB", "null null null null null null"},
		{"--precision fp16", "65536 65536 65536 65536 65536 65536"},
		{"--precision fp16 --stash-only", "null null null null null null"},
		{"--precision fp16 --loss-scale 1e12 --loss-scale-backoff 1e-4 --loss-scale-interval 6", "1e+12 1e+08 10000 10000 10000 20000"},
		{"--precision fp16 --overflow parameter --accumulate 2 --loss-scale 1e12 --loss-scale-backoff 1e-8", "1e+12 10000 10000 10000 10000 10000"},
	} {
		dirs := [3]string{at(fmt.Sprint("one", i)), at(fmt.Sprint("ranks", i)), at(fmt.Sprint("divided", i))}
		all := documentOf(t, do(t, line+c.flags+" --ranks 2 -o "+dirs[1]))
		do(t, line+c.flags+" --ranks 2 --sync shard -o "+dirs[2])
		sameStates(t, dirs[1], dirs[2])
		if m := all.Memory; m.Live != m.PredictedLive || m.Session != m.PredictedSession {
			t.Errorf("%s: %+v", c.flags, m)
		}
		if got := scalesOf(t, dirs[1]); got != c.scales {
			t.Errorf("%s: scales %s, want %s", c.flags, got, c.scales)
		}
		if strings.Contains(c.flags, "--loss-scale ") {
			continue // one alone stops at the first overflow of its micro-batches
		}
		runs := 2
		if strings.Contains(c.flags, "--accumulate") {
			runs = 4
		}
		alone := strings.ReplaceAll(c.flags, "--accumulate 2", "")
		one := documentOf(t, do(t, line+alone+fmt.Sprint(" --accumulate ", runs)+" -o "+dirs[0]))
		if math.Abs(one.LossLast-all.LossLast) > 2e-3 || one.LossFirst == 0 {
			t.Errorf("%s: loss %v, of one that accumulates %v", c.flags, all.LossLast, one.LossLast)
		}
	}

	// Whoever is stopped after a step that was skipped goes on as if it had not been.
	flags := "--precision fp16 --loss-scale 1e12 --loss-scale-backoff 1e-4 --loss-scale-interval 6 --ranks 2 -o "
	short := strings.Replace(line, "--steps 6", "--steps 1", 1)
	do(t, short+flags+at("stopped"))
	do(t, line+flags+at("stopped")+" --resume")
	sameStates(t, at("ranks4"), at("stopped"))

	for flags, want := range map[string]string{
		"--precision fp16 --pipeline 2 --accumulate 2": "no stage of a pipeline has all gradients",
		"--precision fp16 --ranks 2 --buckets 2":       "leave --buckets out",
	} {
		code, _, last := remats(t, strings.Fields(line+flags+" -o "+at("new"))...)
		if code != exitBadInput || !strings.Contains(last, want) {
			t.Errorf("%s: exit code %d, %s", flags, code, last)
		}
	}
	for _, flags := range []string{"--pipeline 2 --accumulate 2", "--ranks 2 --buckets 2 --gradient-norm=false"} {
		if d := documentOf(t, do(t, line+"--precision bf16 "+flags+" -o "+at("cut"+flags[2:4]))); d.Memory.Live != d.Memory.PredictedLive || d.Memory.Session != d.Memory.PredictedSession {
			t.Errorf("bf16 %s: %+v", flags, d.Memory)
		}
	}
	sameButSums(t, "in buckets", tensorsOf(t, at("ranks0/state.safetensors")), tensorsOf(t, at("cutra/state.safetensors")))
}

// scalesOf are the scales of the loss in a log.
func scalesOf(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(logOf(t, dir)), "\n") {
		var l struct {
			Scale json.RawMessage `json:"loss_scale"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, string(l.Scale))
	}
	return strings.Join(out, " ")
}

// normsOf are the losses and norms in a log.
func normsOf(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(logOf(t, dir)), "\n") {
		var l struct {
			Loss, LR json.Number
			Norm     json.Number `json:"gradient_norm"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprint(l))
	}
	return strings.Join(out, " ")
}

// TestRanksAsBatch: N ranks compute within rounding what one does with a batch N times
// as large, and so does accumulation within each.
func TestRanksAsBatch(t *testing.T) {
	at := prepareRanks(t)
	do(t, "model "+ranksModel+" --batch 16 -o "+at("large.onnx"))
	values, err := remat.ReadNPZ(at("d.npz"))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range values {
		v.Shape = []int64{v.Shape[0] / 4, 16, v.Shape[2]}
		values[name] = v
	}
	if err := remat.WriteNPZ(at("large.npz"), values); err != nil {
		t.Fatal(err)
	}
	line := " --steps 5 --lr 1e-2 --clip-norm 0.5 --optimizer sgd -o "
	do(t, "--quiet --threads 1 train "+at("large.onnx")+" --data "+at("large.npz")+line+at("large"))
	want := tensorsOf(t, at("large/state.safetensors"))
	for name, flags := range map[string]string{"four": " --ranks 4", "two": " --ranks 2 --accumulate 2"} {
		do(t, "--quiet --threads 1 train "+at("m.onnx")+" --data "+at("d.npz")+line+at(name)+flags)
		got := tensorsOf(t, at(name+"/state.safetensors"))
		for param, data := range want {
			a, b := floatsOf(data), floatsOf(got[param])
			for i := range a {
				if math.Abs(a[i]-b[i]) > 1e-6*(1+math.Abs(a[i])) {
					t.Fatalf("%s: %s[%d] = %v, of one batch %v", name, param, i, b[i], a[i])
				}
			}
		}
	}
}

func floatsOf(data []byte) []float64 {
	out := make([]float64, len(data)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(uint32(data[4*i]) | uint32(data[4*i+1])<<8 | uint32(data[4*i+2])<<16 | uint32(data[4*i+3])<<24))
	}
	return out
}

// TestRanksMemory: what a rank takes is what was predicted, to the byte, and what it
// sends is the model's.
func TestRanksMemory(t *testing.T) {
	at := prepareRanks(t)
	for i, sync := range []string{"step", "local=2", "shard"} {
		dir := at(fmt.Sprint("run", i))
		d := documentOf(t, do(t, "--quiet --json --threads 1 train "+at("m.onnx")+" --data "+at("d.npz")+" --steps 4 --save-every 2 -o "+dir+" --ranks 3 --sync "+sync))
		m, r := d.Memory, d.Ranks
		if m.Live != m.PredictedLive || m.Live == 0 || m.Session != m.PredictedSession || m.Session == 0 || r.HeldBytes != r.PredictedHeldBytes || r.HeldBytes == 0 {
			t.Errorf("%s: %+v", sync, d)
		}
		syncs, aside := int64(4), int64(0)
		if i == 1 {
			syncs, aside = 2, 2*(2+2*24) // a byte a state, and the words at the end
		}
		if r.Syncs != syncs || r.BytesSent != syncs*r.SyncBytes+aside || r.SyncBytes == 0 || r.Ranks != 3 || r.Sync != sync {
			t.Errorf("%s: %+v", sync, r)
		}
	}
}

// TestStateOfOuter: what an outer step keeps is no parameter that the model lacks, to whoever
// reads the state.
func TestStateOfOuter(t *testing.T) {
	at := prepareRanks(t)
	said := do(t, "--threads 1 --quiet train "+at("m.onnx")+" --data "+at("d.npz")+" --steps 2 -o "+at("run")+" --ranks 2 --sync local=2")
	if want := " 1 time, and holds "; !strings.Contains(said, want) {
		t.Errorf("%s: want %q", said, want)
	}
	for _, line := range []string{
		"eval " + at("m.onnx") + " --data " + at("d.npz") + " --state " + at("run/state.safetensors"),
		"apply " + at("run/state.safetensors") + " " + at("m.onnx") + " -o " + at("trained.onnx"),
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields("--threads 1 --quiet "+line), &stdout, &stderr); code != 0 || strings.Contains(stderr.String(), "warning") {
			t.Errorf("%s: exit code %d: %s", line, code, stderr.String())
		}
	}
}

// TestAdviseRanks: what advise says of a rank is what training by ranks takes and sends,
// and the model of the link is what docs/ranks.md says.
func TestAdviseRanks(t *testing.T) {
	at := prepareRanks(t)
	out := do(t, "--quiet --json --threads 1 advise "+at("m.onnx")+" --memory 64MiB --ranks 3 --link 8Gbit/s --step-seconds 0.5")
	var doc struct{ Ranks []report.AdviceRanks }
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Ranks) != 4 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, r := range doc.Ranks[:3] {
		steps := fmt.Sprint(r.Every)
		d := documentOf(t, do(t, "--quiet --json --threads 1 train "+at("m.onnx")+" --data "+at("d.npz")+" --memory 64MiB --gradient-norm=false --steps "+steps+" -o "+at(r.Sync)+" --ranks 3 --sync "+r.Sync))
		m := d.Memory
		const ahead = 2 * 2 * 4 * 16 * 8 // bytes of two batches
		takes := m.Parameters + m.State + m.Feeds + m.Session + m.Live + d.Ranks.HeldBytes + ahead
		// Beside that, what the arena reserves, and here and there an element in the
		// chunks of the rank that has most. Advice is of training without the norm of the
		// gradients, which train leaves out where it does not fit.
		reserved := max(0, m.PredictedReserved-m.Live-m.Session)
		if more := *r.Total - takes; more < reserved || more > 20<<10 || r.Every > 1 && more > 16*8 {
			t.Errorf("%s: said to take %d, takes %d and what is reserved: %+v", r.Sync, *r.Total, takes, m)
		}
		if *r.SyncBytes < d.Ranks.SyncBytes || *r.SyncBytes > d.Ranks.SyncBytes+4*16*2 || !r.Fits {
			t.Errorf("%s: said to send %d, rank 0 sends %d", r.Sync, *r.SyncBytes, d.Ranks.SyncBytes)
		}
		seconds := float64(*r.SyncBytes) / 1e9
		computing := 0.5 * float64(r.Every)
		if math.Abs(float64(*r.SyncSeconds)-seconds) > 1e-12 || math.Abs(float64(*r.Efficiency)-computing/(computing+seconds)) > 1e-12 {
			t.Errorf("%s: %v s, efficiency %v", r.Sync, *r.SyncSeconds, *r.Efficiency)
		}
		if !strings.HasPrefix(string(r.Train), "mpirun -n 3 remat ") || !strings.Contains(string(r.Train), "--sync "+r.Sync) {
			t.Errorf("%q", r.Train)
		}
	}
	p := doc.Ranks[3]
	if p.Sync != "pipeline" || p.Total == nil && p.Remark == "" {
		t.Errorf("%+v", p)
	}
	// What a norm of all gradients takes is the session that squares sums, not these: they are there.
	out = do(t, "--quiet --json --threads 1 advise "+at("m.onnx")+" --memory 64MiB --ranks 3 --clip-norm 1")
	var clipped struct{ Ranks []report.AdviceRanks }
	if err := json.Unmarshal([]byte(out), &clipped); err != nil || p.Total == nil || clipped.Ranks[3].Total == nil {
		t.Fatalf("%v: %s", err, out)
	}
	if more := *clipped.Ranks[3].Total - *p.Total; more < 0 || more > 256 {
		t.Errorf("clipped, a stage takes %d bytes more", more)
	}
	for line, want := range map[string]string{
		"--link 1GB/s":                            "--link: requires --ranks",
		"--ranks 1":                               "--ranks 1",
		"--ranks 2 --link fast":                   "--link \"fast\"",
		"--ranks 2 --link=-1GB/s":                 "--link \"-1GB/s\"",
		"--ranks 2 --step-seconds 1":              "requires --link",
		"--ranks 2 --link 1GB/s --step-seconds 0": "--step-seconds 0",
	} {
		code, _, last := remats(t, strings.Fields("advise "+at("m.onnx")+" --memory 64MiB "+line)...)
		if code != exitBadInput || !strings.Contains(last, want) {
			t.Errorf("%s: exit code %d, %s", line, code, last)
		}
	}
}

// TestRanksResumed: a training by ranks that is stopped and goes on has the states of one
// that was not, in the midst of a round too.
func TestRanksResumed(t *testing.T) {
	at := prepareRanks(t)
	for i, flags := range []string{" --ranks 2 --keep 1", " --ranks 3 --sync local=4 --save-every 3", " --ranks 3 --sync shard"} {
		whole, parts := at(fmt.Sprint("whole", i)), at(fmt.Sprint("parts", i))
		line := "--quiet --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --lr 1e-2" + flags + " -o "
		do(t, line+whole+" --steps 12")
		do(t, line+parts+" --steps 8")
		for _, dir := range ranksOf(parts) { // as where only the first rank had saved its last state
			if err := os.Rename(filepath.Join(dir, "state-00000006.safetensors"), filepath.Join(dir, "state.safetensors")); err != nil {
				t.Fatal(err)
			}
		}
		do(t, line+parts+" --resume --steps 12")
		sameStates(t, whole, parts)
	}
}

// TestOtherRanks: a training by 4 ranks goes on with 2, as one that begins there with
// the micro-batches that follow; with 3, which do not divide them, it does not.
func TestOtherRanks(t *testing.T) {
	at := prepareRanks(t)
	const flags = " --optimizer sgd --lr 1e-2 --clip-norm 0.5 -o "
	line := "--quiet --threads 1 train " + at("m.onnx") + " --data " + at("d.npz")
	do(t, line+flags+at("ranks")+" --steps 2 --ranks 4")
	if code, _, last := remats(t, strings.Fields(line+flags+at("ranks")+" --steps 4 --ranks 3 --resume")...); code != exitBadInput || !strings.Contains(last, "8 micro-batches") {
		t.Errorf("with 3 ranks: exit code %d, %s", code, last)
	}
	do(t, line+flags+at("ranks")+" --steps 4 --ranks 2 --resume")
	do(t, line+flags+at("divided")+" --steps 2 --ranks 4 --sync shard")
	do(t, line+flags+at("divided")+" --steps 4 --ranks 2 --sync shard --resume")
	sameStates(t, at("ranks"), at("divided"))
	do(t, line+flags+at("divided")+" --steps 6 --ranks 2 --resume") // undivided
	if code, _, last := remats(t, strings.Fields(line+flags+at("many")+" --steps 2 --ranks 24 --sync shard")...); code != exitBadInput || !strings.Contains(last, "24 ranks: there are 16 parameters to divide") {
		t.Errorf("24 ranks: exit code %d, %s", code, last)
	}
	do(t, line+flags+at("ranks")+" --steps 6 --ranks 1 --resume")
	do(t, line+flags+at("only")+" --steps 2 --ranks 1") // as without ranks
	do(t, line+flags+at("only")+" --steps 3 --ranks 1 --resume")

	values, err := remat.ReadNPZ(at("d.npz"))
	if err != nil {
		t.Fatal(err)
	}
	from, model := int64(0), at("m.onnx")
	for i, c := range []struct{ steps, runs int64 }{{2, 4}, {2, 2}, {2, 1}} {
		rest := map[string]remat.Tensor{}
		for name, v := range values {
			row := int64(len(v.Data)) / v.Shape[0]
			rest[name] = remat.Tensor{Type: v.Type, Shape: append([]int64{v.Shape[0] - from}, v.Shape[1:]...), Data: v.Data[from*row:]}
		}
		data, next, dir := at(fmt.Sprint(i, ".npz")), at(fmt.Sprint(i, ".onnx")), at(fmt.Sprint("one", i))
		if err := remat.WriteNPZ(data, rest); err != nil {
			t.Fatal(err)
		}
		do(t, fmt.Sprint("--quiet --threads 1 train ", model, " --data ", data, flags, dir, " --steps ", c.steps, " --accumulate ", c.runs))
		do(t, "apply "+dir+"/state.safetensors "+at("m.onnx")+" -o "+next)
		from, model = from+c.steps*c.runs, next
	}
	want := tensorsOf(t, at("one2/state.safetensors"))
	got := tensorsOf(t, at("ranks/state.safetensors"))
	for name, data := range want {
		if !bytes.Equal(got[name], data) {
			t.Errorf("%s is another", name)
		}
	}
}

// TestRanksInterrupted: ranks stop after the same step, and go on from there.
func TestRanksInterrupted(t *testing.T) {
	at := prepareRanks(t)
	args := strings.Fields("--threads 1 --quiet train " + at("m.onnx") + " --data " + at("d.npz") + " --steps 80 --save-every 2 --ranks 2 --sync local=2")
	whole, parts := at("whole"), at("parts")
	do(t, strings.Join(args, " ")+" -o "+whole)
	c := asProgram(t)(resumed(args, parts)...)
	var text bytes.Buffer
	c.Stderr = &text
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for modified(parts).IsZero() {
		time.Sleep(time.Millisecond)
	}
	_ = c.Process.Signal(os.Interrupt)
	if err := c.Wait(); c.ProcessState.ExitCode() != exitInterrupted || strings.Count(text.String(), "interrupted after step") != 1 {
		t.Fatalf("%v: %s", err, text.String())
	}
	do(t, strings.Join(resumed(args, parts), " "))
	sameStates(t, whole, parts)
}

// ranksOf are the folders of ranks.
func ranksOf(dir string) []string {
	list, _ := filepath.Glob(filepath.Join(dir, "rank*"))
	return slices.DeleteFunc(list, func(path string) bool { info, err := os.Stat(path); return err != nil || !info.IsDir() })
}

// sameStates compares the last states of all ranks.
func sameStates(t *testing.T, want, got string) {
	t.Helper()
	if a, b := len(ranksOf(want)), len(ranksOf(got)); a != b {
		t.Errorf("%d ranks have states, want %d", b, a)
	}
	for _, dir := range append(ranksOf(want), want) {
		rel, err := filepath.Rel(want, dir)
		if err != nil {
			t.Fatal(err)
		}
		a, err := os.ReadFile(filepath.Join(dir, "state.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(got, rel, "state.safetensors"))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s of %s: another state (%v)", rel, got, err)
		}
	}
}

// TestUnderMPI: mpirun gives the bits of --ranks.
func TestUnderMPI(t *testing.T) {
	start := withMPI(t)
	at := prepareRanks(t)
	for _, n := range []int{2, 4} {
		for _, sync := range []string{"step", "local=3", "shard"} {
			inside, outside := at(fmt.Sprint("inside", n, sync)), at(fmt.Sprint("outside", n, sync))
			line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --steps 6 --save-every 3 --sync " + sync + " -o "
			a := documentOf(t, do(t, line+inside+fmt.Sprint(" --ranks ", n)))
			out, err := start(n, strings.Fields(line+outside)...).Output()
			if err != nil {
				t.Fatalf("%d ranks, %s: %v", n, sync, err)
			}
			b := documentOf(t, string(out))
			if a != b {
				t.Errorf("%d ranks, %s: %+v, inside one process %+v", n, sync, b, a)
			}
			sameStates(t, inside, outside)
			if a, b := logOf(t, inside), logOf(t, outside); a != b {
				t.Errorf("%d ranks, %s: the log reads\n%s, want\n%s", n, sync, b, a)
			}
		}
	}
	var stderr bytes.Buffer
	c := start(3, "train", at("m.onnx"), "--data", at("none.npz"), "--steps", "2", "-o", at("new"))
	c.Stderr = &stderr
	if err := c.Run(); err == nil || strings.Count(stderr.String(), "remat: ") != 1 || !strings.Contains(stderr.String(), "none.npz") {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

// TestRankKilled: one rank is killed at a random moment. All end within seconds, nothing
// is half written, and what goes on ends with the states of a training that nobody
// killed. make test kills once, make kills 20 times in all ways to agree.
func TestRankKilled(t *testing.T) {
	start := withMPI(t)
	kills, ways := 1, []string{"local=2"} // in which each rank has a state
	if text := os.Getenv("REMAT_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		ways = append(ways, "step", "shard", "pipeline", "buckets")
	}
	at := prepareRanks(t)
	do(t, "model gpt2-tiny --layers 4 --hidden 32 --heads 2 --vocab 97 --seq 16 --batch 4 -o "+at("deep.onnx"))
	for _, sync := range ways {
		t.Run(sync, func(t *testing.T) {
			model, together, inside := at("m.onnx"), "--sync "+sync, " --ranks 3"
			switch sync {
			case "pipeline":
				model, together, inside = at("deep.onnx"), "--pipeline 3 --accumulate 2", ""
			case "buckets":
				model, together = at("deep.onnx"), "--buckets 3"
			}
			args := strings.Fields("--threads 1 --quiet train " + model + " --data " + at("d.npz") + fmt.Sprintf(" --shuffle --steps %d --save-every 1 %s", 90+60*kills, together))
			whole, parts := at("whole"+sync), at("parts"+sync)
			do(t, strings.Join(args, " ")+inside+" -o "+whole)
			for n := range kills {
				killRank(t, start(3, resumed(args, parts)...), parts, n)
			}
			if out, err := start(3, resumed(args, parts)...).CombinedOutput(); err != nil {
				t.Fatalf("resuming after %d kills: %v: %s", kills, err, out)
			}
			sameStates(t, whole, parts)
			if a, b := logOf(t, whole), logOf(t, parts); a != b {
				t.Errorf("after %d kills the log is another", kills)
			}
			for _, dir := range append(ranksOf(parts), parts) {
				if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
					t.Errorf("%s was left", left)
				}
			}
		})
	}
}

// killRank kills one of the ranks once a new state is there, and waits for the others.
func killRank(t *testing.T, c *exec.Cmd, dir string, n int) {
	t.Helper()
	var text bytes.Buffer
	c.Stderr = &text
	before := modified(dir)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	for modified(dir).Equal(before) && len(done) == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Duration(rand.Int64N(int64(60 * time.Millisecond))))
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.Process.Pid, c.Process.Pid))
	pids := strings.Fields(string(children))
	if err != nil || len(pids) < 3 {
		t.Fatalf("%v: %d ranks run: %s", err, len(pids), text.String())
	}
	pid, _ := strconv.Atoi(pids[n%len(pids)])
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Fatal("it was done before it was killed")
		}
	case <-time.After(10 * time.Second):
		t.Errorf("%s after rank %d of %d was killed the others run", time.Since(killed), n%len(pids), len(pids))
		_ = c.Process.Kill()
		<-done
	}
	for _, pid := range pids {
		for _, err := os.Stat("/proc/" + pid); err == nil; _, err = os.Stat("/proc/" + pid) {
			if time.Since(killed) > 10*time.Second {
				t.Fatalf("rank %s still runs", pid)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// TestWithoutMPI: where no MPI library is found, what a launcher started ends with one
// line and writes nothing; what nobody launched never looks for one.
func TestWithoutMPI(t *testing.T) {
	at, program := prepareRanks(t), asProgram(t)
	line := "--threads 1 --quiet train " + at("m.onnx") + " --data " + at("d.npz") + " --steps 2 -o "
	for _, c := range []struct {
		dir      string
		launched []string
		says     string
	}{
		{"open", []string{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"}, "remat: started as a rank, but there is no MPI library (" + at("none")},
		{"slurm", []string{"PMIX_RANK=0", "SLURM_STEP_NUM_TASKS=2"}, "remat: started as a rank, but there is no MPI library (" + at("none")},
		{"alone", nil, ""},
	} {
		command := program(strings.Fields(line + at(c.dir))...)
		command.Env = append(os.Environ(), append(c.launched, mpi.LibraryKey+"="+at("none"))...)
		var stderr bytes.Buffer
		command.Stderr = &stderr
		err := command.Run()
		_, folder := os.Stat(at(c.dir))
		if failed := c.says != ""; failed != (err != nil) || failed != (folder != nil) {
			t.Errorf("%s: %v, folder %v: %s", c.dir, err, folder, stderr.String())
		}
		if said := stderr.String(); !strings.HasPrefix(said, c.says) || c.says != "" && strings.Count(said, "\n") != 1 {
			t.Errorf("%s says %q, want %q", c.dir, said, c.says)
		}
	}
}

// withMPI makes commands of the program as so many ranks.
func withMPI(t *testing.T) func(n int, args ...string) *exec.Cmd {
	t.Helper()
	launcher, err := exec.LookPath("mpirun")
	if err != nil {
		t.Skip("no mpirun: apt-get install openmpi-bin")
	}
	program := asProgram(t)("").Path
	version, err := exec.Command(launcher, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{}
	if bytes.Contains(version, []byte("Open MPI")) {
		flags = append(flags, "--oversubscribe", "--bind-to", "none")
	}
	return func(n int, args ...string) *exec.Cmd {
		c := exec.Command(launcher, slices.Concat(flags, []string{"-n", fmt.Sprint(n), program}, args)...)
		c.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
		return c
	}
}
