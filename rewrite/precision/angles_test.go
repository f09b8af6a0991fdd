package precision

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
)

// Angles of timesteps up to 1000: by element, by an outer product, by a product with trained
// frequencies, and of places of two coordinates.
var angles = map[string]string{
	"elements": `init f float32[1,4] = [1, 0.5, 0.25, 0.125]
		a = Mul(t, f)`,
	"outer product": `init f float32[1,4] = [1, 0.5, 0.25, 0.125]
		a = MatMul(t, f)`,
	"moved": `init f float32[1,4] = [1, 0.5, 0.25, 0.125]
		init axis int64[1] = [0]
		init shape int64[2] = [3, 4]
		m = Mul(t, f)
		u = Unsqueeze(m, axis)
		a = Reshape(u, shape)`,
	"coordinates": `init f float32[2,4] = [1, 0.5, 0.25, 0.125, 0.3, 0.7, 0.9, 0.2]
		tt = Concat(t, t) {axis=1}
		a = MatMul(tt, f)`,
}

// TestAnglesStayFloat32: what sines make of timesteps is right to the rounding of what
// reads them, in each half type and way, and so is the gradient that flows through one to
// trained frequencies.
func TestAnglesStayFloat32(t *testing.T) {
	feeds := map[string]runtime.Tensor{
		"t": runtime.FromFloat32s([]float32{997, 613, 401}, 3, 1),
		"z": runtime.FromFloat32s([]float32{1, -0.5, 0.25, 2, -1, 0.75}, 3, 2),
	}
	for name, angle := range angles {
		s := derived(t, `in t float32[3,1]
			in z float32[3,2]
			init W float32[8,2] = [0.5, -1, 1, 0.25, -0.75, 0.5, 1, 1, 0.125, -0.5, 0.5, 0.5, -1, 0.75, 0.25, -0.25]
			`+angle+`
			s = Sin(a)
			c = Cos(a)
			h = Concat(s, c) {axis=1}
			y = MatMul(h, W)
			w = Mul(y, z)
			loss = ReduceMean(w) {keepdims=0}
			out loss float32[]`)
		want := run(t, clone(t, s.model), feeds, 1, 1)
		for _, o := range []Options{
			{To: onnx.BFloat16, Provider: kernels.CPU}, {To: onnx.BFloat16, Emulate: true, Provider: kernels.CPU},
			{To: onnx.BFloat16, StashOnly: true, Provider: kernels.CPU}, {To: onnx.Float16, NoScale: true, Provider: kernels.CPU},
			{To: onnx.Float16, Emulate: true, NoScale: true, Provider: kernels.CPU},
		} {
			m := clone(t, s.model)
			apply(t, m, o)
			got := run(t, m, feeds, 1, 1)
			for key, v := range want {
				if d := distance(got[key], v); d > 0.02 {
					t.Errorf("%s, %+v: %s is %v, want %v, apart by %.3f", name, o, key, got[key], v, d)
				}
			}
		}
	}
}

// TestActivationsAreNoAngles: the sine of what a layer in half made is computed in half.
func TestActivationsAreNoAngles(t *testing.T) {
	s := derived(t, `in x float32[4,16]
		init W float32[16,8] = zeros
		init V float32[8,8] = zeros
		h = MatMul(x, W)
		a = Sin(h)
		y = MatMul(a, V)
		loss = ReduceMean(y) {keepdims=0}
		out loss float32[]`)
	apply(t, s.model, Options{To: onnx.Float16, Provider: kernels.CUDA})
	for _, n := range s.model.Graph.Nodes {
		if n.Is("Sin") && n.Out(0).Type.DType != onnx.Float16 {
			t.Errorf("the sine of an activation is %s", n.Out(0).Type.DType)
		}
	}
}
