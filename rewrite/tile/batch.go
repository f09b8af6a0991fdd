package tile

// The whole step over slices of the batch, one after another in one graph: micro-batches.
//
//	x, target ─▶ forward ─▶ loss_i ─▶ backward ─▶ dW_i     i = 1 … parts
//	                                               dW_1 + dW_2 + … ─▶ update
//
// Activations and their gradients are as large as a slice's; gradients of parameters are
// summed up as they are made, and none is computed twice. The region is all that depends
// on a feed along the axis of the samples. Where one sample's results depend on another's, as
// in a batch norm, a sum over the batch is read within the region, and it is left whole.
//
// Beside the rules of rules.go it knows those of convolutional networks. There the gradient
// of a convolution's weight is a convolution of transposed factors, which contracts the
// batch: divided, it is a sum, and no factor is ever transposed whole. The gradient of an
// embedding scatters a slice's rows into the sum of those before.
//
// What feeds alone lead to and is about as large as they are, as labels that are shifted and
// the number of those that count, is computed whole before the slices where they need a
// sum of it: the mean of a loss divides each slice by that number.

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// batchPass is the origin of what the slices are computed by.
const batchPass = "batch"

// Batch finds the region that the feeds lead through, each divided along an axis.
// The model must be typed and sorted. Feeds that have the samples along another axis, as labels
// of sequences that have the time first, take part once it is found that they are divided.
func Batch(m *onnx.Model, feeds []*onnx.Value, axis int) (*Region, error) {
	divided := map[*onnx.Value]sharding{}
	for _, v := range feeds {
		divided[v] = sharding(axis)
	}
	held := map[*onnx.Node]bool{}
	for {
		first, err := batchRegion(m, feeds, divided, held, false)
		if err == nil {
			return first, nil
		}
		r, why := batchRegion(m, feeds, divided, held, true)
		if why == nil {
			return r, nil
		}
		if hold(m.Graph, held, err) || hold(m.Graph, held, why) {
			continue
		}
		if r == nil { // nothing is left beside what is computed whole
			r = first
		} else {
			err = why // of the attempt that comes further
		}
		known := len(feeds)
		for _, v := range m.Graph.Inputs {
			if _, is := divided[v]; !is && r != nil && r.shardingOf(v) >= 0 {
				divided[v] = r.shardingOf(v)
				feeds = append(slices.Clip(feeds), v)
			}
		}
		if len(feeds) == known {
			return nil, err
		}
	}
}

// hold adds the node for which an attempt failed to those that are held out of the region, with what leads
// there, where that is constants alone: it is computed whole, and cut where it is read. So are the angles
// of positions on several axes, which an exporter puts in their places one by one for a batch that
// is a number. Those of the same operator follow at once, so that there are never more attempts than
// operators, however many layers have such constants. It reports whether there is anything new.
func hold(g *onnx.Graph, held map[*onnx.Node]bool, failed error) bool {
	var skip *SkipError
	if !errors.As(failed, &skip) {
		return false
	}
	fixed := map[*onnx.Value]bool{}
	var alone, leads []*onnx.Node
	var at *onnx.Node
	for _, n := range g.Nodes {
		if fromConstants(n, fixed, math.MaxInt64) {
			mark(n, fixed)
			alone = append(alone, n)
			if n.Label() == skip.What && !held[n] {
				at = n
			}
		}
	}
	for _, n := range alone {
		if at != nil && n.OpType() == at.OpType() && n.Domain() == at.Domain() {
			leads = append(leads, n)
		}
	}
	for len(leads) > 0 {
		n := leads[len(leads)-1]
		leads = leads[:len(leads)-1]
		if held[n] {
			continue
		}
		held[n] = true
		for _, v := range n.Inputs {
			if v != nil && v.Producer != nil {
				leads = append(leads, v.Producer)
			}
		}
	}
	return at != nil
}

