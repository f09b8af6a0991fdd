package planner

import (
	"bytes"
	"errors"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

func peaks(t *testing.T, p *Problem, strategy string) Verdict {
	t.Helper()
	plan, err := Solve(p, strategy)
	if err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	v, err := Judge(p, plan)
	if err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	t.Logf("%-10s peak %10d overhead %.3f recomputed %d early nodes %d", strategy, v.Peak, v.Overhead, v.Recomputed, v.EarlyNodes)
	if lb := LowerBound(p); v.Peak < lb {
		t.Errorf("%s: peak %d below the lower bound %d", strategy, v.Peak, lb)
	}
	if lb := p.indexed().tradeoff()(float64(v.RecomputeFLOPs)); v.Peak < lb {
		t.Errorf("%s: peak %d below the lower bound %d for its work", strategy, v.Peak, lb)
	}
	return v
}

func TestChain(t *testing.T) {
	p := chain(64)
	none, sqrt, full := peaks(t, p, "none"), peaks(t, p, "sqrt"), peaks(t, p, "full")
	peaks(t, p, "every=4")
	peaks(t, p, "segments=8")
	peaks(t, p, "layers=Tanh*")
	if saving := 1 - float64(sqrt.Peak)/float64(none.Peak); saving < 0.7 {
		t.Errorf("sqrt saves %.2f of a chain of 64, want about 0.75", saving)
	}
	if sqrt.Overhead > 0.34 || full.Peak <= sqrt.Peak {
		t.Errorf("sqrt %+v, full %+v", sqrt, full)
	}
}

func TestTransformer(t *testing.T) {
	p := transformer(12, 1024, 256, 256, 8)
	none, sqrt, full := peaks(t, p, "none"), peaks(t, p, "sqrt"), peaks(t, p, "full")
	if full.Peak >= sqrt.Peak || sqrt.Peak >= none.Peak {
		t.Errorf("peaks: none %d, sqrt %d, full %d", none.Peak, sqrt.Peak, full.Peak)
	}
	plan, err := Solve(p, "sqrt")
	if err != nil || len(plan.Notes) != 1 || !strings.Contains(plan.Notes[0], "one boundary per layer") {
		t.Errorf("sqrt does not say that one boundary per layer is better: %v %v", plan.Notes, err)
	}
}

func TestRandomPlansAreValid(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for i := range 200 {
		p := random(r, 3+r.Intn(20))
		ix := p.indexed()
		keep := make([]bool, len(ix.root))
		for v := range keep {
			keep[v] = r.Intn(2) == 0
		}
		plan := &Plan{Schedule: newLowerer(ix, ix.plain().order).scheduleIn(keep, mode(r.Intn(int(modes)))), EraseShapes: r.Intn(2) == 0}
		v, err := Judge(p, plan)
		if err != nil {
			t.Fatalf("problem %d: %v", i, err)
		}
		if lb := LowerBound(p); v.Peak < lb {
			t.Errorf("problem %d: peak %d below the lower bound %d", i, v.Peak, lb)
		}
		if lb := ix.tradeoff()(float64(v.RecomputeFLOPs)); v.Peak < lb {
			t.Errorf("problem %d: peak %d below the lower bound %d for its work", i, v.Peak, lb)
		}
		// Barriers shuffle the free lists a little: compare without them.
		s := newLiveSim(ix)
		s.eraseShapes = plan.EraseShapes
		if sim, exact := s.run(plan.Schedule), withoutBarriers(t, p, plan); sim != exact {
			t.Errorf("problem %d: fast simulation %d, model %d", i, sim, exact)
		}
		var buf bytes.Buffer
		if err := WriteProblem(&buf, p); err != nil {
			t.Fatal(err)
		}
		read, err := ReadProblem(&buf)
		if err != nil {
			t.Fatal(err)
		}
		if w, err := Judge(read, plan); err != nil || w != v {
			t.Errorf("problem %d: read again, the plan costs %+v, %v; was %+v", i, w, err, v)
		}
	}
}

func withoutBarriers(t *testing.T, p *Problem, plan *Plan) int64 {
	t.Helper()
	prog, err := Expand(p, plan)
	if err != nil {
		t.Fatal(err)
	}
	for i := range prog.Instances {
		prog.Instances[i].Barriers = nil
	}
	g, order := prog.Graph(p)
	return ortmodel.NewSimulator(g).Peak(order)
}

func TestFind(t *testing.T) {
	for _, bad := range []string{"", "sqrt=2", "every", "every=", "best"} {
		if _, _, err := Find(bad); err == nil {
			t.Errorf("Find(%q) found something", bad)
		}
	}
	for _, bad := range []string{"every=0", "every=x", "layers=[", "layers=nothing"} {
		if _, err := Solve(chain(4), bad); err == nil {
			t.Errorf("Solve(%q) worked", bad)
		}
	}
	for i := range Solvers {
		if Solvers[i].Doc == "" {
			t.Errorf("%s has no doc", Solvers[i].Name)
		}
	}
	b := newBuilder()
	p := b.finish(b.act("A", 1, 8, b.feed("x", 8)), nil)
	p.Graph.Nodes, p.Ops = p.Graph.Nodes[:2], p.Ops[:2]
	p.Graph.Values, p.Values = p.Graph.Values[:3], p.Values[:3]
	if _, err := Solve(p, "sqrt"); !errors.Is(err, ErrNoBackward) {
		t.Errorf("no backward: %v", err)
	}
}

// TestWithOpsKeepsTheRest: every field but the operators is the problem's own.
func TestWithOpsKeepsTheRest(t *testing.T) {
	p := &Problem{
		Graph: ortmodel.Graph{Nodes: make([]ortmodel.Node, 1)}, Values: make([]ValueInfo, 1), Loss: 1, Added: 1, Reread: 1,
		Static: true, Cuts: []Cut{{1}}, Layers: []Cut{{1}}, LayerNames: []string{"layer"}, Beside: []int{1},
		Limits: []Limit{{Name: "layer", Bytes: 1}},
	}
	q := p.WithOps([]Op{{Name: "other"}})
	had, has := reflect.ValueOf(p).Elem(), reflect.ValueOf(q).Elem()
	for i := range had.NumField() {
		f := had.Type().Field(i)
		if !f.IsExported() || f.Name == "Ops" {
			continue
		}
		if had.Field(i).IsZero() {
			t.Errorf("the test leaves %s empty", f.Name)
		}
		if !reflect.DeepEqual(had.Field(i).Interface(), has.Field(i).Interface()) {
			t.Errorf("%s is lost", f.Name)
		}
	}
}

// TestTriggersAreHeldOnce: what ONNX Runtime holds in another type than the file says is no trigger
// where another live gradient may be one, and is one still where there is none.
func TestTriggersAreHeldOnce(t *testing.T) {
	p := transformer(4, 64, 32, 16, 2)
	plan, err := Solve(p, "full")
	if err != nil {
		t.Fatal(err)
	}
	triggers := func() (list []int) {
		prog, err := Expand(p, plan)
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range prog.Instances {
			for _, b := range in.Barriers {
				list = append(list, b.Trigger.Value)
			}
		}
		return list
	}
	before := triggers()
	for _, v := range before {
		p.Values[v].Wide = true
	}
	after, others := triggers(), 0
	for k, v := range after {
		if !p.Values[v].Wide {
			others++
		} else if v != before[k] {
			t.Errorf("barrier %d waited for %s, and waits for %s, which is held twice as well", k, p.Values[before[k]].Name, p.Values[v].Name)
		}
	}
	if len(before) == 0 || len(after) != len(before) || others < 2 {
		t.Errorf("of %d barriers %d wait for a value that is held once", len(before), others)
	}
}
