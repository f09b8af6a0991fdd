// Package build makes nodes the way passes and the zoo want to write them: one
// call an operator, names by scope, types inferred at once, constants shared.
package build

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// A Typer infers the types of a new node's outputs; infer.Result is one.
type Typer interface {
	Node(n *onnx.Node) error
}

// A Builder collects new nodes in the order in which they were made; Flush puts
// them into the graph. The first error sticks and makes later calls no-ops that
// return nil values, so that formulas can be written in one piece and checked
// once.
type Builder struct {
	Graph *onnx.Graph
	// Pass is noted in what is made (onnx.Origin), unless it is "".
	Pass string
	// Prefix begins the name of every node and value made: "remat/grad/" for the
	// pass grad.
	Prefix string
	// Scope follows the prefix: usually the node that the new ones stem from.
	Scope string
	// Nodes are those made since the last Flush.
	Nodes []*onnx.Node

	// of and module are noted in what is made while Scope is from.
	from, of, module string

	types  Typer
	consts map[string]*onnx.Value
	err    error
}

// New returns a builder of a pass's nodes for g; pass is "" where a model is built
// rather than rewritten. Types may be nil, then nothing is inferred.
func New(g *onnx.Graph, types Typer, pass string) *Builder {
	b := &Builder{Graph: g, Pass: pass, types: types, consts: map[string]*onnx.Value{}}
	if pass != "" {
		b.Prefix = "remat/" + pass + "/"
	}
	return b
}

// From sets the scope for nodes that stem from n: they carry its name and module
// until the scope changes.
func (b *Builder) From(n *onnx.Node, scope string) {
	b.Scope, b.from, b.of, b.module = scope, scope, n.Label(), n.Module()
}

// Err returns the first error met.
func (b *Builder) Err() error { return b.err }

// Fail records an error, if it is the first.
func (b *Builder) Fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Op makes a node of the standard domain with one output and returns it. Nil
// inputs stand for optional ones left out.
func (b *Builder) Op(op string, inputs []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	return b.Node("", op, inputs, 1, attrs...)[0]
}

// Node makes a node with that many outputs, all of them present.
func (b *Builder) Node(domain, op string, inputs []*onnx.Value, outputs int, attrs ...onnx.Attribute) []*onnx.Value {
	names := make([]string, outputs)
	base := b.name(op)
	for i := range names {
		names[i] = base
		if i > 0 {
			names[i] = fmt.Sprintf("%s:%d", base, i)
		}
	}
	return b.NodeNamed(domain, op, base, inputs, names, attrs...)
}

// NodeNamed makes a node whose name and output names are given (made fresh
// where taken); "" leaves an output out, which is returned as nil.
func (b *Builder) NodeNamed(domain, op, name string, inputs []*onnx.Value, outputs []string, attrs ...onnx.Attribute) []*onnx.Value {
	if b.err != nil {
		return make([]*onnx.Value, len(outputs))
	}
	n := b.Graph.NewNode(domain, op, name, inputs, outputs, attrs...)
	if b.Pass != "" {
		b.note(n)
	}
	b.Nodes = append(b.Nodes, n)
	if b.types != nil {
		if err := b.types.Node(n); err != nil {
			b.Fail(fmt.Errorf("building node %q: %w", n.Name(), err))
		}
	}
	return n.Outputs
}

// note says in the node where it comes from: from the node that From named, else
// from the scope.
func (b *Builder) note(n *onnx.Node) {
	of := b.Scope
	if b.Scope == b.from {
		of = b.of
		n.SetModule(b.module)
	}
	n.SetOrigin(onnx.Origin{Pass: b.Pass, Of: of})
}

func (b *Builder) name(op string) string {
	if b.Scope == "" {
		return b.Prefix + op
	}
	return b.Prefix + strings.TrimSuffix(b.Scope, "/") + "/" + op
}

