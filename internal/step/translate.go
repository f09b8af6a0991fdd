package step

// From an ONNX graph to ortmodel's, which is integers.
//
//	value   who owns its memory, its size, and its class: within a class, equal
//	        element size and equal shape, ONNX Runtime hands buffers on
//	node    what it reads and makes, which outputs share an input's buffer, and
//	        what the provider's kernel asks the allocator for
//
// Values are numbered when they are first mentioned, as ONNX Runtime does. Of the
// sizes a caller says what it knows: a planner counts free extents as it is told,
// a predictor knows no more than ONNX Runtime does when it plans.

import (
	"cmp"
	"strconv"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
)

// Options say under what circumstances a graph is translated.
type Options struct {
	// On is whose kernels run the step; nil: the CPU's.
	On *Provider
	// Places are where nodes run; nil: all on the provider's device. What lies on the
	// host counts as empty then.
	Places *Places
	// Threads is how many a kernel uses; 0 means 1.
	Threads int
	// Type is the type by which a value is sized; nil: its own.
	Type func(*onnx.Value) onnx.Type
	// Planned are the types that ONNX Runtime has when it plans, where those are
	// others: the buffer of a value of unknown rank or extents is not handed on.
	Planned map[*onnx.Value]onnx.Type
	// Workspace is what a kernel borrows for a library of the device, in bytes.
	Workspace int64
	// Bound are outputs, by name, that the caller binds to memory of its own.
	Bound map[string]bool
	// Opset is the version of the standard operators; with it, values that ONNX Runtime
	// casts to float32 are sized so (widen.go). 0: none are.
	Opset int64
}

// A Translation is a graph in numbers: node i of Graph is Nodes[i], value v is
// Values[v].
type Translation struct {
	Graph  *ortmodel.Graph
	Nodes  []*onnx.Node
	Values []*onnx.Value
	// Index finds the number of a value.
	Index map[*onnx.Value]int
	// Unsized lists the values whose size is not known; they count as empty.
	Unsized []*onnx.Value

	options Options
	// bare: sizes and kernels are left out.
	bare    bool
	classes map[string]int
	key     []byte
	// widened: nodes that run in float32 though they read float16.
	widened map[*onnx.Node]bool
}

// Translate begins a translation of a graph: the caller adds its values and nodes in the order that it wants.
func Translate(g *onnx.Graph, o Options) *Translation {
	o.On = cmp.Or(o.On, CPU)
	o.Threads = max(o.Threads, 1)
	values := len(g.Inputs) + len(g.Initializers)
	for _, n := range g.Nodes {
		values += len(n.Outputs)
	}
	return &Translation{
		Graph: &ortmodel.Graph{Nodes: make([]ortmodel.Node, 0, len(g.Nodes)), Values: make([]ortmodel.Value, 0, values)},
		Nodes: make([]*onnx.Node, 0, len(g.Nodes)), Values: make([]*onnx.Value, 0, values), Index: make(map[*onnx.Value]int, values),
		options: o, classes: map[string]int{}, widened: map[*onnx.Node]bool{},
	}
}

// Structure is the graph's edges, nodes in its order; sizes and kernels are left
// out. That is enough for orders.
func Structure(g *onnx.Graph) *ortmodel.Graph {
	t := Translate(g, Options{})
	t.bare = true
	for _, n := range g.Nodes {
		t.AddNode(n)
	}
	return t.Graph
}

// On is whose kernels run the step.
func (t *Translation) On() *Provider { return t.options.On }

// Add returns the number of a value, and gives it one where it has none; None for
// nil.
func (t *Translation) Add(v *onnx.Value) int {
	if v == nil {
		return ortmodel.None
	}
	if i, ok := t.Index[v]; ok {
		return i
	}
	i := len(t.Values)
	t.Index[v] = i
	t.Values = append(t.Values, v)
	t.Graph.Values = append(t.Graph.Values, t.describe(v))
	return i
}

