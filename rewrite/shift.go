package rewrite

// Which node of a graph is which one a period later.
//
//	… ─ a₁ ─ b₁ ─ a₂ ─ b₂ ─ a₃ ─ b₃ ─ …      a₁ ▸ a₂ ▸ a₃, hence b₁ ▸ b₂ ▸ b₃
//	     └── c₁    └── c₂    └── c₃                      and c₁ ▸ c₂ ▸ c₃
//
// Layers repeat, and micro-batches do, in whatever order their nodes stand in the file. Two nodes
// that are alike are taken for those of consecutive periods: what a pass made of one node,
// or what looks alike for a few edges around. From them the shift grows along the edges: what
// one reads is shifted to what the other reads at the same input, and its readers to
// the readers that look like them. So nearly all nodes get a period. It grows from the middle
// outwards, since at the ends the wrong nodes look alike, and periods of copies are counted from their
// first ones. Tokens of control dependencies are no
// edges: which one a node waits for is all the same to an optimizer, and a plan's differ.
//
// A shift claims nothing: who uses it verifies it (reroll.go).

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/control"
)

// A shift maps nodes to those a period later, all by their places in nodes.
type shift struct {
	nodes []*onnx.Node
	place map[*onnx.Node]int
	// reads[i][k] is what node i reads at input k, and readers[i] who reads what it returns.
	reads   [][]source
	readers [][]reading
	fed     map[*onnx.Value]int // how often what no node makes is read
	token   []bool              // the node makes a control dependency's token
	looks   [][]uint64          // of each node, for so many edges around it
	// next and before are the nodes a period later and earlier, and period counts
	// those; none: there is none.
	next, before, period []int
	first, last          int // period
	// row[i] lists the nodes that node i is one of, a period after the other.
	row [][]int
}

// A source is an output of a node; none: of no node.
type source struct{ node, output int }

// A reading of an output by a node, at an input.
type reading struct{ output, node, input int }

const (
	none = -1 << 31
	// alikeLeast is how many nodes begin a shift at least: of fewer periods, of which two or three stay, little is
	// taken out.
	alikeLeast = 4
	// lookEdges is how far nodes look alike that begin a shift. In a transformer a layer is two edges long.
	lookEdges = 3
	// shiftCounts numbers of periods are tried, those that most nodes have, and of each shiftTries pairs.
	shiftCounts, shiftTries = 3, 2
)

// newShift reads a graph.
func newShift(g *onnx.Graph) *shift {
	s := &shift{nodes: g.Nodes, place: onnx.Places(g.Nodes), fed: map[*onnx.Value]int{}}
	s.reads, s.readers, s.token = make([][]source, len(s.nodes)), make([][]reading, len(s.nodes)), make([]bool, len(s.nodes))
	for i, n := range s.nodes {
		s.token[i] = control.Tokens(n)
		s.reads[i] = make([]source, len(n.Inputs))
		for k, v := range n.Inputs {
			s.reads[i][k] = source{none, 0}
			if v == nil {
				continue
			}
			if v.Producer == nil {
				s.fed[v]++
				continue
			}
			from := s.place[v.Producer]
			s.reads[i][k] = source{from, v.Index}
			s.readers[from] = append(s.readers[from], reading{v.Index, i, k})
		}
	}
	s.look()
	return s
}

// shifts yields what may be shifts of the graph, the likelier ones first: of what passes made
// of one node, then of what looks alike.
func (s *shift) shifts() iter.Seq[*shift] {
	return func(yield func(*shift) bool) {
		var grown [][]int // next of each shift so far
		for _, copies := range [...]bool{true, false} {
			group := s.alike
			if copies {
				group = s.copies
			}
			for _, pair := range likely(group()) {
				a, b := pair[0], pair[1]
				if slices.ContainsFunc(grown, func(next []int) bool { return next[a] == b || next[b] == a }) {
					continue
				}
				s.grow(a, b)
				if copies {
					s.fromFirst()
				}
				grown = append(grown, s.next)
				if !yield(s) {
					return
				}
			}
		}
	}
}

// readings counts the readers of what a node returns.
func (s *shift) readings(place, output int) int {
	count := 0
	for _, u := range s.readers[place] {
		if u.output == output {
			count++
		}
	}
	return count
}

// copies groups what a pass made of one node.
func (s *shift) copies() [][]int {
	of := map[onnx.Origin][]int{}
	for i, n := range s.nodes {
		if o := n.Origin(); o.Pass != "" && o.Of != "" {
			of[o] = append(of[o], i)
		}
	}
	return slices.Collect(maps.Values(of))
}

