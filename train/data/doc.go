// Package data is what a training or evaluation run is fed.
//
//	text ─▶ tokenizer ─▶ tokens ─┐
//	.npy, raw tokens ────────────┼─▶ samples ─▶ order ─▶ batch n ─▶ the model's inputs
//	.npz ────────────────────────┘
//
// A Source is the files, opened once; it knows no model. Source.For maps it onto
// the inputs of a model, by what the graph does with them, and gives the batches.
//
// A batch is a pure function of its number: micro-batch n holds places n*B to
// n*B+B-1 of the endless row of epochs, each of which is all samples in an order of
// its own. So an epoch that the batch does not divide goes on into the next, every
// sample is seen once in each, and a run resumes from a number and a seed.
package data