// Flush appends the collected nodes to the graph's file order.
func (b *Builder) Flush() {
	b.Graph.Append(b.Nodes...)
	b.Nodes = nil
}

// Take returns the collected nodes, for the caller to place.
func (b *Builder) Take() []*onnx.Node {
	nodes := b.Nodes
	b.Nodes = nil
	return nodes
}

// Const returns an initializer with that content, shared with earlier calls
// for the same type, extents and bytes.
func (b *Builder) Const(t *onnx.Tensor) *onnx.Value {
	data, err := t.Bytes()
	if err != nil {
		b.Fail(err)
		return nil
	}
	key := fmt.Sprint(t.DType(), t.Dims(), string(data))
	if v := b.consts[key]; v != nil && b.Graph.Value(v.Name) == v {
		return v
	}
	v := b.Graph.AddConstant(b.Prefix+"const", t)
	b.consts[key] = v
	return v
}

// Scalar returns a rank-0 float constant of element type d.
func (b *Builder) Scalar(d onnx.DType, v float64) *onnx.Value {
	return b.Const(onnx.FloatTensor(d, []float64{v}))
}

// Ints returns a one-dimensional int64 constant.
func (b *Builder) Ints(values ...int64) *onnx.Value {
	return b.Const(onnx.Int64Tensor(values, int64(len(values))))
}

// Axes returns a one-dimensional int64 constant that names axes.
func (b *Builder) Axes(axes ...int) *onnx.Value { return b.Ints(ints64(axes)...) }

// PermAttr is the attribute that permutes the axes of a Transpose.
func PermAttr(perm ...int) onnx.Attribute { return onnx.IntsAttr("perm", ints64(perm)...) }

func ints64(axes []int) []int64 {
	out := make([]int64, len(axes))
	for i, a := range axes {
		out[i] = int64(a)
	}
	return out
}

// ReshapeTarget is a shape as the constant input of a Reshape has it: one extent at
// most that is no number, as -1, and none of 0, which would mean that of the data.
// False: no constant gives the shape.
func ReshapeTarget(s onnx.Shape) ([]int64, bool) {
	target := make([]int64, len(s))
	free := 0
	for i, d := range s {
		n, known := d.Int()
		if !known {
			n = -1
			free++
		}
		if target[i] = n; n == 0 {
			return nil, false
		}
	}
	return target, free <= 1
}

// ReshapeTo gives v a shape: by a constant if at most one extent is not a number;
// else nil.
func (b *Builder) ReshapeTo(v *onnx.Value, s onnx.Shape) *onnx.Value {
	target, ok := ReshapeTarget(s)
	if v == nil || !ok {
		return nil
	}
	return b.Op("Reshape", In(v, b.Ints(target...)))
}

// Unjoin gives a product of matrices [rows,n] the shape of a product of x [...,k], whose
// leading axes were joined.
func (b *Builder) Unjoin(y, x *onnx.Value, shape onnx.Shape) *onnx.Value {
	if y == nil {
		return nil
	}
	if r := b.ReshapeTo(y, shape); r != nil {
		return r
	}
	lead := b.Op("Shape", In(x), onnx.IntAttr("start", 0), onnx.IntAttr("end", -1))
	width := b.Op("Shape", In(y), onnx.IntAttr("start", 1), onnx.IntAttr("end", 2))
	if n, ok := shape[len(shape)-1].Int(); ok {
		width = b.Ints(n)
	}
	r := b.Op("Reshape", In(y, b.Op("Concat", In(lead, width), onnx.IntAttr("axis", 0))))
	if r != nil && !r.Type.Ranked {
		r.Type = onnx.TensorOf(y.Type.DType, shape)
	}
	return r
}

// Int returns a rank-0 int64 constant.
func (b *Builder) Int(v int64) *onnx.Value { return b.Const(onnx.Int64Tensor([]int64{v})) }

// In is shorthand for a list of inputs.
func In(values ...*onnx.Value) []*onnx.Value { return values }
