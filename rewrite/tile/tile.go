// Package tile computes a region of a training graph over slices of the tokens.
//
// After recomputation the logits of a language model are its peak: batch ×
// sequence × vocabulary, two or three times (logits, their softmax, their
// gradient). But everything between the output projection and the gradients
// that leave the loss works token by token, or sums over tokens. So the region
// is run in parts:
//
//	h ──▶ projection ─▶ log-softmax ─▶ … ─▶ gradient ─┬▶ dh   concatenated
//	W ─┘                                  labels ─┘   └▶ dW   summed up
//
// Each value of the region is cut along one axis into equal parts, is the same
// for every part (replicated), or is a sum over the parts (partialSum). Rules per
// operator (rules.go) say how the cut passes through; where no rule fits, the
// pass is skipped and says at which node. The gradient is computed in the same
// part as the forward values, so nothing is recomputed.
//
// The region is found from the loss alone, in graphs of any origin: the first
// matrix product met on the way back from the loss is the projection; what
// reads or makes values of the logits' size belongs to the region, and what
// lies between such nodes.
//
// Weakness: static extents only, and a gradient of the projection's weights
// that is accumulated part by part exists twice while one part is added, unless it is
// returned and summed up there (boundsums.go).
package tile

import (
	"container/heap"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A sharding says how a value of the region is divided.
type sharding int

// Cuts that are no axis.
const (
	unknown    sharding = -3 + iota
	partialSum          // every part holds a summand
	replicated          // every part sees the whole
)

// A SkipError says why a region cannot be tiled. The graph is unchanged.
type SkipError struct {
	What, Why string
}

func (e *SkipError) Error() string {
	return fmt.Sprintf("not computed in parts: %s: %s", e.What, e.Why)
}

// A Region is the part of a graph that is computed in slices.
type Region struct {
	// Logits is the output of the projection.
	Logits *onnx.Value
	// Nodes in file order.
	Nodes []*onnx.Node

	graph *onnx.Graph
	pass  string                    // what its parts note as their origin
	place map[*onnx.Node]int        // of the graph's nodes in the file
	deps  func() *step.Dependencies // of the graph as it was when the region was found
	joins bool                      // see joinsAxes
	side  func(*onnx.Node) bool     // nodes that may belong to it; nil: all
	// more are rules beside those of the table, and before them.
	more map[string]rule
	// given says how another region, which this one reads from, cuts a value, and
	// beside lists the nodes of the regions that a node reads from.
	given  func(*onnx.Value) sharding
	beside func(*onnx.Node) []*onnx.Node
	// versions are the parts of the values that are followed.
	versions map[*onnx.Value][]*onnx.Value
	// joined are the values that stand for those of the region after apply.
	joined    map[*onnx.Value]*onnx.Value
	in        map[*onnx.Node]bool
	shardings map[*onnx.Value]sharding
	stretches map[*onnx.Value]int64 // of divided axes, where more than one
	mean      map[*onnx.Value]bool  // partial means: summands to be divided by parts
	whole     map[onnx.Use]bool     // inputs that every part reads as they are
	counted   map[onnx.Use]counted  // places that each part counts from its own first row
	samples   int64                 // of the batch, where it is that which is divided
	waiting   bool                  // a node scatters into what may come from outside
	settled   bool                  // what is not in the region by now does
	limit     int64                 // elements from which a value counts as big
	// extents are those that are cut: the number of parts must divide all.
	extents []int64
}

// Projections are the loss's output projection and, in a step over slices of the batch
// (Batch), those of the other slices.
func Projections(g *onnx.Graph, loss *onnx.Value) ([]*onnx.Node, error) {
	first := projection(loss)
	if first == nil {
		return nil, &SkipError{loss.Name, "no matrix product leads to the loss"}
	}
	list := []*onnx.Node{first}
	if !first.MadeBy(batchPass) {
		return list, nil
	}
	for _, n := range g.Nodes {
		if n != first && n.MadeBy(batchPass) && n.Origin().Of == first.Origin().Of && traits.IsMatrixProduct(n) {
			list = append(list, n)
		}
	}
	return list, nil
}

// Around finds the region around an output projection of the loss. The model must be typed
// and sorted.
func Around(m *onnx.Model, proj *onnx.Node) (*Region, error) {
	logits := proj.Outputs[0]
	dims, ok := logits.Type.Shape.Ints()
	if !ok {
		return nil, &SkipError{logits.Name, "its extents are not static: fix them with --dim"}
	}
	if logits.IsOutput() {
		return nil, &SkipError{logits.Name, "logits is an output: give --drop-output " + logits.Name}
	}
	r := newRegion(m, "chunk", onnx.Places(m.Graph.Nodes), logits, dims, outermost(dims))
	if err := r.grow(); err != nil {
		return nil, err
	}
	r.collectExtents()
	return r, nil
}

// emptyRegion has no nodes yet, and values of every size count as big.
func emptyRegion(m *onnx.Model, pass string, place map[*onnx.Node]int) *Region {
	return &Region{
		graph: m.Graph, pass: pass, place: place, deps: dependencies(m.Graph), joins: joinsAxes(m), limit: 1,
		in: map[*onnx.Node]bool{}, shardings: map[*onnx.Value]sharding{}, stretches: map[*onnx.Value]int64{}, mean: map[*onnx.Value]bool{}, whole: map[onnx.Use]bool{}, counted: map[onnx.Use]counted{},
	}
}

// newRegion begins a region at the output of a matrix product, which is cut along an axis.
func newRegion(m *onnx.Model, pass string, place map[*onnx.Node]int, product *onnx.Value, dims []int64, axis int) *Region {
	n, _ := onnx.Elements(dims)
	r := emptyRegion(m, pass, place)
	r.Logits, r.limit = product, max(n/2, 1)
	r.shardings[product] = sharding(axis)
	r.in[product.Producer] = true
	return r
}

// dependencies are those of a graph as it stands when they are first asked for.
func dependencies(g *onnx.Graph) func() *step.Dependencies {
	return sync.OnceValue(func() *step.Dependencies { return step.DependenciesOf(g) })
}

// may reports whether a node may belong to the region.
func (r *Region) may(n *onnx.Node) bool { return r.side == nil || r.side(n) }

// projection walks back from the loss, breadth first, to the first matrix
// product.
func projection(loss *onnx.Value) *onnx.Node {
	seen := map[*onnx.Node]bool{}
	queue := []*onnx.Value{loss}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		n := v.Producer
		if n == nil || seen[n] {
			continue
		}
		seen[n] = true
		if traits.IsMatrixProduct(n) {
			return n
		}
		for _, in := range n.Reads() {
			queue = append(queue, in)
		}
	}
	return nil
}

