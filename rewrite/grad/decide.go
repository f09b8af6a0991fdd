package grad

// Whether an initializer is a weight is written in the file where PyTorch's
// dynamo exporter made it (signature.go). In others a candidate that is only added
// or multiplied may be a weight (a LayerNorm's, a position table) or a constant (an
// attention mask, a cosine table). Its name may tell (names.go), and its content: a
// mask holds zeros and very negative numbers, a table of sines starts with sin 0 or
// cos 0 and never leaves [-1,1], or its columns are waves; distances that are added
// to attention scores rise evenly; a schedule rises or falls throughout, and is gathered, with
// others by the same indices; of a grid of coordinates, as Swin V2 computes its biases from,
// each depends on one axis.
// Every such guess is listed as a Decision.

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// decide settles whether v is trained: what the options say, else what judge
// finds. A pattern in Params selects among parameters; only its own name makes a
// parameter of a constant.
func (c *chooser) decide(v *onnx.Value) Decision {
	if c.adapters[v.Name] {
		return Decision{Name: v.Name, Shape: v.Type.Shape.String(), Trained: true, Source: FromOptions, Reason: "of a pair that --lora adds"}
	}
	d := c.judge(v)
	d.Name, d.Shape = v.Name, v.Type.Shape.String()
	switch {
	case c.frozen(v.Name):
		d.Trained, d.Open, d.Source, d.Reason = false, false, FromOptions, "named in --frozen"
	case len(c.o.Params) == 0 && len(c.o.Adapters) > 0:
		d.Trained, d.Open, d.Source, d.Reason = false, false, FromOptions, "--lora trains what it adds, and what --params names"
	case len(c.o.Params) == 0:
	case !c.o.Signature.meanAny(c.o.Params, v.Name):
		d.Trained, d.Open, d.Source, d.Reason = false, false, FromOptions, "not named in --params"
	case d.Trained || slices.Contains(c.o.Params, v.Name):
		d.Trained, d.Open, d.Source, d.Reason = true, false, FromOptions, "named in --params"
	}
	return d
}

// frozen reports a name that --frozen means.
func (c *chooser) frozen(name string) bool { return c.o.Signature.meanAny(c.o.Frozen, name) }

