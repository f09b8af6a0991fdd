package tile

// Parts that are no one piece of an axis. Where the batch is not the first axis, a Reshape merges
// it with those before it, as around the products of nn.MultiheadAttention:
//
//	[tokens, batch, width] ─▶ [tokens·batch, width] ─▶ product ─▶ [tokens, batch, width]
//
// A part of the merged axis is then a piece of each of its stretches, as many as the axes before
// have elements:
//
//	t0b0 t0b1 │ t1b0 t1b1 │ t2b0 t2b1      in two parts: t0b0 t1b0 t2b0 and t0b1 t1b1 t2b1
//
// Row by row it is computed all the same, and sums over it are as complete. So such an axis is
// divided like any other, and its stretches are noted. All that a node reads and returns in parts
// has the same, but for a Reshape, a Split or Concat of whole stretches, and a grouped Conv of
// channels. What comes from outside is taken apart where it is read. Weakness: who joins such an axis
// would have to gather the pieces, so nothing outside the region may.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// stretchesOf is in how many stretches an axis lies that a value is divided along, one as a rule.
func (r *Region) stretchesOf(v *onnx.Value) int64 { return max(r.stretches[v], 1) }

// ruled applies the rule of a node. What it divides then takes over the stretches of what was
// divided before.
func (r *Region) ruled(n *onnx.Node) (bool, error) {
	rule := r.ruleOf(n)
	if len(r.stretches) == 0 || r.arranges(n) {
		return rule(r, n)
	}
	stretches, err := r.stretchesAround(n)
	if err != nil {
		return false, err
	}
	var open []*onnx.Value
	for _, v := range valuesOf(n) {
		if r.shardingOf(v) < 0 {
			open = append(open, v)
		}
	}
	changed, err := rule(r, n)
	for _, v := range open {
		if stretches > 1 && r.shardingOf(v) >= 0 {
			r.stretches[v] = stretches
		}
	}
	return changed, err
}

// stretchesAround are those of all that a node reads and returns in parts.
func (r *Region) stretchesAround(n *onnx.Node) (int64, error) {
	var first *onnx.Value
	for _, v := range valuesOf(n) {
		switch {
		case r.shardingOf(v) < 0:
		case first == nil:
			first = v
		case r.stretchesOf(v) != r.stretchesOf(first):
			return 0, fmt.Errorf("the batch lies otherwise in %q than in %q", first.Name, v.Name)
		}
	}
	return r.stretchesOf(first), nil
}

// valuesOf are what a node reads and returns, and nil for what is left out.
func valuesOf(n *onnx.Node) []*onnx.Value { return slices.Concat(n.Inputs, n.Outputs) }

// arranges reports a node whose rule looks at stretches itself.
func (r *Region) arranges(n *onnx.Node) bool {
	switch {
	case traits.Reshapes(n):
		return true
	case n.Is("Split", "Concat"):
		return r.dividesAlong(n, splitAxis(n))
	case n.Is("Conv"): // of channels
		return r.shardingOf(n.In(0)) == 1 || r.shardingOf(n.In(1)) == 1
	}
	return false
}

// rearranged is reshape where the batch may be merged with axes before it.
func rearranged(r *Region, n *onnx.Node) (bool, error) {
	from, to := n.Inputs[0], n.Outputs[0]
	if r.shardingOf(from) < 0 {
		from, to = to, from
	}
	stretches := int64(1)
	changed, err := r.reshaped(n, func(f, t []int64, a int) (axis int, err error) {
		axis, stretches, err = holding(f, t, a, r.stretchesOf(from))
		return axis, err
	})
	switch {
	case err != nil || r.shardingOf(from) < 0:
	case changed && stretches > 1:
		r.stretches[to] = stretches
	case r.stretchesOf(to) != stretches:
		err = fmt.Errorf("the batch lies otherwise in %q than in %q", to.Name, from.Name)
	}
	return changed, err
}

