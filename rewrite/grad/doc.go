// Package grad derives the backward graph of an ONNX model: reverse-mode
// differentiation, graph to graph, in ordinary operators.
//
//	select.go     which value is the loss, which initializers are trained
//	signature.go  what an export says of its parameters, buffers and constants
//	fx.go         what the exporter's optimizer merged, taken apart by its notes
//	retie.go      a transpose computed ahead, tied to its parameter again
//	names.go      what names say where there is no signature
//	decide.go     weight, mask or table: what the default takes for parameters
//	frequency.go  tables of frequencies against weights before a sine
//	steep.go      masks of gradients that may be infinite
//	untyped.go    outputs of no known size that the loss does not need
//	stop.go       where a gradient ends: detach, and what the caller names
//	warn.go       what the file leaves open
//	leftout.go    what the exporter leaves out of operators
//	engine.go     the reverse sweep: one pass over the nodes, last to first
//	partial.go    gradients while their contributions arrive
//	context.go    what a rule sees of its node, and how it hands gradients back
//	shapes.go     shapes as values
//	broadcast.go  broadcasting undone
//	product.go    matrix products of transposed operands without a Transpose
//	              that ONNX Runtime could fuse into them
//	control.go    loops and branches that a gradient passes, opened first
//	branches.go   branches that were not taken, whose gradients are none
//	decompose.go  operators that are differentiated as what they are made of
//	dropout.go    seeds, and masks that stay in use
//	backward.go   single rules outside of a sweep
//	table.go      the rule table, composed of the rules_*.go tables
//
// A rule is a row: an operator, the opset from which it holds, what its
// derivative is in words, and a function that emits it. A row without a
// function says why no gradient flows. An operator without a row is an error
// where a gradient would have to pass it, and only there.
//
// References: A. Griewank, A. Walther, "Evaluating Derivatives", 2nd ed., 2008;
// the single formulas are stated at their rules.
package grad
