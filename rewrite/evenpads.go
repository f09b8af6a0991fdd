package rewrite

// A transposed convolution that pads one side more than the other has no kernel on CUDA
// (traits.RefusedByCUDA): it runs on the host, and what it reads and makes is copied
// there and back in every step. It becomes one that pads both sides alike:
//
//	pads [b, e], b > e, output_padding r   ─▶   pads [b, b], output_padding r + b - e
//	else                                   ─▶   pads [m, m], m = min(b, e), and a Slice of what is beyond
//
// output_padding has to be less than the stride.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// EvenPads gives the transposed convolutions of a typed graph padding that CUDA has a
// kernel for.
func EvenPads(g *onnx.Graph, types build.Typer) (Report, error) {
	uneven := func(n *onnx.Node) bool { return n.Is("ConvTranspose") && traits.RefusedByCUDA(n) }
	return replaced("even pads", g, types, uneven, func(b *build.Builder, n *onnx.Node) (why string) {
		t := transposedOf(n)
		if t == nil {
			return "its extents are not known"
		}
		b.From(n, "")
		t.evenPads(b, n)
		return ""
	})
}

// A transposed is what a transposed convolution does along each spatial axis.
type transposed struct {
	out, strides, dilations, rests, before, after []int64
}

// transposedOf reads a node, nil where an extent is not known.
func transposedOf(n *onnx.Node) *transposed {
	if n.In(0) == nil || n.Out(0) == nil {
		return nil
	}
	in, ok := n.In(0).Type.Shape.Ints()
	out, okOut := n.Out(0).Type.Shape.Ints()
	rank := len(in) - 2
	if !ok || !okOut || rank < 1 || len(out) != len(in) {
		return nil
	}
	or := func(name string, v int64) []int64 {
		if list := n.Ints(name); len(list) == rank {
			return slices.Clone(list)
		}
		return slices.Repeat([]int64{v}, rank)
	}
	t := &transposed{
		out: out[2:], strides: or("strides", 1), dilations: or("dilations", 1), rests: or("output_padding", 0),
		before: make([]int64, rank), after: make([]int64, rank),
	}
	pads := n.Ints("pads")
	if n.Str("auto_pad", "NOTSET") != "NOTSET" || n.Has("output_shape") {
		pads = traits.TransposedPads(n)
		if len(pads) == 0 || slices.Min(pads) < 0 {
			return nil
		}
	}
	if len(pads) == 2*rank {
		t.before, t.after = pads[:rank], pads[rank:]
	}
	return t
}

// evenPads replaces the node.
func (t *transposed) evenPads(b *build.Builder, n *onnx.Node) {
	even, rests := slices.Concat(t.before, t.before), slices.Clone(t.rests)
	var starts, ends, axes []int64
	for i, before := range t.before {
		at := before
		if rest, ok := traits.EvenRest(before, t.after[i], rests[i], t.strides[i]); ok {
			rests[i] = rest
		} else {
			at = min(before, t.after[i])
			starts, ends, axes = append(starts, before-at), append(ends, before-at+t.out[i]), append(axes, int64(i+2))
		}
		even[i], even[len(t.before)+i] = at, at
	}
	y := b.Op("ConvTranspose", n.Inputs,
		onnx.IntsAttr("pads", even...), onnx.IntsAttr("strides", t.strides...), onnx.IntsAttr("output_padding", rests...),
		onnx.IntsAttr("dilations", t.dilations...), onnx.IntAttr("group", n.Int("group", 1)))
	if y != nil && len(axes) > 0 {
		y = b.Op("Slice", build.In(y, b.Ints(starts...), b.Ints(ends...), b.Ints(axes...)))
	}
	if y != nil {
		b.Graph.TakeOver(n.Out(0), y)
	}
}
