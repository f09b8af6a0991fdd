package grad

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A Context is one node as its rule sees it. Values made through it are named
// remat/grad/NODE/OP. The first error sticks in the builder and makes every
// later call a no-op with nil results, so rules are written as formulas.
//
// A gradient is loose when it only broadcasts to its value's shape (the
// gradient of a mean is one number). Rules that multiply it elementwise with
// something of the full shape take it as it is (Loose); all others ask for the
// expanded one (Grad).
type Context struct {
	Node *onnx.Node
	// Opset is the version of the node's domain.
	Opset int64

	e    *engine
	rule *Rule
}

// In returns input i of the node, nil where it is left out.
func (c *Context) In(i int) *onnx.Value { return c.Node.In(i) }

// Out returns output i of the node, nil where it is left out. An output that
// the forward graph leaves out can be had with AddOut.
func (c *Context) Out(i int) *onnx.Value { return c.Node.Out(i) }

// AddOut returns output i, adding it to the forward node where it was left out
// (LayerNormalization's InvStdDev, Dropout's mask, MaxPool's indices).
func (c *Context) AddOut(i int) *onnx.Value {
	if v := c.Node.Out(i); v != nil {
		return v
	}
	v := c.Node.AddOutput(i, fmt.Sprintf("%s%s:%d", c.e.b.Prefix, c.Node.Label(), i))
	if err := c.e.types.Node(c.Node); err != nil {
		c.e.b.Fail(err)
	}
	return v
}

// Grad returns the gradient of output i in that output's full shape, nil where
// none arrives.
func (c *Context) Grad(i int) *onnx.Value {
	o := c.Out(i)
	if o == nil {
		return nil
	}
	g := c.e.accumulate(o)
	if g == nil {
		return nil
	}
	g = c.e.expandTo(g, o)
	c.e.grads[o].dense = g
	return g
}

// Loose returns the gradient of output i, perhaps only broadcastable to that
// output's shape, nil where none arrives.
func (c *Context) Loose(i int) *onnx.Value {
	if o := c.Out(i); o != nil {
		return c.e.accumulate(o)
	}
	return nil
}

// Factored returns the gradient of output i as a value and a factor that is
// still to be multiplied onto it: nil, a number, or one a row. The value has the
// output's full shape where there is a factor.
func (c *Context) Factored(i int) (g, factor *onnx.Value) {
	o := c.Out(i)
	if o == nil {
		return nil, nil
	}
	if g, factor = c.e.accumulateFactored(o); factor == nil {
		return c.Grad(i), nil
	}
	return g, factor
}

// AddFactored hands over g times factor as the gradient of input i; see
// Factored.
func (c *Context) AddFactored(i int, g, factor *onnx.Value) {
	switch {
	case factor == nil:
		c.Add(i, g)
	case g != nil && c.Needs(i):
		c.e.addFactored(c.In(i), g, factor)
	}
}

// Needs reports whether a gradient of input i is wanted; only then may it be
// computed and handed to Add.
func (c *Context) Needs(i int) bool {
	v := c.In(i)
	return v != nil && c.e.needs[v] && c.rule.flowsTo(c.Node, i)
}

// Add hands over the gradient of input i: of that input's shape, or loose.
func (c *Context) Add(i int, g *onnx.Value) {
	if g != nil && c.Needs(i) {
		c.e.addDense(c.In(i), g)
	}
}

// AddCast is Add of a gradient that may have been computed in another type than the input's.
func (c *Context) AddCast(i int, g *onnx.Value) { c.Add(i, c.CastTo(g, c.In(i))) }

// AddBroadcast hands over the gradient of input i before broadcasting is
// undone: g has the shape of output 0 (or is loose to it); axes along which
// the input was stretched are summed.
func (c *Context) AddBroadcast(i int, g *onnx.Value) {
	if g != nil && c.Needs(i) {
		c.e.addDense(c.In(i), c.e.unbroadcast(g, c.Out(0), c.In(i)))
	}
}

// AddSlice hands over the gradient of In(i)[start:end] along axis (all of them
// nonnegative); zeros elsewhere. Slices of one value become one Concat.
func (c *Context) AddSlice(i, axis int, start, end int64, g *onnx.Value) {
	if g != nil && c.Needs(i) {
		p := c.e.partialOf(c.In(i))
		p.slices = append(p.slices, slicePart{axis, start, end, g})
	}
}

// AddScatter adds g, which has the shape of indices, to the elements of input
// i that indices name along axis, as ScatterElements does. It runs in place in
// whatever gradient input i already has.
func (c *Context) AddScatter(i, axis int, indices, g *onnx.Value) {
	if g != nil && c.Needs(i) {
		p := c.e.partialOf(c.In(i))
		p.scatters = append(p.scatters, scatterPart{axis: axis, indices: indices, grad: g})
	}
}

// Fail reports a form of the operator that the rule does not cover.
func (c *Context) Fail(format string, args ...any) {
	c.e.b.Fail(&UnsupportedError{Op: c.Node.OpType(), Node: c.Node.Label(), Reason: fmt.Sprintf(format, args...)})
}

