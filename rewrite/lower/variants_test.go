package lower

// Every private gradient operator in the forms in which a graph may hold it: other
// axes, ranks, attributes, indices, broadcasts, operands that are shared or left
// out. There is no "before" to run, as stock ONNX Runtime has no kernel, so what is
// lowered is compared with differences of the forward operator, on extents of which
// no two are the same, and on equal ones, which hide a mistake about axes.
//
//	<0|1|-1>     one of these, the same at each place where the list stands
//	@a, @b, @c   extents
//
// The gradient that arrives, g, has the shape of y.

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

var loweredForms = []rowCase{
	{op: "ReluGrad", body: "in x F[@a,@b]\ny = Relu(x)\nd_x = M.ReluGrad(g, <x|y>)"},
	{op: "TanhGrad", body: "in x F[@a,@b]\ny = Tanh(x)\nd_x = M.TanhGrad(g, y)"},
	{op: "SigmoidGrad", body: "in x F[@a,@b]\ny = Sigmoid(x)\nd_x = M.SigmoidGrad(g, y)"},
	{op: "LeakyReluGrad", body: "in x F[@a,@b]\ny = LeakyRelu(x) {alpha=<0.01|0.3|1.5>}\nd_x = M.LeakyReluGrad(g, y) {alpha=<0.01|0.3|1.5>}"},
	{op: "LeakyReluGrad", body: "in x F[@a,@b]\ny = LeakyRelu(x)\nd_x = M.LeakyReluGrad(g, y)"},
	{op: "GeluGrad", body: "in x F[@a,@b]\ny = M.Gelu(x)\nd_x = M.GeluGrad(g, x)"},
	{op: "FastGeluGrad", body: "in x F[@a,@b]\ny = M.FastGelu(x)\nd_x = M.FastGeluGrad(g, x)"},
	{op: "QuickGeluGrad", body: "in x F[@a,@b]\ny = M.QuickGelu(x) <{alpha=0.5}|{alpha=2.5}|>\nd_x = M.QuickGeluGrad(g, x) <{alpha=0.5}|{alpha=2.5}|>"},
	{op: "BiasGeluGrad_dX", body: "in x F[@a,@b,@c]\nin b F[@c]\ny = M.BiasGelu(x, b)\nd_x = M.BiasGeluGrad_dX(g, x, b)"},
	{op: "BiasFastGeluGrad_dX", body: "in x F[@a,@b,@c]\nin b F[@c]\ny = M.FastGelu(x, b)\nd_x = M.BiasFastGeluGrad_dX(g, x, b)"},
	{op: "SoftmaxGrad_13", body: "in x F[@a,@b,@c]\ny = Softmax(x) <{axis=0}|{axis=1}|{axis=2}|{axis=-2}|{axis=-3}|>\nd_x = M.SoftmaxGrad_13(g, y) <{axis=0}|{axis=1}|{axis=2}|{axis=-2}|{axis=-3}|>"},
	{op: "LogSoftmaxGrad_13", body: "in x F[@a,@b,@c]\ny = LogSoftmax(x) <{axis=0}|{axis=1}|{axis=2}|{axis=-2}|{axis=-3}|>\nd_x = M.LogSoftmaxGrad_13(g, y) <{axis=0}|{axis=1}|{axis=2}|{axis=-2}|{axis=-3}|>"},
	{op: "SoftmaxGrad", body: "in x F[@a,@b,@c]\ninit u int64[3] = [@a, @b, @c]\nx2 = Flatten(x) {axis=<0|1|2|-1|-2>}\nz = Softmax(x2)\ny = Reshape(z, u)\nd_x = M.SoftmaxGrad(g, y) {axis=<0|1|2|-1|-2>}"},
	{op: "LogSoftmaxGrad", body: "in x F[@a,@b,@c]\ninit u int64[3] = [@a, @b, @c]\nx2 = Flatten(x) {axis=<0|1|2|-1|-2>}\nz = LogSoftmax(x2)\ny = Reshape(z, u)\nd_x = M.LogSoftmaxGrad(g, y) {axis=<0|1|2|-1|-2>}"},
	{op: "SoftmaxGrad", body: "in x F[@a,@b]\ny = Softmax(x) {axis=1}\nd_x = M.SoftmaxGrad(g, y)"},
	{op: "LayerNormalizationGrad", body: "in x F[@a,@b,@c]\nin s F[@c]\nin b F[@c]\ny, m, v = LayerNormalization(x, s, b) {axis=<-1|2>, epsilon=<0.5|1e-05>}\n<d_x, d_s, d_b|d_x, d_s|_, d_s, d_b|d_x, _, d_b> = M.LayerNormalizationGrad(g, x, s, m, v) {axis=<-1|2>}"},
	{op: "LayerNormalizationGrad", body: "in x F[@a,@b,@c]\nin s F[@b,@c]\nin b F[@b,@c]\ny, m, v = LayerNormalization(x, s, b) {axis=<1|-2>}\nd_x, d_s, d_b = M.LayerNormalizationGrad(g, x, s, m, v) {axis=<1|-2>}"},
	{op: "SimplifiedLayerNormalizationGrad", body: "in x F[@a,@b,@c]\nin s F[@c]\ny, v = SimplifiedLayerNormalization(x, s) {axis=<-1|2>, epsilon=<0.5|1e-05>}\n<d_x, d_s|d_x|_, d_s> = M.SimplifiedLayerNormalizationGrad(g, x, s, v) {axis=<-1|2>}"},
	{op: "GatherGrad", body: "in x F[@a,@b,@c]\ninit i <int64[2] = [1, 1]|int64[3] = [-1, 0, 1]|int64[2,2] = [1, 0, 1, -2]|int32[2] = [0, 1]|int64[] = 1>\ny = Gather(x, i) {axis=<0|1|2|-1|-3>}\ns = Shape(x)\nd_x = M.GatherGrad(s, i, g) {axis=<0|1|2|-1|-3>}"},
	{op: "GatherElementsGrad", body: "in x F[@a,@b]\ninit i int64[2,2] = <[0, 1, 1, 1]|[-1, 0, 0, -2]>\ny = GatherElements(x, i) {axis=<0|1|-1|-2>}\ns = Shape(x)\nd_x = M.GatherElementsGrad(g, s, i) {axis=<0|1|-1|-2>}"},
	{op: "GatherNDGrad", body: "in x F[@a,@b,@c]\ninit i <int64[2,1] = [1, 1]|int64[2,2] = [1, 0, -1, 1]|int64[3,3] = [0, 1, 2, 1, 2, 0, 0, 1, 2]|int64[1,2,1] = [0, 0]>\ny = GatherND(x, i)\ns = Shape(x)\nd_x = M.GatherNDGrad(s, i, g) {batch_dims=0}"},
	{op: "GatherNDGrad", body: "in x F[2,@b,@c]\ninit i <int64[2,1] = [1, 0]|int64[2,2] = [1, 0, 0, 1]|int64[2,2,1] = [1, 1, 0, -1]>\ny = GatherND(x, i) {batch_dims=1}\ns = Shape(x)\nd_x = M.GatherNDGrad(s, i, g) {batch_dims=1}"},
	{op: "SliceGrad", body: "in x F[@b,@c]\ninit s int64[1] = <[0]|[1]|[-2]>\ninit e int64[1] = <[2]|[9]|[-1]>\ninit a int64[1] = <[0]|[1]|[-1]>\ny = Slice(x, s, e, a)\nh = Shape(x)\nd_x = M.SliceGrad(g, h, s, e, a)"},
	{op: "SliceGrad", body: "in x F[@b,@c]\ninit s int64[2] = [-1, 0]\ninit e int64[2] = [-9, 9]\ninit a int64[2] = <[0, 1]|[1, 0]>\ninit p int64[2] = <[-1, 2]|[-2, 1]>\ny = Slice(x, s, e, a, p)\nh = Shape(x)\nd_x = M.SliceGrad(g, h, s, e, a, p)"},
	{op: "ConvGrad", body: "in x F[1,4,5]\n<in w F[4,4,3]\nin b F[4]|in w F[2,4,2]\nin b F[2]>\ny = Conv(x, w, b) {strides=[<1|2>], pads=[<1, 1|0, 1>], dilations=[<1|2>]}\n<d_x, d_w, d_b|d_x, d_w|_, d_w> = M.ConvGrad(g, x, w) {strides=[<1|2>], pads=[<1, 1|0, 1>], dilations=[<1|2>]}"},
	{op: "ConvGrad", body: "in x F[2,2,3,4]\nin w F[4,1,2,2]\ny = Conv(x, w) {group=2, pads=[0, 1, 1, 0]}\nd_x, d_w = M.ConvGrad(g, x, w) {group=2, pads=[0, 1, 1, 0]}"},
	{op: "BatchNormalizationGrad", body: "in x F[<4,3|2,3,2|2,3,2,2>]\nin s F[3]\nin b F[3]\ninit m F[3] = [0, 0, 0]\ninit v F[3] = [1, 1, 1]\ny, rm, rv, sm, si = M.BatchNormInternal(x, s, b, m, v) <{epsilon=0.5}|>\n<d_x, d_s, d_b|d_x, d_s> = M.BatchNormalizationGrad(g, x, s, sm, si) <{epsilon=0.5}|>"},
	{op: "MaxPoolGrad", body: "in x F[1,2,6]\ny, i = MaxPool(x) {kernel_shape=[<2|3>], strides=[<1|2>], pads=[<0, 0|1, 1|0, 1>]}\nd_x = M.MaxPoolGrad(g, i) {kernel_shape=[<2|3>], strides=[<1|2>], pads=[<0, 0|1, 1|0, 1>]}"},
	{op: "MaxPoolGrad", body: "in x F[2,1,4,5]\ny, i = MaxPool(x) {kernel_shape=[2, 3], strides=[2, 1], ceil_mode=<0|1>}\nd_x = M.MaxPoolGrad(g, i) {kernel_shape=[2, 3], strides=[2, 1], ceil_mode=<0|1>}"},
	{op: "MaxPoolGrad", body: "in x F[1,1,5]\nz, k = MaxPool(x) {kernel_shape=[2], strides=[2]}\nx4 = Slice(x, <from4|zero>, five, two)\ny, i = MaxPool(x4) {kernel_shape=[2], strides=[2]}\ninit from4 int64[1] = [1]\ninit zero int64[1] = [0]\ninit five int64[1] = [5]\ninit two int64[1] = [2]\nd_x4 = M.MaxPoolGrad(g, i) {kernel_shape=[2], strides=[2]}\nh = Shape(x)\nd_x = M.SliceGrad(d_x4, h, <from4|zero>, five, two)"},
	{op: "AveragePoolGrad", body: "in x F[1,2,6]\ny = AveragePool(x) {kernel_shape=[<2|3>], strides=[<1|2>], pads=[<0, 0|1, 1|0, 1>], count_include_pad=<0|1>}\nd_x = M.AveragePoolGrad(g) {kernel_shape=[<2|3>], strides=[<1|2>], pads=[<0, 0|1, 1|0, 1>], count_include_pad=<0|1>}"},
	{op: "DropoutGrad", body: "in x F[@a,@b]\n<init r F[] = 0.25\ninit q F[] = 0.75|init r F[] = 0.0\ninit q F[] = 1.0>\ninit o bool[] = false\nz, k = Dropout(x, r, o) {seed=3}\nf = Cast(k) {to=1}\nh = Div(f, q)\ny = Mul(x, h)\ninit on bool[] = true\nd_x = M.DropoutGrad(<g, k, r, on|g, k, r>)"},
	{op: "DivGrad", lo: 0.5, hi: 2, body: "in x F[<@a,@b|@b|@a,1|1,@b>]\nin z F[<@a,@b|@b|@a,1|1,1>]\nin w F[@a,@b]\nt = Mul(x, w)\ny0 = Div(x, z)\ny = Identity(y0)\nd_x, d_z = M.DivGrad(g, x, z)"},
	{op: "SoftmaxCrossEntropyLossGrad", body: "in x F[3,4]\ninit t int64[3] = [1, 3, 0]\ny, p = SoftmaxCrossEntropyLoss(x, t<, wt|>) {reduction=\"<mean|sum|none>\"<, ignore_index=3|, ignore_index=1|>}\ninit wt F[4] = [0.5, 1.5, 1, 2]\nd_x = M.SoftmaxCrossEntropyLossGrad(g, p, t<, wt|>) {reduction=\"<mean|sum|none>\"<, ignore_index=3|, ignore_index=1|>}"},
	{op: "SoftmaxCrossEntropyLossGrad", body: "in x F[2,3,2]\ninit t int64[2,2] = [1, 2, 0, 2]\ny, p = SoftmaxCrossEntropyLoss(x, t) {reduction=\"<mean|sum|none>\"}\nd_x = M.SoftmaxCrossEntropyLossGrad(g, p, t) {reduction=\"<mean|sum|none>\"}"},
	{op: "SoftmaxCrossEntropyLossInternalGrad", body: "in x F[3,4]\ninit t int64[3] = [1, 3, 0]\ninit i int64[] = <3|1|-1>\ninit wt F[4] = [0.5, 1.5, 1, 2]\ny, p = M.SoftmaxCrossEntropyLossInternal(x, t, <wt|_>, i) {reduction=\"<mean|sum>\"}\nd_x = M.SoftmaxCrossEntropyLossInternalGrad(g, p, t, <wt|_>, i) {reduction=\"<mean|sum>\"}"},
	{op: "SplitTraining", body: "in x F[<1,2,3|2,2,3>]\nin z F[<1,2,3|2,2,3>]\ny, n = M.ConcatTraining(x, z) {axis=<0|1|2|-1|-3>}\nd_x, d_z = M.SplitTraining(g, n) {axis=<0|1|2|-1|-3>}"},
	{op: "BroadcastGradientArgs", body: "in x F[<@a,@b|@b|1,@b|@a,1|1>]\nin z F[<@a,@b|@c,@a,@b|@a,1>]\ny = Mul(x, z)\ns = Shape(x)\nt = Shape(z)\na, b = M.BroadcastGradientArgs(s, t)\nl = Mul(g, z)\nr = Mul(g, x)\nd = ReduceSum(l, a) {keepdims=1, noop_with_empty_axes=1}\ne = ReduceSum(r, b) {keepdims=1, noop_with_empty_axes=1}\nd_x = Reshape(d, s)\nd_z = Reshape(e, t)"},
	{op: "Scale", body: "in x F[@a,@b]\ninit k F[<|1>] = <4|[4]>\ny = M.Scale(x, k) <{scale_down=1}|{scale_down=0}|>\nd_x = M.Scale(g, k) <{scale_down=1}|{scale_down=0}|>"},
}

