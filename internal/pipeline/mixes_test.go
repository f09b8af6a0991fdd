package pipeline

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestNoMeanOfSamples: a batch is split where the loss is the mean of what each sample makes.
func TestNoMeanOfSamples(t *testing.T) {
	const head = `model ir=10 opset=18
graph g {
  in x float32[batch,8]
  in y float32[batch,8]
  in c int64[batch]
  init w float32[8,8] = [1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8]
  init half float32[] = 0.5
  init rows int64[1] = [0]
  init classes float32[8] = [1,2,1,1,1,1,1,1]
  init ignored int64[] = -100
  z = MatMul(x, w)
  d = Sub(z, y)
  q = Mul(d, d)
`
	for _, test := range []struct{ body, want string }{
		{"loss = ReduceMean(q) {keepdims=0}", ""},
		{"loss = SoftmaxCrossEntropyLoss(z, c)", ""},
		{"s = ReduceSum(q) {keepdims=0}\nn = Size(x)\nf = Cast(n) {to=1}\nloss = Div(s, f)", ""},
		{"s = ReduceMean(q) {keepdims=0}\nk = ReduceSumSquare(w) {keepdims=0}\nr = Mul(k, half)\nloss = Add(s, r)", ""},
		{"l = SoftmaxCrossEntropyLoss(z, c, classes)\nh = Mul(half, l)\nm = ReduceMean(q) {keepdims=0}\nloss = Add(m, h)", "the loss weighs classes, by SoftmaxCrossEntropyLoss that makes l"},
		{"l = SoftmaxCrossEntropyLoss(z, c)\nk = ReduceSumSquare(w) {keepdims=0}\nr = Mul(k, half)\nloss = Add(l, r)", ""},
		{"k = Mul(q, y)\ns = ReduceSum(k) {keepdims=0}\nn = ReduceSum(y) {keepdims=0}\nloss = Div(s, n)", "the loss is divided by what the data give, by Div that makes loss"},
		{"k = Mul(q, y)\ns = ReduceSum(k) {keepdims=0}\nn = ReduceSum(y) {keepdims=0}\nd2 = Div(s, n)\nm = ReduceMean(q) {keepdims=0}\nloss = Add(m, d2)", "the loss is divided by what the data give, by Div that makes d2"},
		{"s = ReduceSum(q) {keepdims=0}\ne = Equal(c, ignored)\no = Not(e)\nf = Cast(o) {to=1}\nn = ReduceSum(f) {keepdims=0}\nloss = Div(s, n)", ""},
		{"t = CastLike(half, z)\ne = Mul(q, t)\nloss = ReduceMean(e) {keepdims=0}", ""},
		{"s = ReduceSum(q) {keepdims=0}\nk = Mul(s, half)\nm = ReduceMean(q) {keepdims=0}\nloss = Add(m, k)", "the loss is a sum, by ReduceSum that makes s"},
		{"s = ReduceMean(q) {keepdims=0}\nloss = Sqrt(s)", "the loss is no mean over samples, by Sqrt that makes loss"},
		{"s = ReduceMean(q) {keepdims=0}\nk = ReduceMean(z) {keepdims=0}\nloss = Mul(s, k)", "the loss is no mean over samples, by Mul that makes loss"},
		{"v = Transpose(y) {perm=[1,0]}\np = MatMul(z, v)\nloss = SoftmaxCrossEntropyLoss(p, c)", "the loss compares the samples of a batch, by MatMul that makes p"},
		{"m = ReduceMean(z, rows)\ne = Sub(z, m)\nloss = ReduceMean(e) {keepdims=0}", "the loss depends on what the samples of a batch have in common, by ReduceMean that makes m"},
		{"loss = ReduceMax(q) {keepdims=0}", "the loss depends on what the samples of a batch have in common, by ReduceMax that makes loss"},
	} {
		m, err := onnx.Parse(head + strings.ReplaceAll(test.body, "\n", "\n  ") + "\n  out loss float32[]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if why, err := NoMeanOfSamples(m, nil, ""); err != nil || why != test.want {
			t.Errorf("%s: %q %v, want %q", test.body, why, err, test.want)
		}
	}
}
