package main

// Pipelines: K stages train as one process does that accumulates the same micro-batches,
// bit for bit, with both schedules, in one process and under mpirun.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
)

// preparePipeline makes a model of four layers with a tied embedding, and data for it.
func preparePipeline(t *testing.T) (at func(string) string) {
	t.Helper()
	dir := t.TempDir()
	at = func(name string) string { return dir + "/" + name }
	do(t, "model gpt2-tiny --layers 4 --hidden 16 --heads 2 --vocab 97 --seq 16 --batch 2 --dropout 0.1 -o "+at("m.onnx"))
	writeBatches(t, at("d.npz"), 24, 2, 16, 97)
	return at
}

func TestPipeline(t *testing.T) {
	at := preparePipeline(t)
	line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --seed 5 --lr 1e-2 --clip-norm 0.5 --accumulate 4 -o "
	one := documentOf(t, do(t, line+at("one")+" --steps 3 --gradient-norm"))
	want := tensorsOf(t, at("one/state.safetensors"))
	held := map[string]int64{}
	for stages, schedules := range map[int][]string{2: {"1f1b", "gpipe"}, 4: {"1f1b"}} { // under mpirun, gpipe with 4
		for _, schedule := range schedules {
			name := fmt.Sprint(schedule, stages)
			flags := fmt.Sprintf(" --pipeline %d --pipeline-schedule %s", stages, schedule)
			d := documentOf(t, do(t, line+at(name)+" --steps 3 --save-every 2"+flags))
			if got := tensorsOf(t, at(name+"/state.safetensors")); !maps.EqualFunc(want, got, bytes.Equal) {
				t.Errorf("%s: another state", name)
			}
			if d.LossFirst != one.LossFirst || d.LossLast != one.LossLast || d.Tokens != one.Tokens {
				t.Errorf("%s: %+v, one process: %+v", name, d, one)
			}
			if a, b := normsOf(t, at("one")), normsOf(t, at(name)); a != b || a == "" {
				t.Errorf("%s: norms %s, one process: %s", name, b, a)
			}
			m, r := d.Memory, d.Ranks
			if m.Live != m.PredictedLive || m.Live == 0 || m.Session != m.PredictedSession || m.Session == 0 || r.HeldBytes != r.PredictedHeldBytes || r.HeldBytes == 0 {
				t.Errorf("%s: %+v", name, d)
			}
			if r.Syncs != 3 || r.BytesSent != 3*r.SyncBytes || r.SyncBytes == 0 || m.State >= one.Memory.State {
				t.Errorf("%s: %+v, one process: %+v", name, d, one)
			}
			held[name] = r.HeldBytes
		}
	}
	if held["1f1b2"] >= held["gpipe2"] {
		t.Errorf("of 4 micro-batches 2 stages hold %v", held)
	}
	// It goes on, with another number of stages, as it would have.
	code, out, said := remats(t, strings.Fields(strings.Replace(line, "--json", "", 1)+at("parts")+" --steps 1 --pipeline 4")...)
	if code != exitDone || !strings.Contains(out, "costs one set of gradients, ") || strings.Contains(out, "gradients, 0 B") || strings.Contains(said, "drawn at random") {
		t.Errorf("exit code %d, %s%s", code, out, said)
	}
	do(t, line+at("parts")+" --steps 3 --pipeline 2 --pipeline-schedule gpipe --resume")
	if got := tensorsOf(t, at("parts/state.safetensors")); !maps.EqualFunc(want, got, bytes.Equal) {
		t.Error("resumed: another state")
	}
	for flags, want := range map[string]string{
		"--pipeline 1":                          "--pipeline 1: want 2 to 64",
		"--pipeline 2 --ranks 2":                "leave one of the two out",
		"--pipeline 2 --sync shard":             "leave one of the two out",
		"--pipeline 2 --precision fp16":         "no stage of a pipeline has all gradients",
		"--pipeline 2 --memory-limit 1GiB":      "remat split says",
		"--pipeline 2 --val 10%":                "use remat eval",
		"--pipeline 2 --memory 1GiB":            "remat split says",
		"--pipeline 2 --pipeline-schedule none": "--pipeline-schedule \"none\"",
		"--pipeline-schedule gpipe":             "requires --pipeline K",
		"--pipeline 60":                         "use fewer stages",
	} {
		code, _, last := remats(t, strings.Fields(line+at("new")+" --steps 2 "+flags)...)
		if code != exitBadInput || !strings.Contains(last, want) {
			t.Errorf("%s: exit code %d, %s", flags, code, last)
		}
	}
}

