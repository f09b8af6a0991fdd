package predict

// From an ONNX graph to ortmodel's: what ONNX Runtime makes of a file at
// level 0. Constant nodes become initializers; everything else stays.

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
)

type builder struct {
	*step.Translation
	options Options
	// copied are initializers that are outputs: each step copies them first.
	copied []*onnx.Value
	// held are outputs whose memory a step takes before that.
	held []*onnx.Value
	// constants is the size of the initializers that the session has no copies of.
	constants int64
	unknown   []string
	// workspaces are nodes that borrow one for a library.
	workspaces []string
	// sized is how many of Unsized were doubted.
	sized int
}

// newBuilder goes through the file in its order: inputs, nodes, outputs.
func newBuilder(m *onnx.Model, o Options) (*builder, error) {
	so := step.Options{On: o.On, Places: o.places, Threads: o.Threads, Workspace: o.Workspace, Bound: map[string]bool{}}
	if !o.executed() {
		so.Opset = m.Opset("")
	}
	for _, name := range o.Bound {
		so.Bound[name] = true
	}
	for in, next := range o.Roles.New { // it lies where its input does
		if so.Bound[next] && o.places.HostInput(m.Graph.Value(in)) && !o.places.HostValue(m.Graph.Value(next)) {
			so.Bound[next] = false // the step makes it on the device, and copies it
		}
	}
	if !o.Declared {
		so.Planned = knownTypes(m, o.original, o.Told)
	}
	b := &builder{Translation: step.Translate(m.Graph, so), options: o}
	for _, v := range m.Graph.Initializers {
		b.constant(v)
	}
	for _, v := range m.Graph.Inputs {
		b.Add(v)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("Constant") {
			b.constant(n.Out(0))
			continue
		}
		if err := b.node(n); err != nil {
			return nil, err
		}
	}
	for _, v := range m.Graph.Outputs {
		b.Add(v)
		if v.Stored() && !v.IsInput() && !so.Bound[v.Name] && !b.hosts(v) {
			b.copied = append(b.copied, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Roles.Sums)) {
		if v := m.Graph.Value(name); v != nil && so.Bound[name] {
			b.held = append(b.held, v)
			b.Graph.Held += b.Graph.Values[b.Index[v]].Bytes
		}
	}
	b.doubtSizes()
	return b, nil
}

// executed reports a graph that ONNX Runtime made of a file, with the casts that it runs.
func (o *Options) executed() bool { return o.Saved || o.InOrder }

// hosts reports a constant that the host has, in a step of a device.
func (b *builder) hosts(v *onnx.Value) bool {
	if b.options.places == nil {
		return false
	}
	host, device := b.options.places.Constant(v)
	return host || !device
}

// begins puts what a step takes before its first node in front of a trace: what is held,
// which the trace has counted, and the copies of initializers that are outputs.
func (b *builder) begins(t *ortmodel.Trace) {
	var events []ortmodel.Event
	take := func(v *onnx.Value, bytes int64) {
		if bytes > 0 {
			events = append(events, ortmodel.Event{Value: b.Index[v], Bytes: bytes, Alloc: true})
		}
	}
	for _, v := range b.held {
		take(v, b.Graph.Values[b.Index[v]].Bytes)
	}
	for _, v := range b.copied {
		bytes := v.Type.KnownBytes()
		take(v, bytes)
		t.Peak += bytes
	}
	t.Events = append(events, t.Events...)
}

// order is the execution order, as places in nodes.
func (b *builder) order(o Options) []int {
	order := ortmodel.FileSchedule(len(b.Nodes))
	if !o.InOrder {
		order = ortmodel.Order(b.Graph)
	}
	return order
}

// constant adds the size of a constant that the session has no copy of; strings have none.
func (b *builder) constant(v *onnx.Value) {
	if v != nil && !step.Copied(v) {
		bytes, _ := step.ConstantBytes(v)
		b.constants += bytes
	}
}

// doubtSizes records the sizes that a step asks for and that turned out not to be
// known.
func (b *builder) doubtSizes() {
	for ; b.sized < len(b.Unsized); b.sized++ {
		v := b.Unsized[b.sized]
		if kind := b.Graph.Values[b.Index[v]].Kind; kind == ortmodel.Inner || kind == ortmodel.Output {
			of := ""
			if n := v.Producer; n != nil {
				of = ", of " + n.OpType()
				if n.Name() != "" {
					of += fmt.Sprintf(" %q", n.Name())
				}
			}
			b.unknown = append(b.unknown, fmt.Sprintf("value %q: size not known (%s%s)", v.Name, v.Type, of))
		}
	}
}

// node adds one node, and doubts it where its kernel's dealings with memory are not
// known.
func (b *builder) node(n *onnx.Node) error {
	for _, v := range n.Reads() {
		if v.Producer == nil && !v.IsInput() && v.Init == nil {
			return fmt.Errorf("node %q reads %q, which nothing produces", n.Label(), v.Name)
		}
	}
	f := b.AddNode(n)
	b.doubtSizes()
	if f.Library {
		b.workspaces = append(b.workspaces, fmt.Sprintf("node %q: %s", n.Label(), n.OpType()))
	}
	executed := b.options.executed()
	switch {
	case f.Expanded:
		b.doubt(n, "ONNX Runtime expands %s into other operators", n.OpType())
	case !f.Known:
		b.doubt(n, "%s is not in the table of operators", n.OpType())
	case !f.Sized:
		b.doubt(n, "what %s allocates inside is not known", n.OpType())
	case !executed && n.Is("Cast") && n.In(0) != nil && n.In(0).Producer != nil && n.In(0).Producer.Is("Cast"):
		b.doubt(n, "ONNX Runtime may merge a Cast of a Cast")
	case !executed && b.hostNode() && castsHalf(n, &f.Traits):
		b.doubt(n, "ONNX Runtime may cast %s of half types to float32 on the host", n.OpType())
	case !executed && b.On().Widens && castsHalf(n, &f.Traits):
		b.doubt(n, "ONNX Runtime casts %s of half types to float32 on the CPU", n.OpType())
	}
	beyond := func(size int64) bool { return size < 0 || size > 1<<60 }
	if slices.ContainsFunc(b.Graph.Nodes[len(b.Graph.Nodes)-1].Scratch, beyond) {
		return fmt.Errorf("node %q: the workspace of %s exceeds any memory", n.Label(), n.OpType())
	}
	return nil
}

// hostNode reports that the node added last runs on the host of a device.
func (b *builder) hostNode() bool { return b.Graph.Nodes[len(b.Graph.Nodes)-1].Host }

// doubt records what cannot be predicted about a node.
func (b *builder) doubt(n *onnx.Node, format string, args ...any) {
	b.unknown = append(b.unknown, fmt.Sprintf("node %q: ", n.Label())+fmt.Sprintf(format, args...))
}

// castsHalf reports a node of half type for which there may be no kernel.
func castsHalf(n *onnx.Node, t *traits.Traits) bool {
	return t.Cost != traits.View && t.Cost != traits.Copy &&
		slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && v.Type.DType.IsHalf() })
}

// inputKinds sorts the graph's inputs by name.
func (o *Options) inputKinds() map[string]Category {
	kind := map[string]Category{}
	for _, name := range o.Parameters {
		kind[name] = Parameter
	}
	for _, name := range o.State {
		kind[name] = State
	}
	return kind
}
