// Package planner decides what a training step keeps, what it computes again,
// and in which order: on plain integers and bytes, without any ONNX.
//
//	Problem ──solver──▶ Plan ──Expand──▶ Program ──Judge──▶ Verdict
//	 (graph,            (kept values,    (instances,        (peak bytes,
//	  bytes,             schedule with    barriers)           work, bound)
//	  FLOPs)             repeats)
//
// A Problem is one joint graph of forward and backward. A Plan is a schedule:
// a list of executions of operators in which an operator may appear more than
// once; every appearance after the first is a recomputation, and a reader
// takes the latest earlier instance of what it reads. All else follows from
// that list. A Program spells it out: which instance reads which, and where a
// barrier keeps a recomputation apart from its original.
//
// Solvers (see Solvers) are pure functions that propose plans. One judge
// decides what a plan costs: it asks package ortmodel, which knows how ONNX
// Runtime orders the nodes and plans the buffers.
package planner