// judge settles whether v is a weight by what the file holds.
func (c *chooser) judge(v *onnx.Value) Decision {
	switch {
	case c.listed[v.Name]:
		return Decision{Trained: true, Source: FromParameters, Reason: "the file lists it as a parameter"}
	case c.o.Signature.speaksOf(v.Name):
		d := c.o.Signature.judge(v.Name)
		if d.Trained && sineTable(v) {
			return Decision{Source: FromContent, Reason: "a parameter that holds a table of sines or cosines, as one with requires_grad=False does"}
		}
		return d
	case c.names.torch && namedStatistic(v.Name):
		return Decision{Source: FromName, Reason: "named as a running statistic is"}
	case c.names.torch && ofSpectralNorm(v.Name, c.initializers):
		return Decision{Source: FromName, Reason: "named as a vector of a spectral norm is"}
	case c.fixedNorms[moduleOf(v.Name)]:
		return Decision{Source: FromName, Reason: "of a normalization that is written out with stored statistics, as a FrozenBatchNorm2d is"}
	case c.statistics[v] != "" && !(c.names.torch && c.names.variable(v.Name)): // a parameter may stand under a root
		return Decision{Source: FromUse, Reason: c.statistics[v]}
	case !c.names.variable(v.Name) && sums(v):
		return Decision{Source: FromContent, Reason: "a constant: a product with equal numbers is a sum or a mean, as where a pooling is a convolution"}
	case !c.names.variable(v.Name) && fills(v):
		return Decision{Source: FromContent, Reason: "a constant: equal numbers that a Where fills with"}
	case frequencyTable(v):
		return Decision{Source: FromContent, Reason: "a table of frequencies: only sines and cosines of positions depend on it"}
	case ofGroupNorm(v):
		return Decision{Trained: true, Source: FromUse, Reason: "the scale or shift of a group normalization"}
	case c.begins[v] && !c.names.variable(v.Name):
		return Decision{Source: FromContent, Reason: "a state of zeros, with which a recurrence begins"}
	case c.names.torch && ComputedAhead(v.Name) && freshBias(v):
		return Decision{Trained: true, Source: FromUse, Reason: "zeros that are a layer's bias, as the exporter cuts them out of an attention's"}
	case c.names.torch && !c.names.variable(v.Name) && uniform(v) && !servesOnly(v, ofSlope):
		return Decision{Source: FromContent, Reason: "a constant: all elements are equal, and its name is not a module's"}
	case schedule(v):
		return Decision{Source: FromContent, Reason: "a schedule: it rises or falls throughout, and only places of it are gathered"}
	case c.besideSchedule(v):
		return Decision{Source: FromContent, Reason: "beside a schedule: of as many elements, gathered by the same indices only"}
	case c.angles[v]:
		return Decision{Source: FromUse, Reason: "cosines or sines of a RotaryEmbedding, which are a table as a rule"}
	case coordinates(v):
		return Decision{Source: FromContent, Reason: "a grid of coordinates: each rises or falls along an axis of its own, and no other changes it"}
	case !elementwiseOnly(v):
		return Decision{Trained: true, Source: FromUse, Reason: "a gradient reaches it"}
	case !c.names.variable(v.Name) && addedBias(v):
		return Decision{Trained: true, Source: FromUse, Reason: "the bias of a layer, which is added behind its product"}
	}
	if look := constantLook(v); look != "" {
		return Decision{Source: FromContent, Reason: look}
	}
	if c.names.variable(v.Name) && evenlySpaced(v) {
		return Decision{Trained: true, Open: true, Source: FromContent, Reason: "only used elementwise; evenly spaced, as by linspace"}
	}
	if c.names.variable(v.Name) {
		return Decision{Trained: true, Source: FromName, Reason: "only used elementwise; named as a module's weight is"}
	}
	return Decision{Trained: true, Open: true, Source: FromContent, Reason: "only used elementwise; its values look like a weight's"}
}

// fixedNorms are the modules of a graph by PyTorch whose stored variance no normalization
// reads: their forward writes it out, as that of torchvision's FrozenBatchNorm2d does, whose
// scale and shift are buffers too.
func fixedNorms(g *onnx.Graph) map[string]bool {
	modules := map[string]bool{}
	for _, v := range g.Initializers {
		if module := moduleOf(v.Name); v.Name == module+".running_var" && len(v.Uses()) > 0 && elementwiseOnly(v) {
			modules[module] = true
		}
	}
	return modules
}

// elementwise are the operators that treat a constant and a weight alike.
var elementwise = map[string]bool{
	"Add": true, "Sub": true, "Mul": true, "Div": true, "Where": true, "Pow": true,
	"Min": true, "Max": true, "Sum": true, "Clip": true,
}

// elementwiseOnly reports that v, perhaps reshaped or sliced, only meets
// elementwise operators.
func elementwiseOnly(v *onnx.Value) bool {
	return servesOnly(v, func(u onnx.Use) bool { return u.Node.Domain() == "" && elementwise[u.Node.OpType()] })
}

// servesOnly reports that all that v, perhaps reshaped or sliced, meets is of some kind.
func servesOnly(v *onnx.Value, kind func(onnx.Use) bool) bool {
	for _, u := range v.Uses() {
		switch {
		case u.Index == onnx.Captured:
			return false
		case u.Node.Is("Cast", "Reshape", "Unsqueeze", "Squeeze", "Slice", "Split", "Expand", "Transpose", "Identity") && u.Index == 0:
			for _, o := range u.Node.Returns() {
				if !servesOnly(o, kind) {
					return false
				}
			}
		case !kind(u):
			return false
		}
	}
	return true
}

