package step

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// A Provider is an execution provider of ONNX Runtime as far as its kernels'
// dealings with memory go. Package traits has the tables.
type Provider struct {
	// Name is what a user calls it.
	Name    string
	traits  func(*onnx.Node) (traits.Traits, bool)
	scratch func(n *onnx.Node, threads int) (*traits.Kernel, bool)
	// Packs: sessions keep copies of constant weights in the kernels' layout.
	Packs bool
	// Widens: ONNX Runtime puts casts to float32 around nodes of half types that
	// have no kernel.
	Widens bool
	// Device: it has memory of its own, which is what counts; see Places.
	Device  bool
	kernels kernels.Provider
	// input and output report positions that a kernel of the device has in the
	// host's memory.
	input, output func(n *onnx.Node, i int) bool
}

// Scratch is what the node's kernel allocates inside; see traits.Scratch.
func (p *Provider) Scratch(n *onnx.Node) (*traits.Kernel, bool) { return p.scratch(n, 1) }

// The providers that are modelled.
var (
	CPU  = &Provider{Name: "cpu", traits: traits.Of, scratch: traits.Scratch, Packs: true, Widens: true, kernels: kernels.CPU}
	CUDA = &Provider{
		Name: "cuda", traits: traits.OfCUDA, Device: true, kernels: kernels.CUDA,
		scratch: func(n *onnx.Node, _ int) (*traits.Kernel, bool) { return traits.ScratchCUDA(n) },
		input:   traits.HostInputCUDA, output: traits.HostOutputCUDA,
	}
)