// batchRegion is one attempt of Batch, which comes with what it found where it fails; held stays
// out of the region, and where counts is set what countedWhole finds.
func batchRegion(m *onnx.Model, feeds []*onnx.Value, divided map[*onnx.Value]sharding, held map[*onnx.Node]bool, counts bool) (*Region, error) {
	r := emptyRegion(m, batchPass, onnx.Places(m.Graph.Nodes))
	r.more = batchRules
	for _, v := range feeds {
		r.Logits = v
		if _, ok := v.Type.Shape.Ints(); !ok {
			return nil, &SkipError{v.Name, "its extents are not static: fix them with --dim"}
		}
		r.shardings[v] = divided[v]
	}
	if len(feeds) == 0 {
		return nil, &SkipError{"batch", "no feed has a batch axis"}
	}
	r.samples, _ = feeds[0].Type.Shape[divided[feeds[0]]].Int()
	whole := maps.Clone(held)
	if counts {
		maps.Copy(whole, r.countedWhole(feeds))
	}
	r.enter(whole)
	if len(r.in) == 0 {
		return nil, &SkipError{"batch", "nothing but sums over it is computed from the feeds"}
	}
	if err := r.propagate(); err != nil {
		return r, err
	}
	if err := r.grow(); err != nil {
		return r, err
	}
	r.collectExtents()
	return r, nil
}

// enter takes in the readers of all that is known to be divided, but for what is
// computed whole.
func (r *Region) enter(whole map[*onnx.Node]bool) {
	for v, c := range r.shardings {
		for _, u := range v.Uses() {
			if c >= 0 && !whole[u.Node] {
				r.in[u.Node] = true
			}
		}
	}
	r.side = func(n *onnx.Node) bool { return !whole[n] }
}

// countedWhole are the nodes that lead from the feeds alone, through values of at most
// twice the elements of the largest, to a sum over the batch, or to zeros that wait for a
// feed, and those that lead from constants to a sum. It leaves known how their values are
// divided, for the slices that read them.
func (r *Region) countedWhole(feeds []*onnx.Value) map[*onnx.Node]bool {
	most := int64(0)
	for _, v := range feeds {
		n, _ := v.Type.Shape.Elements().Int()
		most = max(most, 2*n) // labels are padded before they are shifted
	}
	alone, fixed, kept := map[*onnx.Value]bool{}, map[*onnx.Value]bool{}, maps.Clone(r.shardings)
	for _, v := range feeds {
		alone[v] = true
	}
	var roots []*onnx.Node
	for _, n := range r.graph.Nodes {
		if fromConstants(n, fixed, most) {
			mark(n, fixed)
			if strings.HasPrefix(n.OpType(), "Reduce") {
				roots = append(roots, n)
			}
			continue
		}
		if !fromAlone(n, alone, fixed, most) {
			continue
		}
		mark(n, alone)
		if r.ruleOf(n) == nil || unranked(n) != nil {
			continue
		}
		_, err := r.ruled(n)
		root := timesZero(n)
		for _, o := range n.Returns() {
			apart := r.stretchesOf(o) > 1 // nothing cuts it so
			if err != nil || r.shardingOf(o) == partialSum || apart {
				delete(r.shardings, o)
				delete(r.stretches, o)
			}
			root = root || err == nil && !apart && r.shardingOf(o) == unknown
		}
		if root {
			roots = append(roots, n)
		}
	}
	whole := map[*onnx.Node]bool{}
	for len(roots) > 0 {
		n := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		whole[n] = true
		for _, v := range n.Reads() {
			if !alone[v] && !fixed[v] {
				continue
			}
			made := []*onnx.Value{v}
			if v.Producer != nil {
				made = v.Producer.Outputs // slices may read what it makes beside v
			}
			for _, o := range made {
				if c := r.shardingOf(o); c >= 0 {
					kept[o] = c
				}
			}
			if v.Producer != nil && !whole[v.Producer] {
				roots = append(roots, v.Producer)
			}
		}
	}
	for v := range r.stretches { // which nothing cuts
		delete(kept, v)
	}
	clear(r.stretches)
	clear(r.counted)
	r.shardings = kept
	return whole
}

