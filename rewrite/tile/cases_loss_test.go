package tile

import "fmt"

// regionCases are the cases of the table of rules.
func regionCases() []regionCase {
	var all []regionCase
	for _, list := range [][]regionCase{elementwiseCases, axisCases, shapeCases, productCases, lossCases} {
		all = append(all, list...)
	}
	return all
}

var elementwiseCases = []regionCase{
	{row: "Add", name: "bias", body: "in b F[40]\ny = Add(logits, b)", exact: true},
	{row: "Add", name: "bias of two axes", body: "in b F[1,40]\ny = Add(b, logits)", exact: true},
	{row: "Add", name: "of a token", body: "in b F[6,1]\ny = Add(logits, b)", parts: 3, exact: true},
	{row: "Add", name: "scalar", body: "in b F[]\ny = Add(b, logits)", exact: true},
	{row: "Add", name: "whole", body: "in b F[6,40]\ny = Add(logits, b)", exact: true},
	{row: "Add", name: "square", body: "in h F[6,3]\nin w F[3,6]\nin b F[6]\nlogits = MatMul(h, w)\nz = Add(logits, b)\ninit x int64[1] = [1]\ns = ReduceSum(logits, x) {keepdims=0}\nv = Mul(s, b)\nu = Unsqueeze(v, x)\ny = Mul(z, u)", parts: 3, exact: true},
	{row: "Add", name: "square, a row a part", body: "in h F[6,3]\nin w F[3,6]\nin b F[6]\nlogits = MatMul(h, w)\nz = Add(logits, b)\ninit x int64[1] = [1]\ns = ReduceSum(logits, x) {keepdims=0}\nv = Mul(s, b)\nu = Unsqueeze(v, x)\ny = Mul(z, u)", parts: 6, exact: true},
	{row: "Add", name: "to more axes", body: "in h F[4,3]\nin w F[3,40]\nin b F[2,1,1]\nlogits = MatMul(h, w)\ny = Add(logits, b)", exact: true},
	{row: "Sub", name: "of sequences", body: "in h F[1,6,3]\nin w F[3,40]\nin b F[6,1]\nlogits = MatMul(h, w)\ny = Sub(logits, b)", parts: 3, exact: true},
	{row: "Mul", name: "itself", body: "y = Mul(logits, logits)", exact: true},
	{row: "Div", name: "temperature", body: "init b F[] = 4\ny = Div(logits, b)", exact: true},
	{row: "Pow", name: "square", body: "init b F[] = 2\ny = Pow(logits, b)"},
	{row: "Neg", name: "plain", body: "y = Neg(logits)", exact: true},
	{row: "Exp", name: "plain", body: "y = Exp(logits)"},
	{row: "Log", name: "plain", body: "a = Mul(logits, logits)\none = Exp(a)\ny = Log(one)"},
	{row: "Sqrt", name: "plain", body: "a = Abs(logits)\ny = Sqrt(a)"},
	{row: "Reciprocal", name: "plain", body: "a = Exp(logits)\ny = Reciprocal(a)"},
	{row: "Abs", name: "plain", body: "y = Abs(logits)", exact: true},
	{row: "Tanh", name: "soft cap", body: "init c F[] = 8\na = Div(logits, c)\nb = Tanh(a)\ny = Mul(b, c)"},
	{row: "Sigmoid", name: "plain", body: "y = Sigmoid(logits)"},
	{row: "Relu", name: "plain", body: "y = Relu(logits)", exact: true},
	{row: "Clip", name: "both", body: "init a F[] = -1\ninit b F[] = 1.5\ny = Clip(logits, a, b)", exact: true},
	{row: "Clip", name: "above", body: "init b F[] = 1.5\ny = Clip(logits, _, b)", exact: true},
	{row: "Cast", name: "there and back", body: "a = Cast(logits) {to=11}\ny = Cast(a) {to=1}", exact: true},
	{row: "Where", name: "of labels", body: "in c bool[6,1]\nin b F[40]\ny = Where(c, logits, b)", exact: true},
	{row: "Where", name: "of the vocabulary", body: "in c bool[40]\nin b F[6,1]\ny = Where(c, b, logits)", exact: true},
	{row: "Equal", name: "plain", body: "in b F[6,1]\nc = Equal(logits, b)\ny = Cast(c) {to=1}", exact: true},
	{row: "Less", name: "plain", body: "in b F[40]\nc = Less(logits, b)\ny = Cast(c) {to=1}", exact: true},
	{row: "Greater", name: "plain", body: "in b F[]\nc = Greater(b, logits)\ny = Cast(c) {to=1}", exact: true},
	{row: "LessOrEqual", name: "plain", body: "in b F[6,40]\nc = LessOrEqual(logits, b)\ny = Cast(c) {to=1}", exact: true},
	{row: "GreaterOrEqual", name: "plain", body: "in b F[1,1]\nc = GreaterOrEqual(logits, b)\ny = Cast(c) {to=1}", exact: true},
	{row: "And", name: "plain", body: "in b F[40]\nin k bool[6,1]\nc = Less(logits, b)\nd = And(c, k)\ny = Cast(d) {to=1}", exact: true},
	{row: "Or", name: "plain", body: "in b F[40]\nin k bool[40]\nc = Less(logits, b)\nd = Or(k, c)\ny = Cast(d) {to=1}", exact: true},
	{row: "Not", name: "plain", body: "in b F[40]\nc = Less(logits, b)\nd = Not(c)\ny = Cast(d) {to=1}", exact: true},
	{row: "IsNaN", name: "plain", body: "a = Sub(logits, logits)\nb = Div(logits, a)\nc = IsNaN(b)\ny = Cast(c) {to=1}", exact: true},
	{row: "IsInf", name: "plain", body: "a = Sub(logits, logits)\nb = Div(logits, a)\nc = IsInf(b)\ny = Cast(c) {to=1}", exact: true},
	{row: "Min", name: "of three", body: "in a F[40]\nin b F[6,1]\ny = Min(a, logits, b)", exact: true},
	{row: "Max", name: "of two", body: "in a F[]\ny = Max(logits, a)", exact: true},
	{row: "Sum", name: "of three", body: "in a F[40]\nin b F[6,40]\ny = Sum(a, b, logits)", exact: true},
	{row: "Identity", name: "plain", body: "y = Identity(logits)", exact: true},
	{row: "Sign", name: "plain", body: "y = Sign(logits)", exact: true},
	{row: "Softplus", name: "plain", body: "y = Softplus(logits)"},
	{row: "Gelu", name: "plain", body: "y = Gelu(logits)"},
}

