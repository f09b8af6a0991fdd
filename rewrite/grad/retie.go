package grad

// An output layer that shares the embedding's matrix reads its transpose, and the
// exporter's optimizer computes that ahead: two initializers, which training would
// pull apart. Where one is the transpose of the other, element by element, it is
// written as one again. So are the copies that it computes of one matrix for each call of a
// layer that is called several times, and so is a parameter that was expanded ahead.
//
// Dynamo's file names what an initializer was computed from. In others the numbers alone
// tell, and fresh layers may be copies of each other: there it takes an option, and without
// it a warning names the pair.

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// retie lets readers of a computed transpose read a Transpose of the parameter that
// it comes from, where the file still holds that, and returns the names of what
// stays apart from such a parameter.
func retie(g *onnx.Graph, s *Signature) (apart []string) {
	for _, v := range slices.Clone(g.Initializers) {
		for _, from := range s.origins(v.Name) {
			p := g.Value(from)
			switch {
			case v.Init == nil || p == nil || p.Init == nil || p == v || len(p.Uses()) == 0:
			case v.Init.IsTransposeOf(p.Init):
				tie(g, twin{p, v, true})
			default:
				apart = append(apart, v.Name+" and "+from)
			}
		}
	}
	return apart
}

// once makes one initializer of what the exporter computed ahead from the same parameters in
// the same way several times, as for each call of a shared layer, and returns the names of
// what calls take for one parameter and is in several forms. Elements that are all one number
// may be parts of a parameter: there each call has to name it.
func once(g *onnx.Graph, s *Signature, calls []*call) (forms []string) {
	of := map[*onnx.Node]*call{}
	for _, c := range calls {
		for _, n := range c.nodes {
			of[n] = c
		}
	}
	named := func(v *onnx.Value, param string) bool {
		return !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
			c := of[u.Node]
			return c == nil || !slices.ContainsFunc(c.refs, func(ref string) bool { return s.targets[ref] == param })
		})
	}
	computed := map[string][]*onnx.Value{}
	for _, v := range slices.Clone(g.Initializers) {
		from := s.origins(v.Name)
		if v.Init == nil || len(from) == 0 {
			continue
		}
		turned, whole := s.onlyTurned(v.Name), len(from) == 1 && named(v, from[0])
		if oneNumber(v) && !(turned && whole) {
			continue
		}
		key := strings.Join(from, " ")
		k, back := slices.IndexFunc(computed[key], func(p *onnx.Value) bool { return s.computedAlike(p, v) }), false
		if k < 0 && turned {
			k, back = slices.IndexFunc(computed[key], func(p *onnx.Value) bool { return s.onlyTurned(p.Name) && v.Init.IsTransposeOf(p.Init) }), true
		}
		if k >= 0 {
			tie(g, twin{computed[key][k], v, back})
			continue
		}
		for _, p := range computed[key] { // others are said to be trained instead
			if whole && named(p, from[0]) && (turned || s.onlyTurned(p.Name)) {
				forms = append(forms, v.Name+" and "+p.Name+" of "+from[0])
				break
			}
		}
		computed[key] = append(computed[key], v)
	}
	return forms
}

// computedAlike reports that the exporter made two initializers of one parameter in the same
// way: by a transpose, or by one operator, as their names tell, to the same numbers.
func (s *Signature) computedAlike(a, b *onnx.Value) bool {
	turned := s.onlyTurned(a.Name) && s.onlyTurned(b.Name)
	return a.Init.Equal(b.Init) && (turned || s.operator(a.Name) == s.operator(b.Name))
}

// oneNumber reports elements that are all the same.
func oneNumber(v *onnx.Value) bool {
	n, err := v.Init.Elements()
	return err != nil || n < 2 || uniform(v)
}

// holdOnce lets readers of a parameter that the exporter's optimizer expanded ahead, as a class
// token is over the batch, read an Expand of one copy: copies would be trained apart, each by a
// sample of its own. One copy keeps the name, and an axis of extent 1. Where more than one axis
// repeats, as in a token of zeros, the file does not say which of them the parameter has.
func holdOnce(g *onnx.Graph, s *Signature) {
	for _, v := range slices.Clone(g.Initializers) {
		if len(s.origins(v.Name)) != 1 || !s.expanded(v.Name) {
			continue
		}
		once := repeated(v.Init)
		if once == nil {
			continue
		}
		extents := g.AddConstant("remat/tie/"+v.Name+"/extents", onnx.Int64Tensor(v.Init.Dims(), int64(len(v.Init.Dims()))))
		n := g.NewNode("", "Expand", "remat/tie/"+v.Name, []*onnx.Value{nil, extents}, []string{v.Name + ".tied"})
		n.Out(0).Type = v.Type
		g.ReplaceUses(v, n.Out(0))
		v.Init, v.Type = once, once.Type()
		n.SetInput(0, v)
		g.Nodes = slices.Insert(g.Nodes, 0, n)
	}
}

