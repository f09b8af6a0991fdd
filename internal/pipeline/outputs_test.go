package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestOutputs: however next values leave a step, each strategy's file of each model with
// each optimizer reaches the peak that is predicted for that way, to the byte, returns the
// bits of the plain graph, and takes no more than that does. REMAT_SWEEP=1 runs every
// optimizer on every model, else each model has AdamW and gpt2-tiny all.
func TestOutputs(t *testing.T) {
	e := engine(t)
	small := func(c *models.Config) {
		smallZoo(c)
		c.Layers = min(c.Layers, 2)
	}
	for _, row := range models.Rows {
		if strings.HasPrefix(row.Name, "gpt2-") && row.Name != "gpt2-tiny" {
			continue // at this size all are gpt2
		}
		for _, kind := range []optim.Kind{optim.None, optim.SGD, optim.AdamW, optim.Adafactor} {
			if kind != optim.AdamW && (testing.Short() || row.Name != "gpt2-tiny" && os.Getenv("REMAT_SWEEP") == "") {
				continue
			}
			t.Run(fmt.Sprintf("%s by %s", row.Name, kind), func(t *testing.T) {
				m := zooStep(t, row.Name, kind, small)
				everyWay(t, e, m, step.Returned)
				if row.Name == "gpt2-tiny" { // the other tests bind
					everyWay(t, e, m, step.Bound)
				}
			})
		}
	}
}

func everyWay(t *testing.T, e *runtime.Engine, m *onnx.Model, way step.Outputs) {
	t.Helper()
	p, err := NewPlanner(e, m, Options{OptLevel: 1, Threads: 2, Outputs: way})
	if err != nil {
		t.Fatal(err)
	}
	plain := executeBy(t, e, m, way, p.base().Analysis.Roles)
	if plain.peaks[0] != p.Before.LivePeak {
		t.Errorf("%s, as given: live peak %d, predicted %d", way, plain.peaks[0], p.Before.LivePeak)
	}
	for _, strategy := range []string{"none", "sqrt", "every=2", "full", "selective", "optimal", "least"} {
		r, err := p.Plan(strategy, 0)
		if errors.Is(err, planner.ErrNoLayers) {
			continue
		}
		if err != nil {
			t.Fatal(fmt.Errorf("%s: %w", strategy, err))
		}
		got := executeBy(t, e, r.Model, way, r.Roles())
		for run, peak := range got.peaks {
			if peak != r.Peak {
				t.Errorf("%s, %s, run %d: live peak %d, predicted %d", way, strategy, run+1, peak, r.Peak)
			}
		}
		if r.Peak > p.Before.LivePeak+shapesBytes {
			t.Errorf("%s, %s: live peak %d, more than the plain graph's %d", way, strategy, r.Peak, p.Before.LivePeak)
		}
		for name, want := range plain.outputs {
			if r.Variant.Divided == (Divided{}) && string(want) != string(got.outputs[name]) {
				t.Errorf("%s, %s: output %s has other bits than the plain graph's", way, strategy, name)
			}
		}
	}
}

func executeBy(t *testing.T, e *runtime.Engine, m *onnx.Model, way step.Outputs, roles step.Roles) result {
	t.Helper()
	s, err := e.Open(m, runtime.Options{Level: 1, Threads: 2, Provider: ort.CPU, Seed: 7, LR: 1e-3, Roles: &roles, Outputs: way})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return steps(t, s, 2, func(int, int64) {})
}

// bindsNothing: a file that was written for bound rows returns the same bits in the other
// ways, with the peak that is predicted for each, which is higher.
func bindsNothing(t *testing.T, e *runtime.Engine, f *File) {
	t.Helper()
	want := executeBy(t, e, f.Model, step.Rows, f.Roles())
	for _, way := range []step.Outputs{step.Bound, step.Returned} {
		got := executeBy(t, e, f.Model, way, f.Roles())
		otherBits(t, string(way), want, got)
		q, err := Predict(e, f.Model, f.Roles(), Options{OptLevel: 1, Threads: 2, Outputs: way}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.peaks[0] != q.LivePeak || q.LivePeak <= f.Peak {
			t.Errorf("%s: live peak %d, predicted %d, by rows %d", way, got.peaks[0], q.LivePeak, f.Peak)
		}
	}
}

// otherBits reports the outputs whose bits are not those wanted.
func otherBits(t *testing.T, what string, want, got result) {
	t.Helper()
	for name, x := range want.outputs {
		if string(x) != string(got.outputs[name]) {
			t.Errorf("%s: output %s has other bits", what, name)
		}
	}
}

// leastByWay plans the least peak with outputs bound whole and by rows; by rows it is less.
func leastByWay(t *testing.T, e *runtime.Engine, m *onnx.Model) map[step.Outputs]*File {
	t.Helper()
	files := map[step.Outputs]*File{}
	for _, way := range []step.Outputs{step.Bound, step.Rows} {
		files[way] = plannedAs(t, e, m, Options{OptLevel: 1, Threads: 2, Outputs: way}, func(p *Planner) (*File, error) { return p.Plan("least", 0) })
	}
	if files[step.Rows].Peak >= files[step.Bound].Peak {
		t.Errorf("least peaks %d by rows, %d whole", files[step.Rows].Peak, files[step.Bound].Peak)
	}
	return files
}

// TestOutputsRecorded: a file says for which way it was written, and is planned, predicted
// and run by that unless another is asked for.
func TestOutputsRecorded(t *testing.T) {
	e := engine(t)
	path := filepath.Join(t.TempDir(), "step.onnx")
	weighty := func(c *models.Config) { c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 64, 4, 1009, 8, 1 }
	if err := zooStep(t, "gpt2-tiny", optim.AdamW, weighty).Save(path); err != nil {
		t.Fatal(err)
	}
	source, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	given, err := source.Sized(nil)
	if err != nil {
		t.Fatal(err)
	}
	peaks := map[step.Outputs]int64{}
	for _, way := range []step.Outputs{step.Bound, step.Returned} {
		p, err := NewPlanner(e, given, Options{OptLevel: 1, Threads: 2, Outputs: way})
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Plan("none", 0)
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(filepath.Dir(path), string(way)+".onnx")
		if err := f.Save(source, out, p.Document(f, Budget{})); err != nil {
			t.Fatal(err)
		}
		m, err := Open(out, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if text, _ := m.Metadata(step.OutputsKey); text != string(way) {
			t.Errorf("the file for %s says %q", way, text)
		}
		q, err := Predict(e, m, f.Roles(), Options{OptLevel: 1, Threads: 2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := executeBy(t, e, m, "", f.Roles())
		if q.LivePeak != f.Peak || got.peaks[1] != f.Peak {
			t.Errorf("%s: promised %d, predicted %d, measured %d", way, f.Peak, q.LivePeak, got.peaks[1])
		}
		peaks[way] = f.Peak
	}
	if peaks[step.Returned] <= peaks[step.Bound] {
		t.Errorf("returned takes %d bytes, bound %d: the ways do not differ", peaks[step.Returned], peaks[step.Bound])
	}
}
