package ortmodel

import "slices"

// A topo is a topological order of the nodes that stays one while constraints
// are added (Pearce and Kelly). ord[i] is the place of node i. Adding "a
// before b" costs nothing when a stands before b already; else only the nodes
// between the two places that reach a or are reached from b move.
//
// Weakness: the cost of one insertion is bounded by the stretch between the
// two places, so a start far from the wanted order is slow; newTopo starts
// near it.
type topo struct {
	ord        []int32
	data       *edges    // producers of each node
	consumers  edges     // the same, backwards
	succ, pred [][]int32 // added constraints
	mark       []int32   // visited in search number seen
	seen       int32
	forward    []int32
	backward   []int32
	places     []int32
	dominated  []int32
}

// newTopo starts from the topological order that always takes the ready node
// with the highest place in the schedule: the order that file constraints
// lean to.
func newTopo(e *edges, pos []int32) *topo {
	n := len(pos)
	t := &topo{
		ord: make([]int32, n), data: e, consumers: e.reversed(),
		succ: make([][]int32, n), pred: make([][]int32, n), mark: make([]int32, n),
	}
	missing := make([]int32, n)
	var ready heap
	for i := range int32(n) {
		if missing[i] = int32(len(e.of(i))); missing[i] == 0 {
			ready.push(i, pos)
		}
	}
	for at := int32(0); len(ready) > 0; at++ {
		i := ready.pop(pos)
		t.ord[i] = at
		for _, c := range t.consumers.of(i) {
			if missing[c]--; missing[c] == 0 {
				ready.push(c, pos)
			}
		}
	}
	return t
}

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

// before records that a stands before b in the file and reports whether that
// is possible.
func (t *topo) before(a, b int32) bool {
	if t.ord[a] > t.ord[b] {
		if !t.move(a, b) {
			return false
		}
	}
	t.succ[a] = append(t.succ[a], b)
	t.pred[b] = append(t.pred[b], a)
	return true
}

// move changes the order so that a, now behind b, stands before it; false if
// b reaches a.
func (t *topo) move(a, b int32) bool {
	lower, upper := t.ord[b], t.ord[a]
	t.seen++
	t.forward = append(t.forward[:0], b)
	t.mark[b] = t.seen
	for k := 0; k < len(t.forward); k++ {
		i := t.forward[k]
		for _, list := range [2][]int32{t.consumers.of(i), t.succ[i]} {
			for _, c := range list {
				if c == a {
					return false
				}
				if t.mark[c] != t.seen && t.ord[c] < upper {
					t.mark[c] = t.seen
					t.forward = append(t.forward, c)
				}
			}
		}
	}
	t.backward = append(t.backward[:0], a)
	t.mark[a] = t.seen
	for k := 0; k < len(t.backward); k++ {
		i := t.backward[k]
		for _, list := range [2][]int32{t.data.of(i), t.pred[i]} {
			for _, p := range list {
				if t.mark[p] != t.seen && t.ord[p] > lower {
					t.mark[p] = t.seen
					t.backward = append(t.backward, p)
				}
			}
		}
	}
	t.reorder()
	return true
}

// reorder gives the places of both sets to the backward set first.
func (t *topo) reorder() {
	sortBy(t.backward, t.ord)
	sortBy(t.forward, t.ord)
	t.places = t.places[:0]
	for _, i := range t.backward {
		t.places = append(t.places, t.ord[i])
	}
	for _, i := range t.forward {
		t.places = append(t.places, t.ord[i])
	}
	slices.Sort(t.places)
	for k, i := range t.backward {
		t.ord[i] = t.places[k]
	}
	for k, i := range t.forward {
		t.ord[i] = t.places[len(t.backward)+k]
	}
}

// depends reports whether a's outputs reach b through data alone.
func (t *topo) depends(a, b int32) bool {
	t.seen++
	t.backward = append(t.backward[:0], b)
	for k := 0; k < len(t.backward); k++ {
		for _, p := range t.data.of(t.backward[k]) {
			if p == a {
				return true
			}
			if t.mark[p] != t.seen && t.ord[p] > t.ord[a] {
				t.mark[p] = t.seen
				t.backward = append(t.backward, p)
			}
		}
	}
	return false
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
