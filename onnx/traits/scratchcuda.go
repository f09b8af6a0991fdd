package traits

// What the CUDA provider's kernels borrow of the device, measured one node at a time:
//
//	sums over leading axes     nothing
//	sums over trailing axes    partial sums of each row, and a counter
//	other reductions           cuDNN's workspace, as large as the input; what it cannot
//	                           read is widened first
//	Softmax off the last axis  input and result, transposed
//	MatMul of batches          three tables of addresses, unless one stride reaches all
//	Concat, Split of many      tables of addresses and extents
//	Resize                     where each place along an axis comes from
//	Conv, recurrences          cuDNN's workspace
//
// Norms, Where, elementwise operators and Gemm borrow nothing. What cuBLAS and cuDNN
// hold for their handles is outside of the provider's allocator. Sizes of workspaces
// only the libraries know, on the device: a rule marks them with library.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

var cudaScratch = map[key]scratchRule{
	{"", "Softmax"}:                   cudaSoftmaxScratch,
	{"", "LogSoftmax"}:                cudaSoftmaxScratch,
	{"", "ReduceSum"}:                 cudaReduceScratch,
	{"", "ReduceMean"}:                cudaReduceScratch,
	{"", "ReduceLogSum"}:              cudaReduceScratch,
	{"", "ReduceSumSquare"}:           cudaReduceScratch,
	{"", "ReduceMax"}:                 cudaReduceScratch,
	{"", "ReduceMin"}:                 cudaReduceScratch,
	{"", "ReduceProd"}:                cudaReduceScratch,
	{"", "ReduceL1"}:                  cudaReduceScratch,
	{"", "ReduceL2"}:                  cudaReduceScratch,
	{"", "ReduceLogSumExp"}:           cudaReduceScratch,
	{"", "ArgMax"}:                    cudaArgScratch,
	{"", "ArgMin"}:                    cudaArgScratch,
	{"", "MatMul"}:                    cudaMatMulScratch,
	{"com.microsoft", "FusedMatMul"}:  cudaMatMulScratch,
	{"", "Concat"}:                    cudaConcatScratch,
	{"", "Split"}:                     cudaSplitScratch,
	{"", "GatherND"}:                  cudaGatherNDScratch,
	{"", "Dropout"}:                   cudaDropoutScratch,
	{"", "BatchNormalization"}:        cudaBatchNormScratch,
	{"", "InstanceNormalization"}:     cudaInstanceNormScratch,
	{"", "TopK"}:                      cudaTopKScratch,
	{"", "Conv"}:                      cudaConvScratch,
	{"", "ConvTranspose"}:             cudaConvScratch,
	{"com.microsoft", "FusedConv"}:    cudaConvScratch,
	{"", "LSTM"}:                      cudaRecurrentScratch,
	{"", "GRU"}:                       cudaRecurrentScratch,
	{"", "RNN"}:                       cudaRecurrentScratch,
	{"", "Einsum"}:                    cudaEinsumScratch,
	{"", "Resize"}:                    cudaResizeScratch,
	{"", "NonZero"}:                   notModelled,
	{"", "Compress"}:                  notModelled,
	{"", "Attention"}:                 notModelled,
	{"", "If"}:                        notModelled,
	{"", "Loop"}:                      notModelled,
	{"", "Scan"}:                      notModelled,
	{"", "GroupNormalization"}:        notModelled,
	{"", "MeanVarianceNormalization"}: notModelled,
}

// ScratchCUDA is Scratch for the kernels of the CUDA provider. What a session keeps for a kernel
// is known of some that borrow what is not.
func ScratchCUDA(n *onnx.Node) (*Kernel, bool) {
	rule, ok := cudaScratch[key{n.Domain(), n.OpType()}]
	if !ok {
		_, known := Of(n)
		return nil, known
	}
	var k Kernel
	if !rule(n, 1, &k) {
		return &Kernel{Held: k.Held}, false
	}
	if len(k.Acts) == 0 && len(k.Held) == 0 {
		return nil, true
	}
	return &k, true
}