// outermost is the first axis of more than one element, 0 if there is none.
func outermost(dims []int64) int {
	for i, d := range dims {
		if d != 1 {
			return i
		}
	}
	return 0
}

// grow adds nodes and derives cuts until nothing changes. A stack has a region or two
// a layer, so it looks at the neighbours of the region alone, never at the graph.
func (r *Region) grow() error {
	for {
		before := len(r.in)
		r.addReaders()
		r.addBetween()
		if err := r.propagate(); err != nil {
			return err
		}
		r.addMakers()
		if err := r.propagate(); err != nil {
			return err
		}
		if len(r.in) == before {
			if !r.waiting || r.settled {
				break
			}
			r.settled = true
		}
	}
	r.Nodes = r.inOrder()
	return r.check()
}

// inOrder are the nodes that are in the region, in file order.
func (r *Region) inOrder() []*onnx.Node {
	return slices.SortedFunc(maps.Keys(r.in), func(a, b *onnx.Node) int { return r.place[a] - r.place[b] })
}

func (r *Region) big(v *onnx.Value) bool {
	n, ok := v.Type.Shape.Elements().Int()
	return ok && v.Type.Ranked && n >= r.limit
}

// addReaders takes in whatever reads a big value that is cut: pass by pass, each in
// file order.
func (r *Region) addReaders() {
	for added := true; added; {
		added = false
		n := newNeighbours(r)
		for at := n.next(); at >= 0; at = n.next() {
			node := r.graph.Nodes[at]
			if r.in[node] || !r.may(node) {
				continue
			}
			for _, v := range node.Reads() {
				if r.comesInParts(v) {
					r.in[node], added = true, true
				}
			}
			if r.in[node] {
				n.add(node)
			}
		}
		if err := r.propagate(); err != nil {
			return // reported by the next call
		}
	}
}

