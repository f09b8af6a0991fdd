package grad

// Where a gradient may be infinite although it does not count: clamp(d, 0).sqrt() has a gradient
// of 1/0 where d is below 0, and the clamp gives d none of it. A product with a mask of zeros
// would be NaN there.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// Kept is g where cond holds, and 0 elsewhere; like has its element type. It is a product with
// a mask, which takes less memory than Where, unless g may be infinite.
func (c *Context) Kept(g, cond, like *onnx.Value) *onnx.Value {
	if g == nil || !c.steep() {
		return c.Times(g, c.Mask(cond, like))
	}
	return c.Where(cond, g, c.Scalar(like, 0))
}

// steep reports that the gradient of the node's output may be infinite: the output goes into an
// operator whose slope is infinite somewhere, as it is or by way of others that may leave it where it is.
func (c *Context) steep() bool {
	return !c.away(c.Node) && slices.ContainsFunc(c.Node.Outputs, c.intoSteep)
}

// intoSteep reports a value that goes into such an operator. What reads it was swept before, so
// the answer stays.
func (c *Context) intoSteep(v *onnx.Value) bool {
	if v == nil {
		return false
	}
	into, known := c.e.intoSteep[v]
	if !known {
		into = slices.ContainsFunc(v.Uses(), c.steepUse)
		c.e.intoSteep[v] = into
	}
	return into
}

func (c *Context) steepUse(u onnx.Use) bool {
	n := u.Node
	switch {
	case c.e.own[n] || n.Domain() != "" || u.Index == onnx.Captured:
		return false
	case infiniteSlope(u):
		return true
	case c.away(n):
		return false
	}
	return passing[n.OpType()] && slices.ContainsFunc(n.Outputs, c.intoSteep)
}

// away reports a node that keeps its output away from 0, as x+1e-6 and max(x, 1e-6) do.
func (c *Context) away(n *onnx.Node) bool {
	return n.Is("Add", "Max") && slices.ContainsFunc(n.Inputs, c.positive) || n.Is("Clip") && c.positive(n.In(1))
}

// positive reports a number above 0.
func (c *Context) positive(v *onnx.Value) bool {
	if v == nil {
		return false
	}
	x, ok := v.Number()
	return ok && x > 0
}

// infiniteSlope reports an operator whose slope is infinite at an edge of what it takes.
func infiniteSlope(u onnx.Use) bool {
	switch n := u.Node; {
	case n.Is("Div"):
		return u.Index == 1
	case n.Is("Pow"):
		return u.Index == 0
	}
	return u.Node.Is("Sqrt", "Log", "Reciprocal", "Acos", "Asin", "Acosh", "Atanh", "ReduceLogSum", "ReduceLogSumExp")
}

// passing are the operators through which a value arrives at such an edge.
var passing = map[string]bool{
	"Identity": true, "Cast": true, "Reshape": true, "Flatten": true, "Squeeze": true, "Unsqueeze": true, "Transpose": true,
	"Expand": true, "Slice": true, "Split": true, "Concat": true, "Gather": true, "GatherElements": true, "GatherND": true, "TopK": true,
	"Abs": true, "Neg": true, "Relu": true, "LeakyRelu": true, "PRelu": true, "Elu": true, "Celu": true, "Selu": true, "Clip": true,
	"Add": true, "Sub": true, "Max": true, "Min": true, "Where": true, "ThresholdedRelu": true, "Shrink": true, "Mul": true, "Div": true, "Pow": true,
	"MaxPool": true, "AveragePool": true, "GlobalMaxPool": true, "GlobalAveragePool": true,
	"ReduceSum": true, "ReduceSumSquare": true, "ReduceMean": true, "ReduceMax": true, "ReduceMin": true,
}