// repeated returns one of the slices along the one axis that holds copies of a slice, nil if no
// axis does, or several do.
func repeated(t *onnx.Tensor) *onnx.Tensor {
	data, err := t.Bytes()
	count, other := t.Elements()
	if err != nil || other != nil || count == 0 {
		return nil
	}
	var once *onnx.Tensor
	inner := len(data) / int(count) // bytes below the axis
	for axis, extent := range slices.Backward(t.Dims()) {
		block := inner * int(extent)
		if extent > 1 && !slices.ContainsFunc(slices.Collect(slices.Chunk(data, block)), func(b []byte) bool { return !bytes.Equal(b[inner:], b[:len(b)-inner]) }) {
			if once != nil {
				return nil
			}
			var kept []byte
			for b := range slices.Chunk(data, block) {
				kept = append(kept, b[:inner]...)
			}
			dims := slices.Clone(t.Dims())
			dims[axis] = 1
			once = onnx.NewTensor(t.DType(), dims, kept)
		}
		inner = block
	}
	return once
}

// tie lets the readers of a twin read what it is a twin of, or its transpose.
func tie(g *onnx.Graph, t twin) {
	by := t.of
	var nodes []*onnx.Node
	add := func(op, suffix string, typ onnx.Type, attr onnx.Attribute) {
		n := g.NewNode("", op, "remat/tie/"+t.v.Name+suffix, []*onnx.Value{by}, []string{t.v.Name + ".tied"}, attr)
		by = n.Out(0)
		by.Type = typ
		nodes = append(nodes, n)
	}
	if d := t.v.Init.DType(); d != t.of.Init.DType() {
		add("Cast", "/cast", onnx.TensorOf(d, t.of.Type.Shape), onnx.IntAttr("to", int64(d)))
	}
	if t.turned {
		add("Transpose", "", t.v.Type, onnx.IntsAttr("perm", 1, 0))
	}
	g.Nodes = slices.Insert(g.Nodes, 0, nodes...)
	g.ReplaceUses(t.v, by)
	if t.v.Dead() && !t.v.IsInput() {
		g.RemoveInitializer(t.v)
	}
}

// A twin is a matrix that holds another's numbers, or its transpose, perhaps rounded to half.
type twin struct {
	of, v  *onnx.Value
	turned bool
}

// twins lists matrices of products that are the transpose of another matrix, or the same as one
// that is gathered: an embedding and a product's matrix are drawn apart. So are the matrices of
// two layers, but fresh layers may be copies of one: matrices of two products are listed where
// these look like calls of one layer. Of two products the one stays whose name no exporter made.
// Under autocast an exporter may have rounded the product's matrix ahead, not the embedding.
func twins(g *onnx.Graph) (list []twin) {
	groups := map[[2]int64][]*onnx.Value{}
	for _, v := range g.Initializers {
		d := v.Init.Dims()
		if len(d) != 2 || !v.Init.DType().IsFloat() || !gathered(v) && !multiplies(v) || uniform(v) {
			continue
		}
		key := [2]int64{min(d[0], d[1]), max(d[0], d[1])}
		for _, p := range groups[key] {
			of, other := p, v
			if gathered(v) || !gathered(p) && ComputedAhead(p.Name) {
				of, other = v, p
			}
			x := of.Init
			if t := other.Init.DType(); t != x.DType() {
				if x.DType() != onnx.Float32 || !t.IsHalf() || !gathered(of) || gathered(other) || !multiplies(other) {
					continue
				}
				x = rounded(x, t)
			}
			switch {
			case !multiplies(other) || x == nil:
			case other.Init.IsTransposeOf(x) && !x.IsTransposeOf(x):
				list = append(list, twin{of, other, true})
			case !gathered(other) && (gathered(of) || ofOneLayer(of, other)) && other.Init.Equal(x):
				list = append(list, twin{of, other, false})
			}
		}
		groups[key] = append(groups[key], v)
	}
	return list
}

