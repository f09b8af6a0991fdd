package traits

// The evaluation of an Einsum as the allocator sees it; see einsumScratch.

import "slices"

// An operand has one extent for each label (1 where it lacks the label), and
// the place of its buffer in the kernel, None for an input as it came.
type operand struct {
	dims  []int64
	place int
}

type einsum struct {
	equation
	k    *Kernel
	size int64
	// sum, if any, borrows what a sum of an operand over these axes does.
	sum func(dims, axes []int64)
}

// sums is what summing an operand over labels borrows besides the result.
func (e *einsum) sums(dims []int64, labels ...int) {
	if e.sum == nil {
		return
	}
	axes := make([]int64, len(labels))
	for i, l := range labels {
		axes[i] = int64(l)
	}
	e.sum(dims, axes)
}

// borrow takes a buffer of these extents.
func (e *einsum) borrow(dims []int64) int { return e.k.borrow(product(dims) * e.size) }

func identity(perm []int) bool {
	for i, p := range perm {
		if i != p {
			return false
		}
	}
	return true
}

// homogenize brings input i to the order of the labels.
func (e *einsum) homogenize(i int, dims []int64) operand {
	o := operand{dims: make([]int64, len(e.last)), place: None}
	sorted := true
	for l := range o.dims {
		o.dims[l] = 1
	}
	for at, l := range e.terms[i] {
		o.dims[l] = dims[at]
		sorted = sorted && (at == 0 || e.terms[i][at-1] < l)
	}
	if !sorted {
		o.place = e.borrow(dims)
	}
	return o
}

// run sums the first operand over what no other has, and multiplies the others to
// it one by one, from the left.
func (e *einsum) run(in []operand) {
	result := in[0]
	var kept []int // buffers that live to the end
	var order, summed []int
	for l, last := range e.last {
		if last == 0 {
			summed = append(summed, l)
		} else {
			order = append(order, l)
		}
	}
	if len(summed) > 0 {
		kept = append(kept, result.place)
		before := result.dims
		result.dims = append([]int64(nil), result.dims...)
		for _, l := range summed {
			result.dims[l] = 1
		}
		result.place = e.borrow(result.dims)
		e.sums(before, summed...)
	}
	if len(in) == 1 {
		e.finish(order, result)
	}
	for i := 1; i < len(in); i++ {
		next := e.pair(result, in[i], i, i == len(in)-1)
		e.k.giveBack(result.place)
		result = next
		kept = append(kept, in[i].place)
	}
	e.k.giveBack(result.place)
	e.k.giveBack(kept...)
}

// split sorts the labels of a pair: in both, left only, summed, right only.
func (e *einsum) split(left, right *operand, input int) (both, lonely, summed, rest []int) {
	for l := range e.last {
		hasLeft, hasRight := left.dims[l] > 1, right.dims[l] > 1
		if e.last[l] == input {
			summed = append(summed, l)
			if hasLeft && !hasRight {
				e.reduce(left, l)
			} else if hasRight && !hasLeft {
				e.reduce(right, l)
			}
			continue
		}
		switch {
		case hasLeft && hasRight:
			both = append(both, l)
		case hasLeft:
			lonely = append(lonely, l)
		default:
			rest = append(rest, l)
		}
	}
	return both, lonely, summed, rest
}

// reduce sums o over one label into a new buffer.
func (e *einsum) reduce(o *operand, label int) {
	before := o.dims
	o.dims = append([]int64(nil), o.dims...)
	o.dims[label] = 1
	old := o.place
	o.place = e.borrow(o.dims)
	e.sums(before, label)
	e.k.giveBack(old)
}

// permute brings o's axes into an order; a buffer that the pair made itself is
// only renamed where the axes longer than 1 keep their order.
func (e *einsum) permute(o *operand, perm []int) {
	dims := make([]int64, len(perm))
	kept, last := true, 0
	for i, p := range perm {
		dims[i] = o.dims[p]
		if dims[i] != 1 {
			kept = kept && p >= last
			last = p
		}
	}
	if identity(perm) {
		return
	}
	o.dims = dims
	if o.place != None && kept {
		return
	}
	old := o.place
	o.place = e.borrow(dims)
	e.k.giveBack(old)
}

// pair multiplies two operands; what it borrows for them it gives back.
func (e *einsum) pair(a, b operand, input int, final bool) operand {
	left, right := operand{a.dims, None}, operand{b.dims, None}
	both, lonely, summed, rest := e.split(&left, &right, input)
	perm := slices.Concat(both, lonely, summed, rest)
	extents := make([]int64, 0, len(perm))
	for _, l := range slices.Concat(both, lonely) {
		extents = append(extents, a.dims[l])
	}
	for range summed {
		extents = append(extents, 1)
	}
	for _, l := range rest {
		extents = append(extents, b.dims[l])
	}
	e.permute(&left, perm)
	e.permute(&right, slices.Concat(both, summed, rest, lonely))
	out := operand{dims: extents, place: e.borrow(extents)}
	if final {
		e.finish(perm, out)
	} else {
		inverse := make([]int, len(perm))
		for i, p := range perm {
			inverse[p] = i
		}
		e.permute(&out, inverse)
	}
	e.k.giveBack(right.place, left.place)
	return out
}

// finish copies a result, whose axes are the labels in order, into the output,
// through a transposed buffer where the order differs.
func (e *einsum) finish(order []int, result operand) {
	at := map[int]int{}
	for i, l := range e.output {
		at[l] = i
	}
	perm := make([]int, len(e.output))
	next := 0
	for _, l := range order {
		if i, ok := at[l]; ok {
			perm[i] = next
			next++
		}
	}
	e.k.take(0)
	if !identity(perm) {
		e.k.giveBack(e.borrow(result.dims))
	}
}
