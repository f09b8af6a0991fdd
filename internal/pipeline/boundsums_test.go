package pipeline

import (
	"context"
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// largeVocabulary has most of its parameters in the embedding.
func largeVocabulary(c *models.Config) {
	c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 64, 2, 3000, 32, 2
}

// fullBySums is full's file with the loss in four parts, whose outputs leave by rows.
func fullBySums(t *testing.T, e *runtime.Engine, m *onnx.Model) *File {
	t.Helper()
	o := Options{OptLevel: 1, Threads: 2, Provider: ort.CPU, Outputs: step.Rows, Divisions: Divisions{Chunk: Parts(4)}}
	return plannedAs(t, e, m, o, func(p *Planner) (*File, error) { return p.Plan("full", 0) })
}

// TestBoundSums: where a gradient is summed up in the memory in which it is returned, a file
// reaches its predicted peak, holds up to one value of the gradient's size less, and returns
// the bits of the one whose sums have their own.
func TestBoundSums(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2", optim.None, largeVocabulary)
	largest := int64(3000 * 64 * 4)
	for _, c := range []struct {
		chunk, batch Division
		strategy     string
		less         float64 // of the gradient
	}{{chunk: Parts(8), strategy: "full", less: 0.4}, {chunk: Parts(4), strategy: "selective", less: 0.9}, {batch: Parts(2), strategy: "none", less: 0.4}} {
		for _, level := range []int{0, 1, 99} {
			t.Run(fmt.Sprintf("%s at %d", c.strategy, level), func(t *testing.T) {
				o := Options{OptLevel: level, Divisions: Divisions{Batch: c.batch, Chunk: c.chunk}}
				own := runPlanned(t, e, m, o, c.strategy)
				o.Outputs = step.Rows
				got := runPlanned(t, e, m, o, c.strategy)
				if got.peaks[0] > own.peaks[0]-int64(c.less*float64(largest)) {
					t.Errorf("live peak %d, with memory for each sum %d: %.2f of the gradient less", got.peaks[0], own.peaks[0], float64(own.peaks[0]-got.peaks[0])/float64(largest))
				}
				if len(got.outputs) != len(own.outputs) {
					t.Errorf("a step returns %d outputs, want %d", len(got.outputs), len(own.outputs))
				}
				otherBits(t, "in one memory", own, got)
			})
		}
	}
}

// TestBoundSumsTogether: what the session's allocator and ONNX Runtime's arena take for a step
// that sums a gradient up is what is predicted, step after step, and a gradient that is given
// back is no longer held.
func TestBoundSumsTogether(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2", optim.None, largeVocabulary)
	f := fullBySums(t, e, m)
	roles := f.Roles()
	if len(roles.Sums) != 1 {
		t.Fatalf("sums %v", roles.Sums)
	}
	s, err := e.Open(f.Model, runtime.Options{Level: 1, Threads: 2, Provider: ort.CPU, Seed: 7, Roles: &roles, Outputs: step.Rows})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Place(f.Prediction.Slab()); err != nil {
		t.Fatal(err)
	}
	first := ""
	for i := range 4 {
		got, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		bits := ""
		for _, o := range got.Outputs {
			bits += o.Name + string(o.Data)
		}
		if i == 0 {
			first = bits
		}
		if got.LivePeakBytes != f.Peak || got.AstrayBytes != 0 || bits != first {
			t.Errorf("step %d: live peak %d, predicted %d; %d bytes astray; same bits: %v", i+1, got.LivePeakBytes, f.Peak, got.AstrayBytes, bits == first)
		}
		if i == 1 {
			s.Release()
			if live := s.Now().Live; live != 0 {
				t.Errorf("%d bytes are live after what the step returned was given back", live)
			}
		}
	}
	if got := s.Memory(); got.ReservedBytes != f.Prediction.Reserved() || got.OutputBytes != f.Prediction.Outputs {
		t.Errorf("reserved %d, predicted %d; returned %d, predicted %d", got.ReservedBytes, f.Prediction.Reserved(), got.OutputBytes, f.Prediction.Outputs)
	}
	arena := f.Prediction.Arena()
	if err := s.MeasureArena(context.Background(), &arena.Setup, true); err != nil {
		t.Fatal(err)
	}
	if got := *s.Memory().ArenaReservedBytes; got != arena.Reserved {
		t.Errorf("the arena reserved %d, predicted %d", got, arena.Reserved)
	}
}

// TestBoundSumsByEveryStrategy: each strategy's file reaches the peak that is predicted where
// gradients are summed up in their memory, takes no more than the plain graph, and the least
// peak is one that needs it.
func TestBoundSumsByEveryStrategy(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2", optim.None, largeVocabulary)
	everyWay(t, e, m, step.Rows)
	for way, f := range leastByWay(t, e, m) {
		if (len(f.Roles().Sums) > 0) != (way == step.Rows) {
			t.Errorf("%s: the least peak's file has sums %v", way, f.Roles().Sums)
		}
	}
}

// TestBoundSumsWrittenAgain: a file with sums that is planned anew has them still, or, where
// its outputs are to leave otherwise, none, and its outputs are those of the graph given.
func TestBoundSumsWrittenAgain(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2", optim.None, largeVocabulary)
	plan := func(m *onnx.Model, o Options) *File {
		o.OptLevel, o.Threads, o.Provider = 1, 2, ort.CPU
		f := plannedAs(t, e, m, o, func(p *Planner) (*File, error) { return p.Plan("full", 0) })
		promise(t, f)
		return f
	}
	f := plan(m, Options{Outputs: step.Rows, Divisions: Divisions{Chunk: Parts(4)}})
	f.Model.SetMetadata(VersionKey, Version)
	want := executeBy(t, e, f.Model, step.Rows, f.Roles())
	for _, way := range []step.Outputs{step.Rows, step.Bound} {
		again := plan(f.Model, Options{Outputs: way})
		if n := len(again.Roles().Sums["transformer.wte.weight.grad"]); (n == 4) != (way == step.Rows) || len(again.Model.Graph.Outputs) != len(m.Graph.Outputs)+n {
			t.Errorf("%s: %d sums and %d outputs, the graph given has %d", way, n, len(again.Model.Graph.Outputs), len(m.Graph.Outputs))
		}
		got := executeBy(t, e, again.Model, way, again.Roles())
		otherBits(t, string(way), want, got)
		if got.peaks[0] != again.Peak || way == step.Rows && again.Peak > f.Peak {
			t.Errorf("%s: live peak %d, predicted %d, %d before", way, got.peaks[0], again.Peak, f.Peak)
		}
	}
}

// TestBoundSumsForWhoBindsNothing: without bindings the gradient is whole too, the same bits,
// and the sums stand beside it.
func TestBoundSumsForWhoBindsNothing(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2", optim.None, largeVocabulary)
	bindsNothing(t, e, fullBySums(t, e, m))
}

// TestBoundSumsReadBesides: a sum that something else reads has memory of its own, the ones
// behind it do not; a gradient that is read after it is returned is summed up all the same.
func TestBoundSumsReadBesides(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		name, more string
		sums       int
	}{
		{"nothing", "norm = ReduceSumSquare(c) {keepdims=0}", 2},
		{"the gradient", "norm = ReduceSumSquare(w.grad) {keepdims=0}", 2},
		{"the sum before it", "norm = ReduceSumSquare(two) {keepdims=0}", 0},
		{"the first", "norm = ReduceSumSquare(one) {keepdims=0}", 1},
	} {
		m, err := onnx.Parse(`model ir=10 opset=20
graph g {
in w float32[32,3]
in a float32[2,32]
in b float32[2,3]
in c float32[2,3]
in i int64[2,3]
rows = Gemm(a, w)
loss = ReduceSum(rows) {keepdims=0}
one = Gemm(a, b) {transA=1}
two = Gemm(a, c, one) {transA=1}
w.grad = ScatterElements(two, i, b) {reduction="add"}
` + c.more + `
out loss float32[]
out w.grad float32[32,3]
out norm float32[]
}
`)
		if err != nil {
			t.Fatal(err)
		}
		roles := step.Roles{Loss: "loss", Grad: map[string]string{"w": "w.grad"}, New: map[string]string{}}
		v, err := Prepare(e, m, Options{OptLevel: 1, Threads: 1, Provider: ort.CPU, Roles: &roles, Normalize: Off, Outputs: step.Rows})
		if err != nil {
			t.Fatal(err)
		}
		planned := v.Analysis.Roles
		if got := len(planned.Sums["w.grad"]); got != c.sums {
			t.Errorf("%s: %d sums in the gradient's memory, want %d", c.name, got, c.sums)
		}
		feeds := map[string]runtime.Tensor{"i": {Type: onnx.Int64, Shape: []int64{2, 3}, Data: make([]byte, 48)}}
		run := func(m *onnx.Model, way step.Outputs, roles step.Roles) result {
			s, err := e.Open(m, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Seed: 3, Feeds: feeds, Roles: &roles, Outputs: way})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			defer s.Close()
			return steps(t, s, 2, func(int, int64) {})
		}
		want, got := run(m, step.Bound, roles), run(v.Model, step.Rows, planned)
		for name, x := range want.outputs {
			if string(x) != string(got.outputs[name]) {
				t.Errorf("%s: output %s has other bits", c.name, name)
			}
		}
	}
}

// TestBoundSumsAsGiven: a file that is kept as it was given has the roles of its own outputs, and
// not the sums that outputs of the one that was planned are.
func TestBoundSumsAsGiven(t *testing.T) {
	kept := optim.Defaults(optim.Lion)
	kept.KeepGrads = true
	m := zooUpdated(t, "gpt2-tiny", kept, func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 32, 2, 97, 16, 4
	})
	p, err := NewPlanner(engine(t), m, Options{OptLevel: 1, Threads: 2, Provider: ort.CPU, Outputs: step.Rows})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.base().Analysis.Roles.Sums) == 0 {
		t.Fatal("no gradient is summed up in its own memory")
	}
	f, err := p.Plan("none", 0)
	if err == nil {
		f, err = p.asGiven(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Roles().Check(f.Model.Graph); err != nil {
		t.Error(err)
	}
	if len(p.base().Analysis.Roles.Sums) == 0 {
		t.Error("the graph that was planned has lost its sums")
	}
}
