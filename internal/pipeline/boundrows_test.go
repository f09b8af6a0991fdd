package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestBoundRows: with slices of an update that are outputs, each bound onto its rows, no
// value of the largest parameter's size is alive; the file reaches its predicted peak, and
// two steps return the numbers of the plain graph up to rounding, and the bits of the file
// whose slices wait for each other, which makes them of the same rows.
func TestBoundRows(t *testing.T) {
	e := engine(t)
	large := func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 64, 2, 4000, 32, 1
	}
	for _, c := range []struct {
		kind  optim.Kind
		share float64 // of the largest parameter's bytes the peak may be
		// waits is what the peak is at least, as a share, where slices wait.
		waits float64
	}{
		{optim.AdamW, 0.9, 1}, {optim.SGD, 0.9, 1}, {optim.Lion, 0.9, 1}, {optim.Adafactor, 1, 1}, {optim.ApolloMini, 0.9, 1},
	} {
		m := zooStep(t, "gpt2", c.kind, large)
		largest := float64(4000 * 64 * 4)
		for _, level := range []int{0, 1, 99} {
			if c.kind != optim.AdamW && level != 1 {
				continue
			}
			t.Run(fmt.Sprintf("%v at %d", c.kind, level), func(t *testing.T) {
				plain := runPlanned(t, e, m, Options{OptLevel: level}, "none")
				waiting := runPlanned(t, e, m, Options{OptLevel: level, Divisions: Divisions{Rows: auto, Chunk: auto}}, "full")
				got := runPlanned(t, e, m, Options{OptLevel: level, Outputs: step.Rows, Divisions: Divisions{Rows: auto, Chunk: auto}}, "full")
				if share := float64(got.peaks[0]) / largest; share > c.share {
					t.Errorf("live peak %.2f of the largest parameter", share)
				}
				if share := float64(waiting.peaks[0]) / largest; share < c.waits {
					t.Errorf("live peak %.2f of the largest parameter where slices wait: nothing is shown", share)
				}
				for name, want := range plain.outputs {
					within := 1e-5
					if c.kind == optim.Adafactor { // whole, it sums the squares of 4000 rows one after the other
						within = 5e-5
					}
					if d := farthest(want, got.outputs[name]); !(d <= within) {
						t.Errorf("output %s differs by %g of its largest magnitude", name, d)
					}
					if string(waiting.outputs[name]) != string(got.outputs[name]) {
						t.Errorf("output %s has other bits than where slices wait", name)
					}
				}
				if len(got.outputs) != len(plain.outputs) {
					t.Errorf("a step returns %d outputs, the plain graph's %d", len(got.outputs), len(plain.outputs))
				}
			})
		}
	}
}

// TestRowsByEveryStrategy: each strategy's file reaches the peak that is predicted with rows
// bound, chosen form or not, and the least peak is one that needs them.
func TestRowsByEveryStrategy(t *testing.T) {
	e := engine(t)
	for _, kind := range []optim.Kind{optim.AdamW, optim.Lion} {
		t.Run(string(kind), func(t *testing.T) {
			m := zooStep(t, "gpt2", kind, func(c *models.Config) {
				smallZoo(c)
				c.Layers, c.Vocab = 2, 3000
			})
			everyWay(t, e, m, step.Rows)
			files := leastByWay(t, e, m)
			for way, f := range files {
				if more := len(f.Model.Graph.Outputs) - len(m.Graph.Outputs); (more > 0) != (way == step.Rows) {
					t.Errorf("%s: the least peak's file has %d more outputs", way, more)
				}
			}
			o := Options{OptLevel: 1, Threads: 2, Outputs: step.Rows, Divisions: Divisions{Chunk: auto, Tile: auto, Rows: auto}}
			named := plannedAs(t, e, m, o, func(p *Planner) (*File, error) { return p.Plan("least", 0) })
			if peak := files[step.Rows].Peak; named.Peak < peak {
				t.Errorf("least peak %d, with the divisions named %d", peak, named.Peak)
			}
		})
	}
}

// TestRowsForWhoBindsNothing: the file's next values are whole without bindings too, and
// with the ordinary ones.
func TestRowsForWhoBindsNothing(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2", optim.AdamW, func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 1, 32, 2, 1000, 16, 1
	})
	o := Options{OptLevel: 1, Threads: 2, Provider: ort.CPU, Outputs: step.Rows, Divisions: Divisions{Rows: auto, Chunk: auto}}
	bindsNothing(t, e, plannedAs(t, e, m, o, func(p *Planner) (*File, error) { return p.Plan("full", 0) }))
}

// TestRowsReadLate: a reader that cuts rows out after they are written keeps the next value
// out of its input's memory, or is led before; one that reads the rows of later slices does
// not matter. Whatever is decided, what it reads is what was there.
func TestRowsReadLate(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		name, late string
		inPlace    bool
	}{
		{"nothing", "beside = Relu(x)", true},
		{"rows of the first slice", "beside = Slice(past, zero, two, zero)", false},
		{"rows of the second slice", "beside = Slice(past, two, four, zero)", true},
		{"all", "beside = Relu(past)", false},
	} {
		text := `model ir=10 opset=20
graph g {
in x float32[2,3]
in w float32[4,3]
init zero int64[1] = [0]
init two int64[1] = [2]
init four int64[1] = [4]
top = Slice(w, zero, two, zero)
w.new.0 = Sub(top, x)
size = Size(w.new.0)
count = Unsqueeze(size, zero)
none = Slice(count, zero, zero)
past = Unsqueeze(w, none)
` + c.late + `
besides = Size(beside)
counts = Unsqueeze(besides, zero)
nothing = Slice(counts, zero, zero)
after = Unsqueeze(w, nothing)
bottom = Slice(after, two, four, zero)
w.new.1 = Sub(bottom, x)
w.new = Concat(w.new.0, w.new.1) {axis=0}
loss = ReduceSum(beside) {keepdims=0}
out loss float32[]
out beside float32[?,3]
out w.new.0 float32[2,3]
out w.new.1 float32[2,3]
out w.new float32[4,3]
}
`
		if c.name == "all" || c.name == "nothing" {
			text = strings.Replace(text, "beside float32[?,3]", map[string]string{"all": "beside float32[4,3]", "nothing": "beside float32[2,3]"}[c.name], 1)
		} else {
			text = strings.Replace(text, "beside float32[?,3]", "beside float32[2,3]", 1)
		}
		m, err := onnx.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		roles := step.Roles{Loss: "loss", New: map[string]string{"w": "w.new"}}
		run := func(way step.Outputs) (map[string][]byte, *runtime.Session) {
			s, err := e.Open(m, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Seed: 3, Roles: &roles, Outputs: way})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			t.Cleanup(func() { s.Close() })
			return steps(t, s, 2, func(int, int64) {}).outputs, s
		}
		want, _ := run(step.Returned)
		got, s := run(step.Rows)
		if s.InPlace("w") != c.inPlace || slices.Contains(s.Bound(), "w.new.1") != c.inPlace {
			t.Errorf("%s: in place %v, bound %v", c.name, s.InPlace("w"), s.Bound())
		}
		for _, name := range []string{"loss", "beside", "w.new"} {
			if string(want[name]) != string(got[name]) {
				t.Errorf("%s: output %s has other bits", c.name, name)
			}
		}
	}
}
