package pipeline

// The order that a plan wishes is the one that ONNX Runtime runs, node for
// node: the written file's places and control edges say it, the plan that comes back
// records it, and what follows the plan once more writes the same file.

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

var orderedStrategies = []string{"none", "sqrt", "full", "every=3", "segments=2", "selective", "optimal"}

// withOptimizer puts an optimizer into a derived graph and orders it, as the
// command grad does.
func withOptimizer(t testing.TB, m *onnx.Model, params []string, o optim.Options) {
	t.Helper()
	var list []optim.Param
	for _, name := range params {
		list = append(list, optim.Param{Value: m.Graph.Value(name), Grad: m.Graph.Value(name + ".grad")})
	}
	if _, err := optim.Apply(m, list, o); err != nil {
		t.Fatal(err)
	}
	if err := Order(m, Options{}); err != nil {
		t.Fatal(err)
	}
}

// zooStep is a training step of the zoo with an optimizer in the graph.
func zooStep(t testing.TB, name string, kind optim.Kind, change func(*models.Config)) *onnx.Model {
	t.Helper()
	return zooUpdated(t, name, optim.Defaults(kind), change)
}

// zooUpdated is a training step of the zoo with that optimizer in the graph.
func zooUpdated(t testing.TB, name string, o optim.Options, change func(*models.Config)) *onnx.Model {
	t.Helper()
	m := trainingGraph(t, name, change)
	if o.Kind == optim.None {
		return m
	}
	withOptimizer(t, m, differentiated(m), o)
	return m
}

// differentiated are the inputs that have gradients.
func differentiated(m *onnx.Model) []string {
	var params []string
	for _, v := range m.Graph.Inputs {
		if step.GradientOf(m.Graph, v) != nil {
			params = append(params, v.Name)
		}
	}
	return params
}

// smallZoo are the sizes that this file's tests take.
func smallZoo(c *models.Config) {
	c.Layers, c.Hidden, c.Batch = min(c.Layers, 4), 32, 4
	if c.Heads > 0 {
		c.Heads = 4
	}
	if c.Vocab > 0 {
		c.Vocab = 301
	}
	if c.Seq > 0 {
		c.Seq = 24
	}
}

// plannerOf is a planner without ONNX Runtime for a graph that is prepared.
func plannerOf(given *onnx.Model, base *Variant) *Planner {
	return &Planner{given: given, opts: base.Options, asked: &family{options: base.Options, variants: [choicesN]*Variant{base}, asked: [choicesN]bool{true}}}
}

// ordered plans, and checks that the order of the file is the wanted one.
func ordered(t *testing.T, p *Planner, strategy string) *File {
	t.Helper()
	plan, err := solveWithCasts(p.base().Analysis, strategy, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.file(p.base().with(plan), Budget{})
	if err != nil {
		t.Fatal(err)
	}
	for _, rep := range r.Reports {
		if (rep.Pass == "schedule" || rep.Pass == "edge") && (rep.Applied != rep.Requested || len(rep.Skipped) > 0) {
			t.Errorf("%s: %s", strategy, rep)
		}
	}
	again, err := planner.Expand(r.Problem(), r.Plan)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Instances) != len(r.written.ran) || !slices.Equal(r.Plan.Schedule, r.written.ran) {
		t.Errorf("%s: the file runs another schedule than the plan has", strategy)
	}
	ran := rewrite.RunOrder(r.Model.Graph)
	if om := step.Structure(r.Model.Graph); len(ran) != len(om.Nodes) || !ortmodel.Valid(om, ortmodel.Order(om)) {
		t.Errorf("%s: ONNX Runtime leaves nodes out", strategy)
	}
	return r
}