// standsAsWeight reports an initializer that, perhaps reshaped, is only read where operators
// take weights, so that it is one however few elements it has: the slope of a PRelu, which
// has one by default, the bias of a layer with one output.
func standsAsWeight(v *onnx.Value) bool {
	bias := len(v.Type.Shape) > 0 // a number without an axis is none, as the zero of jax2onnx's products
	return len(v.Uses()) > 0 && servesOnly(v, func(u onnx.Use) bool {
		switch n := u.Node; {
		case expanded(n.In(u.Index)): // zeros, where a layer has no bias
			return ofSlope(u)
		case isOrFuses(n, "Conv", "ConvTranspose", "Gemm"):
			return u.Index == 1 || u.Index == 2 && bias
		case isOrFuses(n, "MatMul"):
			return u.Index == 1
		case n.Is("Add") && len(n.Inputs) == 2:
			return bias && ofOneColumn(n.In(1-u.Index))
		}
		return ofSlope(u)
	})
}

// expanded reports what was made larger than it is stored.
func expanded(v *onnx.Value) bool {
	by := v.Behind("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity").Producer
	return by != nil && by.Is("Expand")
}

// isOrFuses reports a node of one of these operators, or one in which ONNX Runtime fuses it with others.
func isOrFuses(n *onnx.Node, ops ...string) bool {
	op, fused := strings.CutPrefix(n.OpType(), "Fused")
	return n.Is(ops...) || fused && n.Domain() == microsoft && slices.Contains(ops, op)
}

// ofSlope reports the slope of a PRelu.
func ofSlope(u onnx.Use) bool { return u.Node.Is("PRelu") && u.Index == 1 }

// ofOneColumn reports a product with a matrix of one column, or a convolution of one filter
// that adds nothing itself, perhaps with the axes moved.
func ofOneColumn(v *onnx.Value) bool {
	n := v.Behind("Transpose", "Reshape", "Squeeze", "Cast").Producer
	if n == nil || !n.Is("MatMul", "Conv") || len(n.Inputs) > 2 {
		return false
	}
	channels, _, ok := channelsOf(n, n.In(1))
	return ok && channels == 1
}

// addedBias reports a number a channel that is only added to what a convolution or a product with weights
// returns that adds none itself, as Paddle writes the biases of convolutions.
func addedBias(v *onnx.Value) bool {
	return len(v.Uses()) > 0 && servesOnly(v, func(u onnx.Use) bool {
		if !u.Node.Is("Add") || len(u.Node.Inputs) != 2 {
			return false
		}
		other := u.Node.In(1-u.Index).Behind("Identity", "Cast")
		if other == nil || other.Producer == nil {
			return false
		}
		n := other.Producer
		if !n.Is("Conv", "ConvTranspose", "MatMul") || n.In(2) != nil {
			return false
		}
		channels, behind, ok := channelsOf(n, n.In(1).Behind("Identity", "Cast"))
		s := u.Node.In(u.Index).Type.Shape
		if !ok || channels < 2 || len(s) <= behind || !s[len(s)-1-behind].Is(channels) {
			return false
		}
		return s.Elements().Is(channels)
	})
}

// channelsOf is how many channels a convolution or a product returns, and how many axes are behind theirs, by
// its weights, which may be stored with their axes moved.
func channelsOf(n *onnx.Node, w *onnx.Value) (channels int64, behind int, ok bool) {
	axis := 1
	if n.Is("Conv") {
		axis = 0
	}
	if w == nil {
		return 0, 0, false
	}
	if by := w.Producer; by != nil && by.Is("Transpose") {
		perm := by.Ints("perm")
		if len(perm) <= axis {
			return 0, 0, false
		}
		w, axis = by.In(0), int(perm[axis])
	}
	if w.Init == nil {
		return 0, 0, false
	}
	dims := w.Init.Dims()
	if axis < 0 || axis >= len(dims) || n.Is("MatMul") && len(dims) != 2 {
		return 0, 0, false
	}
	channels = dims[axis]
	if n.Is("ConvTranspose") {
		channels *= n.Int("group", 1)
	}
	return channels, len(dims) - 2, true
}

