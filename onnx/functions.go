package onnx

// Functions that a file brings itself, written out where they are called:
//
//	h = my.Linear(x, w, b) "l0"     ─▶    l0/t = MatMul(x, w)
//	                                      h    = Add(l0/t, b)
//
// It is done on messages, so that calls inside subgraphs, and functions that call
// functions, are one case. What a body names is given names of the call. A
// function cannot hold initializers: its weights are Constant nodes, which become
// initializers of the graph, one for all calls. Source: the ONNX IR specification,
// "Functions".

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

type functionKey struct{ domain, name, overload string }

func (k functionKey) String() string {
	return strings.TrimPrefix(k.domain+".", ".") + k.name
}

// InlineFunctions replaces the calls of the model's functions by their bodies and
// drops the functions. One that is named as an operator of the runtime's own is
// never called, as the runtime takes its operator: own reports these. allow, if
// not nil, is asked about each that is called. The model's graph is rebuilt; after
// an error the model is as it was. It returns the number of calls. Source: the
// ONNX IR specification leaves the choice to the runtime; ONNX Runtime's
// Graph::Resolve looks for a schema first.
func (m *Model) InlineFunctions(own func(domain, op string) bool, allow func(*pb.FunctionProto) error) (int, error) {
	if len(m.Proto.Functions) == 0 {
		return 0, nil
	}
	p := m.ToProto()
	in := &inliner{
		functions: map[functionKey]*pb.FunctionProto{}, allow: allow,
		taken: map[string]bool{}, labels: map[string]bool{}, constants: map[*pb.NodeProto]string{}, opsets: map[string]int64{},
	}
	for _, f := range p.Functions {
		if k := (functionKey{NormalDomain(f.GetDomain()), f.GetName(), f.GetOverload()}); !own(k.domain, k.name) {
			in.functions[k] = f
		}
	}
	collectNames(p.Graph, in.taken)
	for _, t := range p.Graph.SparseInitializer {
		in.taken[t.GetValues().GetName()] = true
	}
	nodes, err := in.expandAll(p.Graph.Node)
	if err != nil {
		return 0, err
	}
	p.Graph.Node = nodes
	p.Graph.Initializer = append(p.Graph.Initializer, in.lifted...)
	g, err := graphFromProto(p.Graph, m.files)
	if err != nil {
		return 0, err
	}
	m.Graph, m.Proto.Functions = g, nil
	for domain, version := range in.opsets {
		if m.Opset(domain) == 0 {
			m.SetOpset(domain, version)
		}
	}
	m.Amended = m.Amended || in.calls > 0
	return in.calls, nil
}

type inliner struct {
	functions map[functionKey]*pb.FunctionProto
	allow     func(*pb.FunctionProto) error
	taken     map[string]bool // names of values
	labels    map[string]bool // of calls
	stack     []functionKey
	// constants are the initializers that bodies' Constant nodes became.
	constants map[*pb.NodeProto]string
	lifted    []*pb.TensorProto
	opsets    map[string]int64
	calls     int
}

func (in *inliner) expandAll(nodes []*pb.NodeProto) ([]*pb.NodeProto, error) {
	var out []*pb.NodeProto
	for _, n := range nodes {
		made, err := in.expand(n)
		if err != nil {
			return nil, err
		}
		out = append(out, made...)
	}
	return out, nil
}

// expand returns what stands in a node's place.
func (in *inliner) expand(n *pb.NodeProto) ([]*pb.NodeProto, error) {
	k := functionKey{NormalDomain(n.GetDomain()), n.GetOpType(), n.GetOverload()}
	f := in.functions[k]
	if f == nil {
		n, err := in.expandSubgraphs(n)
		return []*pb.NodeProto{n}, err
	}
	label := cmp.Or(n.GetName(), n.GetOpType())
	switch {
	case slices.Contains(in.stack, k):
		return nil, fmt.Errorf("node %q: function %s calls itself", label, k)
	case len(n.Input) > len(f.Input) || len(n.Output) > len(f.Output):
		return nil, fmt.Errorf("node %q: function %s has %d inputs and %d outputs, the call %d and %d",
			label, k, len(f.Input), len(f.Output), len(n.Input), len(n.Output))
	}
	if in.allow != nil {
		if err := in.allow(f); err != nil {
			return nil, fmt.Errorf("node %q: %w", label, err)
		}
	}
	for _, o := range f.OpsetImport {
		in.opsets[NormalDomain(o.GetDomain())] = o.GetVersion()
	}
	in.calls++
	c := &call{in: in, node: n, function: f, label: unused(label, in.labels), names: map[string]string{"": ""}}
	body, err := c.body()
	if err != nil {
		return nil, fmt.Errorf("node %q: function %s: %w", label, k, err)
	}
	in.stack = append(in.stack, k)
	defer func() { in.stack = in.stack[:len(in.stack)-1] }()
	return in.expandAll(body)
}

