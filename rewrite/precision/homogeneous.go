package precision

// Where to multiply by the loss scale. Gradients are linear in the one that
// the loss begins with, but that seed need not be a value: derivation folds it
// into other factors. Any values will do of which every gradient is homogeneous
// of degree one:
//
//	degree(c) = 1 for each of them, everything else that enters backward has degree 0
//	products add degrees, sums and moves keep them (and want them equal)
//	anything else is of degree 0 only of what has degree 0
//
// If every P.grad comes out with degree 1, then scaling them all by s scales each
// gradient by s exactly; no name and no pattern of a loss is needed. The smallest value
// that will do alone is taken. An integer or a bool that is made from c (a comparison, a
// rounding) depends on how large c is, so nothing behind it has a degree. Other
// outputs of the graph must have degree 0 or 1, too: those of degree 1 are
// divided by the scale where they leave the graph.
//
// A loss of several terms has no such value where its terms share none. A sum of what is
// scaled and what is not is then scaled in part: it waits for another value. The one that
// scales most is added, of those that the first gradient or sum is made of that has no
// scale yet, until no gradient waits.
//
// What is added may be a constant or a value of forward that derivation left there (the seed
// of a term that ends in a mean, a weight whose square is a term): it is scaled for that sum
// alone.
//
// All that is not 0 hangs on such a value, so only what the first of the gradients is made
// of is asked, each through all of backward.