// freshBias reports zeros that are only read as a layer's bias, beside a matrix that was computed
// ahead too. TorchScript cuts the bias of an attention's projections into parts, so that no name
// tells, and a fresh one is zero.
func freshBias(v *onnx.Value) bool {
	return len(v.Uses()) > 0 && v.IsZero() && servesOnly(v, func(u onnx.Use) bool {
		return u.Node.Is("Gemm") && u.Index == 2 && ComputedAhead(u.Node.In(1).Name)
	})
}

// ofGroupNorm reports a scale or shift of channels right behind an InstanceNormalization
// whose groups were reshaped back to channels, as TorchScript writes a GroupNorm. It
// computes their axes ahead, so that no name tells, and fresh ones are all ones or zeros.
func ofGroupNorm(v *onnx.Value) bool {
	if len(v.Uses()) == 0 || !ofChannels(v) {
		return false
	}
	for _, u := range v.Uses() {
		if u.Index == onnx.Captured || !u.Node.Is("Mul", "Add") || len(u.Node.Inputs) != 2 {
			return false
		}
		normed := u.Node.In(1 - u.Index)
		if m := normed.Producer; u.Node.Is("Add") && m != nil && m.Is("Mul") {
			if normed = m.In(0); !behindGroups(normed) {
				normed = m.In(1)
			}
		}
		if !behindGroups(normed) {
			return false
		}
	}
	return true
}

// ofChannels reports a shape that is broadcast along axis 1 of a tensor of at least one
// axis more: of its axes only the first is long.
func ofChannels(v *onnx.Value) bool {
	s := v.Type.Shape
	if len(s) < 2 || s[0].Is(1) {
		return false
	}
	return !slices.ContainsFunc(s[1:], func(d onnx.Dim) bool { return !d.Is(1) })
}

// behindGroups reports an InstanceNormalization's output in another shape.
func behindGroups(v *onnx.Value) bool {
	n := v.Producer
	if n == nil || !n.Is("Reshape") {
		return false
	}
	by := n.In(0).Producer
	return by != nil && by.Is("InstanceNormalization")
}

// leastSchedule is how many elements a schedule has at least: so many random ones are in
// order once in 20,160 times.
const leastSchedule = 8

// schedule reports a vector that rises or falls throughout, of which only places are
// gathered, as a diffusion model gathers noise levels by the time.
func schedule(v *onnx.Value) bool {
	if len(v.Type.Shape) != 1 || len(gatheredBy(v)) == 0 {
		return false
	}
	values := contents(v, maxContents)
	if len(values) < leastSchedule {
		return false
	}
	up := values[1] > values[0]
	for i := 1; i < len(values); i++ {
		if values[i] == values[i-1] || values[i] > values[i-1] != up {
			return false
		}
	}
	return true
}

// evenlySpaced reports a vector whose values rise or fall by the same step throughout, up to
// rounding.
func evenlySpaced(v *onnx.Value) bool {
	values := contents(v, maxLook)
	n := len(values)
	if n < leastSchedule || !slices.Contains(v.Init.Dims(), int64(n)) {
		return false
	}
	first, last := values[0], values[n-1]
	for i, x := range values {
		at := first + (last-first)*float64(i)/float64(n-1)
		if !(math.Abs(x-at) <= 1e-6*math.Max(math.Abs(first), math.Abs(last))) {
			return false
		}
	}
	return first != last
}

// coordinates reports a grid: one number for each of its axes, that rises or falls along the
// axis and is the same, to the bit, along all others.
func coordinates(v *onnx.Value) bool {
	var sizes []int // of the axes, without those of size one
	total := 1
	for _, d := range v.Type.Shape {
		n, ok := d.Int()
		if total *= int(n); !ok || total < 1 || total > maxLook {
			return false
		}
		if n > 1 {
			sizes = append(sizes, int(n))
		}
	}
	axes := len(sizes) - 1
	if axes < 2 || sizes[axes] != axes || slices.Min(sizes[:axes]) < 3 {
		return false
	}
	values := contents(v, maxLook)
	if values == nil {
		return false
	}
	along := map[int]bool{}
	for of := range axes {
		stride, found := axes, false
		for axis := axes - 1; axis >= 0; axis-- {
			if !found && !along[axis] && onlyAlong(values[of:], axes, stride, sizes[axis]) {
				along[axis], found = true, true
			}
			stride *= sizes[axis]
		}
		if !found {
			return false
		}
	}
	return true
}

