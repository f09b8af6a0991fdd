package tile

// Rows that are looked up along the divided axis, or put there, at places that lie among each
// sample's own rows:
//
//	h [batch·tokens, width]   places [batch] = 5 11 17 23 …: of six tokens each the last
//
// A part of the places is of rows of the same part, and counts from its first. That is known of
// constants, and of what they and numbers that have bounds make, as the token that an ArgMax finds.
// Weakness: rows that lie in stretches, and places of one sample's rows that a feed gives.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// counted says of places that each part counts them from its own first row.
type counted struct {
	extent int64    // of the axis that they count along
	along  sharding // the axis of the places whose parts are those of the samples
	// column is the place in a tuple, of so many; -1: all are places.
	column, tuple int
	// fromEnd: some count from the end of the axis.
	fromEnd bool
}

// mostPlaces bounds the places that are looked at, and mostSteps the nodes that make them.
const mostPlaces, mostSteps = 1 << 16, 16

// lookUpOwn: Gather along the divided axis at places of each sample's own; known is false where it is
// none.
func lookUpOwn(r *Region, n *onnx.Node) (known, changed bool, err error) {
	data, places := n.Inputs[0], n.Inputs[1]
	axis := sharding(axisOf(n, 0, data))
	if rank(places) == 0 || r.shardingOf(data) != axis {
		return false, false, nil
	}
	along := outermostOf(places, rank(places))
	return r.own(n, data, counted{column: -1}, axis, along, nil, axis+along)
}

// lookUpOwnTuples: GatherND so, by the column of its tuples that names the divided axis.
func lookUpOwnTuples(r *Region, n *onnx.Node) (known, changed bool, err error) {
	c, axis, along, ok, err := r.byTuples(n)
	if !ok || n.Int("batch_dims", 0) != 0 {
		return false, false, err
	}
	return r.own(n, n.Inputs[0], c, axis, along, nil, along)
}

// byTuples tells the axis along which what tuples point into is divided, their column that names it, and the
// axis of the tuples themselves that goes with it; ok is false where none does.
func (r *Region) byTuples(n *onnx.Node) (c counted, axis, along sharding, ok bool, err error) {
	list, named, err := tuplesOf(n)
	axis = r.shardingOf(n.Inputs[0])
	if err != nil || list == 0 || axis < 0 || axis >= named {
		return c, axis, unknown, false, err
	}
	return counted{column: int(axis), tuple: int(named)}, axis, outermostOf(n.Inputs[1], int(list)), true, nil
}

// scatterOwn: ScatterElements into zeros at places of each sample's own along the axis of the
// places, and ScatterND into what is divided, by the column of its tuples that names the divided axis.
func scatterOwn(r *Region, n *onnx.Node) (known, changed bool, err error) {
	table, rows := n.Inputs[0], n.Inputs[2]
	if n.Is("ScatterND") {
		c, axis, along, ok, err := r.byTuples(n)
		if !ok {
			return false, false, err
		}
		return r.own(n, table, c, axis, along, []*onnx.Value{rows}, axis)
	}
	axis := sharding(axisOf(n, 0, table))
	if divided := r.shardingOf(rows) == axis || r.shardingOf(table) == axis; !divided || !isZero(table) && r.shardingOf(table) != axis {
		return false, false, nil
	}
	return r.own(n, table, counted{column: -1}, axis, axis, []*onnx.Value{rows, table}, axis)
}

// everyFew reports a Slice that takes one row of every so many along the divided axis, of which each
// sample has as many times that.
func (r *Region) everyFew(n *onnx.Node) bool {
	data := n.Inputs[0]
	a := r.shardingOf(data)
	if a < 0 || r.stretchesOf(data) > 1 || r.samples == 0 {
		return false
	}
	var bounds [4][]int64 // from, to, axes, steps
	for i := range bounds {
		list, err := constants(n.In(i + 1))
		if err != nil || len(list) != len(bounds[0]) && i > 0 {
			return false
		}
		bounds[i] = list
	}
	extent, _ := data.Type.Shape[a].Int()
	for i, axis := range bounds[2] {
		if from, to, step := bounds[0][i], bounds[1][i], bounds[3][i]; isAxis(axis, data, int(a)) {
			return step > 1 && from >= 0 && from < step && to >= extent && extent%(step*r.samples) == 0
		}
	}
	return false
}

