package runtime

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// ONNX and ONNX Runtime number the element types alike, but for the last three.
var toORT = map[onnx.DType]ort.DType{24: ort.Float8E8M0, 25: ort.Uint2, 26: ort.Int2}

func ortType(d onnx.DType) ort.DType {
	if t, ok := toORT[d]; ok {
		return t
	}
	return ort.DType(d)
}

func onnxType(t ort.DType) onnx.DType {
	for d, u := range toORT {
		if t == u {
			return d
		}
	}
	return onnx.DType(t)
}
