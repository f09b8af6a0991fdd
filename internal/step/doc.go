// Package step is the one model of a training step: what its inputs and outputs
// are for, what depends on what in it, and what ONNX Runtime does with it on a
// machine.
//
//	roles.go      loss, gradients, next values: the metadata entry remat.roles
//	depend.go     backward and forward slices of a graph, by kind of dependency
//	provider.go   kernels of a provider: aliases, in place, scratch
//	places.go     what runs on the host of a device, and what is copied
//	translate.go  onnx.Graph ─▶ ortmodel.Graph
//
// It knows graphs, operators and the model of ONNX Runtime; it plans nothing,
// changes nothing and runs nothing.
package step
