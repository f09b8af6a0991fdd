package ort

import (
	"errors"
	"fmt"
	"testing"
)

// TestErrorText: what a user reads of an error has no place in ONNX Runtime's
// sources, neither a line nor a function.
func TestErrorText(t *testing.T) {
	for _, c := range []struct{ given, want string }{
		{"Load model from a.onnx failed:onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&, const onnxruntime::logging::Logger&) Unsupported model IR version: 99, max supported IR version: 13\n",
			"Load model from a.onnx failed: IR version 99 is newer than 13, the newest that this ONNX Runtime opens: use a newer one, or export the model with an older opset"},
		{"Load model from a.onnx failed:/onnxruntime_src/onnxruntime/core/graph/model_load_utils.h:46 void onnxruntime::model_load_utils::ValidateOpsetForDomain(const std::unordered_map<std::__cxx11::basic_string<char>, int>&, const onnxruntime::logging::Logger&, bool, const std::string&, int) ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. Opset 27 is under development and support for this is limited. The operator schemas and or other functionality may change before next ONNX release and in this case ONNX Runtime will not guarantee backward compatibility. Current official support for domain ai.onnx is till opset 26.\n",
			"Load model from a.onnx failed: opset 27 is newer than 26, the newest that this ONNX Runtime opens: use a newer one, or export the model with an older opset"},
		{"/onnxruntime_src/onnxruntime/core/framework/op_kernel.cc:83 virtual OrtValue* onnxruntime::OpKernelContext::OutputMLValue(int, const onnxruntime::TensorShape&) status.IsOK() was false. shape {4}",
			"status.IsOK() was false. shape {4}"},
		{"/onnxruntime_src/core/bfc_arena.cc:359 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory for requested buffer of size 64",
			"Failed to allocate memory for requested buffer of size 64"},
		{"Exception during initialization: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/split.h:113 onnxruntime::SplitBase::SplitBase(const KernelInfoType&, uint32_t) [with KernelInfoType = onnxruntime::OpKernelInfo; uint32_t = unsigned int] If 'num_outputs' is specified, the 'split' input should not be provided.\n",
			"Exception during initialization: If 'num_outputs' is specified, the 'split' input should not be provided."},
		{"Non-zero status code returned while running Gather node. Name:'tokens' Status Message: idx=9 (must be in [0,8])",
			"Non-zero status code returned while running Gather node. Name:'tokens' Status Message: idx=9 (must be in [0,8])"},
	} {
		if got := newError(Fail, c.given).Message; got != c.want {
			t.Errorf("%q:\n got %q\nwant %q", c.given, got, c.want)
		}
	}
}

// TestErrMemory: what ONNX Runtime says when memory ran out is told apart from what
// else it says, also behind a wrapping.
func TestErrMemory(t *testing.T) {
	for message, want := range map[string]bool{
		"Failed to allocate memory for requested buffer of size 4096":                   true,
		"Exception during initialization: std::bad_alloc":                               true,
		"CUDA failure 2: out of memory ; GPU=0":                                         true,
		"Available memory of 1024 is smaller than requested bytes of 4096":              true,
		"Non-zero status code returned while running Add node. Name:'add'":              false,
		"Got invalid dimensions for input: x for the following indices index: 0 Got: 1": false,
	} {
		if got := errors.Is(fmt.Errorf("m.onnx: %w", newError(Fail, message)), ErrMemory); got != want {
			t.Errorf("%q: out of memory %t", message, got)
		}
	}
}