// mark adds what a node makes to a set.
func mark(n *onnx.Node, set map[*onnx.Value]bool) {
	for _, o := range n.Returns() {
		set[o] = true
	}
}

// fromAlone reports a node that reads one of these values, and beside them only constants and what
// is fixed, and makes values of at most that many elements.
func fromAlone(n *onnx.Node, alone, fixed map[*onnx.Value]bool, most int64) bool {
	return slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return alone[v] }) &&
		makesLittle(n, most, func(v *onnx.Value) bool { return alone[v] || fixed[v] })
}

// fromConstants reports a node that makes values of at most that many elements of constants
// alone, and of what is fixed, as labels that are the same for all samples.
func fromConstants(n *onnx.Node, fixed map[*onnx.Value]bool, most int64) bool {
	return len(n.Inputs) > 0 && makesLittle(n, most, func(v *onnx.Value) bool { return fixed[v] })
}

// makesLittle reports a node that reads only constants and what is known, and makes values of at
// most that many elements each, as labels of several kinds that are split.
func makesLittle(n *onnx.Node, most int64, known func(*onnx.Value) bool) bool {
	if len(n.Captures) > 0 {
		return false
	}
	if slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && !known(v) && v.Constant() == nil }) {
		return false
	}
	for _, o := range n.Returns() {
		if elements, ok := o.Type.Shape.Elements().Int(); !o.Type.Ranked || !ok || elements > most {
			return false
		}
	}
	return true
}

// batchRules are the rules of operators that work sample by sample, and of those
// that contract the batch.
var batchRules = map[string]rule{
	"Reshape": rearranged, "Squeeze": rearranged, "Unsqueeze": rearranged, "Flatten": rearranged,
	"Conv": convolve, "ConvTranspose": convolve,
	"AveragePool": perSample, "MaxPool": perSample, "GlobalAveragePool": perSample, "GlobalMaxPool": perSample,
	"LpPool": perSample, "Resize": resized, "DepthToSpace": perSample, "SpaceToDepth": perSample,
	"InstanceNormalization": perSample, "BatchNormalization": byStatistics,
	"LSTM": recurrent, "GRU": recurrent, "RNN": recurrent,
	"LayerNormalization": normalized, "RMSNormalization": normalized, "SimplifiedLayerNormalization": normalized,
	"ReduceProd": reduce, "ReduceLogSum": reduce, "Hardmax": alongAxis, "LpNormalization": alongOwn, "LRN": perSample,
	"GlobalLpPool": perSample, "Col2Im": perSample, "DFT": transformed, "STFT": perSample, "Det": determinant, "ReverseSequence": reversed,
	"Attention": attended, "RotaryEmbedding": rotated, "OneHot": encoded, "GroupNormalization": perSample, "MeanVarianceNormalization": standardized,
	"Dropout": drawn, "RandomNormalLike": drawn, "RandomUniformLike": drawn, "Bernoulli": drawn,
	"GridSample": sampled, "Einsum": multiplied, "TopK": alongOwn, "CumSum": cumulated, "Trilu": triangle,
	"Concat": joinedAlong, "Split": splitAlong,
	"Slice": cutOrFirst, "Tile": repeated, "Gather": lookUp, "GatherND": lookUpTuples, "ScatterElements": scatter, "ScatterND": scatter,
}

// lookUp: Gather by divided indices from a table that is read whole, or from divided
// rows along another axis; where only the result is known to be divided, whichever of
// the two has that axis.
func lookUp(r *Region, n *onnx.Node) (bool, error) {
	if known, changed, err := lookUpOwn(r, n); known {
		return changed, err
	}
	axis, indices := sharding(axisOf(n, 0, n.Inputs[0])), sharding(rank(n.Inputs[1]))
	switch a, b, out := r.shardingOf(n.Inputs[0]), r.shardingOf(n.Inputs[1]), r.shardingOf(n.Outputs[0]); {
	case a < 0 && b < 0 && out < 0:
		return false, nil
	case a < 0 && b < 0 && out < axis:
		return r.set(n.Inputs[0], out)
	case a < 0 && b < 0 && out < axis+indices:
		return r.set(n.Inputs[1], out-axis)
	case a < 0 && b < 0:
		return r.set(n.Inputs[0], out-indices+1)
	case a < 0:
		return r.setAll(n.Outputs, axis+b)
	case b >= 0 || a == axis:
		return false, fmt.Errorf("gathers along the split axis")
	case a > axis:
		return r.setAll(n.Outputs, a-1+indices)
	default:
		return r.setAll(n.Outputs, a)
	}
}