// Replace puts v, made by this rule, in the place of forward output i: readers,
// graph outputs and the name. For operators that ONNX Runtime has no kernel
// for, whose forward is emitted again.
func (c *Context) Replace(i int, v *onnx.Value) {
	if o := c.Out(i); o != nil && v != nil {
		c.e.m.Graph.TakeOver(o, v)
	}
}

// Forward moves the nodes made since the last call before the forward node, so
// that what follows it in the file can read them.
func (c *Context) Forward(emit func()) {
	// Shapes that backward nodes computed are not there yet.
	before, shapes := c.e.b.Take(), c.e.shapes
	c.e.shapes = map[string]*onnx.Value{}
	emit()
	c.e.m.Graph.InsertBefore(c.Node, c.e.b.Take()...)
	c.e.b.Nodes, c.e.shapes = before, shapes
}

// Do makes a node of the standard domain with one output and no attributes.
func (c *Context) Do(op string, inputs ...*onnx.Value) *onnx.Value {
	return c.e.b.Op(op, inputs)
}

// Op makes a node of the standard domain with one output.
func (c *Context) Op(op string, inputs []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	return c.e.b.Op(op, inputs, attrs...)
}

// Nodes makes a node with several outputs, all present.
func (c *Context) Nodes(domain, op string, inputs []*onnx.Value, outputs int, attrs ...onnx.Attribute) []*onnx.Value {
	return c.e.b.Node(domain, op, inputs, outputs, attrs...)
}

// Split cuts v along an axis into parts of these extents.
func (c *Context) Split(v *onnx.Value, axis int64, sizes ...int64) []*onnx.Value {
	return c.Nodes("", "Split", build.In(v, c.IntList(sizes...)), len(sizes), onnx.IntAttr("axis", axis))
}

// Ints returns the content of an integer value where it is known.
func (c *Context) Ints(v *onnx.Value) ([]int64, bool) {
	return c.e.types.Int64s(v)
}

// Rank returns the number of axes, and fails the rule where it is unknown.
func (c *Context) Rank(v *onnx.Value) int {
	if v == nil {
		return 0
	}
	if !v.Type.Ranked {
		c.Fail("the rank of %q is unknown", v.Name)
	}
	return len(v.Type.Shape)
}

// Axis returns an axis attribute of the node counted from the front of v.
func (c *Context) Axis(name string, def int64, v *onnx.Value) int {
	return c.axis(c.Node.Int(name, def), v)
}

func (c *Context) axis(a int64, v *onnx.Value) int {
	rank := int64(c.Rank(v))
	if a < 0 {
		a += rank
	}
	if a < 0 || a >= max(rank, 1) {
		c.Fail("axis %d of a value of rank %d", a, rank)
		return 0
	}
	return int(a)
}

// Scalar returns a rank-0 constant of like's element type.
func (c *Context) Scalar(like *onnx.Value, x float64) *onnx.Value {
	if like == nil {
		return nil
	}
	return c.e.b.Scalar(like.Type.DType, x)
}

// IntList returns a one-dimensional int64 constant.
func (c *Context) IntList(values ...int64) *onnx.Value { return c.e.b.Ints(values...) }

// maxTable bounds the tables that a rule writes into the file as constants.
const maxTable = 1 << 24

// table reports that a table of so many numbers, the product, can be written into the file;
// the rule fails where it cannot.
func (c *Context) table(of ...int64) bool {
	n := int64(1)
	for _, k := range of {
		if k < 0 || k > 0 && n > maxTable/k {
			c.Fail("a table of %s numbers is too large to be written", strings.Trim(strings.ReplaceAll(fmt.Sprint(of), " ", " × "), "[]"))
			return false
		}
		n *= k
	}
	return true
}

// Const returns an initializer with that content.
func (c *Context) Const(t *onnx.Tensor) *onnx.Value { return c.e.b.Const(t) }

// Plus is a+b.
func (c *Context) Plus(a, b *onnx.Value) *onnx.Value { return c.Do("Add", a, b) }

// Minus is a-b.
func (c *Context) Minus(a, b *onnx.Value) *onnx.Value { return c.Do("Sub", a, b) }

// Over is a/b.
func (c *Context) Over(a, b *onnx.Value) *onnx.Value {
	if x, ok := b.Number(); ok && x == 1 && len(b.Type.Shape) == 0 {
		return a
	}
	return c.Do("Div", a, b)
}

// Times is a*b; constants are multiplied out, and a factor of one is left out.
func (c *Context) Times(a, b *onnx.Value) *onnx.Value {
	if a == nil || b == nil {
		return nil
	}
	x, aConst := a.Number()
	y, bConst := b.Number()
	aConst, bConst = aConst && len(a.Type.Shape) == 0, bConst && len(b.Type.Shape) == 0
	switch {
	case aConst && bConst:
		return c.Scalar(a, x*y)
	case aConst && x == 1:
		return b
	case bConst && y == 1:
		return a
	}
	return c.Do("Mul", a, b)
}

