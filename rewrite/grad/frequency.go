package grad

// Frequencies of rotary and sinusoidal embeddings against weights before a sine
// (Sitzmann et al., "Implicit Neural Representations with Periodic Activation
// Functions", 2020). Both reach the loss only through Sin and Cos. Two things
// tell them apart, and both are asked for:
//
//	what it meets   positions ─▶ Mul ─▶ Sin, Cos     a table
//	                x ─▶ Gemm ─▶ Sin                 a weight: x is an activation
//	what it holds   1 > θ^-2 > θ^-4 > …, 0 1 2 3 …, or the product of the two
//
// Positions are what is made of integers and such tables. A table that meets a
// float input (the time of a diffusion model) must be an exact geometric
// sequence; one that meets a weight is a weight.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// frequencyTable reports that v is a table of frequencies or positions.
func frequencyTable(v *onnx.Value) bool {
	values := tableValues(v)
	if values == nil || !(falling(values) || counting(values) || countedRows(v, values)) {
		return false
	}
	met, ok := angleOperands(v, 64)
	if !ok {
		return false
	}
	worst := ofIntegers
	for _, o := range met {
		worst = max(worst, originOf(o, map[*onnx.Value]origin{}))
	}
	return worst == ofIntegers || worst == ofInputs && geometric(values)
}

// angleOperands lists what v is multiplied with within that many nodes; ok
// reports that everything made of v ends in a Sin or a Cos.
func angleOperands(v *onnx.Value, budget int) (met []*onnx.Value, ok bool) {
	ends := 0
	seen := map[*onnx.Node]bool{}
	ours := map[*onnx.Value]bool{v: true}
	stack := []*onnx.Value{v}
	for len(stack) > 0 {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if top == nil || top.IsOutput() {
			return nil, false
		}
		for _, u := range top.Uses() {
			switch {
			case seen[u.Node]:
			case u.Node.Is("Shape"):
			case u.Node.Is("Sin", "Cos"):
				ends++
			case u.Index == 0 && u.Node.Is("Gather", "Cast", "Expand", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Slice", "Identity"):
				ours[u.Node.Out(0)] = true
				stack = append(stack, u.Node.Out(0))
			case u.Node.Is("Mul", "MatMul", "Gemm", "Einsum", "Concat"):
				met = append(met, u.Node.Inputs...)
				ours[u.Node.Out(0)] = true
				stack = append(stack, u.Node.Out(0))
			default:
				return nil, false
			}
			if seen[u.Node] = true; len(seen) > budget {
				return nil, false
			}
		}
	}
	return slices.DeleteFunc(met, func(o *onnx.Value) bool { return o == nil || ours[o] }), ends > 0
}

// An origin is what a value depends on, the worst of it.
type origin int

const (
	ofIntegers origin = iota // integers, constants of one element, tables
	ofInputs                 // float inputs besides
	ofWeights                // initializers that could be trained
)

// originOf follows v to the graph's inputs and initializers.
func originOf(v *onnx.Value, known map[*onnx.Value]origin) origin {
	if v == nil || !v.Type.DType.IsFloat() && v.Type.DType != onnx.Undefined {
		return ofIntegers
	}
	if o, ok := known[v]; ok {
		return o
	}
	o := ofIntegers
	switch {
	case v.Init != nil:
		values := tableValues(v)
		if len(values) != 1 && (values == nil || !(falling(values) || counting(values) || countedRows(v, values))) {
			o = ofWeights
		}
	case v.Producer == nil:
		o = ofInputs
	default:
		for _, in := range v.Producer.Inputs {
			o = max(o, originOf(in, known))
		}
		if len(v.Producer.Subgraphs()) > 0 {
			o = ofWeights
		}
	}
	known[v] = o
	return o
}

// tableValues is the content of an initializer small enough for a table, nil
// where it is none.
func tableValues(v *onnx.Value) []float64 { return contents(v, 1<<22) }

// contents are the elements of an initializer, nil where it has none or more than most, or they
// cannot be read.
func contents(v *onnx.Value, most int64) []float64 {
	if v == nil || v.Init == nil {
		return nil
	}
	if n, err := v.Init.Elements(); err != nil || n == 0 || n > most {
		return nil
	}
	values, err := v.Init.Float64s()
	if err != nil {
		return nil
	}
	return values
}

// falling reports frequencies: at most 1, never rising, not below zero; perhaps
// the same sequence twice, for the two halves of a head.
func falling(values []float64) bool {
	if n := len(values) / 2; n > 1 && slices.Equal(values[:n], values[n:]) {
		values = values[:n]
	}
	last := len(values) - 1
	if last < 1 || !(values[0] <= 1) || !(values[last] >= 0) || values[0] == values[last] {
		return false
	}
	return slices.IsSortedFunc(values, func(a, b float64) int {
		switch {
		case a > b:
			return -1
		case a < b:
			return 1
		}
		return 0
	})
}

// geometric reports frequencies that fall by the same factor each.
func geometric(values []float64) bool {
	if len(values) < 3 || !falling(values) {
		return false
	}
	if n := len(values) / 2; n > 1 && slices.Equal(values[:n], values[n:]) {
		values = values[:n]
	}
	for i := 2; i < len(values); i++ {
		if math.Abs(values[i]*values[0]-values[i-1]*values[1]) > 1e-3*values[i-1]*values[1] {
			return false
		}
	}
	return true
}

// counting reports whole numbers that rise by one.
func counting(values []float64) bool {
	for i, x := range values {
		if x != values[0]+float64(i) || x != math.Trunc(x) || x < 0 {
			return false
		}
	}
	return len(values) > 1
}

// countedRows reports the angles k·w, (k+1)·w, (k+2)·w, … of frequencies w, or falling ones as of
// distances from a place: k is whole, perhaps below zero.
func countedRows(v *onnx.Value, values []float64) bool {
	if len(v.Type.Shape) < 2 {
		return false
	}
	wide, ok := v.Type.Shape[len(v.Type.Shape)-1].Int()
	width := int(wide)
	if !ok || width < 2 || len(values) < 3*width {
		return false
	}
	rows := len(values) / width
	w := make([]float64, width) // from the first row to the last, which rounds the least
	for i := range w {
		w[i] = (values[(rows-1)*width+i] - values[i]) / float64(rows-1)
	}
	step := 1.0
	if w[0] < 0 {
		step = -1
		for i := range w {
			w[i] = -w[i]
		}
	}
	first := math.Round(values[0] / w[0])
	if !falling(w) || math.Abs(first) > 1<<20 {
		return false
	}
	for i, x := range values {
		turn := first + step*float64(i/width)
		if math.Abs(x-turn*w[i%width]) > 1e-5*math.Max(1, math.Abs(turn))*w[i%width] {
			return false
		}
	}
	return true
}