// tuplesOf are how many axes the list of a GatherND's or a ScatterND's tuples has, and how many axes of the
// table a tuple names.
func tuplesOf(n *onnx.Node) (places, named sharding, err error) {
	if places = sharding(rank(n.Inputs[1]) - 1); places < 0 {
		return 0, 0, errors.New("its tuples are no list")
	}
	length, ok := n.Inputs[1].Type.Shape[places].Int()
	if !ok {
		return 0, 0, errors.New("the length of its tuples is not static")
	}
	return places, sharding(length), nil
}

// lookUpTuples: GatherND within a batch that is divided, by divided tuples in what is read whole,
// or of divided axes behind those that tuples name.
func lookUpTuples(r *Region, n *onnx.Node) (bool, error) {
	if known, changed, err := lookUpOwnTuples(r, n); known {
		return changed, err
	}
	data, tuples, out := n.Inputs[0], n.Inputs[1], n.Outputs[0]
	places, named, err := tuplesOf(n)
	if err != nil {
		return false, err
	}
	batch := sharding(n.Int("batch_dims", 0))
	named += batch // axes of the data before those that are kept
	a, b, c := r.shardingOf(data), r.shardingOf(tuples), r.shardingOf(out)
	switch {
	case a < 0 && b < 0 && c < 0:
		return false, nil
	case a >= batch && a < named || b >= places || a >= batch && b >= 0 || b >= batch && a >= 0:
		return false, errors.New("gathers along the split axis")
	case a >= named:
		return r.set(out, a-named+places)
	case a >= 0, b >= 0 && b < batch, a < 0 && b < 0 && c < batch:
		return r.setAll([]*onnx.Value{data, tuples, out}, max(a, b, c))
	case b >= 0:
		return r.set(out, b)
	case c < places:
		return r.set(tuples, c)
	default:
		return r.set(data, c-places+named)
	}
}

// beside: ScatterND by tuples that name axes before the divided one passes the division on; false
// where none of what it reads and makes is known to be divided so.
func beside(r *Region, n *onnx.Node) (passes, changed bool, err error) {
	table, tuples, rows, out := n.Inputs[0], n.Inputs[1], n.Inputs[2], n.Outputs[0]
	places, named, err := tuplesOf(n)
	if err != nil {
		return true, false, err
	}
	a := unknown
	if c := r.shardingOf(rows); c >= places {
		a = c - places + named
	}
	for _, v := range []*onnx.Value{table, out} {
		if c := r.shardingOf(v); c >= named && a == unknown {
			a = c
		}
	}
	if a == unknown {
		return false, false, nil
	}
	if r.shardingOf(tuples) >= 0 {
		return true, false, errors.New("scatters along the split axis")
	}
	if changed, err = r.set(rows, a-named+places); err != nil {
		return true, false, err
	}
	more, err := r.setAll([]*onnx.Value{table, out}, a)
	return true, changed || more, err
}

// repeated: Tile, along other axes.
func repeated(r *Region, n *onnx.Node) (bool, error) {
	times, err := constants(n.Inputs[1])
	if err != nil {
		return false, fmt.Errorf("its repeats %w", err)
	}
	return r.passes(n, func(a int64) error {
		if int(a) >= len(times) || times[a] != 1 {
			return errors.New("repeats the split axis")
		}
		return nil
	})
}

