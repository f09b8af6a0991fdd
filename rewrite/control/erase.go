package control

// Erasing static shapes: what ONNX Runtime does not know, it does not reuse.
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
//   - a large value from before is read through a view along computed axes, of
//     which there are none, and so are a graph output, which always has a type,
//     and an input or initializer that alone would tell the shape of what is
//     computed from it;
//   - a Reshape, Expand or ConstantOfShape to constant extents gets them joined
//     with an empty tensor;
//   - the inner types are declared without extents and rank.
//
// The empty tensor lists the places of nothing that is not zero, so even its length
// is unknown, and so is the rank of what is shaped by it. (A slice to a computed end
// is as unknown, but CUDA's provider runs it on the device, whence every shape would
// have to come back.) With the rank known ONNX
// Runtime would still look for a buffer to use again, in a list that nothing leaves: a
// time that grows with the square of the nodes (3.4 s of 3.6 for 7,870 nodes).
//
// A Gemm's result has rank 2 whatever is known of its factors, a recurrent operator's 3 or 4,
// and what is computed from it has one too. So in a large graph it is read through a view as
// well, where its reader would take the rank on: of 21,762 nodes, with 1,189 Gemms, 3,464 had a
// rank, and are 1,202 so, for a third of the time. In any graph it is where the reader has an operand,
// too small to be erased, that tells the first extent: with the last one, which a Gemm knows of its
// weight, the whole shape would be known again.
//
// Views cost no memory; numbers do not change. Weakness: kernels that run in
// place need a known shape too, so they do not there.
//
// Hide does the same to what single nodes make, where one buffer waits too long.

import (
	"errors"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/onnx/traits"
)

// EraseBytes is the size from which a shape is erased.
const EraseBytes = 1024

// rankedNodes is the number of erased nodes from which ranks are hidden too: with fewer the
// search for buffers takes less than a second, and a view takes time in each step.
const rankedNodes = 2000

type eraser struct {
	b     *build.Builder
	from  *onnx.Value                 // some input
	empty *onnx.Value                 // int64, no elements, of unknown length
	known map[*onnx.Value]bool        // large values that keep their types
	views map[*onnx.Value]*onnx.Value // of known values
	dims  map[*onnx.Value]*onnx.Value // constant extents, computed
	ranks bool                        // they are hidden too
}

// ErrNoInput says that a graph has no input that a shape could be made to depend on.
var ErrNoInput = errors.New("the graph has no input")

// Erase erases the shapes of what is made from place from of the order on, and
// returns the order with the new nodes. Edges in the order are lowered already.
func Erase(g *onnx.Graph, order []*onnx.Node, from int) ([]*onnx.Node, error) {
	c, err := newEraser(g)
	if err != nil {
		return order, err
	}
	c.ranks = len(order)-from >= rankedNodes
	for i, n := range order {
		for _, v := range n.Returns() {
			if worthErasing(v) && (i < from || v.IsOutput()) {
				c.known[v] = true
			}
		}
	}
	out := append([]*onnx.Node(nil), order[:from]...)
	for _, n := range order[from:] {
		if !Is(n) { // what an edge returns is not known to ONNX Runtime
			c.inputs(n)
		}
		out = append(out, c.b.Take()...)
		out = append(out, n)
	}
	c.undeclare(g, order[from:], EraseBytes)
	return out, c.b.Err()
}

// Hide erases the shapes of values, each with what else its node makes, and returns the order
// with the new nodes: the node reads its first input through a view, unless that tells nothing.
// Followers are only declared no more, which hides what nothing else tells. Edges in the order are
// lowered already.
func Hide(g *onnx.Graph, order []*onnx.Node, values, followers []*onnx.Value) ([]*onnx.Node, error) {
	c, err := newEraser(g)
	if err != nil {
		return order, err
	}
	var nodes []*onnx.Node
	large := map[*onnx.Node]bool{} // by those to lead past a view
	for i, v := range slices.Concat(values, followers) {
		if n := v.Producer; n != nil {
			nodes = append(nodes, n)
			if i < len(values) && n.In(0) != nil {
				large[n] = large[n] || worthErasing(v)
			}
		}
	}
	c.undeclare(g, nodes, 0)
	out := make([]*onnx.Node, 0, len(order)+len(nodes))
	for _, n := range order {
		if whole, ok := large[n]; ok && (whole || n.Inputs[0].Type.Ranked) {
			c.lead(n, 0)
			out = append(out, c.b.Take()...)
		}
		out = append(out, n)
	}
	c.undeclare(g, nil, 0) // the views
	return out, c.b.Err()
}

func newEraser(g *onnx.Graph) (*eraser, error) {
	for _, v := range g.Inputs { // one to slice nothing from
		if !v.IsConstant() {
			return &eraser{b: build.New(g, nil, Pass), from: v, known: map[*onnx.Value]bool{},
				views: map[*onnx.Value]*onnx.Value{}, dims: map[*onnx.Value]*onnx.Value{}}, nil
		}
	}
	return nil, ErrNoInput
}

