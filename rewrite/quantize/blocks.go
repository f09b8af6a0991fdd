package quantize

// Symmetric blocks along one axis. A weight is seen as outer × axis × inner, and the
// places start … start+block of the axis share a scale for each outer and inner:
//
//	scale = extreme / (number of the type that stands for it)
//	code  = round(value / scale), to the even one of two, clipped to the type
//	value ≈ code · scale
//
// The extreme is the block's value of largest magnitude. In eight bits it stands for
// 127, so that codes are symmetric. In four bits it stands for -8, with a scale of
// the other sign: of sixteen codes none is lost (as in ggml's Q4_0).
//
// Source: DequantizeLinear of ONNX opset 21, y = x · x_scale with block_size; int4 has
// two elements a byte, the first one in the low half.

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// A blocking is how one weight is cut into blocks.
type blocking struct {
	outer, axis, inner int64
	block              int64
}

// cut cuts a tensor of those extents along an axis.
func cut(dims []int64, axis int, block int64) (blocking, error) {
	outer, ok := onnx.Elements(dims[:axis])
	inner, also := onnx.Elements(dims[axis+1:])
	if !ok || !also {
		return blocking{}, fmt.Errorf("extents %v are too large", dims)
	}
	return blocking{outer, dims[axis], inner, block}, nil
}

// blocks is the number of blocks along the axis; the last one may be shorter.
func (b blocking) blocks() int64 { return (b.axis + b.block - 1) / b.block }

// encode returns the codes and scales of float32 data, little-endian; false where an
// element is not finite. Codes have n elements of kind, scales n/block.
func (b blocking) encode(data []byte, kind Kind) (codes, scales []byte, finite bool) {
	n := b.outer * b.axis * b.inner
	codes = make([]byte, (n*int64(kind.dtype().Bits())+7)/8)
	scales = make([]byte, 4*b.outer*b.blocks()*b.inner)
	column := make([]float32, b.inner) // the extremes, then the scales of a row of blocks
	for o := range b.outer {
		for k := range b.blocks() {
			first, last := o*b.axis+k*b.block, o*b.axis+min((k+1)*b.block, b.axis)
			if !b.extremes(data, column, first, last) {
				return nil, nil, false
			}
			for i := range column {
				column[i] /= kind.extreme()
				binary.LittleEndian.PutUint32(scales[4*((o*b.blocks()+k)*b.inner+int64(i)):], math.Float32bits(column[i]))
			}
			b.round(data, codes, column, first, last, kind)
		}
	}
	return codes, scales, true
}

// extremes finds the value of largest magnitude of each block of rows first … last,
// and reports that all are finite.
func (b blocking) extremes(data []byte, column []float32, first, last int64) bool {
	clear(column)
	for r := first; r < last; r++ {
		row := data[4*r*b.inner:]
		for i := range column {
			v := math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
			if abs := math.Abs(float64(v)); !(abs <= math.MaxFloat32) {
				return false
			} else if abs > math.Abs(float64(column[i])) {
				column[i] = v
			}
		}
	}
	return true
}

// round writes the codes of rows first … last.
func (b blocking) round(data, codes []byte, scales []float32, first, last int64, kind Kind) {
	low, high := kind.limits()
	for r := first; r < last; r++ {
		row := data[4*r*b.inner:]
		for i, scale := range scales {
			if scale == 0 { // a block of zeros, or too small for a scale
				continue
			}
			v := math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
			code := int8(min(max(math.RoundToEven(float64(v)/float64(scale)), low), high))
			kind.put(codes, r*b.inner+int64(i), code)
		}
	}
}
