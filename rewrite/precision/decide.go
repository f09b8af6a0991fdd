package precision

// Which nodes run in half. The classes of onnx/traits say what half does to an
// operator alone; what follows its neighbours (Follow) is decided by them:
//
//	backwards over the file   is a half value wanted behind the node?
//	forwards                  arithmetic: half where wanted and where an input
//	                          is half already; float32 where all it reads was
//	                          computed in float32 and it spreads a statistic,
//	                          or not all readers want half; where it sums a
//	                          parameter's gradient; where a constant does not
//	                          fit
//	                          moves: as what they move, or early, so that half
//	                          the bytes are moved
//
// So products, convolutions and what lies between them run in half; losses,
// sums of forward and what they lead to in float32, and angles (angles.go). Softmax, norms and sums of
// backward take half values, and their kernels sum in float32. A statistic meets
// a half value in half: that value has been rounded already, to the same unit.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// A verdict says how a node runs.
type verdict struct {
	kind kind
	why  string
}

type kind uint8

const (
	// untouched nodes have no float32 to speak of.
	untouched kind = iota
	full
	half
	// reader nodes make no floats and take them in either type.
	reader
)

// readers take floats of any type and make none.
var readers = map[string]bool{
	"Shape": true, "Size": true, "Cast": true, "IsNaN": true, "IsInf": true, "Equal": true, "Greater": true,
	"GreaterOrEqual": true, "Less": true, "LessOrEqual": true, "ArgMax": true, "ArgMin": true, "NonZero": true,
}

// ports lists inputs and outputs that stay float32 in a node that runs in half.
type ports struct{ in, out []int }

var wide = map[string]ports{
	"Resize": {in: []int{1, 2}}, "Upsample": {in: []int{1}}, "Dropout": {in: []int{1}},
	"LayerNormalization": {out: []int{1, 2}}, "SimplifiedLayerNormalization": {out: []int{1}}, "BatchNormalization": {in: []int{1, 2, 3, 4}, out: []int{1, 2}},
}

// moves are the operators that copy values without arithmetic.
func moves(n *onnx.Node) bool {
	t, ok := traits.Of(n)
	return ok && t.Precision == traits.Follow && (t.Cost == traits.View || t.Cost == traits.Copy)
}

// reduces reports a sum whose kernels add up in float32.
func reduces(n *onnx.Node) bool { return n.Is("ReduceSum", "ReduceMean") }

func isFloat(v *onnx.Value) bool { return v != nil && v.Type.DType == onnx.Float32 }

// in reports that input i of n is a float32 that half would change.
func in(n *onnx.Node, i int) bool {
	return isFloat(n.In(i)) && !keptWide(n, i)
}

// keptWide reports an input that stays float32 in half nodes.
func keptWide(n *onnx.Node, i int) bool { return slices.Contains(wide[n.OpType()].in, i) }

func out(n *onnx.Node, i int) bool {
	return isFloat(n.Out(i)) && !slices.Contains(wide[n.OpType()].out, i)
}

// makesFloats reports a float32 output.
func makesFloats(n *onnx.Node) bool {
	for i := range n.Outputs {
		if out(n, i) {
			return true
		}
	}
	return false
}

// elements is the number of elements, -1 where it is not static.
func elements(v *onnx.Value) int64 {
	if !v.Type.Ranked {
		return -1
	}
	if dims, ok := v.Type.Shape.Ints(); ok {
		if n, ok := onnx.Elements(dims); ok {
			return n
		}
	}
	return -1
}

// single reports one element.
func single(v *onnx.Value) bool { return elements(v) == 1 }

// decide fills in p.verdicts.
func (p *pass) decide() {
	for _, n := range p.g.Nodes {
		p.verdicts[n] = p.fixed(n)
	}
	p.angles()
	if p.o.StashOnly {
		for n, v := range p.verdicts {
			if v.kind == half || v.kind == undecided {
				p.verdicts[n] = verdict{full, "only values kept for backward are in half"}
			}
		}
		return
	}
	p.sumsOfGradients()
	w := p.wants()
	p.follow(w)
	p.tally()
}

// undecided is a verdict that depends on the neighbours.
const undecided = kind(255)

// fixed is the verdict that a node has whatever its neighbours are.
func (p *pass) fixed(n *onnx.Node) verdict {
	t, known := traits.Of(n)
	floats := makesFloats(n)
	switch {
	case n.Is("Equal") && p.forced[n] != "":
		return verdict{full, p.forced[n]}
	case n.Domain() == "" && readers[n.OpType()] && len(n.Outputs) > 0 && (!floats || n.Is("Cast")):
		return verdict{reader, ""}
	case !floats && !readsFloats(n):
		return verdict{untouched, ""}
	case p.forced[n] != "":
		return verdict{full, p.forced[n]}
	case matches(p.o.KeepFP32, n):
		return verdict{full, "asked for by --keep-fp32"}
	case len(n.Subgraphs()) > 0:
		return verdict{full, "bodies of control flow stay float32"}
	case captured(n):
		return verdict{full, "a body of control flow reads it"}
	case !known:
		return verdict{full, "unknown operator"}
	case !floats:
		return verdict{full, "reads floats as they are"}
	}
	if why := p.lacks(n); why != "" {
		return verdict{full, why}
	}
	switch {
	case matches(p.o.Half, n):
		return verdict{half, "asked for by --half"}
	case t.Precision == traits.Gain && n.Origin().Pass == optim.Pass:
		return verdict{full, "an update is computed in float32"}
	case t.Precision == traits.Gain:
		return verdict{half, t.Why}
	case t.Precision != traits.Follow && t.Precision != traits.Inside:
		return verdict{full, t.Why}
	case n.Is("ScatterElements", "ScatterND") && n.Str("reduction", "none") != "none":
		return verdict{full, "sums into what it scatters"}
	case n.Is("ReduceSum") && (p.forward == nil || p.forward.Has(n)):
		return verdict{full, "a long sum may leave half's range"}
	case p.allSingle(n):
		return verdict{full, whyOne}
	}
	return verdict{undecided, ""}
}

