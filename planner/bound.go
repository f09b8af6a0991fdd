package planner

import "github.com/onnx-remat/remat/ortmodel"

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
	b := newBound(ix)
	var best int64
	for op := range ix.reads {
		best = max(best, b.at(op))
	}
	return max(best, b.atTheEnd())
}

type bound struct {
	ix      *index
	before  []bitset // op -> its ancestors and itself
	held    [][]int  // op -> roots forced to exist by 3 and 4
	outputs int64
}

type bitset []uint64

func (b bitset) set(i int)      { b[i>>6] |= 1 << (i & 63) }
func (b bitset) has(i int) bool { return b[i>>6]>>(i&63)&1 != 0 }

func newBound(ix *index) *bound {
	n := len(ix.reads)
	words := (n + 63) / 64
	b := &bound{ix: ix, before: make([]bitset, n), held: make([][]int, n)}
	flat := make(bitset, n*words)
	for op := range b.before {
		b.before[op] = flat[op*words : (op+1)*words]
	}
	for _, op := range ix.topo {
		b.before[op].set(op)
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j >= 0 {
				for k, w := range b.before[j] {
					b.before[op][k] |= w
				}
			}
		}
	}
	b.hold(words)
	return b
}

// hold finds for each op the buffers that 3 and 4 force to exist beside it.
func (b *bound) hold(words int) {
	ix := b.ix
	views := make([][]int, len(ix.root))
	for v, r := range ix.root {
		views[r] = append(views[r], v)
	}
	until := make(bitset, words)
	for r := range ix.root {
		a := ix.producer[r]
		val := &ix.p.Graph.Values[r]
		if a < 0 || ix.root[r] != r || val.Bytes == 0 || val.Kind == ortmodel.Bound {
			continue
		}
		output := val.Kind == ortmodel.Output
		if output {
			b.outputs += val.Bytes
		} else if ix.canRepeat(a) {
			continue
		}
		clear(until)
		for _, v := range views[r] {
			if v != r && ix.canRepeat(ix.producer[v]) {
				continue // another view of another instance may serve
			}
			for _, reader := range ix.readers[v] {
				for k, w := range b.before[reader] {
					until[k] |= w
				}
			}
		}
		for op := range b.before {
			if op != a && b.before[op].has(a) && (output || until.has(op)) {
				b.held[op] = append(b.held[op], r)
			}
		}
	}
}

// canRepeat reports whether a plan may run op more than once.
func (ix *index) canRepeat(op int) bool {
	return op >= 0 && ix.p.Ops[op].Forward && ix.p.Ops[op].Recomputable && !ix.captured[op]
}

// at returns the bytes that exist when op runs for the first time.
func (b *bound) at(op int) int64 {
	ix := b.ix
	seen := make(map[int]bool)
	var sum int64
	add := func(r int) {
		val := &ix.p.Graph.Values[r]
		if ix.producer[r] >= 0 && val.Kind != ortmodel.Bound && !seen[r] {
			seen[r] = true
			sum += val.Bytes
		}
	}
	for _, v := range ix.reads[op] {
		add(ix.root[v])
	}
	for _, r := range b.held[op] {
		add(r)
	}
	n := &ix.p.Graph.Nodes[op]
	shared := make(map[int]bool)
	for _, pair := range append(append([]ortmodel.Pair{}, n.Alias...), n.InPlace...) {
		if n.Inputs[pair.Input] >= 0 {
			shared[pair.Output] = true
		}
	}
	for k, v := range n.Outputs {
		if v >= 0 && (!shared[k] || ix.p.Graph.Values[v].Kind == ortmodel.Output) {
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