// scatter: rows of the batch that are added to a table, as for the gradient of an
// embedding, are summands of it, and so is what is in the table before, which the first part
// takes in, as the gradient of a penalty; ScatterElements along another axis and ScatterND before it pass the
// division on, and so do places within a part.
func scatter(r *Region, n *onnx.Node) (bool, error) {
	if pool := r.poolOf(n.Inputs[1]); pool != nil {
		return r.scatterWithin(n, pool)
	}
	if n.Is("ScatterND") {
		if passes, changed, err := beside(r, n); passes {
			return changed, err
		}
	}
	if known, changed, err := scatterOwn(r, n); known {
		return changed, err
	}
	b, c := r.shardingOf(n.Inputs[1]), r.shardingOf(n.Inputs[2])
	along := sharding(0)
	if n.Is("ScatterElements") {
		if along = sharding(axisOf(n, 0, n.Inputs[0])); b >= 0 && b != along || b == unknown && c >= 0 && c != along {
			return pick(r, n)
		}
	}
	switch {
	case b == unknown && c >= 0: // constants, or what is computed whole
		return r.set(n.Inputs[1], c)
	case b == unknown || c == unknown:
		return false, nil
	case b != c || n.Is("ScatterND") && int(b) >= rank(n.Inputs[1])-1 || n.Str("reduction", "") != "add":
		return false, fmt.Errorf("scatters along the split axis")
	case r.startsWhole(n):
		if r.waiting = true; !r.settled {
			return false, nil
		}
		if _, err := r.setInput(n, 0, replicated); err != nil {
			return false, err
		}
	case !isZero(n.Inputs[0]) && r.shardingOf(n.Inputs[0]) == unknown && n.Inputs[0].Producer != nil:
		return false, nil
	case !isZero(n.Inputs[0]) && !r.scattersInto(n):
		return false, fmt.Errorf("adds the batch to %q", n.Inputs[0].Name)
	}
	if r.shardingOf(n.Inputs[0]) >= 0 { // zeros that another node reads in parts
		if _, err := r.setInput(n, 0, replicated); err != nil {
			return false, err
		}
	}
	zeros, err := r.zerosOfParts(n.Inputs[0])
	if err != nil {
		return false, err
	}
	summed, err := r.set(n.Outputs[0], partialSum)
	return zeros || summed, err
}

// zerosOfParts has each part make the zeros that it scatters into, where they wait for what is divided.
func (r *Region) zerosOfParts(table *onnx.Value) (bool, error) {
	for v := table; v != nil && r.shardingOf(v) == unknown && v.Producer != nil && r.in[v.Producer]; v = v.Producer.In(0) {
		if r.shardingOf(v.Producer.In(0)) == replicated {
			return r.set(v, replicated)
		}
	}
	return false, nil
}

// poolOf is the MaxPool of the region whose indices a value holds, perhaps in another shape;
// nil for other values. They count places from the beginning of its input, so those of a part
// are places within that part.
func (r *Region) poolOf(v *onnx.Value) *onnx.Node {
	for v.Producer != nil && traits.IsView(v.Producer) {
		v = v.Producer.In(0)
	}
	if n := v.Producer; n != nil && r.in[n] && n.Is("MaxPool") && n.Out(1) == v {
		return n
	}
	return nil
}

// scatterWithin: places of a pool's input, as a list, into zeros as many as its input has. Those
// of a part are scattered into the zeros of that part.
func (r *Region) scatterWithin(n, pool *onnx.Node) (bool, error) {
	table, all := n.Inputs[0].Type.Shape.Elements(), pool.Inputs[0].Type.Shape.Elements()
	if !n.Is("ScatterElements") || rank(n.Inputs[0]) != 1 || table != all || !isZero(n.Inputs[0]) || r.stretchesOf(n.Inputs[1]) > 1 {
		return false, errors.New("reads places that count from the beginning of the batch")
	}
	if b, c := r.shardingOf(n.Inputs[1]), r.shardingOf(n.Inputs[2]); b == unknown || c == unknown {
		return false, nil
	}
	return r.setAll([]*onnx.Value{n.Inputs[0], n.Outputs[0]}, 0)
}

