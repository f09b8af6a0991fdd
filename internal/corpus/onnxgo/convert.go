package onnxgo

import (
	"encoding/binary"
	"fmt"
	"reflect"

	"github.com/onnx-remat/remat/onnx"
)

// elements lists the values of a backing slice, or the one value that a tensor
// of one element gives back.
func elements(data any) ([]reflect.Value, error) {
	v := reflect.ValueOf(data)
	if v.Kind() != reflect.Slice {
		return []reflect.Value{v}, nil
	}
	out := make([]reflect.Value, v.Len())
	for i := range out {
		out[i] = v.Index(i)
	}
	return out, nil
}

// encode writes the values as a tensor of element type d.
func encode(d onnx.DType, values []reflect.Value, dims []int64) (*onnx.Tensor, error) {
	if d.IsFloat() {
		floats := make([]float64, len(values))
		for i, v := range values {
			if !v.CanFloat() {
				return nil, fmt.Errorf("%s where %s is declared", v.Kind(), d)
			}
			floats[i] = v.Float()
		}
		return onnx.FloatTensor(d, floats, dims...), nil
	}
	if !d.IsInt() && d != onnx.Bool {
		return nil, fmt.Errorf("%s is declared", d)
	}
	var data []byte
	for _, v := range values {
		n, err := integer(v, len(values) == 1)
		if err != nil {
			return nil, fmt.Errorf("%w where %s is declared", err, d)
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		data = append(data, b[:d.Size()]...)
	}
	return onnx.NewTensor(d, dims, data), nil
}

// integer reads a whole number. A lone one may stand as a float: that is how
// the cases hold tensors of one element, of whatever type.
func integer(v reflect.Value, lone bool) (int64, error) {
	switch {
	case v.CanInt():
		return v.Int(), nil
	case v.CanUint():
		return int64(v.Uint()), nil
	case v.Kind() == reflect.Bool:
		if v.Bool() {
			return 1, nil
		}
		return 0, nil
	}
	if lone && v.CanFloat() && v.Float() == float64(int64(v.Float())) {
		return int64(v.Float()), nil
	}
	return 0, fmt.Errorf("%s", v.Kind())
}
