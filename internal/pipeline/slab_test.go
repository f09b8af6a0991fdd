package pipeline

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/pyort"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// asWritten is a planned file with the metadata that it is saved with. What it drops
// differs from step to step.
func asWritten(t *testing.T, e *runtime.Engine, strategy string) *File {
	t.Helper()
	m := zooStep(t, "gpt2-tiny", optim.AdamW, func(c *models.Config) { c.Seq, c.Batch, c.Dropout = 32, 2, 0.1 })
	f := inParts(t, e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}, strategy)
	promise(t, f)
	return f
}

// promise gives a file the metadata that it is saved with and run by.
func promise(t *testing.T, f *File) {
	t.Helper()
	if err := f.Model.SetJSON(step.RolesKey, f.Roles()); err != nil {
		t.Fatal(err)
	}
	SetPromise(f.Model, f.Prediction)
	setSlab(f.Model, f.Prediction, true)
}

// A ranStep is what is looked at of a step.
type ranStep struct {
	bits               string
	astray, live, slab int64
}

// threeSteps are three of a model's, and why the places that it carries were not used.
func threeSteps(t *testing.T, e *runtime.Engine, m *onnx.Model, level int) (ran []ranStep, refused error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	s, err := e.OpenFile(path, runtime.Options{Level: level, Threads: 1, Provider: ort.CPU, LR: 1e-3})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		bits := ""
		for _, o := range step.Outputs {
			bits += o.Name + string(o.Data)
		}
		ran = append(ran, ranStep{bits, step.AstrayBytes, step.LivePeakBytes, s.Memory().SlabBytes})
	}
	return ran, s.SlabError()
}

// TestSlabInTheFile: from its first step on a written file's step lies where the file
// says, at every level, with the bits that it has elsewhere, in hardly more than is live.
func TestSlabInTheFile(t *testing.T) {
	e := engine(t)
	for _, strategy := range []string{"none", "full", "optimal"} {
		f := asWritten(t, e, strategy)
		text, ok := f.Model.Metadata(runtime.SlabKey)
		if !ok {
			t.Errorf("%s: no table", strategy)
			continue
		}
		plain, err := f.Model.Clone()
		if err != nil {
			t.Fatal(err)
		}
		plain.DropMetadata(runtime.SlabKey)
		for _, level := range []int{1, 99} {
			if strategy == "none" && level != 1 {
				continue // which is not guarded: it is another graph there
			}
			want, err := threeSteps(t, e, plain, level)
			if err != nil {
				t.Fatal(err)
			}
			got, err := threeSteps(t, e, f.Model, level)
			if err != nil {
				t.Errorf("%s, level %d: %v", strategy, level, err)
			}
			for i := range got {
				if got[i].bits != want[i].bits || got[i].live != want[i].live {
					t.Errorf("%s, level %d, step %d: other bits, or %d bytes live for %d", strategy, level, i+1, got[i].live, want[i].live)
				}
				if got[i].astray != 0 || got[i].slab == 0 || got[i].slab > got[i].live*102/100 {
					t.Errorf("%s, level %d, step %d: %d bytes astray, a slab of %d for %d", strategy, level, i+1, got[i].astray, got[i].slab, got[i].live)
				}
			}
		}
		encoded, err := f.Model.Encode()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d nodes, a table of %d characters in a graph of %d", strategy, len(f.Model.Graph.Nodes), len(text), len(encoded))
	}
}

// TestSlabOfTheFileIsWrong: whatever table a file carries, its steps have the same bits,
// and from the second on nothing is astray.
func TestSlabOfTheFileIsWrong(t *testing.T) {
	e := engine(t)
	f, other := asWritten(t, e, "full"), asWritten(t, e, "none")
	right, _ := f.Model.Metadata(runtime.SlabKey)
	graph, _ := f.Model.Metadata(PromiseKey)
	of := func(p *File, change func(*ortmodel.Request)) string {
		requests := p.Prediction.Trace.Requests()
		for i := range requests {
			change(&requests[i])
		}
		slab := ortmodel.HostSlab.Pack(requests)
		return runtime.SlabText(&slab, graph)
	}
	want, err := threeSteps(t, e, f.Model, 1)
	if err != nil {
		t.Fatal(err)
	}
	anew := ortmodel.HostSlab.Rough(f.Prediction.Trace.Requests()).Size // a file without a table, or with a wrong one
	for name, c := range map[string]struct{ text, why string }{
		"version":      {"7" + right[1:], "another version"},
		"cut off":      {right[:len(right)-40], "is cut off"},
		"other graph":  {strings.Replace(right, graph[:8], "00000000", 1), "of another graph"},
		"smaller slab": {strings.Replace(right, " ", " 1", 1), "larger than what lies in it"},
		"no text":      {"", "another version"},
		"another step": {of(other, func(*ortmodel.Request) {}), "not of this step"},
		"other sizes":  {of(f, func(r *ortmodel.Request) { r.Bytes += 64 }), "not of this step"},
		"never released": {of(f, func(r *ortmodel.Request) {
			if !r.Alloc {
				r.ID = -1
			}
		}), "bytes for"},
	} {
		m, err := f.Model.Clone()
		if err != nil {
			t.Fatal(err)
		}
		m.SetMetadata(runtime.SlabKey, c.text)
		got, err := threeSteps(t, e, m, 1)
		if err == nil || !strings.Contains(err.Error(), c.why) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, c.why)
		}
		for i := range got {
			if got[i].bits != want[i].bits || got[i].live != want[i].live {
				t.Errorf("%s, step %d: other bits, or %d bytes live for %d", name, i+1, got[i].live, want[i].live)
			}
		}
		if last := got[2]; last.astray != 0 || last.slab != anew {
			t.Errorf("%s: at last %d bytes astray, a slab of %d for %d", name, last.astray, last.slab, anew)
		}
	}
	edited, err := f.Model.Clone()
	if err != nil {
		t.Fatal(err)
	}
	edited.Graph.AddOutput(edited.Graph.Nodes[len(edited.Graph.Nodes)/2].Out(0))
	if _, err := threeSteps(t, e, edited, 1); err == nil || !strings.Contains(err.Error(), "of another graph") {
		t.Errorf("an edited graph: %v", err)
	}
}

