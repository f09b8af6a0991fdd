// Package predict says what ONNX Runtime will do with a file before it does
// it: the order of the nodes, every allocation and release of a step, the peak
// and who is alive at it, and what a session holds beforehand.
//
//	onnx.Graph, typed ──build──▶ ortmodel.Graph ──▶ Order, Trace
//	traits (alias, in place, scratch) ──┘             │
//	names and roles ──▶ categories ───────────────────▶ Prediction
//
// It is exact, to the byte, for a graph as ONNX Runtime executes it: a file at
// optimization level 0 whose operators all have kernels, or the graph that
// ONNX Runtime saves when it is asked for the optimized model at a level (then
// with Options.InOrder, as that file lists its nodes in execution order).
//
// On CUDA the file alone does, at level 0, as nodes and copies between host and device
// are placed here (package step); above it, the graph saved there.
//
// Weakness: the memory pattern off. Where a size is not
// static, or a kernel's own buffers are not known, Prediction.Unknown names
// the place and the figures are lower bounds.
package predict

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/ortmodel"
)

// Options say under which circumstances the step runs.
type Options struct {
	// Threads is the number of intra-operator threads; 0 means 1.
	Threads int
	// InOrder: the file lists its nodes in execution order (a graph saved by
	// ONNX Runtime), so the order is not to be derived.
	InOrder bool
	// Saved: the graph was saved by ONNX Runtime, so every node has a kernel.
	Saved bool
	// Bound names outputs that the caller binds to memory of its own; they
	// are not allocated by the step. That of a gradient which is summed up there
	// (Roles.Sums) is the step's, and taken before the first node runs.
	Bound []string
	// Declared: every value's type stands in the file's value_info, as in each
	// file that this program writes, so ONNX Runtime knows them all. Else
	// those count that the file declares or ONNX Runtime can infer.
	Declared bool
	// Told are types of inputs and outputs as ONNX Runtime reads them; it plans
	// with names where it is not told the numbers of free extents. Those of
	// values that are not in it are as in the graph.
	Told map[string]onnx.Type
	// On is whose kernels run the step; nil: the CPU's.
	On *step.Provider
	// Workspace is what each of Prediction.Workspaces borrows, in bytes.
	Workspace int64
	// Roles tell gradients among the outputs, and the loss, which divides forward
	// from backward: what it does not wait for is backward.
	Roles step.Roles
	// Parameters and State name graph inputs; the others are feeds.
	Parameters, State []string

	// original is the file which a saved graph was made from.
	original original
	places   *step.Places
}

// A Prediction is what a step will do. All sizes are bytes.
type Prediction struct {
	// Nodes in execution order, without Constant nodes, which become
	// initializers.
	Nodes []*onnx.Node
	// LivePeak is the most that a step holds of ONNX Runtime's allocator,
	// while Nodes[PeakAt] runs.
	LivePeak int64
	PeakAt   int
	// Parameters (initializers included, unless they are the session's, on a device),
	// State and Feeds are the memory of what goes in; Outputs that of what the step allocates and returns.
	Parameters, State, Feeds, Outputs int64
	// Session is what a session holds before its first step.
	Session Session
	// TotalPeak = Parameters + State + Feeds + Session + LivePeak.
	TotalPeak int64
	// Unknown lists what could not be predicted; empty means exact.
	Unknown []string
	// Workspaces lists the nodes that borrow a workspace for a library of the device
	// (cuDNN) whose size only that knows, and no note says.
	Workspaces []string

	// Graph is the step as ortmodel sees it, Values its values by index, Order its
	// nodes' indexes in the order of Nodes, and Trace all that happens, by place there.
	Graph  *ortmodel.Graph
	Values []*onnx.Value
	Order  []int
	Trace  *ortmodel.Trace

	categories categories
	forward    *step.Slice // what the loss depends on; nil without one
	arena      *Arena
	slab       *ortmodel.Slab
	rough      int64 // RoughlyReserved
	device     bool
}

// Category returns what value v, an index into Values, counts as.
func (p *Prediction) Category(v int) Category { return p.categories[v] }

// Forward reports that the node at place k of the order leads to the loss.
func (p *Prediction) Forward(k int) bool { return p.forward == nil || p.forward.Has(p.Nodes[k]) }

// Exact reports that nothing was left to guess.
func (p *Prediction) Exact() bool { return len(p.Unknown) == 0 }

