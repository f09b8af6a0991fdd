package rewrite_test

// Passes on text graphs: each archive under testdata holds a graph, the name of
// the pass, and the graph that is expected; -update writes it. The result is
// also run against the original in ONNX Runtime.

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/predict"
)

var update = flag.Bool("update", false, "write the results as the expected ones")

// passes are those that tests call by name.
var passes = map[string]func(*onnx.Model, *infer.Result) error{
	"scatter": func(m *onnx.Model, _ *infer.Result) error {
		if rewrite.ScatterInto(m.Graph) == 0 {
			return errors.New("nothing to do")
		}
		return nil
	},
	"unfold": func(m *onnx.Model, _ *infer.Result) error {
		n, err := rewrite.Unfold(m.Graph)
		if err == nil && n == 0 {
			err = errors.New("nothing to do")
		}
		return err
	},
	"hold once": func(m *onnx.Model, _ *infer.Result) error {
		r, err := rewrite.HoldOnce(m.Graph, rewrite.Copies{
			Bytes:   predict.Packed,
			Leave:   func(*onnx.Value) string { return "" },
			Updated: func(v *onnx.Value) bool { return v.Name == "t" },
		})
		if err == nil && r.Applied == 0 {
			err = errors.New("nothing to do")
		}
		return err
	},
	"strip": func(m *onnx.Model, _ *infer.Result) error {
		if control.Lift(m.Graph) == 0 {
			return errors.New("nothing to do")
		}
		return nil
	},
	"recompute": func(m *onnx.Model, _ *infer.Result) error { return recompute(m, false) },
	"erase":     func(m *onnx.Model, _ *infer.Result) error { return recompute(m, true) },
}

// recompute keeps hardly anything from forward to backward and applies that
// plan.
func recompute(m *onnx.Model, eraseShapes bool) error {
	a, err := analysis.Analyze(m, analysis.Options{})
	if err != nil {
		return err
	}
	keep := `[]`
	if eraseShapes {
		keep = `["h1"]` // which the backward then reads through a view
	}
	plan, err := planner.ReadPlan(strings.NewReader(`{"format": "remat-plan/1", "keep": `+keep+`}`), a.Problem)
	if err != nil {
		return err
	}
	plan.EraseShapes = eraseShapes
	prog, err := planner.Expand(a.Problem, plan)
	if err != nil {
		return err
	}
	order, _, err := rewrite.Recompute(&rewrite.Target{Model: m, Nodes: a.Nodes, Values: a.Values}, prog)
	if err == nil {
		_, _, err = rewrite.Schedule(m, order)
	}
	if eraseShapes {
		m.Graph.AnnotateTypes()
	}
	return err
}

func TestPasses(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { testPass(t, file) })
	}
}

func testPass(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	part := map[string]string{}
	for _, f := range archive.Files {
		part[f.Name] = string(f.Data)
	}
	pass := passes[strings.TrimSpace(part["pass"])]
	if pass == nil {
		t.Fatalf("no pass %q", part["pass"])
	}
	original, _ := ortest.Parse(t, part["in"])
	m, types := ortest.Parse(t, part["in"])
	if err := pass(m, types); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	got := ortest.Text(m)
	if *update {
		for i := range archive.Files {
			if archive.Files[i].Name == "out" {
				archive.Files[i].Data = []byte(got)
			}
		}
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != part["out"] {
		t.Errorf("got\n%s", got)
	}
	sameResults(t, original, m)
}

// sameResults runs both graphs on the same random inputs.
func sameResults(t *testing.T, a, b *onnx.Model) {
	t.Helper()
	want, got := outputs(t, a), outputs(t, b)
	for name, x := range want {
		y, ok := got[name]
		if !ok {
			t.Errorf("output %s is gone", name)
			continue
		}
		for i := range x {
			if math.Abs(x[i]-y[i]) > 1e-5*(1+math.Abs(x[i])) {
				t.Errorf("output %s[%d] is %g, was %g", name, i, y[i], x[i])
				break
			}
		}
	}
}

func outputs(t *testing.T, m *onnx.Model) map[string][]float64 {
	t.Helper()
	s, err := ortest.Engine(t).Open(m, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Seed: 3, Roles: &runtime.Roles{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]float64{}
	for _, o := range step.Outputs {
		o.Data = bytes.Clone(o.Data)
		if out[o.Name], err = o.Float64s(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
