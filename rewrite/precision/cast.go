package precision

// Casts, where the verdicts of two nodes differ:
//
//	master, float32 value ─▶ Cast ─▶ half node          one copy for each value
//	half value ─▶ Cast ─▶ float32 node
//	constant ─▶ a half constant, no Cast
//	float32 value of forward ─▶ Cast ─▶ (waits) ─▶ Cast ─▶ float32 node of backward
//
// A node without a kernel in half, and every node with arithmetic when
// emulating, is left in float32 between casts: it reads Cast(Cast(x)), and
// what it makes is read through Cast(Cast(y)).

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// convert carries the verdicts out.
func (p *pass) convert() error {
	nodes := append([]*onnx.Node(nil), p.g.Nodes...)
	emulated := p.emulated(nodes)
	stashed := p.stashes(nodes)
	p.turns(nodes)
	p.masters()
	for _, n := range nodes {
		if p.verdicts[n].kind != half {
			continue
		}
		for i, o := range n.Outputs {
			if !out(n, i) {
				continue
			}
			p.inHalf[o] = true
			if !emulated[n] {
				o.Type.DType = p.o.To
			}
		}
	}
	for _, n := range nodes {
		kind := p.verdicts[n].kind
		for i, v := range n.Reads() {
			if kind == untouched {
				continue
			}
			if w := p.read(n, i, kind, emulated[n], stashed); w != v && w != nil {
				n.SetInput(i, w)
			}
		}
	}
	if p.o.Early {
		p.addWaits(nodes)
	}
	p.outputs()
	var err error
	if p.b.Nodes, err = control.Lower(p.g, p.b.Nodes); err != nil {
		return err
	}
	p.b.Flush()
	p.dropCasts()
	return p.b.Err()
}

// read is what node n is to read at input i.
func (p *pass) read(n *onnx.Node, i int, kind kind, emulated bool, stashed map[reading]bool) *onnx.Value {
	v := n.In(i)
	if kind == half {
		v = p.master(v, n)
	}
	float := in(n, i) || p.inHalf[v] && !keptWide(n, i)
	switch {
	case !float && p.inHalf[v]: // an input that stays float32
		return p.up(v)
	case !float:
		return v
	case kind == full && p.late[v] != nil:
		return p.readLate(v, n)
	case kind == half && emulated:
		return p.up(v)
	case kind == half, kind == reader && !emulated:
		return p.down(v)
	case kind == reader && n.Is("Cast"):
		return p.down(v)
	case p.inHalf[v], kind == reader, stashed[reading{v, n}]:
		return p.up(v)
	}
	return v
}

// emulated finds the half nodes that compute in float32 between casts.
func (p *pass) emulated(nodes []*onnx.Node) map[*onnx.Node]bool {
	list := map[*onnx.Node]bool{}
	for v := range p.late {
		if n := v.Producer; p.o.Provider == kernels.CPU && p.verdicts[n].kind == half {
			list[n] = true
		}
	}
	if !p.o.Emulate && !(p.o.Provider == kernels.CPU && p.o.To == onnx.BFloat16) {
		return list
	}
	for _, n := range nodes {
		if k := p.verdicts[n].kind; k != half && k != reader || n.Is("Cast") {
			continue
		}
		native := p.supports(kernels.CPU, n)
		t, _ := traits.Of(n)
		if !native || p.o.Emulate && !moves(n) && t.Cost != traits.View && p.verdicts[n].kind == half {
			list[n] = true
			if p.verdicts[n].kind == half {
				p.report.Emulated++
			}
		}
	}
	return list
}

// down is v in the half type.
func (p *pass) down(v *onnx.Value) *onnx.Value {
	if v.Type.DType == p.o.To {
		return v
	}
	if h := p.halves[v]; h != nil {
		return h
	}
	var h *onnx.Value
	from := v.Producer
	switch {
	case v.IsConstant():
		h = p.halfConstant(v)
	case from != nil && from.Is("Cast") && from.In(0) != nil && from.In(0).Type.DType == p.o.To && !p.inHalf[v]:
		h = from.In(0)
	case from != nil && from.Is("ConstantOfShape"):
		h = p.halfFill(from)
	case p.waits[v] && p.isWaiting(view(v)):
		h = p.halfView(v, view(v))
	}
	if h == nil {
		h = p.cast(v, p.o.To, "half")
	}
	p.halves[v] = h
	return h
}

// up is v, in half or rounded to it, in float32.
func (p *pass) up(v *onnx.Value) *onnx.Value {
	if f := p.fulls[v]; f != nil {
		return f
	}
	var f *onnx.Value
	if v.IsConstant() && v.Type.DType == onnx.Float32 {
		f = p.roundedConstant(v)
	} else {
		h := p.down(v)
		if scale := p.g.Value(ScaleInput); scale != nil && p.late[v] != nil && p.o.Provider == kernels.CPU && h.Producer != nil && !h.Producer.Is("Cast") {
			// A product that the file has in half: ONNX Runtime computes it in float32, and what
			// looks for overflows would read that, where updates read what is rounded.
			h = control.Wait(p.b, h, scale)
		}
		f = p.cast(h, onnx.Float32, "float")
	}
	p.fulls[v] = f
	return f
}