// onlyAlong reports that every step-th number rises or falls along an axis, of that stride and
// size, throughout, and is the same along all others.
func onlyAlong(values []float64, step, stride, size int) bool {
	at := func(place int) float64 { return values[place*stride] }
	for i := 1; i < size; i++ {
		if at(i) == at(i-1) || at(i) > at(i-1) != (at(1) > at(0)) {
			return false
		}
	}
	for i := 0; i < len(values); i += step {
		if values[i] != at(i/stride%size) {
			return false
		}
	}
	return true
}

// gatheredBy are the indices by which places of v are gathered, none if anything else is done
// with it.
func gatheredBy(v *onnx.Value) []*onnx.Value {
	var all []*onnx.Value
	for _, u := range v.Uses() {
		var by []*onnx.Value
		switch {
		case u.Index != 0:
		case u.Node.Is("Identity", "Cast"):
			by = gatheredBy(u.Node.Out(0))
		case u.Node.Is("Gather", "GatherElements", "GatherND"):
			by = []*onnx.Value{u.Node.In(1)}
		}
		if len(by) == 0 {
			return nil
		}
		all = append(all, by...)
	}
	return all
}

// besideSchedule reports a vector as long as a schedule, of which only the same places are
// gathered, as the weight of a diffusion model's loss at a time is.
func (c *chooser) besideSchedule(v *onnx.Value) bool {
	by := gatheredBy(v)
	return len(v.Type.Shape) == 1 && len(by) > 0 && !slices.ContainsFunc(by, func(index *onnx.Value) bool {
		return !slices.ContainsFunc(c.schedules[index], func(s *onnx.Value) bool { return slices.Equal(s.Init.Dims(), v.Init.Dims()) })
	})
}

// schedules are those of a graph, by what gathers places of them.
func schedules(g *onnx.Graph) map[*onnx.Value][]*onnx.Value {
	found := map[*onnx.Value][]*onnx.Value{}
	for _, v := range g.Initializers {
		if v.Type.DType.IsFloat() && schedule(v) {
			for _, index := range gatheredBy(v) {
				found[index] = append(found[index], v)
			}
		}
	}
	return found
}

// uniform reports equal elements.
func uniform(v *onnx.Value) bool {
	n, err := v.Init.Elements()
	if err != nil || n < 2 || n > maxContents {
		return false
	}
	data, err := v.Init.Bytes()
	size := len(data) / int(n)
	return err == nil && size > 0 && bytes.Equal(data[size:], data[:len(data)-size])
}

// sums reports a matrix or filter of equal numbers, as no weights begin but zeros.
func sums(v *onnx.Value) bool {
	return len(v.Type.Shape) > 1 && uniform(v) && !v.IsZero() && servesOnly(v, func(u onnx.Use) bool {
		return isOrFuses(u.Node, "MatMul") || isOrFuses(u.Node, "Conv", "ConvTranspose", "Gemm") && u.Index == 1
	})
}

// fills reports equal numbers, one for each place of what a Where takes them instead of: jax2onnx
// writes the 0 of jnp.where(m, x, 0) so, and the NaN of a variance of nothing. A vector of
// numbers may be what a layer learns in their place.
func fills(v *onnx.Value) bool {
	if !uniform(v) {
		return false
	}
	values, err := v.Init.Float64s()
	return err == nil && (len(v.Type.Shape) > 1 || math.IsNaN(values[0])) && servesOnly(v, func(u onnx.Use) bool {
		if !u.Node.Is("Where") || u.Index == 0 {
			return false
		}
		other := u.Node.In(3 - u.Index)
		return !held(other) && slices.Equal(other.Type.Shape, u.Node.In(u.Index).Type.Shape)
	})
}

// maxLook is how many elements of a candidate are looked at, and maxContents how many are read.
const (
	maxLook     = 1 << 16
	maxContents = 1 << 26
)