// outermostOf is outermost of the first axes of a value.
func outermostOf(v *onnx.Value, axes int) sharding {
	dims, _ := v.Type.Shape[:axes].Ints()
	return sharding(outermost(dims))
}

// own divides the places that a node reads as its second input, and else what reads are, along an axis,
// and its output, where the places lie among each sample's own rows of data.
func (r *Region) own(n *onnx.Node, data *onnx.Value, c counted, axis, along sharding, reads []*onnx.Value, out sharding) (known, changed bool, err error) {
	places := n.Inputs[1]
	if b := r.shardingOf(places); b != along && b != unknown || r.stretchesOf(places) > 1 || r.stretchesOf(data) > 1 {
		return false, false, nil
	}
	c.extent, _ = data.Type.Shape[axis].Int()
	c.along = along
	if !r.ofEachSample(places, &c, int(along)) {
		return false, false, nil
	}
	r.counted[onnx.Use{Node: n, Index: 1}] = c
	if places.Constant() == nil { // each part has constants of its own, and another node may read all
		reads = append(reads, places)
	}
	if changed, err = r.setAll(reads, along); err != nil {
		return true, false, err
	}
	more, err := r.set(n.Outputs[0], out)
	return true, changed || more, err
}

// ofEachSample reports places that lie among the rows of the sample that they belong to along one
// of their axes.
func (r *Region) ofEachSample(v *onnx.Value, c *counted, along int) bool {
	computed := v.Constant() == nil
	v, column, tuple := joinedColumn(v, c.column, c.tuple)
	for c.column < 0 && v.Producer != nil && v.Producer.Is("Expand") && rank(v.Producer.Inputs[0]) == rank(v) && v.Producer.Inputs[0].Type.Shape[along] == v.Type.Shape[along] {
		v = v.Producer.Inputs[0] // to others along other axes
	}
	dims, static := v.Type.Shape.Ints()
	low, high, ok := bounded(v, mostSteps)
	if !static || !ok || r.samples < 2 || len(low) == 0 || c.extent%r.samples != 0 || dims[along]%r.samples != 0 {
		return false
	}
	inner, _ := onnx.Elements(dims[along+1:])
	rows, each := c.extent/r.samples, dims[along]/r.samples
	for i := range low {
		if column >= 0 && i%tuple != column {
			continue
		}
		if high[i] < 0 {
			low[i], high[i], c.fromEnd = low[i]+c.extent, high[i]+c.extent, true
		}
		first := int64(i) / inner % dims[along] / each * rows
		if low[i] < first || high[i] >= first+rows {
			return false
		}
	}
	return !(computed && c.fromEnd && c.column >= 0)
}

// joinedColumn is the value of narrower tuples that holds a column of tuples which are joined, with its place
// in those, of so many; what is given where they are not joined.
func joinedColumn(v *onnx.Value, column, tuple int) (*onnx.Value, int, int) {
	n := v.Producer
	if column < 0 || n == nil || !n.Is("Concat") || !isAxis(n.Int("axis", 0), v, rank(v)-1) {
		return v, column, tuple
	}
	at := column
	for _, piece := range n.Inputs {
		width, static := piece.Type.Shape[rank(piece)-1].Int()
		switch {
		case !static:
			return v, column, tuple
		case at < int(width):
			return piece, at, int(width)
		}
		at -= int(width)
	}
	return v, column, tuple
}

