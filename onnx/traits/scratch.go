package traits

import "github.com/onnx-remat/remat/onnx"

// What kernels allocate inside, read off ONNX Runtime's CPU kernels and
// checked against the counting allocator. The figures are for float kernels
// where only those exist; sizes are bytes.

// An Act is one step of a kernel's dealings with the allocator.
type Act struct {
	Kind ActKind
	// Index is an output's position (Take) or a place in Kernel.Sizes.
	Index int
	// Unstreamed: see ortmodel.Act.
	Unstreamed bool
}

// An ActKind says what a kernel does in one Act.
type ActKind uint8

const (
	// Take asks for an output.
	Take ActKind = iota
	// Borrow allocates a buffer of the kernel's own.
	Borrow
	// GiveBack releases it.
	GiveBack
)

// A Kernel is a run of a kernel as the allocator sees it. What Acts leaves
// out comes after it: outputs in order, then releases, last borrowed first.
type Kernel struct {
	Sizes []int64
	Acts  []Act
	// Library lists those of Sizes that only a library knows, on the device. Noted: they
	// were measured; else they are 0.
	Library []int
	Noted   bool
	// Held are what the session keeps for the node from its start on, on the device.
	Held []int64
	// unstreamed: what is borrowed next is asked for in no stream's name.
	unstreamed bool
}

func (k *Kernel) borrow(bytes int64) int {
	k.Sizes = append(k.Sizes, bytes)
	k.Acts = append(k.Acts, Act{Kind: Borrow, Index: len(k.Sizes) - 1, Unstreamed: k.unstreamed})
	return len(k.Sizes) - 1
}

func (k *Kernel) take(outputs ...int) {
	for _, o := range outputs {
		k.Acts = append(k.Acts, Act{Kind: Take, Index: o})
	}
}

func (k *Kernel) giveBack(places ...int) {
	for _, p := range places {
		if p >= 0 {
			k.Acts = append(k.Acts, Act{Kind: GiveBack, Index: p})
		}
	}
}

// scratchRule fills in the kernel; false where a size is not known.
type scratchRule func(n *onnx.Node, threads int, k *Kernel) bool

var scratchRules = map[key]scratchRule{
	{"", "Where"}:                        whereScratch,
	{"", "Max"}:                          variadicScratch,
	{"", "Min"}:                          variadicScratch,
	{"", "Sum"}:                          variadicScratch,
	{"", "Mean"}:                         variadicScratch,
	{"", "Softmax"}:                      softmaxScratch,
	{"", "LogSoftmax"}:                   softmaxScratch,
	{"", "Hardmax"}:                      softmaxScratch,
	{"", "Multinomial"}:                  multinomialScratch,
	{"", "MeanVarianceNormalization"}:    meanVarianceScratch,
	{"", "LRN"}:                          lrnScratch,
	{"", "LayerNormalization"}:           normScratch,
	{"", "RMSNormalization"}:             normScratch,
	{"", "SimplifiedLayerNormalization"}: normScratch,
	{"com.microsoft", "SkipLayerNormalization"}:           skipNormScratch,
	{"com.microsoft", "SkipSimplifiedLayerNormalization"}: skipNormScratch,
	{"com.microsoft", "BiasGelu"}:                         biasGeluScratch,
	{"com.microsoft", "FastGelu"}:                         biasGeluScratch,
	{"", "BatchNormalization"}:                            batchNormScratch,
	{"", "Conv"}:                                          convScratch,
	{"com.microsoft", "FusedConv"}:                        convScratch,
	{"", "ConvTranspose"}:                                 convTransposeScratch,
	{"", "LSTM"}:                                          lstmScratch,
	{"", "GRU"}:                                           gruScratch,
	{"", "RNN"}:                                           rnnScratch,
	{"", "Resize"}:                                        resizeScratch,
	{"", "Upsample"}:                                      resizeScratch,
	{"", "Einsum"}:                                        einsumScratch,
	{"", "DFT"}:                                           dftScratch,
	{"", "STFT"}:                                          stftScratch,
	{"", "Attention"}:                                     attentionScratch,
}

// Scratch returns what the node's kernel allocates inside when ONNX Runtime
// runs it with so many threads; nil if nothing. It is false when the operator
// allocates but its sizes are not static, or no rule for it is known.
func Scratch(n *onnx.Node, threads int) (*Kernel, bool) {
	rule, ok := scratchRules[key{n.Domain(), n.OpType()}]
	if !ok {
		t, known := Of(n)
		return nil, known && !t.Inner
	}
	var k Kernel
	if !rule(n, threads, &k) {
		return nil, false
	}
	if len(k.Acts) == 0 {
		return nil, true
	}
	return &k, true
}

// dims returns a value's static extents.
func dims(v *onnx.Value) ([]int64, bool) {
	if v == nil || !v.Type.Ranked {
		return nil, false
	}
	return v.Type.Shape.Ints()
}

// elementBytes is the size of one element of v.
func elementBytes(v *onnx.Value) int64 {
	b, _ := onnx.TensorOf(v.Type.DType, onnx.StaticShape(1)).Bytes()
	return b
}

func product(dims []int64) int64 {
	p := int64(1)
	for _, d := range dims {
		p *= d
	}
	return p
}