// TestSlabInPlainPython: stock onnxruntime under Python, with the library of
// examples/python/slab, has a written file's steps where the file says, in hardly more
// than is live, with the bits that they have without; and these whatever else it is told.
func TestSlabInPlainPython(t *testing.T) {
	e, dir := engine(t), t.TempDir()
	python, err := pyort.Find(context.Background(), testLog{t})
	if err != nil {
		t.Skipf("no onnxruntime under Python: %v", err)
	}
	library, err := pyort.Counter(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := pyort.Slab()
	if err != nil {
		t.Fatal(err)
	}
	zoo := asWritten(t, e, "full")
	zooFile := filepath.Join(dir, "zoo.onnx")
	if err := zoo.Model.Save(zooFile); err != nil {
		t.Fatal(err)
	}
	update := planned(t, e, dir, "joint/gpt2_tiny_eager.step_adamw", "full")
	gradients := planned(t, e, dir, "joint/gpt2_tiny_eager.EMA", "full")
	for _, w := range []*written{update, gradients} {
		promise(t, w.file)
		if err := w.file.Model.Save(w.job.Model); err != nil {
			t.Fatal(err)
		}
	}
	type ran struct {
		Same                        bool
		Refused, Slab, Live, Astray int64
	}
	for _, c := range []struct {
		args    []string
		peak    int64
		updates bool
	}{
		{[]string{zooFile}, zoo.Peak, true},
		{[]string{update.job.Model, update.job.Feeds}, update.peak, true},
		{[]string{gradients.job.Model, gradients.job.Feeds}, gradients.peak, false},
	} {
		name := filepath.Base(c.args[0])
		out, err := python.Script(context.Background(), filepath.Join(folder, "check.py"), append([]string{library}, c.args...)...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got struct {
			Outputs, Different              int
			Table, Marked, Kept, Run, Again ran
			CutOff                          ran `json:"cut off"`
			AnotherStep                     ran `json:"another step"`
			AfterFailing                    struct {
				ran
				Failed int
			} `json:"after failing"`
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		if got.Outputs == 0 || c.updates != (got.Different > 1) {
			t.Errorf("%s: %d outputs, %d different steps", name, got.Outputs, got.Different)
		}
		for what, r := range map[string]ran{"table": got.Table, "marked": got.Marked, "kept": got.Kept, "run": got.Run, "again": got.Again,
			"cut off": got.CutOff, "another step": got.AnotherStep, "after failing": got.AfterFailing.ran} {
			if !r.Same {
				t.Errorf("%s, %s: other bits", name, what)
			}
			if (r.Refused != 0) != (what == "cut off") {
				t.Errorf("%s, %s: refused: %d", name, what, r.Refused)
			}
		}
		for what, r := range map[string]ran{"table": got.Table, "marked": got.Marked, "again": got.Again} {
			if r.Astray != 0 || r.Live != c.peak || r.Slab < c.peak/2 || r.Slab > c.peak*102/100 {
				t.Errorf("%s, %s: a slab of %d for %d bytes, predicted %d, and %d astray", name, what, r.Slab, r.Live, c.peak, r.Astray)
			}
		}
		if f := got.AfterFailing; f.Failed == 0 || f.Astray != 0 {
			t.Errorf("%s: %d steps failed, and %d bytes were astray in those after", name, f.Failed, f.Astray)
		}
		if got.AnotherStep.Astray == 0 || got.CutOff.Slab != 0 {
			t.Errorf("%s: nothing astray at another step's places, or a slab of %d without places", name, got.CutOff.Slab)
		}
		t.Logf("%s: slab %d of live %d: %.3f; outputs kept: %d astray, unbound: %d", name, got.Table.Slab, got.Table.Live,
			float64(got.Table.Slab)/float64(got.Table.Live), got.Kept.Astray, got.Run.Astray)
	}
}
