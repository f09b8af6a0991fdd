package grad

// Reverse-mode differentiation in one sweep. The forward graph is a list of
// nodes in topological order; from the last to the first, each node whose
// output has a gradient hands gradients on to its inputs:
//
//	forward   x ──op──▶ y ──▶ … ──▶ loss
//	backward  dx ◀─rule── dy ◀── … ◀── 1
//
// Two passes come before it. Forward from the parameters: which values depend
// on one (only these need gradients, nothing is computed for others). Backward
// from the loss: which values reach it.
//
// A value read in several places gets several contributions. Dense ones are
// summed at once, in the order in which they arrive, so that at most two
// buffers of the shape are alive. Contributions to a part of the value (Slice,
// Gather) wait until the value's own producer is reached: disjoint slices
// become one Concat, scattered rows are added in place into what is there.
// This keeps the gradient of a tied embedding, the largest buffer of a small
// language model, to one buffer.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

// Pass is what the nodes of the backward pass note as their origin.
const Pass = "grad"

type engine struct {
	m       *onnx.Model
	b       *build.Builder
	types   *infer.Result
	dialect Dialect
	// needs holds the values that depend on a trained parameter.
	needs map[*onnx.Value]bool
	// grads holds what has arrived so far.
	grads map[*onnx.Value]*partial
	// dims are the extents of graph inputs that hold a symbol.
	dims *dimSource
	// shapes keeps shape values, counts and reshaped values to be shared.
	shapes map[string]*onnx.Value
	// own holds the backward nodes, up to date after each rule.
	own  map[*onnx.Node]bool
	seen int
	// intoSteep says of values whether they go into an operator whose slope is infinite
	// somewhere, once that is asked.
	intoSteep map[*onnx.Value]bool
	// closed says why nodes with subgraphs were not opened.
	closed map[*onnx.Node]string
	// guards are the nodes at the entrances of branches.
	guards map[*onnx.Node]guard
	// lists says that the model was given with lists of tensors.
	lists bool
	// given is the standard's opset in the file, 0 where that was not upgraded.
	given int64
	// inHalf says that the model computes in a half type, once that is asked.
	inHalf *bool
}

func newEngine(m *onnx.Model, types *infer.Result, dialect Dialect) *engine {
	e := &engine{
		m: m, types: types, dialect: dialect,
		b:         build.New(m.Graph, types, Pass),
		needs:     map[*onnx.Value]bool{},
		grads:     map[*onnx.Value]*partial{},
		shapes:    map[string]*onnx.Value{},
		own:       map[*onnx.Node]bool{},
		intoSteep: map[*onnx.Value]bool{},
	}
	e.dims = newDimSource(m.Graph)
	return e
}

// stopped is the row of a stop, see package normalize.
var stopped = Rule{Op: "Identity", Since: 1, None: "a stop: no gradient flows"}

// rule finds the row for a node, nil where the table has none.
func (e *engine) rule(n *onnx.Node) *Rule {
	if normalize.StoppedBy(n) != "" {
		return &stopped
	}
	if _, ok := e.guards[n]; ok {
		return &guardRule
	}
	return lookup(n.Domain(), n.OpType(), e.opset(n))
}

// opset is the version of the node's domain; one that the model does not import
// yet, because this differentiation is the first to use it, is at its first.
func (e *engine) opset(n *onnx.Node) int64 {
	if n.Domain() == "" {
		return e.m.Opset("")
	}
	return max(e.m.Opset(n.Domain()), 1)
}

// markNeeds finds the values that depend on one of the parameters through
// operators that pass a gradient.
func (e *engine) markNeeds(params []*onnx.Value) {
	for _, p := range params {
		e.needs[p] = true
	}
	for _, n := range e.m.Graph.Nodes {
		e.markNode(n)
	}
}

// markNode marks the outputs of a node that passes a gradient to an input that
// needs one.
func (e *engine) markNode(n *onnx.Node) {
	if !e.wants(n) {
		return
	}
	for _, o := range n.Returns() {
		if o.Type.DType.IsFloat() || o.Type.DType == onnx.Undefined || quantized(o) {
			e.needs[o] = true
		}
	}
}

// wants reports that a gradient of what the node makes is to go to one of its inputs. A
// node without a rule passes the need on, so that it is named if the loss depends on it.
func (e *engine) wants(n *onnx.Node) bool {
	r := e.rule(n)
	for i, v := range n.Reads() {
		if e.needs[v] && (r == nil || r.flowsTo(n, i)) {
			return true
		}
	}
	return e.captures(n)
}