// rounded is a tensor in a half type, nil where its data are not to be had.
func rounded(t *onnx.Tensor, d onnx.DType) *onnx.Tensor {
	values, err := t.Float64s()
	if err != nil {
		return nil
	}
	return onnx.FloatTensor(d, values, t.Dims()...)
}

// ofOneLayer reports matrices whose products may be calls of one layer, for each of which a tool
// computed the transpose of its weight ahead: TorchScript names them /proj/MatMul and
// /proj_1/MatMul; where names tell nothing they add one bias, or none to what dynamo computed.
func ofOneLayer(a, b *onnx.Value) bool {
	p, q := product(a), product(b)
	if p == nil || q == nil || p.Int("transB", 0) != q.Int("transB", 0) {
		return false
	}
	m, n := modulePath(p.Name()), modulePath(q.Name())
	if m != "" && n != "" {
		return m != n && slices.EqualFunc(strings.Split(m, "."), strings.Split(n, "."), func(x, y string) bool {
			return callNumber.ReplaceAllString(x, "") == callNumber.ReplaceAllString(y, "")
		})
	}
	bias, other := biasOf(p), biasOf(q)
	if bias == nil && other == nil {
		return computedByDynamo(a) && computedByDynamo(b)
	}
	return bias == other && bias.Init != nil && !uniform(bias)
}

// callNumber stands behind the name of a module that is called again.
var callNumber = regexp.MustCompile(`(_\d+)+$`)

// product is the one product that reads a matrix as its second factor, nil if others read it too.
func product(v *onnx.Value) *onnx.Node {
	if u := v.Uses(); len(u) == 1 && u[0].Index == 1 {
		return u[0].Node
	}
	return nil
}

// biasOf is what a Gemm, or the file behind a product, adds to it, nil for nothing.
func biasOf(n *onnx.Node) *onnx.Value {
	if n.Is("Gemm") {
		return n.In(2)
	}
	u := n.Out(0).Uses()
	if len(u) != 1 || !u[0].Node.Is("Add") {
		return nil
	}
	if v := u[0].Node.In(1 - u[0].Index); v.Init != nil {
		return v
	}
	return nil
}

// holds says what a twin holds of the other.
func (t twin) holds() string {
	if t.turned {
		return "the transpose"
	}
	return "the numbers"
}

// likeCalls reports matrices of two products in one form.
func (t twin) likeCalls() bool { return !t.turned && !gathered(t.of) }

// pair names both.
func (t twin) pair() string { return t.v.Name + " and " + t.of.Name }

// retieAlike ties twins, and names them.
func retieAlike(g *onnx.Graph, res *Result) {
	var calls []string
	for _, t := range twins(g) {
		switch {
		case t.v.Dead() || t.of.Dead():
			continue
		case t.likeCalls():
			calls = append(calls, t.pair())
		default:
			res.warn("parameter %q is trained as one with %q, which holds %s of it", t.of.Name, t.v.Name, t.holds())
		}
		tie(g, t)
	}
	res.warnOf(calls, "parameters that hold the same numbers are trained as one: %s")
}

// warnTwins says of twins that are trained that training pulls them apart.
func warnTwins(list []twin, params []*onnx.Value, res *Result) {
	var calls []string
	for _, p := range params {
		i := slices.IndexFunc(list, func(t twin) bool { return t.v == p })
		if i < 0 {
			continue
		}
		if t := list[i]; t.likeCalls() {
			calls = append(calls, t.pair())
		} else {
			res.warn("parameter %q holds %s of %q, as where a model ties its head to its embedding, and they are trained apart; --tie trains them as one", t.v.Name, t.holds(), t.of.Name)
		}
	}
	res.warnOf(calls, "parameters hold the same numbers, as where a layer is called several times, and they are trained apart; --tie trains them as one: %s")
}

// apart names the twins of trained parameters that are not trained themselves.
func apart(list []twin, params []*onnx.Value) (names step.Apart) {
	for _, t := range list {
		if slices.Contains(params, t.of) && !slices.Contains(params, t.v) && !slices.Contains(names, t.v.Name) {
			names = append(names, t.v.Name)
		}
	}
	return names
}

// gathered reports that rows of a matrix are gathered, as of an embedding.
func gathered(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index == 0 && u.Node.Is("Gather") })
}

// multiplies reports a factor of a product.
func multiplies(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index < 2 && u.Node.Is("MatMul", "Gemm") })
}