// TestPipelineOfExport: biases that one stage reads and another updates are passed on, and
// runs of an update are counted where its phase waits.
func TestPipelineOfExport(t *testing.T) {
	model, err := filepath.Abs("../../testdata/models/gpt2_tiny.dyn.onnx")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeBatches(t, dir+"/d.npz", 8, 2, 32, 61)
	line := "--quiet --json --threads 1 train " + model + " --data " + dir + "/d.npz --lr 1e-2 --accumulate 2 --steps 2 -o " + dir
	one, two := documentOf(t, do(t, line+"/one")), documentOf(t, do(t, line+"/two --pipeline 3"))
	if one.Tokens != two.Tokens || one.LossLast != two.LossLast {
		t.Errorf("in stages %+v, in one %+v", two, one)
	}
	if want, got := tensorsOf(t, dir+"/one/state.safetensors"), tensorsOf(t, dir+"/two/state.safetensors"); !maps.EqualFunc(want, got, bytes.Equal) {
		t.Error("another state in stages")
	}
}

// TestAdvisePipeline: the stage that takes most takes no less than the first one does when
// it trains, and sends as much; the efficiency is that of the schedule.
func TestAdvisePipeline(t *testing.T) {
	at := preparePipeline(t)
	out := do(t, "--quiet --json --threads 1 advise "+at("m.onnx")+" --memory 64MiB --ranks 2")
	var doc struct{ Ranks []report.AdviceRanks }
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Ranks) != 4 {
		t.Fatalf("%v: %s", err, out)
	}
	r := doc.Ranks[3]
	d := documentOf(t, do(t, "--quiet --json --threads 1 train "+at("m.onnx")+" --data "+at("d.npz")+" --steps 1 --accumulate 8 --pipeline 2 -o "+at("run")))
	m := d.Memory
	takes := m.Parameters + m.State + m.Feeds + m.Session + m.Live + d.Ranks.HeldBytes
	if r.Total == nil || *r.Total < takes || *r.Total > 3*takes || *r.SyncBytes < d.Ranks.SyncBytes || !r.Fits {
		t.Errorf("%+v; the first stage: %+v", r, d)
	}
	if e := float64(*r.Efficiency); math.Abs(e-8.0/9) > 1e-12 {
		t.Errorf("efficiency %v", e)
	}
}

// TestPipelineUnderMPI: mpirun gives the bits of one process, and what it says.
func TestPipelineUnderMPI(t *testing.T) {
	start := withMPI(t)
	at := preparePipeline(t)
	for stages, schedule := range map[int]string{2: "1f1b", 4: "gpipe"} {
		line := "--quiet --json --threads 1 train " + at("m.onnx") + " --data " + at("d.npz") + " --shuffle --steps 2 --save-every 1 --accumulate 4" +
			fmt.Sprintf(" --pipeline %d --pipeline-schedule %s -o ", stages, schedule)
		a := documentOf(t, do(t, line+at("inside"+schedule)))
		out, err := start(stages, strings.Fields(line+at("outside"+schedule))...).Output()
		if err != nil {
			t.Fatalf("%s: %v", schedule, err)
		}
		if b := documentOf(t, string(out)); a != b {
			t.Errorf("%s: %+v, inside one process %+v", schedule, b, a)
		}
		sameStates(t, at("inside"+schedule), at("outside"+schedule))
	}
	if code, text := func() (int, string) {
		c := start(3, strings.Fields("train "+at("m.onnx")+" --data "+at("d.npz")+" --steps 2 --pipeline 2 -o "+at("new"))...)
		out, _ := c.CombinedOutput()
		return c.ProcessState.ExitCode(), string(out)
	}(); code == 0 || !strings.Contains(text, "--pipeline 2: 3 ranks were started") {
		t.Errorf("exit code %d: %s", code, text)
	}
}