// broadcast is the shape of an elementwise operation of two shapes.
func broadcast(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := append([]int64(nil), a...)
	for i := range b {
		if at := len(a) - len(b) + i; out[at] == 1 {
			out[at] = b[i]
		}
	}
	return out
}

// whereScratch: both branches are spread over the condition before they are
// merged.
func whereScratch(n *onnx.Node, _ int, k *Kernel) bool {
	c, ok0 := dims(n.In(0))
	x, ok1 := dims(n.In(1))
	y, ok2 := dims(n.In(2))
	if !ok0 || !ok1 || !ok2 {
		return false
	}
	size := elementBytes(n.In(1))
	k.borrow(product(broadcast(c, x)) * size)
	k.borrow(product(broadcast(c, y)) * size)
	k.take(0)
	return true
}

// variadicScratch: n inputs are folded pairwise, with a buffer between.
func variadicScratch(n *onnx.Node, _ int, k *Kernel) bool {
	if len(n.Inputs) < 3 {
		return true
	}
	shape, ok := dims(n.In(0))
	last := -1
	for i := 1; ok && i < len(n.Inputs); i++ {
		var s []int64
		if s, ok = dims(n.In(i)); !ok {
			break
		}
		shape = broadcast(shape, s)
		if i == len(n.Inputs)-1 {
			k.take(0)
			break
		}
		next := k.borrow(product(shape) * elementBytes(n.In(0)))
		k.giveBack(last)
		last = next
	}
	return ok
}

// softmaxScratch: off the last axis, input and result are transposed.
func softmaxScratch(n *onnx.Node, _ int, k *Kernel) bool {
	s, ok := dims(n.In(0))
	if !ok {
		return false
	}
	if axis, _ := onnx.Axis(n.Int("axis", -1), len(s)); len(s) == 0 || axis == len(s)-1 {
		return true
	}
	bytes := product(s) * elementBytes(n.In(0))
	k.take(0)
	k.borrow(bytes)
	k.borrow(bytes)
	return true
}

// multinomialScratch: the sums of a row's probabilities, in float64.
func multinomialScratch(n *onnx.Node, _ int, k *Kernel) bool {
	s, ok := dims(n.In(0))
	if !ok || len(s) == 0 {
		return false
	}
	k.take(0)
	k.borrow(8 * s[len(s)-1])
	return true
}

// meanVarianceScratch: softmaxScratch's, unless the axes are the last ones.
func meanVarianceScratch(n *onnx.Node, _ int, k *Kernel) bool {
	s, ok := dims(n.In(0))
	if !ok {
		return false
	}
	axes := n.Ints("axes")
	if axes == nil {
		axes = []int64{0, 2, 3}
	}
	inner := make([]bool, len(s))
	for _, a := range axes {
		if k, ok := onnx.Axis(a, len(s)); ok {
			inner[k] = true
		}
	}
	transposed := false
	for i := 1; i < len(s); i++ {
		transposed = transposed || inner[i-1] && !inner[i]
	}
	if transposed {
		bytes := product(s) * elementBytes(n.In(0))
		k.take(0)
		k.borrow(bytes)
		k.borrow(bytes)
	}
	return true
}

// lrnScratch: the scale, and one image's squares with the channels padded.
func lrnScratch(n *onnx.Node, _ int, k *Kernel) bool {
	s, ok := dims(n.In(0))
	if !ok || len(s) != 4 {
		return false
	}
	k.take(0)
	k.borrow(product(s) * 4)
	k.borrow((s[1] + n.Int("size", 1) - 1) * s[2] * s[3] * 4)
	return true
}

// batchNormScratch: in training, the batch's own mean and variance.
func batchNormScratch(n *onnx.Node, _ int, k *Kernel) bool {
	if n.Int("training_mode", 0) == 0 {
		return true
	}
	s, ok := dims(n.In(0))
	if !ok || len(s) < 2 || n.In(3) == nil {
		return false
	}
	bytes := s[1] * elementBytes(n.In(3))
	k.take(0)
	k.borrow(bytes)
	k.borrow(bytes)
	k.take(1, 2)
	return true
}

// normScratch: in half types, scale and bias are widened to float, unless they
// are constants, which the session holds widened.
func normScratch(n *onnx.Node, _ int, k *Kernel) bool {
	if !halfType(n.In(0)) {
		return true
	}
	k.take(0, 1, 2)
	for i := 1; i <= 2; i++ {
		v := n.In(i)
		if v == nil || v.IsConstant() {
			continue
		}
		d, ok := dims(v)
		if !ok {
			return false
		}
		k.borrow(product(d) * floatBytes)
	}
	return true
}

// biasGeluScratch: the sum with the bias is kept, as the value is needed twice.
func biasGeluScratch(n *onnx.Node, _ int, k *Kernel) bool {
	if n.In(1) == nil {
		return true
	}
	s, ok := dims(n.In(0))
	if !ok {
		return false
	}
	k.take(0)
	k.borrow(product(s) * elementBytes(n.In(0)))
	return true
}

// skipNormScratch: nothing in float; half types are not modelled.
func skipNormScratch(n *onnx.Node, _ int, _ *Kernel) bool { return !halfType(n.In(0)) }

func halfType(v *onnx.Value) bool {
	return v != nil && v.Type.DType.IsHalf()
}
