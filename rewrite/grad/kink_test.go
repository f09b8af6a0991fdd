package grad

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// TestDerivativesAtKinks: at a bound the gradient is what PyTorch's autograd
// gives there: nothing for clamp, hardtanh and ReLU6, however they are exported,
// an even share of it among equals for maximum and minimum.
func TestDerivativesAtKinks(t *testing.T) {
	w := []float64{-1, 0, 1, 6, 7}
	for name, c := range map[string]struct {
		body string
		want []float64
	}{
		"Clip":                   {"init lo float32[] = 0\ninit hi float32[] = 6\ny = Clip(w, lo, hi)", []float64{0, 0, 1, 0, 0}},
		"Clip from below":        {"init lo float32[] = 0\ny = Clip(w, lo)", []float64{0, 0, 1, 1, 1}},
		"Clip from above":        {"init hi float32[] = 6\ny = Clip(w, _, hi)", []float64{1, 1, 1, 0, 0}},
		"Clip without bounds":    {"y = Clip(w)", []float64{1, 1, 1, 1, 1}},
		"Max and Min, as dynamo": {"init lo float32[] = 0\ninit hi float32[] = 6\na = Max(w, lo)\ny = Min(hi, a)", []float64{0, 0, 1, 0, 0}},
		"Max of two":             {"in x float32[5]\nb = Mul(x, one)\ny = Max(w, b)", []float64{0, 0.5, 1, 1, 1}},
		"Min of two that train":  {"v = Mul(w, one)\ny = Min(w, v)", []float64{1, 1, 1, 1, 1}},
		"Norm of zeros":          {"init zero float32[] = 0\nv = Mul(w, zero)\nn = ReduceL2(v) {keepdims=1}\nr = Div(n, one)\ny = Add(r, w)", []float64{1, 1, 1, 1, 1}},
		"Norm by a root":         {"init two float32[] = 2\ninit half float32[] = 0.5\nv = Sub(w, w)\np = Pow(v, two)\ns = ReduceSum(p) {keepdims=1}\nr = Pow(s, half)\ny = Add(r, w)", []float64{1, 1, 1, 1, 1}},
		"Normalized zeros":       {"init e float32[] = 0.5\nv = Sub(w, w)\nn = ReduceL2(v) {keepdims=1}\nb = Clip(n, e)\nr = Div(v, b)\ny = Add(r, w)", []float64{1, 1, 1, 1, 1}},
		"LpNormalization":        {"v = Sub(w, w)\nr = LpNormalization(v)\ny = Add(r, w)", []float64{1, 1, 1, 1, 1}},
		"Power of nothing":       {"init k float32[] = 0\ny = Pow(w, k)", []float64{0, 0, 0, 0, 0}},
		"Powers":                 {"in k float32[5]\ny = Pow(w, k)", []float64{0, 0, 0, 0, 0}},
		"Integer powers":         {"init k int64[5] = [1, 0, 2, 1, 1]\ny = Pow(w, k)", []float64{1, 0, 2, 1, 1}},
		"Powers of 32 bits":      {"in k float32[5]\nj = Cast(k) {to=6}\ny = Pow(w, j)", []float64{0, 0, 0, 0, 0}},
		"ReLU":                   {"y = Relu(w)", []float64{0, 0, 1, 1, 1}},
	} {
		m := parseGraph(t, "init w float32[5] = [-1, 0, 1, 6, 7]\ninit one float32[] = 1\n"+c.body+"\nloss = ReduceSum(y) {keepdims=0}", "loss float32")
		if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		inputs := map[string]*onnx.Tensor{"w": onnx.FloatTensor(onnx.Float32, w, 5)}
		for _, fed := range []string{"x", "k"} {
			if v := m.Graph.Value(fed); v != nil && v.IsInput() {
				inputs[fed] = onnx.FloatTensor(onnx.Float32, make([]float64, 5), 5)
			}
		}
		if got := ortest.Run(t, m, 0, inputs)["w.grad"]; !slices.Equal(got, c.want) {
			t.Errorf("%s: gradient %v, want %v", name, got, c.want)
		}
	}
}

