package tile

// Writing the parts: for each part, the region's nodes are cloned with sliced
// inputs; what leaves the region is concatenated, or summed up as the parts are
// made, so that no more than one summand waits.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
)

// Apply replaces the region by that many parts, which Parts must have returned.
// The graph stays topologically sorted.
func (r *Region) Apply(types build.Typer, parts int) error {
	if err := r.apply(types, parts, nil); err != nil {
		return err
	}
	return r.graph.SortTopologically()
}

// Follow has Apply note the parts of some values, whether they leave the region or not.
func (r *Region) Follow(values ...*onnx.Value) {
	r.versions = map[*onnx.Value][]*onnx.Value{}
	for _, v := range values {
		r.versions[v] = nil
	}
}

// Versions are the parts of a value that was followed; none where the region does not make it.
func (r *Region) Versions(v *onnx.Value) []*onnx.Value { return r.versions[v] }

// pieces are the parts of values that were made in parts by one region and are
// read in parts by another, so that the whole never exists.
type pieces map[*onnx.Value][]*onnx.Value

// apply leaves the new nodes at the end of the graph, for the caller to sort.
func (r *Region) apply(types build.Typer, parts int, shared pieces) error {
	if parts < 2 {
		return &SkipError{r.Logits.Name, "no number of equal parts greater than one divides its extents"}
	}
	r.joined = map[*onnx.Value]*onnx.Value{}
	a := &applier{
		Region: r, parts: int64(parts), b: build.New(r.graph, types, r.pass), shared: shared,
		sum: map[*onnx.Value]*onnx.Value{}, pieces: map[*onnx.Value][]*onnx.Value{},
	}
	for i := int64(0); i < a.parts; i++ {
		if err := a.part(i); err != nil {
			return fmt.Errorf("pass %s: %w", r.pass, err)
		}
	}
	a.seed()
	if err := a.join(); err != nil {
		return fmt.Errorf("pass %s: %w", r.pass, err)
	}
	return nil
}

type applier struct {
	*Region
	parts  int64
	shared pieces
	b      *build.Builder
	now    map[*onnx.Value]*onnx.Value // this part's versions
	sum    map[*onnx.Value]*onnx.Value // partial sums so far
	// before are the results of the part before, which this one waits for; none in
	// the first.
	before []*onnx.Value
	pieces map[*onnx.Value][]*onnx.Value
	drawn  []*onnx.Node // those that lack the seed that the first part has
}

// exits reports that something outside the region needs the value.
func (a *applier) exits(v *onnx.Value) bool {
	if v.IsOutput() {
		return true
	}
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !a.in[u.Node] })
}

// leaving are the values that leave the region.
func (a *applier) leaving() []*onnx.Value {
	var out []*onnx.Value
	for _, n := range a.Nodes {
		for _, o := range n.Returns() {
			if a.exits(o) {
				out = append(out, o)
			}
		}
	}
	return out
}

// part clones the region once, and notes what leaves it.
func (a *applier) part(i int64) error {
	a.now = map[*onnx.Value]*onnx.Value{}
	for _, n := range a.Nodes {
		a.b.From(n, fmt.Sprintf("%d/%s", i, n.Label()))
		if err := a.node(n, i); err != nil {
			return err
		}
		if a.b.Err() != nil {
			return a.b.Err()
		}
		for _, o := range n.Returns() {
			if !a.exits(o) {
				continue
			}
			if a.shardingOf(o) == partialSum {
				a.accumulate(o)
			} else {
				a.pieces[o] = append(a.pieces[o], a.now[o])
			}
		}
	}
	if a.b.Err() != nil {
		return a.b.Err()
	}
	for v := range a.versions {
		if w := a.now[v]; w != nil && v.Producer != nil && a.in[v.Producer] {
			a.versions[v] = append(a.versions[v], w)
		}
	}
	if results := a.results(); len(results) > 0 {
		a.before = results
	}
	return nil
}

