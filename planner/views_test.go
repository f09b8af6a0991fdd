package planner

import (
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

// TestBackwardViews: what backward reads through a view that it makes itself may be dropped
// as if it read the value, and holds as little.
func TestBackwardViews(t *testing.T) {
	stack := func(viewed bool) *Problem {
		b := newBuilder()
		x := b.matmul(b.feed("x", 1<<20), b.weight("w", 1<<14), 1<<20, 1<<24)
		cuts := []int{x}
		for i := range 6 {
			in, y := x, b.act("Exp", b.bytes(x), b.bytes(x), x)
			b.tape = append(b.tape, func() {
				read := y
				if viewed {
					read = b.backwardView(y)
				}
				b.flow(in, "ExpGrad", b.bytes(in), b.grads[y], read)
			})
			x = b.matmul(y, b.weight(fmt.Sprint("w", i), 1<<14), 1<<20, 1<<24)
			cuts = append(cuts, x)
		}
		return b.finish(x, cuts)
	}
	straight, viewed := stack(false), stack(true)
	for _, strategy := range []string{"none", "full", "least"} {
		want, got := peaks(t, straight, strategy), peaks(t, viewed, strategy)
		if got.Peak > want.Peak {
			t.Errorf("%s: %d bytes, %d without views", strategy, got.Peak, want.Peak)
		}
	}
	if least, all := peaks(t, viewed, "least").Peak, peaks(t, viewed, "none").Peak; least >= all {
		t.Errorf("nothing is dropped: %d of %d bytes", least, all)
	}
}

// backwardView is a view that backward makes.
func (b *builder) backwardView(x int) int {
	y := b.op("Reshape", 0, []int{x}, b.value(fmt.Sprint("view.", len(b.p.Values)), b.bytes(x), ortmodel.Inner, Gradient))
	b.p.Graph.Nodes[len(b.p.Graph.Nodes)-1].Alias = []ortmodel.Pair{{Input: 0, Output: 0}}
	return y
}
