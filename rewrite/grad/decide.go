package grad

// Whether a candidate that is only added or multiplied is a weight (a
// LayerNorm's, a position table) or a constant (an attention mask, a cosine
// table) is not written in the file. Its content tells: a mask holds zeros and
// very negative numbers, a table of sines starts with sin 0 or cos 0 and never
// leaves [-1,1]. Every such guess is listed as a Decision.

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

func decide(v *onnx.Value, o Options, named, listed bool) Decision {
	d := Decision{Name: v.Name, Elementwise: !listed && elementwiseOnly(v)}
	switch {
	case matches(o.Frozen, v.Name):
		d.Reason = "named in --frozen"
	case len(o.Params) > 0:
		d.Trained, d.Reason = named, "named in --params"
		if !named {
			d.Reason = "not named in --params"
		}
	case listed:
		d.Trained, d.Reason = true, "the file lists it as a parameter"
	case frequencyTable(v):
		d.Reason = "a table of frequencies: it only ends in sines and cosines of positions"
	case d.Elementwise:
		d.Reason = constantLook(v)
		d.Trained = d.Reason == ""
		if d.Trained {
			d.Reason = "only used elementwise; its values look like a weight's"
		}
	default:
		d.Trained, d.Reason = true, "a gradient reaches it"
	}
	return d
}

// elementwise are the operators that treat a constant and a weight alike.
var elementwise = map[string]bool{
	"Add": true, "Sub": true, "Mul": true, "Div": true, "Where": true, "Pow": true,
	"Min": true, "Max": true, "Sum": true,
}

// elementwiseOnly reports that v, perhaps reshaped or sliced, only meets
// elementwise operators.
func elementwiseOnly(v *onnx.Value) bool {
	for _, u := range v.Uses() {
		switch {
		case u.Index == onnx.Captured:
			return false
		case u.Node.Is("Cast", "Reshape", "Unsqueeze", "Squeeze", "Slice", "Expand", "Transpose", "Identity") && u.Index == 0:
			if !elementwiseOnly(u.Node.Out(0)) {
				return false
			}
		case u.Node.Domain() != "" || !elementwise[u.Node.OpType()]:
			return false
		}
	}
	return true
}

// maxLook is how many elements of a candidate are looked at.
const maxLook = 1 << 16

// constantLook says why v's content looks like no weight, "" where it does.
func constantLook(v *onnx.Value) string {
	n, err := v.Init.Elements()
	if err != nil || n > 1<<26 {
		return ""
	}
	values, err := v.Init.Float64s()
	if err != nil || len(values) == 0 {
		return ""
	}
	values = values[:min(len(values), maxLook)]
	distinct := map[float64]bool{}
	lowest, highest := math.Inf(1), math.Inf(-1)
	for _, x := range values {
		if len(distinct) < 4 {
			distinct[x] = true
		}
		lowest, highest = math.Min(lowest, x), math.Max(highest, x)
	}
	if len(distinct) <= 3 && (lowest <= -1e4 || distinct[0] && distinct[1] && len(v.Type.Shape) >= 2) {
		return "a mask: it holds only " + listed(distinct)
	}
	if len(v.Type.Shape) >= 2 && lowest >= -1 && highest <= 1 && len(distinct) >= 4 && trigRow(v, values) {
		return "a table of sines or cosines"
	}
	return ""
}

func listed(set map[float64]bool) string {
	var parts []string
	for x := range set {
		parts = append(parts, fmt.Sprintf("%.3g", x))
	}
	sort.Strings(parts)
	return strings.Join(parts, ", ")
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
