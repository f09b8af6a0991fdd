package pipeline

// What holds of a written file without running it: the graph's own checks, what it
// computes, who reads a parameter before it is updated, its order, edges and buffers
// (invariants_test.go), and that predicting it again gives the same. Dozens of graphs in the time in which ONNX
// Runtime judges one; so fuzz targets ask this of each, and ONNX Runtime of a share.
//
// No input may take ten seconds: Go's fuzzing then ends the worker without saying why.
// So the work is bounded by counts, whatever the machine does besides: graphs are
// small, a search looks at mostAsks plans, and ONNX Runtime sees the files of two plans,
// in a dozen sessions. That is a quarter of a second of one core.

import (
	"bytes"
	"hash/fnv"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// oneIn is the share of a fuzz target's inputs that ONNX Runtime judges.
const oneIn = 50

// mostAsks ends the search for a plan: of a dozen values it tries every set to keep,
// which takes seconds.
const mostAsks = 150

// asked reports an input that is of that share. The same input is always.
func asked(data []byte, seed uint64) bool {
	h := fnv.New64a()
	h.Write(data)
	for k := range 8 {
		h.Write([]byte{byte(seed >> (8 * k))})
	}
	return h.Sum64()%oneIn == 0
}

// checkedPlan plans, and checks what is written.
func checkedPlan(t *testing.T, p *Planner, o Options, strategy string, budget int64) *File {
	t.Helper()
	r, err := p.Plan(strategy, budget)
	if _, limited := p.Limited(); limited && unmet(err) {
		budget, err = 0, nil // the search ended before it found what keeps it: what it has is right all the same
	}
	if err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	m := r.Model
	if err := m.Check(); err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	if budget > 0 && r.Peak > budget {
		t.Errorf("%s: peak %d exceeds the budget of %d", strategy, r.Peak, budget)
	}
	before := r.Variant.Model
	if r.Prediction == p.Before { // the file given is kept as it was, without its variant's passes
		before = p.given
	}
	sameMeaning(t, strategy, before, m, o.Dims)
	updatesWait(t, strategy, m, r.Roles().New)
	return r
}

// foretold predicts a file anew as it is saved.
func foretold(t *testing.T, strategy string, r *File, o Options) {
	t.Helper()
	saved, err := onnx.Decode(encode(t, r.Model), "")
	if err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	again, err := Predict(nil, saved, r.Roles(), o, nil)
	if err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	orderStands(t, strategy, r)
	buffersHold(t, strategy, again)
	edgesLift(t, strategy, r.Variant.Model, saved)
	if again.LivePeak != r.Peak || again.Session.Bytes() != r.Prediction.Session.Bytes() {
		t.Errorf("%s: predicted %d and %d, of the saved file %d and %d", strategy, r.Peak, r.Prediction.Session.Bytes(), again.LivePeak, again.Session.Bytes())
	}
}

// updatesWait checks that who reads a parameter or state runs before its update.
func updatesWait(t *testing.T, what string, m *onnx.Model, next map[string]string) {
	t.Helper()
	for in, out := range next {
		v, w := m.Graph.Value(in), m.Graph.Value(out)
		if v == nil || w == nil || w.Producer == nil {
			t.Errorf("%s: %s or %s is lost", what, in, out)
			continue
		}
		leads := map[*onnx.Node]bool{}
		var visit func(n *onnx.Node)
		visit = func(n *onnx.Node) {
			if n == nil || leads[n] {
				return
			}
			leads[n] = true
			for _, x := range n.Inputs {
				if x != nil {
					visit(x.Producer)
				}
			}
		}
		visit(w.Producer)
		for _, u := range v.Uses() {
			if !leads[u.Node] {
				t.Errorf("%s: %s reads %s, and nothing makes its update wait", what, u.Node.Label(), in)
			}
		}
	}
}

// checkOneStep takes a random step through one strategy, as checkStep does through two,
// and without ONNX Runtime where there is no engine.
func checkOneStep(t *testing.T, e *runtime.Engine, data []byte, seed uint64, most size) {
	m, update, err := randomStep(data, seed, most)
	if err != nil {
		t.Fatal(err)
	}
	c := choices[int(seed/6)%len(choices)]
	switch c.Chunk {
	case coarse:
		c.Chunk = most.coarse
	case fine:
		c.Chunk = most.fine
	}
	if c.Tile == auto {
		c.Tile = most.tile
	}
	o := Options{Provider: ort.CPU, OptLevel: []int{0, 1, 99}[seed%3], Threads: 1, AsIs: c.Divisions != Divisions{}, Divisions: c.Divisions, Outputs: leaves(seed)}
	throughOne(t, e, m, o, update.Kind, seed, seed/30)
}

// checkOneJoint is checkJoint through one strategy, and without ONNX Runtime where
// there is no engine.
func checkOneJoint(t *testing.T, e *runtime.Engine, data []byte, seed uint64, most size) {
	m, err := randomJoint(data, seed, most)
	if err != nil {
		t.Fatal(err)
	}
	o := jointOptions(seed)
	clonesStay(&o)
	throughOne(t, e, m, o, optim.None, seed, seed/12)
}

// throughOne takes a graph through the strategy that a number chooses. With an engine
// its file meets the prediction and returns what the plain plan's does: to the bit, or
// but for rounding where it is of another form, which an update makes a whole step of.
func throughOne(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, update optim.Kind, seed, number uint64) {
	if e == nil || seed%2 == 0 { // else it is taken for a foreign one
		m.SetMetadata(VersionKey, "test")
	}
	asks := 0
	o.Stop, o.TimeLimited = func() bool { asks++; return asks > mostAsks }, true
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	strategy := everyKind[number%uint64(len(everyKind))]
	budget := int64(0)
	if strategy == "optimal at half" {
		strategy = "optimal"
		least, err := p.Plan("least", 0)
		if err != nil {
			t.Fatal(err)
		}
		budget = (p.Scheduled + least.Peak) / 2
		asks = 0 // as many looks again, else what was found before is not found now
	}
	r := checkedPlan(t, p, o, strategy, budget)
	if e == nil {
		foretold(t, strategy, r, o)
		if most := max(p.Scheduled, p.Before.LivePeak); (strategy == "optimal" || strategy == "least") && r.Peak > most {
			t.Errorf("the peak of %s is %d, that of the graph alone %d", strategy, r.Peak, most)
		}
		return
	}
	plain, err := p.Plan("none", 0)
	if err != nil {
		t.Fatal(err)
	}
	want, got := run(t, e, o, "none", plain), run(t, e, o, strategy, r)
	for name, data := range want.outputs {
		if r.Variant == plain.Variant && !bytes.Equal(got.outputs[name], data) {
			t.Errorf("%s: output %s is not that of the plain plan to the bit", strategy, name)
		} else if d := farthest(data, got.outputs[name]); d > 1e-3 && update == optim.None {
			t.Errorf("%s: output %s differs by %g of its largest magnitude", strategy, name, d)
		}
	}
}
