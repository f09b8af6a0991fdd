package runtime

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/ort"
)

const samples = "../testdata/models"

// sampleModels lists the sample models that stock ONNX Runtime runs and whose
// expected outputs are known.
func sampleModels(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.onnx", "joint/*.onnx"} {
		found, err := filepath.Glob(filepath.Join(samples, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if !strings.Contains(f, "gpt2_small") {
				out = append(out, f)
			}
		}
	}
	if len(out) < 15 {
		t.Fatalf("only %d samples", len(out))
	}
	return out
}

func readSample(t *testing.T, model string) map[string]Tensor {
	t.Helper()
	feeds, err := ReadNPZ(strings.TrimSuffix(model, ".onnx") + ".npz")
	if err != nil {
		t.Fatal(err)
	}
	return feeds
}

// TestSamples runs every sample at every level on one thread, and compares the
// outputs with PyTorch's and the trace with the peak.
func TestSamples(t *testing.T) {
	for _, path := range sampleModels(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".onnx"), func(t *testing.T) {
			feeds := readSample(t, path)
			for _, level := range []int{0, 1, 99} {
				s, err := testEngine.OpenFile(path, Options{Level: level, Threads: 1, Provider: ort.CPU, Feeds: feeds, Trace: true})
				if err != nil {
					t.Fatal(err)
				}
				step, err := s.Step(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				checkOutputs(t, step, feeds)
				checkTrace(t, step, s.Memory())
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func checkOutputs(t *testing.T, step *Step, feeds map[string]Tensor) {
	t.Helper()
	compared := 0
	for _, o := range step.Outputs {
		want, ok := feeds["out:"+o.Name]
		if !ok {
			continue
		}
		compared++
		if o.Err != nil || o.Tensor.String() != want.String() {
			t.Errorf("output %s: %v, %v, want %v", o.Name, o.Tensor, o.Err, want)
			continue
		}
		if d := maxDifference(t, o.Tensor, want); d > 2e-4 {
			t.Errorf("output %s differs by %g", o.Name, d)
		}
	}
	if compared == 0 {
		t.Error("no output was compared")
	}
}

// maxDifference is the largest difference, relative where values exceed 1.
func maxDifference(t *testing.T, a, b Tensor) float64 {
	t.Helper()
	x, err := a.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	for i := range x {
		worst = max(worst, math.Abs(x[i]-y[i])/max(1, math.Abs(y[i])))
	}
	return worst
}

// checkTrace adds the trace up: its peak is the measured one, and what is left
// at the end is what the step returns.
func checkTrace(t *testing.T, step *Step, m Memory) {
	t.Helper()
	var live, peak int64
	for _, e := range step.Trace {
		if e.Alloc {
			live += e.Bytes
		} else {
			live -= e.Bytes
		}
		peak = max(peak, live)
	}
	if peak != step.LivePeakBytes {
		t.Errorf("trace peaks at %d, the counter at %d", peak, step.LivePeakBytes)
	}
	if live != m.OutputBytes {
		t.Errorf("%d bytes are left after the step, it returned %d", live, m.OutputBytes)
	}
	if m.TotalPeakBytes != m.ParameterBytes+m.StateBytes+m.FeedBytes+m.SessionBytes+step.LivePeakBytes {
		t.Errorf("total does not add up: %+v", m)
	}
}
