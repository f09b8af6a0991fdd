package pipeline

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

func engine(t testing.TB) *runtime.Engine {
	t.Helper()
	e, err := runtime.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func sample(name string) string { return filepath.Join("..", "..", "testdata", "models", name) }

// result is what a graph gave in its first run, and what runs took.
type result struct {
	outputs map[string][]byte
	peaks   []int64
}

func execute(t *testing.T, e *runtime.Engine, m *onnx.Model, level, runs int, feeds map[string]runtime.Tensor, roles runtime.Roles) result {
	t.Helper()
	s, err := e.Open(m, runtime.Options{Level: level, Threads: 2, Provider: ort.CPU, Feeds: feeds, Seed: 7, Roles: &roles})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return steps(t, s, runs, func(int, int64) {})
}

// steps runs an open session, counting from 1.
func steps(t *testing.T, s *runtime.Session, runs int, each func(run int, peak int64)) result {
	t.Helper()
	r := result{outputs: map[string][]byte{}}
	for i := 1; i <= runs; i++ {
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		r.peaks = append(r.peaks, step.LivePeakBytes)
		each(i, step.LivePeakBytes)
		if i == 1 {
			for _, o := range step.Outputs {
				r.outputs[o.Name] = bytes.Clone(o.Data)
			}
		}
	}
	return r
}

// sliced is how far a loss in slices may be from the whole one's values.
const sliced = 1e-5

// TestForeignJointGraphs takes training graphs of foreign origin through the
// whole way: each strategy's file reaches the predicted peak to the byte, in
// the first run and in the fifth, at every optimization level, and returns the
// bits of the plain graph after the same normalization.
func TestForeignJointGraphs(t *testing.T) {
	e := engine(t)
	for _, name := range []string{"mlp20.EMA", "gpt2_tiny_eager.EMA", "gpt2_tiny_eager.step_adamw"} {
		t.Run(name, func(t *testing.T) {
			m, err := Open(sample("joint/"+name+".onnx"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			feeds, err := runtime.ReadNPZ(sample("joint/" + name + ".npz"))
			if err != nil {
				t.Fatal(err)
			}
			for _, level := range []int{0, 1, 99} {
				o := Options{Provider: ort.CPU, OptLevel: level, Threads: 2}
				// A first step of AdamW is as long for a gradient of rounding as for
				// any other: slices of the loss show as whole steps there.
				o.AsIs = strings.HasSuffix(name, "adamw")
				p, err := NewPlanner(e, m, o)
				if err != nil {
					t.Fatal(err)
				}
				compareStrategies(t, e, p, level, feeds)
			}
		})
	}
}

// compareStrategies compares each strategy with the plain graph: to the bit,
// and within sliced of a tensor's largest magnitude where the loss is computed
// in slices.
func compareStrategies(t *testing.T, e *runtime.Engine, p *Planner, level int, feeds map[string]runtime.Tensor) {
	var plain result
	for _, s := range []string{"none", "sqrt", "full", "every=3", "segments=2", "selective", "optimal"} {
		t.Run(fmt.Sprintf("%s at %d", s, level), func(t *testing.T) {
			r, err := p.Plan(s, 0)
			if err != nil {
				t.Fatal(err)
			}
			roles := runtime.Roles{Loss: r.Roles().Loss, Grad: r.Roles().Grad, New: r.Roles().New}
			got := execute(t, e, r.Model, level, 5, feeds, roles)
			for i, peak := range got.peaks {
				if peak != r.Peak {
					t.Errorf("run %d: live peak %d, predicted %d", i+1, peak, r.Peak)
				}
			}
			if s == "none" {
				plain = got
				return
			}
			for name, want := range plain.outputs {
				diff := apart(onnx.Float32, want, got.outputs[name])
				if diff > sliced || diff > 0 && r.Variant.Divided.Loss == 0 {
					t.Errorf("output %s is not the plain graph's, %.2g apart", name, diff)
				}
			}
		})
	}
}
