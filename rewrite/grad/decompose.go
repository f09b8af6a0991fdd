package grad

// Some operators are differentiated as what they are made of: the forward node
// is replaced by simpler ones that have rules, and the sweep passes over these
// at once.
//
//	x ──Attention──▶ y     becomes     x ──MatMul──Softmax──MatMul──▶ y
//
// That is right for operators without a kernel, which ONNX Runtime would expand
// itself, and for those whose derivative needs everything inside them. Only
// nodes that a gradient passes are touched.

import (
	"github.com/onnx-remat/remat/onnx"
)

// Decompose replaces the node by those that emit makes; emit returns what takes
// the place of each output, nil where nothing reads it.
func (c *Context) Decompose(emit func() []*onnx.Value) {
	e := c.e
	// Shapes that the backward graph computed lie behind the forward node.
	shapes := e.shapes
	e.shapes = map[string]*onnx.Value{}
	var outs []*onnx.Value
	var made []*onnx.Node
	c.Forward(func() {
		outs = emit()
		for i, v := range outs {
			if v != nil && (v.Producer == nil || !e.mine(v.Producer)) {
				outs[i] = c.Do("Identity", v)
			}
		}
		made = append(made, e.b.Nodes...)
	})
	e.shapes = shapes
	if e.b.Err() != nil {
		return
	}
	for _, n := range made {
		e.markNode(n)
	}
	for i, v := range outs {
		o := c.Out(i)
		if o == nil || v == nil {
			continue
		}
		if o.Type.Ranked && !v.Type.IsStatic() {
			v.Type = o.Type
		}
		p := e.grads[o]
		delete(e.grads, o)
		c.Replace(i, v)
		e.moved(o, v)
		if p != nil {
			e.grads[v] = p
		}
	}
	for i := len(made) - 1; i >= 0; i-- {
		if err := e.visit(made[i]); err != nil {
			e.b.Fail(err)
			return
		}
	}
}

// decomposition makes a rule of what Decompose is to emit for output 0.
func decomposition(emit func(c *Context) *onnx.Value) func(*Context) {
	return func(c *Context) {
		c.Decompose(func() []*onnx.Value { return []*onnx.Value{emit(c)} })
	}
}
