package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/pyort"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/lower"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/predict"
)

// A written is a file with its feeds, to be run in Python and here.
type written struct {
	name  string
	job   pyort.Job
	model *onnx.Model
	feeds map[string]runtime.Tensor
	dims  map[string]int64
	roles runtime.Roles
	peak  int64 // predicted, where it was planned
	arena predict.Arena
	file  *File // as planned, if it was
}

// write saves a graph and, in an archive beside it, a value for each input.
func write(t *testing.T, dir, name string, m *onnx.Model, feeds map[string]runtime.Tensor) *written {
	t.Helper()
	stem := filepath.Join(dir, strings.NewReplacer("/", "_", "=", "").Replace(name))
	w := &written{name: name, model: m, feeds: map[string]runtime.Tensor{}}
	w.job = pyort.Job{Model: stem + ".onnx", Feeds: stem + ".feeds.npz", Out: stem + ".out.npz", Runs: 1}
	for _, v := range m.Graph.Inputs {
		for _, key := range []string{v.Name, "in:" + v.Name, "param:" + v.Name} {
			if f, ok := feeds[key]; ok {
				w.feeds[v.Name] = f
				break
			}
		}
		if _, ok := w.feeds[v.Name]; !ok && v.Init == nil {
			t.Fatalf("%s: no value for input %s", name, v.Name)
		}
	}
	if err := m.Save(w.job.Model); err != nil {
		t.Fatal(err)
	}
	if err := runtime.WriteNPZ(w.job.Feeds, w.feeds); err != nil {
		t.Fatal(err)
	}
	return w
}

