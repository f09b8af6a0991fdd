package ort

import (
	"context"
	"errors"
	"testing"
)

// TestClosedInAnyOrder closes a session, its binding and the values of both kinds
// in every order: those that a session's allocator makes and those that a run
// returns, with elements and without.
func TestClosedInAnyOrder(t *testing.T) {
	for _, provider := range providers(t) {
		for _, n := range []int64{0, 1 << 10} {
			for _, order := range permutations(4) {
				s := newSession(t, reluModel(Float32, n), SessionOptions{Threads: 1, Allocator: Counting, Provider: provider})
				x, err := s.NewDeviceTensor(Float32, []int64{n})
				if err != nil {
					t.Fatal(err)
				}
				b, err := s.NewBinding()
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(b.BindInput("x", x), b.BindOutputToDevice("y", provider, 0),
					s.Run(context.Background(), b, "")); err != nil {
					t.Fatal(err)
				}
				out, err := b.Outputs()
				if err != nil || out[0].Err != nil {
					t.Fatal(err, out)
				}
				y := out[0].Value
				y.Shape = append([]int64{}, y.Shape...) // whoever reads it later reads Go's memory
				closers := []func() error{s.Close, b.Close, x.Close, y.Close}
				for _, i := range order {
					if err := closers[i](); err != nil {
						t.Fatal(err)
					}
				}
				for _, k := range [][]*keeper{s.keep, b.keep[0], b.keep[1], x.keep, y.keep} {
					if len(k) > 0 {
						t.Fatalf("closed in order %v, %d keepers are kept", order, len(k))
					}
				}
			}
		}
	}
}

// TestReleasedLast: what a session's memory came from is released with the last
// of its users, and not before.
func TestReleasedLast(t *testing.T) {
	released := []string{}
	first := newKeeper(func() { released = append(released, "counter") })
	session := keepers{first, newKeeper(func() { released = append(released, "allocator") })}
	var value, binding keepers
	value.take(session)
	binding.take(value)
	binding.take(session) // once
	for _, k := range []*keepers{&session, &value} {
		k.give()
		if len(released) > 0 {
			t.Fatalf("%v was released while the binding keeps it", released)
		}
	}
	binding.give()
	if len(released) != 2 || released[0] != "allocator" || released[1] != "counter" || first.users.Load() != 0 {
		t.Errorf("released %v, users %d", released, first.users.Load())
	}
}

// TestBindingOfAClosedSession is refused, as it points to the session.
func TestBindingOfAClosedSession(t *testing.T) {
	s := newSession(t, reluModel(Float32, 4), SessionOptions{Threads: 1})
	x := newTensor(t, Float32, 4)
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, outputs := b.Outputs()
	for name, err := range map[string]error{
		"BindInput": b.BindInput("x", x), "BindOutput": b.BindOutput("y", x), "Synchronize": b.Synchronize(),
		"BindOutputToDevice": b.BindOutputToDevice("y", CPU, 0), "Outputs": outputs,
		"Run": s.Run(context.Background(), b, ""),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	b.ClearInputs()
	b.ClearOutputs()
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// providers are the CPU, and CUDA where it works.
func providers(t *testing.T) []Provider {
	t.Helper()
	c, err := testEnv.NewCopier(CUDA, 0)
	if err != nil {
		t.Logf("on the CPU only: %v", err)
		return []Provider{CPU}
	}
	c.Close()
	return []Provider{CPU, CUDA}
}

// permutations of the numbers below n.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			q := append(append(append([]int{}, p[:i]...), n-1), p[i:]...)
			all = append(all, q)
		}
	}
	return all
}