func readsFloats(n *onnx.Node) bool {
	for i := range n.Inputs {
		if in(n, i) {
			return true
		}
	}
	return false
}

func (p *pass) allSingle(n *onnx.Node) bool {
	for i := range n.Outputs {
		if out(n, i) && !single(n.Out(i)) {
			return false
		}
	}
	return true
}

// captured reports that a subgraph reads an output of n.
func captured(n *onnx.Node) bool {
	for _, o := range n.Returns() {
		for _, u := range o.Uses() {
			if u.Index == onnx.Captured {
				return true
			}
		}
	}
	return false
}

// lacks says why the provider cannot run the node in half, "" where it can or
// where casts are put around it.
func (p *pass) lacks(n *onnx.Node) string {
	if p.o.Emulate || p.o.StashOnly || p.o.Provider != kernels.CUDA {
		return ""
	}
	if p.supports(p.o.Provider, n) {
		return ""
	}
	return "the " + string(p.o.Provider) + " provider has no " + p.o.To.String() + " kernel for it"
}

// supports reports a kernel of the provider for n with the types that it has in
// half: inputs and outputs that stay float32 do so.
func (p *pass) supports(provider kernels.Provider, n *onnx.Node) bool {
	changes := map[*onnx.Value]bool{}
	for i, v := range n.Inputs {
		changes[v] = changes[v] || in(n, i)
	}
	for i, v := range n.Outputs {
		changes[v] = changes[v] || out(n, i)
	}
	return kernels.Supports(provider, n, p.m.Opset(n.Domain()), func(v *onnx.Value) onnx.DType {
		if changes[v] {
			return p.o.To
		}
		return v.Type.DType
	})
}

// Unmatched returns the first glob of those in o that fits no node of the graph,
// or "".
func (o *Options) Unmatched(g *onnx.Graph) string {
	for _, glob := range slices.Concat(o.KeepFP32, o.Half) {
		if !slices.ContainsFunc(g.Nodes, func(n *onnx.Node) bool { return matches([]string{glob}, n) }) {
			return glob
		}
	}
	return ""
}

// matches reports a glob that fits the node's name or operator type.
func matches(globs []string, n *onnx.Node) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		return planner.Match(glob, n.Name()) || planner.Match(glob, n.OpType())
	})
}

// sumsOfGradients keeps in float32 what only adds up contributions to a
// parameter's gradient, or only makes a next value.
func (p *pass) sumsOfGradients() {
	zone := map[*onnx.Value]bool{}
	for _, g := range p.grads {
		zone[g.grad] = true
	}
	for _, name := range p.roles.New {
		if v := p.g.Value(name); v != nil {
			zone[v] = true
		}
	}
	for i := len(p.g.Nodes) - 1; i >= 0; i-- {
		n := p.g.Nodes[i]
		if p.forward.Has(n) || !p.onlyFor(n, zone) {
			continue
		}
		v := p.verdicts[n]
		if v.kind == undecided && !moves(n) && !reduces(n) {
			p.verdicts[n] = verdict{full, whySum}
			v = p.verdicts[n]
		}
		if v.kind == full || moves(n) {
			for k := range n.Inputs {
				if in(n, k) {
					zone[n.In(k)] = true
				}
			}
		}
	}
}

// onlyFor reports that every reader of n's floats is in the zone's nodes.
func (p *pass) onlyFor(n *onnx.Node, zone map[*onnx.Value]bool) bool {
	found := false
	for _, o := range n.Outputs {
		if !isFloat(o) {
			continue
		}
		if !zone[o] {
			return false
		}
		found = true
		for _, u := range o.Uses() {
			if k := p.verdicts[u.Node].kind; k == half || k == undecided {
				return false
			}
		}
	}
	return found
}

// tally counts for the report what could run in half by its class: updates and
// what only moves float32 values do not count.
func (p *pass) tally() {
	for _, n := range p.g.Nodes {
		v := p.verdicts[n]
		bodies := 0
		for range n.Inside() {
			bodies++
		}
		switch {
		case bodies > 0:
			p.report.Requested += bodies
			p.skip(n.Label(), "the %d operators in its bodies stay float32: only the main graph is converted", bodies)
		case v.kind == half:
			p.report.Requested++
			p.report.Applied++
		case v.kind != full || p.forced[n] != "" || v.why == whyOne || v.why == whySum || moves(n):
		default:
			if t, ok := traits.Of(n); ok && (t.Precision == traits.Full || t.Precision == traits.NotFloat) {
				continue // float32 by its class
			}
			p.report.Requested++
			p.skip(n.Label(), "%s", v.why)
		}
	}
}

// Reasons that the report does not list.
const (
	whyOne = "one element"
	whySum = "sums a parameter's gradient"
)