// tokens is a product of sequences, as models make it.
const tokens = "in h F[2,3,4]\nin w F[4,40]\nlogits = MatMul(h, w)\n"

var axisCases = []regionCase{
	{row: "Softmax", name: "last", body: "y = Softmax(logits)"},
	{row: "Softmax", name: "of sequences", body: tokens + "y = Softmax(logits) {axis=2}"},
	{row: "LogSoftmax", name: "negative axis", body: "y = LogSoftmax(logits) {axis=-1}"},
	{row: "LogSoftmax", name: "middle", body: tokens + "y = LogSoftmax(logits) {axis=-2}"},
	{row: "ReduceSum", name: "all", body: "y = ReduceSum(logits) {keepdims=0}", exact: true},
	{row: "ReduceSum", name: "all kept", body: "y = ReduceSum(logits)\nloss = ReduceMax(y) {keepdims=0}", exact: true},
	{row: "ReduceSum", name: "vocabulary", body: "init x int64[1] = [-1]\ny = ReduceSum(logits, x) {keepdims=0}", exact: true},
	{row: "ReduceSum", name: "vocabulary kept", body: "init x int64[1] = [1]\na = ReduceSum(logits, x)\ny = Sub(logits, a)", exact: true},
	{row: "ReduceSum", name: "tokens", body: "init x int64[1] = [0]\ny = ReduceSum(logits, x) {keepdims=0}", exact: true},
	{row: "ReduceSum", name: "tokens kept", body: "init x int64[1] = [-2]\ny = ReduceSum(logits, x)", parts: 3, exact: true},
	{row: "ReduceSum", name: "axis before the divided one", body: "in h F[1,6,3]\nin w F[3,40]\nlogits = MatMul(h, w)\ninit x int64[1] = [0]\na = ReduceSum(logits, x) {keepdims=0}\ny = Mul(a, a)", parts: 3, exact: true},
	{row: "ReduceSum", name: "two axes", body: tokens + "init x int64[2] = [0, -1]\ny = ReduceSum(logits, x) {keepdims=0}", exact: true},
	{row: "ReduceSum", name: "nothing", body: "init x int64[0] = []\na = ReduceSum(logits, x) {noop_with_empty_axes=1}\ny = Mul(a, logits)", exact: true},
	{row: "ReduceSum", name: "attribute", body: "in h F[6,3]\nin w F[3,40]\nlogits = MatMul(h, w)\ny = ReduceSum(logits) {axes=[-1], keepdims=0}\na = ReduceSum(y) {axes=[0], keepdims=0}\nloss = Neg(a)", exact: true, opset: "12"},
	{row: "ReduceMean", name: "all", body: "y = ReduceMean(logits) {keepdims=0}"},
	{row: "ReduceMean", name: "tokens", body: "init x int64[1] = [0]\ny = ReduceMean(logits, x)", parts: 3},
	{row: "ReduceMean", name: "vocabulary", body: "init x int64[1] = [1]\na = ReduceMean(logits, x)\ny = Mul(logits, a)"},
	{row: "ReduceMean", name: "mean of means", body: "init x int64[1] = [1]\na = ReduceMean(logits, x) {keepdims=0}\nloss = ReduceMean(a) {keepdims=0}"},
	{row: "ReduceMax", name: "vocabulary", body: "init x int64[1] = [1]\na = ReduceMax(logits, x)\ny = Sub(logits, a)", exact: true},
	{row: "ReduceMin", name: "vocabulary", body: "init x int64[1] = [-1]\ny = ReduceMin(logits, x) {keepdims=0}", exact: true},
	{row: "ReduceLogSumExp", name: "z-loss", body: "init x int64[1] = [1]\na = ReduceLogSumExp(logits, x)\ny = Mul(a, a)"},
	{row: "ReduceSumSquare", name: "vocabulary", body: "init x int64[1] = [1]\ny = ReduceSumSquare(logits, x)", exact: true},
	{row: "ReduceSumSquare", name: "tokens", body: "init x int64[1] = [0]\ny = ReduceSumSquare(logits, x) {keepdims=0}", exact: true},
	{row: "ReduceL2", name: "vocabulary", body: "init x int64[1] = [1]\na = ReduceL2(logits, x)\ny = Mul(logits, a)"},
	{row: "ReduceL1", name: "vocabulary", body: "init x int64[1] = [1]\ny = ReduceL1(logits, x)", exact: true},
	{row: "ReduceL1", name: "all", body: "y = ReduceL1(logits)", exact: true},
	{row: "ArgMax", name: "accuracy", body: "in l int64[6,1]\na = ArgMax(logits) {axis=-1}\nc = Equal(a, l)\nhit = Cast(c) {to=1}\ntop = ReduceSum(hit)\ny = Neg(logits)", exact: true},
	{row: "ArgMax", name: "axis before the divided one", body: "in h F[1,6,3]\nin w F[3,40]\nlogits = MatMul(h, w)\na = ArgMax(logits) {axis=0, keepdims=0}\ny = Neg(logits)", exact: true, parts: 3},
	{row: "ArgMin", name: "without its axis", body: tokens + "a = ArgMin(logits) {axis=2, keepdims=0}\ny = Neg(logits)", exact: true},
	{row: "GatherElements", name: "labels", body: "in l int64[6,1]\ny = GatherElements(logits, l) {axis=1}", exact: true},
	{row: "GatherElements", name: "several", body: tokens + "in l int64[2,3,2]\ny = GatherElements(logits, l) {axis=-1}", exact: true},
	{row: "ScatterElements", name: "added", body: "in l int64[6,1]\nin u F[6,1]\ny = ScatterElements(logits, l, u) {axis=1, reduction=\"add\"}", exact: true},
	{row: "ScatterElements", name: "set", body: tokens + "in l int64[2,3,1]\nin u F[2,3,1]\ny = ScatterElements(logits, l, u) {axis=-1}", exact: true},
	{row: "Pad", name: "vocabulary", body: "init p int64[4] = [0,-1,0,2]\ny = Pad(logits, p)"},
	{row: "Pad", name: "with axes", body: "init p int64[2] = [1,-1]\ninit a int64[1] = [-1]\ny = Pad(logits, p, _, a)"},
	{row: "Slice", name: "vocabulary", body: "init a int64[1] = [1]\ninit b int64[1] = [31]\ninit x int64[1] = [-1]\ny = Slice(logits, a, b, x)", exact: true},
	{row: "Slice", name: "steps", body: "init a int64[1] = [-1]\ninit b int64[1] = [-100]\ninit x int64[1] = [1]\ninit s int64[1] = [-3]\ny = Slice(logits, a, b, x, s)", exact: true},
	{row: "Slice", name: "next token", body: tokens + "init a int64[1] = [0]\ninit b int64[1] = [-1]\ninit x int64[1] = [1]\ny = Slice(logits, a, b, x)", exact: true},
}

