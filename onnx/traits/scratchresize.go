package traits

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// resizeScratch: nothing for a copy, nor where places are found one by one. Linear
// interpolation along two axes keeps two places and two weights for each row and
// column; along three, three words more for each. With antialias each axis has a
// table, as many weights for each of its outputs as its window is wide, and the image
// lies in a buffer between one axis and the next.
func resizeScratch(n *onnx.Node, _ int, k *Kernel) bool {
	x, okX := dims(n.In(0))
	y, okY := dims(n.Out(0))
	mode, smooth := n.Str("mode", "nearest"), n.Int("antialias", 0) != 0
	switch {
	case !smooth && mode != "linear":
		return true
	case !okX || !okY || len(x) != len(y) || len(x) < 2 || len(x) > 5:
		return false
	case slices.Equal(x, y):
		return true
	}
	first, axes := imageAxes(x, y)
	in, out := x[first:first+axes], y[first:first+axes]
	k.take(0)
	if !smooth {
		places := int64(0)
		for _, d := range out {
			places += d
		}
		k.borrow(8 * int64(len(out)) * places)
		return true
	}
	factors, ok := resizeFactors(n, first, in, out)
	if !ok || elementBytes(n.In(0)) != floatBytes || len(x) == 5 && first == 1 {
		return false
	}
	for i := len(out) - 1; i >= 0; i-- {
		k.borrow(resizeWindow(mode, factors[i]) * out[i] * floatBytes)
	}
	between := product(in[:len(in)-1]) * out[len(out)-1] * floatBytes
	if len(x) > 3 {
		between *= product(x) / x[0] / product(in) // channels
	}
	for range len(out) - 1 {
		k.borrow(between)
	}
	return true
}

// imageAxes are those of an image or a volume, perhaps behind a batch and channels.
func imageAxes(x, y []int64) (first, axes int) {
	axes = 2 + len(x)%2
	first = len(x) - axes
	if first == 2 && y[1] != x[1] {
		first = 1 // channels last
	}
	return first, axes
}

// resizeWindow is how many places of the input an antialiased one of the result is made of
// at most, where the axis becomes longer by a factor.
func resizeWindow(mode string, factor float32) int64 {
	reach := map[string]float32{"linear": 1, "cubic": 2}[mode]
	return 2*int64(math.Ceil(float64(reach*max(1/factor, 1)))) + 1
}

// resizeFactors are how much longer the axes from first on become.
func resizeFactors(n *onnx.Node, first int, in, out []int64) ([]float32, bool) {
	factors := make([]float32, len(in))
	for i := range in {
		factors[i] = float32(out[i]) / float32(in[i])
	}
	v := n.In(2)
	if n.In(3) != nil {
		return factors, n.Str("keep_aspect_ratio_policy", "stretch") == "stretch"
	}
	if v == nil || !v.IsConstant() || n.Has("axes") {
		return factors, false
	}
	given, err := v.Init.Float64s()
	if err != nil || len(given) < first+len(in) {
		return factors, false
	}
	for i := range in {
		factors[i] = float32(given[first+i])
	}
	return factors, true
}