// expandSubgraphs returns the node, or a copy whose subgraphs call no function.
func (in *inliner) expandSubgraphs(n *pb.NodeProto) (*pb.NodeProto, error) {
	if len((&Node{Proto: n}).Subgraphs()) == 0 {
		return n, nil
	}
	n = proto.CloneOf(n)
	for _, sub := range (&Node{Proto: n}).Subgraphs() {
		nodes, err := in.expandAll(sub.Node)
		if err != nil {
			return nil, err
		}
		sub.Node = nodes
	}
	return n, nil
}

// fresh returns a name that no value has, and takes it.
func (in *inliner) fresh(base string) string { return unused(base, in.taken) }

func unused(base string, taken map[string]bool) string {
	name := base
	for i := 1; taken[name]; i++ {
		name = fmt.Sprintf("%s.%d", base, i)
	}
	taken[name] = true
	return name
}

// A call is one use of a function.
type call struct {
	in       *inliner
	node     *pb.NodeProto
	function *pb.FunctionProto
	label    string
	names    map[string]string // a body's name to the graph's
}

// body returns the function's nodes under the call's names.
func (c *call) body() ([]*pb.NodeProto, error) {
	f := c.function
	for i, name := range f.Input {
		c.names[name] = ""
		if i < len(c.node.Input) {
			c.names[name] = c.node.Input[i]
		}
	}
	nodes := f.Node
	for i, o := range c.node.Output {
		if o == "" {
			continue
		}
		if _, known := c.names[f.Output[i]]; known { // an input, or a value that is returned twice
			nodes = append(slices.Clip(nodes), &pb.NodeProto{
				OpType: new("Identity"), Input: []string{f.Output[i]}, Output: []string{c.in.fresh(o + ".inner")},
			})
			c.names[nodes[len(nodes)-1].Output[0]] = o
			continue
		}
		c.names[f.Output[i]] = o
	}
	var out []*pb.NodeProto
	for _, n := range nodes {
		if c.constant(n) {
			continue
		}
		made, err := c.rename(n)
		if err != nil {
			return nil, err
		}
		out = append(out, made)
	}
	return out, nil
}

// constant makes an initializer of a Constant node that holds more than one
// element, and reports that it did. What a call returns stays a node.
func (c *call) constant(n *pb.NodeProto) bool {
	t := listOf(n)
	if t == nil {
		return false
	}
	if _, returned := c.names[n.Output[0]]; returned {
		return false
	}
	name, done := c.in.constants[n]
	if !done {
		base := n.Output[0]
		if base == "" {
			base = n.GetName()
		}
		name = c.in.fresh(c.function.GetName() + "/" + base)
		lifted := &pb.TensorProto{}
		copyFields(lifted, t)
		lifted.Name = &name
		c.in.lifted = append(c.in.lifted, lifted)
		c.in.constants[n] = name
	}
	c.names[n.Output[0]] = name
	return true
}

// listOf is the content of a Constant node that holds more than one element.
func listOf(n *pb.NodeProto) *pb.TensorProto {
	node := &Node{Proto: n}
	t := node.Attr("value").GetT()
	if k, _ := Elements(t.GetDims()); k < 2 || !node.Is("Constant") || len(n.Output) != 1 {
		return nil
	}
	return t
}

// made gives what a node of the body makes its name in the graph.
func (c *call) made(name string) string {
	if outer, known := c.names[name]; known {
		return outer
	}
	outer := c.in.fresh(c.label + "/" + name)
	c.names[name] = outer
	return outer
}

