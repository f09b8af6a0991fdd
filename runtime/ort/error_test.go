package ort

import "testing"

// TestErrorText: what a user reads of an error has no place in ONNX Runtime's
// sources, neither a line nor a function.
func TestErrorText(t *testing.T) {
	for _, c := range []struct{ given, want string }{
		{"Load model from a.onnx failed:onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&, const onnxruntime::logging::Logger&) Unsupported model IR version: 99, max supported IR version: 13\n",
			"Load model from a.onnx failed: Unsupported model IR version: 99, max supported IR version: 13"},
		{"/onnxruntime_src/onnxruntime/core/framework/op_kernel.cc:83 virtual OrtValue* onnxruntime::OpKernelContext::OutputMLValue(int, const onnxruntime::TensorShape&) status.IsOK() was false. shape {4}",
			"status.IsOK() was false. shape {4}"},
		{"/onnxruntime_src/core/bfc_arena.cc:359 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory for requested buffer of size 64",
			"Failed to allocate memory for requested buffer of size 64"},
		{"Non-zero status code returned while running Gather node. Name:'tokens' Status Message: idx=9 (must be in [0,8])",
			"Non-zero status code returned while running Gather node. Name:'tokens' Status Message: idx=9 (must be in [0,8])"},
	} {
		if got := newError(Fail, c.given).Message; got != c.want {
			t.Errorf("%q:\n got %q\nwant %q", c.given, got, c.want)
		}
	}
}