import (
	"cmp"
	"maps"
	"slices"
	"sort"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Degrees beside 0, 1, 2 …: a value that is zero has any, one that is not
// homogeneous has none, a sum of degree 1 and of degree 0 is scaled in part.
const (
	zero   = -1
	broken = -2
	partly = -3
)

// A place is a value that is scaled: for all its readers, or for what reads it at one input.
type place struct {
	value *onnx.Value
	by    *onnx.Node // nil: all of them
	input int
}

// degrees are those of values, where they are not 0, and what is scaled for one reader.
type degrees struct {
	of   map[*onnx.Value]int
	read map[place]bool
}

// maxAsked is how often scalePlaces walks through backward before it gives up.
const maxAsked = 2000

// scalePlaces finds the values to scale, none where there are none, and the outputs
// beside the gradients that they scale.
func (p *pass) scalePlaces() (places []place, beside []*onnx.Value) {
	backward := p.backward()
	grads := map[*onnx.Value]bool{} // whose readers are the optimizer
	for _, g := range p.grads {
		grads[g.grad] = true
	}
	for asked := 0; asked < maxAsked; {
		candidates := p.unscaledBefore(backward, grads, p.degreesOf(backward, places))
		asked += len(candidates)
		var best *place
		var most reach
		for i, c := range candidates {
			with := append(slices.Clone(places), c)
			degree := p.degreesOf(backward, with)
			r, whole := p.reachOf(backward, degree)
			if whole {
				if beside, ok := p.outputsBeside(degree); ok {
					return with, beside
				}
				continue
			}
			if most.less(r) {
				best, most = &candidates[i], r
			}
		}
		if best == nil {
			return nil, nil
		}
		places = append(places, *best)
	}
	return nil, nil
}

// reach is how far a scale comes: the gradients that are scaled, those that are in part, the
// sums that wait for another place, all values that are scaled or in part.
type reach struct{ whole, parts, waiting, values int }

// less reports that more is scaled with o, or as much with fewer sums that wait.
func (r reach) less(o reach) bool {
	return cmp.Or(cmp.Compare(r.whole, o.whole), cmp.Compare(r.parts, o.parts), cmp.Compare(o.waiting, r.waiting), cmp.Compare(r.values, o.values)) < 0
}

// reachOf is that of degrees, nothing where a gradient is not homogeneous. whole reports that
// no gradient waits.
func (p *pass) reachOf(backward []*onnx.Node, degree degrees) (r reach, whole bool) {
	whole = true
	for _, g := range p.grads {
		switch degree.of[g.grad] {
		case zero:
		case 1:
			r.whole++
		case partly:
			r.parts++
			whole = false
		case 0:
			whole = false
		default:
			return reach{}, false
		}
	}
	for _, n := range backward {
		if degree.waits(n) >= 0 {
			r.waiting++
		}
	}
	for _, d := range degree.of {
		if d == 1 || d == partly {
			r.values++
		}
	}
	return r, whole
}

// backward are the nodes that gradients need and the loss does not, in order.
func (p *pass) backward() []*onnx.Node {
	var grads []*onnx.Value
	for _, g := range p.grads {
		grads = append(grads, g.grad)
	}
	return slices.DeleteFunc(step.DependenciesOf(p.g).Backward(needed, grads...).Nodes(), p.forward.Has)
}

// unscaledBefore lists, the smallest first, values without a scale of which the first is
// made that lacks one: a gradient, or what a sum adds to what is scaled. That is scaled
// itself where backward does not make it.
func (p *pass) unscaledBefore(backward []*onnx.Node, grads map[*onnx.Value]bool, degree degrees) []place {
	first := firstUnscaled(backward, grads, degree)
	if first.value == nil {
		return nil
	}
	made := p.madeOf(backward, first.value)
	if len(made) == 0 && isFloat(first.value) {
		return []place{first}
	}
	var candidates []*onnx.Value
	for _, n := range made {
		for _, o := range n.Returns() {
			if degree.of[o] == 0 && (isFloat(o) || o.Type.DType.IsHalf()) && !o.IsOutput() && !grads[o] {
				candidates = append(candidates, o)
			}
		}
	}
	sort.SliceStable(candidates, func(i, j int) bool {
		if x, y := isFloat(candidates[i]), isFloat(candidates[j]); x != y {
			return x // no scale overflows there
		}
		a, b := elements(candidates[i]), elements(candidates[j])
		return a >= 0 && (a < b || b < 0)
	})
	places := make([]place, len(candidates))
	for i, c := range candidates {
		places[i].value = c
	}
	return places
}

// firstUnscaled is the first gradient without a scale, or the first of what a sum adds to
// what is scaled.
func firstUnscaled(backward []*onnx.Node, grads map[*onnx.Value]bool, degree degrees) place {
	for _, n := range backward {
		if i := degree.waits(n); i >= 0 {
			return place{value: n.In(i), by: n, input: i}
		}
		for _, o := range n.Returns() {
			if grads[o] && degree.of[o] == 0 {
				return place{value: o}
			}
		}
	}
	return place{}
}

// waits is the first input of a sum that is not scaled where another is, -1 where there is
// none.
func (degree degrees) waits(n *onnx.Node) int {
	if n.Out(0) == nil || degree.of[n.Out(0)] != partly {
		return -1
	}
	t, _ := traits.Of(n)
	for i := range n.Inputs {
		factor := t.Degree == traits.Gemms && i < 2
		if degree.in(n, i) == 0 && (t.Degree == traits.Sums || t.Degree == traits.Gemms && !factor ||
			factor && degree.in(n, 1-i) == 0) {
			return i
		}
	}
	return -1
}

// madeOf are those of the nodes, which are in order, that v is made by.
func (p *pass) madeOf(nodes []*onnx.Node, v *onnx.Value) []*onnx.Node {
	before := step.DependenciesOf(p.g).Backward(needed, v)
	return slices.DeleteFunc(slices.Clone(nodes), func(n *onnx.Node) bool { return !before.Has(n) })
}

// degreesOf are the degrees in places of what nodes make.
func (p *pass) degreesOf(nodes []*onnx.Node, places []place) degrees {
	p.asked += len(nodes)
	degree := degrees{of: map[*onnx.Value]int{}, read: map[place]bool{}}
	for _, c := range places {
		if c.by != nil {
			degree.read[c] = true
		} else {
			degree.of[c.value] = 1
		}
	}
	for _, n := range nodes {
		d := degree.made(n)
		for _, o := range n.Outputs {
			switch {
			case o == nil || d == 0:
			case degree.of[o] == 1: // one of places that another scales
				degree.of[o] = broken
			default:
				degree.of[o] = d
			}
		}
	}
	return degree
}

// outputsBeside lists the outputs of degree 1 that are neither gradients nor made
// from any; false where such an output has another degree than 1 or 0.
func (p *pass) outputsBeside(degree degrees) (list []*onnx.Value, ok bool) {
	at := degrees{of: maps.Clone(degree.of), read: degree.read}
	for _, g := range p.grads { // unscaled for all that reads them behind backward
		delete(at.of, g.grad)
	}
	for _, n := range p.g.Nodes {
		if p.forward.Has(n) {
			continue
		}
		d := at.made(n)
		for _, o := range n.Outputs {
			if _, known := degree.of[o]; o == nil || known {
				continue
			}
			if d != 0 {
				at.of[o] = d
			}
		}
	}
	next := map[string]bool{} // an optimizer takes the scale into its scalars
	for _, name := range p.roles.New {
		next[name] = true
	}
	for _, o := range p.g.Outputs {
		switch d := at.of[o]; {
		case d == 0 || d == zero || next[o.Name]:
		case d == 1:
			list = append(list, o)
		default:
			return nil, false
		}
	}
	return list, true
}

// in is the degree of what n reads at i.
func (degree degrees) in(n *onnx.Node, i int) int {
	v := n.In(i)
	if v == nil || elements(v) == 0 { // a control dependency
		return zero
	}
	d := degree.of[v]
	if degree.read[place{value: v, by: n, input: i}] {
		d++
	}
	switch {
	case !v.Type.DType.IsFloat() && d != 0 && d != zero:
		return broken
	case !v.Type.DType.IsFloat():
		return zero
	case d != 0:
		return d
	}
	if v.IsZero() {
		return zero
	}
	return 0
}

// made is the degree of what n makes.
func (degree degrees) made(n *onnx.Node) int {
	at := func(i int) int { return degree.in(n, i) }
	for _, v := range n.Captures {
		if d := degree.of[v]; d != 0 && d != zero {
			return broken
		}
	}
	t, _ := traits.Of(n)
	how := t.Degree
	switch {
	case traits.ReadsShape(n), n.Is("IsNaN", "IsInf"):
		return 0 // which no scale changes
	case n.Is("Pad") && n.In(2) != nil && at(2) != zero && n.Str("mode", "constant") == "constant",
		n.Is("ScatterElements", "ScatterND") && n.Str("reduction", "none") == "mul":
		how = traits.Nonlinear
	case n.Is("ConstantOfShape"):
		if n.Out(0).IsZero() {
			return zero
		}
		return 0
	}
	d := at(0)
	switch how {
	case traits.Keeps:
		for i := 1; i < len(n.Inputs); i++ {
			if x := at(i); x != zero && x != 0 {
				return broken
			}
		}
		return d
	case traits.Sums:
		for i := 1; i < len(n.Inputs); i++ {
			d = alike(d, at(i))
		}
		return d
	case traits.Products:
		for i := 1; i < len(n.Inputs); i++ {
			d = times(d, at(i))
		}
		return d
	case traits.Quotients:
		if x := at(1); x != 0 {
			return broken
		}
		return d
	case traits.Gemms:
		d = times(d, at(1))
		if n.In(2) != nil {
			d = alike(d, at(2))
		}
		return d
	}
	for i := range n.Inputs {
		if x := at(i); x != 0 && x != zero {
			return broken
		}
	}
	return 0
}

// alike is the degree of a sum.
func alike(a, b int) int {
	switch {
	case a == broken || b == broken:
		return broken
	case a == zero:
		return b
	case b == zero || a == b:
		return a
	}
	if inPart(a) && inPart(b) {
		return partly
	}
	return broken
}

// inPart reports a degree that a sum can be scaled with in part.
func inPart(d int) bool { return d == 0 || d == 1 || d == partly }

// times is the degree of a product.
func times(a, b int) int {
	switch {
	case a == broken || b == broken:
		return broken
	case a == zero || b == zero:
		return zero
	case a == partly || b == partly:
		if a+b == partly { // the other is of degree 0
			return partly
		}
		return broken
	}
	return a + b
}
