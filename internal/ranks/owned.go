package ranks

// Values with owners: each is one rank's, whole, which combines what all ranks have of it
// and hands on the result, where Combine cuts every value into a chunk a rank. Values are
// taken in rounds, of one value a rank, so that all ranks send and receive at once:
//
//	round 0   the largest value of rank 0   of rank 1   of rank 2
//	round 1   the next of rank 0            of rank 1   –
//
// Weakness: a rank has at least the largest value.

import (
	"cmp"
	"slices"
)

// Owners gives each value, of so many elements, to a rank: the largest first, to whoever
// has least so far (Graham 1969, "Bounds on multiprocessing timing anomalies"): the
// fullest has at most a third more than the least that is possible.
func Owners(elements []int64, size int) []int {
	order := falling(elements)
	has, owner := make([]int64, size), make([]int, len(elements))
	for _, i := range order {
		owner[i] = slices.Index(has, slices.Min(has))
		has[owner[i]] += elements[i]
	}
	return owner
}

// falling are the numbers of values, the largest first.
func falling(elements []int64) []int {
	order := make([]int, len(elements))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(elements[b], elements[a]) })
	return order
}

// Rounds lists for each round the value that each rank has in it, -1 for none.
func Rounds(elements []int64, owner []int, size int) [][]int {
	var rounds [][]int
	next := make([]int, size)
	for _, i := range falling(elements) {
		r := owner[i]
		if next[r] == len(rounds) {
			rounds = append(rounds, slices.Repeat([]int{-1}, size))
		}
		rounds[next[r]][r] = i
		next[r]++
	}
	return rounds
}

// OwnedBytes is what a rank sends to have values combined by their owners and to hand its
// own on.
func OwnedBytes(elements []int64, owner []int, rank, size int) int64 {
	own, all := int64(0), int64(0)
	for i, n := range elements {
		if all += n; owner[i] == rank {
			own += n
		}
	}
	return 4 * (all - own + int64(size-1)*own)
}

// messageBytesMost bounds a message of Pass: MPI counts bytes in 31 bits.
const messageBytesMost = 4 * messageElements

// Pass moves a buffer from one rank to another; for others it does nothing.
func (g *Group) Pass(buf []byte, from, to int) error {
	if from == to || g.Rank() != from && g.Rank() != to {
		return nil
	}
	for len(buf) > 0 {
		part := buf[:min(len(buf), messageBytesMost)]
		buf = buf[len(part):]
		var err error
		if g.Rank() == from {
			g.sent += int64(len(part))
			err = g.t.Exchange(to, part, to, nil)
		} else {
			err = g.t.Exchange(from, nil, from, part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