// Scale is a*x for a number x.
func (c *Context) Scale(a *onnx.Value, x float64) *onnx.Value {
	if x == -1 {
		if y, ok := a.Number(); !ok || len(a.Type.Shape) != 0 {
			return c.Do("Neg", a)
		} else {
			return c.Scalar(a, -y)
		}
	}
	return c.Times(a, c.Scalar(a, x))
}

// CastTo converts to like's element type, if it is not that already.
func (c *Context) CastTo(v, like *onnx.Value) *onnx.Value {
	if like == nil {
		return v
	}
	return c.cast(v, like.Type.DType)
}

// cast converts to an element type, if it is not that already.
func (c *Context) cast(v *onnx.Value, d onnx.DType) *onnx.Value { return c.e.cast(v, d) }

func (e *engine) cast(v *onnx.Value, d onnx.DType) *onnx.Value {
	if v == nil || v.Type.DType == d {
		return v
	}
	return e.b.Op("Cast", build.In(v), onnx.IntAttr("to", int64(d)))
}

// Sum is ReduceSum over axes (counted from the front), which stay as ones where
// keep is set. No axes: v itself.
func (c *Context) Sum(v *onnx.Value, keep bool, axes ...int) *onnx.Value {
	return c.e.sum(v, keep, axes...)
}

// Mean is ReduceMean over axes.
func (c *Context) Mean(v *onnx.Value, keep bool, axes ...int) *onnx.Value {
	if len(axes) == 0 {
		return v
	}
	return c.Op("ReduceMean", build.In(v, c.e.b.Axes(axes...)), onnx.IntAttr("keepdims", flag(keep)))
}

// Reshape gives v the shape of like.
func (c *Context) Reshape(v, like *onnx.Value) *onnx.Value { return c.e.reshapeLike(v, like) }

// ReshapeTo gives v that shape; at most one extent may be -1.
func (c *Context) ReshapeTo(v *onnx.Value, extents ...int64) *onnx.Value {
	return c.Op("Reshape", build.In(v, c.e.b.Ints(extents...)))
}

// ReshapeDims gives v a shape that may hold symbols.
func (c *Context) ReshapeDims(v *onnx.Value, s onnx.Shape) *onnx.Value { return c.e.reshape(v, s, nil) }

// Unsqueeze adds axes of extent one.
func (c *Context) Unsqueeze(v *onnx.Value, axes ...int) *onnx.Value {
	if len(axes) == 0 {
		return v
	}
	return c.Do("Unsqueeze", v, c.e.b.Axes(axes...))
}

// Expand stretches v to like's shape, if it does not have it already.
func (c *Context) Expand(v, like *onnx.Value) *onnx.Value { return c.e.expandTo(v, like) }

// ShapeOf returns like's shape as an int64 value: a constant where the extents
// are numbers, put together from the graph's inputs where they hold symbols, and
// only as a last resort read off like itself, which keeps like alive.
func (c *Context) ShapeOf(like *onnx.Value) *onnx.Value { return c.e.shapeOf(like) }

// lengthOf returns like's extent along an axis as a one-element int64 value, found
// as ShapeOf finds a shape.
func (c *Context) lengthOf(like *onnx.Value, axis int) *onnx.Value {
	if d := c.e.dim(like.Type.Shape[axis]); d != nil {
		return d
	}
	return c.Op("Shape", build.In(like), onnx.IntAttr("start", int64(axis)), onnx.IntAttr("end", int64(axis+1)))
}

// Zeros makes zeros of like's shape and type.
func (c *Context) Zeros(like *onnx.Value) *onnx.Value { return c.e.zeros(like) }

// Count returns the product of extents of v along axes as a rank-0 value of v's
// element type: a constant where it is known.
func (c *Context) Count(v *onnx.Value, axes ...int) *onnx.Value {
	if v == nil {
		return nil
	}
	return c.e.count(v, axes, v.Type.DType)
}

// Unbroadcast sums g, of the shape of full (or loose to it), down to the shape
// of part, which broadcasts to full.
func (c *Context) Unbroadcast(g, full, part *onnx.Value) *onnx.Value {
	return c.e.unbroadcast(g, full, part)
}

// Where is Where(cond, a, b).
func (c *Context) Where(cond, a, b *onnx.Value) *onnx.Value { return c.Do("Where", cond, a, b) }

// Mask turns a boolean into zeros and ones of like's element type.
func (c *Context) Mask(cond, like *onnx.Value) *onnx.Value {
	if like == nil {
		return nil
	}
	return c.cast(cond, like.Type.DType)
}

// Transpose permutes axes. It looks through a Transpose that made v, and makes
// nothing where the axes end up in order.
func (c *Context) Transpose(v *onnx.Value, perm ...int) *onnx.Value { return c.e.transpose(v, perm) }

// Product is op(a) @ op(b), where op swaps the last two axes if asked to; a and
// b have the same number of axes and equal leading extents. See product.go.
func (c *Context) Product(a *onnx.Value, transA bool, b *onnx.Value, transB bool) *onnx.Value {
	return c.e.product(a, transA, b, transB)
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
