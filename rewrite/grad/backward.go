package grad

// The rules outside of a sweep: for a pass that meets one gradient operator at a
// time and wants the nodes that the rule of its forward operator emits.

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/onnxpb"
)

// An Emitter applies single rules in a model. What it makes collects in its
// builder until the caller takes it.
type Emitter struct {
	e *engine
}

// NewEmitter returns an emitter of nodes that the pass makes; types must know
// the model's values.
func NewEmitter(m *onnx.Model, types *infer.Result, dialect Dialect, pass string) *Emitter {
	e := newEngine(m, types, dialect)
	e.b = build.New(m.Graph, types, pass)
	return &Emitter{e}
}

// Builder is where the nodes are made.
func (x *Emitter) Builder() *build.Builder { return x.e.b }

// Context lets a caller write formulas for a node as rules do.
func (x *Emitter) Context(n *onnx.Node) *Context {
	x.e.b.From(n, strings.TrimPrefix(n.Label(), x.e.b.Prefix))
	return &Context{Node: n, Opset: x.e.m.Opset(n.Domain()), e: x.e}
}

// Stand returns a forward operator that is not in the graph, for a rule to read
// its operands and attributes and emit the gradient. Values that only lend their
// type are made with Placeholder: where a rule reads one's content, the caller
// finds a node that reads a value which nothing produces, and knows that the rule
// does not serve.
func Stand(domain, op, label string, inputs, outputs []*onnx.Value, attrs []*onnxpb.AttributeProto) *onnx.Node {
	return &onnx.Node{
		Proto:  &onnxpb.NodeProto{Domain: &domain, OpType: &op, Name: &label, Attribute: attrs},
		Inputs: inputs, Outputs: outputs,
	}
}

// Placeholder is a value that has a type and no content. shape, where the type
// leaves extents open, is an int64 value that holds them.
func (x *Emitter) Placeholder(t onnx.Type, shape *onnx.Value) *onnx.Value {
	v := &onnx.Value{Name: fmt.Sprintf("%splaceholder%d", x.e.b.Prefix, len(x.e.shapes)), Type: t}
	x.e.shapes["of "+v.Name] = shape
	return v
}

// Gradients emits the rule of node n, of the graph or a stand: given the
// gradients of its outputs (nil for none) it returns those of the wanted
// inputs, in their inputs' shapes; nil where none flows.
func (x *Emitter) Gradients(n *onnx.Node, arrived []*onnx.Value, wanted []bool) ([]*onnx.Value, error) {
	e := x.e
	r := e.rule(n)
	if r == nil || r.Grad == nil {
		return nil, e.noRule(n)
	}
	e.needs, e.grads = map[*onnx.Value]bool{}, map[*onnx.Value]*partial{}
	for i, v := range n.Reads() {
		if i < len(wanted) && wanted[i] {
			e.needs[v] = true
		}
	}
	for i, g := range arrived {
		if o := n.Out(i); o != nil && g != nil {
			e.needs[o] = true
			e.grads[o] = &partial{dense: g}
		}
	}
	c := x.Context(n)
	c.rule = r
	c.run()
	out := make([]*onnx.Value, len(wanted))
	for i, v := range n.Reads() {
		if i < len(wanted) && wanted[i] {
			out[i] = e.expandTo(e.accumulate(v), v)
		}
	}
	return out, e.b.Err()
}

// FreshName returns a name that no value of the graph has, nor gets later.
func (c *Context) FreshName(base string) string { return c.e.b.Graph.FreshValueName(base) }