// TestInfiniteGradients: a gradient that is infinite where it does not count is none there, as
// PyTorch's autograd masks it. A product with a mask would be NaN.
func TestInfiniteGradients(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []float64
	}{
		"Relu":                   {"v = Relu(w)\ny = Sqrt(v)", []float64{0, 0.5, 0.25}},
		"Clip":                   {"init lo float32[] = 0\nv = Clip(w, lo)\ny = Sqrt(v)", []float64{0, 0.5, 0.25}},
		"Clip for an angle":      {"init lo float32[] = -1\ninit hi float32[] = 1\nv = Clip(w, lo, hi)\nz = Acos(v)\nq = Mul(v, v)\nr = Sub(one, q)\ns = Sqrt(r)\ny = Add(z, s)", []float64{0, 0, 0}},
		"Max":                    {"init lo float32[] = 0\nv = Max(w, lo)\ny = Sqrt(v)", []float64{0, 0.5, 0.25}},
		"Max of two":             {"in x float32[3]\nu = Mul(x, one)\nv = Max(w, u)\ny = Sqrt(v)", []float64{0, 0.5, 0.25}},
		"Where":                  {"init lo float32[] = 0\nc = Greater(w, lo)\nv = Where(c, w, lo)\ny = Sqrt(v)", []float64{0, 0.5, 0.25}},
		"Where not":              {"init lo float32[] = 0\nc = Less(w, lo)\nv = Where(c, lo, w)\nr = Reshape(v, row)\ny = Sqrt(r)", []float64{0, 0.5, 0.25}},
		"ThresholdedRelu":        {"v = ThresholdedRelu(w) {alpha=0.0}\nu = Abs(v)\ny = Sqrt(u)", []float64{0, 0.5, 0.25}},
		"Shrink":                 {"v = Shrink(w) {lambd=2.0}\ny = Sqrt(v)", []float64{0, 0, 0.25}},
		"HardSigmoid":            {"v = HardSigmoid(w) {alpha=0.25, beta=0.0}\ny = Sqrt(v)", []float64{0, 0.25, 0}},
		"HardSwish":              {"init s float32[] = 4\nu = Mul(w, s)\nv = HardSwish(u)\na = Abs(v)\ny = Sqrt(a)", []float64{0, 1, 0.5}},
		"Softshrink":             {"init o float32[] = 0\ninit l float32[] = 3\nd = Sub(w, l)\nb = Abs(w)\nc = Greater(b, l)\nz = Mul(w, o)\nv = Where(c, d, z)\ny = Sqrt(v)", []float64{0, 0, 0.5}},
		"a power":                {"init k float32[] = 0.5\nv = Relu(w)\ny = Pow(v, k)", []float64{0, 0.5, 0.25}},
		"a sum":                  {"u = Neg(w)\nf = Relu(w)\nh = Relu(u)\nk = Add(f, f)\ny = Sqrt(k)\nz = Mul(h, one)", []float64{0, 0.7071067690849304, 0.3535533845424652}},
		"a sum of exponents":     {"init low float32[] = -inf\ninit lo float32[] = 2\nc = Greater(w, lo)\nv = Where(c, w, low)\nr = Reshape(v, column)\ninit ax int64[1] = [1]\nl = ReduceLogSumExp(r, ax)\ny = Relu(l)", []float64{0, 0, 1}},
		"a masked row":           {"init low float32[] = -inf\ninit high float32[] = 9\ninit none float32[] = 0\nc = Greater(w, high)\nv = Where(c, w, low)\nr = Reshape(v, row)\np = Softmax(r)\nn = IsNaN(p)\nk = Where(n, none, p)\ni = IsInf(p)\ny = Where(i, none, k)", []float64{0, 0, 0}},
		"a masked row, filled":   {"init low float32[] = -inf\ninit high float32[] = 9\ninit none float32[] = 0\nc = Greater(w, high)\nv = Where(c, w, low)\nr = Reshape(v, row)\np = Softmax(r)\nc2 = Reshape(c, row)\ny = Where(c2, p, none)", []float64{0, 0, 0}},
		"a masked row, by a sum": {"init low float32[] = -inf\ninit high float32[] = 9\ninit none float32[] = 0\nc = Greater(w, high)\nm = Where(c, none, low)\nv = Add(w, m)\nr = Reshape(v, row)\np = Softmax(r)\nc2 = Reshape(c, row)\ny = Where(c2, p, none)", []float64{0, 0, 0}},
		"a masked row, as one":   {"init low float32[] = -inf\ninit all float32[1,3] = [-inf, -inf, -inf]\ninit none float32[1,3] = [0, 0, 0]\ninit ax int64[1] = [1]\nr = Reshape(w, row)\nv = Add(r, all)\nf = Equal(v, low)\ng = Cast(f) {to=6}\nh = ReduceMin(g, ax)\nc = Cast(h) {to=9}\np = Softmax(v)\nk = Where(c, none, p)\ny = Mul(k, one)", []float64{0, 0, 0}},
		"a mean":                 {"init lo float32[] = 9\nu = Sub(w, lo)\nv = Relu(u)\nn = ReduceMean(v) {keepdims=0}\ny = Sqrt(n)", []float64{0, 0, 0}},
	} {
		m := parseGraph(t, "init w float32[3] = [-1, 1, 4]\ninit one float32[] = 1\ninit row int64[2] = [1, 3]\ninit column int64[2] = [3, 1]\n"+c.body+"\nloss = ReduceSum(y) {keepdims=0}", "loss float32")
		if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		fed := map[string]*onnx.Tensor{"w": onnx.FloatTensor(onnx.Float32, []float64{-1, 1, 4}, 3)}
		if m.Graph.Value("x") != nil {
			fed["x"] = onnx.FloatTensor(onnx.Float32, make([]float64, 3), 3)
		}
		if got := ortest.Run(t, m, 0, fed)["w.grad"]; !slices.Equal(got, c.want) {
			t.Errorf("%s: gradient %v, want %v", name, got, c.want)
		}
	}
}

