package rewrite

// Small rewritings that only save memory:
//
//	ScatterInto   X + Scatter(0, i, u)  ─▶  Scatter(X, i, u)
//	ShareConstants  one initializer for equal small ones
//	Unfold        large constants that ONNX Runtime would compute ahead and
//	              hold outside of every count are computed in the step
//	Fold          small ones are in the file as they come out: a graph that
//	              ONNX Runtime changes in nothing it saves as it stands, node
//	              for node, and the schedule survives

import (
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/control"
)

// ScatterInto lets a scatter that adds to zeros add to the other summand
// instead: the gradient of an embedding that is tied to the output projection
// is made so, and the zeros and their sum are tables of their own size. The
// sum's last bits may change, as summands are added in another order. It
// returns how many sums it took.
func ScatterInto(g *onnx.Graph) int {
	count := 0
	for _, n := range g.Nodes {
		if !n.Is("Add") || len(n.Inputs) != 2 {
			continue
		}
		for k, v := range n.Inputs {
			other := n.Inputs[1-k]
			s := v.Producer
			if s == nil || !s.Is("ScatterND", "ScatterElements") || s.Str("reduction", "none") != "add" ||
				len(v.Uses()) != 1 || v.IsOutput() || !s.Inputs[0].Behind("Cast", "Expand", "Reshape", "Identity").IsZero() ||
				!other.Type.Ranked || !other.Type.Shape.Equal(v.Type.Shape) || other.Type.DType != v.Type.DType {
				continue
			}
			s.SetInput(0, other) // which comes before the sum, the one reader of the scatter
			out := n.Outputs[0]
			n.SetInputs(other, other) // no longer reads the scatter
			g.TakeOver(out, v)
			count++
			break
		}
	}
	if count > 0 {
		g.RemoveDead()
		if err := g.SortTopologically(); err != nil {
			panic("rewrite: ScatterInto made a cycle: " + err.Error())
		}
	}
	return count
}

// Races reports the nodes that ONNX Runtime may compute otherwise in each run;
// they are left as they are.
func Races(g *onnx.Graph) Report {
	names := traits.Racing(g)
	r := Report{Pass: "race", Requested: len(names)}
	for _, name := range names {
		r.skip(name, "%s", traits.WhyRaces)
	}
	return r
}

// shareLimit is the size in bytes up to which equal initializers become one.
const shareLimit = 1 << 10

// ShareConstants lets equal small initializers be one, as ONNX Runtime does:
// nodes that differ in nothing else are then equal too. It returns how many
// went.
func ShareConstants(g *onnx.Graph) int {
	first := map[string]*onnx.Value{}
	var gone []*onnx.Value
	for _, v := range g.Initializers {
		size, err := v.Init.ByteSize()
		if err != nil || size > shareLimit || v.IsInput() || v.IsOutput() {
			continue
		}
		data, err := v.Init.Bytes()
		if err != nil {
			continue
		}
		key := fmt.Sprint(v.Init.DType(), v.Init.Dims(), string(data))
		if w := first[key]; w != nil {
			g.ReplaceUses(v, w)
			gone = append(gone, v)
			continue
		}
		first[key] = v
	}
	for _, v := range gone {
		g.RemoveInitializer(v)
	}
	return len(gone)
}

// foldLimit is the size in bytes up to which a constant may be computed ahead.
const foldLimit = 1 << 10

// Unfold makes every node that computes more than foldLimit bytes from
// constants alone wait for a graph input, so that no optimizer computes it
// ahead. ONNX Runtime holds such constants for the life of the session, beside
// the allocator that steps use, and copies them where a kernel would have
// worked in place. It returns the number of nodes.
func Unfold(g *onnx.Graph) (int, error) {
	trigger := smallestInput(g, func(*onnx.Value) bool { return false })
	if trigger == nil {
		return 0, nil
	}
	constant := constantsOf(g)
	edges := build.New(g, nil, "unfold")
	var order []*onnx.Node
	count := 0
	for _, n := range g.Nodes {
		if !constant.feed(n) {
			order = append(order, n)
			continue
		}
		i := 0
		if n.Is("DequantizeLinear") {
			i = 1 // the scales: no view of int4 has a kernel
		}
		if v := n.In(i); large(n) && v != nil && v.Type.Ranked {
			n.SetInput(i, control.Wait(edges, v, trigger))
			order = append(append(order, edges.Take()...), n)
			count++
			continue
		}
		constant.add(n)
		order = append(order, n)
	}
	var err error
	g.Nodes, err = control.Lower(g, order)
	return count, err
}

// Foldable lists the values that are computed from constants alone, are small,
// and are read by nodes that compute something else.
func Foldable(g *onnx.Graph) []*onnx.Value { return foldable(g, foldLimit) }

// Folded lists the values of known size that ONNX Runtime computes from constants
// alone, small or not, that are read by nodes that compute something else.
func Folded(g *onnx.Graph) []*onnx.Value { return foldable(g, math.MaxInt64) }

func foldable(g *onnx.Graph, limit int64) []*onnx.Value {
	constant := constantsOf(g)
	folds := map[*onnx.Node]bool{}
	for _, n := range g.Nodes {
		t, known := traits.Of(n)
		if !known || !t.Deterministic || t.SideEffects || len(n.Subgraphs()) > 0 || !constant.feed(n) || !small(n, limit) {
			continue
		}
		folds[n] = true
		constant.add(n)
	}
	var list []*onnx.Value
	for _, n := range g.Nodes {
		for _, o := range n.Outputs {
			if folds[n] && o != nil && !o.IsOutput() && slices.ContainsFunc(o.Uses(), func(u onnx.Use) bool { return !folds[u.Node] }) {
				list = append(list, o)
			}
		}
	}
	return list
}

// small reports outputs of known size, at most the limit.
func small(n *onnx.Node, limit int64) bool {
	for _, o := range n.Returns() {
		if bytes, ok := o.Type.Bytes(); !ok || bytes > limit {
			return false
		}
	}
	return true
}

// Fold makes v the constant t.
func Fold(g *onnx.Graph, v *onnx.Value, t *onnx.Tensor) {
	c := g.AddConstant(v.Name, t)
	g.ReplaceUses(v, c)
}

// constants are values that depend on constants alone.
type constants map[*onnx.Value]bool

// constantsOf begins with those that the file holds.
func constantsOf(g *onnx.Graph) constants {
	c := constants{}
	for _, v := range g.Initializers {
		c[v] = v.IsConstant()
	}
	return c
}

// add notes what a node returns.
func (c constants) add(n *onnx.Node) {
	for _, o := range n.Outputs {
		c[o] = true
	}
}

// feed reports that a node computes from constants alone.
func (c constants) feed(n *onnx.Node) bool {
	if len(n.Captures) > 0 || n.Is("RandomNormal", "RandomUniform") {
		return false
	}
	return !slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && !c[v] })
}

func large(n *onnx.Node) bool {
	return slices.ContainsFunc(n.Outputs, func(o *onnx.Value) bool { return o != nil && o.Type.KnownBytes() > foldLimit })
}

// smallestInput is the graph input of known size with the fewest bytes, but for
// those left out; nil where there is none.
func smallestInput(g *onnx.Graph, leftOut func(*onnx.Value) bool) *onnx.Value {
	var best *onnx.Value
	least := int64(ortmodel.None)
	for _, v := range g.Inputs {
		bytes, ok := v.Type.Bytes()
		if ok && v.Init == nil && bytes > 0 && !leftOut(v) && (best == nil || bytes < least) {
			best, least = v, bytes
		}
	}
	return best
}