// alike groups nodes that look alike.
func (s *shift) alike() [][]int {
	of := map[uint64][]int{}
	for i, h := range s.looks[lookEdges] {
		of[h] = append(of[h], i)
	}
	return slices.Collect(maps.Values(of))
}

// likely picks pairs of nodes that may be of consecutive periods: neighbors in rows of as many
// as most rows' nodes are. They stand in the middle of the file, and of a row; the second time a
// sixteenth before, since layers of an even number of micro-batches end in the middle.
func likely(rows [][]int) (pairs [][2]int) {
	rows = slices.DeleteFunc(rows, func(row []int) bool { return len(row) < alikeLeast })
	slices.SortFunc(rows, func(a, b []int) int { return cmp.Compare(a[len(a)/2], b[len(b)/2]) })
	byCount := map[int][][]int{}
	for _, row := range rows {
		byCount[len(row)] = append(byCount[len(row)], row)
	}
	counts := slices.SortedFunc(maps.Keys(byCount), func(a, b int) int {
		return cmp.Or(cmp.Compare(b*len(byCount[b]), a*len(byCount[a])), cmp.Compare(b, a))
	})
	for _, count := range counts[:min(len(counts), shiftCounts)] {
		rows := byCount[count]
		for k, at := range [shiftTries]int{count / 2, max(1, count*7/16)} {
			row := rows[(k+1)*len(rows)/(shiftTries+1)]
			pairs = append(pairs, [2]int{row[at-1], row[at]})
		}
	}
	return pairs
}

// look tells what each node looks like: its operator, then what those look like that it reads and is
// read by (Weisfeiler and Leman 1968).
func (s *shift) look() {
	s.looks = make([][]uint64, lookEdges+1)
	for edges := range s.looks {
		s.looks[edges] = make([]uint64, len(s.nodes))
	}
	ops := map[[2]string]uint64{} // numbered
	for i, n := range s.nodes {
		op := [2]string{n.Domain(), n.OpType()}
		if ops[op] == 0 {
			ops[op] = uint64(len(ops) + 1)
		}
		s.looks[0][i] = mix(mix(ops[op], uint64(len(n.Inputs))), uint64(len(n.Outputs)))
	}
	for edges := 1; edges <= lookEdges; edges++ {
		nearer := s.looks[edges-1]
		for i := range s.nodes {
			h := nearer[i]
			for k, from := range s.reads[i] {
				seen := uint64(1)
				if from.node != none && !s.token[from.node] {
					seen = mix(nearer[from.node], uint64(from.output))
				}
				h = mix(h, mix(seen, uint64(k)))
			}
			if !s.token[i] {
				var read uint64 // in no order
				for _, u := range s.readers[i] {
					read += mix(mix(nearer[u.node], uint64(u.input)), uint64(u.output))
				}
				h = mix(h, read)
			}
			s.looks[edges][i] = h
		}
	}
}

