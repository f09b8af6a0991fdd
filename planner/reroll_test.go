package planner

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

// batched is a step over n micro-batches like that of p, whose last op in forward is its loss: each slice is
// cut out of the feeds once the sums before are there, gradients are summed up, and the sums update in the end.
// The slice odd has values twice as large, -1: none. joined: each slice returns a value, and they are joined.
func batched(p *Problem, n, odd int, joined bool) *Problem {
	b := newBuilder()
	q := b.p
	shared := map[int]int{} // parameters and feeds
	sums := map[int]int{}   // parameter's gradient in p -> sum so far
	versions := map[int][]int{}
	var pieces, before []int
	feed := 0
	for k := range n {
		now := map[int]int{}
		scale := int64(1)
		if k == odd {
			scale = 2
		}
		for v := range p.Values {
			if p.Graph.Values[v].Kind != ortmodel.Feed {
				continue
			}
			if p.Values[v].Role == Feed {
				feed = v
			}
			if k == 0 {
				shared[v] = b.value(p.Values[v].Name, p.Graph.Values[v].Bytes, ortmodel.Feed, p.Values[v].Role)
			}
			if now[v] = shared[v]; p.Values[v].Role == Feed {
				now[v] = b.act("Slice", 0, scale*p.Graph.Values[v].Bytes/int64(n), append([]int{shared[v]}, before...)...)
				q.Ops[len(q.Ops)-1].Recomputable = false
			}
		}
		before = nil
		for i, node := range p.Graph.Nodes {
			in := make([]int, len(node.Inputs))
			for j, v := range node.Inputs {
				in[j] = now[v]
			}
			o := node.Outputs[0]
			role := p.Values[o].Role
			if role == Returned {
				role = Gradient
			}
			if p.Ops[i].Type == "Loss" { // as labels that are cut without waiting for the slice before
				in = append(in, b.act("Cut", 0, 512, shared[feed]))
			}
			out := b.value(fmt.Sprintf("%s/%d", p.Values[o].Name, k), scale*p.Graph.Values[o].Bytes, ortmodel.Inner, role)
			b.op(p.Ops[i].Type, p.Ops[i].FLOPs, in, out)
			last := &q.Graph.Nodes[len(q.Graph.Nodes)-1]
			last.Alias, last.InPlace = node.Alias, node.InPlace
			now[o] = out
			versions[o] = append(versions[o], out)
			if p.Values[o].Role != Returned {
				continue
			}
			if sum, ok := sums[o]; ok {
				to := b.value(fmt.Sprintf("sum/%s/%d", p.Values[o].Name, k), p.Graph.Values[o].Bytes, ortmodel.Inner, Gradient)
				out = b.op("Sum", p.Graph.Values[o].Bytes, []int{sum, out}, to)
				q.Graph.Nodes[len(q.Graph.Nodes)-1].InPlace = []ortmodel.Pair{{Input: 0, Output: 0}}
			}
			sums[o] = out
			before = append(before, out)
		}
		if joined {
			pieces = append(pieces, now[p.Cuts[0][0]])
		}
	}
	for _, o := range slices.Sorted(maps.Keys(sums)) {
		to := b.value("new/"+p.Values[o].Name, p.Graph.Values[o].Bytes, ortmodel.Output, Returned)
		b.op("Update", p.Graph.Values[o].Bytes, []int{sums[o]}, to)
	}
	if joined {
		to := b.value("joined", 4, ortmodel.Output, Returned)
		b.op("Join", 1, pieces, to)
	}
	q.Loss = ortmodel.None
	for _, cut := range p.Cuts {
		q.Cuts = append(q.Cuts, versions[cut[0]])
	}
	q.Layers, q.Static = q.Cuts, true
	if err := q.Validate(); err != nil {
		panic(err)
	}
	return q
}

// A step over micro-batches is searched as one over three, whatever their number; each of the plans is one of the
// whole step, orders hold what they do rerolled, and no plan of the search without rerolling is much better.
func TestReroll(t *testing.T) {
	one := transformer(3, 64, 32, 16, 4)
	var ops int
	var events int64
	for _, n := range []int{4, 8, 16} {
		p := batched(one, n, -1, false)
		ix := p.indexed()
		r := ix.rolled()
		if r == nil {
			t.Fatalf("%d micro-batches: not rerolled", n)
		}
		found := ix.explored().front
		small := r.small.indexed()
		if ops == 0 {
			ops, events = len(r.small.Ops), small.events
		}
		if len(r.small.Ops) != ops || small.events > events+events/8 {
			t.Errorf("%d micro-batches are searched by %d operators, simulated %d times, four by %d and %d", n, len(r.small.Ops), small.events, ops, events)
		}
		if got, want := small.total, ix.total; max(got-want, want-got) > int64(len(ix.reads)) { // bytes moved are rounded
			t.Errorf("%d micro-batches: the plain step costs %d rerolled, and %d", n, got, want)
		}
		for _, base := range small.orders {
			got, want := newLiveSim(ix).run(r.unroll(base).order), newLiveSim(small).run(base.order)
			if got > want+want/100 {
				t.Errorf("%d micro-batches: an order holds %d bytes unrolled, %d rerolled", n, got, want)
			}
		}
		for _, q := range found.points {
			plan := ix.unlegalized("optimal", q)
			if err := plan.Check(p); err != nil {
				t.Fatalf("%d micro-batches: %v", n, err)
			}
		}
		tune := standard
		tune.off |= stageReroll
		p = batched(one, n, -1, false)
		p.tuned = &tune
		if p.indexed().rolled() != nil {
			t.Fatal("rerolled although that is off")
		}
		direct := p.indexed().explored().front
		for _, q := range direct.points {
			if !found.covered(q.peak+q.peak/100, q.work+ix.total/50) {
				t.Errorf("%d micro-batches: no plan within %d bytes repeats as little as %d of work, which is found without rerolling", n, q.peak, q.work)
			}
		}
	}
}

// What doesn't repeat, or hands on more than sums, is searched whole.
func TestNotRerolled(t *testing.T) {
	one := transformer(3, 64, 32, 16, 4)
	for name, p := range map[string]*Problem{
		"three micro-batches": batched(one, 3, -1, false),
		"one that is larger":  batched(one, 8, 3, false),
		"results joined":      batched(one, 8, -1, true),
		"no micro-batches":    one,
		"with limits on layers": func() *Problem {
			p := batched(one, 8, -1, false)
			p.Limits = []Limit{{Name: "all", Of: make([]bool, len(p.Ops)), Bytes: 1}}
			return p
		}(),
	} {
		if p.indexed().rolled() != nil {
			t.Errorf("%s: rerolled", name)
		}
		if front := p.indexed().explored().front; len(front.points) == 0 {
			t.Errorf("%s: nothing found", name)
		}
	}
}
