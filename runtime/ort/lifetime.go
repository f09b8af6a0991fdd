package ort

// Lifetimes: who keeps alive what memory came from.
//
// A tensor of ONNX Runtime's releases its memory through the allocator that made
// it, to which it holds a bare pointer. So an allocator goes after the last
// value that may lie in its memory, whichever order its users close in:
//
//	Session ──┐
//	Binding ──┼──▶ keeper ──▶ the device's allocator, the counting allocator
//	Value ────┘    released with its last user
//
// A binding keeps what its session and its values keep, and an output of a run
// what its binding keeps: it may be an input that the graph hands through.

import (
	"slices"
	"sync/atomic"
)

// A keeper releases an object of C with its last user. Whoever makes one is its
// first.
type keeper struct {
	users   atomic.Int32
	release func()
}

func newKeeper(release func()) *keeper {
	k := &keeper{release: release}
	k.users.Store(1)
	return k
}

// keepers are what one user keeps, each once, in the order in which they were made.
type keepers []*keeper

// take keeps others' keepers too.
func (ks *keepers) take(others keepers) {
	for _, k := range others {
		if !slices.Contains(*ks, k) {
			k.users.Add(1)
			*ks = append(*ks, k)
		}
	}
}

// give ends the use of all of them, the latest first: an allocator of a session
// may stand on its counter.
func (ks *keepers) give() {
	for _, k := range slices.Backward(*ks) {
		if k.users.Add(-1) == 0 {
			k.release()
		}
	}
	*ks = nil
}