// notModelled: what the kernel borrows is not known here.
func notModelled(*onnx.Node, int, *Kernel) bool { return false }

const addressBytes = 8

// cudaSoftmaxScratch: as on the CPU; before opset 13 everything behind the axis is one.
func cudaSoftmaxScratch(n *onnx.Node, threads int, k *Kernel) bool {
	k.unstreamed = true
	return softmaxScratch(n, threads, k)
}

// Blocks of threads of a sum over rows: reduction_functions.cu.
const (
	cudaWarp        = 32
	cudaPerThread   = 4
	cudaMostWarps   = 8
	cudaMostBlocks  = 256
	cudaCounter     = 4       // bytes
	cudaIndex       = 4       // bytes of a place in a row
	cudaTogether    = 132 * 8 // blocks that run at once: of 256 threads, on 132 multiprocessors
	cudaMostAligned = 16      // bytes
	// cudaWide is an element of what cuDNN reads in place of integers.
	cudaWide = 8
)

// A reduction is what a reducing node does to its input.
type reduction struct {
	in, out int64 // elements
	// rows of columns elements each are reduced, where the axes are the last ones;
	// 0 rows: the axes are the first ones, or all; matrix: one of both.
	matrix        bool
	rows, columns int64
}

func newReduction(n *onnx.Node) (r reduction, ok bool) {
	x, okX := dims(n.In(0))
	axes, okAxes := ReducedAxes(n, len(x))
	if !okX || !okAxes {
		return r, false
	}
	r.in, r.out = product(x), 1
	for i, d := range x {
		if len(axes) > 0 && !slices.Contains(axes, int64(i)) {
			r.out *= d
		}
	}
	r.matrix, r.rows, r.columns = asMatrix(x, axes)
	return r, true
}

// ReducedAxes are the axes that a reduction names, counted from the left, by its
// attribute or its constant input; false where they are not constant.
func ReducedAxes(n *onnx.Node, rank int) ([]int64, bool) {
	axes := n.Ints("axes")
	if v := n.In(1); v != nil {
		t := v.Constant()
		if t == nil {
			return nil, false
		}
		list, err := t.Int64s()
		if err != nil {
			return nil, false
		}
		axes = list
	}
	axes = slices.Clone(axes)
	for i := range axes {
		if axes[i] < 0 {
			axes[i] += int64(rank)
		}
	}
	return axes, true
}

// asMatrix looks for leading or trailing axes of which all are reduced and no others.
// Axes of extent 1 do not count, unless no others are named.
func asMatrix(x, axes []int64) (ok bool, rows, columns int64) {
	if len(x) == 0 {
		return true, 0, 0
	}
	var extents []int64
	var reduced []bool
	any := false
	for i, d := range x {
		if d != 1 {
			is := len(axes) == 0 || slices.Contains(axes, int64(i))
			extents, reduced = append(extents, d), append(reduced, is)
			any = any || is
		}
	}
	if !any && len(axes) > 0 {
		extents, reduced = append(extents, 1), append(reduced, true)
	}
	edge := 0 // from here on the other kind of axes
	for edge < len(reduced) && reduced[edge] == reduced[0] {
		edge++
	}
	switch {
	case edge == len(reduced): // all
		return true, 0, 0
	case slices.Contains(reduced[edge:], reduced[0]):
		return false, 0, 0
	case reduced[0]:
		return true, 0, 0
	}
	return true, product(extents[:edge]), product(extents[edge:])
}

