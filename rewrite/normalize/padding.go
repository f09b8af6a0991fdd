package normalize

// Convolutions with dilations whose padding is to keep the extents are given that padding as
// numbers: ONNX Runtime has no kernel for them otherwise ("Dilation not supported for
// AutoPadType::SAME_UPPER"), though TorchScript's exporter writes them of padding="same".
//
// So are transposed convolutions that are given their output's extents: where one is less than the
// input's, ONNX Runtime takes the output for one without any axis from there on.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

func paddings(s *state) error {
	for _, n := range s.nodes() {
		if n.Is("ConvTranspose") && n.Has("output_shape") {
			s.croppedByPads(n)
			continue
		}
		mode, dilations := n.Str("auto_pad", "NOTSET"), n.Ints("dilations")
		apart := slices.ContainsFunc(dilations, func(d int64) bool { return d != 1 })
		if !n.Is("Conv") || !apart || !traits.KeepsExtents(mode) {
			continue
		}
		if pads := keepingPads(n, mode, dilations); pads != nil {
			n.RemoveAttr("auto_pad")
			n.SetAttr(onnx.IntsAttr("pads", pads...))
			s.count++
		}
	}
	return nil
}

// croppedByPads gives a transposed convolution pads in place of its output's extents.
func (s *state) croppedByPads(n *onnx.Node) {
	pads := traits.TransposedPads(n)
	if pads == nil || slices.Min(pads) < 0 {
		return // longer than its windows reach
	}
	n.RemoveAttr("output_shape")
	n.RemoveAttr("auto_pad")
	n.SetAttr(onnx.IntsAttr("pads", pads...))
	s.count++
}

// keepingPads are a convolution's pads, those before each axis and then those behind, with which
// it makes one element of each stride; nil where an extent that they depend on is not known.
func keepingPads(n *onnx.Node, mode string, dilations []int64) []int64 {
	x, kernel, strides := n.In(0), n.Ints("kernel_shape"), n.Ints("strides")
	axes := len(dilations)
	if len(kernel) == 0 && rank(n.In(1)) == axes+2 {
		kernel, _ = n.In(1).Type.Shape[2:].Ints()
	}
	if len(strides) == 0 {
		strides = slices.Repeat([]int64{1}, axes)
	}
	if len(kernel) != axes || len(strides) != axes || rank(x) != axes+2 {
		return nil
	}
	pads := make([]int64, 2*axes)
	for i := range axes {
		in, known := x.Type.Shape[i+2].Int()
		if strides[i] == 1 {
			in = 1 // as for any other
		} else if !known {
			return nil
		}
		out := (in + strides[i] - 1) / strides[i]
		total := (out-1)*strides[i] + (kernel[i]-1)*dilations[i] + 1 - in
		pads[i], pads[axes+i] = traits.SplitPads(max(total, 0), mode)
	}
	return pads
}