// holding finds which axis of extents to holds what axis a of from does, which lies in some
// stretches, and in how many it lies there. As many pieces of a part lie apart on either side, and
// pieces of one are whole numbers of pieces of the other. The outermost axis of more than one
// element stays that, whatever its extent is.
func holding(from, to []int64, a int, stretches int64) (axis int, apart int64, err error) {
	if outermost(from) == a && len(to) > 0 && stretches == 1 { // a part is one piece of the whole
		return outermost(to), 1, nil
	}
	if slices.Contains(from, 0) || slices.Contains(to, 0) {
		return 0, 0, fmt.Errorf("nothing is divided")
	}
	before, _ := onnx.Elements(from[:a])
	before, rows := before*stretches, from[a]/stretches
	count := int64(1)
	for axis, d := range to {
		if apart := before / count; before%count == 0 && d%apart == 0 && d > apart && ((d/apart)%rows == 0 || rows%(d/apart) == 0) {
			return axis, apart, nil
		}
		count *= d
	}
	return 0, 0, fmt.Errorf("no axis holds a part of the batch")
}

// stacked divides values that hold whole stretches each: the pieces of a Split, or of a Concat, and
// what they make together. Recurrent networks take the rows of a time so.
func (r *Region) stacked(values []*onnx.Value, axis sharding) (bool, error) {
	rows := int64(0)
	for _, v := range values {
		if v == nil || r.shardingOf(v) < 0 {
			continue
		}
		d, _ := v.Type.Shape[axis].Int()
		if d /= r.stretchesOf(v); rows != 0 && rows != d {
			return false, fmt.Errorf("the batch lies otherwise in %q", v.Name)
		}
		rows = max(rows, d)
	}
	changed := false
	for _, v := range values {
		if v == nil {
			continue
		}
		d, ok := v.Type.Shape[axis].Int()
		if !ok || rows == 0 || d == 0 || d%rows != 0 {
			return false, fmt.Errorf("%q holds no whole number of batches along the split axis", v.Name)
		}
		more, err := r.set(v, axis)
		switch {
		case err != nil:
			return false, err
		case more && d > rows:
			r.stretches[v] = d / rows
		case r.stretchesOf(v) != d/rows:
			return false, fmt.Errorf("the batch lies otherwise in %q", v.Name)
		}
		changed = changed || more
	}
	return changed, nil
}

// gathers is what would have to gather pieces of a value that a part of the region makes; nil for
// values of one stretch, and for those from outside, of which each part takes its pieces.
func (r *Region) gathers(v *onnx.Value) *SkipError {
	const why = "the batch is merged with an axis before it, and what is made of it is needed beside the parts"
	if r.stretchesOf(v) == 1 || v.Producer == nil || !r.in[v.Producer] {
		return nil
	}
	if v.IsOutput() {
		return &SkipError{v.Name, why}
	}
	for _, u := range v.Uses() {
		if !r.in[u.Node] {
			return &SkipError{u.Node.Label(), why}
		}
	}
	return nil
}

// pieceOf is part i of a value from outside: a piece of each of its stretches.
func (a *applier) pieceOf(v *onnx.Value, i int64) (*onnx.Value, error) {
	part, ok := a.partOf(v)
	if !ok {
		return nil, fmt.Errorf("%q: its extents are not static", v.Name)
	}
	axis, stretches := a.shardingOf(v), a.stretchesOf(v)
	dims, _ := v.Type.Shape.Ints()
	rows := part[axis] / stretches
	apart := slices.Concat(dims[:axis], []int64{stretches, dims[axis] / stretches}, dims[axis+1:])
	w := a.b.Op("Reshape", build.In(a.entry(v), a.b.Ints(apart...)))
	w = a.b.Op("Slice", build.In(w, a.b.Ints(i*rows), a.b.Ints((i+1)*rows), a.b.Ints(int64(axis)+1)))
	return a.b.Op("Reshape", build.In(w, a.b.Ints(part...))), nil
}
