package normalize

// EyeLike has kernels for the types that numeric lists here, of what it reads and of what it makes;
// a mask, as TorchScript's exporter writes torch.eye(n, dtype=torch.bool), is made of one that has:
//
//	EyeLike(x) {dtype=bool}   ─▶   Cast(EyeLike(x) {dtype=int32}) {to=bool}

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func eyes(s *state) error {
	numeric := []onnx.DType{onnx.Float32, onnx.Float64, onnx.Int32, onnx.Int64, onnx.Uint64}
	has := func(v *onnx.Value) bool { return slices.Contains(numeric, v.Type.DType) }
	for _, n := range s.nodes() {
		if !n.Is("EyeLike") {
			continue
		}
		x, y := n.In(0), n.Out(0)
		if x.Type.DType == onnx.Float16 && (has(y) || y.Type.DType == onnx.Float16) || has(x) && has(y) {
			continue // ONNX Runtime itself casts a float16
		}
		s.scope(n)
		if !has(x) {
			x = s.b.Op("Cast", build.In(x), onnx.IntAttr("to", int64(onnx.Int32))) // for its shape
		}
		eye := s.b.Op("EyeLike", build.In(x), onnx.IntAttr("dtype", int64(onnx.Int32)), onnx.IntAttr("k", n.Int("k", 0)))
		s.replace(y, s.b.Op("Cast", build.In(eye), onnx.IntAttr("to", int64(y.Type.DType))), n)
	}
	return nil
}
