package planner

import (
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

// TestBackwardViews: what backward reads through a view that it makes itself may be dropped
// as if it read the value, and holds as little.
func TestBackwardViews(t *testing.T) {
	straight, viewed := exponents(6, false), exponents(6, true)
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

// TestLeastSearchesTwice: in a graph that is too large to be searched with what backward views
// kept too, the least peak alone is worth that second search.
func TestLeastSearchesTwice(t *testing.T) {
	p := exponents(20, true) // too large to try every set
	tune := standard
	tune.narrowOps = 0
	p.tuned = &tune
	for _, err := range optimalFrontier(p, 1<<62, nil) {
		if err != nil {
			t.Fatal(err)
		}
	}
	e := p.indexed().explored()
	if e.narrow != nil {
		t.Fatal("a budget's search ran twice")
	}
	once := e.front.points[0].peak
	if _, err := Least(p, "least"); err != nil {
		t.Fatal(err)
	}
	if len(e.narrow) == 0 {
		t.Error("the least peak was searched for once")
	}
	if twice := e.front.points[0].peak; twice > once {
		t.Errorf("%d bytes by two searches, %d by one", twice, once)
	}
}

// exponents is a stack of Exp between products; backward reads the values of Exp, viewed or not.
func exponents(layers int, viewed bool) *Problem {
	b := newBuilder()
	x := b.matmul(b.feed("x", 1<<20), b.weight("w", 1<<14), 1<<20, 1<<24)
	cuts := []int{x}
	for i := range layers {
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

// backwardView is a view that backward makes.
func (b *builder) backwardView(x int) int {
	y := b.op("Reshape", 0, []int{x}, b.value(fmt.Sprint("view.", len(b.p.Values)), b.bytes(x), ortmodel.Inner, Gradient))
	b.p.Graph.Nodes[len(b.p.Graph.Nodes)-1].Alias = []ortmodel.Pair{{Input: 0, Output: 0}}
	return y
}
