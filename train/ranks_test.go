package train

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"path/filepath"
	"strings"
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
		out[g.Rank()] = parameters(s)
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
	for name, values := range parameters(s) {
		start["start "+name] = values
	}
	if _, err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	maps.Copy(start, parameters(s))
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

// TestRounds: rounds of several steps end where a reference in float64 has them, whose
// ranks are sessions that keep their optimizer's state from round to round.
func TestRounds(t *testing.T) {
	const size, every, rounds = 2, 3, 4
	o := Outer{0.7, 0.9}
	var s [size]*runtime.Session
	for r := range s {
		s[r] = modes[0].open(t, modes[0].source(t, nil), runtime.Options{})
		defer s[r].Close()
		s[r].SetRate(1e-2)
	}
	first, common, momentum, moved := parameters(s[0]), parameters(s[0]), map[string][]float64{}, 0.0
	for n := range int64(every * rounds) {
		for r := range s {
			batch, err := tinyData.At(n*size + int64(r))
			if err != nil {
				t.Fatal(err)
			}
			if err := s[r].Feed(batch); err != nil {
				t.Fatal(err)
			}
			if _, err := s[r].Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if (n+1)%every == 0 {
			move(t, s[:], common, momentum, o)
		}
	}
	got := trainedLocally(t, size, every*rounds, Ranks{Every: every, Outer: o})
	for name, values := range common {
		most := 1e-4
		if strings.HasSuffix(name, "attn.c_attn.bias") { // a key's has no gradient but rounding, of which AdamW makes more on some machines
			most = 1e-2
		}
		for i, want := range values {
			for r := range size {
				if v := got[r][name][i]; math.Abs(v-want) > most {
					t.Fatalf("rank %d: %s[%d] = %v, want %v, from %v", r, name, i, v, want, first[name][i])
				}
			}
			moved = max(moved, math.Abs(want-first[name][i]))
		}
	}
	if moved < 0.1 {
		t.Errorf("no parameter moved by more than %v", moved)
	}
}

// move makes the outer step of all parameters, in float64, and sets the sessions to it.
func move(t *testing.T, s []*runtime.Session, common, momentum map[string][]float64, o Outer) {
	t.Helper()
	var own []map[string][]float64
	for _, s := range s {
		own = append(own, parameters(s))
	}
	for name, at := range common {
		if momentum[name] == nil {
			momentum[name] = make([]float64, len(at))
		}
		for i := range at {
			d := 0.0
			for r := range own {
				d += (at[i] - own[r][name][i]) / float64(len(own))
			}
			momentum[name][i] = o.Momentum*momentum[name][i] + d
			at[i] -= o.LR * (d + o.Momentum*momentum[name][i])
		}
		for _, s := range s {
			if err := s.Edit(name, func(v runtime.Tensor) error {
				for i, x := range at {
					binary.LittleEndian.PutUint32(v.Data[4*i:], math.Float32bits(float32(x)))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// parameters are those of a session, by name.
func parameters(s *runtime.Session) map[string][]float64 {
	out := map[string][]float64{}
	for _, name := range s.Trained() {
		_ = s.View(name, func(v runtime.Tensor) error { out[name] = doubles(v.Data); return nil }) // who compares finds what is missing
	}
	return out
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