// runPython runs files in one process of Python's.
func runPython(t *testing.T, counter string, files []*written) []pyort.Answer {
	t.Helper()
	python, err := pyort.Find(context.Background(), testLog{t})
	if err != nil {
		t.Fatal(err)
	}
	var jobs []pyort.Job
	for _, w := range files {
		jobs = append(jobs, w.job)
	}
	answers, err := python.Run(context.Background(), counter, jobs)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

// sameValues compares what Python wrote with a run here, of the file, at the
// level that is onnxruntime's default.
func sameValues(t *testing.T, e *runtime.Engine, w *written) {
	t.Helper()
	got, err := runtime.ReadNPZ(w.job.Out)
	if err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Load(w.job.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s, err := e.Open(m, runtime.Options{Level: 99, Provider: ort.CPU, Feed: w.feeds, Dims: w.dims, Roles: &w.roles})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(step.Outputs) == 0 || len(step.Outputs) != len(got) {
		t.Fatalf("%d outputs, Python has %d", len(step.Outputs), len(got))
	}
	for _, o := range step.Outputs {
		p, ok := got[o.Name]
		if !ok || o.Err != nil || p.String() != o.Tensor.String() {
			t.Errorf("output %s: %v in Python, %v here (%v)", o.Name, p, o.Tensor, o.Err)
			continue
		}
		if !bytes.Equal(p.Data, o.Data) {
			t.Errorf("output %s is not Python's to the bit", o.Name)
		}
	}
}

// TestPlainPython runs the training graph of every sample in plain Python with
// default options, and gets the values that it gets here.
func TestPlainPython(t *testing.T) {
	e, dir := engine(t), t.TempDir()
	paths, err := filepath.Glob(sample("*.onnx"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d samples: %v", len(paths), err)
	}
	var files []*written
	for _, path := range paths {
		m, feeds, dims := derived(t, path)
		w := write(t, dir, filepath.Base(path), m, feeds)
		w.dims = dims
		files = append(files, w)
	}
	files = append(files, lowered(t, dir))
	for _, w := range files {
		w.job.MemPattern = true
	}
	runPython(t, "", files)
	for _, w := range files {
		t.Run(w.name, func(t *testing.T) { sameValues(t, e, w) })
	}
}

// lowered is the graph of ONNX Runtime's own training package; its parameters
// are initializers of the forward model beside it.
func lowered(t *testing.T, dir string) *written {
	t.Helper()
	const stem = "ort_training/gpt2_tiny_mask.ts_op17"
	m, err := onnx.Load(sample(stem + ".onnx"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if _, err := lower.Model(m); err != nil {
		t.Fatal(err)
	}
	feeds, err := runtime.ReadNPZ(sample(stem + ".npz"))
	if err != nil {
		t.Fatal(err)
	}
	forward, err := onnx.Load(sample("gpt2_tiny_mask.ts.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	defer forward.Close()
	for _, v := range forward.Graph.Initializers {
		data, err := v.Init.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		feeds[v.Name] = runtime.Tensor{Type: v.Init.DType(), Shape: v.Init.Dims(), Data: bytes.Clone(data)}
	}
	return write(t, dir, "lowered", m, feeds)
}

// TestPeakInPlainPython counts what rewritten files allocate in plain Python,
// with default options except for the memory pattern: it is what was predicted.
// Under the arena that the file recommends it reserves what was predicted.
func TestPeakInPlainPython(t *testing.T) {
	e, dir := engine(t), t.TempDir()
	var files []*written
	for _, c := range []struct{ name, strategy string }{
		{"joint/mlp20.EMA", "sqrt"},
		{"joint/gpt2_tiny_eager.EMA", "none"},
		{"joint/gpt2_tiny_eager.EMA", "full"},
		{"joint/gpt2_tiny_eager.step_adamw", "full"},
		{"gpt2_tiny.dyn", "full"},
		{"gpt2_tiny_mask.ts_dynaxes", "segments=2"},
		{"encoder_postln.dyn", "selective"},
		{"resnet18_like.ts", "every=3"},
		{"llama_tiny.dyn", "full"},
	} {
		files = append(files, planned(t, e, dir, c.name, c.strategy))
	}
	counter, err := pyort.Counter(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	counted := runPython(t, counter, files)
	for _, w := range files {
		// What is predicted may be taken; where it is not enough, the run fails.
		w.job.Arena = map[string]int64{"max_mem": w.arena.Reserved}
		setup, err := json.Marshal(w.arena.Setup)
		if err == nil {
			err = json.Unmarshal(setup, &w.job.Arena)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	arena := runPython(t, "", files)
	for i, w := range files {
		t.Run(w.name, func(t *testing.T) {
			sameValues(t, e, w)
			for run, peak := range counted[i].Peaks {
				if peak != w.peak {
					t.Errorf("run %d: %d bytes counted in Python, predicted %d", run+1, peak, w.peak)
				}
			}
			if len(counted[i].Peaks) != w.job.Runs {
				t.Errorf("%d runs counted, want %d", len(counted[i].Peaks), w.job.Runs)
			}
			if got := arena[i].Reserved; got != w.arena.Reserved {
				t.Errorf("arena %+v: %d bytes reserved in Python, predicted %d", w.arena.Setup, got, w.arena.Reserved)
			}
			t.Logf("counted %d, predicted %d; reserved %d, predicted %d; the process so far: %d",
				counted[i].Peaks[0], w.peak, arena[i].Reserved, w.arena.Reserved, arena[i].ProcessPeak)
		})
	}
}

// planned writes the file that a strategy makes of a sample, for Python's
// defaults: level 99, a thread for each core.
func planned(t *testing.T, e *runtime.Engine, dir, name, strategy string) *written {
	t.Helper()
	// The scratch of a convolution depends on the number of threads, which the
	// file's metadata says too.
	o := Options{Provider: ort.CPU, OptLevel: 99, Threads: 2}
	var m *onnx.Model
	var feeds map[string]runtime.Tensor
	var err error
	if strings.HasPrefix(name, "joint/") {
		if m, err = Open(sample(name+".onnx"), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		if feeds, err = runtime.ReadNPZ(sample(name + ".npz")); err != nil {
			t.Fatal(err)
		}
	} else {
		m, feeds, o.Dims = derived(t, sample(name+".onnx"))
	}
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Plan(strategy, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := write(t, dir, fmt.Sprintf("%s %s", name, strategy), r.Model, feeds)
	w.dims, w.peak, w.job.Runs, w.job.Threads = o.Dims, r.Peak, 3, o.Threads
	w.arena, w.file = r.Prediction.Arena(), r
	w.roles = runtime.Roles{Loss: r.Roles().Loss, Grad: r.Roles().Grad, New: r.Roles().New}
	w.job.Bind = map[string]string{}
	inPlace := map[string]bool{} // at this level
	for i, v := range r.Prediction.Graph.Values {
		inPlace[r.Prediction.Values[i].Name] = v.Kind == ortmodel.Bound
	}
	for in, out := range w.roles.New {
		if inPlace[out] {
			w.job.Bind[out] = in
		}
	}
	return w
}
