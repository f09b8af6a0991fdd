package lower

import (
	"math"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

const optimizerModel = "../../testdata/models/ort_training/gpt2_tiny_mask.ts_op17.optimizer_model.onnx"

// sequenceModel wraps an optimizer node: its sequences are built from tensors,
// the updated ones taken apart again.
func sequenceModel(t *testing.T, node string, states int) *onnx.Model {
	t.Helper()
	text := "model ir=9 opset=20 opset[com.microsoft]=1\ngraph g {\nin lr float32[1]\nin step int64[1]\n" +
		"in p0 float32[2]\nin p1 float32[1,2]\nin g0 float32[2]\nin g1 float32[1,2]\n" +
		"in m0 float32[2]\nin m1 float32[1,2]\nin v0 float32[2]\nin v1 float32[1,2]\n" +
		"p = SequenceConstruct(p0, p1)\ng = SequenceConstruct(g0, g1)\nm = SequenceConstruct(m0, m1)\nv = SequenceConstruct(v0, v1)\n" +
		node + "\ninit i0 int64[] = 0\ninit i1 int64[] = 1\n"
	for _, s := range []string{"p", "m", "v"}[:states] {
		text += "new_" + s + "0 = SequenceAt(new_" + s + ", i0)\nnew_" + s + "1 = SequenceAt(new_" + s + ", i1)\n"
	}
	m, err := onnx.Parse(text + "}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"p", "m", "v"}[:states] {
		for _, k := range []string{"0", "1"} {
			v := m.Graph.Value("new_" + s + k)
			v.Type = m.Graph.Value(s + k).Type
			m.Graph.AddOutput(v)
		}
	}
	return m
}

func optimizerInputs() map[string]*onnx.Tensor {
	pair := func(a, b float64, dims ...int64) *onnx.Tensor {
		return onnx.FloatTensor(onnx.Float32, []float64{a, b}, dims...)
	}
	return map[string]*onnx.Tensor{
		"lr": onnx.FloatTensor(onnx.Float32, []float64{0.1}, 1), "step": onnx.Int64Tensor([]int64{3}, 1),
		"p0": pair(1, -2, 2), "p1": pair(0.5, 3, 1, 2), "g0": pair(0.3, -0.1, 2), "g1": pair(1, 2, 1, 2),
		"m0": pair(0.2, 0.1, 2), "m1": pair(-0.4, 0, 1, 2), "v0": pair(0.01, 0.2, 2), "v1": pair(0.3, 0.4, 1, 2),
	}
}

// adamReference is one element's update as the operator defines it.
func adamReference(mode int, w, g, m, v, lr, step, decay float64) (float64, float64, float64) {
	const alpha, beta, eps = 0.8, 0.9, 1e-3
	first, second := 1-math.Pow(alpha, step), 1-math.Pow(beta, step)
	m, v = alpha*m+(1-alpha)*g, beta*v+(1-beta)*g*g
	if mode == 0 {
		return w - w*lr*decay - lr*m/(first*(math.Sqrt(v/second)+eps)), m, v
	}
	w -= lr * math.Sqrt(second) / first * m / (math.Sqrt(v) + eps)
	return w - w*lr*decay, m, v
}

func TestAdamW(t *testing.T) {
	for mode, attrs := range []string{"adam_mode=0", "adam_mode=1"} {
		m := sequenceModel(t, "f, new_p, new_m, new_v = com.microsoft.AdamWOptimizer(lr, step, p, g, m, v) {alpha=0.8, beta=0.9, epsilon=0.001, weight_decay=0.05, correct_bias=1, "+attrs+"}", 3)
		if _, err := Model(m); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		in := optimizerInputs()
		got := ortest.Run(t, m, 1, in)
		number := func(name string, i int) float64 {
			x, err := in[name].Float64s()
			if err != nil {
				t.Fatal(err)
			}
			return x[i]
		}
		for _, k := range []string{"0", "1"} {
			for i := range 2 {
				w, m1, v1 := adamReference(mode, number("p"+k, i), number("g"+k, i), number("m"+k, i), number("v"+k, i), 0.1, 3, 0.05)
				for name, want := range map[string]float64{"new_p": w, "new_m": m1, "new_v": v1} {
					if x := got[name+k][i]; !(math.Abs(x-want) <= 1e-5) {
						t.Errorf("%s: %s%s[%d] = %g, want %g", attrs, name, k, i, x, want)
					}
				}
			}
		}
	}
}

func TestSGD(t *testing.T) {
	m := sequenceModel(t, "f, new_p = com.microsoft.SGDOptimizerV2(lr, p, g)", 1)
	if _, err := Model(m); err != nil {
		t.Fatal(err)
	}
	got := ortest.Run(t, m, 1, optimizerInputs())
	for name, want := range map[string][]float64{"new_p0": {0.97, -1.99}, "new_p1": {0.4, 2.8}} {
		for i := range want {
			if math.Abs(got[name][i]-want[i]) > 1e-6 {
				t.Errorf("%s = %v, want %v", name, got[name], want)
			}
		}
	}
}

// TestOptimizerModel: the sample's own optimizer returns the new sequences.
func TestOptimizerModel(t *testing.T) {
	m, err := onnx.Load(optimizerModel)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := Model(m); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"params.new", "first_order_moments.new", "second_order_moments.new"} {
		if v := m.Graph.Value(name); v == nil || !v.IsOutput() {
			t.Errorf("no output %s in\n%s", name, m.Text())
		}
	}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ortest.Engine(t).Env.NewSessionFromBytes(data, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
	if err != nil {
		t.Fatalf("%v in\n%s", err, m.Text())
	}
	s.Close()
}
