package analysis

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// estimated is a joint graph whose nodes have names, and its analysis without measured times.
func estimated(t *testing.T) (*onnx.Model, *Analysis) {
	t.Helper()
	m, err := onnx.Load("../../testdata/models/joint/mlp20.EMA.onnx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	m.Graph.NameNodes()
	plain, err := Analyze(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m, plain
}

// TestCosts: measured times replace the estimates, and what was not measured
// takes as long as its share of the work at the pace of what was.
func TestCosts(t *testing.T) {
	m, plain := estimated(t)
	measured, first := map[string]int64{}, -1
	for i, op := range plain.Problem.Ops {
		switch {
		case op.FLOPs == 0: // views
		case first < 0:
			first = i
		default: // two nanoseconds for each operation and byte
			measured[plain.Nodes[i].Name()] = 2 * (op.FLOPs + op.Moved)
		}
	}
	a, err := Analyze(m, Options{Costs: measured})
	if err != nil {
		t.Fatal(err)
	}
	for i, op := range plain.Problem.Ops {
		want, got := 2*(op.FLOPs+op.Moved), a.Problem.Ops[i].FLOPs
		if got < want-1 || got > want || a.Counted[i] != op.FLOPs {
			t.Errorf("%s: %d for %d, counted %d for %d", op.Name, got, want, a.Counted[i], op.FLOPs)
		}
	}
	if first < 0 || plain.Counted != nil {
		t.Errorf("no node was left unmeasured, or operations were counted twice: %d, %v", first, plain.Counted)
	}
}

// TestCostsOfParts: what was not measured takes the pace of its own kind: products that of
// products, the rest that of the rest; and no node takes less than a view did.
func TestCostsOfParts(t *testing.T) {
	m, plain := estimated(t)
	const view = 5000
	type kind struct{ product, view bool }
	measured, seen := map[string]int64{}, map[kind]int{}
	time := func(i int) int64 {
		op := plain.Problem.Ops[i]
		switch work := op.FLOPs + op.Moved; {
		case work == 0:
			return view
		case CountsProduct(plain.Nodes[i].OpType()):
			return max(view, 3*work)
		default:
			return max(view, 40*work)
		}
	}
	left := map[int]bool{}
	for i, op := range plain.Problem.Ops {
		k := kind{CountsProduct(plain.Nodes[i].OpType()), op.FLOPs+op.Moved == 0}
		if seen[k]++; seen[k]%2 == 0 {
			left[i] = true
		} else if k.view || time(i) > view { // a time that the pace gives
			measured[plain.Nodes[i].Name()] = time(i)
		}
	}
	a, err := Analyze(m, Options{Costs: measured})
	if err != nil {
		t.Fatal(err)
	}
	checked := map[kind]int{}
	for i := range left {
		op := plain.Problem.Ops[i]
		if got, want := a.Problem.Ops[i].FLOPs, time(i); got < want-1 || got > want {
			t.Errorf("%s: %d ns, want %d", op.Name, got, want)
		}
		checked[kind{CountsProduct(plain.Nodes[i].OpType()), op.FLOPs+op.Moved == 0}]++
	}
	if len(checked) < 3 {
		t.Errorf("left to guess: %v", checked)
	}
}
