package grad

// Resize is linear and separable: along each axis the output is a matrix times
// the input, whose rows hold the weights of one output element. Backward is the
// transposed matrix, one product an axis:
//
//	y[o] = Σ_i A[o,i] x[i]        dx[i] = Σ_o A[o,i] g[o]
//
// Whole nearest upsampling, the common case, is a sum over each element's
// copies. The coordinates are those of ONNX's Resize-19. Weakness: extents must
// be known, and the matrices are dense.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var coordinateModes = []string{"half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_half_pixel_for_nn", "half_pixel_symmetric"}

func gradResize(c *Context) {
	n, x, y := c.Node, c.In(0), c.Out(0)
	in, out, ok := resizeExtents(x, y)
	switch {
	case !ok:
		c.Fail("extents that are unknown: give --dim")
		return
	case !slices.Contains(coordinateModes, n.Str("coordinate_transformation_mode", "half_pixel")):
		c.Fail("coordinate_transformation_mode %s is not supported", n.Str("coordinate_transformation_mode", ""))
		return
	}
	if slices.Equal(in, out) { // whatever the scales, the kernel copies
		c.Add(0, c.Loose(0))
		return
	}
	scales, ok := resizeScales(c, in, out)
	if !ok {
		c.Fail("scales that are unknown before the run: give --dim where they follow from a free extent")
		return
	}
	g := c.Grad(0)
	if whole := wholeCopies(n, in, out, scales); whole != nil {
		c.Add(0, c.sumCopies(g, whole))
		return
	}
	for axis := range in {
		if in[axis] == out[axis] && (scales[axis] == 1 || n.Int("antialias", 0) != 0) {
			continue
		}
		if !c.table(in[axis], out[axis]) {
			return
		}
		g = c.alongMatrix(g, axis, in[axis], resizeMatrix(n, in[axis], out[axis], scales[axis]))
	}
	c.Add(0, g)
}

// resizeExtents are those of x and y. A free extent that stays what it is counts
// as one.
func resizeExtents(x, y *onnx.Value) (in, out []int64, ok bool) {
	from, to := x.Type.Shape, y.Type.Shape
	if !x.Type.Ranked || !y.Type.Ranked || len(from) != len(to) {
		return nil, nil, false
	}
	for i := range from {
		a, ok1 := from[i].Int()
		b, ok2 := to[i].Int()
		if !ok1 || !ok2 {
			if from[i] != to[i] || !from[i].Known() {
				return nil, nil, false
			}
			a, b = 1, 1
		}
		in, out = append(in, a), append(out, b)
	}
	return in, out, true
}

// resizeScales are the factors of all axes: given, or the ratio of the sizes.
func resizeScales(c *Context, in, out []int64) ([]float64, bool) {
	all := make([]float64, len(in))
	for i := range all {
		all[i] = 1
		if c.In(3) != nil && in[i] > 0 {
			all[i] = float64(out[i]) / float64(in[i])
		}
	}
	if c.In(3) != nil {
		return all, keepAspect(c, in, all)
	}
	v := c.In(2)
	if v == nil {
		return nil, false
	}
	if !v.IsConstant() {
		return nil, false
	}
	given, err := v.Init.Float64s()
	if err != nil {
		return nil, false
	}
	axes := c.Node.Ints("axes")
	for i, s := range given {
		k := i
		if len(axes) == len(given) {
			k = c.axis(axes[i], c.In(0))
		}
		if k < len(all) {
			all[k] = s
		}
	}
	return all, true
}