// undeclare takes the types of what the nodes make from so many bytes on, and of views, off the graph.
func (c *eraser) undeclare(g *onnx.Graph, nodes []*onnx.Node, from int64) {
	hidden := map[string]bool{}
	for _, n := range nodes {
		forget(n, from, hidden)
	}
	for _, v := range c.views {
		forget(v.Producer, from, hidden)
	}
	g.Proto.ValueInfo = slices.DeleteFunc(g.Proto.ValueInfo, func(p *onnxpb.ValueInfoProto) bool { return hidden[p.GetName()] })
}

// unknownLength is the type of a shape whose rank is not known.
var unknownLength = onnx.TensorOf(onnx.Int64, make(onnx.Shape, 1))

// nothing returns the empty tensor.
func (c *eraser) nothing() *onnx.Value {
	if c.empty != nil {
		return c.empty
	}
	c.b.Scope = c.from.Name
	zero := c.b.Ints(0)
	none := None(c.b, c.from)
	found := made(c.b, stepNone, "NonZero", onnx.TensorOf(onnx.Int64, append(onnx.StaticShape(1), unknownLength.Shape...)), none)
	c.empty = made(c.b, stepNone, "Squeeze", unknownLength, found, zero)
	return c.empty
}

// inputs leads a node's inputs through views and computed extents.
func (c *eraser) inputs(n *onnx.Node) {
	told := -1 // the first input from outside that tells a shape
	for i, v := range n.Inputs {
		switch {
		case v == nil || !worthErasing(v) && !v.IsConstant():
		case i == 1 && n.Is("Reshape", "Expand") && v.IsConstant() || n.Is("ConstantOfShape") && v.IsConstant():
			if w := c.extents(v); w != nil {
				n.SetInput(i, w)
			}
			return
		case !v.Type.IsStatic() || !worthErasing(v):
		case v.Producer == nil:
			if broadcasts(n) && v.Type.Shape.Equal(n.Outputs[0].Type.Shape) && c.hides(n) {
				c.lead(n, i)
			} else if told < 0 {
				told = i
			}
		default:
			if c.known[v] || tellsRank(v.Producer) && takesRank(n) && (c.ranks || c.hides(n) && extentTold(n, i)) {
				c.lead(n, i)
			}
			told = len(n.Inputs)
		}
	}
	if told >= 0 && told < len(n.Inputs) && c.hides(n) {
		c.lead(n, told)
	}
}

// tellsRank reports a node whose result has a known rank when nothing is known of its inputs.
// (Of RoiAlign, Range, Compress and NonZero it is known too; no graph has many of those.)
func tellsRank(n *onnx.Node) bool { return n.Is("Gemm", "LSTM", "GRU", "RNN") }

// extentTold reports an operand of a broadcast beside input i that is too small to be led through a
// view, and tells the first extent of the result.
func extentTold(n *onnx.Node, i int) bool {
	out := n.Outputs[0].Type.Shape
	return broadcasts(n) && len(out) > 0 && slices.ContainsFunc(n.Inputs, func(w *onnx.Value) bool {
		return w != nil && w != n.Inputs[i] && !worthErasing(w) && w.Type.IsStatic() && len(w.Type.Shape) == len(out) && w.Type.Shape[0] == out[0]
	})
}

// takesRank reports a node whose result may have a known rank because its inputs have.
func takesRank(n *onnx.Node) bool { return !tellsRank(n) && !n.Is("Reshape", "Expand") }

// broadcasts reports an operator whose result has the shape of its largest
// operand, whatever else is known.
func broadcasts(n *onnx.Node) bool {
	t, ok := traits.Of(n)
	return ok && t.Elementwise
}

// hides reports a node with an output whose type is left away.
func (c *eraser) hides(n *onnx.Node) bool {
	return slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool { return v != nil && worthErasing(v) && !v.IsOutput() })
}

// lead lets a node read its input i through a view.
func (c *eraser) lead(n *onnx.Node, i int) {
	v := n.Inputs[i]
	if c.views[v] == nil {
		c.views[v] = c.view(v)
	}
	if w := c.views[v]; w != nil {
		n.SetInput(i, w)
	}
}

func (c *eraser) view(v *onnx.Value) *onnx.Value {
	none := c.nothing()
	c.b.Scope = v.Name
	return made(c.b, stepErase, "Unsqueeze", v.Type, v, none)
}

// extents returns constant extents as a computed tensor.
func (c *eraser) extents(v *onnx.Value) *onnx.Value {
	if w := c.dims[v]; w != nil {
		return w
	}
	none := c.nothing()
	c.b.Scope = v.Name
	w := made(c.b, stepErase, "Concat", unknownLength, v, none)
	c.dims[v] = w
	return w
}

// worthErasing reports a large value. Of elements of less than a byte no view has a kernel.
func worthErasing(v *onnx.Value) bool {
	return takes(v, EraseBytes)
}

// takes reports a value of so many bytes or more, and elements of no less than a byte.
func takes(v *onnx.Value, from int64) bool {
	bytes, ok := v.Type.Bytes()
	return ok && bytes >= from && v.Type.DType.Bits() >= 8
}

// forget leaves of the types of the node's inner outputs from so many bytes on the element type, and
// notes their names.
func forget(n *onnx.Node, from int64, names map[string]bool) {
	for _, v := range n.Returns() {
		if takes(v, from) && !v.IsOutput() {
			v.Type = onnx.Type{DType: v.Type.DType}
			names[v.Name] = true
		}
	}
}
