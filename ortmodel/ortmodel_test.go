package ortmodel

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomGraph makes a connected-looking DAG with shared values, several
// leaves, missing inputs, captures, in-place and alias operators and scratch.
func randomGraph(r *rand.Rand, nodes int) *Graph {
	g := &Graph{}
	value := func(k Kind) int {
		c := r.IntN(4)
		g.Values = append(g.Values, Value{Bytes: int64(16 << c), Class: c, Kind: k, Scalar: c == 0 && r.IntN(2) == 0})
		return len(g.Values) - 1
	}
	for range 2 + r.IntN(3) {
		value(Feed)
	}
	for range nodes {
		n := Node{}
		for range r.IntN(4) {
			v := len(g.Values) - 1 - min(r.IntN(12)*r.IntN(6), len(g.Values)-1)
			switch r.IntN(12) {
			case 0:
				n.Inputs = append(n.Inputs, None)
			case 1:
				n.Captures = append(n.Captures, v)
			default:
				n.Inputs = append(n.Inputs, v)
			}
		}
		decorate(r, &n)
		for range 1 + r.IntN(8)/7 {
			k := Inner
			if r.IntN(15) == 0 {
				k = Output
			}
			n.Outputs = append(n.Outputs, value(k))
		}
		g.Nodes = append(g.Nodes, n)
	}
	return g
}

func decorate(r *rand.Rand, n *Node) {
	switch r.IntN(6) {
	case 0:
		n.Alias = []Pair{{0, 0}}
	case 1, 2:
		n.InPlace = []Pair{{0, 0}, {1, 0}}
	case 3:
		n.Scratch = []int64{24, int64(r.IntN(100))}
		if r.IntN(2) == 0 {
			n.Script = []Act{{Kind: Borrow, Index: 0}, {Kind: GiveBack, Index: 0}, {Kind: Take, Index: 0}}
		}
	}
}

// slowOrder is the rule in its plainest recursive form.
func slowOrder(g *Graph) []int {
	by := map[int]int{}
	for i, n := range g.Nodes {
		for _, v := range n.Outputs {
			by[v] = i
		}
	}
	read := map[int]bool{}
	ins := make([][]int, len(g.Nodes))
	for i, n := range g.Nodes {
		for _, v := range append(slices.Clone(n.Inputs), n.Captures...) {
			if p, ok := by[v]; ok {
				ins[i] = append(ins[i], p)
				read[p] = true
			}
		}
		slices.Sort(ins[i])
	}
	var order []int
	done := map[int]bool{}
	var visit func(i int)
	visit = func(i int) {
		if done[i] {
			return
		}
		done[i] = true
		for k := len(ins[i]) - 1; k >= 0; k-- {
			visit(ins[i][k])
		}
		order = append(order, i)
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		if !read[i] {
			visit(i)
		}
	}
	return order
}

func TestOrderIsPostOrderFromLastLeaf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for k := range 300 {
		g := randomGraph(r, 1+r.IntN(60))
		got, want := Order(g), slowOrder(g)
		if !slices.Equal(got, want) {
			t.Fatalf("graph %d: order %v, want %v", k, got, want)
		}
		if !Valid(g, got) {
			t.Fatalf("graph %d: order %v is not topological", k, got)
		}
	}
}

func TestBreadthFirstIsTopological(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for k := range 300 {
		g := shuffle(r, randomGraph(r, 1+r.IntN(60)))
		if order := BreadthFirst(g); !Valid(g, order) {
			t.Fatalf("graph %d: order %v is not topological", k, order)
		}
	}
	cycle := &Graph{Values: make([]Value, 3), Nodes: []Node{{Outputs: []int{0}}, {Inputs: []int{2}, Outputs: []int{1}}, {Inputs: []int{1}, Outputs: []int{2}}}}
	if order := BreadthFirst(cycle); !slices.Equal(order, []int{0}) {
		t.Errorf("around a cycle: %v", order)
	}
}

// shuffle lists the nodes of a graph in another order.
func shuffle(r *rand.Rand, g *Graph) *Graph { return Permute(g, shuffled(r, g)) }

// TestBreadthFirstIsSortedSoon: of a step with updates, listed breadth first, ONNX Runtime's
// sort has no more nodes waiting than an update has, and the chain; in the order in which
// they run there are more with every layer.
func TestBreadthFirstIsSortedSoon(t *testing.T) {
	var ran, wide []float64
	for _, layers := range []int{10, 40} {
		g := updated(layers)
		ran, wide = append(ran, waiting(Permute(g, Order(g)))), append(wide, waiting(Permute(g, BreadthFirst(g))))
	}
	if wide[0] > 9 || wide[1] > 9 || ran[1] < 3*ran[0] {
		t.Errorf("on the list of 10 and of 40 layers: %.1f and %.1f nodes breadth first, %.1f and %.1f as they run", wide[0], wide[1], ran[0], ran[1])
	}
}