// Predict follows one step of m, whose values must have been typed (see
// onnx/infer). It fails where the graph is not a step that could run: a cycle,
// a value without a maker.
func Predict(m *onnx.Model, o Options) (*Prediction, error) {
	m, err := o.place(m)
	if err != nil {
		return nil, err
	}
	b, err := newBuilder(m, o)
	if err != nil {
		return nil, err
	}
	p := &Prediction{Graph: b.Graph, Values: b.Values, Unknown: b.unknown, Workspaces: b.workspaces, device: b.On().Device}
	order := b.order(o)
	if !ortmodel.Valid(b.Graph, order) {
		return nil, fmt.Errorf("graph %q has a cycle, or lists a node before its inputs", m.Graph.Proto.GetName())
	}
	order = ortmodel.Streams(b.Graph, order)
	p.Order = order
	p.Trace = ortmodel.Simulate(b.Graph, order)
	b.begins(p.Trace)
	p.LivePeak, p.PeakAt = p.Trace.Peak, p.Trace.PeakAt
	for _, i := range order {
		p.Nodes = append(p.Nodes, b.Nodes[i])
	}
	p.sums(m, b, o.inputKinds())
	p.Session = session(b)
	p.TotalPeak = p.Parameters + p.State + p.Feeds + p.Session.Bytes() + p.LivePeak
	if loss := m.Graph.Value(o.Roles.Loss); loss != nil && loss.Producer != nil {
		p.forward = step.DependenciesOf(m.Graph).Backward(step.ForwardBy(m), loss)
	}
	p.categories = newCategories(b, p.forward)
	return p, nil
}

// place decides where the nodes run, and returns the model with the copies between
// host and device: m itself where there are none to be added.
func (o *Options) place(m *onnx.Model) (*onnx.Model, error) {
	on := cmp.Or(o.On, step.CPU)
	o.places = on.Place(m, o.Saved)
	if !o.places.Copied(m.Graph) {
		return m, nil
	}
	clone, err := m.Clone()
	if err != nil {
		return nil, err
	}
	takeTypes(clone.Graph, m.Graph)
	o.places = on.Place(clone, false)
	o.places.Copy(clone.Graph)
	declareAs(clone.Graph, m.Graph.Proto.GetValueInfo())
	return clone, nil
}

// declareAs has a clone declare what the original does, and both ends of a copy what one
// of them does: a clone by itself declares all that is known of it.
func declareAs(clone *onnx.Graph, declared []*onnxpb.ValueInfoProto) {
	types := map[string]*onnxpb.TypeProto{}
	for _, d := range declared {
		types[d.GetName()] = d.GetType()
	}
	all := slices.Clone(declared)
	for _, n := range clone.Nodes {
		if !n.Is("MemcpyFromHost", "MemcpyToHost") {
			continue
		}
		from, to := n.In(0).Name, n.Out(0).Name
		if types[from] == nil {
			from, to = to, from
		}
		if types[from] != nil && types[to] == nil {
			all = append(all, &onnxpb.ValueInfoProto{Name: &to, Type: types[from]})
		}
	}
	clone.Proto.ValueInfo = all
}

// takeTypes gives the values of a clone the types of the original's.
func takeTypes(clone, from *onnx.Graph) {
	take := func(v *onnx.Value) {
		if v != nil {
			clone.Value(v.Name).Type = v.Type
		}
	}
	for _, list := range [][]*onnx.Value{from.Inputs, from.Initializers} {
		for _, v := range list {
			take(v)
		}
	}
	for _, n := range from.Nodes {
		for _, v := range n.Outputs {
			take(v)
		}
	}
}

// sums adds up what goes in and what comes out.
func (p *Prediction) sums(m *onnx.Model, b *builder, kind map[string]Category) {
	for _, v := range m.Graph.Inputs {
		if v.Init != nil {
			continue // an initializer that a feed may replace
		}
		bytes := v.Type.KnownBytes()
		switch kind[v.Name] {
		case Parameter:
			p.Parameters += bytes
		case State:
			p.State += bytes
		default:
			p.Feeds += bytes
		}
	}
	if b.options.places == nil {
		p.Parameters += b.constants
	}
	for i, v := range b.Graph.Values {
		if v.Kind == ortmodel.Output && b.Values[i].Producer != nil {
			p.Outputs += v.Bytes
		}
	}
	p.Outputs += b.Graph.Held
	for _, v := range b.copied {
		p.Outputs += v.Type.KnownBytes()
	}
}
