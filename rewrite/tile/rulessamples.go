package tile

// Rules of operators that work within each sample, along axes of their own.

import (
	"errors"
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// apart: the axis passes on, unless it is one that the operator works along.
func (r *Region) apart(n *onnx.Node, along ...int64) (bool, error) {
	return r.passes(n, func(a int64) error {
		for _, x := range along {
			if isAxis(x, n.Inputs[0], int(a)) {
				return errors.New("works along the split axis")
			}
		}
		return nil
	})
}

// transformed: DFT, along another axis that is constant, -2 where none is given, before opset 20 1. The
// last axis holds real and imaginary parts.
func transformed(r *Region, n *onnx.Node) (bool, error) {
	along := []int64{-1}
	switch axis := n.In(2); {
	case axis != nil:
		of, err := constants(axis)
		if err != nil {
			return false, fmt.Errorf("its axis %w", err)
		}
		along = append(along, of...)
	case n.Has("axis"):
		along = append(along, n.Int("axis", 1))
	default:
		along = append(along, -2, 1)
	}
	return r.apart(n, along...)
}

// attended: Attention of what takes no gradient, by samples. A mask may have one for each, if it has all four axes.
func attended(r *Region, n *onnx.Node) (bool, error) {
	axes := map[*onnx.Value]sharding{}
	for k, v := range n.Reads() {
		if k == 3 && (rank(v) < 4 || v.Type.Shape[0].Is(1)) {
			if err := r.wouldSplit(v); err != nil {
				return false, err
			}
			continue
		}
		axes[v] = 0
	}
	for _, v := range n.Returns() {
		axes[v] = 0
	}
	return r.along(n, axes)
}

// determinant: of the last two axes.
func determinant(r *Region, n *onnx.Node) (bool, error) { return r.apart(n, -2, -1) }

// standardized: MeanVarianceNormalization, over the axes that it names, the batch among them where it
// names none.
func standardized(r *Region, n *onnx.Node) (bool, error) {
	axes := n.Ints("axes")
	if len(axes) == 0 {
		axes = []int64{0, 2, 3}
	}
	return r.apart(n, axes...)
}

// sampled: GridSample, at places of each sample.
func sampled(r *Region, n *onnx.Node) (bool, error) {
	return r.along(n, map[*onnx.Value]sharding{n.Inputs[0]: 0, n.Inputs[1]: 0, n.Outputs[0]: 0})
}

// reversed: ReverseSequence, whose lengths are of the samples where it is these that are divided.
func reversed(r *Region, n *onnx.Node) (bool, error) {
	x, lengths, out := n.Inputs[0], n.Inputs[1], n.Outputs[0]
	batch := sharding(n.Int("batch_axis", 1))
	if r.shardingOf(lengths) >= 0 || r.shardingOf(x) == batch || r.shardingOf(out) == batch {
		return r.along(n, map[*onnx.Value]sharding{x: batch, lengths: 0, out: batch})
	}
	return r.apart(n, n.Int("time_axis", 0))
}

// rotated: RotaryEmbedding, by angles of each sample's tokens, or by a table that the tokens' places
// look up.
func rotated(r *Region, n *onnx.Node) (bool, error) {
	x, places, out := n.Inputs[0], n.In(3), n.Outputs[0]
	axes := map[*onnx.Value]sharding{x: 0, out: 0}
	if places != nil {
		axes[places] = 0
		if err := r.wouldSplit(n.Inputs[1:3]...); err != nil {
			return false, err
		}
	} else {
		axes[n.Inputs[1]], axes[n.Inputs[2]] = 0, 0
	}
	return r.along(n, axes)
}

// encoded: OneHot of divided indices; the new axis stands before or behind.
func encoded(r *Region, n *onnx.Node) (bool, error) {
	indices, out := n.Inputs[0], n.Outputs[0]
	if err := r.wouldSplit(n.Inputs[1:]...); err != nil {
		return false, err
	}
	added := sharding(axisOf(n, -1, out))
	return r.same(indices, out, func(a sharding) (sharding, error) {
		switch from := r.shardingOf(indices) < 0; {
		case from && a == added:
			return 0, errors.New("works along the split axis")
		case from && a > added:
			return a - 1, nil
		case !from && a >= added:
			return a + 1, nil
		}
		return a, nil
	})
}

// along divides values of a node each along its axis, once one of them is known to be divided.
func (r *Region) along(n *onnx.Node, axes map[*onnx.Value]sharding) (changed bool, err error) {
	some := false
	for v := range axes {
		some = some || r.shardingOf(v) >= 0
	}
	if !some {
		return false, nil
	}
	for _, v := range valuesOf(n) {
		axis, divided := axes[v]
		if !divided {
			continue
		}
		more, err := r.set(v, axis)
		if err != nil {
			return false, err
		}
		changed = changed || more
	}
	return changed, nil
}

// multiplied: Einsum, whose letter for the split axis stands for that axis in each operand that
// has it. What remains of them here has no gradient; others were opened.
func multiplied(r *Region, n *onnx.Node) (bool, error) {
	eq, ok := traits.ParseEquation(n.Str("equation", ""))
	if !ok || len(eq.Terms) != len(n.Inputs) {
		return false, errors.New("its equation is none")
	}
	values, terms := append(n.Inputs[:len(n.Inputs):len(n.Inputs)], n.Outputs[0]), append(eq.Terms[:len(eq.Terms):len(eq.Terms)], eq.Result)
	split := ""
	for k, v := range values {
		if a := r.shardingOf(v); a >= 0 {
			split = labelAt(terms[k], rank(v), int(a))
		}
	}
	if split == "" {
		return false, nil
	}
	axes := map[*onnx.Value]sharding{}
	for k, v := range values {
		axis := replicated
		for a := range rank(v) {
			if labelAt(terms[k], rank(v), a) != split || v.Type.Shape[a].Is(1) {
				continue
			}
			if axis != replicated {
				return false, errors.New("takes a diagonal along the split axis")
			}
			axis = sharding(a)
		}
		at, twice := axes[v]
		switch {
		case twice && at != axis:
			return false, fmt.Errorf("reads %q along two axes", v.Name)
		case axis != replicated:
			axes[v] = axis
		case v == n.Outputs[0]:
			return false, errors.New("sums over the split axis")
		default:
			if err := r.wouldSplit(v); err != nil {
				return false, err
			}
		}
	}
	return r.along(n, axes)
}

// labelAt is the letter for an axis of an operand of an Einsum, and for one that the ellipsis stands
// for its place from the right of these.
func labelAt(term string, rank, axis int) string {
	from := strings.IndexByte(term, '.')
	if from < 0 || axis < from {
		if axis >= len(term) {
			return ""
		}
		return term[axis : axis+1]
	}
	wide := rank - len(term) + 1
	if axis < from+wide {
		return fmt.Sprint(from + wide - axis)
	}
	return term[axis-wide+1 : axis-wide+2]
}
