package corpus

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// Tolerances of a comparison: each element may differ by a share of itself and
// by a share of the largest one.
const (
	relative = 1e-3
	absolute = 1e-5
)

// Compare reports how a result differs from what is expected: by type, shape,
// or values beyond the tolerance. Types other than floats must be equal, and so
// must the bytes of types that remat does not compute with.
func Compare(got, want *onnx.Tensor) error {
	if got.DType() != want.DType() || !slices.Equal(got.Dims(), want.Dims()) {
		return fmt.Errorf("got %s%v, want %s%v", got.DType(), got.Dims(), want.DType(), want.Dims())
	}
	a, err := got.Bytes()
	if err != nil {
		return err
	}
	b, err := want.Bytes()
	if err != nil {
		return err
	}
	if bytes.Equal(a, b) {
		return nil
	}
	if want.DType() == float8e5m2 && equalButNaN(a, b) {
		return nil
	}
	if !want.DType().IsFloat() {
		return fmt.Errorf("the %s values differ: % x, want % x", want.DType(), head(a), head(b))
	}
	x, err := got.Float64s()
	if err != nil {
		return err
	}
	y, err := want.Float64s()
	if err != nil {
		return err
	}
	return compareFloats(x, y)
}

func compareFloats(got, want []float64) error {
	largest := 1.0
	for _, w := range want {
		if a := math.Abs(w); !math.IsInf(a, 0) {
			largest = max(largest, a)
		}
	}
	for i, w := range want {
		g := got[i]
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		// Written so that a NaN on one side fails.
		if !(math.Abs(g-w) <= relative*math.Abs(w)+absolute*largest) || math.IsInf(w, 0) {
			return fmt.Errorf("element %d is %g, want %g", i, g, w)
		}
	}
	return nil
}

// float8e5m2 has several bit patterns for NaN.
const float8e5m2 = onnx.DType(19)

func equalButNaN(a, b []byte) bool {
	nan := func(x byte) bool { return x&0x7f > 0x7c }
	return slices.EqualFunc(a, b, func(x, y byte) bool { return x == y || nan(x) && nan(y) })
}

func head(data []byte) []byte { return data[:min(len(data), 16)] }