// captures reports control flow whose bodies read a value that needs a gradient.
func (e *engine) captures(n *onnx.Node) bool {
	return slices.ContainsFunc(n.Captures, func(v *onnx.Value) bool { return e.needs[v] })
}

// sweep emits the backward graph of loss.
func (e *engine) sweep(loss *onnx.Value) error {
	e.b.Scope = "seed"
	e.grads[loss] = &partial{dense: e.b.Scalar(loss.Type.DType, 1)}
	nodes := append([]*onnx.Node(nil), e.m.Graph.Nodes...)
	for i := len(nodes) - 1; i >= 0; i-- {
		if err := e.visit(nodes[i]); err != nil {
			return err
		}
	}
	return e.b.Err()
}

// checkRules finds a node that a gradient must pass and that has no rule: before
// the sweep, whose rules could fail on what such a node leaves unknown.
func (e *engine) checkRules(reach map[*onnx.Value]bool) error {
	var made *onnx.Node // the first one without a rule that a pass wrote for one of the file
	for _, n := range e.m.Graph.Nodes {
		r := e.rule(n)
		reached := slices.ContainsFunc(n.Outputs, func(o *onnx.Value) bool { return o != nil && reach[o] && (r != nil || e.needs[o]) })
		if !reached {
			continue
		}
		if r == nil && n.Origin().Pass != "" {
			made = cmp.Or(made, n)
			continue
		}
		if r == nil {
			return e.missing(n)
		}
		for i, v := range n.Reads() {
			if e.needs[v] && r.misses(n, i) {
				return &UnsupportedError{Op: n.OpType(), Node: n.Label(), Reason: fmt.Sprintf("none for its input %d, %q, which depends on what trains", i, v.Name)}
			}
		}
	}
	if made != nil {
		return e.missing(made)
	}
	return nil
}

func (e *engine) missing(n *onnx.Node) error {
	if n.Is("If", "Loop", "Scan") {
		return e.controlFlow(n)
	}
	return e.noRule(n)
}

func (e *engine) noRule(n *onnx.Node) error {
	opset := e.m.Opset(n.Domain())
	if n.Domain() == "" {
		opset = cmp.Or(e.given, opset)
	}
	return &MissingRuleError{Op: n.OpType(), Domain: n.Domain(), Node: n.Label(), Opset: opset, Torch: FromPyTorch(e.m)}
}

// visit hands the gradients of a node's outputs on to its inputs.
func (e *engine) visit(n *onnx.Node) error {
	arrived := slices.ContainsFunc(n.Outputs, func(o *onnx.Value) bool { return o != nil && e.needs[o] && e.grads[o] != nil })
	if !arrived || !e.wants(n) {
		return nil
	}
	if len(n.Subgraphs()) > 0 {
		return e.controlFlow(n)
	}
	r := e.rule(n)
	if r == nil {
		return e.missing(n)
	}
	e.b.From(n, strings.TrimPrefix(n.Label(), e.b.Prefix))
	e.markMine()
	c := &Context{Node: n, Opset: e.opset(n), e: e, rule: r}
	c.run()
	if err := e.b.Err(); err != nil {
		if _, ok := errors.AsType[*UnsupportedError](err); ok {
			return err // it names the node
		}
		return fmt.Errorf("node %q (%s): %w", n.Label(), n.OpType(), err)
	}
	for _, o := range n.Returns() {
		delete(e.grads, o)
	}
	return nil
}

// run calls the rule. Once an operator was refused, the builder returns nil for all that follows,
// and a rule that goes on may dereference it: the refusal is the error, not the panic.
func (c *Context) run() {
	defer func() {
		if c.e.b.Err() != nil {
			_ = recover()
		}
	}()
	c.rule.Grad(c)
}

// markMine notes the nodes that the builder made since the last call.
func (e *engine) markMine() {
	for _, n := range e.b.Nodes[min(e.seen, len(e.b.Nodes)):] {
		e.own[n] = true
	}
	e.seen = len(e.b.Nodes)
}

// mine reports a node that this differentiation made.
func (e *engine) mine(n *onnx.Node) bool {
	return e.own[n] || slices.Contains(e.b.Nodes, n)
}
