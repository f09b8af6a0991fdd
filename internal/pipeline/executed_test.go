package pipeline

import (
	"fmt"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// account is all that counts of a prediction.
type account struct {
	Order                                               []string
	Live, Parameters, State, Feeds, Outputs, Total, Own int64
	Reserved, Slab                                      int64
	PeakAt                                              int
	Unknown                                             []string
}

// accountOf predicts a model, typed as "run" has it, or as it is read.
func accountOf(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, typed bool) account {
	t.Helper()
	clone, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer clone.Close()
	if typed {
		if err := Type(clone, nil); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Predict(e, clone, step0(t, clone), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := account{Live: p.LivePeak, Parameters: p.Parameters, State: p.State, Feeds: p.Feeds, Outputs: p.Outputs, Total: p.TotalPeak,
		Own: p.Session.Bytes(), PeakAt: p.PeakAt, Unknown: p.Unknown, Reserved: p.Arena().Reserved, Slab: p.Slab().Size}
	for _, n := range p.Nodes {
		f.Order = append(f.Order, n.Name())
	}
	return f
}

// TestExecutedOfFew: what a few layers tell of all is what ONNX Runtime says of all: the same nodes in the same order,
// and the same bytes of every kind, of graphs as they are derived and as they are written.
func TestExecutedOfFew(t *testing.T) {
	e := engine(t)
	defer func(was int) { fewOf = was }(fewOf)
	deep := func(c *models.Config) { smallZoo(c); c.Layers = 12 }
	told, asked := 0, 0
	compare := func(name string, m *onnx.Model) {
		t.Helper()
		o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}
		fewOf = 20
		few, err := executedOfFew(e, m, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if asked++; few != nil {
			few.Close()
			told++
		}
		got := accountOf(t, e, m, o, false)
		typed := accountOf(t, e, m, o, true)
		fewOf = 1 // none is enough
		if want := accountOf(t, e, m, o, false); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(typed, want) {
			t.Errorf("%s: of a few %+v\ntyped %+v\nof all %+v", name, got, typed, want)
		}
	}
	hidden := 0
	for _, model := range []string{"gpt2", "encoder", "mlp", "heavy"} {
		for _, kind := range []optim.Kind{optim.None, optim.SGD, optim.AdamW} {
			m := zooStep(t, model, kind, deep)
			compare(fmt.Sprint(model, " ", kind), m)
			r := plannedAs(t, e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}, func(p *Planner) (*File, error) { return p.Plan("sqrt", 0) })
			compare(fmt.Sprint(model, " ", kind, ", written"), r.Model)
			if kind != optim.None {
				continue
			}
			r = leastWithin(t, e, m)
			if r.Plan.EraseShapes {
				hidden++
			}
			compare(fmt.Sprint(model, " ", kind, ", least"), r.Model)
		}
	}
	if hidden == 0 {
		t.Error("no graph hides shapes from ONNX Runtime")
	}
	if told < asked/4 {
		t.Errorf("%d of %d graphs were told of a few", told, asked)
	}
}

// leastWithin is a plan that computes half of the step again at most, which may hide shapes.
func leastWithin(t *testing.T, e *runtime.Engine, m *onnx.Model) *File {
	t.Helper()
	half := 0.5
	return plannedAs(t, e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1}, func(p *Planner) (*File, error) {
		return p.PlanWithin("optimal", Budget{Work: &half})
	})
}

// TestHiddenStaysHidden: of a file that hides shapes from ONNX Runtime a planner says what it holds, and where
// the file is kept as it is, it hides them still.
func TestHiddenStaysHidden(t *testing.T) {
	e := engine(t)
	r := leastWithin(t, e, zooStep(t, "gpt2", optim.None, smallZoo))
	path := filepath.Join(t.TempDir(), "least.onnx")
	if err := r.Model.Save(path); err != nil || !r.Plan.EraseShapes {
		t.Fatalf("shapes hidden: %t, %v", r.Plan.EraseShapes, err)
	}
	p, err := NewPlanner(e, openWith(t, path, nil), Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if p.Before.LivePeak != r.Peak {
		t.Errorf("%d bytes as given, %d as written", p.Before.LivePeak, r.Peak)
	}
	kept, err := p.asGiven(p.asked.reordered)
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.Open(kept.Model, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU})
	if got := onlyPeak(t, s, err); got != kept.Peak || got != r.Peak {
		t.Errorf("kept as it is the file holds %d bytes, predicted %d, as written %d", got, kept.Peak, r.Peak)
	}
}

// TestFoldedStaysHidden: what is computed ahead for a device leaves shapes hidden that are, though they
// were found out.
func TestFoldedStaysHidden(t *testing.T) {
	e := engine(t)
	o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, CUDA: true}
	half := 0.5
	r := plannedAs(t, e, zooStep(t, "gpt2", optim.None, smallZoo), o, func(p *Planner) (*File, error) {
		return p.PlanWithin("optimal", Budget{Work: &half})
	})
	if !r.Plan.EraseShapes {
		t.Fatal("the file hides no shapes")
	}
	g := r.Model.Graph
	for _, c := range g.Initializers {
		if !c.IsConstant() || c.Type.DType != onnx.Float32 || len(c.Uses()) == 0 {
			continue
		}
		b := build.New(g, nil, "twice")
		same := b.Op("Neg", build.In(b.Op("Neg", build.In(c))))
		made := b.Take()
		g.ReplaceUses(c, same)
		made[0].SetInput(0, c)
		g.InsertBefore(g.Nodes[0], made...)
		break
	}
	got, want := accountOf(t, e, r.Model, o, true), accountOf(t, e, r.Model, o, false)
	if !reflect.DeepEqual(got, want) || want.Live != r.Peak {
		t.Errorf("%d bytes typed, %d as read, %d as written", got.Live, want.Live, r.Peak)
	}
}
