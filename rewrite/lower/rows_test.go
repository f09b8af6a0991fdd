package lower

// Every row against central differences. A case holds a forward operator with
// output y and the private gradient operator, whose outputs d_x are compared
// with the differences of Σ y*g along input x. All in float32; see the rule
// tests of rewrite/grad for the step and the tolerance.

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

type rowCase struct {
	op, body string
	lo, hi   float64
}

const (
	unaryHead = "in x float32[2,3]\nin g float32[2,3]\n"
	lstmHead  = "in x float32[3,2,2]\nin w float32[1,8,2]\nin r float32[1,8,2]\nin b float32[1,16]\nin h float32[1,2,2]\nin c float32[1,2,2]\nin g float32[3,1,2,2]\n"
	gruHead   = "in x float32[3,2,2]\nin w float32[1,6,2]\nin r float32[1,6,2]\nin b float32[1,12]\nin h float32[1,2,2]\nin g float32[3,1,2,2]\n"
	lossHead  = "in x float32[3,4]\ninit t int64[3] = [1, 3, 0]\nin g float32[]\n"
)

var rowCases = []rowCase{
	{op: "ReluGrad", body: unaryHead + "y = Relu(x)\nd_x = com.microsoft.ReluGrad(g, y)"},
	{op: "ReluGrad", body: unaryHead + "y = Relu(x)\nd_x = com.microsoft.ReluGrad(g, x)"},
	{op: "TanhGrad", body: unaryHead + "y = Tanh(x)\nd_x = com.microsoft.TanhGrad(g, y)"},
	{op: "SigmoidGrad", body: unaryHead + "y = Sigmoid(x)\nd_x = com.microsoft.SigmoidGrad(g, y)"},
	{op: "LeakyReluGrad", body: unaryHead + "y = LeakyRelu(x) {alpha=0.3}\nd_x = com.microsoft.LeakyReluGrad(g, y) {alpha=0.3}"},
	{op: "GeluGrad", body: unaryHead + "y = com.microsoft.Gelu(x)\nd_x = com.microsoft.GeluGrad(g, x)"},
	{op: "FastGeluGrad", body: unaryHead + "y = com.microsoft.FastGelu(x)\nd_x = com.microsoft.FastGeluGrad(g, x)"},
	{op: "QuickGeluGrad", body: unaryHead + "y = com.microsoft.QuickGelu(x) {alpha=1.3}\nd_x = com.microsoft.QuickGeluGrad(g, x) {alpha=1.3}"},
	{op: "BiasGeluGrad_dX", body: unaryHead + "in b float32[3]\ny = com.microsoft.BiasGelu(x, b)\nd_x = com.microsoft.BiasGeluGrad_dX(g, x, b)"},
	{op: "BiasFastGeluGrad_dX", body: unaryHead + "in b float32[3]\ny = com.microsoft.FastGelu(x, b)\nd_x = com.microsoft.BiasFastGeluGrad_dX(g, x, b)"},
	{op: "SoftmaxGrad_13", body: unaryHead + "y = Softmax(x)\nd_x = com.microsoft.SoftmaxGrad_13(g, y) {axis=-1}"},
	{op: "LogSoftmaxGrad_13", body: unaryHead + "y = LogSoftmax(x) {axis=0}\nd_x = com.microsoft.LogSoftmaxGrad_13(g, y) {axis=0}"},
	{op: "SoftmaxGrad", body: "in x float32[2,2,3]\nin g float32[2,2,3]\ninit s int64[2] = [2, 6]\ninit u int64[3] = [2, 2, 3]\nx2 = Reshape(x, s)\nz = Softmax(x2)\ny = Reshape(z, u)\nd_x = com.microsoft.SoftmaxGrad(g, y) {axis=1}"},
	{op: "LogSoftmaxGrad", body: unaryHead + "y = LogSoftmax(x)\nd_x = com.microsoft.LogSoftmaxGrad(g, y) {axis=1}"},
	{op: "LayerNormalizationGrad", body: unaryHead + "in s float32[3]\nin b float32[3]\ny, m, v = LayerNormalization(x, s, b)\nd_x, d_s, d_b = com.microsoft.LayerNormalizationGrad(g, x, s, m, v) {axis=-1}"},
	{op: "SimplifiedLayerNormalizationGrad", body: unaryHead + "in s float32[3]\ny, v = SimplifiedLayerNormalization(x, s)\nd_x, d_s = com.microsoft.SimplifiedLayerNormalizationGrad(g, x, s, v) {axis=-1}"},
	{op: "GatherGrad", body: "in x float32[4,2]\nin g float32[3,2]\ninit i int64[3] = [1, 3, 1]\ny = Gather(x, i)\ns = Shape(x)\nd_x = com.microsoft.GatherGrad(s, i, g) {axis=0}"},
	{op: "GatherElementsGrad", body: "in x float32[2,3]\nin g float32[2,2]\ninit i int64[2,2] = [0, 2, 1, 1]\ny = GatherElements(x, i) {axis=1}\ns = Shape(x)\nd_x = com.microsoft.GatherElementsGrad(g, s, i) {axis=1}"},
	{op: "GatherNDGrad", body: "in x float32[2,3]\nin g float32[2,3]\ninit i int64[2,1] = [1, 1]\ny = GatherND(x, i)\ns = Shape(x)\nd_x = com.microsoft.GatherNDGrad(s, i, g) {batch_dims=0}"},
	{op: "SliceGrad", body: "in x float32[4,3]\nin g float32[2,3]\ninit s int64[1] = [1]\ninit e int64[1] = [3]\ninit a int64[1] = [0]\ny = Slice(x, s, e, a)\nh = Shape(x)\nd_x = com.microsoft.SliceGrad(g, h, s, e, a)"},
	{op: "ConvGrad", body: "in x float32[1,2,4,4]\nin w float32[2,2,3,3]\nin b float32[2]\nin g float32[1,2,2,2]\ny = Conv(x, w, b) {strides=[2, 2], pads=[1, 1, 1, 1]}\nd_x, d_w, d_b = com.microsoft.ConvGrad(g, x, w) {strides=[2, 2], pads=[1, 1, 1, 1]}"},
	{op: "BatchNormalizationGrad", body: "in x float32[2,2,3]\nin s float32[2]\nin b float32[2]\ninit m float32[2] = [0, 0]\ninit v float32[2] = [1, 1]\nin g float32[2,2,3]\ny, rm, rv, sm, si = com.microsoft.BatchNormInternal(x, s, b, m, v) {training_mode=1}\nd_x, d_s, d_b = com.microsoft.BatchNormalizationGrad(g, x, s, sm, si)"},
	{op: "BatchNormInternal", body: "in x float32[4,2]\nin s float32[2]\nin b float32[2]\ninit m float32[2] = [0, 0]\ninit v float32[2] = [1, 1]\nin g float32[4,2]\ny, rm, rv, sm, si = com.microsoft.BatchNormInternal(x, s, b, m, v) {epsilon=0.1}\nd_x, d_s, d_b = com.microsoft.BatchNormalizationGrad(g, x, s, sm, si) {epsilon=0.1}"},
	{op: "MaxPoolGrad", body: "in x float32[1,2,4]\nin g float32[1,2,2]\ny, i = MaxPool(x) {kernel_shape=[2], strides=[2]}\nd_x = com.microsoft.MaxPoolGrad(g, i) {kernel_shape=[2], strides=[2]}"},
	{op: "MaxPoolGrad", body: "in x float32[1,2,4]\nin g float32[1,2,2]\ny, i = MaxPool(x) {kernel_shape=[2], strides=[2]}\nd_x = MaxPoolGrad(g, i) {kernel_shape=[2], strides=[2]}"},
	{op: "AveragePoolGrad", body: "in x float32[1,2,4]\nin g float32[1,2,2]\ny = AveragePool(x) {kernel_shape=[2], strides=[2]}\nd_x = com.microsoft.AveragePoolGrad(g) {kernel_shape=[2], strides=[2]}"},
	{op: "AveragePoolGrad", body: "in x float32[1,2,4]\nin g float32[1,2,2]\ny = AveragePool(x) {kernel_shape=[2], strides=[2]}\nd_x = AveragePoolGrad(g) {kernel_shape=[2], strides=[2]}"},
	{op: "DropoutGrad", body: unaryHead + "init r float32[] = 0.25\ninit o bool[] = false\nz, k = Dropout(x, r, o) {seed=3}\nf = Cast(k) {to=1}\ninit q float32[] = 0.75\nh = Div(f, q)\ny = Mul(x, h)\ninit on bool[] = true\nd_x = com.microsoft.DropoutGrad(g, k, r, on)"},
	{op: "DivGrad", body: unaryHead + "in z float32[2,3]\ny = Div(x, z)\nd_x, d_z = com.microsoft.DivGrad(g, x, z)", lo: 0.5, hi: 2},
	{op: "SoftmaxCrossEntropyLossGrad", body: lossHead + "y, p = SoftmaxCrossEntropyLoss(x, t) {ignore_index=3}\nd_x = com.microsoft.SoftmaxCrossEntropyLossGrad(g, p, t) {ignore_index=3}"},
	{op: "SoftmaxCrossEntropyLossInternal", body: lossHead + "init i int64[] = 0\ny, p = com.microsoft.SoftmaxCrossEntropyLossInternal(x, t, _, i) {reduction=\"sum\"}\nd_x = com.microsoft.SoftmaxCrossEntropyLossInternalGrad(g, p, t, _, i) {reduction=\"sum\"}"},
	{op: "SoftmaxCrossEntropyLossInternalGrad", body: lossHead + "y, p = com.microsoft.SoftmaxCrossEntropyLossInternal(x, t)\nd_x = com.microsoft.SoftmaxCrossEntropyLossInternalGrad(g, p, t)"},
	{op: "LSTMTraining", body: lstmHead + "y, yh, yc, ca, io = com.microsoft.LSTMTraining(x, w, r, b, _, h, c) {hidden_size=2}\nd_x = com.microsoft.LSTMGrad(x, w, r, _, h, c, y, ca, io, g) {hidden_size=2}", lo: -1, hi: 1},
	{op: "LSTMGrad", body: lstmHead + "y, yh, yc, ca, io = com.microsoft.LSTMTraining(x, w, r, b, _, h, c) {hidden_size=2}\nd_x, d_w, d_r, d_b, d_h, d_c = com.microsoft.LSTMGrad(x, w, r, _, h, c, y, ca, io, g) {hidden_size=2}", lo: -1, hi: 1},
	{op: "GRUTraining", body: gruHead + "y, yh, zrh = com.microsoft.GRUTraining(x, w, r, b, _, h) {hidden_size=2}\nd_x = com.microsoft.GRUGrad(x, w, r, _, h, y, zrh, g) {hidden_size=2}", lo: -1, hi: 1},
	{op: "GRUGrad", body: gruHead + "y, yh, zrh = com.microsoft.GRUTraining(x, w, r, b, _, h) {hidden_size=2, linear_before_reset=1}\nd_x, d_w, d_r, d_b, d_h = com.microsoft.GRUGrad(x, w, r, _, h, y, zrh, g) {hidden_size=2, linear_before_reset=1}", lo: -1, hi: 1},
	{op: "ConcatTraining", body: "in x float32[2,1]\nin z float32[2,2]\nin g float32[2,3]\ny, n = com.microsoft.ConcatTraining(x, z) {axis=1}\nd_x, d_z = com.microsoft.SplitTraining(g, n) {axis=1}"},
	{op: "SplitTraining", body: "in x float32[batch,1]\nin z float32[batch,2]\nin g float32[batch,3]\ny, n = com.microsoft.ConcatTraining(x, z) {axis=1}\nd_x, d_z = com.microsoft.SplitTraining(g, n) {axis=1}"},
	{op: "BroadcastGradientArgs", body: "in x float32[2,3]\nin z float32[3]\nin g float32[2,3]\ny = Add(x, z)\ns = Shape(x)\nt = Shape(z)\na, b = com.microsoft.BroadcastGradientArgs(s, t)\ne = ReduceSum(g, b) {keepdims=1, noop_with_empty_axes=1}\nd_z = Reshape(e, t)\nd_x = ReduceSum(g, a) {keepdims=1, noop_with_empty_axes=1}"},
	{op: "BroadcastGradientArgs", body: "in x float32[batch,3]\nin z float32[one,3]\nin g float32[batch,3]\ny = Add(x, z)\ns = Shape(x)\nt = Shape(z)\na, b = com.microsoft.BroadcastGradientArgs(s, t)\ne = ReduceSum(g, b) {keepdims=1, noop_with_empty_axes=1}\nd_z = Reshape(e, t)\nd_x = ReduceSum(g, a) {keepdims=1, noop_with_empty_axes=1}"},
	{op: "Scale", body: unaryHead + "init k float32[] = 4\ny = com.microsoft.Scale(x, k) {scale_down=1}\nd_x = com.microsoft.Scale(g, k) {scale_down=1}"},
	{op: "ZeroGradient", body: unaryHead + "y = Sign(x)\nd_x = com.microsoft.ZeroGradient(g, x)"},
	{op: "InPlaceAccumulator", body: unaryHead + "init old float32[2,3] = [0, 0, 0, 0, 0, 0]\ny = Neg(x)\nh = Neg(g)\nd_x = com.microsoft.InPlaceAccumulator(old, h)"},
	{op: "InPlaceAccumulatorV2", body: unaryHead + "init k float32[] = 0.5\ninit no bool[1] = false\ny = Identity(x)\nh = Mul(g, k)\nd_x = com.microsoft.InPlaceAccumulatorV2(h, h, no)"},
}