// keepAspect makes the factors of the resized axes one where the node asks for it: the
// least or the largest that the given sizes, which are then only bounds, come to.
func keepAspect(c *Context, in []int64, all []float64) bool {
	policy := c.Node.Str("keep_aspect_ratio_policy", "stretch")
	if policy == "stretch" {
		return true
	}
	sizes, ok := c.Ints(c.In(3))
	axes := c.Node.Ints("axes")
	if !c.Node.Has("axes") {
		for i := range in {
			axes = append(axes, int64(i))
		}
	}
	if !ok || len(sizes) != len(axes) {
		return false
	}
	factor := 0.0
	for i, size := range sizes {
		f := float64(size) / float64(in[c.axis(axes[i], c.In(0))])
		if i == 0 || (f < factor) == (policy == "not_larger") {
			factor = f
		}
	}
	for _, a := range axes {
		all[c.axis(a, c.In(0))] = factor
	}
	return true
}

// wholeCopies returns the factors where every element is copied a whole number
// of times, side by side; nil where not.
func wholeCopies(n *onnx.Node, in, out []int64, scales []float64) []int64 {
	if n.Str("mode", "nearest") != "nearest" {
		return nil
	}
	whole := make([]int64, len(in))
	for i := range in {
		if in[i] == 0 || out[i] > maxTable || out[i]%in[i] != 0 || scales[i] != float64(out[i]/in[i]) {
			return nil
		}
		whole[i] = out[i] / in[i]
		for o := range out[i] {
			if whole[i] != 1 && nearestIndex(n, o, in[i], out[i], scales[i]) != o/whole[i] {
				return nil
			}
		}
	}
	return whole
}

// sumCopies sums g over blocks of so many elements along each axis.
func (c *Context) sumCopies(g *onnx.Value, blocks []int64) *onnx.Value {
	var shape onnx.Shape
	var axes []int
	for i, b := range blocks {
		shape = append(shape, c.In(0).Type.Shape[i])
		if b != 1 {
			axes = append(axes, len(shape))
			shape = append(shape, onnx.Static(b))
		}
	}
	return c.Sum(c.ReshapeDims(g, shape), false, axes...)
}

// alongMatrix is Σ_o matrix[o][i] g[..., o, ...] along an axis.
func (c *Context) alongMatrix(g *onnx.Value, axis int, in int64, matrix [][]float64) *onnx.Value {
	if g == nil {
		return nil
	}
	s := append(onnx.Shape(nil), g.Type.Shape...)
	out := int64(len(matrix))
	before, after := s[:axis].Elements(), s[axis+1:].Elements()
	s[axis] = onnx.Static(in)
	if after.Is(1) {
		values := make([]float64, 0, in*out)
		for _, row := range matrix {
			values = append(values, row...)
		}
		m := c.Const(onnx.FloatTensor(g.Type.DType, values, out, in))
		return c.ReshapeDims(c.Op("Gemm", build.In(c.ReshapeDims(g, onnx.Shape{before, onnx.Static(out)}), m)), s)
	}
	values := make([]float64, in*out)
	for o, row := range matrix {
		for i, w := range row {
			values[int64(i)*out+int64(o)] = w
		}
	}
	m := c.Const(onnx.FloatTensor(g.Type.DType, values, in, out))
	return c.ReshapeDims(c.Do("MatMul", m, c.ReshapeDims(g, onnx.Shape{before, onnx.Static(out), after})), s)
}

// resizeMatrix holds the weights: a row for each of out elements.
func resizeMatrix(n *onnx.Node, in, out int64, scale float64) [][]float64 {
	mode := n.Str("mode", "nearest")
	a := n.Float("cubic_coeff_a", -0.75)
	exclude, smooth := n.Int("exclude_outside", 0) != 0, n.Int("antialias", 0) != 0
	rows := make([][]float64, out)
	for o := range rows {
		row := make([]float64, in)
		at := resizeCoordinate(n, int64(o), in, out, scale)
		switch mode {
		case "nearest":
			row[nearestIndex(n, int64(o), in, out, scale)] = 1
		case "linear":
			if smooth {
				smoothWeights(row, at, scale, 1, exclude, func(d float64) float64 { return 1 - d })
				break
			}
			low := math.Floor(at)
			t := at - low
			row[clampIndex(low, in)] += 1 - t
			row[clampIndex(low+1, in)] += t
		default:
			if smooth {
				smoothWeights(row, at, scale, 2, exclude, cubic(a))
				break
			}
			cubicWeights(row, at, a, exclude)
		}
		rows[o] = row
	}
	return rows
}