// neighbours are the places of nodes that may read what a region, or one that it reads
// from, makes: the readers of what is made there. A place behind which the pass is
// comes with the next pass.
type neighbours struct {
	r      *Region
	at     int // of the last one
	places onnx.PlaceHeap
	seen   map[*onnx.Node]bool // whose readers are there
}

func newNeighbours(r *Region) *neighbours {
	n := &neighbours{r: r, at: -1, seen: map[*onnx.Node]bool{}}
	for node := range r.in {
		n.add(node)
	}
	return n
}

// add adds the readers of what a node of the region makes, and of what the regions make
// that it reads from.
func (n *neighbours) add(node *onnx.Node) {
	n.addReaders(node)
	if n.r.beside == nil {
		return
	}
	for _, other := range n.r.beside(node) {
		n.addReaders(other)
	}
}

func (n *neighbours) addReaders(node *onnx.Node) {
	if n.seen[node] {
		return
	}
	n.seen[node] = true
	for _, o := range node.Returns() {
		for _, u := range o.Uses() {
			if at, ok := n.r.place[u.Node]; ok && at > n.at {
				heap.Push(&n.places, at)
			}
		}
	}
}

// next returns the next place, -1 where none is left.
func (n *neighbours) next() int {
	for n.places.Len() > 0 {
		if at := heap.Pop(&n.places).(int); at > n.at {
			n.at = at
			return at
		}
	}
	return -1
}

// comesInParts reports a big value that this region, or one that it reads
// from, makes part by part.
func (r *Region) comesInParts(v *onnx.Value) bool {
	if v.Producer == nil || !r.big(v) {
		return false
	}
	if r.in[v.Producer] {
		return r.shardingOf(v) >= 0
	}
	if r.given == nil {
		return false
	}
	c := r.given(v)
	if c >= 0 && r.shardingOf(v) == unknown {
		r.shardings[v] = c
	}
	return c >= 0 && r.shardingOf(v) == c
}

// addMakers takes in the makers of big values that must be cut: constants of
// the logits' size, one-hot labels and the like.
func (r *Region) addMakers() {
	for added := true; added; {
		added = false
		for v, c := range r.shardings {
			if n := v.Producer; n != nil && c >= 0 && !r.in[n] && r.may(n) && r.big(v) && !r.staysWhole(n) {
				r.in[n], added = true, true
			}
		}
		if err := r.propagate(); err != nil {
			return
		}
	}
}

// staysWhole reports a node that no rule divides and that reads constants alone, as Range does:
// what it makes is cut where it is read.
func (r *Region) staysWhole(n *onnx.Node) bool {
	reads := func(v *onnx.Value) bool { return v != nil && v.Constant() == nil }
	return r.ruleOf(n) == nil && len(n.Captures) == 0 && !slices.ContainsFunc(n.Inputs, reads)
}

// addBetween takes in the nodes that lie on a way from the region back into it:
// without them the parts would wait for each other. The graph is sorted, so such a way
// leaves and enters between the region's first node and its last.
func (r *Region) addBetween() {
	nodes := r.inOrder()
	nodes = r.graph.Nodes[r.place[nodes[0]] : r.place[nodes[len(nodes)-1]]+1]
	after := map[*onnx.Node]bool{}
	for _, n := range nodes {
		if r.in[n] {
			after[n] = true
			continue
		}
		for _, list := range [2][]*onnx.Value{n.Inputs, n.Captures} {
			for _, v := range list {
				if v != nil && v.Producer != nil && after[v.Producer] && r.shardingOf(v) != partialSum {
					after[n] = true
				}
			}
		}
	}
	before := map[*onnx.Node]bool{}
	for _, n := range slices.Backward(nodes) {
		for _, o := range n.Returns() {
			for _, u := range o.Uses() {
				if r.in[u.Node] || before[u.Node] {
					before[n] = true
				}
			}
		}
		if before[n] && after[n] {
			r.in[n] = true
		}
	}
}

func (r *Region) shardingOf(v *onnx.Value) sharding {
	if c, ok := r.shardings[v]; ok {
		return c
	}
	return unknown
}