var freeExtent = map[string]int64{"batch": 2, "one": 1}

func TestEveryRowHasACase(t *testing.T) {
	covered := map[string]bool{"AdamWOptimizer": true, "SGDOptimizerV2": true} // optimizer_test.go
	for _, c := range rowCases {
		covered[c.op] = true
	}
	for _, r := range table {
		if !covered[r.op] || r.doc == "" {
			t.Errorf("row %s: no case or no doc", r.op)
		}
	}
}

func TestRowsAgainstDifferences(t *testing.T) {
	for i, c := range rowCases {
		t.Run(fmt.Sprintf("%s/%d", c.op, i), func(t *testing.T) { c.check(t) })
	}
}

func (c rowCase) check(t *testing.T) {
	m, err := onnx.Parse("model ir=9 opset=20 opset[com.microsoft]=1\ngraph g {\n" + c.body + "\n}\n")
	if err != nil {
		t.Fatalf("%v in\n%s", err, c.body)
	}
	var names []string
	for _, in := range m.Graph.Inputs {
		if d := m.Graph.Value("d_" + in.Name); d != nil {
			names = append(names, in.Name)
			m.Graph.AddOutput(d)
		}
	}
	m.Graph.AddOutput(m.Graph.Value("y"))
	report, err := Model(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatalf("%v in\n%s", err, m.Text())
	}
	if report.Lowered[c.op] == 0 || strings.Contains(m.Text(), "Grad(") {
		t.Errorf("not lowered:\n%s", m.Text())
	}
	inputs := c.inputs(m)
	got := ortest.Run(t, m, 1, inputs)
	for _, name := range names {
		want := differences(t, m, inputs, name)
		scale := math.Max(maxAbs(want), 0.1)
		for i, g := range got["d_"+name] {
			if !(math.Abs(g-want[i]) <= 4e-3*scale) {
				t.Errorf("d_%s[%d] = %g, by differences %g\n%s", name, i, g, want[i], m.Text())
				return
			}
		}
	}
}