// countsAway says what would take places within a part for places in the batch: who else
// reads a pool's indices than scatterWithin. It is nil for other values.
func (r *Region) countsAway(v *onnx.Value) *SkipError {
	if r.poolOf(v) == nil {
		return nil
	}
	const why = "holds places that count from the beginning of the batch"
	if v.IsOutput() {
		return &SkipError{v.Name, why}
	}
	for _, u := range v.Uses() {
		scatters, views := u.Index == 1 && u.Node.Is("ScatterElements"), u.Index == 0 && traits.IsView(u.Node)
		if !r.in[u.Node] || !scatters && !views && r.shardingOf(u.Node.Outputs[0]) != replicated {
			return &SkipError{u.Node.Label(), "reads " + strconv.Quote(v.Name) + ", which " + why}
		}
	}
	return nil
}

// scattersInto reports a node that adds the batch to a sum over it, which nothing else reads.
func (r *Region) scattersInto(n *onnx.Node) bool {
	if !n.Is("ScatterElements", "ScatterND") || n.Str("reduction", "") != "add" {
		return false
	}
	table := n.Inputs[0]
	return r.shardingOf(table) == partialSum && !r.mean[table] && !table.IsOutput() && len(table.Uses()) == 1
}

// scattered is the node of the region that adds the batch to a sum over it, the sum's only
// reader; nil where there is none.
func (r *Region) scattered(sum *onnx.Value) *onnx.Node {
	uses := sum.Uses()
	if len(uses) != 1 || uses[0].Index != 0 || !r.in[uses[0].Node] || !r.scattersInto(uses[0].Node) {
		return nil
	}
	return uses[0].Node
}

// startsWhole reports a node that scatters into what is made outside of the region: the first part does so, and
// the others go on with the sum.
func (r *Region) startsWhole(n *onnx.Node) bool {
	table := n.Inputs[0]
	return !isZero(table) && r.shardingOf(table) != partialSum && table.Producer != nil && !r.in[table.Producer]
}

// isZero reports zeros of any shape.
func isZero(v *onnx.Value) bool {
	v = v.Behind("Cast", "Expand", "Reshape", "Flatten", "Identity")
	return v.IsZero() || v.Producer != nil && timesZero(v.Producer)
}

// timesZero reports a product of integers with a constant of zeros, which makes zeros
// that are not there before the integers are.
func timesZero(n *onnx.Node) bool {
	if !n.Is("Mul") || !n.Outputs[0].Type.DType.IsInt() {
		return false
	}
	return slices.ContainsFunc(n.Inputs, (*onnx.Value).IsZero)
}

// cutOrFirst: Slice along another axis, a row of every so many of each sample's own, or the first of
// a list, which zeros wait for: each part takes its own.
func cutOrFirst(r *Region, n *onnx.Node) (bool, error) {
	if r.everyFew(n) {
		return r.set(n.Outputs[0], r.shardingOf(n.Inputs[0]))
	}
	if r.shardingOf(n.Inputs[0]) == 0 && rank(n.Inputs[0]) == 1 && n.Outputs[0].Type.Shape[0].Is(1) && onlyTimesZero(n.Outputs[0]) {
		if from, err := constants(n.Inputs[1]); err == nil && len(from) == 1 && from[0] == 0 {
			return r.set(n.Outputs[0], replicated)
		}
	}
	return cutOther(r, n)
}

// onlyTimesZero reports a value whose elements count for nothing.
func onlyTimesZero(v *onnx.Value) bool {
	return !v.IsOutput() && !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !timesZero(u.Node) })
}

// perSample: the first axis passes to every output; other inputs are read whole.
func perSample(r *Region, n *onnx.Node) (bool, error) {
	return r.passes(n, func(a int64) error {
		if a > 0 {
			return fmt.Errorf("works along the split axis")
		}
		return nil
	})
}

