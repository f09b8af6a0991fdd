// Package ortmodel is remat's model of stock ONNX Runtime, on plain integers:
// the order in which it runs the nodes of a file, the file order that makes it
// run a wanted schedule, the buffers that it plans and reuses, and so every
// byte that a step allocates and releases.
//
// It knows nothing of ONNX: package runtime/predict builds a Graph from a
// file, package planner from a planning problem, and both get the same answer.
// Measured against ONNX Runtime 1.31.1, CPU provider, memory pattern off.
package ortmodel

import "slices"

// None stands for a missing optional input or output, and for "no value".
const None = -1

// A Kind says who owns the memory of a value.
type Kind uint8

const (
	// Inner values are allocated by the step and released by it.
	Inner Kind = iota
	// Feed values come from outside (inputs, parameters, state); their memory
	// is never allocated, released or reused by the step.
	Feed
	// Constant values are initializers held by the session.
	Constant
	// Output values are allocated by the step and outlive it. They never take
	// over another buffer, and their buffer is never handed on.
	Output
	// Bound values are outputs that the caller bound to memory beforehand:
	// counted nowhere in the step, but in the graph's Held where it is the step's.
	Bound
)

// A Value is one tensor (or other value) of the graph.
type Value struct {
	// Bytes is the size of the buffer in bytes.
	Bytes int64
	// Class identifies equal shape and equal element size: a dead buffer is
	// reused only for a value of the same class. None: ONNX Runtime does not
	// know the shape when it plans, so the buffer is neither taken over nor
	// handed on.
	Class int
	Kind  Kind
	// Scalar marks a value of rank 0: it may be computed in place, but never
	// takes a dead buffer.
	Scalar bool
}

// A Pair joins an input position with an output position of one node.
type Pair struct{ Input, Output int }

// A Node is one operator; its index in Graph.Nodes is its place in the file.
type Node struct {
	// Inputs and Outputs hold value indexes or None. Values that a subgraph
	// of the node captures from outside are in Captures.
	Inputs, Outputs, Captures []int
	// Alias lists outputs that always share their input's buffer (Reshape).
	Alias []Pair
	// InPlace lists, in ONNX Runtime's order of preference, the inputs whose
	// buffer an output may take over when that was their last use.
	InPlace []Pair
	// Scratch lists the sizes in bytes of the buffers that the kernel
	// allocates inside and releases before it returns.
	Scratch []int64
	// Script is the order in which the kernel asks for its outputs and its
	// scratch. Nil: outputs in their order, then scratch in its order, all
	// alive together, scratch released last first. What a script leaves out
	// is done after it in that same way.
	Script []Act
	// Host: runs on the host, in a step of another device; see Streams.
	Host bool
}

// An Act is one step of a kernel's Script.
type Act struct {
	Kind ActKind
	// Index is a position in Outputs (Take) or in Scratch (Borrow, GiveBack).
	Index int
	// Unstreamed: it borrows in no stream's name, so the arena of a device has nothing for
	// it that a stream used in the same run.
	Unstreamed bool
}

// An ActKind says what a kernel does in one Act.
type ActKind uint8

const (
	// Take asks for the output at Index.
	Take ActKind = iota
	// Borrow allocates the scratch buffer at Index.
	Borrow
	// GiveBack releases the scratch buffer at Index.
	GiveBack
)

// A Graph is a step as ONNX Runtime sees it.
type Graph struct {
	Nodes  []Node
	Values []Value
	// Held are the bytes that are allocated before the first node runs, and outlive the
	// step.
	Held int64
}

// Copy returns the graph with values of its own; the nodes are shared.
func (g *Graph) Copy() *Graph {
	return &Graph{Nodes: g.Nodes, Values: slices.Clone(g.Values), Held: g.Held}
}