var choice = regexp.MustCompile(`<[^<>]*\|[^<>]*>`)

// formsOf writes out each choice of a body, a list alike at all its places.
func formsOf(body string) []string {
	list := choice.FindString(body)
	if list == "" {
		return []string{body}
	}
	var all []string
	for _, one := range strings.Split(strings.Trim(list, "<>"), "|") {
		all = append(all, formsOf(strings.ReplaceAll(body, list, one))...)
	}
	return all
}

// arriving declares g with the shape that the forward part of a body gives y, ""
// where ONNX does not allow it.
func arriving(t *testing.T, body string) string {
	t.Helper()
	var forward []string
	for _, line := range strings.Split(body, "\n") {
		if !strings.HasPrefix(line, "d_") && !strings.Contains(line, "Grad") && !strings.Contains(line, "(g, ") && !strings.Contains(line, "Reshape(d, ") && !strings.Contains(line, "Reshape(e, ") && !strings.Contains(line, "ReduceSum(") {
			forward = append(forward, line)
		}
	}
	m, err := onnx.Parse("model ir=9 opset=20 opset[com.microsoft]=1\ngraph g {\n" + strings.Join(forward, "\n") + "\n}\n")
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		return ""
	}
	y := m.Graph.Value("y").Type
	if !y.IsStatic() {
		t.Fatalf("y is %s in\n%s", y, body)
	}
	return "in g " + y.String() + "\n"
}

func TestFormsAgainstDifferences(t *testing.T) {
	tried := 0
	for k, c := range loweredForms {
		t.Run(fmt.Sprintf("%s/%d", c.op, k), func(t *testing.T) {
			seen := map[string]bool{}
			for _, shape := range []ortest.Extents{{Name: "prime", A: 2, B: 3, C: 5}, {Name: "square", A: 3, B: 3, C: 3}} {
				for _, body := range formsOf(strings.NewReplacer(" F[", " float32[", "M.", "com.microsoft.").Replace(c.body)) {
					body = shape.Fill(body)
					if g := arriving(t, body); g != "" && !seen[body] {
						seen[body] = true
						rowCase{op: c.op, body: g + body, lo: c.lo, hi: c.hi}.check(t)
					}
				}
			}
			if tried += len(seen); len(seen) == 0 {
				t.Error("no form is valid")
			}
		})
	}
	t.Logf("%d forms", tried)
}
