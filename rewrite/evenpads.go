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
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// EvenPads gives the transposed convolutions of a typed graph padding that CUDA has a
// kernel for.
func EvenPads(g *onnx.Graph, types build.Typer) (Report, error) {
	r := Report{Pass: "even pads"}
	b := build.New(g, types, r.Pass)
	var gone []*onnx.Node
	for _, n := range g.Nodes {
		if !n.Is("ConvTranspose") || !traits.RefusedByCUDA(n) {
			continue
		}
		r.Requested++
		shape, known := n.Out(0).Type.Shape.Ints()
		switch {
		case n.Has("output_shape") || n.Str("auto_pad", "NOTSET") != "NOTSET":
			r.skip(n.Label(), "its padding follows from the extents that it is to have")
			continue
		case !known || n.In(1) == nil:
			r.skip(n.Label(), "its extents are not known")
			continue
		}
		b.From(n, "")
		evenPads(b, n, shape[2:])
		r.Applied++
		gone = append(gone, n)
	}
	if err := b.Err(); err != nil || len(gone) == 0 {
		return r, err
	}
	b.Flush()
	g.Remove(gone...)
	return r, g.SortTopologically()
}

// evenPads replaces a node whose output has those spatial extents.
func evenPads(b *build.Builder, n *onnx.Node, out []int64) {
	rank := len(out)
	orElse := func(list []int64, v int64) []int64 {
		if len(list) == rank {
			return append([]int64(nil), list...)
		}
		same := make([]int64, rank)
		for i := range same {
			same[i] = v
		}
		return same
	}
	pads, strides, rests := n.Ints("pads"), orElse(n.Ints("strides"), 1), orElse(n.Ints("output_padding"), 0)
	even, starts, ends, axes := make([]int64, 2*rank), []int64{}, []int64{}, []int64{}
	for i := range rank {
		before, after := pads[i], pads[rank+i]
		at := min(before, after)
		if more := before - after; more > 0 && rests[i]+more < strides[i] {
			at, rests[i] = before, rests[i]+more
		} else if before != after {
			starts, ends, axes = append(starts, before-at), append(ends, before-at+out[i]), append(axes, int64(i+2))
		}
		even[i], even[rank+i] = at, at
	}
	attrs := []onnx.Attribute{
		onnx.IntsAttr("pads", even...), onnx.IntsAttr("strides", strides...), onnx.IntsAttr("output_padding", rests...),
		onnx.IntsAttr("dilations", orElse(n.Ints("dilations"), 1)...), onnx.IntAttr("group", n.Int("group", 1)),
	}
	y := b.Op("ConvTranspose", n.Inputs, attrs...)
	if y != nil && len(axes) > 0 {
		y = b.Op("Slice", build.In(y, b.Ints(starts...), b.Ints(ends...), b.Ints(axes...)))
	}
	if y != nil {
		b.Graph.TakeOver(n.Out(0), y)
	}
}