var shapeCases = []regionCase{
	{row: "Transpose", name: "perm", body: tokens + "a = Transpose(logits) {perm=[2, 0, 1]}\ninit x int64[1] = [0]\ny = ReduceMax(a, x)", exact: true},
	{row: "Transpose", name: "reverse", body: "a = Transpose(logits)\ny = LogSoftmax(a) {axis=0}"},
	{row: "Transpose", name: "of an input", body: "in b F[40,6]\na = Transpose(b)\ny = Mul(a, logits)", parts: 3, exact: true},
	{row: "Reshape", name: "joined", body: tokens + "init s int64[2] = [-1, 40]\na = Reshape(logits, s)\nin b F[6,1]\ny = Mul(a, b)", exact: true},
	{row: "Reshape", name: "split", body: "in h F[6,3]\nin w F[3,40]\nlogits = MatMul(h, w)\ninit s int64[3] = [2, 0, 40]\ninit s2 int64[4] = [2, 3, 8, 5]\na = Reshape(logits, s2)\ny = Softmax(a)"},
	{row: "Reshape", name: "of an input", body: "in b F[2,3,40]\ninit s int64[2] = [6, 40]\na = Reshape(b, s)\ny = Mul(a, logits)", exact: true},
	{row: "Reshape", name: "flat", body: "init s int64[1] = [-1]\na = Reshape(logits, s)\ny = Mul(a, a)", parts: 3, exact: true},
	{row: "Squeeze", name: "axes", body: "in h F[6,1,3]\nin w F[3,40]\nlogits = MatMul(h, w)\ninit x int64[1] = [1]\na = Squeeze(logits, x)\ny = Mul(a, a)", parts: 6, exact: true},
	{row: "Squeeze", name: "all", body: "in h F[6,1,3]\nin w F[3,40]\nlogits = MatMul(h, w)\na = Squeeze(logits)\ny = Softmax(a) {axis=1}", parts: 6},
	{row: "Squeeze", name: "attribute", body: "in h F[6,1,3]\nin w F[3,40]\nlogits = MatMul(h, w)\na = Squeeze(logits) {axes=[-2]}\nloss = ReduceSum(a) {axes=[0, 1], keepdims=0}", exact: true, opset: "12"},
	{row: "Unsqueeze", name: "two", body: "init x int64[2] = [0, -1]\na = Unsqueeze(logits, x)\ny = Mul(a, a)", parts: 3, exact: true},
	{row: "Flatten", name: "tokens", body: tokens + "a = Flatten(logits) {axis=2}\nin b F[6,1]\ny = Mul(a, b)", exact: true},
	{row: "Flatten", name: "all", body: "a = Flatten(logits) {axis=0}\ny = Mul(a, a)", exact: true},
	{row: "Expand", name: "of one", body: "init minus F[] = -1\ninit s int64[2] = [6, 40]\na = Expand(minus, s)\ny = Mul(a, logits)", exact: true},
	{row: "Expand", name: "of a token", body: "in b F[6,1]\ninit s int64[2] = [6, 40]\na = Expand(b, s)\ny = Mul(a, logits)", parts: 3, exact: true},
	{row: "Expand", name: "of the vocabulary", body: "in b F[40]\ninit s int64[2] = [6, 40]\na = Expand(b, s)\ny = Mul(a, logits)", exact: true},
	{row: "Expand", name: "of the logits", body: "init s int64[3] = [2, 1, 1]\na = Expand(logits, s)\ny = Mul(a, a)", parts: 3, exact: true},
	{row: "ConstantOfShape", name: "half", body: "init s int64[2] = [6, 40]\na = ConstantOfShape(s) {value=tensor(float32[1] = [0.5])}\ny = Mul(a, logits)", exact: true},
}

