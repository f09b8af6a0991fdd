package planner

import (
	"slices"
	"sort"

	"github.com/onnx-remat/remat/ortmodel"
)

// Control edges: making a node run early although its reader is late.
//
//	backward:  dlogits ─▶ dX ─▶ … twelve layers … ─▶ dEmb ─┐
//	              └─────▶ dW (frees dlogits) ──────────────┴▶ + ─▶ wte.grad
//
// ONNX Runtime runs a node when somebody needs it. Here dW waits for the end,
// and dlogits, the largest value of all, waits with it. A control edge puts a
// barrier before an operator that runs soon (the one after dX), which waits for
// dW: a true dependency, so dW runs now, and what it read is freed.
//
// The order that ONNX Runtime runs is a post-order, so what runs for one
// reader only is a contiguous stretch that ends in its root. A stretch that
// could have run much earlier, and would have freed more than its result
// holds, is a candidate.

// A ControlEdge makes operator Op's first execution wait for value After.
type ControlEdge struct{ Op, After int }

// A deferred stretch could have run sooner.
type deferred struct {
	from, to int // the stretch, as places in the order
	late     int // how many places sooner it could have run
	edge     ControlEdge
	gain     int64 // bytes that it would free then
}

// deferrals finds the stretches of an order that run late at a cost, and
// returns control edges against them, worst first; those of equal gain (the layers
// of a stack) in one batch.
func (ix *index) deferrals(order []int, sim *liveSim) [][]ControlEdge {
	return once(ix.deferred, hashOf(order, false), func() [][]ControlEdge { return ix.findDeferrals(order, sim) })
}

// once is what a function returns, called at the first time that a key is asked for.
func once[K comparable, T any](known map[K]T, key K, find func() T) T {
	found, ok := known[key]
	if !ok {
		found = find()
		known[key] = found
	}
	return found
}

func (ix *index) findDeferrals(order []int, sim *liveSim) [][]ControlEdge {
	sim.run(order)
	n := len(order)
	place := places(order)
	lastRead := ix.lastReads(order)
	var found []deferred
	start, seen := make([]int, n), make([]int, len(ix.root))
	for pos := range order {
		start[pos] = ix.stretch(order, start, pos)
		if pos-start[pos] >= ix.tune.deferralOps {
			continue
		}
		if d, ok := ix.deferral(order, place, lastRead, seen, sim, start[pos], pos); ok {
			found = append(found, d)
		}
	}
	cost := func(d deferred) float64 { return float64(d.gain) * float64(d.late) }
	sort.SliceStable(found, func(a, b int) bool { return cost(found[a]) > cost(found[b]) })
	var best []deferred
	for _, d := range found {
		free := true
		for _, b := range best {
			free = free && (d.to < b.from || b.to < d.from)
		}
		if free && len(best) < ix.tune.deferrals {
			best = append(best, d)
		}
	}
	type alike struct{ gain, size int64 }
	var batches [][]ControlEdge
	for _, stretches := range grouped(best, func(d deferred) alike { return alike{d.gain, int64(d.to - d.from)} }) {
		batch := make([]ControlEdge, len(stretches))
		for i, d := range stretches {
			batch[i] = d.edge
		}
		batches = append(batches, batch)
	}
	return batches
}

// lastReads returns for each root the last place that reads it or a view.
func (ix *index) lastReads(order []int) []int {
	last := slices.Repeat([]int{-1}, len(ix.root))
	for pos, op := range order {
		for _, v := range ix.reads[op] {
			last[ix.root[v]] = pos
		}
	}
	return last
}

// stretch returns where the contiguous run of nodes that serve the node at
// pos begins.
func (ix *index) stretch(order, start []int, pos int) int {
	from := pos
	for from > 0 {
		below := order[from-1]
		serves := false
		for _, v := range ix.reads[order[pos]] {
			serves = serves || ix.producer[v] == below
		}
		if !serves {
			break
		}
		from = start[from-1]
	}
	return from
}

// deferral looks at the stretch of an order between two places: what running it
// as soon as its inputs are there would free, and what edge that takes. False
// where it is not worth a control edge. place holds each operator's place in the
// order, lastRead the last place that reads each root, and seen, by root, one more than the last
// place of the stretch that it was looked at for: stretches come by that.
func (ix *index) deferral(order, place, lastRead, seen []int, sim *liveSim, from, to int) (deferred, bool) {
	ready := -1
	for pos := from; pos <= to; pos++ {
		for _, v := range ix.reads[order[pos]] {
			if made := ix.producer[v]; made >= 0 && place[made] < from {
				ready = max(ready, place[made])
			}
		}
		if from-ready < ix.tune.deferralWait {
			return deferred{}, false
		}
	}
	if ready < 0 {
		return deferred{}, false
	}
	var gain int64
	vals := ix.p.Graph.Values
	for pos := from; pos <= to; pos++ {
		for _, v := range ix.reads[order[pos]] {
			made := ix.producer[v]
			if made < 0 || place[made] >= from {
				continue
			}
			if r := ix.root[v]; seen[r] <= to && vals[r].Kind == ortmodel.Inner && ix.producer[r] >= 0 && lastRead[r] >= from && lastRead[r] <= to {
				seen[r] = to + 1
				gain += vals[r].Bytes
			}
		}
		for _, v := range ix.outs[order[pos]] {
			if r := ix.root[v]; seen[r] <= to && vals[r].Kind != ortmodel.Bound && ix.producer[r] >= 0 && place[ix.producer[r]] >= from && lastRead[r] > to {
				seen[r] = to + 1
				gain -= vals[r].Bytes
			}
		}
	}
	if gain < part(ix.tune.largeShare, sim.peak) {
		return deferred{}, false
	}
	out := ix.outs[order[to]]
	if len(out) == 0 || ix.p.Values[out[0]].Role == Index {
		return deferred{}, false
	}
	for pos := ready + 1; pos < from; pos++ {
		if op := order[pos]; ix.guardable(op) {
			return deferred{from, to, from - ready - 1, ControlEdge{Op: op, After: out[0]}, gain}, true
		}
	}
	return deferred{}, false
}

// guardable reports whether an input of op can pass through a barrier at no
// cost: a computed value that is no index.
func (ix *index) guardable(op int) bool {
	for _, v := range ix.p.Graph.Nodes[op].Inputs {
		if v >= 0 && ix.producer[v] >= 0 && ix.p.Values[v].Role != Index && ix.p.Graph.Values[v].Kind == ortmodel.Inner {
			return true
		}
	}
	return false
}
