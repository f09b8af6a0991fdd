package train

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/runtime"
)

const resumeSteps = 14

// trainTo trains a graph in a folder up to the last step, or until the watcher ends it
// after a step, from the folder's state if it has one.
func (m mode) trainTo(t *testing.T, src *pipeline.Source, dir string, end int64) *recorder {
	t.Helper()
	folder, err := OpenFolder(dir, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	from, o := Position{}, runtime.Options{}
	if folder.Holds() {
		state, skipped, err := folder.Newest()
		if err != nil || len(skipped) > 0 {
			t.Fatal(err, skipped)
		}
		defer state.Close()
		from, o.Own, o.From = state.Position, state.Values(), state.Position.Progress()
	}
	s := m.open(t, src, o)
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &recorder{end: end, cancel: cancel}
	job := &Job{
		Session: s, Accumulate: Accumulation(src.Model.Graph), Batches: tinyData, Folder: folder, Watcher: w, From: from,
		Schedule: Schedule{Kind: "cosine", LR: 3e-3, Warmup: 3, Steps: resumeSteps},
	}
	if _, err = job.Run(ctx); end == 0 && err != nil || end > 0 && !errors.Is(err, ErrInterrupted) {
		t.Fatalf("ended with %v", err)
	}
	return w
}

// TestResumeIsExact: a training that is interrupted twice ends in the state, byte for
// byte, of one that is not, and has told the same of each step.
func TestResumeIsExact(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			src := m.source(t, nil)
			whole, parts := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "parts")
			want := m.trainTo(t, src, whole, 0).steps
			got := m.trainTo(t, src, parts, 5).steps
			got = append(got, m.trainTo(t, src, parts, 6).steps...)
			got = append(got, m.trainTo(t, src, parts, 0).steps...)
			if len(got) != len(want) {
				t.Fatalf("%d steps told, want %d", len(got), len(want))
			}
			skipped := 0
			for i := range want {
				a, b := want[i], got[i]
				for _, r := range []*Record{&a, &b} {
					r.Seconds, r.RunSeconds, r.RSSBytes, r.ReservedBytes = 0, 0, 0, 0
					if math.IsNaN(r.GradientNorm) {
						r.GradientNorm = -1
					}
				}
				if a != b {
					t.Errorf("step %d:\n%+v, want\n%+v", i+1, b, a)
				}
				if a.Skipped {
					skipped++
					if a.GradientNorm != -1 {
						t.Errorf("step %d is skipped, and its norm is %g", i+1, a.GradientNorm)
					}
				}
			}
			if m.scale > 0 && (skipped == 0 || skipped == len(want) || want[len(want)-1].LossScale < want[skipped].LossScale) {
				t.Errorf("%d steps skipped: the mode does not test the loss scale", skipped)
			}
			if a, b := readState(t, whole), readState(t, parts); !bytes.Equal(a, b) {
				t.Errorf("the states differ at byte %d of %d", firstDifference(a, b), len(a))
			}
		})
	}
}

func readState(t *testing.T, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(StatePath(dir))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
