package grad

import (
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestMasters: parameters of a half type become float32 of the same numbers, and their
// gradients are float32; frozen ones stay as they are. Without masters a gradient has its
// parameter's type.
func TestMasters(t *testing.T) {
	const text = `in x HALF[2,3]
in i int64[3]
init w HALF[3,2] = [1,-0.5,0.25,3,2,-1]
init frozen.w HALF[2,2] = [1,2,3,4]
init v float32[2] = [1,2]
a = MatMul(x, w)
b = MatMul(a, frozen.w)
r = Gather(w, i)
k = Gelu(b)
c = Cast(k) {to=1}
d = Cast(r) {to=1}
e = Mul(c, v)
f = ReduceSum(e) {keepdims=0}
g = ReduceSum(d) {keepdims=0}
loss = Add(f, g)
`
	for _, half := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
		for _, masters := range []bool{true, false} {
			m := parseGraph(t, strings.ReplaceAll(text, "HALF", half.String()), "loss float32")
			res, err := Differentiate(m, Options{Masters: masters, Frozen: []string{"frozen*"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			want := map[string]onnx.DType{"w": half, "v": onnx.Float32}
			if masters {
				want["w"] = onnx.Float32
			}
			for _, p := range res.Params {
				if p.Input.Type.DType != want[p.Name] || p.Grad.Type.DType != want[p.Name] || p.Data.DType() != want[p.Name] {
					t.Errorf("%s, masters %v: %s is %s of %s, its gradient %s", half, masters, p.Name, p.Input.Type, p.Data.Type(), p.Grad.Type)
				}
				if data, _ := p.Data.Float64s(); p.Name == "w" && !slices.Equal(data, []float64{1, -0.5, 0.25, 3, 2, -1}) {
					t.Errorf("%s: w is %v", half, data)
				}
			}
			if v := m.Graph.Value("frozen.w"); v.Type.DType != half {
				t.Errorf("%s: a frozen weight is %s", half, v.Type)
			}
			if said := len(res.Warnings) > 0; said != masters {
				t.Errorf("%s, masters %v: warnings %q", half, masters, res.Warnings)
			}
			for _, n := range m.Graph.Nodes { // neither is in the CPU's kernels, or the operator
				if n.Is("ScatterElements") && n.In(0).Type.DType.IsHalf() || n.Is("HardSigmoid") && n.In(0).Type.DType == onnx.BFloat16 {
					t.Errorf("%s: %s reads %s", half, n.OpType(), n.In(0).Type)
				}
			}
		}
	}
}
