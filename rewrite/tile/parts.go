package tile

// How many parts: the number must divide every extent that is cut, slices must be
// small enough to save memory, and large enough to be fast.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// collectExtents lists the extents that the number of parts has to divide.
func (r *Region) collectExtents() {
	seen := map[int64]bool{}
	for v, c := range r.shardings {
		if c >= 0 {
			d, ok := v.Type.Shape[c].Int()
			if d /= r.stretchesOf(v); ok && !seen[d] {
				seen[d] = true
				r.extents = append(r.extents, d)
			}
		}
	}
	slices.Sort(r.extents)
}

// mostParts bounds the parts of a region to so many times as were wished: with a
// prime extent the next possible number is one part an element.
const mostParts = 4

// Parts returns the smallest possible number of equal parts that is at least
// want and at most mostParts times that; else the largest below, 1 if only the
// whole can be had.
func (r *Region) Parts(want int) int {
	return int(divisor(r.common(), int64(want), mostParts*int64(want)))
}

// common is the greatest common divisor of the extents, 1 where there are none.
func (r *Region) common() int64 {
	if len(r.extents) == 0 {
		return 1
	}
	common := r.extents[0]
	for _, d := range r.extents[1:] {
		for d != 0 {
			common, d = d, common%d
		}
	}
	return common
}

// divisor is the smallest divisor of n from want to most, and where there is
// none, the largest one below want.
func divisor(n, want, most int64) int64 {
	best := int64(1)
	for k := int64(1); k*k <= n; k++ {
		if n%k != 0 {
			continue
		}
		for _, c := range []int64{k, n / k} {
			if c <= most && (c >= want && (best < want || c < best) || c < want && best < want && c > best) {
				best = c
			}
		}
	}
	return best
}

// Auto is the number of parts at which one slice of the logits takes no more
// bytes than the hidden state that it is projected from, at most maxParts; slices
// of fewer rows than that are not made, unless there would be fewer than two. It
// is 1 where slices save nothing.
//
// A slice reads the projection's weights again, 4·V·H bytes for 2·V·H operations a
// row. Measured with ONNX Runtime 1.31 on one core for V = 50257 and H = 768, the
// three products of the loss take 1.08 of the time of whole ones with slices of 256
// rows, 1.21 with 128, 1.44 with 64, 2.0 with 32.
func (r *Region) Auto(rows int) int {
	logits := r.Logits.Type.KnownBytes()
	hidden := int64(0)
	for _, in := range r.Logits.Producer.Reads() {
		if r.shardingOf(in) >= 0 {
			hidden, _ = in.Type.Bytes()
		}
	}
	if hidden <= 0 || logits <= 2*hidden {
		return 1
	}
	dims, _ := r.Logits.Type.Shape.Ints()
	all, _ := onnx.Elements(dims[:len(dims)-1])
	return r.Parts(int(min((logits+hidden-1)/hidden, maxParts, max(all/int64(rows), 2))))
}

// maxParts bounds Auto: below a thirty-second of the logits something else is the
// peak, and each slice adds the nodes of the whole loss once more.
const maxParts = 32

// Reread is how many bytes more are read and written when the region is computed
// in that many parts: what every part's products read whole, and the sums that
// each of them adds to.
func (r *Region) Reread(parts int) int64 {
	once := int64(0)
	for _, n := range r.Nodes {
		if !traits.IsMatrixProduct(n) && !n.Is("Conv", "ConvTranspose", "LSTM", "GRU", "RNN") {
			continue
		}
		for _, v := range n.Inputs {
			if v != nil && r.shardingOf(v) < 0 { // no part of it is enough
				once += v.Type.KnownBytes()
			}
		}
		if r.shardingOf(n.Outputs[0]) == partialSum {
			once += n.Outputs[0].Type.KnownBytes()
		}
	}
	return once * int64(max(parts-1, 0))
}
