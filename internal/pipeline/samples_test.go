package pipeline

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// dimsOf are the numbers for the samples' free dimensions, as their feeds have
// them.
func dimsOf(m *onnx.Model, feeds map[string]runtime.Tensor) map[string]int64 {
	dims := map[string]int64{}
	for _, v := range m.Graph.Inputs {
		t, ok := feeds["in:"+v.Name]
		if !ok || len(t.Shape) != len(v.Type.Shape) {
			continue
		}
		for i, d := range v.Type.Shape {
			if s := d.Symbols(); len(s) == 1 && d.String() == s[0] {
				dims[s[0]] = t.Shape[i]
			}
		}
	}
	return dims
}

// derived is the training graph of an exported forward model, with values for
// its inputs and its free dimensions.
func derived(t *testing.T, path string) (*onnx.Model, map[string]runtime.Tensor, map[string]int64) {
	t.Helper()
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	feeds, err := runtime.ReadNPZ(strings.TrimSuffix(path, ".onnx") + ".npz")
	if err != nil {
		t.Fatal(err)
	}
	dims := dimsOf(m, feeds)
	res, err := grad.Differentiate(m, grad.Options{Dims: dims})
	if err != nil {
		t.Fatal(err)
	}
	feed(t, feeds, res)
	m.SetMetadata(VersionKey, "test")
	return m, feeds, dims
}

// feed adds the values that a derived graph begins with.
func feed(t *testing.T, feeds map[string]runtime.Tensor, res *grad.Result) {
	t.Helper()
	for name, x := range res.Values() {
		data, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		feeds[name] = runtime.Tensor{Type: x.DType(), Shape: x.Dims(), Data: data}
	}
}

// TestEverySample derives the training graph of each exported forward model
// and takes it through every strategy: bits, and bytes, as promised.
func TestEverySample(t *testing.T) {
	e := engine(t)
	paths, err := filepath.Glob(sample("*.onnx"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d samples: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, feeds, dims := derived(t, path)
			everyStrategy(t, e, m, Options{Dims: dims}, feeds)
		})
	}
}

// TestEverySampleInHalf: with casts, and half nodes that compute in float32 between casts,
// a step takes what is predicted: ONNX Runtime moves a Transpose behind a cast, and knows
// the extents of what it makes so.
func TestEverySampleInHalf(t *testing.T) {
	e := engine(t)
	paths, err := filepath.Glob(sample("*.onnx"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d samples: %v", len(paths), err)
	}
	for _, path := range paths {
		if testing.Short() && !strings.Contains(path, "resnet") {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, feeds, dims := derived(t, path)
			o := Options{Dims: dims, Provider: ort.CPU, OptLevel: 1, Threads: 2, Precision: &precision.Options{To: onnx.BFloat16, Provider: "cpu", Emulate: true}}
			p, err := NewPlanner(e, m, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, strategy := range []string{"none", "optimal"} {
				f, err := p.Plan(strategy, 0)
				if err != nil {
					t.Fatal(err)
				}
				if !f.Prediction.Exact() {
					t.Errorf("%s: %s", strategy, f.Prediction.Unknown[0])
				}
				roles := runtime.Roles{Loss: f.Roles().Loss, Grad: f.Roles().Grad, New: f.Roles().New}
				for i, peak := range execute(t, e, f.Model, 1, 2, feeds, roles).peaks {
					if peak != f.Peak {
						t.Errorf("%s, run %d: live peak %d, predicted %d", strategy, i+1, peak, f.Peak)
					}
				}
			}
		})
	}
}

// TestEveryZooModel does the same with the zoo at small sizes.
func TestEveryZooModel(t *testing.T) {
	e := engine(t)
	for _, row := range models.Rows {
		t.Run(row.Name, func(t *testing.T) {
			m := trainingGraph(t, row.Name, func(c *models.Config) {
				c.Layers = min(c.Layers, 4)
				c.Hidden = 32
				c.Batch = 4
				if c.Heads > 0 {
					c.Heads = 4
				}
				if c.Vocab > 0 {
					c.Vocab = 101
				}
				if c.Seq > 0 {
					c.Seq = 24
				}
			})
			everyStrategy(t, e, m, Options{}, nil)
		})
	}
}

// everyStrategy compares each strategy with the plain graph at each level.
func everyStrategy(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, feeds map[string]runtime.Tensor) {
	t.Helper()
	levels := []int{0, 1, 99}
	if testing.Short() {
		levels = levels[1:2]
	}
	for _, level := range levels {
		o.Provider, o.OptLevel, o.Threads = ort.CPU, level, 2
		p, err := NewPlanner(e, m, o)
		if err != nil {
			t.Fatal(fmt.Errorf("level %d: %w", level, err))
		}
		compareStrategies(t, e, p, level, feeds)
	}
}