// updated is a step: a chain forward, one backward, and from each node of that an update of
// eight nodes.
func updated(layers int) *Graph {
	g := &Graph{}
	node := func(inputs ...int) int {
		v := len(g.Values)
		g.Values = append(g.Values, Value{})
		g.Nodes = append(g.Nodes, Node{Inputs: inputs, Outputs: []int{v}})
		return v
	}
	forward := []int{node()}
	for range layers {
		forward = append(forward, node(forward[len(forward)-1]))
	}
	gradient := forward[layers]
	for k := layers - 1; k >= 0; k-- {
		gradient = node(gradient, forward[k])
		update := gradient
		for range 8 {
			update = node(update)
		}
	}
	return g
}

// waiting is how many nodes are ready, on average, when ONNX Runtime's sort takes the first
// of them in the file.
func waiting(g *Graph) float64 {
	e := dependencies(g)
	readers, missing := e.reversed(), make([]int, len(g.Nodes))
	ready, sum := map[int]bool{}, 0
	for i := range g.Nodes {
		if missing[i] = len(e.of(int32(i))); missing[i] == 0 {
			ready[i] = true
		}
	}
	for len(ready) > 0 {
		sum += len(ready)
		first := slices.Min(slices.Collect(maps.Keys(ready)))
		delete(ready, first)
		for _, i := range readers.of(int32(first)) {
			if missing[i]--; missing[i] == 0 {
				ready[int(i)] = true
			}
		}
	}
	return float64(sum) / float64(len(g.Nodes))
}

// shuffled returns a random topological permutation of g.
func shuffled(r *rand.Rand, g *Graph) []int {
	e := dependencies(g)
	readers, missing := e.reversed(), make([]int, len(g.Nodes))
	var ready, file []int
	for i := range g.Nodes {
		if missing[i] = len(e.of(int32(i))); missing[i] == 0 {
			ready = append(ready, i)
		}
	}
	for len(ready) > 0 {
		k := r.IntN(len(ready))
		i := ready[k]
		ready[k] = ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		file = append(file, i)
		for _, c := range readers.of(int32(i)) {
			if missing[c]--; missing[c] == 0 {
				ready = append(ready, int(c))
			}
		}
	}
	return file
}

// ran is the order that ONNX Runtime runs for a file order of g's nodes.
func ran(g *Graph, file []int) []int {
	order := Order(Permute(g, file))
	for i, at := range order {
		order[i] = file[at]
	}
	return order
}

// Any order that ONNX Runtime runs for some file can be had from any other
// file of the same nodes, and has no early nodes.
func TestFileOrderReachesEveryExpressibleSchedule(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		g := randomGraph(r, 1+r.IntN(80))
		want := ran(g, shuffled(r, g))
		file, early := FileOrder(g, want)
		if early != 0 {
			t.Fatalf("%d early nodes in an order that ONNX Runtime runs", early)
		}
		if !Valid(g, file) {
			t.Fatalf("file order %v is not topological", file)
		}
		if got := ran(g, file); !slices.Equal(got, want) {
			t.Fatalf("file order %v runs %v, want %v", file, got, want)
		}
		if got := Lazy(g, want); !slices.Equal(got, want) {
			t.Fatalf("Lazy %v, want %v", got, want)
		}
	}
}

// Whatever topological order is wanted, the file runs what Lazy says; without
// early nodes that is the order itself, and with early nodes it never is.
func TestFileOrderRunsLazy(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 4))
	for range 2000 {
		g := randomGraph(r, 1+r.IntN(80))
		want := shuffled(r, g)
		file, early := FileOrder(g, want)
		if !Valid(g, file) {
			t.Fatalf("file order %v is not topological", file)
		}
		got := ran(g, file)
		if lazy := Lazy(g, want); !slices.Equal(lazy, got) {
			t.Fatalf("Lazy %v, but the file runs %v", lazy, got)
		}
		if slices.Equal(got, want) != (early == 0) {
			t.Fatalf("%d early nodes, but the file runs %v, wanted %v", early, got, want)
		}
	}
}

