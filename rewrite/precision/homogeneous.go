package precision

// Where to multiply by the loss scale. Gradients are linear in the one that
// the loss begins with, but that seed need not be a value: derivation folds it
// into other factors. Any value will do of which every gradient is homogeneous
// of degree one:
//
//	degree(c) = 1, everything else that enters backward has degree 0
//	products add degrees, sums and moves keep them (and want them equal)
//	anything else is of degree 0 only of what has degree 0
//
// If every P.grad comes out with degree 1, then scaling c by s scales each by
// s exactly; no name and no pattern of a loss is needed. The smallest such
// value is taken. An integer or a bool that is made from c (a comparison, a
// rounding) depends on how large c is, so nothing behind it has a degree. Other
// outputs of the graph must have degree 0 or 1, too: those of degree 1 are
// divided by the scale where they leave the graph.
//
// All that is not 0 hangs on such a value, so only what the first of the gradients is made
// of is asked, each through all of backward.
//
// Weakness: a graph with two losses that share no value has no such place.

import (
	"maps"
	"slices"
	"sort"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Degrees beside 0, 1, 2 …: a value that is zero has any, one that is not
// homogeneous has none.
const (
	zero   = -1
	broken = -2
)

// scalePlace finds the value to scale, nil where there is none, and the outputs
// beside the gradients that it scales.
func (p *pass) scalePlace() (c *onnx.Value, beside []*onnx.Value) {
	backward := p.backward()
	grads := map[*onnx.Value]bool{} // whose readers are the optimizer
	for _, g := range p.grads {
		grads[g.grad] = true
	}
	var candidates []*onnx.Value
	for _, n := range p.beforeFirst(backward, grads) {
		for _, o := range n.Outputs {
			if o != nil && (isFloat(o) || o.Type.DType.IsHalf()) && !o.IsOutput() && !grads[o] {
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
	for _, c := range candidates {
		degree := p.degreesOf(backward, c)
		if !p.homogeneous(degree) {
			continue
		}
		if beside, ok := p.outputsBeside(degree); ok {
			return c, beside
		}
	}
	return nil, nil
}

// backward are the nodes that gradients need and the loss does not, in order.
func (p *pass) backward() []*onnx.Node {
	var grads []*onnx.Value
	for _, g := range p.grads {
		grads = append(grads, g.grad)
	}
	return slices.DeleteFunc(step.DependenciesOf(p.g).Backward(needed, grads...).Nodes(), p.forward.Has)
}

// beforeFirst are those of the nodes that the first gradient needs which is not 0 whatever
// is scaled; all where there is none.
func (p *pass) beforeFirst(nodes []*onnx.Node, grads map[*onnx.Value]bool) []*onnx.Node {
	degree := p.degreesOf(nodes, nil)
	for i, n := range nodes {
		for _, o := range n.Outputs {
			if o != nil && grads[o] && degree[o] != zero {
				before := step.DependenciesOf(p.g).Backward(needed, o)
				return slices.DeleteFunc(slices.Clone(nodes[:i+1]), func(n *onnx.Node) bool { return !before.Has(n) })
			}
		}
	}
	return nodes
}

// degreesOf are the degrees in c, nil for none, of what nodes make, where they are not 0.
func (p *pass) degreesOf(nodes []*onnx.Node, c *onnx.Value) map[*onnx.Value]int {
	p.asked += len(nodes)
	degree := map[*onnx.Value]int{c: 1}
	for _, n := range nodes {
		d := degreeOf(n, degree)
		for _, o := range n.Outputs {
			if o != nil && o != c && d != 0 {
				degree[o] = d
			}
		}
	}
	return degree
}

// outputsBeside lists the outputs of degree 1 that are neither gradients nor made
// from any; false where such an output has another degree than 1 or 0.
func (p *pass) outputsBeside(degree map[*onnx.Value]int) (list []*onnx.Value, ok bool) {
	at := maps.Clone(degree)
	for _, g := range p.grads { // unscaled for all that reads them behind backward
		delete(at, g.grad)
	}
	for _, n := range p.g.Nodes {
		if p.forward.Has(n) {
			continue
		}
		d := degreeOf(n, at)
		for _, o := range n.Outputs {
			if _, known := degree[o]; o == nil || known {
				continue
			}
			if d != 0 {
				at[o] = d
			}
		}
	}
	next := map[string]bool{} // an optimizer takes the scale into its scalars
	for _, name := range p.roles.New {
		next[name] = true
	}
	for _, o := range p.g.Outputs {
		switch d := at[o]; {
		case d == 0 || d == zero || next[o.Name]:
		case d == 1:
			list = append(list, o)
		default:
			return nil, false
		}
	}
	return list, true
}

// homogeneous reports that every gradient has degree one.
func (p *pass) homogeneous(degree map[*onnx.Value]int) bool {
	for _, g := range p.grads {
		if d := degree[g.grad]; d != 1 && d != zero {
			return false
		}
	}
	return true
}

// degreeOf is the degree of what n makes; degree holds that of what it reads.
func degreeOf(n *onnx.Node, degree map[*onnx.Value]int) int {
	at := func(i int) int {
		v := n.In(i)
		if v == nil || elements(v) == 0 { // a control dependency
			return zero
		}
		d := degree[v]
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
	for _, v := range n.Captures {
		if d := degree[v]; d != 0 && d != zero {
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
	return broken
}

// times is the degree of a product.
func times(a, b int) int {
	switch {
	case a == broken || b == broken:
		return broken
	case a == zero || b == zero:
		return zero
	}
	return a + b
}