// describe says what ONNX Runtime knows of a value when it plans.
func (t *Translation) describe(v *onnx.Value) ortmodel.Value {
	out := ortmodel.Value{Class: ortmodel.None}
	if t.bare {
		return out
	}
	out.Kind = t.kind(v)
	typ := v.Type
	if t.options.Type != nil {
		typ = t.options.Type(v)
	}
	if t.Wide(v) {
		typ.DType = onnx.Float32
	}
	bytes, ok := typ.Bytes()
	if !ok {
		t.Unsized = append(t.Unsized, v)
		return out
	}
	out.Bytes, out.Scalar = bytes, len(typ.Shape) == 0
	host := t.options.Places.HostValue(v)
	if host {
		out.Bytes = 0
	}
	if planned, ok := t.options.Planned[v]; ok {
		if !planned.Ranked {
			return out
		}
		typ.Shape = planned.Shape
	} else if v.Producer != nil && v.Producer.Hides() {
		return out
	}
	out.Class = t.class(typ, host)
	return out
}

func (t *Translation) kind(v *onnx.Value) ortmodel.Kind {
	switch {
	case v.IsInput():
		return ortmodel.Feed
	case v.Stored():
		return ortmodel.Constant
	case v.IsOutput() && t.options.Bound[v.Name]:
		return ortmodel.Bound
	case v.IsOutput():
		return ortmodel.Output
	}
	return ortmodel.Inner
}

// class numbers a shape with an element size in bits (elements of four bits and of
// two share no buffer, measured); None where an extent is not known. ONNX Runtime
// compares free extents by name: [batch, 4] is the shape of another [batch, 4],
// and of no [2, 4]. The host's buffers are none of the device's.
func (t *Translation) class(typ onnx.Type, host bool) int {
	t.key = strconv.AppendInt(t.key[:0], int64(typ.DType.Bits()), 10)
	if host {
		t.key = append(t.key, " host"...)
	}
	for _, d := range typ.Shape {
		if !d.Known() {
			return ortmodel.None
		}
		t.key = append(append(t.key, ','), d.String()...)
	}
	c, ok := t.classes[string(t.key)]
	if !ok {
		c = len(t.classes)
		t.classes[string(t.key)] = c
	}
	return c
}

// Facts are what is known of a node's kernel.
type Facts struct {
	traits.Traits
	// Known: the operator is in the table. Sized: so is what the kernel allocates
	// inside. Library: but for a workspace that a library asks for.
	Known, Sized, Library bool
}

// AddNode adds a node, and what it reads and makes. A Constant node makes nothing
// in a step: ONNX Runtime makes an initializer of it.
func (t *Translation) AddNode(n *onnx.Node) Facts {
	node := ortmodel.Node{Inputs: t.addAll(n.Inputs), Captures: t.addAll(n.Captures), Outputs: t.addAll(n.Outputs)}
	var f Facts
	if !t.bare {
		f = t.kernel(n, &node)
	}
	t.Nodes = append(t.Nodes, n)
	t.Graph.Nodes = append(t.Graph.Nodes, node)
	return f
}

func (t *Translation) addAll(values []*onnx.Value) []int {
	if len(values) == 0 {
		return nil
	}
	list := make([]int, len(values))
	for i, v := range values {
		list[i] = t.Add(v)
	}
	return list
}

// kernel fills in what the provider's kernel does to memory.
func (t *Translation) kernel(n *onnx.Node, node *ortmodel.Node) Facts {
	var f Facts
	on := t.options.On
	if node.Host = t.options.Places.HostNode(n); node.Host {
		on = CPU
	}
	f.Traits, f.Known = on.traits(n)
	if n.Is("Constant") {
		for i := range node.Outputs {
			node.Outputs[i] = ortmodel.None
		}
	}
	node.Alias, node.InPlace = within(f.Alias, node), within(f.InPlace, node)
	var k *traits.Kernel
	if node.Host {
		f.Sized = true // what it borrows is the host's
	} else if k, f.Sized = on.scratch(n, t.options.Threads); k != nil {
		node.Scratch = k.Sizes
		if f.Library = len(k.Library) > 0 && !k.Noted; f.Library {
			for _, i := range k.Library {
				k.Sizes[i] = t.options.Workspace
			}
		}
		for _, a := range k.Acts {
			node.Script = append(node.Script, ortmodel.Act{Kind: ortmodel.ActKind(a.Kind), Index: a.Index, Unstreamed: a.Unstreamed})
		}
	}
	return f
}

// within are the pairs of inputs and outputs that the node has.
func within(pairs []traits.Pair, n *ortmodel.Node) []ortmodel.Pair {
	var list []ortmodel.Pair
	for _, p := range pairs {
		if p.Input < len(n.Inputs) && p.Output < len(n.Outputs) {
			list = append(list, ortmodel.Pair(p))
		}
	}
	return list
}
