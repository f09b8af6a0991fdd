package train

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"sync"
	"testing"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/runtime"
)

// trained runs ranks in local training on tinyData and returns the parameters of each,
// by name.
func trainedLocally(t *testing.T, size int, steps int64, r Ranks) []map[string][]float64 {
	t.Helper()
	out := make([]map[string][]float64, size)
	var lock sync.Mutex
	src := modes[0].source(t, nil)
	err := ranks.Run(size, func(g *ranks.Group) error {
		own := r
		own.Group = g
		s := modes[0].open(t, src, runtime.Options{})
		defer s.Close()
		j := &Job{
			Session: s, Accumulate: 1, Batches: Shard(tinyData, g.Rank(), size, &lock), Ranks: &own,
			Schedule: Schedule{Kind: "constant", LR: 1e-2, Steps: steps},
		}
		if err := j.Begin(nil); err != nil {
			return err
		}
		if _, err := j.Run(context.Background()); err != nil {
			return err
		}
		out[g.Rank()] = map[string][]float64{}
		for _, name := range s.Trained() {
			if err := s.View(name, func(v runtime.Tensor) error {
				out[g.Rank()][name] = doubles(v.Data)
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func doubles(data []byte) []float64 {
	out := make([]float64, len(data)/4)
	for i := range out {
		out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
	return out
}

// alone are the parameters that a rank has after one step by itself.
func alone(t *testing.T, rank, size int) map[string][]float64 {
	t.Helper()
	s := modes[0].open(t, modes[0].source(t, nil), runtime.Options{})
	defer s.Close()
	j := &Job{Session: s, Accumulate: 1, Batches: Shard(tinyData, rank, size, nil), Schedule: Schedule{Kind: "constant", LR: 1e-2, Steps: 1}}
	start := map[string][]float64{}
	for _, name := range s.Trained() {
		_ = s.View(name, func(v runtime.Tensor) error { start["start "+name] = doubles(v.Data); return nil })
	}
	if _, err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, name := range s.Trained() {
		_ = s.View(name, func(v runtime.Tensor) error { start[name] = doubles(v.Data); return nil })
	}
	return start
}

// TestOuterStep: after the first outer step all ranks stand where the formula has them,
// in float64, from what each rank comes to by itself: with a rate of 1 and no momentum
// that is their mean.
func TestOuterStep(t *testing.T) {
	const size = 3
	var own [size]map[string][]float64
	for r := range size {
		own[r] = alone(t, r, size)
	}
	for _, o := range []Outer{{1, 0}, {0.7, 0.9}, {0.5, 0.3}} {
		got := trainedLocally(t, size, 1, Ranks{Every: 1, Outer: o})
		for name, first := range got[0] {
			for i, v := range first {
				start, mean := own[0]["start "+name][i], 0.0
				for r := range size {
					mean += own[r][name][i] / size
				}
				d := start - mean
				m := d // the momentum begins as 0
				want := start - o.LR*(d+o.Momentum*m)
				if math.Abs(v-want) > 1e-7*(1+math.Abs(want)) {
					t.Fatalf("%+v: %s[%d] = %v, want %v", o, name, i, v, want)
				}
				for r := range size {
					if got[r][name][i] != v {
						t.Fatalf("%+v: rank %d stands elsewhere", o, r)
					}
				}
			}
		}
	}
}

// TestMomentum: with two outer steps the second adds what is left of the first.
func TestMomentum(t *testing.T) {
	// One rank: its difference is that of its own step, from where the outer one stands.
	const lr, mu = 0.7, 0.9
	r := &Ranks{Outer: Outer{lr, mu}, chunks: map[string][]float32{commonName("p"): {1, -2}, momentumName("p"): {0.5, 0.25}}}
	p := []float32{0.75, -1.5}
	r.outerStep("p")([][]float32{p, {0.5, -2}}, 0, 0)
	for i, c := range []struct{ common, momentum, other, first float64 }{{1, 0.5, 0.5, 0.75}, {-2, 0.25, -2, -1.5}} {
		d := c.common - (c.first+c.other)/2
		m := mu*c.momentum + d
		want := c.common - lr*(d+mu*m)
		if math.Abs(float64(p[i])-want) > 1e-6 || math.Abs(float64(r.chunks[momentumName("p")][i])-m) > 1e-6 || r.chunks[commonName("p")][i] != p[i] {
			t.Errorf("%d: %v, want %v", i, p[i], want)
		}
	}
}

// TestShard: N ranks see every batch once, in order.
func TestShard(t *testing.T) {
	for n := range int64(12) {
		got, err := Shard(tinyData, int(n%3), 3, nil).At(n / 3)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := tinyData.At(n)
		if string(got["input_ids"].Data) != string(want["input_ids"].Data) {
			t.Errorf("batch %d is another", n)
		}
	}
}

// TestStateOfRank: chunks are part of a state; one that lacks them, or has them of
// another size, or is that of other ranks, is refused.
func TestStateOfRank(t *testing.T) {
	src := modes[0].source(t, nil)
	dir := t.TempDir()
	err := ranks.Run(2, func(g *ranks.Group) error {
		s := modes[0].open(t, src, runtime.Options{})
		defer s.Close()
		from := Position{Ranks: 2, Sync: "local=2"}
		j := &Job{
			Session: s, Accumulate: 1, Batches: Shard(tinyData, g.Rank(), 2, nil), From: from,
			Ranks:    &Ranks{Group: g, Every: 2, Outer: Outer{0.7, 0.9}},
			Schedule: Schedule{Kind: "constant", LR: 1e-2, Steps: 2}, Folder: folder(t, filepath.Join(dir, string(rune('a'+g.Rank()))), 2),
		}
		if err := j.Begin(nil); err != nil {
			return err
		}
		result, err := j.Run(context.Background())
		if err != nil {
			return err
		}
		state, err := OpenState(result.State)
		if err != nil {
			return err
		}
		defer state.Close()
		kept := state.Values()
		if err := state.Fits(j.Holder()); err != nil {
			t.Error(err)
		}
		if err := state.Fits(s); err == nil {
			t.Error("a training without ranks takes it")
		}
		other := from
		if other.Ranks = 3; state.Continues(from, tinyData) != nil || state.Continues(other, tinyData) == nil {
			t.Errorf("%v, of other ranks: %v", state.Continues(from, tinyData), state.Continues(other, tinyData))
		}
		name := commonName(s.Trained()[0])
		if j.Begin(kept) != nil {
			t.Error(j.Begin(kept))
		}
		short := kept[name]
		short.Data = short.Data[4:]
		kept[name] = short
		if j.Begin(kept) == nil {
			t.Error("a chunk of another size is taken")
		}
		delete(kept, name)
		if j.Begin(kept) == nil {
			t.Error("a chunk that is missing is taken")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