var productCases = []regionCase{
	{row: "MatMul", name: "gradients", body: "wt = Transpose(w)\nht = Transpose(h)\na = Mul(logits, logits)\ndh = MatMul(a, wt)\ndw = MatMul(ht, a)\ny = Neg(a)", parts: 3, exact: true},
	{row: "MatMul", name: "sequences", body: tokens + "wt = Transpose(w)\ndh = MatMul(logits, wt)\ny = Neg(logits)", exact: true},
	{row: "MatMul", name: "one sequence", body: "in h F[1,6,4]\nin w F[4,40]\nlogits = MatMul(h, w)\nwt = Transpose(w)\nht = Transpose(h) {perm=[0, 2, 1]}\ndh = MatMul(logits, wt)\ndw = MatMul(ht, logits)\ny = Neg(logits)", parts: 3, exact: true},
	{row: "MatMul", name: "batched weights", body: "in h F[2,3,4]\nin w F[2,4,40]\nlogits = MatMul(h, w)\nv = Transpose(w) {perm=[0, 2, 1]}\ndh = MatMul(logits, v)\ny = Neg(logits)", exact: true},
	{row: "MatMul", name: "one row", body: "in h F[1,3]\nin w F[3,40]\nlogits = MatMul(h, w)\ny = Exp(logits)"},
	{row: "MatMul", name: "batch of one", body: "in h F[2,3,4]\nin w F[1,4,40]\nlogits = MatMul(h, w)\nv = Transpose(w) {perm=[0, 2, 1]}\ndh = MatMul(logits, v)\ny = Neg(logits)", exact: true},
	{row: "MatMul", name: "read whole and in parts", body: "in h F[2,2,4]\nin w F[4,40]\nin k F[2,2]\nlogits = MatMul(h, w)\nkl = MatMul(k, logits)\nv = Reshape(logits, s)\ninit s int64[2] = [2, 80]\nz = MatMul(kk, v)\ninit kk F[80,2] = zeros\nkv = Mul(z, z)\ny = Neg(logits)", exact: true},
	{row: "MatMul", name: "transposed logits", body: "in h F[4,6]\nin w F[40,4]\nz = MatMul(w, h)\nlogits = Transpose(z)\na = Mul(logits, logits)\nloss = ReduceSum(a) {keepdims=0}", parts: 2, exact: true},
	{row: "MatMul", name: "read in a subgraph", body: "in c bool[]\nz = If(c) {then_branch=graph t {\n a = Neg(logits)\n out a float32[?,?]\n}, else_branch=graph e {\n b = Abs(logits)\n out b float32[?,?]\n}}\ny = Neg(logits)", exact: true},
	{row: "Gemm", name: "plain", body: "in h F[6,3]\nin w F[3,40]\nin b F[40]\nlogits = Gemm(h, w, b) {alpha=0.5, beta=2.0}\ndh = Gemm(logits, w) {transB=1}\ndw = Gemm(h, logits) {transA=1, alpha=0.5}\ny = Neg(logits)", parts: 3, exact: true},
	{row: "Gemm", name: "transposed", body: "in h F[3,6]\nin w F[40,3]\nin b F[1,40]\nlogits = Gemm(h, w, b) {transA=1, transB=1}\ndw = Gemm(logits, h) {transA=1, transB=1}\ny = Neg(logits)", parts: 3, exact: true},
	{row: "Gemm", name: "that goes on with a sum", body: "in h F[6,3]\nin w F[3,40]\nlogits = MatMul(h, w)\nin c F[3,40]\ndw = Gemm(h, logits, c) {transA=1, alpha=0.5, beta=2.0}\nin b F[3]\ndb = Gemm(logits, h, b) {transA=1}\ny = Neg(logits)", parts: 3, exact: true},
	{row: "Gemm", name: "bias of a token", body: "in h F[6,3]\nin w F[3,40]\nin b F[6,1]\nlogits = Gemm(h, w, b)\ny = Neg(logits)", parts: 6, exact: true},
	{row: "Gemm", name: "whole bias", body: "in h F[6,3]\nin w F[3,40]\nin b F[6,40]\nlogits = Gemm(h, w, b)\ny = Neg(logits)", exact: true},
	{row: "Gemm", name: "scalar bias", body: "in h F[6,3]\nin w F[3,40]\nin b F[]\nlogits = Gemm(h, w, b)\ny = Neg(logits)", exact: true},
	{row: "Gemm", name: "square bias", body: "in h F[6,3]\nin w F[3,6]\nin b F[6]\nlogits = Gemm(h, w, b)\ninit x int64[1] = [1]\ns = ReduceSum(logits, x) {keepdims=0}\nv = Mul(s, b)\nu = Unsqueeze(v, x)\ny = Mul(logits, u)", parts: 6, exact: true},
	{row: "com.microsoft.FusedMatMul", name: "both ways", body: "in h F[3,6]\nin w F[40,3]\nlogits = com.microsoft.FusedMatMul(h, w) {transA=1, transB=1, alpha=0.5}\ndw = com.microsoft.FusedMatMul(logits, h) {transA=1, transB=1, alpha=0.5}\ndh = com.microsoft.FusedMatMul(w, logits) {transA=1, transB=1}\ny = Neg(logits)", parts: 3, exact: true},
	{row: "com.microsoft.FusedMatMul", name: "sequences", body: "in h F[2,3,4]\nin w F[40,4]\nlogits = com.microsoft.FusedMatMul(h, w) {transB=1}\ndh = com.microsoft.FusedMatMul(logits, w)\ny = Neg(logits)", exact: true},
}

