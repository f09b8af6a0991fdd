package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestSameFileAgain: one graph gives one file, byte for byte, however often and
// whether a strategy is asked or the plan file that it wrote is followed. Names
// and orders that hang on the order of a map differ between runs, and then a plan
// names nodes that the graph does not have.
func TestSameFileAgain(t *testing.T) {
	e := engine(t)
	for _, model := range []string{"gpt2", "encoder", "mlp"} {
		for _, kind := range append(optim.Kinds(), optim.None) {
			t.Run(fmt.Sprint(model, " ", kind), func(t *testing.T) {
				sameAgain(t, e, zooStep(t, model, kind, smallZoo), nil)
			})
		}
	}
	t.Run("wide", func(t *testing.T) { sameAgain(t, e, zooStep(t, "gpt2", optim.AdamW, wideGPT), nil) })
	paths, err := filepath.Glob(sample("*.onnx"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d samples: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, _, dims := derived(t, path)
			sameAgain(t, e, m, dims)
		})
	}
}

func sameAgain(t *testing.T, e *runtime.Engine, m *onnx.Model, dims map[string]int64) {
	t.Helper()
	o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Dims: dims}
	for _, c := range choices {
		o.Divisions = c.Divisions
		var first []byte
		for range 3 {
			p, err := Prepare(e, m, o)
			if err != nil {
				t.Fatal(err)
			}
			if got := encode(t, p.Model); first == nil {
				first = got
			} else if !bytes.Equal(first, got) {
				t.Fatalf("batch %v, chunk %v, tile %v, rows %v: the graph comes out another way when prepared again", c.Batch, c.Chunk, c.Tile, c.Rows)
			}
		}
	}
	o.Divisions = Divisions{}
	for _, strategy := range []string{"sqrt", "optimal"} {
		r := plannedAs(t, e, m, o, func(p *Planner) (*File, error) { return p.Plan(strategy, 0) })
		follow(t, e, m, r, strategy)
	}
}

// follow checks that the file of a plan leads to the graph that the plan led to.
func follow(t *testing.T, e *runtime.Engine, m *onnx.Model, r *File, strategy string) {
	t.Helper()
	o := r.Variant.Again()
	for _, d := range []*Division{&o.Batch, &o.Chunk, &o.Tile, &o.Rows} {
		was := *d
		text, err := json.Marshal(was)
		if err == nil {
			err = json.Unmarshal(text, d)
		}
		if err != nil || *d != was {
			t.Errorf("%s: %v parts are %s in a plan file, which says %v: %v", strategy, was, text, *d, err)
		}
	}
	var file bytes.Buffer
	if err := planner.WritePlan(&file, r.Problem(), r.Plan); err != nil {
		t.Fatal(err)
	}
	again := plannedAs(t, e, m, o, func(p *Planner) (*File, error) {
		plan, err := planner.ReadPlan(&file, p.Problem())
		if err != nil {
			return nil, err
		}
		return p.Apply(plan)
	})
	written := encode(t, r.Model)
	same := bytes.Equal(written, encode(t, again.Model)) || bytes.Equal(written, encode(t, m)) // as it was given
	if again.Peak != r.Peak || !same {
		t.Errorf("%s: the plan's file leads to another graph, live peak %d, not %d", strategy, again.Peak, r.Peak)
	}
}

func plannedAs(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, plan func(*Planner) (*File, error)) *File {
	t.Helper()
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := plan(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func encode(t *testing.T, m *onnx.Model) []byte {
	t.Helper()
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