// One dependency more for each early node, on any of its successors, and every
// topological order is run as wanted.
func TestEarlyNodesAreBroughtIn(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 4))
	most := 0
	for range 2000 {
		g := randomGraph(r, 1+r.IntN(80))
		want := shuffled(r, g)
		early := EarlyNodes(g, want)
		most = max(most, len(early))
		if got := Lazy(g, want, early...); !slices.Equal(got, want) {
			t.Fatalf("Lazy with every early node brought in %v, want %v", got, want)
		}
		for _, s := range early {
			if len(s.Successors) == 0 {
				t.Fatalf("nobody may wait for %v", s)
			}
			w := s.Successors[r.IntN(len(s.Successors))]
			g.Values = append(g.Values, Value{Class: None})
			v := len(g.Values) - 1
			g.Nodes[s.Top].Outputs = append(g.Nodes[s.Top].Outputs, v)
			g.Nodes[w].Inputs = append(slices.Clone(g.Nodes[w].Inputs), v)
		}
		file, left := FileOrder(g, want)
		if left != 0 {
			t.Fatalf("%d early nodes are left of %d", left, len(early))
		}
		if got := ran(g, file); !slices.Equal(got, want) {
			t.Fatalf("the file runs %v, want %v", got, want)
		}
	}
	if most < 5 {
		t.Errorf("at most %d early nodes in an order", most)
	}
}

func TestFileOrderRefusesInvalidSchedules(t *testing.T) {
	g := &Graph{Nodes: []Node{{Outputs: []int{0}}, {Inputs: []int{0}, Outputs: []int{1}}}, Values: make([]Value, 2)}
	for _, s := range [][]int{{1, 0}, {0}, {0, 0}, {0, 2}, {-1, 0}} {
		file, conflicts := FileOrder(g, s)
		if !slices.Equal(file, []int{0, 1}) || conflicts != 2 {
			t.Errorf("schedule %v: file %v, %d conflicts", s, file, conflicts)
		}
	}
}

// replay checks a trace: every release matches an allocation, and the peak is
// that of the events.
func replay(t *testing.T, tr *Trace) {
	t.Helper()
	var live, peak int64
	held := map[int]int64{}
	for _, e := range tr.Events {
		d := e.Bytes
		if !e.Alloc {
			d = -d
			if e.Value != None && held[e.Value] != e.Bytes {
				t.Fatalf("release of value %d, which is not held", e.Value)
			}
		} else if e.Value != None && held[e.Value] != 0 {
			t.Fatalf("value %d allocated twice", e.Value)
		}
		if e.Value != None {
			held[e.Value] += d
		}
		live += d
		peak = max(peak, live)
	}
	if peak != tr.Peak {
		t.Fatalf("events peak at %d, Peak says %d", peak, tr.Peak)
	}
	var sum int64
	for _, h := range tr.AtPeak() {
		sum += h.Bytes
	}
	if sum != tr.Peak {
		t.Fatalf("held at the peak: %d of %d bytes", sum, tr.Peak)
	}
}

func TestTraceAndPeakAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 400 {
		g := randomGraph(r, 1+r.IntN(80))
		s := NewSimulator(g)
		for range 3 {
			order := shuffled(r, g)
			tr := s.Trace(order)
			replay(t, tr)
			if p := s.Peak(order); p != tr.Peak {
				t.Fatalf("Peak %d, Trace %d", p, tr.Peak)
			}
			if top := slices.Max(s.Profile(order)); top != tr.Peak {
				t.Fatalf("Profile's maximum %d, Trace %d", top, tr.Peak)
			}
			if f := Simulate(g, order); f.Peak != tr.Peak || !slices.Equal(f.Events, tr.Events) {
				t.Fatal("a fresh simulator disagrees with a used one")
			}
		}
	}
}

// chain builds v0 -op-> v1 -op-> ... with one node kind, values of class 0.
func chain(n int, node Node, last Kind) *Graph {
	g := &Graph{Values: []Value{{Bytes: 8, Kind: Feed}}}
	for i := range n {
		x := node
		x.Inputs, x.Outputs = []int{i}, []int{i + 1}
		g.Nodes = append(g.Nodes, x)
		g.Values = append(g.Values, Value{Bytes: 8})
	}
	g.Values[n].Kind = last
	return g
}

