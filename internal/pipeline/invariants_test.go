package pipeline

// What holds of a written file by itself, whatever planned it:
//
//	order    the nodes that run are those of the plan, each at its place
//	edges    no two nodes are left that ONNX Runtime would merge; without the edges
//	         what is computed again is what it repeats, and the graph is the one planned
//	buffers  where a value is read, its buffer holds it, and is there: from the first
//	         write to the last read, and no longer
//
// The last follows a prediction's trace by contents, not by counting uses as ortmodel
// does, so that what is wrong there is not wrong here in the same way.

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/runtime/predict"
)

// orderStands checks that the order wanted is the one that the file says.
func orderStands(t *testing.T, what string, r *File) {
	t.Helper()
	if r.written == nil {
		return
	}
	for _, of := range r.Reports {
		if n := len(r.Model.Graph.Nodes); of.Pass == "schedule" && of.Requested != n {
			t.Errorf("%s: %d nodes are said to be in order, of %d", what, of.Requested, n)
		}
	}
	if !slices.Equal(r.Plan.Schedule, r.written.ran) {
		t.Errorf("%s: the file runs another schedule than the plan has", what)
	}
	for k, n := range rewrite.RunOrder(r.Model.Graph) {
		if n != r.written.order[k] {
			t.Errorf("%s: %s runs at place %d, where %s is wanted", what, n.Label(), k, r.written.order[k].Label())
			return
		}
	}
}

// clonesStay has a planner fail where what is computed again is equal to what it repeats.
// Of a graph with prepared edges that does not hold: there edges may turn out to be
// equal, and the plan is followed as it ran (File.asRun).
func clonesStay(o *Options) {
	clones := func(g *onnx.Graph) (n int) {
		for _, node := range g.Nodes {
			if node.MadeBy(onnx.RecomputePass) {
				n++
			}
		}
		return n
	}
	o.After = func(pass string, m *onnx.Model) error {
		if pass != "recompute" {
			return nil
		}
		m, err := m.Clone()
		if err != nil {
			return err
		}
		defer m.Close()
		m.Graph.RemoveDead() // a plan may compute again what nobody reads
		n := clones(m.Graph)
		normalize.MergeEqual(m.Graph)
		if left := clones(m.Graph); left < n {
			return fmt.Errorf("%d of %d nodes that are computed again are equal to others", n-left, n)
		}
		return nil
	}
}

// edgesLift checks what a saved file's control edges keep apart, and only they, and
// leaves the file without them.
func edgesLift(t *testing.T, what string, planned, saved *onnx.Model) {
	t.Helper()
	if n := normalize.MergeEqual(saved.Graph); n > 0 {
		t.Errorf("%s: %d nodes of the file are equal to others", what, n)
	}
	planned, err := planned.Clone()
	if err != nil {
		t.Fatalf("%s: the graph as prepared: %v", what, err)
	}
	defer planned.Close()
	if err := planned.Graph.SortTopologically(); err != nil {
		t.Fatalf("%s: the graph as prepared: %v", what, err)
	}
	if want, got := unordered(planned.Graph), unordered(saved.Graph); !maps.Equal(want, got) {
		t.Errorf("%s: without its edges the file has %v, the planned graph %v", what, got, want)
	}
}

// unordered takes the edges that order a graph out, merges what is equal then, and
// counts its operators.
func unordered(g *onnx.Graph) map[string]int {
	control.Lift(g, prepared...)
	for _, n := range g.Nodes {
		if n.Is("Dropout") && n.Attr("seed") != nil { // which draws the same again
			n.Proto.OpType = proto.String("Dropout with a seed")
		}
	}
	// A node that makes a graph output stays, and where it comes first others are read there.
	slices.SortStableFunc(g.Nodes, func(a, b *onnx.Node) int { return outputsOf(b) - outputsOf(a) })
	for normalize.MergeEqual(g) > 0 {
	}
	g.RemoveDead()
	count := map[string]int{}
	for _, n := range g.Nodes {
		count[n.OpType()]++
	}
	return count
}

// outputsOf is how many outputs of the graph a node makes.
func outputsOf(n *onnx.Node) (count int) {
	for _, v := range n.Outputs {
		if v != nil && v.IsOutput() {
			count++
		}
	}
	return count
}

// A bufferCheck follows a step by what its buffers hold.
type bufferCheck struct {
	p     *predict.Prediction
	order []int
	// content is by owner of a buffer what it holds, whose is by value what it is a
	// view of.
	content, whose []int
	// from and to are by owner the places at which a buffer is allocated and released.
	from, to []int
	errs     []string
}