// cudaReduceScratch: see the head of this file.
func cudaReduceScratch(n *onnx.Node, _ int, k *Kernel) bool {
	r, ok := newReduction(n)
	if !ok {
		return false
	}
	k.take(0)
	size := elementBytes(n.In(0))
	switch {
	case r.in == 0, n.Int("noop_with_empty_axes", 0) != 0 && len(n.Ints("axes")) == 0 && (n.In(1) == nil || n.In(1).Type.Empty()):
	case !n.In(0).Type.DType.IsFloat():
		if !n.Is("ReduceSum") && r.in != r.out {
			k.borrow(r.in * cudaWide)
			k.borrow(reductionWorkspace(r.in, cudaWide))
			k.borrow(r.out * cudaWide)
		}
	case r.matrix && n.Is("ReduceSum", "ReduceMean", "ReduceLogSum", "ReduceSumSquare"):
		if n.Is("ReduceSumSquare") {
			k.borrow(r.in * size)
		}
		if r.rows > 0 {
			k.borrow(partialSums(r.rows, r.columns, max(size, floatBytes)))
		}
	default:
		cuDNNReduction(n, r, size, k)
	}
	return true
}

// rowBlocks is how many blocks of threads reduce one row.
func rowBlocks(columns int64) int64 {
	warps := min(cudaMostWarps, max(1, columns/(cudaPerThread*cudaWarp)))
	return min(cudaMostBlocks, max(1, columns/(cudaPerThread*cudaWarp*warps)))
}

// partialSums is one number for each block of each row, and a counter for each row.
func partialSums(rows, columns, size int64) int64 {
	return partials(rows, rowBlocks(columns), size)
}

// reductionWorkspace is what cuDNN asks for to reduce elements of a size, as read on an
// H200 (cuDNN 9): as many of the type that it computes in, with a place each where those
// are asked for, and only one where one element is left.
func reductionWorkspace(elements, size int64) int64 { return elements * max(size, floatBytes) }

// cuDNNReduction: bfloat16 is widened to float before and back after; squares, and
// exponentials with their sums, are made first.
func cuDNNReduction(n *onnx.Node, r reduction, size int64, k *Kernel) {
	wide := n.In(0).Type.DType == onnx.BFloat16 && len(n.In(0).Type.Shape) > 0
	if wide {
		k.borrow(r.in * floatBytes)
	}
	k.borrow(reductionWorkspace(r.in, size))
	switch {
	case n.Is("ReduceSumSquare"):
		k.borrow(r.in * size)
	case n.Is("ReduceLogSumExp"):
		k.borrow(r.in * size)
		k.borrow(r.out * size)
	case wide && r.in != r.out:
		k.borrow(r.out * floatBytes)
	}
}

// partials is what blocks leave for the one that finishes a row, with a counter for each.
func partials(rows, blocks, size int64) int64 {
	return rows*blocks*size + rows*cudaCounter + cudaMostAligned - 1
}

// cudaArgScratch: along the last axis, each block of a row keeps the greatest and its place
// where there are several, of all rows no more than run at once. cuDNN finds the greatest along any other axis; float16 is
// widened.
func cudaArgScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, okX := dims(n.In(0))
	y, okY := dims(n.Out(0))
	if !okX || !okY {
		return false
	}
	axis, size := n.Int("axis", 0), elementBytes(n.In(0))
	if product(x) == 0 {
		return true
	}
	if axis == -1 || axis == int64(len(x))-1 {
		columns := x[len(x)-1]
		rows := product(x) / columns
		if blocks := min(rowBlocks(columns), cudaTogether/rows); blocks > 1 {
			k.take(0)
			k.borrow(partials(rows, blocks, size+cudaIndex))
		}
		return true
	}
	k.take(0)
	if n.In(0).Type.DType == onnx.Float16 {
		size = floatBytes
		k.borrow(product(x) * size)
	}
	if product(y) == 1 {
		k.borrow(reductionWorkspace(product(x), size) + cudaIndex)
	} else {
		k.borrow(reductionWorkspace(product(x), size+cudaIndex))
	}
	k.borrow(product(y) * cudaIndex)
	if product(x) != product(y) {
		k.borrow(product(y) * size)
	}
	return true
}

