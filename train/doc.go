// Package train trains: it runs a training graph step by step on batches, sets the
// learning rate, validates, saves states from which training goes on exactly, and
// stops where the loss is no number.
//
//	batch n+1 is made ─┐ while
//	batch n ─▶ Feed ─▶ Session.Step ─▶ loss, found_inf ─▶ Record ─▶ Watcher
//	            N times a step            │
//	                      every so often  ├─▶ validation, in a session that reads the
//	                                      │   parameters where they lie
//	                                      └─▶ state.safetensors, written beside, renamed
//
// A step ends with an update, or with an overflow. The update is in the graph, and so
// is accumulation: a graph that sums the gradients of N micro-batches takes N runs a
// step. A run whose gradients overflow in float16 ends its step, which is skipped; what
// was summed is kept, and the next step goes on with it. So a micro-batch is used once
// or, where it overflowed, not at all, and the number of runs so far says which is
// next: a batch is a function of its number.
//
// Resuming is exact: a state holds every number that the next step depends on, and
// the batches say that they are the same. Weakness: operators other than Dropout that
// draw random numbers begin to draw anew.
package train
