package runtime

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// A Tensor is dense data in host memory, little-endian.
type Tensor struct {
	Type  onnx.DType
	Shape []int64
	Data  []byte
}

// String is the type and shape.
func (t Tensor) String() string { return fmt.Sprintf("%s%v", t.Type, t.Shape) }

// equal reports the same type, shape and bytes.
func (t Tensor) equal(o Tensor) bool {
	return t.Type == o.Type && slices.Equal(t.Shape, o.Shape) && bytes.Equal(t.Data, o.Data)
}

// constant is the tensor as constant data of a graph.
func (t Tensor) constant() *onnx.Tensor { return onnx.NewTensor(t.Type, t.Shape, t.Data) }

// Float64s returns the elements as float64.
func (t Tensor) Float64s() ([]float64, error) {
	return t.constant().Float64s()
}

// Scalar returns the element of a tensor that has exactly one.
func (t Tensor) Scalar() (float64, bool) {
	n, ok := onnx.Elements(t.Shape)
	if !ok || n != 1 {
		return 0, false
	}
	return t.constant().Scalar()
}

// FromFloat32s makes a float32 tensor; no dims make a scalar.
func FromFloat32s(values []float32, dims ...int64) Tensor {
	return Tensor{onnx.Float32, dims, onnx.Float32Tensor(values, dims...).Proto.RawData}
}

// FromInt64s makes an int64 tensor; no dims make a scalar.
func FromInt64s(values []int64, dims ...int64) Tensor {
	return Tensor{onnx.Int64, dims, onnx.Int64Tensor(values, dims...).Proto.RawData}
}

// at is element i of a stack of tensors along the leading axis.
func (t Tensor) at(i int) Tensor {
	n := int64(len(t.Data)) / t.Shape[0]
	return Tensor{t.Type, slices.Clone(t.Shape[1:]), t.Data[int64(i)*n : int64(i+1)*n]}
}

// Rounds reports that numbers of one type may be given for another and are rounded to
// it: float32 and float64 for a half type. numpy has no bfloat16 at all.
func Rounds(from, to onnx.DType) bool {
	wide := from == onnx.Float32 || from == onnx.Float64
	return wide && to.IsHalf()
}

// RoundedTo returns t in a type that Rounds allows. A finite number that the type does
// not reach is an error: as an infinity it would make a NaN of the loss.
func (t Tensor) RoundedTo(to onnx.DType) (Tensor, error) {
	const piece = 1 << 16 // elements, as they take more room on the way
	size := int(t.Type.Size())
	rounded := Tensor{to, t.Shape, make([]byte, 0, len(t.Data)/size*int(to.Size()))}
	for data := range slices.Chunk(t.Data, piece*size) {
		n := int64(len(data) / size)
		values, err := onnx.NewTensor(t.Type, []int64{n}, data).Float64s()
		if err != nil {
			return t, err
		}
		part := onnx.FloatTensor(to, values, n)
		after, err := part.Float64s()
		if err != nil {
			return t, err
		}
		for i, x := range after {
			if math.IsInf(x, 0) && !math.IsInf(values[i], 0) {
				return t, fmt.Errorf("%g is beyond the range of %s", values[i], to)
			}
		}
		rounded.Data = append(rounded.Data, part.Proto.RawData...)
	}
	return rounded, nil
}
