package crosscheck

// The recorder is what onnx-go decodes into. onnx-go makes a graph node per
// name, in a fixed order: declared inputs, value_info, outputs, then what
// initializers and operators name. A node that can carry data is given all of
// it, and for a declared value a freshly allocated tensor of its shape, so only
// nodes of initializers that are worth comparing may carry any.

import (
	onnxgo "github.com/owulveryck/onnx-go"
	"gonum.org/v1/gonum/graph"
	"gonum.org/v1/gonum/graph/simple"
	"gorgonia.org/tensor"

	"github.com/onnx-remat/remat/onnx"
)

// operator is one call of ApplyOperation with the edges set since the last.
type operator struct {
	op      string
	attrs   map[string]any
	outputs []string
	inputs  []string
}

type recorder struct {
	*simple.DirectedGraph // never filled; it lends the methods of graph.Directed
	names                 []*node
	operators             []operator
	edges                 []edge
	// declared are the names that the file declares, in order.
	declared  []string
	comparand map[string]*onnx.Tensor
	tensors   map[string]tensor.Tensor
}

func newRecorder(m *onnx.Model, l limit) *recorder {
	r := &recorder{
		DirectedGraph: simple.NewDirectedGraph(),
		comparand:     map[string]*onnx.Tensor{},
		tensors:       map[string]tensor.Tensor{},
	}
	r.declared = onnx.Names(m.Graph.Inputs)
	for _, vi := range m.Graph.Proto.ValueInfo {
		r.declared = append(r.declared, vi.GetName())
	}
	r.declared = append(r.declared, onnx.Names(m.Graph.Outputs)...)
	for _, v := range m.Graph.Initializers {
		if l.unreadable(v.Init.Proto) == "" {
			r.comparand[v.Name] = v.Init
		}
	}
	return r
}

// node is a name in onnx-go's graph.
type node struct {
	id   int64
	name string
}

func (n *node) ID() int64        { return n.id }
func (n *node) SetName(s string) { n.name = s }
func (n *node) GetName() string  { return n.name }

// dataNode is a node that takes data.
type dataNode struct {
	*node
	recorder *recorder
}

// SetTensor keeps the last data given, which is the initializer's.
func (n *dataNode) SetTensor(t tensor.Tensor) error {
	n.recorder.tensors[n.name] = t
	return nil
}

func (n *dataNode) GetTensor() tensor.Tensor { return n.recorder.tensors[n.name] }

// NewNode makes a node, one that takes data where an initializer may come.
func (r *recorder) NewNode() graph.Node {
	n := &node{id: int64(len(r.names))}
	r.names = append(r.names, n)
	if r.carries(int(n.id)) {
		return &dataNode{n, r}
	}
	return n
}

func (r *recorder) carries(i int) bool {
	return i >= len(r.declared) || r.comparand[r.declared[i]] != nil
}

// AddNode is told of each node that NewNode made.
func (r *recorder) AddNode(graph.Node) {}

type edge struct {
	from, to graph.Node
	weight   float64
}

func (e edge) From() graph.Node         { return e.from }
func (e edge) To() graph.Node           { return e.to }
func (e edge) ReversedEdge() graph.Edge { return edge{e.to, e.from, e.weight} }
func (e edge) Weight() float64          { return e.weight }

func (r *recorder) NewWeightedEdge(from, to graph.Node, w float64) graph.WeightedEdge {
	return edge{from, to, w}
}

// SetWeightedEdge is told which input (its place is the weight) an output reads.
func (r *recorder) SetWeightedEdge(e graph.WeightedEdge) {
	r.edges = append(r.edges, edge{e.From(), e.To(), e.Weight()})
}

// ApplyOperation ends an operator. The edges come output by output, each with
// all inputs in order; the first output's tell them all.
func (r *recorder) ApplyOperation(op onnxgo.Operation, outputs ...graph.Node) error {
	o := operator{op: op.Name, attrs: op.Attributes}
	for _, n := range outputs {
		o.outputs = append(o.outputs, r.nameOf(n.ID()))
	}
	for i, e := range r.edges {
		if e.weight != float64(i) {
			break
		}
		o.inputs = append(o.inputs, r.nameOf(e.to.ID()))
	}
	r.edges = r.edges[:0]
	r.operators = append(r.operators, o)
	return nil
}

func (r *recorder) nameOf(id int64) string { return r.names[id].name }
