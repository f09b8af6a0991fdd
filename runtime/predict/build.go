package predict

// From an ONNX graph to ortmodel's: what ONNX Runtime makes of a file at
// level 0. Constant nodes become initializers; everything else stays.

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
)

type builder struct {
	roles  Roles
	graph  *ortmodel.Graph
	nodes  []*onnx.Node
	values []*onnx.Value
	at     map[*onnx.Value]int
	bound  map[string]bool
	// executed: the graph is what ONNX Runtime made of a file.
	executed bool
	// cuda: the CUDA provider's kernels run it.
	cuda bool
	// classes numbers shapes with an element size.
	classes map[string]int
	key     []byte
	// known are the types that ONNX Runtime has; nil: all of them.
	known map[*onnx.Value]onnx.Type
	// copied are initializers that are outputs: each step copies them first.
	copied []*onnx.Value
	// constants is the size of all initializers.
	constants int64
	unknown   []string
}

// newBuilder goes through the file in its order: inputs, nodes, outputs.
func newBuilder(m *onnx.Model, o Options) (*builder, error) {
	b := &builder{
		roles: o.Roles, graph: &ortmodel.Graph{}, at: map[*onnx.Value]int{},
		bound: map[string]bool{}, classes: map[string]int{}, executed: o.Saved || o.InOrder, cuda: o.CUDA,
	}
	for _, name := range o.Bound {
		b.bound[name] = true
	}
	if !o.Declared {
		b.known = knownTypes(m, o.original, o.Told)
	}
	for _, v := range m.Graph.Initializers {
		b.constants += initializerBytes(v.Init)
	}
	for _, v := range m.Graph.Inputs {
		b.value(v)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("Constant") {
			b.constant(n)
			continue
		}
		if err := b.node(n, o.Threads); err != nil {
			return nil, err
		}
	}
	for _, v := range m.Graph.Outputs {
		b.value(v)
		if isInitializer(v) && !v.IsInput() && !b.bound[v.Name] {
			b.copied = append(b.copied, v)
		}
	}
	return b, nil
}

// copies puts the copies of initializers that are outputs in front of a trace.
func (b *builder) copies(t *ortmodel.Trace) {
	var events []ortmodel.Event
	for _, v := range b.copied {
		if bytes, ok := v.Type.Bytes(); ok && bytes > 0 {
			events = append(events, ortmodel.Event{Value: b.at[v], Bytes: bytes, Alloc: true})
			t.Peak += bytes
		}
	}
	if len(events) > 0 {
		t.Events = append(events, t.Events...)
	}
}

// order is the execution order, as places in nodes.
func (b *builder) order(o Options) []int {
	if !o.InOrder {
		return ortmodel.Order(b.graph)
	}
	order := make([]int, len(b.nodes))
	for i := range order {
		order[i] = i
	}
	return order
}

// constant adds the size of a Constant node's value to the initializers.
func (b *builder) constant(n *onnx.Node) {
	if v := n.Out(0); v != nil {
		bytes, _ := v.Type.Bytes()
		b.constants += bytes
	}
}

func initializerBytes(t *onnx.Tensor) int64 {
	bytes, err := t.ByteSize()
	if err != nil {
		return 0 // strings: no fixed size
	}
	return bytes
}

// value returns v's index, and adds it at its first mention, the order in
// which ONNX Runtime numbers its values.
func (b *builder) value(v *onnx.Value) int {
	if i, ok := b.at[v]; ok {
		return i
	}
	i := len(b.values)
	b.at[v] = i
	b.values = append(b.values, v)
	b.graph.Values = append(b.graph.Values, b.describe(v))
	return i
}

// describe says what the planner knows of a value: where it lies, its size, and the
// class within which buffers are used again.
func (b *builder) describe(v *onnx.Value) ortmodel.Value {
	out := ortmodel.Value{Class: ortmodel.None, Kind: ortmodel.Inner}
	switch {
	case v.IsInput():
		out.Kind = ortmodel.Feed
	case v.Init != nil || v.Producer != nil && v.Producer.Is("Constant"):
		out.Kind = ortmodel.Constant
	case v.IsOutput() && b.bound[v.Name]:
		out.Kind = ortmodel.Bound
	case v.IsOutput():
		out.Kind = ortmodel.Output
	}
	bytes, ok := v.Type.Bytes()
	if !ok {
		if out.Kind == ortmodel.Inner || out.Kind == ortmodel.Output {
			b.unknown = append(b.unknown, fmt.Sprintf("value %q: size not known (%s)", v.Name, v.Type))
		}
		return out
	}
	out.Bytes = bytes
	out.Scalar = len(v.Type.Shape) == 0
	shape := v.Type.Shape
	if t, ok := b.known[v]; ok {
		if !t.Ranked {
			return out
		}
		shape = t.Shape
	}
	out.Class = b.class(v.Type.DType, shape)
	return out
}