// crossEntropy is the loss of labels l [6,1] with its gradient, as differentiation
// writes it; weight is what every token counts.
func crossEntropy(weight string) string {
	return "in l int64[6,1]\nlogp = LogSoftmax(logits)\npicked = GatherElements(logp, l) {axis=1}\n" + weight +
		"\npart = Mul(picked, each)\ntotal = ReduceSum(part) {keepdims=0}\nloss = Neg(total)\n" +
		"p = Exp(logp)\nminus = Neg(each)\ndp = Mul(p, each)\nd = ScatterElements(dp, l, minus) {axis=1, reduction=\"add\"}\n" +
		"wt = Transpose(w)\nht = Transpose(h)\ndh = MatMul(d, wt)\ndw = MatMul(ht, d)\n"
}

const projected = "in h F[6,3]\nin w F[3,40]\nlogits = MatMul(h, w)\n"

var lossCases = []regionCase{
	{row: "GatherElements", name: "sum", body: projected + crossEntropy("init each F[6,1] = [1, 1, 1, 1, 1, 1]"), parts: 3},
	{row: "GatherElements", name: "mean", body: projected + crossEntropy("init sixth F[] = 0.16666667\ninit at int64[2] = [6, 1]\neach = Expand(sixth, at)"), parts: 3},
	{row: "GatherElements", name: "mean with ignored labels", body: projected + crossEntropy("init none int64[] = 0\nskip = Equal(l, none)\nkeep = Not(skip)\nones = Cast(keep) {to=1}\ncount = ReduceSum(ones)\neach = Div(ones, count)"), parts: 6},
	{row: "GatherElements", name: "weights of classes", body: projected + "in c F[40]\n" + crossEntropy("index = Reshape(l, flat)\ninit flat int64[1] = [-1]\nof = Gather(c, index)\ninit col int64[2] = [6, 1]\neach = Reshape(of, col)"), parts: 2},
	{row: "ReduceMean", name: "label smoothing", body: projected + "in l int64[6,1]\nlogp = LogSoftmax(logits)\npicked = GatherElements(logp, l) {axis=1}\ninit x int64[1] = [1]\nmean = ReduceMean(logp, x)\ninit a F[] = 0.9\ninit b F[] = 0.1\npa = Mul(picked, a)\npb = Mul(mean, b)\nboth = Add(pa, pb)\ns = ReduceMean(both) {keepdims=0}\nloss = Neg(s)", parts: 3},
	{row: "Softmax", name: "shared weights", body: "in e F[40,3]\nin ids int64[6]\nh = Gather(e, ids)\nlogits = Gemm(h, e) {transB=1}\nin l int64[6,1]\nq = Softmax(logits)\npicked = GatherElements(q, l) {axis=1}\nlg = Log(picked)\ntotal = ReduceSum(lg) {keepdims=0}\nloss = Neg(total)\nde = Gemm(q, h) {transA=1}\ndh = MatMul(q, e)\ndx = Mul(dh, dh)", parts: 2},
	{row: "ReduceLogSumExp", name: "logits read twice", body: projected + "in l int64[6,1]\nlogp = LogSoftmax(logits)\npicked = GatherElements(logp, l) {axis=1}\ninit x int64[1] = [1]\nz = ReduceLogSumExp(logits, x)\nzz = Mul(z, z)\nboth = Sub(zz, picked)\nloss = ReduceSum(both) {keepdims=0}", parts: 3},
	{row: "Slice", name: "next token", body: "in h F[4,5,3]\nin w F[3,40]\nin l int64[4,4,1]\nlogits = MatMul(h, w)\ninit a int64[1] = [0]\ninit b int64[1] = [-1]\ninit x int64[1] = [1]\nshifted = Slice(logits, a, b, x)\ninit s int64[2] = [16, 40]\nflat = Reshape(shifted, s)\nlogp = LogSoftmax(flat)\ninit c int64[2] = [16, 1]\nlabels = Reshape(l, c)\npicked = GatherElements(logp, labels) {axis=1}\nm = ReduceMean(picked) {keepdims=0}\nloss = Neg(m)", parts: 4},
	{row: "Equal", name: "one-hot targets", body: projected + "in l int64[6,1]\ninit v int64[40] = " + counting(40) + "\nhot = Equal(l, v)\nt = Cast(hot) {to=1}\nlogp = LogSoftmax(logits)\nq = Mul(logp, t)\ntotal = ReduceSum(q) {keepdims=0}\nloss = Neg(total)\np = Exp(logp)\nd = Sub(p, t)\nwt = Transpose(w)\ndh = MatMul(d, wt)", parts: 3},
	{row: "Where", name: "logits twice, two losses", body: projected + "in k bool[6,1]\ninit zero F[] = 0\na = Where(k, logits, zero)\nq = Sigmoid(logits)\ny = Mul(a, q)\nin big F[6,40]\nb = Sub(logits, big)\nbb = Mul(b, b)\nsecond = ReduceMean(bb) {keepdims=0}", parts: 2},
}

func counting(n int) string {
	s := "["
	for i := range n {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprint(i)
	}
	return s + "]"
}
