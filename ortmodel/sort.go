package ortmodel

import "slices"

// What sorting needs: readers instead of producers, and a heap.

// reversed lists each node's readers in place of its producers.
func (e *edges) reversed() edges {
	n := len(e.start) - 1
	r := edges{start: make([]int32, n+1), prod: make([]int32, len(e.prod))}
	for _, p := range e.prod {
		r.start[p+1]++
	}
	for i := range n {
		r.start[i+1] += r.start[i]
	}
	at := slices.Clone(r.start[:n])
	for i := range int32(n) {
		for _, p := range e.of(i) {
			r.prod[at[p]] = i
			at[p]++
		}
	}
	return r
}

// sortBy sorts list by ascending key.
func sortBy(list, key []int32) {
	slices.SortFunc(list, func(a, b int32) int { return int(key[a]) - int(key[b]) })
}

// A heap holds nodes, the one with the highest key first.
type heap []int32

func (h *heap) push(x int32, key []int32) {
	*h = append(*h, x)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if key[s[up]] >= key[s[i]] {
			break
		}
		s[up], s[i] = s[i], s[up]
		i = up
	}
}

func (h *heap) pop(key []int32) int32 {
	s := *h
	top := s[0]
	s[0] = s[len(s)-1]
	s = s[:len(s)-1]
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(s) {
			break
		}
		if c+1 < len(s) && key[s[c+1]] > key[s[c]] {
			c++
		}
		if key[s[i]] >= key[s[c]] {
			break
		}
		s[i], s[c] = s[c], s[i]
		i = c
	}
	*h = s
	return top
}
