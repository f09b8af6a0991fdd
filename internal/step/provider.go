package step

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
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
}

// The providers that are modelled. What CUDA's kernels do is read in their
// sources, and not measured.
var (
	CPU  = &Provider{Name: "cpu", traits: traits.Of, scratch: traits.Scratch, Packs: true, Widens: true}
	CUDA = &Provider{Name: "cuda", traits: traits.OfCUDA, scratch: func(n *onnx.Node, _ int) (*traits.Kernel, bool) { return traits.ScratchCUDA(n) }}
)
