package traits

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// Convolutions expand windows into a matrix (im2col) in a working buffer:
//
//	pointwise, or the kernel covers a whole axis   none, the input is it
//	more filters than output places                the whole matrix
//	otherwise                                      one tile per thread
//
// Threads share out images and groups, or the places of a single one.
//
// Source: MLAS, MlasConvPrepare; constants as in 1.31.1.

const (
	convTile           = 128 * 128 * 4 // bytes per thread
	convThreadWork     = 64 * 1024     // multiply-adds worth a thread
	convMostThreads    = 16
	convThreadAlign    = 16 // places
	floatBytes         = 4
	maximumMlasSpatial = 3
)

// window is a convolution's geometry, outermost dimension first.
type window struct {
	in, out, kernel, strides, dilations []int64
	padded                              bool
	group                               int64
}

// convWindow reads a convolution's geometry and the shapes of its input x and
// filters f; false where one is not static.
func convWindow(n *onnx.Node) (w window, x, f []int64, ok bool) {
	x, okX := dims(n.In(0))
	f, okW := dims(n.In(1))
	y, okY := dims(n.Out(0))
	if !okX || !okW || !okY || len(x) < 3 || len(x) != len(f) || len(y) != len(x) {
		return w, nil, nil, false
	}
	w = window{in: x[2:], out: y[2:], kernel: f[2:], strides: ones(n.Ints("strides"), len(x)-2),
		dilations: ones(n.Ints("dilations"), len(x)-2), group: max(1, n.Int("group", 1))}
	if len(w.strides) != len(w.in) || len(w.dilations) != len(w.in) {
		return w, nil, nil, false
	}
	for _, p := range n.Ints("pads") {
		w.padded = w.padded || p != 0
	}
	if KeepsExtents(n.Str("auto_pad", "NOTSET")) {
		for i := range w.in {
			full := (w.out[i]-1)*w.strides[i] + (w.kernel[i]-1)*w.dilations[i] + 1
			w.padded = w.padded || full > w.in[i]
		}
	}
	return w, x, f, true
}

// ones is the list, or n ones in the place of none.
func ones(list []int64, n int) []int64 {
	if list != nil {
		return list
	}
	list = make([]int64, n)
	for i := range list {
		list[i] = 1
	}
	return list
}

func allOne(list []int64) bool {
	return !slices.ContainsFunc(list, func(v int64) bool { return v != 1 })
}

// convScratch is the working buffer of Conv: see the head of the file.
func convScratch(n *onnx.Node, threads int, k *Kernel) bool {
	w, x, f, ok := convWindow(n)
	if !ok {
		return false
	}
	y, _ := dims(n.Out(0))
	if product(y) == 0 {
		return true
	}
	channels, filters := x[1]/w.group, f[0]/w.group
	places, depth := product(w.out), channels*product(w.kernel)
	var bytes int64
	switch {
	case len(w.in) > maximumMlasSpatial:
		bytes = depth * places * floatBytes
	case w.direct(channels, depth):
	case filters > places:
		bytes = places * depth * floatBytes
	default:
		tiles := min(x[0]*w.group, max(1, int64(threads)))
		if x[0]*w.group == 1 {
			tiles = convThreads(filters, places, depth, threads)
		}
		bytes = tiles * convTile
	}
	if bytes > 0 {
		k.take(0)
		k.borrow(bytes)
	}
	return true
}

// direct reports a convolution that is a matrix product as it stands.
func (w *window) direct(channels, depth int64) bool {
	if !allOne(w.strides) || w.padded {
		return false
	}
	if depth == channels {
		return true
	}
	if channels != 1 || len(w.in) > 2 || !allOne(w.dilations) {
		return false
	}
	kh, ih := int64(1), int64(1)
	last := len(w.in) - 1
	if last == 1 {
		kh, ih = w.kernel[0], w.in[0]
	}
	return w.kernel[last] == w.in[last] || kh == ih && w.kernel[last] == 1
}

// convThreads is how many threads share the output's places.
func convThreads(filters, places, depth int64, threads int) int64 {
	want := int64(convMostThreads)
	work := float64(filters) * float64(places) * float64(depth)
	if work < convThreadWork*convMostThreads {
		want = int64(work/convThreadWork) + 1
	}
	want = min(want, max(1, int64(threads)))
	stride := (places + want - 1) / want
	if want > 1 {
		stride = (stride + convThreadAlign - 1) / convThreadAlign * convThreadAlign
		if stride >= places {
			want = 1
		} else if stride*(want-1) >= places {
			want--
		}
	}
	return want
}

// convTransposeScratch is the matrix of one image, before it is added up into the
// output.
func convTransposeScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, okX := dims(n.In(0))
	f, okW := dims(n.In(1))
	if !okX || !okW || len(x) < 3 || len(f) != len(x) {
		return false
	}
	k.take(0)
	k.borrow(f[1] * product(f[2:]) * product(x[2:]) * floatBytes)
	return true
}
