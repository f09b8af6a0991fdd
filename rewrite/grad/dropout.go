package grad

// Dropout under ONNX Runtime. A node without a seed draws a mask that no clone
// of it can repeat, so each gets one of its own. And from level 1 on a training
// Dropout whose mask nothing reads is removed: where no gradient makes use of
// the mask, the forward is written with it,
//
//	x ─Dropout─▶ (y), mask        y' = x * (mask / (1-ratio))

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// seedDropouts fixes a seed on every Dropout that has none.
func seedDropouts(g *onnx.Graph) {
	var list []*onnx.Node
	for _, n := range g.Nodes {
		if n.Is("Dropout") {
			list = append(list, n)
		}
	}
	traits.FixSeeds(list)
}

// useMasks gives every Dropout that may train and whose mask is not read a
// forward that reads it.
func (e *engine) useMasks() {
	for _, n := range append([]*onnx.Node(nil), e.m.Graph.Nodes...) {
		if !n.Is("Dropout") || n.In(2) == nil || n.Out(0) == nil || n.Out(0).Dead() {
			continue
		}
		if m := n.Out(1); m != nil && !m.Dead() {
			continue
		}
		if on, ok := n.In(2).Number(); ok && on == 0 {
			continue
		}
		e.useMask(n)
	}
}

func (e *engine) useMask(n *onnx.Node) {
	e.b.From(n, n.Label())
	x := n.In(0)
	c := &Context{Node: n, e: e}
	mask := c.Mask(c.AddOut(1), x)
	ratio := 0.5
	var y *onnx.Value
	if n.In(1) != nil {
		r, ok := n.In(1).Number()
		if !ok {
			keep := c.Minus(c.Scalar(x, 1), c.CastTo(n.In(1), x))
			y = c.Do("Mul", x, c.Over(mask, keep))
		}
		ratio = r
	}
	if y == nil {
		y = c.Do("Mul", x, c.Scale(mask, 1/max(1-ratio, 1e-9)))
	}
	nodes := e.b.Take()
	if y == nil {
		return
	}
	g := e.m.Graph
	at := slices.Index(g.Nodes, n) + 1
	g.Nodes = append(g.Nodes[:at:at], append(nodes, g.Nodes[at:]...)...)
	g.TakeOver(n.Out(0), y)
}