// resized: along an axis that keeps its extent each place follows from itself alone. A window cut
// along with it says of all places where they come from. The sizes of a part are set per part.
func resized(r *Region, n *onnx.Node) (bool, error) {
	from, to := n.Inputs[0].Type.Shape, n.Outputs[0].Type.Shape
	return r.passes(n, func(a int64) error {
		switch {
		case from[a] != to[a] || scaled(n, int(a)):
			return errors.New("resizes the split axis")
		case a > 0 && n.Str("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
			return errors.New("cuts a window along the split axis")
		case n.In(3) != nil && n.Str("keep_aspect_ratio_policy", "stretch") != "stretch":
			return errors.New("its sizes follow from each other")
		}
		return nil
	})
}

// scaled reports a Resize that scales an axis by a number that is known and not 1: the axis may keep its extent,
// which is rounded down, but no place of it.
func scaled(n *onnx.Node, axis int) bool {
	scales := n.In(2).Constant()
	if scales == nil || n.In(3) != nil {
		return false
	}
	if axes := n.Ints("axes"); len(axes) > 0 {
		rank := len(n.Inputs[0].Type.Shape)
		axis = slices.IndexFunc(axes, func(a int64) bool { return (int(a)+rank)%rank == axis })
	}
	by, err := scales.Float64s()
	return err == nil && axis >= 0 && axis < len(by) && by[axis] != 1
}

// byStatistics: by those that it is given, not by the batch's.
func byStatistics(r *Region, n *onnx.Node) (bool, error) {
	if n.Int("training_mode", 0) != 0 {
		return false, errors.New("normalizes by the statistics of the batch")
	}
	return perSample(r, n)
}

// passes: an axis of the first input is the same axis of every output, either way, if
// allowed has nothing against it.
func (r *Region) passes(n *onnx.Node, allowed func(int64) error) (bool, error) {
	a := r.shardingOf(n.Inputs[0])
	if a == unknown {
		a = r.shardingOf(n.Outputs[0])
	}
	if a < 0 {
		return false, nil
	}
	if err := allowed(int64(a)); err != nil {
		return false, err
	}
	if err := r.wouldSplit(n.Inputs[1:]...); err != nil {
		return false, err
	}
	changed, err := r.set(n.Inputs[0], a)
	if err != nil {
		return false, err
	}
	more, err := r.setAll(n.Outputs, a)
	return changed || more, err
}

// wouldSplit says which of the values, which every part of a node reads as they are, would be
// split.
func (r *Region) wouldSplit(values ...*onnx.Value) error {
	for _, v := range values {
		if v != nil && r.shardingOf(v) >= 0 {
			return fmt.Errorf("%q, which it reads whole, would be split", v.Name)
		}
	}
	return nil
}

// convolve: samples of the input are samples of the output. A convolution whose input
// channels are the batch, as that for a weight's gradient, contracts it, a stretch in each group. Where
// each sample has groups and filters of its own, a part has those of its samples.
func convolve(r *Region, n *onnx.Node) (bool, error) {
	x, w, out := n.Inputs[0], n.Inputs[1], n.Outputs[0]
	if err := r.wouldSplit(n.In(2)); err != nil {
		return false, err
	}
	switch a, b := r.shardingOf(x), r.shardingOf(w); {
	case a == 0 && b < 0:
		return r.set(out, 0)
	case a == unknown && b < 0 && r.shardingOf(out) == 0:
		return r.set(x, 0)
	case a == 1 && b == 0 && n.In(2) == nil && r.ownGroups(n):
		return r.set(out, 1)
	case a == 1 && b == 1 && n.Is("Conv") && n.In(2) == nil && r.contracts(n):
		return r.set(out, partialSum)
	case a == unknown || a == 1 && b == unknown:
		return false, nil
	}
	return false, fmt.Errorf("works along the split axis")
}

// ownGroups reports a convolution whose groups are the batch, or several of them a sample.
func (r *Region) ownGroups(n *onnx.Node) bool {
	x, w := n.Inputs[0], n.Inputs[1]
	return r.shardingOf(x) == 1 && r.shardingOf(w) == 0 && r.stretchesOf(x) == 1 && r.stretchesOf(w) == 1 && r.samples > 1 && n.Int("group", 1)%r.samples == 0
}

// contracts reports a Conv of channels that are the batch, which sums over them: a stretch in each group,
// or all stretches in one.
func (r *Region) contracts(n *onnx.Node) bool {
	x, w := r.stretchesOf(n.Inputs[0]), r.stretchesOf(n.Inputs[1])
	return n.Int("group", 1) == x && w == 1 || n.Int("group", 1) == 1 && x == w
}

// normalized: over the axes from its own on. Weights that have places of their own along the
// split axis are split with it.
func normalized(r *Region, n *onnx.Node) (bool, error) {
	a := r.shardingOf(n.Inputs[0])
	if a == unknown {
		a = r.shardingOf(n.Outputs[0])
	}
	if a < 0 {
		return false, nil
	}
	if int64(a) >= axisOf(n, -1, n.Inputs[0]) {
		return false, fmt.Errorf("works along the split axis")
	}
	for _, w := range n.Inputs[1:] {
		if w != nil && aligned(w, n.Outputs[0], a) == replicated {
			if err := r.wouldSplit(w); err != nil {
				return false, err
			}
		}
	}
	changed, err := r.broadcast(n, n.Inputs, a)
	if err != nil {
		return false, err
	}
	more, err := r.setAll(n.Outputs[1:], a)
	return changed || more, err
}

// alongOwn: what works along its own axis, the last where none is given.
func alongOwn(r *Region, n *onnx.Node) (bool, error) { return r.apart(n, n.Int("axis", -1)) }

// drawn: numbers at random for each element. A part draws its own, by a seed of its own: the step
// in parts is another draw than the whole one.
func drawn(r *Region, n *onnx.Node) (bool, error) { return r.apart(n) }

// cumulated: CumSum, along another axis that is constant.
func cumulated(r *Region, n *onnx.Node) (bool, error) {
	axis, err := constants(n.Inputs[1])
	if err != nil {
		return false, fmt.Errorf("its axis %w", err)
	}
	return r.passes(n, func(a int64) error {
		if len(axis) != 1 || isAxis(axis[0], n.Inputs[0], int(a)) {
			return errors.New("sums along the split axis")
		}
		return nil
	})
}

// triangle: Trilu, of the last two axes.
func triangle(r *Region, n *onnx.Node) (bool, error) {
	return r.passes(n, func(a int64) error {
		if int(a) >= rank(n.Inputs[0])-2 {
			return errors.New("cuts a triangle along the split axis")
		}
		return nil
	})
}

// joinedAlong: Concat along another axis, all of whose inputs are divided, or of stretches.
func joinedAlong(r *Region, n *onnx.Node) (bool, error) {
	all, a := r.cutAlike(n)
	switch {
	case a == unknown:
		return false, nil
	case int64(a) == axisOf(n, 0, n.Outputs[0]):
		return r.stacked(all, a)
	}
	return r.setAll(all, a)
}

// splitAlong: Split along another axis, or into stretches.
func splitAlong(r *Region, n *onnx.Node) (bool, error) {
	if axis := splitAxis(n); r.dividesAlong(n, axis) {
		if sizes := n.In(1); n.Has("split") || sizes != nil && sizes.Constant() == nil || sizes == nil && !alike(n.Outputs, axis) {
			return false, errors.New("splits along the split axis, by extents that are not constant or not alike")
		}
		return r.stacked(append([]*onnx.Value{n.Inputs[0]}, n.Outputs...), sharding(axis))
	}
	return r.passes(n, func(int64) error { return nil })
}

// alike reports values of the same extent along an axis.
func alike(values []*onnx.Value, axis int64) bool {
	return !slices.ContainsFunc(values, func(v *onnx.Value) bool {
		return v == nil || v.Type.Shape[axis] != values[0].Type.Shape[axis]
	})
}

// splitAxis is the one that a Split or a Concat works along.
func splitAxis(n *onnx.Node) int64 { return axisOf(n, 0, n.Inputs[0]) }

// dividesAlong reports that a node reads or returns something that is divided along an axis.
func (r *Region) dividesAlong(n *onnx.Node, axis int64) bool {
	return slices.ContainsFunc(valuesOf(n), func(v *onnx.Value) bool { return int64(r.shardingOf(v)) == axis })
}