// cudaMatMulScratch: tables of the addresses of both factors and of the product, unless
// it is one product, or the batches of both sides are as many.
func cudaMatMulScratch(n *onnx.Node, _ int, k *Kernel) bool {
	a, okA := dims(n.In(0))
	b, okB := dims(n.In(1))
	switch {
	case !okA || !okB || len(a) == 0 || len(b) == 0:
		return false
	case product(a) == 0 || product(b) == 0, len(a) == 1 && len(b) <= 2:
		return true
	}
	a, b = unbatched(a, n.Int("transBatchA", 0) != 0), unbatched(b, n.Int("transBatchB", 0) != 0)
	count := int64(1)
	if len(b) == 1 {
		count = product(a[:len(a)-1])
	} else {
		right := product(b[:len(b)-2])
		switch {
		case n.Int("transA", 0) == 0 && len(a) >= len(b) && right == 1,
			len(a) == 2 && len(b) == 2, // one product
			len(a) >= 3 && (len(b) == 2 || product(a[:len(a)-2]) == right):
			return true
		}
		count = product(broadcast(a[:max(0, len(a)-2)], b[:len(b)-2]))
	}
	k.take(0)
	for range 3 {
		k.borrow(count * addressBytes)
	}
	return true
}

// cudaEinsumScratch: as on the CPU, with sums that borrow as ReduceSum does.
func cudaEinsumScratch(n *onnx.Node, _ int, k *Kernel) bool {
	if n.In(0) == nil {
		return false
	}
	k.unstreamed = true
	size := max(elementBytes(n.In(0)), floatBytes)
	return evaluateEinsum(n, k, func(dims, axes []int64) {
		matrix, rows, columns := asMatrix(dims, axes)
		k.unstreamed = false
		switch {
		case matrix && rows > 0:
			k.giveBack(k.borrow(partialSums(rows, columns, size)))
		case !matrix:
			k.giveBack(k.borrow(reductionWorkspace(product(dims), size)))
		}
		k.unstreamed = true
	})
}

// antialiasTable is what the session keeps for a Resize with antialias, whatever the type, in
// bytes: measured.
const antialiasTable = 1280

// Bytes of what Resize notes for each place along an axis.
const (
	cudaNearest = 8  // a place and whether it is inside
	cudaLinear  = 12 // a place, a weight, and whether it is inside
	cudaCubic   = 24 // a place, four weights, and whether it is inside
	cudaWindow  = 16 // with antialias, a first buffer for where windows lie
	cudaWindow2 = 8  // and a second one
)

// cudaResizeScratch: for each place of the result along an axis, where it comes from. The
// nearest one is noted for all axes, with the extent of each; others for the last two, or
// three where the rank is odd. With antialias: where windows lie, in two buffers, and the weights
// of all; a volume lies in a buffer between one axis and the next.
func cudaResizeScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, okX := dims(n.In(0))
	y, okY := dims(n.Out(0))
	antialias := n.Int("antialias", 0) != 0
	if antialias {
		k.Held = []int64{antialiasTable}
	}
	switch {
	case !okX || !okY || len(x) != len(y):
		return false
	case slices.Equal(x, y):
		return true
	case antialias:
		return cudaAntialiasScratch(n, x, y, k)
	}
	places := func(axes int) (sum int64) {
		for _, d := range y[max(0, len(y)-axes):] {
			sum += d
		}
		return sum
	}
	k.take(0)
	switch n.Str("mode", "nearest") {
	case "linear":
		k.borrow(cudaLinear * places(2+len(y)%2))
	case "cubic":
		k.borrow(cudaCubic * places(2))
	default:
		k.borrow(cudaNearest * (places(len(y)) + int64(len(y))))
	}
	return true
}