// buffersHold checks a prediction for a file that runs as it stands.
func buffersHold(t *testing.T, what string, p *predict.Prediction) {
	t.Helper()
	n := len(p.Graph.Values)
	c := &bufferCheck{p: p, order: ortmodel.Order(p.Graph), content: make([]int, n), whose: make([]int, n), from: make([]int, n), to: make([]int, n)}
	for v := range n {
		c.content[v], c.whose[v], c.from[v], c.to[v] = v, v, ortmodel.None, ortmodel.None
	}
	c.events()
	last := make([]int, n)
	for v := range last {
		last[v] = len(c.order)
	}
	for k, i := range c.order {
		c.node(k, &p.Graph.Nodes[i], last)
	}
	for v := range n {
		owner := p.Trace.Owner[v]
		if kind := p.Graph.Values[v].Kind; kind == ortmodel.Output && c.content[owner] != c.whose[v] {
			c.fail("at the end the buffer of output %s holds %s", c.name(v), c.name(c.content[owner]))
		} else if kind == ortmodel.Inner && owner == v && c.from[v] >= 0 && c.to[v] != last[v] {
			c.fail("the buffer of %s is released at place %d, and read last at %d", c.name(v), c.to[v], last[v])
		}
	}
	for _, e := range c.errs[:min(len(c.errs), 5)] {
		t.Errorf("%s: %s", what, e)
	}
}

func (c *bufferCheck) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Sprintf(format, args...))
}

func (c *bufferCheck) name(v int) string { return c.p.Values[v].Name }

// events notes when buffers are there, and adds up what is.
func (c *bufferCheck) events() {
	var live, peak int64
	for _, e := range c.p.Trace.Events {
		switch {
		case !e.Alloc:
			live -= e.Bytes
		default:
			live += e.Bytes
		}
		peak = max(peak, live)
		if e.Value != ortmodel.None && e.Alloc {
			c.from[e.Value] = e.Step
		} else if e.Value != ortmodel.None {
			c.to[e.Value] = e.Step
		}
	}
	if peak != c.p.LivePeak {
		c.fail("the peak is %d, and %d by what happens", c.p.LivePeak, peak)
	}
}

// node runs the node at place k: it reads, then it writes.
func (c *bufferCheck) node(k int, n *ortmodel.Node, last []int) {
	reads := map[int]bool{}
	for _, v := range slices.Concat(n.Inputs, n.Captures) {
		if v < 0 {
			continue
		}
		owner := c.p.Trace.Owner[v]
		reads[owner], last[owner] = true, k
		if c.content[owner] != c.whose[v] {
			c.fail("at place %d the buffer of %s holds %s", k, c.name(v), c.name(c.content[owner]))
		}
		c.there(k, owner)
	}
	for o, v := range n.Outputs {
		if v < 0 {
			continue
		}
		owner := c.p.Trace.Owner[v]
		for _, a := range n.Alias {
			if in := n.Inputs[a.Input]; a.Output == o && in >= 0 && owner == c.p.Trace.Owner[in] {
				c.whose[v] = c.whose[in]
			}
		}
		if reads[owner] && c.whose[v] == v && !slices.ContainsFunc(n.InPlace, func(a ortmodel.Pair) bool {
			return a.Output == o && n.Inputs[a.Input] >= 0 && c.p.Trace.Owner[n.Inputs[a.Input]] == owner
		}) {
			c.fail("%s is written over what its node reads", c.name(v))
		}
		c.content[owner] = c.whose[v]
		c.there(k, owner)
	}
	for _, v := range n.Outputs {
		if v >= 0 && c.content[c.p.Trace.Owner[v]] != c.whose[v] {
			c.fail("two outputs are written to the buffer of %s", c.name(v))
		}
	}
}

// there checks that a buffer of the step is allocated at place k.
func (c *bufferCheck) there(k, owner int) {
	val := &c.p.Graph.Values[owner]
	if val.Bytes == 0 || val.Kind != ortmodel.Inner && val.Kind != ortmodel.Output {
		return
	}
	if c.from[owner] < 0 || c.from[owner] > k || c.to[owner] >= 0 && c.to[owner] < k {
		c.fail("the buffer of %s is there from place %d to %d, and used at %d", c.name(owner), c.from[owner], c.to[owner], k)
	}
}
