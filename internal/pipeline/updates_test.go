package pipeline

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// updatesApart are the optimizers whose updates a bundle for the web may hold outside the
// graph: all but Muon.
func updatesApart(t *testing.T) (list []optim.Kind) {
	for _, kind := range optim.Kinds() {
		if web(t).CanUpdateApart(kind) == nil {
			list = append(list, kind)
		}
	}
	if len(list) != len(optim.Kinds())-1 {
		t.Fatalf("updates outside the graph by %v only", list)
	}
	return list
}

func web(t *testing.T) *Target {
	t.Helper()
	target, err := FindTarget("web")
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// TestUpdateGraphs: the update graphs of a bundle compute what each optimizer computes in the
// graph, over steps, and each takes what the manifest predicts, to the byte.
func TestUpdateGraphs(t *testing.T) {
	small := func(c *models.Config) {
		smallZoo(c)
		c.Layers, c.Vocab, c.Seq, c.Hidden, c.Batch = 1, 61, 6, 16, 2
	}
	for _, kind := range updatesApart(t) {
		t.Run(string(kind), func(t *testing.T) {
			dir, updates := updatesBundle(t, kind, small)
			models := map[string]*onnx.Model{} // by parameter
			for _, u := range updates {
				m := typed(t, filepath.Join(dir, u.Graph))
				roles, _, err := step.RolesOf(m, nil)
				if err != nil {
					t.Fatal(err)
				}
				if u.Predicted == nil {
					t.Fatalf("%s is not predicted", u.Graph)
				}
				for run, peak := range executeBy(t, engine(t), m, step.Returned, roles).peaks {
					if peak != u.Predicted.LivePeak {
						t.Errorf("%s, of %v, run %d: live peak %d, predicted %d", u.Graph, u.Inputs[0].Shape, run+1, peak, u.Predicted.LivePeak)
					}
				}
				for _, p := range u.Parameters {
					models[p] = typed(t, filepath.Join(dir, u.Graph))
				}
			}
			sameUpdates(t, zooStep(t, "gpt2-tiny", kind, small), models)
		})
	}
}

// updatesBundle writes a bundle with updates by an optimizer, and reads what its manifest
// says of them.
func updatesBundle(t *testing.T, kind optim.Kind, change func(*models.Config)) (dir string, updates []ManifestUpdate) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gradients.onnx")
	if err := zooStep(t, "gpt2-tiny", optim.None, change).Save(path); err != nil {
		t.Fatal(err)
	}
	source, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	given, err := source.Sized(nil)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{OptLevel: 1, Threads: 2}
	if err := web(t).Ask(&o); err != nil {
		t.Fatal(err)
	}
	p, err := NewPlanner(engine(t), given, o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Plan("none", 0)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "bundle")
	if err := f.Bundle(engine(t), source, dir, web(t), p.Document(f, Budget{}), kind); err != nil {
		t.Fatal(err)
	}
	var m Manifest
	text, err := os.ReadFile(filepath.Join(dir, ManifestFile))
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil || len(m.Updates) == 0 {
		t.Fatal(err, len(m.Updates))
	}
	return dir, m.Updates
}

func typed(t *testing.T, path string) *onnx.Model {
	t.Helper()
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// near is how far a next value may be from the one in the graph, whose numbers of a step are
// in float64.
const near = 1e-6

// sameUpdates runs steps with the optimizer in the graph, and gives the graphs of updates
// the gradients of the same parameters: what they make of state of their own is the same.
func sameUpdates(t *testing.T, within *onnx.Model, apart map[string]*onnx.Model) {
	t.Helper()
	roles, _, err := step.RolesOf(within, nil)
	if err != nil {
		t.Fatal(err)
	}
	for p := range apart { // so that gradients are told
		within.Graph.AddOutput(within.Graph.Value(p + step.GradSuffix))
	}
	feeds := ortest.RandomInputs(within)
	for _, v := range within.Graph.Inputs {
		if roles.New[v.Name] != "" && apart[v.Name] == nil {
			feeds[v.Name] = tensor(v.Type, nil)
		}
	}
	state := map[string]*onnx.Tensor{} // by parameter and input
	moved := 0.0
	for n := int64(1); n <= 3; n++ {
		feeds["lr"], feeds["step"] = onnx.FloatTensor(onnx.Float32, []float64{1e-3}), onnx.Int64Tensor([]int64{n})
		out := ortest.Run(t, within, 1, feeds)
		for p, m := range apart {
			own := map[string]*onnx.Tensor{}
			for _, v := range m.Graph.Inputs {
				switch name := v.Name; {
				case name == updated:
					own[name] = feeds[p]
				case name == updated+step.GradSuffix:
					own[name] = tensor(v.Type, out[p+step.GradSuffix])
				case name == "lr" || name == "step":
					own[name] = feeds[name]
				case state[p+name] != nil:
					own[name] = state[p+name]
				default:
					own[name] = tensor(v.Type, nil)
				}
			}
			next := ortest.Run(t, m, 1, own)
			was, err := feeds[p].Float64s()
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range next[updated+step.NewSuffix] {
				moved = max(moved, math.Abs(x-was[i]))
				if want := out[p+step.NewSuffix][i]; math.Abs(x-want) > near*max(1, math.Abs(want)) || math.IsNaN(x) {
					t.Fatalf("step %d: element %d of %s becomes %v, in the graph %v", n, i, p, x, want)
				}
			}
			for _, v := range m.Graph.Inputs {
				if values, ok := next[v.Name+step.NewSuffix]; ok && v.Name != updated {
					state[p+v.Name] = tensor(v.Type, values)
				}
			}
		}
		for _, v := range within.Graph.Inputs {
			if next := roles.New[v.Name]; next != "" {
				feeds[v.Name] = tensor(v.Type, out[next])
			}
		}
	}
	if moved < 100*near {
		t.Errorf("no parameter moved by more than %v", moved)
	}
}

// tensor is a tensor of a type with those values, or zeros.
func tensor(typ onnx.Type, values []float64) *onnx.Tensor {
	var dims []int64
	for _, d := range typ.Shape {
		n, _ := d.Int()
		dims = append(dims, n)
	}
	if values == nil {
		n, _ := typ.Shape.Elements().Int()
		values = slices.Repeat([]float64{0}, int(n))
	}
	if typ.DType.Bits() == 8 { // codes
		data := make([]byte, len(values))
		for i, x := range values {
			data[i] = byte(int(x))
		}
		return onnx.NewTensor(typ.DType, dims, data)
	}
	return onnx.FloatTensor(typ.DType, values, dims...)
}
