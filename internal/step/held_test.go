package step

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestHeld: a small constant of the file itself is the session's, so it is not counted as a
// parameter too, and texts are no buffer.
func TestHeld(t *testing.T) {
	g := &onnx.Graph{}
	add := func(name string, t *onnx.Tensor) *onnx.Value {
		v := &onnx.Value{Name: name, Type: t.Type(), Init: t}
		g.Initializers = append(g.Initializers, v)
		return v
	}
	of := func(elements int64) *onnx.Tensor {
		return onnx.NewTensor(onnx.Float32, []int64{elements}, make([]byte, 4*elements))
	}
	small, large := add("small", of(31)), add("large", of(32))
	mapped := add("mapped", onnx.ExternalTensor("mapped", onnx.Float32, []int64{1}, "w.bin", 0, 4))
	fed := add("fed", of(64))
	add("texts", onnx.NewTensor(onnx.String, []int64{64}, nil))
	if !Copied(small) || Copied(large) || Copied(mapped) {
		t.Error("124 bytes of the file are copied, and neither 128 nor those of a file of their own")
	}
	if n, err := Held(g, func(v *onnx.Value) bool { return v == fed }); err != nil || n != 128+4 {
		t.Errorf("%d bytes held, %v", n, err)
	}
}