func cudaAntialiasScratch(n *onnx.Node, x, y []int64, k *Kernel) bool {
	if len(x) < 2 || len(x) > 5 || !n.In(0).Type.DType.IsFloat() {
		return false
	}
	first, axes := imageAxes(x, y)
	in, out := x[first:first+axes], y[first:first+axes]
	factors, ok := resizeFactors(n, first, in, out)
	if !ok || len(x) == 5 && first == 1 {
		return false
	}
	var places, weights int64
	for i, d := range out {
		places += d
		weights += resizeWindow(n.Str("mode", "nearest"), factors[i]) * d
	}
	k.take(0)
	k.borrow(cudaWindow * places)
	k.borrow(cudaWindow2 * places)
	k.borrow(weights * max(floatBytes, elementBytes(n.In(0))))
	if axes == 3 {
		images := product(x[:first]) * elementBytes(n.In(0))
		k.borrow(images * in[0] * in[1] * out[2])
		k.borrow(images * in[0] * out[1] * out[2])
	}
	return true
}

// unbatched puts the batch, which a factor may have in front of its rows alone, behind
// them: [r, b…, c] is [b…, r, c].
func unbatched(dims []int64, transposed bool) []int64 {
	if !transposed || len(dims) < 3 {
		return dims
	}
	last := len(dims) - 1
	return append(append(slices.Clone(dims[1:last]), dims[0]), dims[last])
}

// mostArguments is how many addresses are handed to a kernel with its arguments.
const mostArguments = 32

// cudaConcatScratch: addresses, and, where the parts differ, their extents, where each
// begins, and the part of each place along the axis.
func cudaConcatScratch(n *onnx.Node, _ int, k *Kernel) bool {
	count := len(n.Inputs)
	if count <= mostArguments {
		return true
	}
	y, ok := dims(n.Out(0))
	equal, okParts := equalAlong(n, n.Inputs)
	if !ok || !okParts {
		return false
	}
	k.take(0)
	if product(y) == 0 {
		return true
	}
	tables(k, int64(count), y[axisOf(n, len(y))], equal, 1)
	return true
}

// cudaSplitScratch: the same; of up to splitInner unequal parts along the last axis the
// kernel takes the extents as arguments.
func cudaSplitScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, ok := dims(n.In(0))
	equal, okParts := equalAlong(n, n.Outputs)
	if !ok || !okParts {
		return false
	}
	const splitInner = 4
	count, axis := len(n.Outputs), axisOf(n, len(x))
	if product(x) == 0 || equal && count <= mostArguments || !equal && count <= splitInner && axis == len(x)-1 {
		return true
	}
	for o := range n.Outputs {
		k.take(o)
	}
	tables(k, int64(count), x[axis], equal, 3)
	return true
}

// tables borrows those of a concatenation or of a split, the one of extents as number
// extents.
func tables(k *Kernel, parts, extent int64, equal bool, extents int) {
	if equal {
		k.borrow(parts * addressBytes)
		return
	}
	list := []int64{parts, parts, parts}
	list = slices.Insert(list, min(extents+1, len(list)), extent)
	for _, elements := range list {
		k.borrow(elements * addressBytes)
	}
}

func axisOf(n *onnx.Node, rank int) int {
	axis, _ := onnx.Axis(n.Int("axis", 0), rank)
	return min(max(axis, 0), max(rank-1, 0))
}

// equalAlong reports that the values have the same extent along the node's axis.
func equalAlong(n *onnx.Node, values []*onnx.Value) (equal, ok bool) {
	first := int64(-1)
	equal = true
	for _, v := range values {
		d, ok := dims(v)
		if !ok || len(d) == 0 {
			return false, false
		}
		at := d[axisOf(n, len(d))]
		equal = equal && (first < 0 || first == at)
		first = at
	}
	return equal, true
}

// cudaGatherNDScratch: where each slice begins.
func cudaGatherNDScratch(n *onnx.Node, _ int, k *Kernel) bool {
	i, ok := dims(n.In(1))
	if !ok || len(i) == 0 {
		return false
	}
	k.take(0)
	k.borrow(product(i[:len(i)-1]) * addressBytes)
	return true
}

