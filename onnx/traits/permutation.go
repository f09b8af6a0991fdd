package traits

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// Permutation is a Transpose node's: axis i of the output is axis perm[i] of the
// input. It reverses the axes where none, or none of that rank, is given.
func Permutation(n *onnx.Node, rank int) []int {
	perm := make([]int, rank)
	given := n.Ints("perm")
	for i := range perm {
		perm[i] = rank - 1 - i
		if len(given) == rank {
			perm[i] = int(given[i])
		}
	}
	return perm
}

// LastTwo is the permutation that exchanges the last two of at least two axes.
func LastTwo(rank int) []int {
	perm := make([]int, rank)
	for i := range perm {
		perm[i] = i
	}
	perm[rank-1], perm[rank-2] = rank-2, rank-1
	return perm
}

// SwapsLastTwo reports a permutation that exchanges the last two axes alone.
func SwapsLastTwo(perm []int) bool {
	return len(perm) >= 2 && slices.Equal(perm, LastTwo(len(perm)))
}

// Compose is the permutation of first inner, then outer.
func Compose(inner, outer []int) []int {
	out := make([]int, len(outer))
	for i, a := range outer {
		out[i] = inner[a]
	}
	return out
}
