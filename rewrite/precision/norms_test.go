package precision

import (
	"math"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
)

// TestNormsOfSmallDeviations: at the first loss scale, at which the sum over a channel and its gradient
// fit in float16, all between them does, however small the channel's deviation.
func TestNormsOfSmallDeviations(t *testing.T) {
	const loss = 65536
	x, z := make([]float32, 4*4*256), make([]float32, 4*2*256)
	for i := range x {
		x[i] = float32(math.Sin(float64(i*i%977) + float64(i)))
	}
	for i := range z {
		b, c, k := i/512, i/256%2, i%256
		z[i] = x[b*1024+c*256+k] // channel c follows what it is multiplied by
	}
	feeds := map[string]runtime.Tensor{"x": runtime.FromFloat32s(x, 4, 4, 16, 16), "z": runtime.FromFloat32s(z, 4, 2, 16, 16)}
	for _, norm := range []string{
		"y, m, v = BatchNormalization(h, scale, bias, bias, scale) {training_mode=1, epsilon=1e-08}",
		"y = InstanceNormalization(h, scale, bias) {epsilon=1e-08}",
	} {
		s := derived(t, `in x float32[4,4,16,16]
			in z float32[4,2,16,16]
			init W float32[2,4,1,1] = [0.007, 0.0005, -0.0005, 0.001, -0.001, 0.007, 0.0005, -0.001]
			init scale float32[2] = [1, 1]
			init bias float32[2] = [0, 0]
			h = Conv(x, W)
			`+norm+`
			q = Mul(y, z)
			loss = ReduceMean(q) {keepdims=0}
			out loss float32[]`)
		want := run(t, clone(t, s.model), feeds, 1, 1)
		m := clone(t, s.model)
		apply(t, m, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
		got := run(t, m, feeds, 1, loss)
		for key, v := range want {
			if slices.ContainsFunc(got[key], func(g float64) bool { return math.IsNaN(g) || math.IsInf(g, 0) }) {
				t.Errorf("%s: %s overflows: %v", norm, key, got[key])
			} else if d := distance(got[key], v); d > 0.02 {
				t.Errorf("%s: %s is apart by %.3f", norm, key, d)
			}
		}
	}
}

// TestStatisticsOfNorms: what a norm saves for its gradient is float32 also where it runs in half, on
// every provider's kernels.
func TestStatisticsOfNorms(t *testing.T) {
	for _, norm := range []string{"y = LayerNormalization(h, scale, bias)", "y = SimplifiedLayerNormalization(h, scale)"} {
		for _, o := range []Options{
			{To: onnx.Float16, Provider: kernels.CPU}, {To: onnx.BFloat16, Provider: kernels.CPU}, {To: onnx.Float16, Provider: kernels.CUDA},
			{To: onnx.Float16, Emulate: true, Provider: kernels.CPU}, {To: onnx.Float16, StashOnly: true, Provider: kernels.CPU},
		} {
			s := derived(t, `in x float32[2,4]
				init W float32[4,4] = [0.5,-1,2,1,0.25,1,-0.5,1,2,1,1,-1,1,0.5,2,-2]
				init scale float32[4] = [1,2,1,0.5]
				init bias float32[4] = [0.5,1,-1,0.25]
				h = MatMul(x, W)
				`+norm+`
				q = MatMul(y, W)
				loss = ReduceMean(q) {keepdims=0}
				out loss float32[]`)
			apply(t, s.model, o)
			for _, n := range s.model.Graph.Nodes {
				for _, v := range n.Outputs {
					if n.Is("LayerNormalization", "SimplifiedLayerNormalization") && v != nil && v.Index > 0 && v.Type.DType != onnx.Float32 {
						t.Errorf("%s, %+v: %s is %s", norm, o, v.Name, v.Type.DType)
					}
				}
			}
		}
	}
}
