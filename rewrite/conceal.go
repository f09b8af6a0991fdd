package rewrite

// Concealing shapes: what ONNX Runtime does not know, it does not reuse.
//
// Its plan hands a dead buffer on to a later value of the same shape, and the
// buffer counts in between. A layer's backward has a handful of shapes; each
// layer takes over the buffers of the one before, so the largest number of
// every shape is alive all the time:
//
//	attention  ███░░░███░░░███     █ in use, ░ waiting for the next layer:
//	mlp        ░░░███░░░███░░░     peak = attention + mlp
//
// With shapes unknown every buffer is released at its last reader, and the
// peak is the larger of the two, not the sum. So from the first recomputation
// on,
//
//   - a large value from before is read through a view whose shape is
//     computed (its own extents, joined with an empty tensor), and so are a
//     graph output, which always has a type, and an input or initializer that
//     alone would tell the shape of what is computed from it;
//   - a Reshape, Expand or ConstantOfShape to constant extents gets them the
//     same way, and so does the shape that a barrier puts together;
//   - the inner types are declared without extents and rank.
//
// The empty tensor is a slice of an input that ends at a computed zero, so even
// its length is unknown, and so is the rank of what is shaped by it. With the
// rank known ONNX Runtime would still look for a buffer to use again, in a list
// that nothing leaves: a time that grows with the square of the nodes (3.4 s of
// 3.6 for 7,870 nodes).
//
// Views cost no memory; numbers do not change. Weakness: kernels that run in
// place need a known shape too, so they do not there.

import (
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/onnx/traits"
)

// concealBytes is the size from which a value is concealed.
const concealBytes = 1024

type concealer struct {
	b     *build.Builder
	from  *onnx.Value                 // some input
	empty *onnx.Value                 // int64, no elements, of unknown length
	known map[*onnx.Value]bool        // large values that keep their types
	views map[*onnx.Value]*onnx.Value // of known values
	dims  map[*onnx.Value]*onnx.Value // constant extents, computed
}

// conceal rewrites what stands from place from of the order on, and returns
// the order with the new nodes.
func conceal(g *onnx.Graph, order []*onnx.Node, from int) ([]*onnx.Node, Report) {
	report := Report{Pass: "conceal", Requested: len(order) - from}
	c := &concealer{b: build.New(g, nil, "conceal"), known: map[*onnx.Value]bool{},
		views: map[*onnx.Value]*onnx.Value{}, dims: map[*onnx.Value]*onnx.Value{}}
	if !c.source(g) {
		report.skip("all", "the graph has no numeric input of known rank")
		return order, report
	}
	for i, n := range order {
		for _, v := range n.Outputs {
			if v != nil && worthHiding(v) && (i < from || v.IsOutput()) {
				c.known[v] = true
			}
		}
	}
	out := append([]*onnx.Node(nil), order[:from]...)
	for _, n := range order[from:] {
		if strings.HasPrefix(n.Name(), barrierPrefix) {
			c.blur(n)
		} else {
			c.inputs(n)
		}
		out = append(out, c.b.Take()...)
		out = append(out, n)
	}
	hidden := map[string]bool{}
	for _, n := range order[from:] {
		forget(n, hidden)
		report.Applied++
	}
	for _, v := range c.views {
		forget(v.Producer, hidden)
	}
	g.Proto.ValueInfo = slices.DeleteFunc(g.Proto.ValueInfo, func(p *onnxpb.ValueInfoProto) bool { return hidden[p.GetName()] })
	if c.b.Err() != nil {
		report.skip("some", "%v", c.b.Err())
	}
	return out, report
}

// source finds an input to slice nothing from.
func (c *concealer) source(g *onnx.Graph) bool {
	for _, v := range g.Inputs {
		t := v.Type
		if !v.IsConstant() && t.Ranked && len(t.Shape) > 0 && (t.DType.IsFloat() || t.DType.IsInt()) {
			c.from = v
			return true
		}
	}
	return false
}

// blur hides the length of the shape that a barrier puts together.
func (c *concealer) blur(n *onnx.Node) {
	if !n.Is("Concat") || !n.Inputs[0].IsConstant() {
		return
	}
	n.SetInput(len(n.Inputs), c.nothing())
	n.Outputs[0].Type = unknownLength
}

// unknownLength is the type of a shape whose rank is not known.
var unknownLength = onnx.TensorOf(onnx.Int64, make(onnx.Shape, 1))

