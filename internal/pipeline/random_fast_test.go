package pipeline

// What holds of a written file without running it: the graph's own checks, what it
// computes, who reads a parameter before it is updated, and that writing and
// predicting it again give the same. Thousands of graphs in the time in which ONNX
// Runtime runs one; so fuzz targets ask this of each, and ONNX Runtime of a share.

import (
	"hash/fnv"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// oneIn is the share of a fuzz target's inputs that ONNX Runtime judges. No input may
// take ten seconds: Go's fuzzing then ends the worker without saying why.
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

// offline plans without ONNX Runtime, and checks what is written.
func offline(t *testing.T, p *Planner, o Options, strategy string, budget int64) *File {
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
	sameMeaning(t, strategy, r.Variant.Model, m, o.Dims)
	updatesWait(t, strategy, m, r.Roles().New)
	saved, err := onnx.Decode(encode(t, m), "")
	if err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	again, err := Predict(nil, saved, r.Roles(), o, nil)
	if err != nil {
		t.Fatalf("%s: %v", strategy, err)
	}
	if again.LivePeak != r.Peak || again.Session.Bytes() != r.Prediction.Session.Bytes() {
		t.Errorf("%s: predicted %d and %d, of the saved file %d and %d", strategy, r.Peak, r.Prediction.Session.Bytes(), again.LivePeak, again.Session.Bytes())
	}
	return r
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

// checkStepOffline is checkStep without ONNX Runtime, through one strategy.
func checkStepOffline(t *testing.T, data []byte, seed uint64) {
	m, _, err := randomStep(data, seed, fewBlocks)
	if err != nil {
		t.Fatal(err)
	}
	m.SetMetadata(VersionKey, "test")
	c := choices[int(seed/6)%len(choices)]
	o := Options{Provider: ort.CPU, OptLevel: []int{0, 1, 99}[seed%3], Threads: 1, AsIs: c.chunk != Division{}, Chunk: c.chunk, Tile: c.tile, Rows: c.rows}
	throughOne(t, m, o, seed/30)
}

// checkJointOffline is checkJoint without ONNX Runtime, through one strategy.
func checkJointOffline(t *testing.T, data []byte, seed uint64) {
	m, err := randomJoint(data, seed, fewBlocks)
	if err != nil {
		t.Fatal(err)
	}
	m.SetMetadata(VersionKey, "test")
	throughOne(t, m, jointOptions(seed), seed/12)
}

// throughOne takes a graph through the strategy that a number chooses.
func throughOne(t *testing.T, m *onnx.Model, o Options, number uint64) {
	asks := 0
	o.Stop = func() bool { asks++; return asks > mostAsks }
	p, err := NewPlanner(nil, m, o)
	if err != nil {
		t.Fatal(err)
	}
	strategy := everyKind[number%uint64(len(everyKind))]
	budget := int64(0)
	if strategy == "optimal at half" {
		strategy = "optimal"
		least, err := p.Plan(strategy, 0)
		if err != nil {
			t.Fatal(err)
		}
		budget = (p.Scheduled + least.Peak) / 2
		asks = 0 // as many looks again, else what was found before is not found now
	}
	r := offline(t, p, o, strategy, budget)
	if most := max(p.Scheduled, p.Before.LivePeak); strategy == "optimal" && r.Peak > most {
		t.Errorf("optimal's peak is %d, that of the graph alone %d", r.Peak, most)
	}
}