// mix adds a number to a hash (the finalizer of SplitMix64, Steele, Lea and Flood 2014).
func mix(h, x uint64) uint64 {
	h = h*0x9e3779b97f4a7c15 + x
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// grow finds the shift under which node b is node a a period later.
func (s *shift) grow(a, b int) {
	for _, list := range []*[]int{&s.next, &s.before, &s.period} {
		*list = slices.Repeat([]int{none}, len(s.nodes))
	}
	g := &growing{shift: s}
	g.pair(a, b, 0)
	for g.run(); len(g.ties) > 0; g.run() {
		t := g.ties[0]
		g.ties = g.ties[1:]
		g.breakTie(t)
	}
	s.line()
}

// A growing shift.
type growing struct {
	*shift
	// rings are nodes to go on from, by how far their period is from the first one's; near
	// is the first that may have some.
	rings [][]int
	near  int
	ties  []tie
}

// A tie are nodes that look alike, of a period and of the next one.
type tie struct {
	a, b   []int
	period int
}

// run goes on until no more nodes are paired.
func (g *growing) run() {
	for g.near < len(g.rings) {
		ring := g.rings[g.near]
		if len(ring) == 0 {
			g.near++
			continue
		}
		g.rings[g.near] = ring[1:]
		g.along(ring[0])
	}
}

// breakTie pairs the first of those that no other edge has paired with the first, and so on.
func (g *growing) breakTie(t tie) {
	a := slices.DeleteFunc(t.a, func(i int) bool { return g.next[i] != none })
	b := slices.DeleteFunc(t.b, func(i int) bool { return g.before[i] != none })
	if len(a) != len(b) {
		return
	}
	for k := range a {
		g.pair(a[k], b[k], t.period)
	}
}

// pair notes that node b is node a a period later, if they may be, and neither is known to be another's. Where
// neither has a period, a's is the one given.
func (g *growing) pair(a, b, period int) {
	if a == b || g.next[a] != none || g.before[b] != none || g.looks[0][a] != g.looks[0][b] && !(g.token[a] && g.token[b]) {
		return
	}
	switch {
	case g.period[a] != none:
		period = g.period[a]
	case g.period[b] != none:
		period = g.period[b] - 1
	}
	if g.period[b] != none && g.period[b] != period+1 {
		return
	}
	g.next[a], g.before[b] = b, a
	g.period[a], g.period[b] = period, period+1
	ring := max(period, -period)
	for len(g.rings) <= ring {
		g.rings = append(g.rings, nil)
	}
	g.rings[ring] = append(g.rings[ring], a)
	g.near = min(g.near, ring)
}

// along pairs what a node and the one a period later read, and who reads them.
func (g *growing) along(a int) {
	b, period := g.next[a], g.period[a]
	for k := range min(len(g.reads[a]), len(g.reads[b])) {
		from, to := g.reads[a][k], g.reads[b][k]
		if from.node == none || to.node == none || from.output != to.output {
			continue
		}
		if g.token[from.node] && !(control.Joined(g.nodes[from.node]) && control.Joined(g.nodes[to.node])) {
			continue
		}
		g.pair(from.node, to.node, period)
	}
	if !g.token[a] {
		g.pairReaders(g.readers[a], g.readers[b], period)
	}
}

// pairReaders pairs the readers of a node with those of another that no other reader looks like, as near
// as tells them apart.
func (g *growing) pairReaders(a, b []reading, period int) {
	if len(a) > manyReaders || len(b) > manyReaders {
		return
	}
	for edges := range g.looks {
		like := func(u reading, of []reading) (alike []int) {
			for _, v := range of {
				if u.output == v.output && u.input == v.input && g.looks[edges][u.node] == g.looks[edges][v.node] {
					alike = append(alike, v.node)
				}
			}
			return alike
		}
		var left []reading
		for _, u := range a {
			switch mine, theirs := like(u, a), like(u, b); {
			case len(mine) == 1 && len(theirs) == 1:
				g.pair(u.node, theirs[0], period)
			case len(mine) == len(theirs) && edges == lookEdges && mine[0] == u.node:
				g.ties = append(g.ties, tie{mine, theirs, period})
			default:
				left = append(left, u)
			}
		}
		if a = left; len(a) == 0 {
			return
		}
	}
}

// manyReaders are more than are paired: each is compared with each.
const manyReaders = 64

// line lists the rows of nodes that follow each other.
func (s *shift) line() {
	s.row = make([][]int, len(s.nodes))
	s.first, s.last = 0, 0
	for i := range s.nodes {
		if s.next[i] == none || s.before[i] != none {
			continue
		}
		var row []int
		for j := i; j != none; j = s.next[j] {
			row = append(row, j)
		}
		for _, j := range row {
			s.row[j] = row
		}
		s.first, s.last = min(s.first, s.period[i]), max(s.last, s.period[row[len(row)-1]])
	}
}

// fromFirst counts the periods of copies anew. What reads a sum of the copies before may have come to its
// period from there, one off; but of most nodes each period has a copy, so their rows begin
// together, and others are beside those in the middle.
func (s *shift) fromFirst() {
	nodes, most := map[int]int{}, 0
	for _, row := range s.row {
		nodes[len(row)]++
	}
	for length, n := range nodes {
		if length > 0 && (most == 0 || n > nodes[most] || n == nodes[most] && length > most) {
			most = length
		}
	}
	s.period = slices.Repeat([]int{none}, len(s.nodes))
	s.first, s.last = 0, most-1
	var known []int
	count := func(i, first int) {
		for k, j := range s.row[i] {
			s.period[j] = first + k
		}
		s.first, s.last = min(s.first, first), max(s.last, first+len(s.row[i])-1)
		known = append(known, i)
	}
	for i, row := range s.row {
		if len(row) == most && most > 0 && row[most/2] == i {
			count(i, 0)
		}
	}
	for k := 0; k < len(known); k++ {
		i := known[k]
		beside := func(j int) {
			if s.row[j] != nil && s.period[j] == none {
				count(j, s.period[i]-slices.Index(s.row[j], j))
			}
		}
		for _, from := range s.reads[i] {
			if from.node != none && !s.token[from.node] {
				beside(from.node)
			}
		}
		for _, u := range s.readers[i] {
			if !s.token[i] {
				beside(u.node)
			}
		}
	}
}

// later is the place of the node so many periods later, or earlier; none: there is none.
func (s *shift) later(place, periods int) int {
	row := s.row[place]
	if row == nil {
		return none
	}
	k := s.period[place] - s.period[row[0]] + periods
	if k < 0 || k >= len(row) {
		return none
	}
	return row[k]
}
