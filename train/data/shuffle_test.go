package data

import (
	"math"
	"slices"
	"testing"
)

// Every epoch is a permutation, of any number of samples.
func TestEpochIsAPermutation(t *testing.T) {
	for n := int64(1); n < 300; n++ {
		for epoch := range uint64(3) {
			p := permute(n, 7, epoch)
			seen := make([]bool, n)
			for i := range n {
				s := p.at(i)
				if s < 0 || s >= n || seen[s] {
					t.Fatalf("%d samples, epoch %d: place %d holds %d", n, epoch, i, s)
				}
				seen[s] = true
			}
		}
	}
	p := permute(math.MaxInt64, 1, 2)
	if s := p.at(math.MaxInt64 - 1); s < 0 {
		t.Fatalf("the largest number of samples: %d", s)
	}
}

// Over seeds and epochs, each sample stands at each place equally often.
func TestEveryPlaceIsAsLikely(t *testing.T) {
	for _, n := range []int64{2, 3, 5, 8, 13} {
		const draws = 20000
		counts := make([]int, n*n)
		for seed := range uint64(100) {
			for epoch := range uint64(draws / 100) {
				p := permute(n, seed, epoch)
				for i := range n {
					counts[i*n+p.at(i)]++
				}
			}
		}
		// Five deviations of a binomial draw.
		want := draws / float64(n)
		bound := 5 * math.Sqrt(want*(1-1/float64(n)))
		for at, c := range counts {
			if math.Abs(float64(c)-want) > bound {
				t.Errorf("%d samples: sample %d stands at place %d in %d draws, want %.0f ± %.0f", n, at%int(n), at/int(n), c, want, bound)
			}
		}
	}
}

// Neighbours of one epoch are not neighbours of the next, and another seed is
// another order.
func TestOrdersDiffer(t *testing.T) {
	list := func(o order, epoch int64) []int64 {
		var out []int64
		for i := range o.samples {
			out = append(out, o.at(epoch*o.samples+i))
		}
		return out
	}
	a := newOrder(1000, true, 1)
	first, second := list(a, 0), list(a, 1)
	if slices.Equal(first, second) || slices.Equal(first, list(newOrder(1000, true, 2), 0)) || slices.IsSorted(first) {
		t.Error("orders that ought to differ do not")
	}
	if !slices.Equal(first, list(a, 0)) || !slices.Equal(list(newOrder(5, false, 1), 3), []int64{0, 1, 2, 3, 4}) {
		t.Error("an order is not a function of its place")
	}
	fixed := 0
	for i, s := range first {
		if int64(i) == s {
			fixed++
		}
	}
	if fixed > 10 { // one is expected
		t.Errorf("%d of 1000 samples stay where they are", fixed)
	}
}

func BenchmarkOrder(b *testing.B) {
	o := newOrder(9_000_000_000/1024, true, 1)
	for i := range b.N {
		o.at(int64(i))
	}
}
