package pipeline

import (
	"testing"

	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestLateUpdatesTakeFewEdges: a normalization over the batch that runs again comes before
// the update of its running statistics. What the update alone asks for waits with it. Were
// it to stay where it was, each node would be held there by a control edge: 1,365 nodes of
// edges in this file in place of 529.
func TestLateUpdatesTakeFewEdges(t *testing.T) {
	m := normalizing(t, optim.AdamW)
	p, err := NewPlanner(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	work := 0.1
	f, err := p.PlanWithin("optimal", Budget{Work: &work})
	if err != nil {
		t.Fatal(err)
	}
	again, edges := 0, 0
	for _, n := range f.Model.Graph.Nodes {
		if control.Is(n) {
			edges++
		} else if n.MadeBy("recompute") && n.Is("BatchNormalization") {
			again++
		}
	}
	given := 0
	for _, n := range m.Graph.Nodes {
		if control.Is(n) {
			given++
		}
	}
	t.Logf("%d nodes of control edges, %d as derived; %d normalizations run again; %d of %d bytes", edges, given, again, f.Peak, p.Before.LivePeak)
	if again == 0 {
		t.Fatal("no normalization runs again: the test shows nothing")
	}
	if edges > 3*given {
		t.Errorf("%d nodes of control edges, %d as derived", edges, given)
	}
}
