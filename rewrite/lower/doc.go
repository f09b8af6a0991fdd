// Package lower makes ONNX Runtime's own training graphs run in a stock ONNX
// Runtime. Its training package writes private operators (SoftmaxGrad_13,
// LayerNormalizationGrad, InPlaceAccumulatorV2, …) that stock builds have no
// kernels for; each is replaced by ordinary ones, emitted by the same rules that
// differentiate a forward model:
//
//	ReluGrad(dY, Y)  =  the rule of Relu, given the gradient dY of its output
//
//	lower.go      the pass: one walk over the nodes in file order
//	table.go      the rows: which forward operator a gradient operator belongs to
//	forward.go    operators of the forward side that keep more than plain ones do
//	special.go    what is not a gradient of one operator: losses, sums, lengths
//	optimizer.go  the optimizers over sequences of tensors, as a Loop
//
// Source: the operator schemas of ONNX Runtime's training package.
package lower