// cast adds a Cast of v, named after what v was when it was given.
func (p *pass) cast(v *onnx.Value, to onnx.DType, what string) *onnx.Value {
	name := "remat/cast/" + v.Name + "/" + what
	c := p.b.NodeNamed("", "Cast", name, build.In(v), []string{name}, onnx.IntAttr("to", int64(to)))[0]
	if c == nil {
		return v
	}
	c.Type = v.Type
	c.Type.DType = to
	c.Producer.SetOrigin(onnx.Origin{Pass: CastPass, Of: v.Name})
	p.report.Casts++
	return c
}

// halfFill is a ConstantOfShape node's output in half.
func (p *pass) halfFill(n *onnx.Node) *onnx.Value {
	value := 0.0
	if t := n.TensorAttr("value"); t != nil {
		x, ok := t.Scalar()
		if !ok || t.DType() != onnx.Float32 || p.round(x) != x {
			return nil
		}
		value = x
	}
	t := onnx.FloatTensor(p.o.To, []float64{value}, 1)
	name := "remat/cast/" + n.Outputs[0].Name + "/half"
	v := p.b.NodeNamed("", "ConstantOfShape", name, n.Inputs, []string{name}, onnx.TensorAttrOf("value", t))[0]
	if v != nil {
		v.Type = n.Outputs[0].Type
		v.Type.DType = p.o.To
	}
	return v
}

// outputs gives the graph's outputs their types back, under their names.
func (p *pass) outputs() {
	for i, v := range p.g.Outputs {
		if !p.inHalf[v] {
			continue
		}
		f := p.up(v)
		for k := i; k < len(p.g.Outputs); k++ {
			if p.g.Outputs[k] == v {
				p.g.SetOutput(k, f)
			}
		}
		name := v.Name
		p.g.Rename(v, p.g.FreshValueName(name+"/half"))
		p.g.Rename(f, name)
	}
}

// dropCasts removes casts from a type to itself: those of the file whose input
// is of the wanted type now.
func (p *pass) dropCasts() {
	for _, n := range append([]*onnx.Node(nil), p.g.Nodes...) {
		if !n.Is("Cast") || n.In(0) == nil || n.Out(0) == nil || n.Out(0).IsOutput() {
			continue
		}
		if x, y := n.In(0), n.Out(0); x.Type.DType == y.Type.DType {
			p.g.ReplaceUses(y, x)
			p.g.Remove(n)
		}
	}
}

// A reading is a value with a node that reads it.
type reading struct {
	v *onnx.Value
	n *onnx.Node
}

// stashes finds the float32 values of forward that backward is to read through
// a half copy. Statistics stay: they are small, and all hangs on them. So do
// values that are exponentiated or divided by, where a rounding would grow; and
// a value that waits anyway needs no copy beside it.
func (p *pass) stashes(nodes []*onnx.Node) map[reading]bool {
	list := map[reading]bool{}
	if p.forward == nil {
		return list
	}
	for _, n := range nodes {
		for _, v := range n.Returns() {
			if !p.mayWait(v) {
				continue
			}
			for _, u := range v.Uses() {
				if !p.forward.Has(u.Node) {
					list[reading{v, u.Node}] = true
					p.waits[v] = true
				}
			}
			if p.waits[v] {
				p.report.Stashed++
			}
		}
	}
	if p.o.StashOnly {
		p.report.Requested, p.report.Applied = p.report.Stashed, p.report.Stashed
	}
	return list
}

// mayWait reports a value that all of backward may read rounded.
func (p *pass) mayWait(v *onnx.Value) bool {
	n := v.Producer
	if !isFloat(v) || !p.forward.Has(n) || p.verdicts[n].kind != full || v.IsOutput() || p.statistic(v) || p.angle[v] {
		return false
	}
	for _, u := range v.Uses() {
		if p.forward.Has(u.Node) {
			continue
		}
		if u.Index == onnx.Captured || !in(u.Node, u.Index) {
			return false
		}
		if p.verdicts[u.Node].kind == half {
			continue // reads a half copy in any case
		}
		t, _ := traits.Of(u.Node)
		soft := t.Precision == traits.Follow || t.Precision == traits.Gain || t.Precision == traits.Inside
		if !soft || p.forced[u.Node] != "" || matches(p.o.KeepFP32, u.Node) {
			return false
		}
	}
	return true
}

// isWaiting reports a value that waits in half, or can.
func (p *pass) isWaiting(v *onnx.Value) bool {
	return v != nil && (p.waits[v] || v.Producer != nil && p.mayWait(v))
}

// statistic reports a value that is much smaller than what it was made from.
func (p *pass) statistic(v *onnx.Value) bool {
	if n := elements(v); n >= 0 && n <= 1 {
		return true
	}
	for _, x := range v.Producer.Inputs {
		if !isFloat(x) || x.IsConstant() || x.IsInput() {
			continue
		}
		a, b := elements(x), elements(v)
		if a >= 0 && b >= 0 && a > 4*b || (a < 0 || b < 0) && p.smaller(v, v.Producer) {
			return true
		}
		if v.Index > 0 && v.Producer.Is("LayerNormalization", "SimplifiedLayerNormalization", "BatchNormalization") {
			return true
		}
	}
	return false
}
