package quantize

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// A Kind is the integer type that frozen weights are held in, as --quantize-frozen
// names it; "" for none.
type Kind string

// The kinds.
const (
	None Kind = ""
	Int8 Kind = "int8"
	Int4 Kind = "int4"
)

// ParseKind reads what --quantize-frozen says.
func ParseKind(s string) (Kind, error) {
	switch k := Kind(s); k {
	case None, Int8, Int4:
		return k, nil
	}
	return None, fmt.Errorf("--quantize-frozen %q: want int8 or int4", s)
}

// dtype is the element type of the codes.
func (k Kind) dtype() onnx.DType {
	if k == Int4 {
		return onnx.Int4
	}
	return onnx.Int8
}

// block is the number of weights that share a scale; docs/results/quantize.md has the
// errors of others.
func (k Kind) block() int64 {
	if k == Int4 {
		return 32
	}
	return 64
}

// extreme is the code of a block's value of largest magnitude.
func (k Kind) extreme() float32 {
	if k == Int4 {
		return -8
	}
	return 127
}

// limits are the least and the largest code.
func (k Kind) limits() (low, high float64) {
	if k == Int4 {
		return -8, 7
	}
	return -127, 127
}

// put writes code i; the codes are zero before.
func (k Kind) put(codes []byte, i int64, code int8) {
	if k == Int4 {
		codes[i/2] |= byte(code) & 15 << (4 * (i % 2))
		return
	}
	codes[i] = byte(code)
}
