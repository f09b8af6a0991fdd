package planner

import (
	"math/bits"
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// A lower bound on the peak of every plan.
//
// Look at the first execution of an operator o, in any schedule whatever.
// At that moment these buffers exist, each once:
//
//  1. every buffer that o reads and the step allocates;
//  2. o's outputs that cannot share one of those (no view, not in place), and
//     what its kernel allocates inside;
//  3. every output of the step that an ancestor of o made: outputs are never
//     released;
//  4. the result of every operator a that is never run twice (backward, or
//     not recomputable), if a is an ancestor of o and o an ancestor of one of
//     its readers b: a ran before o, b has not yet, and there will be no other
//     instance to read.
//
// For 4, b's first execution reads the only instance, so its buffer is held
// across o. Sharing buffers between values only ever joins a value with one
// that is dead or is o's own input, which 2 accounts for. So the sum over 1
// to 4 is a bound, for each o; the largest counts. And when the last operator
// runs for the first time, all outputs exist: they and the smallest set of
// inputs that a last operator can have are a bound too.
//
// Weakness: it ignores that recomputation itself needs room, and every
// concurrence that is not forced by ancestry.

// LowerBound returns a number of bytes that no plan of p can go below.
func LowerBound(p *Problem) int64 {
	ix := p.indexed()
	ix.boundAt()
	return ix.lowerBound
}

// boundAt returns the bytes that exist at least when each operator first runs.
func (ix *index) boundAt() []int64 {
	ix.boundOnce.Do(func() {
		b := newBound(ix)
		ix.bounds = make([]int64, len(ix.reads))
		for op := range ix.reads {
			ix.bounds[op] = b.at(op)
			ix.lowerBound = max(ix.lowerBound, ix.bounds[op])
		}
		ix.lowerBound = max(ix.lowerBound, b.atTheEnd()) + ix.p.Graph.Held
	})
	return ix.bounds
}

// HoldsAtLeast reports that no plan of p goes below a number of bytes. The bound takes
// much longer than a plan, so one simple plan is asked first.
func HoldsAtLeast(p *Problem, bytes int64) bool {
	ix := p.indexed()
	if newLiveSim(ix).run(newLowerer(ix, ix.topo).schedule(ix.leastKeep())) < bytes {
		return false
	}
	return LowerBound(p) >= bytes
}

type bound struct {
	ix *index
	// held are the roots that 4 forces to exist beside an op, made the bytes
	// that 3 does.
	held    [][]int
	made    []int64
	outputs int64
	// counted[r] is the op for which root r was counted last, and one more.
	counted []int
	// pages are the memory of sets, of which so many are used.
	pages []bitset
	used  int
}

type bitset []uint64

func (b bitset) set(i int) { b[i>>6] |= 1 << (i & 63) }

func (b bitset) or(c bitset) {
	for k, w := range c {
		b[k] |= w
	}
}

// boundBlock is how many operators are looked at side by side: ancestry is a
// relation of all with all, and this much of it is kept at a time.
const boundBlock = 2048

func newBound(ix *index) *bound {
	n := len(ix.reads)
	b := &bound{ix: ix, held: make([][]int, n), made: make([]int64, n), counted: make([]int, len(ix.root))}
	for from := 0; from < n; from += boundBlock {
		b.hold(from, min(n-from, boundBlock))
	}
	for r := range ix.root {
		if val := &ix.p.Graph.Values[r]; ix.producer[r] >= 0 && ix.root[r] == r && val.Kind == ortmodel.Output {
			b.outputs += val.Bytes
		}
	}
	return b
}

// ancestry returns for each op which of the count ops from the given one on are
// its ancestors or itself, and which its descendants.
func (b *bound) ancestry(from, count int) (before, after []bitset) {
	ix := b.ix
	n, words := len(ix.reads), (count+63)/64
	before, after = make([]bitset, n), make([]bitset, n) // nil: none of them
	within := func(op int) bool { return op >= from && op < from+count }
	member := func(of []bitset, op int) bitset {
		if of[op] == nil {
			of[op] = b.set(words)
		}
		return of[op]
	}
	b.used = 0
	for _, op := range ix.topo {
		if within(op) {
			member(before, op).set(op - from)
		}
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j >= 0 && before[j] != nil {
				member(before, op).or(before[j])
			}
		}
	}
	for k := len(ix.topo) - 1; k >= 0; k-- {
		op := ix.topo[k]
		if after[op] == nil && !within(op) {
			continue
		}
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j >= 0 {
				a := member(after, j)
				a.or(after[op])
				if within(op) {
					a.set(op - from)
				}
			}
		}
	}
	return before, after
}