// constantLook says why v's content looks like no weight, "" where it does.
func constantLook(v *onnx.Value) string {
	values := contents(v, maxContents)
	if values == nil {
		return ""
	}
	all := values
	values = values[:min(len(values), maxLook)]
	distinct := map[float64]bool{}
	lowest, highest := math.Inf(1), math.Inf(-1)
	for _, x := range values {
		if len(distinct) < 4 {
			distinct[x] = true
		}
		lowest, highest = math.Min(lowest, x), math.Max(highest, x)
	}
	twoValued := len(distinct) == 2 && longAxes(v) > 1
	if len(distinct) <= 3 && (lowest <= -1e4 || distinct[0] && (highest >= 1e4 || distinct[1] && len(v.Type.Shape) >= 2 || twoValued)) {
		return "a mask: it holds only " + listed(distinct)
	}
	if len(distinct) <= 3 && distinct[0] && highest == 0 && (lowest <= -10 || lowest == 0) && len(v.Type.Shape) >= 2 && beforeSoftmax(v, 12) {
		return "a mask: it holds only " + listed(distinct)
	}
	if len(v.Type.Shape) >= 2 && len(distinct) >= 4 && (lowest >= -1 && highest <= 1 && trigRow(v, values) || waves(v, values) || onGrid(v, all)) {
		return "a table of sines or cosines"
	}
	if len(v.Type.Shape) >= 3 && len(distinct) >= 3 && evenRows(v, values) && beforeSoftmax(v, 12) {
		return "a table of distances (ALiBi)"
	}
	return ""
}

// longAxes counts the axes of more than one element.
func longAxes(v *onnx.Value) int {
	count := 0
	for _, d := range v.Type.Shape {
		if !d.Is(1) {
			count++
		}
	}
	return count
}

// sineTable reports a table of sines and cosines, perhaps shifted.
func sineTable(v *onnx.Value) bool {
	if len(v.Type.Shape) < 2 || slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		return isOrFuses(u.Node, "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention")
	}) {
		return false
	}
	values := contents(v, maxSineTable)
	if values == nil {
		return false
	}
	if onGrid(v, values) {
		return true
	}
	values = values[:min(len(values), maxLook)]
	return waves(v, values) || waves(v, steps(v, values))
}

// maxSineTable is the most elements of a table of positions.
const maxSineTable = 1 << 24

// steps are the differences from row to row, of a wave another wave.
func steps(v *onnx.Value, values []float64) []float64 {
	wide, ok := v.Type.Shape[len(v.Type.Shape)-1].Int()
	n := int(wide)
	if !ok || n < 1 || len(values) < 2*n {
		return nil
	}
	out := make([]float64, len(values)/n*n-n)
	for i := range out {
		out[i] = values[i+n] - values[i]
	}
	return out
}