// resizeCoordinate is the place in the input that output element o shows, in float32
// step by step: the nearest element can hang on the last bit.
func resizeCoordinate(n *onnx.Node, place, from, to int64, factor float64) float64 {
	o, in, out, scale := float32(place), float32(from), float32(to), float32(factor)
	if scale == 1 {
		return float64(o)
	}
	half := float32(float32(o+0.5) / scale)
	switch n.Str("coordinate_transformation_mode", "half_pixel") {
	case "asymmetric":
		return float64(o / scale)
	case "align_corners":
		if out == 1 {
			return 0
		}
		return float64(float32(o*(in-1)) / (out - 1))
	case "pytorch_half_pixel":
		if out <= 1 {
			return 0
		}
	case "tf_half_pixel_for_nn":
		return float64(half)
	case "half_pixel_symmetric": // its sum is one of doubles
		adjust := out / float32(scale*in)
		offset := float32(float32(in/2) * float32(1-adjust))
		return float64(float32(float64(offset) + (float64(o)+0.5)/float64(scale) - 0.5))
	}
	return float64(half - 0.5)
}

// nearestIndex is the element that output element o copies.
func nearestIndex(n *onnx.Node, o, in, out int64, scale float64) int64 {
	at := resizeCoordinate(n, o, in, out, scale)
	return clampIndex(nearest(n.Str("nearest_mode", "round_prefer_floor"), at), in)
}

func nearest(mode string, x float64) float64 {
	switch mode {
	case "floor":
		return math.Floor(x)
	case "ceil":
		return math.Ceil(x)
	case "round_prefer_ceil":
		return math.Floor(x + 0.5)
	}
	return math.Ceil(x - 0.5)
}

func clampIndex(x float64, n int64) int64 { return min(max(int64(x), 0), n-1) }

// smoothWeights adds the weights of a filter of that reach, widened by as much as the
// axis shrinks, so that every input element counts; they are divided by their sum.
// What lies outside counts as the edge, or not at all.
func smoothWeights(row []float64, at, scale, reach float64, exclude bool, filter func(float64) float64) {
	wide := max(1/scale, 1)
	low, high := math.Floor(at+1-reach*wide), math.Floor(at+1+reach*wide)
	if exclude {
		low, high = max(low, 0), min(high, float64(len(row)))
	}
	sum := 0.0
	for k := low; k < high; k++ {
		d := math.Abs(k-at) / wide
		if d >= reach {
			continue
		}
		w := filter(d)
		row[clampIndex(k, int64(len(row)))] += w
		sum += w
	}
	for i := range row {
		row[i] /= sum
	}
}

// cubic is the convolution's kernel with coefficient a, for distances up to two.
func cubic(a float64) func(float64) float64 {
	return func(d float64) float64 {
		if d <= 1 {
			return ((a+2)*d-(a+3))*d*d + 1
		}
		return ((a*d-5*a)*d+8*a)*d - 4*a
	}
}

// cubicWeights adds the four weights of the cubic convolution with coefficient
// a (R. Keys, 1981).
func cubicWeights(row []float64, at, a float64, exclude bool) {
	low := math.Floor(at)
	t := at - low
	filter := cubic(a)
	sum := 0.0
	for k := -1.0; k <= 2; k++ {
		w := filter(math.Abs(k - t))
		if i := low + k; exclude && (i < 0 || i >= float64(len(row))) {
			continue
		}
		row[clampIndex(low+k, int64(len(row)))] += w
		sum += w
	}
	if exclude && sum != 0 {
		for i := range row {
			row[i] /= sum
		}
	}
}