// rename copies a node of the body under the graph's names, with the call's
// attributes in place of references to them.
func (c *call) rename(n *pb.NodeProto) (*pb.NodeProto, error) {
	out := &pb.NodeProto{}
	copyFields(out, n)
	out.Input, out.Output, out.Attribute = make([]string, len(n.Input)), make([]string, len(n.Output)), nil
	for i, name := range n.Input {
		outer, known := c.names[name]
		if !known {
			return nil, fmt.Errorf("node %q reads %q, which nothing produces", n.GetName(), name)
		}
		out.Input[i] = outer
	}
	for i, name := range n.Output {
		out.Output[i] = c.made(name)
	}
	inner := n.GetName()
	if inner == "" && len(n.Output) > 0 {
		inner = n.Output[0]
	}
	out.Name = new(c.label + "/" + inner)
	for _, a := range n.Attribute {
		bound, err := c.bind(a)
		if err != nil {
			return nil, err
		}
		if bound != nil {
			out.Attribute = append(out.Attribute, bound)
		}
	}
	return out, nil
}

// bind returns an attribute with the call's value where it refers to one, the
// function's default where the call gives none, nil where there is neither.
func (c *call) bind(a *pb.AttributeProto) (*pb.AttributeProto, error) {
	name := a.GetName()
	if ref := a.GetRefAttrName(); ref != "" {
		named := func(a *pb.AttributeProto) bool { return a.GetName() == ref }
		i := slices.IndexFunc(c.node.Attribute, named)
		from := c.node.Attribute
		if i < 0 {
			i, from = slices.IndexFunc(c.function.AttributeProto, named), c.function.AttributeProto
		}
		if i < 0 {
			return nil, nil
		}
		return renamed(from[i], name), nil // a subgraph that the caller gives reads the caller's names
	}
	out := renamed(a, name)
	if a.G != nil {
		g, err := c.subgraph(a.G)
		if err != nil {
			return nil, err
		}
		out.G = g
	}
	for i, sub := range a.Graphs {
		g, err := c.subgraph(sub)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			out.Graphs = nil
		}
		out.Graphs = append(out.Graphs, g)
	}
	return out, nil
}

// renamed is a copy of an attribute, and of the tensor in it, that shares the
// data: an initializer that is made of it gets a name of its own.
func renamed(a *pb.AttributeProto, name string) *pb.AttributeProto {
	out := &pb.AttributeProto{}
	copyFields(out, a)
	out.Name = &name
	if a.T != nil {
		out.T = &pb.TensorProto{}
		copyFields(out.T, a.T)
	}
	return out
}

// subgraph copies a subgraph of the body; all that it names is made fresh.
func (c *call) subgraph(g *pb.GraphProto) (*pb.GraphProto, error) {
	out := proto.CloneOf(g)
	outer := c.names
	c.names = make(map[string]string, len(outer))
	maps.Copy(c.names, outer)
	defer func() { c.names = outer }()
	own := map[string]bool{}
	collectNames(&pb.GraphProto{Input: g.Input, Initializer: g.Initializer, Node: withoutSubgraphs(g.Node)}, own)
	for name := range own {
		delete(c.names, name)
	}
	c.names[""] = ""
	for _, v := range out.Input {
		v.Name = new(c.made(v.GetName()))
	}
	for _, t := range out.Initializer {
		t.Name = new(c.made(t.GetName()))
	}
	for i, n := range g.Node {
		made, err := c.rename(n)
		if err != nil {
			return nil, err
		}
		out.Node[i] = made
	}
	for _, o := range out.Output {
		name, known := c.names[o.GetName()]
		if !known {
			return nil, fmt.Errorf("subgraph output %q is not produced by any node", o.GetName())
		}
		o.Name = &name
	}
	out.ValueInfo = slices.DeleteFunc(out.ValueInfo, func(v *pb.ValueInfoProto) bool {
		name, known := c.names[v.GetName()]
		v.Name = &name
		return !known
	})
	return out, nil
}

// withoutSubgraphs lists the nodes as far as they define names here.
func withoutSubgraphs(nodes []*pb.NodeProto) []*pb.NodeProto {
	out := make([]*pb.NodeProto, len(nodes))
	for i, n := range nodes {
		out[i] = &pb.NodeProto{Output: n.Output}
	}
	return out
}