// beforeSoftmax reports that v, perhaps reshaped or sliced, is added to what a
// Softmax or an Attention reads, within that many nodes.
func beforeSoftmax(v *onnx.Value, depth int) bool {
	hit := false
	for _, u := range v.Uses() {
		switch {
		case u.Node.Is("Softmax"), u.Node.Is("Attention") && u.Index == 3:
			hit = true
		case u.Node.Is("Add", "Sub", "Where", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Slice", "Expand", "Transpose", "Identity", "Max"):
			if depth == 0 || u.Node.Out(0) == nil || !beforeSoftmax(u.Node.Out(0), depth-1) {
				return false
			}
			hit = true
		case u.Index == onnx.Captured || !u.Node.Is("Shape", "IsNaN"):
			return false
		}
	}
	return hit
}

func listed(set map[float64]bool) string {
	var parts []string
	for x := range set {
		parts = append(parts, fmt.Sprintf("%.3g", x))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// waves reports rows of which each column is a wave: f(i-1) + f(i+1) = k f(i)
// with a k of its own, as holds for sines and cosines of multiples of an angle,
// whatever they are scaled by. One column at least must bend.
func waves(v *onnx.Value, values []float64) bool {
	s := v.Type.Shape
	length, ok1 := s[len(s)-2].Int()
	wide, ok2 := s[len(s)-1].Int()
	n := int(wide)
	if !ok1 || !ok2 || n < 2 {
		return false
	}
	return waveRows(values[:min(int(length), len(values)/n)*n], n)
}

// waveRows is waves of rows of n.
func waveRows(values []float64, n int) bool {
	if len(values) < leastWave*n {
		return false
	}
	high := 0.0
	for _, x := range values {
		high = math.Max(high, math.Abs(x))
	}
	bends := false
	for col := range n {
		at, most := 0, 0.0
		for i := 1; i < len(values)/n-1; i++ {
			if x := math.Abs(values[i*n+col]); x > most {
				at, most = i, x
			}
		}
		if at == 0 || most < 1e-3*high {
			continue // nothing, a sine of small angles, or padding
		}
		sum := func(i int) float64 { return values[(i-1)*n+col] + values[(i+1)*n+col] }
		k := sum(at) / values[at*n+col]
		bends = bends || math.Abs(k) < 1.99
		for i := 1; i < len(values)/n-1; i++ {
			if !(math.Abs(sum(i)-k*values[i*n+col]) <= 1e-4*high) {
				return false
			}
		}
	}
	return bends
}

// leastWave is the fewest rows that tell a wave.
const leastWave = 6

// onGrid reports rows for the places of a grid, one axis of it after another, of which each
// column is a wave along one axis and the same along the other, as positions of an image's
// patches are. Rows of zeros may stand before them, for tokens that have no place.
func onGrid(v *onnx.Value, values []float64) bool {
	s := v.Type.Shape
	length, ok1 := s[len(s)-2].Int()
	wide, ok2 := s[len(s)-1].Int()
	n := int(wide)
	if !ok1 || !ok2 || n < 2 || len(values) != int(length)*n {
		return false
	}
	for len(values) > 0 && !slices.ContainsFunc(values[:n], func(x float64) bool { return x != 0 }) {
		values = values[n:]
	}
	rows := len(values) / n
	for inner := leastWave; inner <= rows/leastWave; inner++ {
		if rows%inner == 0 && wavesOnGrid(values, n, inner) {
			return true
		}
	}
	return false
}

// wavesOnGrid is onGrid for an inner axis of that length.
func wavesOnGrid(values []float64, n, inner int) bool {
	rows := len(values) / n
	var along [2][]int // the columns that change along the outer axis, and along the inner one
	for col := range n {
		outer, in := true, true // may change along this one alone
		for i := 0; i < rows && (outer || in); i++ {
			x := values[i*n+col]
			outer = outer && x == values[i/inner*inner*n+col]
			in = in && x == values[i%inner*n+col]
		}
		switch {
		case outer:
			along[0] = append(along[0], col)
		case in:
			along[1] = append(along[1], col)
		default:
			return false
		}
	}
	for axis, step := range []int{inner, 1} {
		var table []float64
		for i := range []int{rows / inner, inner}[axis] {
			for _, col := range along[axis] {
				table = append(table, values[i*step*n+col])
			}
		}
		if len(table) == 0 || !waveRows(table, len(along[axis])) {
			return false
		}
	}
	return true
}

// evenRows reports rows that rise or fall by the same step throughout.
func evenRows(v *onnx.Value, values []float64) bool {
	wide, ok := v.Type.Shape[len(v.Type.Shape)-1].Int()
	n := int(wide)
	if !ok || n < 3 || len(values) < n {
		return false
	}
	for i, x := range values[:len(values)/n*n] {
		if col := i % n; col >= 2 {
			if math.Abs(x-2*values[i-1]+values[i-2]) > 1e-5*math.Abs(x-values[i-1]) {
				return false
			}
		}
	}
	return true
}

// trigRow reports that the first row is all cos 0 or all sin 0.
func trigRow(v *onnx.Value, values []float64) bool {
	width, ok := v.Type.Shape[len(v.Type.Shape)-1].Int()
	if !ok || width < 2 || int(width) >= len(values) {
		return false
	}
	for _, x := range values[:width] {
		if x != values[0] {
			return false
		}
	}
	return values[0] == 0 || values[0] == 1
}