// entry returns what comes in as this part reads it: past the results of the part
// before, in the first part past itself. Without
// it ONNX Runtime would move a Transpose behind the slices, or fuse them to a
// Split.
func (a *applier) entry(v *onnx.Value) *onnx.Value {
	switch {
	case len(a.before) > 0:
		return control.Wait(a.b, v, a.before...)
	case v.Producer != nil:
		return control.Wait(a.b, v, v)
	}
	return v
}

// results are this part's versions of what leaves the region.
func (a *applier) results() []*onnx.Value {
	var out []*onnx.Value
	for _, o := range a.leaving() {
		if a.shardingOf(o) == partialSum {
			out = append(out, a.sum[o])
		} else {
			out = append(out, a.now[o])
		}
	}
	return out
}

// node clones one node for part i.
func (a *applier) node(n *onnx.Node, i int64) error {
	inputs := make([]*onnx.Value, len(n.Inputs))
	for k, v := range n.Reads() {
		w, err := a.input(n, k, v, i)
		if err != nil {
			return err
		}
		inputs[k] = w
	}
	if err := a.apart(n, inputs); err != nil {
		return err
	}
	o := a.table(n.Outputs[0])
	if sum := a.sum[o]; sum != nil && a.addsInto(n) {
		a.now[n.Outputs[0]] = a.gemm(n, inputs, sum)
		a.sum[o] = nil // already added
		return a.b.Err()
	}
	if sum := a.sum[o]; sum != nil && a.shardingOf(o) == partialSum && n.Is("ScatterElements", "ScatterND") && (isZero(n.Inputs[0]) || a.startsWhole(n)) {
		inputs[0], a.sum[o] = sum, nil
	}
	names := make([]string, len(n.Outputs))
	for k, o := range n.Returns() {
		names[k] = fmt.Sprintf("%s%d/%s", a.b.Prefix, i, o.Name)
	}
	op, attrs := n.OpType(), n.AttrsBut()
	if n.Is("Squeeze") && n.In(1) == nil && !n.Has("axes") {
		// Without axes it would take away the divided one, too, in parts of one element.
		shape, err := a.shapeOf(n.Outputs[0])
		if err != nil {
			return err
		}
		op, inputs = "Reshape", build.In(inputs[0], shape)
	}
	if n.Is("Conv", "ConvTranspose") && a.ownGroups(n) {
		attrs = append(n.AttrsBut("group"), onnx.IntAttr("group", n.Int("group", 1)/a.parts))
	}
	seeded := i > 0 && n.Has("seed") && traits.Draws(n)
	if seeded {
		attrs = n.AttrsBut("seed")
	}
	outs := a.b.NodeNamed(n.Domain(), op, fmt.Sprintf("%s%d/%s", a.b.Prefix, i, n.Label()), inputs, names, attrs...)
	for k, o := range n.Returns() {
		a.now[o] = outs[k]
	}
	if seeded && a.b.Err() == nil {
		a.drawn = append(a.drawn, outs[0].Producer)
	}
	return nil
}

// seed gives what draws in the parts after the first seeds of their own, as all parts would draw
// the same by one.
func (a *applier) seed() {
	if len(a.drawn) == 0 {
		return
	}
	nodes := slices.DeleteFunc(traits.Drawing(a.graph), func(n *onnx.Node) bool { return !n.Has("seed") || slices.Contains(a.drawn, n) })
	traits.FixSeeds(append(nodes, a.drawn...))
}

// apart keeps a node that computes the same in every part (a constant of a
// part's size) from being merged with the other parts': each is made when it
// is needed and dies after it.
func (a *applier) apart(n *onnx.Node, inputs []*onnx.Value) error {
	if a.before == nil || len(inputs) == 0 || inputs[0] == nil {
		return nil
	}
	for i, v := range inputs {
		if v != nil && v != n.Inputs[i] && !v.IsConstant() {
			return nil
		}
	}
	inputs[0] = a.entry(inputs[0])
	return a.b.Err()
}

// table is the sum that a sum is part of: rows are scattered into what the product of
// tied weights makes. A value that nothing is scattered into is its own.
func (a *applier) table(v *onnx.Value) *onnx.Value {
	for v != nil {
		n := a.scattered(v)
		if n == nil {
			break
		}
		v = n.Outputs[0]
	}
	return v
}

