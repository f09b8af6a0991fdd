package traits

import "github.com/onnx-remat/remat/onnx"

// The recurrent kernels keep gates, states and copies of biases in float
// buffers, one set per direction; the last declared member goes first.

type recurrent struct {
	seq, batch, input, hidden int64
	directions                []bool // reverse?
}

// recurrentSizes reads the extents of a recurrent node from X [seq, batch, input]
// and R [directions, gates*hidden, hidden].
func recurrentSizes(n *onnx.Node) (r recurrent, ok bool) {
	x, okX := dims(n.In(0))
	w, okR := dims(n.In(2)) // [directions, gates*hidden, hidden]
	if !okX || !okR || len(x) != 3 || len(w) != 3 || n.Int("layout", 0) != 0 {
		return r, false
	}
	r = recurrent{seq: x[0], batch: x[1], input: x[2], hidden: w[2]}
	switch n.Str("direction", "forward") {
	case "reverse":
		r.directions = []bool{true}
	case "bidirectional":
		r.directions = []bool{false, true}
	default:
		r.directions = []bool{false}
	}
	return r, true
}

// takeOrBorrow stands for an optional output that the kernel needs anyway.
func (k *Kernel) takeOrBorrow(n *onnx.Node, output int, bytes int64) int {
	if n.Out(output) == nil {
		return k.borrow(bytes)
	}
	return None
}

// None is a place that holds nothing.
const None = -1

// lstmScratch borrows each direction's members in the order in which the kernel's
// class declares them.
func lstmScratch(n *onnx.Node, _ int, k *Kernel) bool {
	r, ok := recurrentSizes(n)
	if !ok {
		return false
	}
	state := r.batch * r.hidden * floatBytes
	all := int64(len(r.directions)) * state
	k.take(0, 1, 2)
	local := []int{k.takeOrBorrow(n, 1, all), k.takeOrBorrow(n, 2, all)}
	var release [][]int // by direction, in order of release
	for _, reverse := range r.directions {
		one := r.hidden * floatBytes
		hidden, memory := k.borrow(one), k.borrow(one)
		batchedHidden, batchedMemory, clipped := k.borrow(state), k.borrow(state), k.borrow(state)
		gates := k.borrow(4 * state * r.seq)
		held := []int{gates, hidden, batchedHidden, memory, batchedMemory, clipped}
		if n.In(3) != nil {
			held = append(held, k.borrow(one), k.borrow(one), k.borrow(one), k.borrow(one))
		}
		var turned []int
		if reverse {
			turned = []int{k.borrow(r.seq * r.batch * r.input * floatBytes), k.borrow(r.seq * state)}
		}
		release = append(release, append(held, turned...))
	}
	if n.In(4) == nil {
		for d := range release {
			release[d] = append(release[d], k.borrow(r.batch*4))
		}
	}
	for d := len(release) - 1; d >= 0; d-- {
		k.giveBackReversed(release[d])
	}
	k.giveBackReversed(local)
	return true
}

func (k *Kernel) giveBackReversed(places []int) {
	for i := len(places) - 1; i >= 0; i-- {
		k.giveBack(places[i])
	}
}

// gruScratch does so too, but runs a direction before it makes the next; members of
// one direction are released in three groups.
func gruScratch(n *onnx.Node, _ int, k *Kernel) bool {
	r, ok := recurrentSizes(n)
	if !ok {
		return false
	}
	state := r.batch * r.hidden * floatBytes
	linear := n.Int("linear_before_reset", 0) != 0
	k.take(0, 1)
	local := k.takeOrBorrow(n, 1, int64(len(r.directions))*state)
	type held struct{ first, biases, last []int }
	var release []held
	for _, reverse := range r.directions {
		current, initial := k.borrow(state), k.borrow(state)
		h := held{}
		if n.In(3) != nil {
			count := 3
			if linear {
				count = 4
			}
			for range count {
				h.biases = append(h.biases, k.borrow(state))
			}
		}
		if linear {
			h.last = append(h.last, k.borrow(state))
		}
		h.first = []int{k.borrow(3 * state * r.seq), current, initial}
		if reverse {
			h.last = append(h.last, k.borrow(r.seq*r.batch*r.input*floatBytes), k.borrow(r.seq*state))
		}
		if n.In(4) == nil {
			h.first = append(h.first, k.borrow(r.batch*4))
		}
		release = append(release, h)
	}
	for d := len(release) - 1; d >= 0; d-- {
		k.giveBackReversed(release[d].last)
		k.giveBackReversed(release[d].biases)
		k.giveBackReversed(release[d].first)
	}
	k.giveBack(local)
	return true
}

// rnnScratch is one buffer for a sequence's products, shared by the directions, and
// the whole output where nobody reads that.
func rnnScratch(n *onnx.Node, _ int, k *Kernel) bool {
	r, ok := recurrentSizes(n)
	if !ok {
		return false
	}
	sequence := r.seq * r.batch * r.hidden * floatBytes
	k.take(0, 1)
	k.borrow(sequence)
	k.takeOrBorrow(n, 0, sequence*int64(len(r.directions)))
	return true
}