// bounded are the least and the most that each element of a value may be; false where that is not
// known.
func bounded(v *onnx.Value, steps int) (low, high []int64, ok bool) {
	count, static := v.Type.Shape.Elements().Int()
	if d := v.Type.DType; !static || !v.Type.Ranked || count > mostPlaces || d != onnx.Int64 && d != onnx.Int32 || steps == 0 {
		return nil, nil, false
	}
	if v.Constant() != nil {
		list, err := constants(v)
		return slices.Clone(list), slices.Clone(list), err == nil
	}
	below := func(end int64) ([]int64, []int64, bool) {
		return make([]int64, count), slices.Repeat([]int64{end - 1}, int(count)), end > 0
	}
	n := v.Producer
	switch {
	case n == nil:
	case traits.IsView(n) || n.Is("Cast"):
		return bounded(n.Inputs[0], steps-1)
	case n.Is("ArgMax", "ArgMin"):
		end, _ := n.Inputs[0].Type.Extent(n.Int("axis", 0))
		return below(end)
	case n.Is("Mod") && n.Int("fmod", 0) == 0: // never negative by a positive number
		end, _ := n.Inputs[1].Number()
		return below(int64(end))
	case n.Is("Add"):
		return boundedSum(v, n.Inputs, steps)
	case n.Is("Expand"):
		return boundedSum(v, n.Inputs[:1], steps)
	}
	return nil, nil, false
}

// boundedSum is bounded for a sum of summands that are broadcast to it.
func boundedSum(sum *onnx.Value, summands []*onnx.Value, steps int) (low, high []int64, ok bool) {
	shape, _ := sum.Type.Shape.Ints()
	count, _ := onnx.Elements(shape)
	low, high = make([]int64, count), make([]int64, count)
	for _, v := range summands {
		l, h, ok := bounded(v, steps-1)
		if !ok {
			return nil, nil, false
		}
		dims, _ := v.Type.Shape.Ints()
		for i := range low {
			at := broadcastAt(int64(i), shape, dims)
			low[i], high[i] = low[i]+l[at], high[i]+h[at]
		}
	}
	return low, high, true
}

// broadcastAt is which element of extents dims the i-th one of a shape is, to which they are broadcast.
func broadcastAt(i int64, shape, dims []int64) int64 {
	at, size := int64(0), int64(1)
	for k := len(shape) - 1; k >= len(shape)-len(dims); k-- {
		if d := dims[k-len(shape)+len(dims)]; d > 1 {
			at, size = at+i%shape[k]*size, size*d
		}
		i /= shape[k]
	}
	return at
}

// countedIn are the places that part i of a node looks up, counted from the first row of that part.
func (a *applier) countedIn(n *onnx.Node, k int, i int64, c counted) (*onnx.Value, error) {
	v, first := n.Inputs[k], i*c.extent/a.parts
	if v.Constant() != nil {
		return a.constantPlaces(v, i, c)
	}
	w, err := a.taken(n, k, v, i)
	if err == nil && c.fromEnd {
		w = a.b.Op("Mod", build.In(w, a.b.Const(intTensor(v.Type.DType, []int64{c.extent}, 1))))
	}
	if err != nil || i == 0 {
		return w, err
	}
	less := []int64{first}
	if c.column >= 0 {
		less = make([]int64, c.tuple)
		less[c.column] = first
	}
	return a.b.Op("Sub", build.In(w, a.b.Const(intTensor(v.Type.DType, less, int64(len(less)))))), nil
}

// constantPlaces is countedIn for a constant.
func (a *applier) constantPlaces(v *onnx.Value, i int64, c counted) (*onnx.Value, error) {
	list, err := constants(v)
	if err != nil {
		return nil, err
	}
	dims, _ := v.Type.Shape.Ints()
	part := slices.Clone(dims)
	part[c.along] /= a.parts
	inner, _ := onnx.Elements(dims[c.along+1:])
	var places []int64
	for j, k := range list {
		if int64(j)/inner%dims[c.along]/part[c.along] != i {
			continue
		}
		if c.column < 0 || j%c.tuple == c.column {
			if k < 0 {
				k += c.extent
			}
			k -= i * c.extent / a.parts
		}
		places = append(places, k)
	}
	return a.b.Const(intTensor(v.Type.DType, places, part...)), nil
}

// intTensor makes a tensor of integers of a type.
func intTensor(d onnx.DType, values []int64, dims ...int64) *onnx.Tensor {
	data := make([]byte, d.Size()*int64(len(values)))
	for i, x := range values {
		d.PutInt(data[int64(i)*d.Size():], x)
	}
	return onnx.NewTensor(d, dims, data)
}