// cudaDropoutScratch: in training, a mask that nobody asked for.
func cudaDropoutScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, ok := dims(n.In(0))
	training := n.In(2)
	if training == nil || n.Out(1) != nil {
		return ok
	}
	trains, known := number(training)
	if !known || !ok {
		return false
	}
	if trains != 0 {
		k.take(0)
		k.borrow(product(x))
	}
	return true
}

// cudaBatchNormScratch: of half types, scale, bias, mean and variance in float.
func cudaBatchNormScratch(n *onnx.Node, _ int, k *Kernel) bool {
	if n.Int("training_mode", 0) != 0 {
		return false
	}
	x, ok := dims(n.In(0))
	if !ok || len(x) < 2 {
		return false
	}
	if halfType(n.In(0)) {
		k.take(0)
		for range 4 {
			k.borrow(x[1] * floatBytes)
		}
	}
	return true
}

// cudaInstanceNormScratch: of one image, scale and bias in float for half types; of more,
// statistics of each, and scale and bias repeated.
func cudaInstanceNormScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, ok := dims(n.In(0))
	if !ok || len(x) < 2 {
		return false
	}
	count, size := 4, x[0]*x[1]*floatBytes
	if x[0] == 1 {
		count = 0
		if halfType(n.In(0)) {
			count = 2
		}
	}
	k.take(0)
	for range count {
		k.borrow(size)
	}
	return true
}

// mostSorted is the extent up to which TopK sorts within one block.
const mostSorted = 4096

func cudaTopKScratch(n *onnx.Node, _ int, _ *Kernel) bool {
	x, ok := dims(n.In(0))
	axis, has := onnx.Axis(n.Int("axis", -1), len(x))
	return ok && has && x[axis] <= mostSorted
}

// cudaConvScratch: cuDNN's workspace.
func cudaConvScratch(n *onnx.Node, _ int, k *Kernel) bool {
	k.take(0)
	k.library(n)
	return true
}

// gatesOf are the gates of recurrences.
var gatesOf = map[string]int64{"LSTM": 4, "GRU": 3, "RNN": 1}

// dropoutStates is what cuDNN keeps for a recurrence's dropout, in bytes, which none has here:
// as read on an H200, of 132 multiprocessors.
const dropoutStates = 132 * 48 << 10

// cudaRecurrentScratch: the samples' lengths, the input backwards, a result that nobody reads, all
// weights in cuDNN's layout, its workspace, and the result of a backward direction as cuDNN
// has it. The session keeps the states of a dropout, and weights that are constant.
// Weakness: lengths that are given, some of which may be zero.
func cudaRecurrentScratch(n *onnx.Node, _ int, k *Kernel) bool {
	r, ok := recurrentSizes(n)
	if !ok || n.In(4) != nil {
		return false
	}
	const lengthBytes = 4
	size := elementBytes(n.In(0))
	directions := int64(len(r.directions))
	backward := r.directions[directions-1]
	result := r.seq * r.batch * directions * r.hidden * size
	weights := directions * gatesOf[n.OpType()] * r.hidden * (r.input + r.hidden + 2) * size

	k.borrow(r.batch * lengthBytes)
	for o := range n.Returns() {
		k.take(o)
	}
	if backward && directions == 1 {
		k.borrow(r.seq * r.batch * r.input * size)
	}
	if n.Out(0) == nil {
		k.borrow(result)
	}
	k.Held = []int64{dropoutStates}
	if n.In(1).Fixed() && n.In(2).Fixed() {
		k.Held = append(k.Held, weights)
	} else {
		k.borrow(weights)
	}
	if held := k.library(n); held > 0 {
		k.Held[0] = held
	}
	if backward && n.Out(0) != nil {
		k.borrow(result)
	}
	return true
}
