package main

// Buckets: gradients that are sent while others are computed lead to the parameters and the
// optimizer's state of those that are sent at the step's end, bit for bit, in one process
// and under mpirun.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// sameButSums compares two states. Sums of gradients are zero between steps, of either
// sign.
func sameButSums(t *testing.T, what string, a, b map[string][]byte) {
	t.Helper()
	if len(a) != len(b) || len(a) == 0 {
		t.Fatalf("%s: %d values, want %d", what, len(b), len(a))
	}
	for name, data := range a {
		if strings.HasSuffix(name, ".acc") {
			for i, x := range floatsOf(b[name]) {
				if x != 0 {
					t.Fatalf("%s: %s[%d] is %v", what, name, i, x)
				}
			}
			continue
		}
		if !bytes.Equal(data, b[name]) {
			t.Errorf("%s: another %s", what, name)
		}
	}
}

func TestBuckets(t *testing.T) {
	at := preparePipeline(t)
	for i, flags := range []string{
		"",
		" --optimizer sgd --momentum 0.9",
		" --optimizer lion --clip-norm 0.1 --clip-by parameter --schedule cosine --warmup 2",
	} {
		n, k := []int{2, 3}[i%2], []int{2, 4}[i%2]
		line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --seed 5 --lr 1e-2 --steps 3 --gradient-norm=false" + flags + fmt.Sprint(" --ranks ", n) + " -o "
		whole, parts := at(fmt.Sprint("whole", i)), at(fmt.Sprint("parts", i))
		a := documentOf(t, do(t, line+whole))
		b := documentOf(t, do(t, line+parts+fmt.Sprint(" --buckets ", k)))
		want := tensorsOf(t, whole+"/state.safetensors")
		sameButSums(t, flags, want, tensorsOf(t, parts+"/state.safetensors"))
		if a.LossFirst != b.LossFirst || a.LossLast != b.LossLast || a.Tokens != b.Tokens {
			t.Errorf("%s: %+v, sent at the end: %+v", flags, b, a)
		}
		m, r := b.Memory, b.Ranks
		if m.Live != m.PredictedLive || m.Live == 0 || m.Session != m.PredictedSession || m.Session == 0 || r.HeldBytes != r.PredictedHeldBytes {
			t.Errorf("%s: %+v", flags, b)
		}
		if r.BytesSent != 3*r.SyncBytes || r.SyncBytes != a.Ranks.SyncBytes || r.BytesSent != a.Ranks.BytesSent {
			t.Errorf("%s: sends %+v, at the end %+v", flags, r, a.Ranks)
		}
		// Sums are not state any more: no more of them are alive than two buckets.
		if m.State >= a.Memory.State {
			t.Errorf("%s: state of %d bytes, sent at the end %d", flags, m.State, a.Memory.State)
		}
		if *r.Buckets != k || *r.SendSeconds <= 0 || *r.Overlapped != 0 { // ranks of a process take turns
			t.Errorf("%s: %d buckets, %v s, %v", flags, *r.Buckets, *r.SendSeconds, *r.Overlapped)
		}
	}
	// It validates, and goes on with another number of buckets or none.
	line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --seed 5 --lr 1e-2 --gradient-norm=false --val 20% --ranks 2 -o "
	do(t, line+at("w")+" --steps 6")
	do(t, line+at("p")+" --steps 2 --buckets 4")
	do(t, line+at("p")+" --steps 4 --resume")
	do(t, line+at("p")+" --steps 6 --resume --buckets 2")
	sameButSums(t, "resumed", tensorsOf(t, at("w/state.safetensors")), tensorsOf(t, at("p/state.safetensors")))
	if a, b := validationOf(t, at("w")), validationOf(t, at("p")); a != b || a == "" {
		t.Errorf("validation %s, want %s", b, a)
	}
	for flags, want := range map[string]string{
		"--ranks 2 --buckets 1":                                  "--buckets 1: want 2 to 64",
		"--buckets 2":                                            "--buckets: requires --ranks N",
		"--ranks 2 --buckets 2 --sync shard":                     "--buckets: requires --sync step",
		"--ranks 2 --buckets 2 --sync local=2":                   "--buckets: requires --sync step",
		"--pipeline 2 --buckets 2":                               "--buckets: requires --sync step",
		"--ranks 2 --buckets 2 --accumulate 2":                   "--buckets: gradients are sent as they are computed",
		"--ranks 2 --buckets 2 --memory 1GiB":                    "--memory: not with --buckets",
		"--ranks 2 --buckets 2 --gradient-norm":                  "leave --gradient-norm out",
		"--ranks 2 --buckets 60":                                 "--buckets 60 cuts the graph into stages",
		"--ranks 2 --buckets 2 --precision fp16":                 "to find an overflow",
		"--ranks 2 --buckets 2 --clip-norm 1":                    "clip by parameter",
		"--ranks 2 --buckets 2 --clip-norm 1 --clip-by previous": "clip by parameter",
		"--ranks 2 --buckets 2 --steps 3 --resume --steps 400":   "no state to go on from",
	} {
		code, _, last := remats(t, strings.Fields("--quiet --threads 1 train "+at("m.onnx")+" --data "+at("d.npz")+" -o "+at("new")+" --steps 2 "+flags)...)
		if code != exitBadInput || !strings.Contains(last, want) {
			t.Errorf("%s: exit code %d, %s", flags, code, last)
		}
	}
}

// validationOf is what a log says of the last validation.
func validationOf(t *testing.T, dir string) (last string) {
	t.Helper()
	for _, line := range strings.Split(logOf(t, dir), "\n") {
		if strings.Contains(line, "val_loss") {
			last = line
		}
	}
	return last
}

// TestBucketsUnderMPI: mpirun gives the bits of one process, computes while it sends, and
// each rank takes what was predicted.
func TestBucketsUnderMPI(t *testing.T) {
	start := withMPI(t)
	at := preparePipeline(t)
	for _, n := range []int{2, 4} {
		line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --steps 4 --save-every 2 --buckets 4 -o "
		inside, outside := at(fmt.Sprint("inside", n)), at(fmt.Sprint("outside", n))
		a := documentOf(t, do(t, line+inside+fmt.Sprint(" --ranks ", n)))
		out, err := start(n, strings.Fields(line+outside)...).Output()
		if err != nil {
			t.Fatalf("%d ranks: %v", n, err)
		}
		b := documentOf(t, string(out))
		if a.LossLast != b.LossLast || a.Memory != b.Memory || a.Ranks.BytesSent != b.Ranks.BytesSent {
			t.Errorf("%d ranks: %+v, inside one process %+v", n, b, a)
		}
		sameStates(t, inside, outside)
		if s := *b.Ranks.Overlapped; s <= 0 || s >= 1 { // the last bucket waits
			t.Errorf("%d ranks: a share of %v overlaps", n, s)
		}
		var doc struct {
			EachRank []rankMemory `json:"each_rank"`
		}
		if err := json.Unmarshal(out, &doc); err != nil || len(doc.EachRank) != n {
			t.Fatalf("%v: of %d ranks %d tell what they took", err, n, len(doc.EachRank))
		}
		for _, r := range doc.EachRank {
			if *r.LivePeakBytes != *r.PredictedLivePeakBytes || *r.SessionBytes != *r.PredictedSessionBytes || *r.HeldBytes != *r.PredictedHeldBytes || *r.BytesSent != 4**r.SyncBytes {
				t.Errorf("rank %d of %d: takes and sends other than predicted", r.Rank, n)
			}
		}
	}
}