// set returns an empty set of so many words, which the next ancestry takes again.
func (b *bound) set(words int) bitset {
	const many = 256
	k, at := b.used/many, b.used%many
	if k == len(b.pages) {
		b.pages = append(b.pages, make(bitset, many*boundBlock/64))
	}
	b.used++
	s := b.pages[k][at*words : (at+1)*words]
	clear(s)
	return s
}

// hold finds what 3 and 4 force to exist beside the count ops from the given
// one on.
func (b *bound) hold(from, count int) {
	ix := b.ix
	before, after := b.ancestry(from, count)
	views := make([][]int, len(ix.root))
	for v, r := range ix.root {
		views[r] = append(views[r], v)
	}
	until := make(bitset, (count+63)/64)
	for r := range ix.root {
		a := ix.producer[r]
		val := &ix.p.Graph.Values[r]
		if a < 0 || ix.root[r] != r || val.Bytes == 0 || val.Kind == ortmodel.Bound {
			continue
		}
		if val.Kind == ortmodel.Output {
			after[a].each(func(i int) { b.made[from+i] += val.Bytes })
			continue
		}
		if after[a] == nil || ix.canRepeat(a) {
			continue
		}
		clear(until)
		for _, v := range views[r] {
			if v != r && ix.canRepeat(ix.producer[v]) {
				continue // another view of another instance may serve
			}
			for _, reader := range ix.readers[v] {
				until.or(before[reader])
			}
		}
		for k := range until {
			until[k] &= after[a][k]
		}
		until.each(func(i int) { b.held[from+i] = append(b.held[from+i], r) })
	}
}

// each calls f for the members in ascending order.
func (b bitset) each(f func(int)) {
	for k, w := range b {
		for ; w != 0; w &= w - 1 {
			f(k<<6 + bits.TrailingZeros64(w))
		}
	}
}

// canRepeat reports whether a plan may run op more than once.
func (ix *index) canRepeat(op int) bool {
	return op >= 0 && ix.p.Ops[op].Forward && ix.p.Ops[op].Recomputable && !ix.captured[op]
}

// at returns the bytes that exist when op runs for the first time; it is asked once for each.
func (b *bound) at(op int) int64 {
	ix := b.ix
	sum := b.made[op]
	add := func(r int) {
		val := &ix.p.Graph.Values[r]
		if ix.producer[r] >= 0 && val.Kind != ortmodel.Bound && b.counted[r] != op+1 {
			b.counted[r] = op + 1
			sum += val.Bytes
		}
	}
	for _, v := range ix.reads[op] {
		if r := ix.root[v]; ix.p.Graph.Values[r].Kind != ortmodel.Output { // else made counts it
			add(r)
		}
	}
	for _, r := range b.held[op] {
		add(r)
	}
	n := &ix.p.Graph.Nodes[op]
	shared := func(output int) bool {
		shares := func(pair ortmodel.Pair) bool { return pair.Output == output && n.Inputs[pair.Input] >= 0 }
		return slices.ContainsFunc(n.Alias, shares) || slices.ContainsFunc(n.InPlace, shares)
	}
	for k, v := range n.Outputs {
		if v >= 0 && (ix.p.Graph.Values[v].Kind == ortmodel.Output || !shared(k)) {
			add(v)
		}
	}
	if n.Script == nil { // else scratch may come and go before the outputs
		for _, s := range n.Scratch {
			sum += s
		}
	}
	return sum
}

// atTheEnd returns the bytes that exist when the last operator first runs.
func (b *bound) atTheEnd() int64 {
	least := int64(-1)
	for op := range b.ix.reads {
		if !b.last(op) {
			continue
		}
		var sum int64
		seen := make(map[int]bool)
		for _, v := range b.ix.reads[op] {
			r := b.ix.root[v]
			if b.ix.producer[r] >= 0 && b.ix.p.Graph.Values[r].Kind == ortmodel.Inner && !seen[r] {
				seen[r] = true
				sum += b.ix.p.Graph.Values[r].Bytes
			}
		}
		if least < 0 || sum < least {
			least = sum
		}
	}
	return b.outputs + max(least, 0)
}

// last reports whether nothing depends on op.
func (b *bound) last(op int) bool {
	for _, v := range b.ix.outs[op] {
		if len(b.ix.readers[v]) > 0 {
			return false
		}
	}
	return true
}
