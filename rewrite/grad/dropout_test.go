package grad

import (
	"math"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// TestDropoutTrains: a mask is drawn, the gradient knows it, at every level.
// With y = x*m/(1-p) and the loss Σ y*w the gradient is w*y/x.
func TestDropoutTrains(t *testing.T) {
	for _, level := range []int{0, 1, 99} {
		m := parseGraph(t, `init x float32[64] = [`+list(64, "2")+`]
in w float32[64]
init r float32[] = 0.4
init on bool[] = true
a = Neg(x)
b = Neg(a)
y = Dropout(b, r, on)
p = Mul(y, w)
loss = ReduceSum(p) {keepdims=0}`, "loss float32", "y float32")
		if _, err := Differentiate(m, Options{}); err != nil {
			t.Fatal(err)
		}
		w := make([]float64, 64)
		for i := range w {
			w[i] = float64(i) - 20
		}
		x := make([]float64, 64)
		for i := range x {
			x[i] = 2
		}
		out := ortest.Run(t, m, level, map[string]*onnx.Tensor{
			"x": onnx.FloatTensor(onnx.Float32, x, 64), "w": onnx.FloatTensor(onnx.Float32, w, 64),
		})
		dropped := 0
		for i, y := range out["y"] {
			if y == 0 {
				dropped++
			}
			if want := w[i] * y / 2; math.Abs(out["x.grad"][i]-want) > 1e-4*math.Abs(want) {
				t.Fatalf("level %d: gradient %g at %d, want %g", level, out["x.grad"][i], i, want)
			}
		}
		if dropped < 10 || dropped > 45 {
			t.Errorf("level %d: %d of 64 dropped at ratio 0.4", level, dropped)
		}
	}
}

// TestUnusedMaskSurvives: a Dropout that no gradient passes still drops at
// level 1, where ONNX Runtime removes one whose mask nobody reads.
func TestUnusedMaskSurvives(t *testing.T) {
	m := parseGraph(t, `in x float32[64]
init w float32[64] = [`+list(64, "3")+`]
init r float32[] = 0.4
init on bool[] = true
b = Neg(x)
y = Dropout(b, r, on)
p = Mul(y, w)
loss = ReduceSum(p) {keepdims=0}`, "loss float32", "y float32")
	if _, err := Differentiate(m, Options{}); err != nil {
		t.Fatal(err)
	}
	x := make([]float64, 64)
	for i := range x {
		x[i] = 1
	}
	out := ortest.Run(t, m, 99, map[string]*onnx.Tensor{"x": onnx.FloatTensor(onnx.Float32, x, 64), "w": onnx.FloatTensor(onnx.Float32, x, 64)})
	dropped := 0
	for i, y := range out["y"] {
		if y == 0 {
			dropped++
		} else if math.Abs(y+1/0.6) > 1e-5 {
			t.Fatalf("y = %g, want %g", y, -1/0.6)
		}
		if out["w.grad"][i] != y {
			t.Fatalf("gradient %g, want %g", out["w.grad"][i], y)
		}
	}
	if dropped < 10 || dropped > 45 {
		t.Errorf("%d of 64 dropped at ratio 0.4", dropped)
	}
}

func TestSeedsDiffer(t *testing.T) {
	m := parseGraph(t, `in x float32[4]
init w float32[4] = [1, 2, 3, 4]
init r float32[] = 0.4
init on bool[] = true
a = Mul(x, w)
b = Dropout(a, r, on)
c = Dropout(b, r, on) {seed=5}
d = Dropout(c, r, on)
loss = ReduceSum(d) {keepdims=0}`, "loss float32")
	if _, err := Differentiate(m, Options{}); err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for _, n := range m.Graph.Nodes {
		if n.Is("Dropout") {
			if !n.Has("seed") || seen[n.Int("seed", 0)] {
				t.Errorf("node %q has seed %d", n.Label(), n.Int("seed", 0))
			}
			seen[n.Int("seed", 0)] = true
		}
	}
	if len(seen) != 3 || !seen[5] {
		t.Errorf("seeds %v", seen)
	}
}

func list(n int, x string) string {
	s := x
	for range n - 1 {
		s += ", " + x
	}
	return s
}
