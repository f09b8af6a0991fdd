package traits

import (
	"math/bits"

	"github.com/onnx-remat/remat/onnx"
)

// dftScratch: lengths that are powers of two are transformed in place of the
// output. Others go through Bluestein's convolution of m places, a power of two
// of at least 2n-1: the padded chirp, which is given back, and the transforms of
// both, then for each signal two buffers in turn. Complex numbers throughout.
// Source: discrete_fourier_transform, dft_bluestein_z_chirp.
func dftScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, ok := dims(n.In(0))
	if !ok {
		return false
	}
	length, ok := dftLength(n, x)
	if !ok || length < 1 || product(x) == 0 {
		return false
	}
	axis, _ := dftAxis(n, len(x))
	k.bluestein(length, product(x)/x[axis]/x[len(x)-1], elementBytes(n.In(0)))
	return true
}

// stftScratch transforms each frame so.
func stftScratch(n *onnx.Node, _ int, k *Kernel) bool {
	y, ok := dims(n.Out(0))
	if !ok || len(y) != 4 {
		return false
	}
	var length int64
	if v := n.In(3); v != nil {
		var size float64
		size, ok = number(v)
		length = int64(size)
	} else if w, known := dims(n.In(2)); known && len(w) == 1 {
		length = w[0]
	}
	if !ok || length < 1 {
		return false
	}
	k.bluestein(length, y[0]*y[1], elementBytes(n.In(0)))
	return true
}

// bluestein is what transforms of so many signals of a length hold.
func (k *Kernel) bluestein(length, signals, element int64) {
	if length&(length-1) == 0 || signals == 0 {
		return
	}
	m := int64(1) << bits.Len64(uint64(2*length-2))
	size := 2 * element * m
	k.take(0)
	padded := k.borrow(size)
	k.borrow(size)
	transform := k.borrow(size)
	k.giveBack(padded)
	// The buffers of later signals take the places of the first ones'.
	for range min(signals, mostSignals) {
		a, b := k.borrow(size), k.borrow(size)
		k.giveBack(b, a)
	}
	k.giveBack(transform)
}

// mostSignals bounds how many are listed.
const mostSignals = 64

// dftAxis is an input since opset 20, before an attribute.
func dftAxis(n *onnx.Node, rank int) (int, bool) {
	a := int64(1)
	switch v := n.In(2); {
	case v != nil:
		s, ok := number(v)
		if !ok {
			return 0, false
		}
		a = int64(s)
	case n.Has("axis"):
		a = n.Int("axis", 1)
	case rank != 3: // 1 before opset 20, -2 since
		return 0, false
	}
	axis, ok := onnx.Axis(a, rank)
	return axis, ok && axis < rank-1
}

func dftLength(n *onnx.Node, x []int64) (int64, bool) {
	axis, ok := dftAxis(n, len(x))
	if v := n.In(1); v != nil {
		length, known := number(v)
		return int64(length), ok && known
	}
	if !ok {
		return 0, false
	}
	if n.Int("inverse", 0) != 0 && n.Int("onesided", 0) != 0 {
		return 2 * (x[axis] - 1), true
	}
	return x[axis], true
}
