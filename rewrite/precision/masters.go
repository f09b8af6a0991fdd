package precision

// A master is cast where it is used: once for forward, and once more for backward,
// so that no half copy of a matrix waits from one to the other. Equal casts would be
// merged, so backward casts a view of the master that waits for backward to begin:
//
//	W ─┬─▶ Cast ─▶ forward
//	   └─▶ Wait(·, first gradient) ─▶ Cast ─▶ backward
//
// A cast reads and writes six bytes an element, less than a product does with one
// row. Within a side, a plan may run casts again. Slices of the loss (package tile) go
// forward and back in turns, so both sides of them read one copy.

import (
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/control"
)

// masters notes the matrices among the inputs that both sides read in half.
func (p *pass) masters() {
	begin := p.beginning()
	if begin == nil {
		return
	}
	p.before = step.DependenciesOf(p.g).Backward(step.Any, begin)
	for _, v := range p.g.Inputs {
		var forward, backward bool
		for _, u := range v.Uses() {
			if p.verdicts[u.Node].kind == half && in(u.Node, u.Index) {
				early := p.early(u.Node)
				forward, backward = forward || early, backward || !early
			}
		}
		if forward && backward && len(v.Type.Shape) > 1 {
			p.inBackward[v] = control.Wait(p.b, v, begin)
		}
	}
}

// master is what node n, in half, is to read of v: in backward the view that waits.
func (p *pass) master(v *onnx.Value, n *onnx.Node) *onnx.Value {
	if w := p.inBackward[v]; w != nil && !p.early(n) {
		return w
	}
	return v
}

// early reports a node of forward, one that what backward begins with needs, or one of a
// slice of the loss.
func (p *pass) early(n *onnx.Node) bool {
	return p.forward.Has(n) || p.before.Has(n) || n.MadeBy("chunk")
}

// beginning is a value that is there once backward begins, and not before: the first
// that it computes from what forward does; nil where there is none.
func (p *pass) beginning() *onnx.Value {
	if p.forward == nil || len(p.grads) == 0 {
		return nil
	}
	for _, n := range p.backward() {
		for _, v := range n.Reads() {
			if v.Producer != nil && p.forward.Has(v.Producer) && isFloat(n.Out(0)) {
				return n.Out(0)
			}
		}
	}
	return nil
}