// addsInto reports a plain product of matrices whose partial result can be added to the
// sum so far on the way (Gemm's third operand, which the first part took in already if it
// has one).
func (a *applier) addsInto(n *onnx.Node) bool {
	o := n.Outputs[0]
	if !traits.IsMatrixProduct(n) || a.shardingOf(o) != partialSum || rank(o) != 2 ||
		rank(n.Inputs[0]) != 2 || rank(n.Inputs[1]) != 2 {
		return false
	}
	return n.Is("MatMul", "Gemm") || n.Domain() != "" && n.OpType() == "FusedMatMul" &&
		n.Int("transBatchA", 0) == 0 && n.Int("transBatchB", 0) == 0
}

// gemm is a product that adds to the sum so far.
func (a *applier) gemm(n *onnx.Node, inputs []*onnx.Value, sum *onnx.Value) *onnx.Value {
	attrs := []onnx.Attribute{
		onnx.IntAttr("transA", n.Int("transA", 0)), onnx.IntAttr("transB", n.Int("transB", 0)),
		onnx.FloatAttr("alpha", n.Float("alpha", 1)),
	}
	return a.b.Op("Gemm", build.In(inputs[0], inputs[1], sum), attrs...)
}

// input returns what the part's clone of n reads as its input k.
func (a *applier) input(n *onnx.Node, k int, v *onnx.Value, i int64) (*onnx.Value, error) {
	if c, ok := a.counted[onnx.Use{Node: n, Index: k}]; ok {
		return a.countedIn(n, k, i, c)
	}
	return a.taken(n, k, v, i)
}

// taken is input, but for places that a part counts anew.
func (a *applier) taken(n *onnx.Node, k int, v *onnx.Value, i int64) (*onnx.Value, error) {
	w := a.now[v]
	if w != nil && v.Producer != nil && a.in[v.Producer] {
		return w, nil
	}
	if k == 1 && n.Is("Reshape", "Expand") || k == 0 && n.Is("ConstantOfShape") {
		return a.shapeOf(n.Outputs[0])
	}
	if k == 3 && n.Is("Resize") {
		return a.sizesOf(n)
	}
	if k == 1 && n.Is("Split") && a.dividesAlong(n, splitAxis(n)) {
		return a.splitOf(v)
	}
	if parts := a.shared[v]; parts != nil {
		return parts[i], nil
	}
	c := a.shardingOf(v)
	if c < 0 || a.readsWhole(n, k, v) {
		return v, nil
	}
	if w != nil { // another node took it
		return w, nil
	}
	d, _ := v.Type.Shape[c].Int()
	if d%a.parts != 0 {
		return nil, fmt.Errorf("node %q: %d parts do not divide %v", n.Label(), a.parts, v.Type)
	}
	step := d / a.parts
	if a.stretchesOf(v) > 1 {
		w, err := a.pieceOf(v, i)
		a.now[v] = w
		return w, err
	}
	w = a.b.Op("Slice", build.In(a.entry(v), a.b.Ints(i*step), a.b.Ints((i+1)*step), a.b.Ints(int64(c))))
	a.now[v] = w
	return w, nil
}

// readsWhole reports an entry that this reader broadcasts, though another one
// reads it divided.
func (a *applier) readsWhole(n *onnx.Node, k int, v *onnx.Value) bool {
	if a.whole[onnx.Use{Node: n, Index: k}] {
		return true
	}
	if k > 0 && (n.Is("Slice", "Squeeze", "Unsqueeze", "Pad") || strings.HasPrefix(n.OpType(), "Reduce")) {
		return true // axes and bounds
	}
	if traits.IsMatrixProduct(n) && len(n.Inputs) > 1 {
		co := a.shardingOf(n.Outputs[0])
		if co == partialSum || int(co) < rank(n.Outputs[0])-2 {
			return false // each factor is read as it is cut
		}
		if v == n.Inputs[1] && v != n.Inputs[0] && a.shardingOf(n.Inputs[0]) >= 0 {
			return true
		}
		return v == n.Inputs[0] && v != n.Inputs[1] && int(co) == rank(n.Outputs[0])-1
	}
	return false
}