// class numbers a shape with an element size; None where an extent is not
// known. ONNX Runtime compares free extents by name: [batch, 4] is the shape of
// another [batch, 4], and of no [2, 4].
func (b *builder) class(t onnx.DType, shape onnx.Shape) int {
	b.key = strconv.AppendInt(b.key[:0], t.Size(), 10)
	for _, d := range shape {
		if !d.Known() {
			return ortmodel.None
		}
		b.key = append(append(b.key, ','), d.String()...)
	}
	c, ok := b.classes[string(b.key)]
	if !ok {
		c = len(b.classes)
		b.classes[string(b.key)] = c
	}
	return c
}

// node adds one node, and doubts it where its kernel's dealings with memory are not
// known.
func (b *builder) node(n *onnx.Node, threads int) error {
	var out ortmodel.Node
	for _, v := range n.Inputs {
		if v != nil && v.Producer == nil && !v.IsInput() && v.Init == nil {
			return fmt.Errorf("node %q reads %q, which nothing produces", n.Label(), v.Name)
		}
		out.Inputs = append(out.Inputs, b.index(v))
	}
	for _, v := range n.Captures {
		out.Captures = append(out.Captures, b.index(v))
	}
	for _, v := range n.Outputs {
		out.Outputs = append(out.Outputs, b.index(v))
	}
	t, known := traits.Of(n)
	if b.cuda {
		t, known = traits.OfCUDA(n)
	}
	out.Alias, out.InPlace = pairs(t.Alias), pairs(t.InPlace)
	k, ok := traits.Scratch(n, threads)
	if b.cuda {
		k, ok = traits.ScratchCUDA(n)
	}
	switch {
	case t.Expanded:
		b.doubt(n, "ONNX Runtime expands %s into other operators", n.OpType())
	case !known:
		b.doubt(n, "%s is not in the table of operators", n.OpType())
	case !ok:
		b.doubt(n, "what %s allocates inside is not known", n.OpType())
	case !b.executed && n.Is("Cast") && n.In(0) != nil && n.In(0).Producer != nil && n.In(0).Producer.Is("Cast"):
		b.doubt(n, "ONNX Runtime may merge a Cast of a Cast")
	case !b.executed && !b.cuda && castsHalf(n, &t):
		b.doubt(n, "ONNX Runtime casts %s of half types to float32 on the CPU", n.OpType())
	}
	if k != nil {
		out.Scratch = k.Sizes
		if slices.ContainsFunc(k.Sizes, func(size int64) bool { return size < 0 || size > 1<<60 }) {
			return fmt.Errorf("node %q: the workspace of %s exceeds any memory", n.Label(), n.OpType())
		}
		for _, a := range k.Acts {
			out.Script = append(out.Script, ortmodel.Act{Kind: ortmodel.ActKind(a.Kind), Index: a.Index})
		}
	}
	b.graph.Nodes = append(b.graph.Nodes, out)
	b.nodes = append(b.nodes, n)
	return nil
}

// doubt records what cannot be predicted about a node.
func (b *builder) doubt(n *onnx.Node, format string, args ...any) {
	b.unknown = append(b.unknown, fmt.Sprintf("node %q: ", n.Label())+fmt.Sprintf(format, args...))
}

// castsHalf reports a node of half type for which there may be no kernel.
func castsHalf(n *onnx.Node, t *traits.Traits) bool {
	if t.Cost == traits.View || t.Cost == traits.Copy {
		return false
	}
	for _, v := range n.Inputs {
		if v != nil && (v.Type.DType == onnx.Float16 || v.Type.DType == onnx.BFloat16) {
			return true
		}
	}
	return false
}

func (b *builder) index(v *onnx.Value) int {
	if v == nil {
		return ortmodel.None
	}
	return b.value(v)
}

func pairs(list []traits.Pair) []ortmodel.Pair {
	out := make([]ortmodel.Pair, len(list))
	for i, p := range list {
		out[i] = ortmodel.Pair(p)
	}
	return out
}

// inputKinds sorts the graph's inputs by name.
func (b *builder) inputKinds() map[string]Category {
	kind := map[string]Category{}
	for _, name := range b.roles.Parameters {
		kind[name] = Parameter
	}
	for _, name := range b.roles.State {
		kind[name] = State
	}
	return kind
}

// isGradient reports an output that holds a gradient.
func (r *Roles) isGradient(name string) bool { return slices.Contains(r.Gradients, name) }