func (c rowCase) inputs(m *onnx.Model) map[string]*onnx.Tensor {
	lo, hi := c.lo, c.hi
	if lo == 0 && hi == 0 {
		lo, hi = -2, 2
	}
	rng := rand.New(rand.NewPCG(5, 6))
	inputs := map[string]*onnx.Tensor{}
	for _, v := range m.Graph.Inputs {
		dims := make([]int64, len(v.Type.Shape))
		n := int64(1)
		for i, d := range v.Type.Shape {
			var ok bool
			if dims[i], ok = d.Int(); !ok {
				dims[i] = freeExtent[d.String()]
			}
			n *= dims[i]
		}
		values := make([]float64, n)
		perm := rng.Perm(int(n))
		for i := range values { // apart from each other and from zero
			values[i] = lo + (hi-lo)*(float64(perm[i])+0.5)/float64(n) + 0.01
		}
		inputs[v.Name] = onnx.FloatTensor(onnx.Float32, values, dims...)
	}
	return inputs
}

// differences is the derivative of Σ y*g along an input.
func differences(t *testing.T, m *onnx.Model, inputs map[string]*onnx.Tensor, name string) []float64 {
	t.Helper()
	x := inputs[name]
	values, err := x.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	g, err := inputs["g"].Float64s()
	if err != nil {
		t.Fatal(err)
	}
	changed := maps.Clone(inputs)
	changed[name] = onnx.FloatTensor(onnx.Float32, values, x.Dims()...)
	data, err := changed[name].Bytes()
	if err != nil {
		t.Fatal(err)
	}
	s := ortest.Open(t, m, 0, changed)
	at := func(i int, v float64) float64 {
		set := func(v float64) { binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(v))) }
		set(v)
		defer set(values[i])
		y := s.Run()["y"]
		sum := 0.0
		for k := range y {
			sum += y[k] * g[k]
		}
		return sum
	}
	const h = 3e-2
	grad := make([]float64, len(values))
	for i, v := range values {
		grad[i] = (8*(at(i, v+h)-at(i, v-h)) - (at(i, v+2*h) - at(i, v-2*h))) / (12 * h)
	}
	return grad
}

// TestRanksThatDoNotFit: a gradient that is no gradient of what it is said to be of is refused.
func TestRanksThatDoNotFit(t *testing.T) {
	for _, body := range []string{
		"in x float32[4,2]\nin g float32[3]\ninit i int64[3] = [1, 3, 1]\ns = Shape(x)\nd = com.microsoft.GatherGrad(s, i, g) {axis=0}\nout d float32[4,2]",
		"in g float32[]\ninit i int64[] = 1\ninit s int64[0] = []\nd = com.microsoft.GatherGrad(s, i, g) {axis=0}\nout d float32[]",
	} {
		m, err := onnx.Parse("model ir=9 opset=17 opset[com.microsoft]=1\ngraph g {\n" + body + "\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Model(m); err == nil || !strings.Contains(err.Error(), "a gradient of rank") {
			t.Errorf("error %v", err)
		}
	}
}
