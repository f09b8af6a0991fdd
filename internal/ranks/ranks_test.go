package ranks

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// buffers are those of n ranks, with numbers whose sum depends on its order.
func buffers(n, elements int) [][]float32 {
	r := rand.New(rand.NewPCG(uint64(n), uint64(elements)))
	all := make([][]float32, n)
	for i := range all {
		all[i] = make([]float32, elements)
		for j := range all[i] {
			all[i][j] = float32(r.NormFloat64() * math.Exp(8*r.Float64()))
		}
	}
	return all
}

// TestSum: every rank has the sum in the order of the ranks, bit for bit, and has sent
// what is stated, which is 2(n-1) times the buffer for all.
func TestSum(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 7} {
		for _, elements := range []int{0, 1, 2, 5, 1000, 3*scratchElements + 5} {
			all := buffers(n, elements)
			want := make([]float32, elements)
			for i := range want {
				for r := range n {
					want[i] += all[r][i]
				}
			}
			sent := make([]int64, n)
			err := Run(n, func(g *Group) error {
				if g.Size() != n {
					return fmt.Errorf("%d ranks", g.Size())
				}
				err := g.Combine(all[g.Rank()], Sum)
				sent[g.Rank()] = g.Sent()
				if n > 1 && g.Held() != Scratch(n) {
					return fmt.Errorf("holds %d bytes, want %d", g.Held(), Scratch(n))
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			total := int64(0)
			for r := range n {
				if !slices.Equal(all[r], want) {
					t.Errorf("rank %d of %d, %d elements: another sum", r, n, elements)
				}
				if bytes := CombineBytes(elements, r, n); sent[r] != bytes {
					t.Errorf("rank %d of %d, %d elements: sent %d bytes, want %d", r, n, elements, sent[r], bytes)
				}
				total += sent[r]
			}
			if bytes := 8 * int64(n-1) * int64(elements); total != bytes {
				t.Errorf("%d ranks, %d elements: sent %d bytes, want %d", n, elements, total, bytes)
			}
		}
	}
}

// TestFold: every element of the chunk is folded once, with the parts of all ranks.
func TestFold(t *testing.T) {
	const n, elements = 3, 2*scratchElements + 7
	all := buffers(n, elements)
	first := slices.Clone(all[0])
	err := Run(n, func(g *Group) error {
		from, to := Chunk(elements, g.Rank(), n)
		next := 0
		err := g.Combine(all[g.Rank()], func(parts [][]float32, own, at int) {
			if at != next || !slices.Equal(parts[0], first[from+at:from+at+len(parts[own])]) {
				t.Errorf("rank %d: block at %d, want %d", own, at, next)
			}
			next += len(parts[own])
			for i := range parts[own] {
				parts[own][i] = float32(from + at + i)
			}
		})
		if next != to-from {
			t.Errorf("rank %d: folded %d of %d", g.Rank(), next, to-from)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for r := range n {
		for i, v := range all[r] {
			if v != float32(i) {
				t.Fatalf("rank %d: %v at %d", r, v, i)
			}
		}
	}
}

// TestAgree: an error of one is an error of all; a rank that fails or panics ends those
// that wait for it, and its error is the one that counts.
func TestAgree(t *testing.T) {
	failed := errors.New("no such file")
	said := make([]error, 4)
	err := Run(4, func(g *Group) error {
		var own error
		if g.Rank() == 2 {
			own = failed
		}
		if err := g.Agree(nil); err != nil {
			return err
		}
		said[g.Rank()] = g.Agree(own)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var of *RankError
	if said[2] != failed || !errors.As(said[0], &of) || of.Rank != 2 || of.Text != failed.Error() {
		t.Errorf("%v", said)
	}
	if err := Run(4, func(g *Group) error {
		if g.Rank() == 3 {
			return failed
		}
		return g.Combine(make([]float32, 100), Sum)
	}); err != failed {
		t.Errorf("%v", err)
	}
	defer func() {
		if p := recover(); p != "broken" {
			t.Errorf("%v", p)
		}
	}()
	_ = Run(2, func(g *Group) error {
		if g.Rank() == 1 {
			panic("broken")
		}
		_, err := g.Share([]byte{1})
		return err
	})
}

// TestOwned: every value ends at its owner as the sum in the order of the ranks, is handed
// on to all, and costs what is stated; no rank has a third more than its share, or more
// than the largest value where that is larger.
func TestOwned(t *testing.T) {
	elements := []int64{7, scratchElements + 3, 1, 400, 400, 0, 90, 3}
	for _, n := range []int{1, 2, 3, 4} {
		owner := Owners(elements, n)
		has, all := make([]int64, n), int64(0)
		for i, e := range elements {
			has[owner[i]] += e
			all += e
		}
		if most := slices.Max(has); most > max(slices.Max(elements), 4*all/int64(3*n)+1) {
			t.Errorf("%d ranks have %v", n, has)
		}
		values, want := make([][][]float32, n), make([][]float32, len(elements))
		for r := range n {
			values[r] = make([][]float32, len(elements))
		}
		for i, e := range elements {
			want[i] = make([]float32, e)
			for r, b := range buffers(n, int(e)) {
				values[r][i] = b
				for k := range b {
					want[i][k] += b[k]
				}
			}
		}
		err := Run(n, func(g *Group) error {
			own := values[g.Rank()]
			for _, f := range []func([][]float32) error{func(c [][]float32) error { return g.Reduce(c, Sum) }, g.Gather} {
				for _, round := range Rounds(elements, owner, n) {
					chunks := make([][]float32, n)
					for r, i := range round {
						if i >= 0 && owner[i] != r {
							return fmt.Errorf("value %d is of rank %d", i, owner[i])
						}
						if i >= 0 {
							chunks[r] = own[i]
						}
					}
					if err := f(chunks); err != nil {
						return err
					}
				}
			}
			if bytes := OwnedBytes(elements, owner, g.Rank(), n); g.Sent() != bytes {
				return fmt.Errorf("rank %d of %d sent %d bytes, want %d", g.Rank(), n, g.Sent(), bytes)
			}
			first := []float32{float32(g.Rank())}
			if err := g.Pass(Bytes(first), n-1, 0); err != nil || g.Rank() == 0 && first[0] != float32(n-1) {
				return fmt.Errorf("passed %v: %w", first, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for r := range n {
			for i := range elements {
				if !slices.Equal(values[r][i], want[i]) {
					t.Errorf("rank %d of %d: value %d is another", r, n, i)
				}
			}
		}
	}
}

// TestSchedules: both schedules run everything once, in an order in which what is read is
// there; the bubble is (K-1)/(M+K-1) of the ticks, and 1F1B holds no more than K-s
// micro-batches of what a stage keeps for itself.
func TestSchedules(t *testing.T) {
	for _, stages := range []int{2, 3, 4} {
		var flows []Flow
		for s := range stages { // stashes, activations, gradients
			flows = append(flows, Flow{s, []int{2*stages - 1 - s}, 100})
			if s+1 < stages {
				flows = append(flows, Flow{s, []int{s + 1}, 1}, Flow{2*stages - 2 - s, []int{2*stages - 1 - s}, 1})
			}
		}
		for _, micro := range []int{1, 2, 4, 8} {
			for _, kind := range []string{GPipe, OneForward} {
				ticks := Schedule(kind, stages, micro, flows)
				if len(ticks) != 2*(micro+stages-1) {
					t.Errorf("%s, %d stages, %d micro-batches: %d ticks", kind, stages, micro, len(ticks))
				}
				at := map[Op]int{}
				for i, tick := range ticks {
					for _, op := range tick.Run {
						if op.Group >= 0 {
							at[op] = i
						}
					}
				}
				if len(at) != 2*stages*micro {
					t.Errorf("%s, %d stages, %d micro-batches: %d runs", kind, stages, micro, len(at))
				}
				for op, i := range at {
					for _, f := range flows {
						if f.To[0] == op.Group && at[Op{f.From, op.Micro}] >= i {
							t.Errorf("%s: %v before %d", kind, op, f.From)
						}
					}
				}
				for s := range stages {
					held := StoreBytes(ticks, flows, stages, s) / 100
					want := int64(micro)
					if kind == OneForward {
						want = int64(min(micro, stages-s))
					}
					if held != want {
						t.Errorf("%s, %d stages, %d micro-batches: stage %d keeps %d", kind, stages, micro, s, held)
					}
				}
			}
		}
	}
}