func TestPeakOfKnownGraphs(t *testing.T) {
	unread := &Graph{
		Nodes: []Node{
			{Inputs: []int{0}, Outputs: []int{1, 2}}, // 2 is never read
			{Inputs: []int{1}, Outputs: []int{3}},    // takes 2, which is dead
			{Inputs: []int{3}, Outputs: []int{4}},
		},
		Values: []Value{{Bytes: 8, Kind: Feed}, {Bytes: 8}, {Bytes: 8}, {Bytes: 8}, {Bytes: 8, Kind: Output}},
	}
	unknown := chain(4, Node{InPlace: []Pair{{0, 0}}}, Output)
	for i := range unknown.Values {
		unknown.Values[i].Class = None
	}
	early := chain(1, Node{Scratch: []int64{100}, Script: []Act{{Kind: Borrow, Index: 0}, {Kind: GiveBack, Index: 0}}}, Output)
	for _, c := range []struct {
		name string
		g    *Graph
		peak int64
	}{
		{"two buffers take turns, the output has its own", chain(5, Node{}, Output), 16},
		{"in place", chain(6, Node{InPlace: []Pair{{0, 0}}}, Output), 16},
		{"aliases of a feed cost nothing until the output", chain(6, Node{Alias: []Pair{{0, 0}}}, Output), 8},
		{"a bound output is counted nowhere", chain(6, Node{InPlace: []Pair{{0, 0}}}, Bound), 8},
		{"an unread last value stays", chain(2, Node{}, Inner), 16},
		{"unread output is handed on", unread, 16},
		{"unknown shapes are not handed on, but released", unknown, 16},
		{"scratch before the output", early, 100},
		{"scratch beside the output", chain(1, Node{Scratch: []int64{100, 1}}, Output), 109},
		{"nothing", &Graph{}, 0},
	} {
		order := Order(c.g)
		tr := Simulate(c.g, order)
		if tr.Peak != c.peak {
			t.Errorf("%s: peak %d, want %d", c.name, tr.Peak, c.peak)
		}
		replay(t, tr)
	}
}

func TestSimulatorDoesNotAllocate(t *testing.T) {
	g := randomGraph(rand.New(rand.NewPCG(7, 8)), 500)
	s, order := NewSimulator(g), Order(g)
	if n := testing.AllocsPerRun(10, func() { s.Peak(order) }); n != 0 {
		t.Errorf("Peak allocates %v times", n)
	}
}

// training is the shape of a training step: a forward chain, a backward chain
// that reads it, and one leaf per layer.
func training(layers int) *Graph {
	g := &Graph{Values: []Value{{Bytes: 4, Kind: Feed}}}
	add := func(k Kind, in ...int) int {
		g.Values = append(g.Values, Value{Bytes: 4, Kind: k})
		v := len(g.Values) - 1
		g.Nodes = append(g.Nodes, Node{Inputs: in, Outputs: []int{v}})
		return v
	}
	x, acts := 0, []int{0}
	for range layers {
		h := add(Inner, x)
		x = add(Inner, h, x)
		acts = append(acts, x)
	}
	d := x
	for i := layers; i > 0; i-- {
		m := add(Inner, d, acts[i])
		add(Output, m, acts[i-1])
		d = add(Inner, m, acts[i-1])
	}
	return g
}

func BenchmarkPeak(b *testing.B) {
	sweep(b, func(g *Graph) func() { o, s := Order(g), NewSimulator(g); return func() { s.Peak(o) } })
}

func BenchmarkOrder(b *testing.B) { sweep(b, func(g *Graph) func() { return func() { Order(g) } }) }

func BenchmarkFileOrder(b *testing.B) {
	sweep(b, func(g *Graph) func() {
		wanted := make([]int, len(g.Nodes))
		for i := range wanted {
			wanted[i] = i
		}
		return func() { FileOrder(g, wanted) }
	})
}

func BenchmarkFileOrderShuffled(b *testing.B) {
	sweep(b, func(g *Graph) func() {
		wanted := shuffled(rand.New(rand.NewPCG(1, 1)), g)
		return func() { FileOrder(g, wanted) }
	})
}

func sweep(b *testing.B, prepare func(*Graph) func()) {
	for _, nodes := range []int{1000, 10_000, 100_000} {
		g := training(nodes / 5)
		f := prepare(g)
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
		})
	}
}

// TestStreams: with nodes on the host and on the device, each stream runs until it has to
// wait, and lets the other run as soon as it can.
func TestStreams(t *testing.T) {
	node := func(host bool, in []int, out int) Node { return Node{Host: host, Inputs: in, Outputs: []int{out}} }
	g := &Graph{
		Values: make([]Value, 7),
		Nodes: []Node{
			node(false, []int{0}, 1), // device
			node(true, []int{1}, 2),  // host, waits for the first
			node(false, []int{0}, 3),
			node(false, []int{2, 3}, 4), // device, waits for the host
			node(true, []int{0}, 5),
			node(false, []int{4}, 6),
		},
	}
	if got := Streams(g, []int{0, 1, 2, 3, 4, 5}); !slices.Equal(got, []int{0, 2, 1, 3, 5, 4}) {
		t.Errorf("order %v", got)
	}
	for i := range g.Nodes {
		g.Nodes[i].Host = false
	}
	if got := Streams(g, []int{0, 1, 2, 3, 4, 5}); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("on one device: order %v", got)
	}
}
