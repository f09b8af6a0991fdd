package grad

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// TestResizeMatrix holds the matrices that the gradient of Resize is made of to what
// ONNX Runtime's kernel makes of unit vectors, form by form and size by size.
func TestResizeMatrix(t *testing.T) {
	sizes := [][2]int64{{1, 3}, {2, 5}, {3, 2}, {4, 4}, {5, 1}, {5, 3}, {6, 15}, {7, 10}, {10, 7}, {13, 6}}
	scales := []float64{0.3, 0.5, 0.7, 1.1, 1.5, 1.7, 2.5}
	for _, coordinates := range coordinateModes {
		for _, form := range []string{
			`mode="nearest"`, `mode="nearest", nearest_mode="floor"`, `mode="nearest", nearest_mode="ceil"`, `mode="nearest", nearest_mode="round_prefer_ceil"`,
			`mode="linear"`, `mode="cubic"`, `mode="cubic", cubic_coeff_a=-0.5`, `mode="cubic", exclude_outside=1`,
			`mode="linear", antialias=1`, `mode="cubic", antialias=1`, `mode="linear", antialias=1, exclude_outside=1`, `mode="cubic", antialias=1, exclude_outside=1`,
		} {
			form += fmt.Sprintf(", coordinate_transformation_mode=%q", coordinates)
			var body, outs strings.Builder
			inputs := map[string]*onnx.Tensor{}
			extents := map[string][2]int64{}
			add := func(name string, in, out int64, size string) {
				eye := make([]float64, in*in)
				for i := range in {
					eye[i*in+i] = 1
				}
				inputs["x"+name] = onnx.FloatTensor(onnx.Float32, eye, 1, 1, in, in)
				extents["y"+name] = [2]int64{in, out}
				fmt.Fprintf(&body, "in x%s float32[1,1,%d,%d]\n%s{%s}\n", name, in, in, size, form)
				fmt.Fprintf(&outs, "out y%s float32[1,1,%d,%d]\n", name, in, out)
			}
			for i, s := range sizes {
				name := fmt.Sprintf("s%d", i)
				add(name, s[0], s[1], fmt.Sprintf("init n%s int64[4] = [1, 1, %d, %d]\ny%s = Resize(x%s, _, _, n%s) ", name, s[0], s[1], name, name, name))
				for k, scale := range scales {
					if out := int64(float64(s[0]) * scale); out > 0 {
						name := fmt.Sprintf("s%dk%d", i, k)
						add(name, s[0], out, fmt.Sprintf("init n%s float32[4] = [1, 1, 1, %g]\ny%s = Resize(x%s, _, n%s) ", name, scale, name, name, name))
					}
				}
			}
			m, err := onnx.Parse("model ir=9 opset=19\ngraph g {\n" + body.String() + outs.String() + "}\n")
			if err != nil {
				t.Fatal(err)
			}
			got := ortest.Run(t, m, 0, inputs)
			for _, n := range m.Graph.Nodes {
				y := n.Out(0).Name
				in, out := extents[y][0], extents[y][1]
				scale := float64(out) / float64(in)
				if v := n.In(2); v != nil {
					all, _ := v.Init.Float64s()
					scale = all[3]
				}
				if in == out {
					continue // a copy
				}
				matrix := resizeMatrix(n, in, out, scale)
				for o := range out {
					for i := range in {
						if d := math.Abs(matrix[o][i] - got[y][i*out+o]); !(d < 2e-4) {
							t.Errorf("%s: %d to %d by %g: element %d of %d weighs %g, ONNX Runtime %g", form, in, out, scale, o, i, matrix[o][i], got[y][i*out+o])
						}
					}
				}
			}
		}
	}
}
