package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// memoryEnv is an environment with a plain and a rewritten training graph.
func memoryEnv(t *testing.T) (e *env, plain, small string) {
	t.Helper()
	dir := newFolder(t)
	at := dir.at
	for _, args := range [][]string{
		{"model", "gpt2-tiny", "--layers", "4", "--seq", "64", "-o", at("g.onnx")},
		{"grad", at("g.onnx"), "--optimizer", "sgd", "-o", at("plain.onnx")},
		{"rewrite", at("plain.onnx"), "--strategy", "full", "-o", at("small.onnx")},
	} {
		dir.do(args...)
	}
	e = newEnv(context.Background(), new(bytes.Buffer), new(bytes.Buffer))
	t.Cleanup(e.close)
	return e, at("plain.onnx"), at("small.onnx")
}

// TestOutOfMemoryIsARow: a graph that takes more than there is has a row that says
// so, whichever it is, and the others have theirs.
func TestOutOfMemoryIsARow(t *testing.T) {
	e, plain, small := memoryEnv(t)
	feeds := remat.Options{Level: 1, Provider: ort.CPU}
	doc, err := compareModels(e, []string{plain, small}, feeds, compareOptions{steps: 2})
	if err != nil {
		t.Fatal(err)
	}
	less := *doc.Models[1].Memory.TotalPeakBytes
	if more := *doc.Models[0].Memory.TotalPeakBytes; more <= less {
		t.Fatalf("plain takes %d, rewritten %d", more, less)
	}
	feeds.MemoryLimit = less
	for _, paths := range [][]string{{plain, small}, {small, plain}, {small, plain, small}} {
		doc, err := compareModels(e, paths, feeds, compareOptions{steps: 2})
		if doc == nil {
			t.Fatal(err)
		}
		if (err != nil) != (paths[0] == plain) {
			t.Errorf("%v: %v", paths, err)
		}
		for i, m := range doc.Models {
			if failed := m.Error != ""; failed != (paths[i] == plain) || failed == (len(m.Steps) > 0) {
				t.Errorf("%v: %s has %d steps and error %q", paths, m.Model, len(m.Steps), m.Error)
			}
			if m.Error != "" && !strings.Contains(string(m.Error), "more than the limit of") {
				t.Errorf("error %q", m.Error)
			}
			if m.Error == "" && *m.Memory.TotalPeakBytes != less {
				t.Errorf("%v: %s took %d, alone %d", paths, m.Model, *m.Memory.TotalPeakBytes, less)
			}
		}
		var text bytes.Buffer
		if err := doc.Text(&text); err != nil || !strings.Contains(text.String(), "out of memory") {
			t.Errorf("%v: %v\n%s", paths, err, &text)
		}
	}
}

// TestRunsAlone: a graph that found no memory beside the others runs after them,
// and its losses are compared.
func TestRunsAlone(t *testing.T) {
	e, plain, small := memoryEnv(t)
	feeds := remat.Options{Level: 1, Provider: ort.CPU}
	o := compareOptions{steps: 2, labels: []string{"one", "two"}}
	doc, err := compareModels(e, []string{plain, small}, feeds, o)
	if err != nil {
		t.Fatal(err)
	}
	want := *doc.Models[1].Memory.LivePeakBytes
	failed := &subject{path: small, run: doc.Models[1]}
	failed.run.Error, failed.run.Steps = "out of memory", nil
	subjects := []*subject{{path: plain, run: doc.Models[0]}, failed}
	if err := runAlone(e, subjects, doc, feeds, o); err != nil {
		t.Fatal(err)
	}
	m := doc.Models[1]
	if m == failed.run || !m.Alone || m.Error != "" || m.Label != "two" || len(m.Steps) != 2 || *m.Memory.LivePeakBytes != want || m.Memory.ReservedBytes == nil {
		t.Errorf("got %+v", m)
	}
	if doc.Models[0].Alone || subjects[1].session != nil {
		t.Error("the other one ran too, or a session is left open")
	}
}

// TestConstantNodes: constants of nodes are of the session at every level, also where ONNX Runtime computes nothing ahead.
func TestConstantNodes(t *testing.T) {
	m, err := onnx.Parse("model ir=10 opset=20\ngraph g {\nin x float32[40]\nc = Constant() {value_floats=[" +
		strings.Repeat("1.5, ", 39) + "2.5]}\ny = Add(x, c)\nout y float32[40]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	for _, level := range []string{"0", "1", "99"} {
		var d report.Run
		if err := json.Unmarshal([]byte(do(t, "run "+path+" --json --opt "+level)), &d); err != nil {
			t.Fatal(err)
		}
		if m := d.Memory; m.SessionBytes == nil || *m.SessionBytes != *m.PredictedSessionBytes || *m.SessionBytes == 0 {
			t.Errorf("level %s: session of %v bytes, %v predicted", level, *m.SessionBytes, *m.PredictedSessionBytes)
		}
	}
}

// TestMemoryIsLeftToSteps: what run holds beside its steps. The graph is given up once ONNX
// Runtime has it, and what is known of its nodes where nobody asked for that, and little garbage is let lie until the steps
// end; the losses are those of a session beside which the file is kept.
func TestMemoryIsLeftToSteps(t *testing.T) {
	e, plain, _ := memoryEnv(t)
	feeds := remat.Options{Level: 1, Provider: ort.CPU, LR: 0.1}
	losses := func(open func(*env, string, remat.Options) (*subject, error), kept int) []float64 {
		s, err := open(e, plain, feeds)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if len(e.sources) != kept {
			t.Errorf("%d files are kept, want %d", len(e.sources), kept)
		}
		if given := s.session.Model.Graph == nil && s.nodes == nil && s.run.Timeline == nil; given != (kept == 0) {
			t.Errorf("the graph and its timeline were given up: %v, want %v", given, kept == 0)
		}
		if given := s.session.Model.Graph == nil; given && s.run.Memory.PredictedSessionBytes == nil {
			t.Error("nothing was predicted before")
		}
		defer e.leaveToSteps()()
		var list []float64
		for range 2 {
			if err := s.step(e); err != nil {
				t.Fatal(err)
			}
			list = append(list, float64(s.run.Steps[len(s.run.Steps)-1].Outputs[s.roles.Loss]))
		}
		if m := s.session.Memory(); m.LivePeakBytes != *s.run.Memory.PredictedLivePeakBytes {
			t.Errorf("live peak %d, predicted %d", m.LivePeakBytes, *s.run.Memory.PredictedLivePeakBytes)
		}
		during := debug.SetGCPercent(stepGarbage)
		if during != stepGarbage {
			t.Errorf("%d %% of garbage lies while steps run, want %d", during, stepGarbage)
		}
		return list
	}
	const before = 77
	defer debug.SetGCPercent(debug.SetGCPercent(before))
	alone := losses(openAlone, 0)
	if after := debug.SetGCPercent(before); after != before {
		t.Errorf("%d %% of garbage lies after the steps, want %d as before", after, before)
	}
	if beside := losses(openSubject, 1); !slices.Equal(alone, beside) || alone[0] == alone[1] {
		t.Errorf("losses %v, beside the file %v", alone, beside)
	}
}