// set records how a value is cut; two different answers end the attempt.
func (r *Region) set(v *onnx.Value, c sharding) (bool, error) {
	if v == nil {
		return false, nil
	}
	old := r.shardingOf(v)
	if old == c {
		return false, nil
	}
	if old != unknown {
		return false, fmt.Errorf("%q would have to be split in two ways", v.Name)
	}
	if c >= 0 {
		if int(c) >= rank(v) {
			return false, fmt.Errorf("%q has no axis %d to split", v.Name, c)
		}
		if _, static := v.Type.Shape[c].Int(); !static {
			return false, fmt.Errorf("the extents of %q are not static: fix them with --dim", v.Name)
		}
	}
	r.shardings[v] = c
	return true, nil
}

// propagate applies the rules of the region's nodes until nothing changes.
func (r *Region) propagate() error {
	nodes := r.inOrder()
	for changed := true; changed; {
		changed = false
		for _, n := range nodes {
			if r.ruleOf(n) == nil {
				return &SkipError{n.Label(), fmt.Sprintf("no rule splits operator %s", n.OpType())}
			}
			if v := unranked(n); v != nil {
				return &SkipError{n.Label(), fmt.Sprintf("the rank of %q is unknown", v.Name)}
			}
			c, err := r.ruled(n)
			if err != nil {
				return &SkipError{n.Label(), err.Error()}
			}
			changed = changed || c
		}
	}
	return nil
}

// ruleOf returns the node's rule, of the region or of the table; nil where there is none.
func (r *Region) ruleOf(n *onnx.Node) rule {
	if rule := r.more[ruleKey(n)]; rule != nil {
		return rule
	}
	return ruleOf(n)
}

// unranked returns an input or output of unknown rank, nil if there is none.
func unranked(n *onnx.Node) *onnx.Value {
	for _, v := range slices.Concat(n.Inputs, n.Outputs) {
		if v != nil && !v.Type.Ranked {
			return v
		}
	}
	return nil
}

// check proves that every value the region makes has a cut that its node makes, and that
// partial sums are complete before anything reads them.
func (r *Region) check() error {
	for _, n := range r.Nodes {
		for _, v := range valuesOf(n) {
			if gathers := r.gathers(v); gathers != nil {
				return gathers
			}
		}
		for _, o := range n.Returns() {
			if away := r.countsAway(o); away != nil {
				return away
			}
			switch r.shardingOf(o) {
			case replicated:
				if o.IsOutput() || slices.ContainsFunc(o.Uses(), func(u onnx.Use) bool { return !r.in[u.Node] }) {
					return &SkipError{n.Label(), "is made anew in each part, and needed beside them"}
				}
			case unknown:
				return &SkipError{n.Label(), "unclear how its output is split"}
			case partialSum:
				if r.scattered(o) != nil {
					continue
				}
				if reader := r.readsBack(r.deps(), o); reader != nil {
					return &SkipError{reader.Label(), "needs a sum over all tokens before they are all computed"}
				}
			}
		}
		if !r.follows(n) {
			return &SkipError{n.Label(), "unclear how its output is split"}
		}
	}
	return nil
}

// follows reports that the cuts of a node's outputs follow from those of its inputs: a
// cut that only what reads an output asks for is none that the node makes. What makes a
// shape makes that of a part.
func (r *Region) follows(n *onnx.Node) bool {
	if n.Is("Expand", "ConstantOfShape") {
		return true
	}
	asked, stretches := map[*onnx.Value]sharding{}, map[*onnx.Value]int64{}
	for _, o := range n.Returns() {
		asked[o], stretches[o] = r.shardingOf(o), r.stretchesOf(o)
		delete(r.shardings, o)
		delete(r.stretches, o)
	}
	_, err := r.ruled(n)
	for o, c := range asked {
		if r.shardingOf(o) != c || r.stretchesOf(o) != stretches[o] {
			err = errors.New("another cut")
		}
		r.shardings[o] = c
		if stretches[o] > 1 {
			r.stretches[o] = stretches[o]
		}
	}
	return err == nil
}

// readsBack returns a node of the region that depends on a value through nodes
// outside it, or reads it itself; nil where there is none.
func (r *Region) readsBack(deps *step.Dependencies, v *onnx.Value) *onnx.Node {
	for _, n := range deps.Forward(step.Any, v).Nodes() {
		if r.in[n] {
			return n
		}
	}
	return nil
}