// TestOrderIsAsWished takes samples, foreign training graphs and the zoo, the
// latter with every optimizer, as they are and with everything in parts,
// through every strategy. No node runs at another place than wished, and the
// file holds no more than the plan says, but for the bytes of shapes.
func TestOrderIsAsWished(t *testing.T) {
	e := engine(t)
	each := func(name string, m *onnx.Model, o Options, strategies []string, forms ...Division) {
		for _, parts := range forms {
			o.Provider, o.OptLevel, o.Threads, o.AsIs, o.Chunk, o.Tile, o.Rows = ort.CPU, 0, 1, true, parts, parts, parts
			t.Run(fmt.Sprintf("%s parts %v", name, parts), func(t *testing.T) {
				base, err := Prepare(e, m, o) // what follows needs no engine
				if err != nil {
					t.Fatal(err)
				}
				p := plannerOf(m, base)
				for _, s := range strategies {
					// Where shapes are erased, not all of them are: see rewrite/control.
					if r := ordered(t, p, s); !r.Plan.EraseShapes && r.Peak > r.Verdict.Peak+shapesBytes {
						t.Errorf("%s: the file holds %d bytes, the plan %d", s, r.Peak, r.Verdict.Peak)
					}
				}
			})
		}
	}
	paths, err := filepath.Glob(sample("*.onnx"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d samples: %v", len(paths), err)
	}
	for _, path := range paths {
		m, _, dims := derived(t, path)
		each(filepath.Base(path), m, Options{Dims: dims}, []string{"sqrt", "selective", "optimal"}, Division{})
	}
	for _, name := range []string{"mlp20.EMA", "gpt2_tiny_eager.EMA", "gpt2_tiny_eager.step_adamw"} {
		m, err := Open(sample("joint/"+name+".onnx"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		each(name, m, Options{}, orderedStrategies, Division{})
	}
	for _, row := range models.Rows {
		if strings.HasPrefix(row.Name, "gpt2") && row.Name != "gpt2-tiny" {
			continue // the same graph with other sizes
		}
		for _, kind := range []optim.Kind{optim.None, optim.SGD, optim.AdamW} {
			each(row.Name+" "+string(kind), zooStep(t, row.Name, kind, smallZoo), Options{}, orderedStrategies, Division{}, auto)
		}
	}
}

// TestEqualOutputs: gradients that are equal and all returned, as those of the biases of several
// layers whose results are summed up, are computed for each; an edge that leads one of them past
// another is read anew where they are merged.
func TestEqualOutputs(t *testing.T) {
	e := engine(t)
	text := "model ir=10 opset=21\ngraph g {\nin x0 float32[4,8]\nin y float32[4,8]\n"
	var params []string
	for i := range 4 {
		text += fmt.Sprintf("in w%[1]d float32[8,8]\nin k%[1]d float32[8,8]\nin b%[1]d float32[8]\nz%[1]d = MatMul(x%[1]d, w%[1]d)\nx%[2]d = Tanh(z%[1]d)\n"+
			"o%[1]d = Gemm(x%[2]d, k%[1]d, b%[1]d)\n", i, i+1)
		params = append(params, fmt.Sprint("w", i), fmt.Sprint("k", i), fmt.Sprint("b", i))
	}
	m, _ := ortest.Parse(t, text+"s1 = Add(o0, o1)\ns2 = Add(s1, o2)\ns3 = Add(s2, o3)\nr = Relu(s3)\nd = Sub(r, y)\nq = Mul(d, d)\nloss = ReduceMean(q) {keepdims=0}\nout loss float32\n}\n")
	if _, err := grad.Differentiate(m, grad.Options{Params: params}); err != nil {
		t.Fatal(err)
	}
	o := optim.Defaults(optim.AdamW)
	o.KeepGrads = true
	withOptimizer(t, m, params, o)
	m.SetMetadata(VersionKey, Version)
	p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"none", "full", "optimal"} {
		if _, err := p.Plan(s, 0); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// TestUpdatesKeepTheOrder: with the optimizer in the graph no file of heavy
// needs more than the plan says, nor than the graph as derived.
func TestUpdatesKeepTheOrder(t *testing.T) {
	e := engine(t)
	for _, kind := range optim.Kinds() {
		m := zooStep(t, "heavy", kind, func(c *models.Config) { c.Layers, c.Hidden, c.Batch = 40, 512, 4 })
		p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, AsIs: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"none", "sqrt", "full", "optimal"} {
			r := ordered(t, p, s)
			if r.Peak > r.Verdict.Peak+r.Verdict.Peak/100 || r.Peak > p.Before.LivePeak+shapesBytes {
				t.Errorf("%s, %s: the file holds %d bytes, the plan %d, the graph as given %d", kind, s, r.Peak, r.Verdict.Peak, p.Before.LivePeak)
			}
			planned, err := p.Plan(s, 0)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(strings.Join(planned.Plan.Notes, " "), "kept unchanged") {
				t.Errorf("%s, %s: %s", kind, s, planned.Plan.Notes)
			}
		}
	}
}

// TestPlanFileLeadsToTheSameFile writes a plan as JSON, reads it, and applies
// it to the graph: the same nodes in the same order.
func TestPlanFileLeadsToTheSameFile(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		kind  optim.Kind
		parts Division
	}{{optim.None, auto}, {optim.SGD, Division{}}, {optim.AdamW, Division{}}, {optim.AdamW, auto}} {
		m := zooStep(t, "gpt2-tiny", c.kind, func(*models.Config) {})
		o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, AsIs: true, Divisions: Divisions{Chunk: c.parts, Tile: c.parts}}
		first, err := NewPlanner(e, m, o)
		if err != nil {
			t.Fatal(err)
		}
		second, err := NewPlanner(e, m, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"none", "full", "optimal"} {
			a := ordered(t, first, s)
			b := throughFile(t, a, second)
			if x, y := a.Model.Text(), b.Model.Text(); x != y {
				t.Errorf("%s parts %v, %s: another file (%d and %d bytes of text)", c.kind, c.parts, s, len(x), len(y))
			}
		}
	}
}

// throughFile writes a's plan as a plan file, and returns what another planner
// makes of it.
func throughFile(t *testing.T, a *File, p *Planner) *File {
	t.Helper()
	var file bytes.Buffer
	if err := planner.WritePlan(&file, a.Problem(), a.Plan); err != nil {
		t.Fatal(err)
	}
	plan, err := planner.ReadPlan(&file, p.Problem())
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Apply(plan)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPlanOfTheGivenFile: where no order is better than the one given, the plan
// file says that order, and what it leads to is the file as it was.
func TestPlanOfTheGivenFile(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "mlp", optim.SGD, smallZoo)
	o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	// Moves find an order as good for every model of the zoo: as if the given one held less.
	p.Before.LivePeak /= 2
	a, err := p.PlanWithin("none", Budget{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Model.Text() != m.Text() {
		t.Fatal("the given file is not kept here: the test needs another model")
	}
	b := throughFile(t, a, p)
	if b.Peak != a.Peak || b.Model.Text() != m.Text() || len(b.Plan.Notes) != len(a.Plan.Notes) {
		t.Errorf("the plan promises %d bytes, its file holds %d (%q)", a.Peak, b.Peak, b.Plan.Notes)
	}
}

var fused = regexp.MustCompile(`_token_\d+`)

// TestOrderIsTheProfiles runs files and compares the order that ONNX Runtime's
// own profile shows with the wished one, at every level, as far as nodes are
// left: what depends on constants alone is computed ahead from level 1 on.
func TestOrderIsTheProfiles(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		model, strategy string
		kind            optim.Kind
		parts           Division
	}{
		{"gpt2-tiny", "full", optim.None, auto},
		{"gpt2-tiny", "optimal", optim.SGD, auto},
		{"gpt2-tiny", "sqrt", optim.AdamW, Division{}},
		{"heavy", "none", optim.SGD, Division{}},
		{"encoder", "optimal", optim.AdamW, auto},
	} {
		m := zooStep(t, c.model, c.kind, smallZoo)
		p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, AsIs: true, Divisions: Divisions{Chunk: c.parts, Tile: c.parts}})
		if err != nil {
			t.Fatal(err)
		}
		r := ordered(t, p, c.strategy)
		wished := rewrite.RunOrder(r.Model.Graph)
		roles := runtime.Roles{Loss: r.Roles().Loss, Grad: r.Roles().Grad, New: r.Roles().New}
		for _, level := range []int{0, 1, 99} {
			ran := profiled(t, e, r.Model, level, roles)
			var want []string
			gone := 0
			left := map[string]bool{}
			for _, name := range ran {
				left[name] = true
			}
			for _, n := range wished {
				if left[n.Name()] {
					want = append(want, n.Name())
				} else {
					gone++
				}
			}
			if gone > len(wished)/20 || level == 0 && gone > 0 {
				t.Errorf("%v at %d: %d of %d nodes did not run", c, level, gone, len(wished))
			}
			if !slices.Equal(ran, want) {
				t.Errorf("%v at %d: ONNX Runtime ran another order: %s", c, level, difference(ran, want))
			}
		}
	}
}

// difference says where two orders part.
func difference(ran, want []string) string {
	for i := range min(len(ran), len(want)) {
		if ran[i] != want[i] {
			return fmt.Sprintf("at place %d %s, wished %s", i, ran[i], want[i])
		}
	}
	return fmt.Sprintf("%d nodes, wished %d", len(ran), len(want))
}

// profiled returns the names of the nodes in the order in which they ran.
func profiled(t *testing.T, e *runtime.Engine, m *onnx.Model, level int, roles runtime.Roles) []string {
	t.Helper()
	s, err := e.Open(m, runtime.Options{Level: level, Threads: 1, Provider: ort.CPU, Profile: true, Seed: 7, Roles: &roles})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	p, err := s.Profile()
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(p.Nodes))
	for i, n := range p.Nodes {
		names[i] = fused.ReplaceAllString(n.Node, "")
	}
	return names
}
