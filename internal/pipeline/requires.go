package pipeline

// Which ONNX Runtime a written file needs is in its metadata, for whoever hands
// it on.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// RequiresKey is the metadata entry that says what a file needs to run.
const RequiresKey = "remat.requires"

// Requires is the entry.
type Requires struct {
	// ONNXRuntime is the oldest release that runs the file, "1.18".
	ONNXRuntime string `json:"onnxruntime"`
}

// RequiresOf computes the entry from the file format's version, the opsets, and
// the operators and types of a typed model.
func RequiresOf(m *onnx.Model) Requires { return Requires{needs(m).String()} }

// needs is the oldest release that runs a typed model.
func needs(m *onnx.Model) kernels.Release {
	provider := kernels.CPU
	if p := PrecisionOf(m); p != nil && p.How == "native" {
		provider = kernels.CUDA // its half nodes may have no kernel on the CPU
	}
	return kernels.Needs(m, provider)
}

// SetRequires writes the entry of a typed model.
func SetRequires(m *onnx.Model) error { return m.SetJSON(RequiresKey, RequiresOf(m)) }
