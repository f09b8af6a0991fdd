package precision

// The verdicts that depend on neighbours; decide.go has the picture.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A want says what the readers of a value would like it to be.
type want struct{ any, all bool }

// wants goes backwards over the file: any says that some reader runs in half,
// or passes the value on to one; all says it of every reader. Of a value of
// forward that forward reads, backward is not asked: it can have a half copy,
// and what only leads to the loss stays float32.
func (p *pass) wants() map[*onnx.Value]want {
	w := map[*onnx.Value]want{}
	for i := len(p.g.Nodes) - 1; i >= 0; i-- {
		for _, o := range p.g.Nodes[i].Outputs {
			if isFloat(o) {
				w[o] = p.wanted(o, w)
			}
		}
	}
	return w
}

func (p *pass) wanted(v *onnx.Value, w map[*onnx.Value]want) want {
	r := want{all: !v.IsOutput()}
	count, onward := 0, p.readForward(v)
	for _, u := range v.Uses() {
		if u.Index != onnx.Captured && !in(u.Node, u.Index) || onward && !p.forward.Has(u.Node) {
			continue
		}
		k := p.verdicts[u.Node].kind
		if k == reader || k == untouched {
			continue
		}
		count++
		yes := k == half
		if k == undecided && !p.picks(u.Node) {
			for _, o := range u.Node.Outputs {
				if isFloat(o) && w[o].any {
					yes = true
				}
			}
		}
		r.any = r.any || yes
		r.all = r.all && yes
	}
	r.all = r.all && count > 0
	return r
}

// readForward reports a value of forward with a reader of its floats there.
func (p *pass) readForward(v *onnx.Value) bool {
	if !p.forward.Has(v.Producer) {
		return false
	}
	for _, u := range v.Uses() {
		k := p.verdicts[u.Node].kind
		if p.forward.Has(u.Node) && u.Index != onnx.Captured && in(u.Node, u.Index) && k != reader && k != untouched {
			return true
		}
	}
	return false
}

// origin says how a value came to be.
type origin uint8

const (
	given    origin = iota // an input, a constant, or a moved one
	computed               // in float32
	rounded                // in half
)

// follow goes forwards and decides what is left.
func (p *pass) follow(w map[*onnx.Value]want) {
	from := map[*onnx.Value]origin{}
	odd := map[*onnx.Value]bool{} // made from a constant that does not fit
	for _, n := range p.g.Nodes {
		v := p.verdicts[n]
		strange := p.strange(n, odd)
		if v.kind == undecided {
			v = p.choose(n, from, w, strange)
			p.verdicts[n] = v
		}
		for _, o := range n.Returns() {
			odd[o] = strange && v.kind == full && follows(n)
			switch {
			case v.kind == half:
				from[o] = rounded
			case v.kind == full && !p.movesGiven(n, from):
				from[o] = computed
			}
		}
	}
	p.settleReaders()
}

func (p *pass) movesGiven(n *onnx.Node, from map[*onnx.Value]origin) bool {
	if !moves(n) {
		return false
	}
	for i := range n.Inputs {
		if in(n, i) && from[n.In(i)] != given {
			return false
		}
	}
	return true
}

// choose decides a node that follows its neighbours.
func (p *pass) choose(n *onnx.Node, from map[*onnx.Value]origin, w map[*onnx.Value]want, strange bool) verdict {
	var any, all bool
	all = true
	for i := range n.Outputs {
		if out(n, i) {
			any, all = any || w[n.Out(i)].any, all && w[n.Out(i)].all
		}
	}
	var halves, fulls, statistics int
	for i := range n.Inputs {
		v := n.In(i)
		if !in(n, i) || v.IsConstant() || single(v) {
			continue
		}
		switch from[v] {
		case rounded:
			halves++
		case computed:
			fulls++
			if p.smaller(v, n) {
				statistics++
			}
		}
	}
	switch {
	case strange:
		return verdict{full, "a constant it depends on does not fit"}
	case n.Is("Transpose") && !any && readOnce(n.Out(0)): // ONNX Runtime may cast first, by a new node that runs at another time
		return verdict{full, "only a float32 operator reads it"}
	case moves(n) && halves > 0:
		return verdict{half, "moves half values"}
	case moves(n) && all && !p.picks(n):
		return verdict{half, "moves values that are read in half"}
	case moves(n):
		return verdict{full, "moves float32 values"}
	case reduces(n) && halves > 0:
		return verdict{half, "sums half values"}
	case reduces(n):
		return verdict{full, "sums float32 values"}
	case statistics > 0 && halves == 0:
		return verdict{full, "spreads a statistic"}
	case !any && halves < 2: // one cast behind it is less than two before
		return verdict{full, "only float32 operators read it"}
	case halves == 0 && fulls > 0 && !all:
		return verdict{full, "between float32 operators"}
	}
	return verdict{half, "between operators in half"}
}

// readOnce reports a value that one node reads, or that is returned.
func readOnce(v *onnx.Value) bool {
	readers := len(v.Uses())
	if v.IsOutput() {
		readers++
	}
	return readers == 1
}

// smaller reports that v is spread over n's larger output.
func (p *pass) smaller(v *onnx.Value, n *onnx.Node) bool {
	for i := range n.Outputs {
		o := n.Out(i)
		if !out(n, i) {
			continue
		}
		a, b := elements(v), elements(o)
		if a >= 0 && b >= 0 {
			return a < b
		}
		if !v.Type.Ranked || !o.Type.Ranked {
			return false
		}
		if len(v.Type.Shape) < len(o.Type.Shape) {
			return true
		}
		for k := range o.Type.Shape {
			if v.Type.Shape[k].Is(1) && !o.Type.Shape[k].Is(1) {
				return true
			}
		}
	}
	return false
}

// picks reports a move out of something given, or a view of it, that makes it smaller,
// such as rows of an embedding: a half copy of the whole would cost more.
func (p *pass) picks(n *onnx.Node) bool {
	v, o := n.In(0), n.Out(0)
	if v == nil || o == nil || !traits.Picks(n) && !n.Is("Split") {
		return false
	}
	of := v
	for of.Producer != nil {
		if of = view(of); of == nil {
			return false
		}
	}
	return !of.IsConstant() && (elements(v) != elements(o) || elements(v) < 0)
}

// settleReaders lets nodes that make no floats read half values as they are,
// where all they compare is half.
func (p *pass) settleReaders() {
	for _, n := range p.g.Nodes {
		if p.verdicts[n].kind != reader {
			continue
		}
		yes := false
		for i := range n.Inputs {
			v := n.In(i)
			if !in(n, i) || v.IsConstant() {
				continue
			}
			made := v.Producer != nil && p.verdicts[v.Producer].kind == half
			if !made {
				yes = false
				break
			}
			yes = true
		}
		for i := range n.Inputs {
			f := p.fitOf(n.In(i))
			yes = yes && (f == nil || !in(n, i))
		}
		if !yes || p.lacks(n) != "" {
			p.verdicts[n] = verdict{full, "it reads float32 values"}
		}
	}
}
