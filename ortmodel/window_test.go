package ortmodel

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestWindowIsTheProfile: what a window says of its order is what the simulator
// says; and of another order of the stretch too, where nothing behind it can be
// handed another buffer: because nothing is there, or no shape is known.
func TestWindowIsTheProfile(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	moved := 0
	for try := range 3000 {
		g := randomGraph(r, 1+r.IntN(40))
		if try%2 == 0 {
			for v := range g.Values {
				g.Values[v].Class = None
			}
		}
		order := shuffled(r, g)
		s := NewSimulator(g)
		from := r.IntN(len(order) + 1)
		to := from + r.IntN(len(order)+1-from)
		if try%2 != 0 {
			to = len(order)
		}
		w := NewWindow(s)
		profile := slices.Clone(s.Profile(order))
		w.At(order, from, to)
		for range 4 {
			other := slices.Clone(order)
			copy(other[from:to], topologicalStretch(r, g, order[from:to]))
			if !slices.Equal(other, order) {
				moved++
			}
			want := slices.Clone(NewSimulator(g).Profile(other)[from:to])
			if got := w.Profile(other[from:to]); !slices.Equal(got, want) {
				t.Fatalf("try %d: places %d to %d of %v as %v: %v, want %v", try, from, to, order, other, got, want)
			}
			if got := w.Profile(order[from:to]); !slices.Equal(got, profile[from:to]) {
				t.Fatalf("try %d: again: %v, want %v", try, got, profile[from:to])
			}
		}
	}
	if moved < 3000 {
		t.Errorf("only %d orders were others", moved)
	}
}

// topologicalStretch is a random topological order of some of g's nodes.
func topologicalStretch(r *rand.Rand, g *Graph, nodes []int) []int {
	e := dependencies(g)
	left := slices.Clone(nodes)
	var order []int
	for len(left) > 0 {
		k := r.IntN(len(left))
		if !slices.ContainsFunc(e.of(int32(left[k])), func(p int32) bool { return slices.Contains(left, int(p)) }) {
			order = append(order, left[k])
			left = slices.Delete(left, k, k+1)
		}
	}
	return order
}
