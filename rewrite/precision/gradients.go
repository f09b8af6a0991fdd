package precision

// Gradients that wait for their update wait in half, two bytes an element, whatever
// they wait for: that every gradient is finite, a norm of all. Each reader has a
// float32 copy of its own, made when it runs and gone after it:
//
//	P.grad, in half ─┬─▶ Cast ─▶ ReduceSum ─▶ … ─▶ found_inf (scale.go)
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
// buffer of its own. Where a gradient was computed in float32, whose buffer may wait
// to be used again, the zeros are put into each float32 copy, which waits for
// found_inf. On the CPU a Where needs three buffers, and Trilu works in place: it
// leaves a matrix as it is, or, by a diagonal beyond it, nothing of it.

import (
	"cmp"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// waiting notes the gradients that wait in half, with their parameters.
func (p *pass) waiting() {
	if p.o.StashOnly {
		return
	}
	for _, g := range p.grads {
		v := g.grad
		if isFloat(v) && len(g.param.Type.Shape) > 1 && !v.IsOutput() && p.updated[g.param] == v && p.late[v] == nil && !matches(p.o.KeepFP32, v.Producer) {
			p.late[v] = g.param
		}
	}
}

// zeros lets a step that is skipped put its zeros where they take least memory.
func (p *pass) zeros() error {
	place := onnx.Places(p.g.Nodes)
	for _, g := range p.grads {
		if p.late[g.grad] == nil {
			continue
		}
		for _, u := range slices.Clone(g.grad.Uses()) {
			if n := u.Node; n.Is("Where") && optim.IsUpdate(n, g.param.Name) {
				p.zero(g.grad, g.param, n, place)
			}
		}
	}
	p.b.Flush()
	if p.b.Err() != nil {
		return p.b.Err()
	}
	return p.g.SortTopologically()
}

// zero decides how Where(skip, 0, v) is computed. A copy waits for what
// the copies before it lead to, so they stand in the order in which that is computed: a
// norm, and then what is scaled by it.
func (p *pass) zero(v, param *onnx.Value, n *onnx.Node, place map[*onnx.Node]int) {
	if !p.o.Emulate && p.verdicts[v.Producer].kind == half && p.supports(p.o.Provider, n) {
		p.verdicts[n] = verdict{half, "selects half values"}
		p.late[n.Out(0)] = param
		return
	}
	p.zeroes[n] = n.In(0)
	uses := slices.Clone(n.Out(0).Uses())
	slices.SortStableFunc(uses, func(a, b onnx.Use) int { return compareEnds(a.Node, b.Node, param, place) })
	for i, u := range uses {
		switch {
		case p.o.Provider == kernels.CPU && p.m.Opset("") >= 14:
			u.Node.SetInput(u.Index, p.triangle(v, param, n))
		case p.o.Provider != kernels.CPU && i > 0:
			u.Node.SetInput(u.Index, p.selected(param, "Where", n.In(0), build.In(n.Inputs...)))
		}
	}
	if len(n.Out(0).Uses()) == 0 {
		p.g.Remove(n)
	}
}

// triangle is v, or zeros where the step is skipped: what of its matrices lies right
// of a diagonal that is left of them, or right.
func (p *pass) triangle(v, param *onnx.Value, n *onnx.Node) *onnx.Value {
	shape := param.Type.Shape[len(param.Type.Shape)-2:]
	dims, _ := shape.Ints()
	k := p.diagonals[param]
	if k == nil {
		k = p.selected(param, "Where", n.In(0), build.In(n.In(0), p.b.Int(dims[1]), p.b.Int(-dims[0])))
		p.diagonals[param] = k
	}
	return p.selected(param, "Trilu", k, build.In(v, k), onnx.IntAttr("upper", 1))
}

// selected makes a node of the update of a parameter once trigger is there.
func (p *pass) selected(param *onnx.Value, op string, trigger *onnx.Value, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	name := "remat/optim/" + param.Name + "/finite"
	w := p.b.NodeNamed("", op, name, in, []string{name}, attrs...)[0]
	if w != nil {
		w.Producer.SetOrigin(onnx.Origin{Pass: optim.Pass, Of: param.Name})
		p.verdicts[w.Producer] = verdict{full, "loss scaling"}
		p.zeroes[w.Producer] = trigger
	}
	return w
}

// turns puts the readers of each gradient that waits in half into the order in which
// what they lead to is computed, so that no copy waits for what it is needed for: nodes
// that read only the gradient, such as the two products of Lion, may stand in any order.
func (p *pass) turns(nodes []*onnx.Node) {
	place := onnx.Places(nodes)
	for v, param := range p.late {
		var readers []*onnx.Node
		for _, u := range v.Uses() {
			if optim.IsUpdate(u.Node, param.Name) && !slices.Contains(readers, u.Node) {
				readers = append(readers, u.Node)
			}
		}
		slices.SortFunc(readers, func(a, b *onnx.Node) int {
			return cmp.Or(compareEnds(a, b, param, place), cmp.Compare(place[a], place[b]))
		})
		for i := 1; i < len(readers); i++ {
			p.readBefore[reading{v, readers[i]}] = readers[i-1]
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
	if before := p.readBefore[reading{v, n}]; before != nil {
		h = control.Wait(p.b, h, ledBefore(before, n, param.Name))
	} else if trigger := p.zeroes[n]; trigger != nil {
		h = control.Wait(p.b, h, trigger)
	}
	return p.cast(h, onnx.Float32, "float")
}

// compareEnds orders the readers of a parameter's gradient as what they lead to is computed.
func compareEnds(a, b *onnx.Node, param *onnx.Value, place map[*onnx.Node]int) int {
	end := func(n *onnx.Node) int { return place[leadsTo(n, param.Name).Producer] }
	return cmp.Compare(end(a), end(b))
}

// leadsTo is the last value of the update of a parameter that only n's output is led
// to, the next one of a state.
func leadsTo(n *onnx.Node, param string) *onnx.Value {
	values := led(n, param)
	return values[len(values)-1]
}

// led are the values of the update of a parameter that only n's output is led to, in turn.
func led(n *onnx.Node, param string) []*onnx.Value {
	var values []*onnx.Value
	for {
		v := n.Out(0)
		values = append(values, v)
		uses := v.Uses()
		if v.IsOutput() || len(uses) != 1 || !optim.IsUpdate(uses[0].Node, param) {
			return values
		}
		n = uses[0].Node
	}
}

// ledBefore is the last value that only n's output is led to before what next's is led to
// comes in: a norm, where next is scaled by it.
func ledBefore(n, next *onnx.Node, param string) *onnx.Value {
	shared := led(next, param)
	last := n.Out(0)
	for _, v := range led(n, param) {
		if slices.Contains(shared, v) {
			break
		}
		last = v
	}
	return last
}