// shapeOf is the shape of one part of v, as a constant.
func (a *applier) shapeOf(v *onnx.Value) (*onnx.Value, error) {
	dims, ok := a.partOf(v)
	if !ok {
		return nil, fmt.Errorf("%q: its extents are not static", v.Name)
	}
	return a.b.Ints(dims...), nil
}

// partOf are the extents of one part of v, where they are known.
func (a *applier) partOf(v *onnx.Value) ([]int64, bool) {
	dims, ok := v.Type.Shape.Ints()
	if c := a.shardingOf(v); ok && c >= 0 {
		dims = slices.Clone(dims)
		dims[c] /= a.parts
	}
	return dims, ok
}

// sizesOf are those that a Resize of a part gives the axes that it names, or all.
func (a *applier) sizesOf(n *onnx.Node) (*onnx.Value, error) {
	o := n.Outputs[0]
	if !n.Has("axes") {
		return a.shapeOf(o)
	}
	dims, ok := a.partOf(o)
	if !ok {
		return nil, fmt.Errorf("%q: its extents are not static", o.Name)
	}
	var sizes []int64
	for _, x := range n.Ints("axes") {
		axis, _ := onnx.Axis(x, rank(o))
		sizes = append(sizes, dims[axis])
	}
	return a.b.Ints(sizes...), nil
}

// splitOf are the extents of a part of each piece of a Split, of those of all.
func (a *applier) splitOf(v *onnx.Value) (*onnx.Value, error) {
	extents, err := constants(v)
	if err != nil {
		return nil, fmt.Errorf("%q %w", v.Name, err)
	}
	extents = slices.Clone(extents)
	for i := range extents {
		extents[i] /= a.parts
	}
	return a.b.Ints(extents...), nil
}

// accumulate adds this part's summand to the sum so far.
func (a *applier) accumulate(o *onnx.Value) {
	prev := a.sum[o]
	if prev == nil { // the first summand, or one whose product took the sum in
		a.sum[o] = a.now[o]
		return
	}
	a.sum[o] = a.b.Op("Add", build.In(prev, a.now[o]))
}

// join puts the parts together under the old names and removes the region.
func (a *applier) join() error {
	for _, o := range a.leaving() {
		if a.keepApart(o) {
			a.shared[o] = a.pieces[o]
			continue
		}
		a.b.From(o.Producer, "join/"+o.Name)
		var whole *onnx.Value
		if a.shardingOf(o) == partialSum {
			whole = a.sum[o]
			if a.mean[o] {
				whole = a.b.Op("Mul", build.In(whole, a.b.Scalar(o.Type.DType, 1/float64(a.parts))))
			}
		} else {
			whole = a.b.Op("Concat", a.pieces[o], onnx.IntAttr("axis", int64(a.shardingOf(o))))
		}
		if a.b.Err() != nil {
			return a.b.Err()
		}
		whole.Type = o.Type
		a.graph.TakeOver(o, whole)
		a.joined[o] = whole
	}
	var err error
	if a.b.Nodes, err = control.Lower(a.graph, a.b.Nodes); err != nil {
		return err
	}
	a.b.Flush()
	a.removeRegion()
	return nil
}

// keepApart reports a value whose parts are read in parts by another region.
func (a *applier) keepApart(o *onnx.Value) bool {
	if a.shared == nil || a.shardingOf(o) < 0 || o.IsOutput() {
		return false
	}
	_, wanted := a.shared[o]
	return wanted
}

// removeRegion deletes the nodes that were replaced; what makes a value that
// another region still has to take over in parts stays until then.
func (a *applier) removeRegion() {
	gone := map[*onnx.Node]bool{}
	for _, n := range slices.Backward(a.Nodes) {
		output := slices.ContainsFunc(n.Outputs, func(o *onnx.Value) bool { return o != nil && o.IsOutput() })
		if !output && readerLeft(n, gone) == nil {
			gone[n] = true
		}
	}
	a.graph.Remove(slices.DeleteFunc(slices.Clone(a.Nodes), func(n *onnx.Node) bool { return !gone[n] })...)
}