// nothing returns the empty tensor.
func (c *concealer) nothing() *onnx.Value {
	if c.empty != nil {
		return c.empty
	}
	t := c.from.Type
	c.b.Scope = c.from.Name
	zero := c.b.Ints(0)
	flat := c.b.Op("Reshape", build.In(c.from, c.b.Ints(-1)))
	flat.Type = onnx.TensorOf(t.DType, onnx.Shape{t.Shape.Elements()})
	c.empty = c.b.Op("Slice", build.In(flat, zero, zero, zero))
	c.empty.Type = onnx.TensorOf(t.DType, onnx.StaticShape(0))
	if t.DType != onnx.Int64 {
		c.empty = c.b.Op("Cast", build.In(c.empty), onnx.IntAttr("to", int64(onnx.Int64)))
		c.empty.Type = onnx.TensorOf(onnx.Int64, onnx.StaticShape(0))
	}
	end := c.b.Op("ReduceSum", build.In(c.empty), onnx.IntAttr("keepdims", 1)) // of nothing: 0
	end.Type = onnx.TensorOf(onnx.Int64, onnx.StaticShape(1))
	c.empty = c.b.Op("Slice", build.In(c.empty, zero, end, zero))
	c.empty.Type = unknownLength
	return c.empty
}

// inputs leads a node's inputs through views and computed extents.
func (c *concealer) inputs(n *onnx.Node) {
	told := -1 // the first input from outside that tells a shape
	for i, v := range n.Inputs {
		switch {
		case v == nil || !worthHiding(v) && !v.IsConstant():
		case i == 1 && n.Is("Reshape", "Expand") && v.IsConstant() || n.Is("ConstantOfShape") && v.IsConstant():
			if w := c.extents(v); w != nil {
				n.SetInput(i, w)
			}
			return
		case !v.Type.IsStatic() || !worthHiding(v):
		case v.Producer == nil:
			if broadcasts(n) && v.Type.Shape.Equal(n.Outputs[0].Type.Shape) && c.hides(n) {
				c.lead(n, i)
			} else if told < 0 {
				told = i
			}
		default:
			if c.known[v] {
				c.lead(n, i)
			}
			told = len(n.Inputs)
		}
	}
	if told >= 0 && told < len(n.Inputs) && c.hides(n) {
		c.lead(n, told)
	}
}

// broadcasts reports an operator whose result has the shape of its largest
// operand, whatever else is known.
func broadcasts(n *onnx.Node) bool {
	t, ok := traits.Of(n)
	return ok && t.Elementwise
}

// hides reports a node with an output whose type is left away.
func (c *concealer) hides(n *onnx.Node) bool {
	for _, v := range n.Outputs {
		if v != nil && worthHiding(v) && !v.IsOutput() {
			return true
		}
	}
	return false
}

// lead lets a node read its input i through a view.
func (c *concealer) lead(n *onnx.Node, i int) {
	v := n.Inputs[i]
	if c.views[v] == nil {
		c.views[v] = c.view(v)
	}
	if w := c.views[v]; w != nil {
		n.SetInput(i, w)
	}
}

func (c *concealer) view(v *onnx.Value) *onnx.Value {
	dims, _ := v.Type.Shape.Ints()
	c.b.Scope = v.Name
	from := v
	if reshaped(v) { // else ONNX Runtime makes one of the two
		from = flatten(c.b, v)
	}
	w := c.b.Op("Reshape", build.In(from, c.extents(c.b.Ints(dims...))))
	if c.b.Err() != nil {
		return nil
	}
	w.Type = v.Type
	return w
}

// extents returns constant extents as a computed tensor.
func (c *concealer) extents(v *onnx.Value) *onnx.Value {
	if w := c.dims[v]; w != nil {
		return w
	}
	w := c.b.Op("Concat", build.In(v, c.nothing()), onnx.IntAttr("axis", 0))
	if c.b.Err() != nil {
		return nil
	}
	w.Type = unknownLength
	c.dims[v] = w
	return w
}

func worthHiding(v *onnx.Value) bool {
	bytes, ok := v.Type.Bytes()
	return ok && bytes >= concealBytes
}

// forget leaves of the node's large inner outputs' types the element type, and
// notes their names.
func forget(n *onnx.Node, names map[string]bool) {
	for _, v := range n.Outputs {
		if v != nil && !v.IsOutput() && worthHiding(v) {
			v.Type = onnx.Type{DType: v.Type.DType}
			names[v.Name] = true
		}
	}
}