// TestFarLogarithms: logarithms of what float32 cannot hold have the values and gradients that
// PyTorch's logsigmoid, binary_cross_entropy_with_logits and logaddexp have.
func TestFarLogarithms(t *testing.T) {
	inf := math.Inf(-1)
	for name, c := range map[string]struct {
		body    string
		loss    float64
		w, want []float64
	}{
		"logsigmoid":      {body: "p = Sigmoid(w)\ny = Log(p)", w: []float64{-200, 0, 200}, loss: -200.6931471805599, want: []float64{1, 0.5, 0}},
		"1 less":          {body: "p = Sigmoid(w)\nq = Sub(one, p)\ny = Log(q)", w: []float64{-200, 0, 200}, loss: -200.6931471805599, want: []float64{0, -0.5, -1}},
		"logaddexp":       {body: "in x float32[3]\na = Exp(w)\nb = Exp(x)\ns = Add(a, b)\ny = Log(s)", w: []float64{-200, 0, 200}, loss: 200.6931471805599, want: []float64{0, 0.5, 1}},
		"logaddexp of -∞": {body: "init low float32[3] = [-inf, -inf, 0]\ninit off float32[3] = [-inf, 0, 0]\nv = Add(w, off)\na = Exp(v)\nb = Exp(low)\ns = Add(a, b)\nl = Log(s)\ny = Exp(l)", w: []float64{7, 0, 0}, loss: 3, want: []float64{0, 1, 1}},
	} {
		m := parseGraph(t, "init w float32[3] = [1, 2, 3]\ninit one float32[] = 1\n"+strings.ReplaceAll(c.body, "-inf", fmt.Sprint(inf))+"\nloss = ReduceSum(y) {keepdims=0}", "loss float32")
		if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		fed := map[string]*onnx.Tensor{"w": onnx.FloatTensor(onnx.Float32, c.w, 3)}
		if m.Graph.Value("x") != nil {
			fed["x"] = onnx.FloatTensor(onnx.Float32, make([]float64, 3), 3)
		}
		out := ortest.Run(t, m, 0, fed)
		if got := out["loss"][0]; math.Abs(got-c.loss) > 1e-4 {
			t.Errorf("%s: loss %v, want %v", name, got, c.loss)
		}
		for i, got := range out["w.grad"] {
			if !(math.Abs(got-c.want[i]) <= 1e-6) {
				t.Errorf("%s: gradient %v, want %v", name, out["w.grad"], c.want)
				break
			}
		}
	}
}

// TestGradientOfNothing: an empty part of a value, summed up, takes nothing and
// keeps its shape.
func TestGradientOfNothing(t *testing.T) {
	m := parseGraph(t, `init w float32[2,2] = [1, 2, 3, 4]
init zero int64[1] = [0]
init one int64[1] = [1]
none = Slice(w, zero, zero, one)
sums = ReduceSum(none, one)
y = Add(w, sums)
square = Mul(y, y)
loss = ReduceSum(square) {keepdims=0}`, "loss float32")
	if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil {
		t.Fatal(err)
	}
	for _, level := range []int{0, 1} {
		got := ortest.Run(t, m, level, map[string]*onnx.Tensor{"w": onnx.FloatTensor(onnx.Float32, []float64{1, 2, 3, 4}, 2, 2)})["w.grad"]
		if want := []float64{2, 4, 6, 8}; !slices.Equal(got, want) {
			t.Errorf("level %d: gradient %v, want %v", level, got, want)
		}
	}
}

// TestSteepGrowsWithTheGraph: whether a mask comes before a root is asked of each value once,
// however many layers lie between.
func TestSteepGrowsWithTheGraph(t *testing.T) {
	ortest.GrowsWithTheGraph(t, 384, func(layers int) func() {
		m := parseGraph(t, "in x float32[2]\ninit w float32[2] = [1,2]\nh0 = Mul(x, w)\n"+ortest.Layers(layers, "r# = Relu(h#)\nh+ = Add(h#, r#)\n")+
			fmt.Sprintf("loss = ReduceMean(h%d) {keepdims=0}", layers), "loss float32")
		return func() {
			if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
