package precision

// Gradients that wait for their update wait in half, two bytes an element, whatever
// they wait for: that every gradient is finite, a norm of all. Each reader has a
// float32 copy of its own, made when it runs and gone after it:
//
//	P.grad, in half ─┬─▶ Cast ─▶ ReduceL1 ─▶ … ─▶ found_inf (scale.go)
//	                 └─▶ Where(found_inf, 0, ·) ─┬─▶ Cast ─▶ first product ─▶ … ─▶ P.m.new
//	                                             └─▶ Wait(·, P.m.new) ─▶ Cast ─▶ second product
//
// A product in half is what it was: its float32 copy has the same numbers whenever
// it is made. What was summed in float32, such as the gradient of an embedding that
// is also the output layer, is rounded once. Gradients of vectors, which are small,
// stay as they are.
//
// Equal casts would be merged, and the one copy would wait: so the second one is of
// a view that waits for what the first reader led to, a next value, which holds no
// buffer of its own. Where the provider has no Where in half, the zeros are put into
// a float32 copy that waits for found_inf.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// waiting notes the gradients that wait in half, with their parameters.
func (p *pass) waiting() {
	if p.o.StashOnly {
		return
	}
	for _, g := range p.grads {
		v := g.grad
		if isFloat(v) && len(g.param.Type.Shape) > 1 && !v.IsOutput() && p.isUpdated(g.param) && !matches(p.o.KeepFP32, v.Producer) {
			p.late[v] = g.param
		}
	}
}

// skips lets a step that is skipped put its zeros into gradients in half.
func (p *pass) skips() {
	for v, param := range p.late {
		for _, u := range v.Uses() {
			if n := u.Node; n.Is("Where") && optim.IsUpdate(n, param.Name) && !p.o.Emulate && p.supports(p.o.Provider, n) {
				p.verdicts[n] = verdict{half, "selects half values"}
				p.late[n.Out(0)] = param
			}
		}
	}
}

// readLate is the float32 copy of a gradient in half that node n reads: its own,
// where n belongs to the update.
func (p *pass) readLate(v *onnx.Value, n *onnx.Node) *onnx.Value {
	param := p.late[v]
	if !optim.IsUpdate(n, param.Name) {
		return p.up(v)
	}
	h := p.down(v)
	if before := p.readBy[v]; before != nil {
		h = control.Wait(p.b, h, leadsTo(before, param.Name))
	} else if n.Is("Where") {
		h = control.Wait(p.b, h, n.In(0))
	}
	p.readBy[v] = n
	return p.cast(h, onnx.Float32, "float")
}

// leadsTo is the last value of the update of a parameter that only n's output is led
// to, the next one of a state.
func leadsTo(n *onnx.Node, param string) *onnx.Value {
	for v := n.Out(0); ; v = n.Out(0) {
		uses := v.Uses()
		if v.IsOutput() || len(uses) != 1 || !optim.IsUpdate(uses[0].Node, param) {
			return v
		}
		n = uses[0].Node
	}
}
