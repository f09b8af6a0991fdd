package tile

// tail is the update that most cases end with: y is made of the gradient.
const tail = "\nw.new = Sub(w, y)"

// head is a projection, its cross entropy and the gradient of its weights.
const head = "in h F[3,4]\nin w F[16,4]\nin l int64[3,1]\nlogits = Gemm(h, w) {transB=1}\n"

// rowsCases are the cases of the table of slice rules.
var rowsCases = []rowsCase{
	{row: "Add", name: "momentum", body: "in m F[16,8]\ninit b F[] = 0.5\nmb = Mul(m, b)\nm.new = Add(mb, g)\nw.new = Sub(w, m.new)", exact: true},
	{row: "Add", name: "columns", body: "in c F[8]\ny = Add(g, c)" + tail, exact: true},
	{row: "Add", name: "rows", body: "in c F[16,1]\ny = Add(c, g)" + tail, exact: true},
	{row: "Sub", name: "sgd", body: "init lr F[] = 0.5\ny = Mul(g, lr)" + tail, exact: true},
	{row: "Sub", name: "columns alone", body: "in w F[3,16]\nin x F[5,3]\nin d F[5,16]\ng = Gemm(x, d) {transA=1}\nw.new = Sub(w, g)", exact: true, axis: 1},
	{row: "Mul", name: "decay", body: "init k F[] = 0.5\na = Mul(w, k)\ny = Add(a, g)" + tail, exact: true},
	{row: "Div", name: "scaled", body: "in s F[1]\na = Div(g, k)\ninit k F[] = 4\ny = Mul(a, s)" + tail, exact: true},
	{row: "Pow", name: "square", body: "init two F[] = 2\ny = Pow(g, two)" + tail},
	{row: "Neg", name: "plain", body: "y = Neg(g)" + tail, exact: true},
	{row: "Exp", name: "plain", body: "y = Exp(g)" + tail},
	{row: "Log", name: "plain", body: "a = Exp(g)\ny = Log(a)" + tail},
	{row: "Sqrt", name: "adam", body: "in m F[16,8]\nin v F[16,8]\ninit a F[] = 0.5\ninit e F[] = 0.1\nm1 = Mul(m, a)\nm2 = Mul(g, a)\nm.new = Add(m1, m2)\nv0 = Mul(v, v)\nv1 = Mul(v0, a)\ng2 = Mul(g, g)\nv2 = Mul(g2, a)\nv.new = Add(v1, v2)\nr = Sqrt(v.new)\nd1 = Add(r, e)\ny = Div(m.new, d1)" + tail},
	{row: "Reciprocal", name: "plain", body: "a = Exp(g)\ny = Reciprocal(a)" + tail},
	{row: "Abs", name: "plain", body: "y = Abs(g)" + tail, exact: true},
	{row: "Sign", name: "lion", body: "in m F[16,8]\ninit b F[] = 0.5\na = Mul(m, b)\nc = Add(a, g)\ny = Sign(c)" + tail, exact: true},
	{row: "Max", name: "amsgrad", body: "in v F[16,8]\na = Mul(g, g)\nv.new = Max(v, a)\ny = Add(v.new, g)" + tail, exact: true},
	{row: "Min", name: "scalar", body: "init c F[] = 1\ny = Min(c, g)" + tail, exact: true},
	{row: "Sum", name: "of three", body: "in c F[16,1]\nin e F[8]\ny = Sum(c, g, e)" + tail, exact: true},
	{row: "Clip", name: "by value", body: "init lo F[] = -1\ninit hi F[] = 1\ny = Clip(g, lo, hi)" + tail, exact: true},
	{row: "Clip", name: "above", body: "init hi F[] = 1\ny = Clip(g, _, hi)" + tail, exact: true},
	{row: "Cast", name: "there and back", body: "a = Cast(g) {to=11}\nb = Mul(a, a)\ny = Cast(b) {to=1}" + tail, exact: true},
	{row: "Where", name: "of rows", body: "in c bool[16,1]\ninit zero F[] = 0\ny = Where(c, g, zero)" + tail, exact: true},
	{row: "Where", name: "overflow", body: "in c bool[]\na = Sub(w, g)\nw.new = Where(c, w, a)", exact: true},
	{row: "Identity", name: "plain", body: "y = Identity(g)" + tail, exact: true},
	{row: "Equal", name: "plain", body: "in e F[8]\na = Equal(g, e)\ny = Cast(a) {to=1}" + tail, exact: true},
	{row: "Less", name: "plain", body: "in e F[]\na = Less(g, e)\ny = Cast(a) {to=1}" + tail, exact: true},
	{row: "Greater", name: "plain", body: "in e F[16,1]\na = Greater(e, g)\ny = Cast(a) {to=1}" + tail, exact: true},
	{row: "Not", name: "plain", body: "in e F[]\na = Less(g, e)\nb = Not(a)\ny = Cast(b) {to=1}" + tail, exact: true},

	{row: "MatMul", name: "transposed factor", body: "in w F[16,8]\nin x F[3,16]\nin d F[3,8]\nxt = Transpose(x)\ng = MatMul(xt, d)\nw.new = Sub(w, g)", exact: true},
	{row: "MatMul", name: "batches", body: "in w F[2,16,8]\nin x F[2,16,3]\nin d F[2,3,8]\ng = MatMul(x, d)\nw.new = Sub(w, g)", exact: true, axis: 1},
	{row: "MatMul", name: "matrix times batches", body: "in w F[2,16,8]\nin x F[16,3]\nin d F[2,3,8]\ng = MatMul(x, d)\nw.new = Sub(w, g)", exact: true, axis: 1},
	{row: "Gemm", name: "both ways", body: "in w F[16,8]\nin x F[3,16]\nin d F[8,3]\ng = Gemm(x, d) {transA=1, transB=1, alpha=0.5}\nw.new = Sub(w, g)", exact: true},
	{row: "Gemm", name: "bias of columns", body: "in w F[16,8]\nin x F[16,3]\nin d F[3,8]\nin c F[8]\ng = Gemm(x, d, c)\nw.new = Sub(w, g)", exact: true},
	{row: "Gemm", name: "bias of rows", body: "in w F[16,8]\nin x F[16,3]\nin d F[3,8]\nin c F[16,1]\ng = Gemm(x, d, c) {beta=2.0}\nw.new = Sub(w, g)", exact: true},
	{row: "Gemm", name: "sliced along columns", body: "in w F[3,16]\nin x F[3,5]\nin d F[16,5]\nin c F[16]\ng = Gemm(x, d, c) {transB=1}\nw.new = Sub(w, g)", exact: true, axis: 1},
	{row: "com.microsoft.FusedMatMul", name: "both ways", body: "in w F[16,8]\nin x F[3,16]\nin d F[8,3]\ng = com.microsoft.FusedMatMul(x, d) {transA=1, transB=1, alpha=0.5}\nw.new = Sub(w, g)", exact: true},
	{row: "Transpose", name: "reverse", body: "in w F[16,8]\nin x F[3,16]\nin d F[3,8]\ndt = Transpose(d)\na = MatMul(dt, x)\ng = Transpose(a)\nw.new = Sub(w, g)", exact: true, axis: 1},
	{row: "Transpose", name: "perm", body: "in w F[16,2,4]\nin x F[2,4,3]\nin d F[3,16]\na = MatMul(x, d)\ng = Transpose(a) {perm=[2, 0, 1]}\nw.new = Sub(w, g)", exact: true},
	{row: "Reshape", name: "columns split", body: "in w F[16,2,4]\nin x F[3,16]\nin d F[3,8]\na = Gemm(x, d) {transA=1}\ninit s int64[3] = [16, 2, 4]\ng = Reshape(a, s)\nw.new = Sub(w, g)", exact: true},
	{row: "Reshape", name: "axis of one", body: "in w F[16,8]\nin x F[1,16,3]\nin d F[3,8]\na = MatMul(x, d)\ninit s int64[2] = [16, -1]\ng = Reshape(a, s)\nw.new = Sub(w, g)", exact: true},

	{row: "LogSoftmax", name: "of the projection", body: head + "y = LogSoftmax(logits)\nf.p = GatherElements(y, l) {axis=1}\nloss = ReduceSum(f.p)\np = Exp(y)\ng = Gemm(p, h) {transA=1}\nw.new = Sub(w, g)"},
	{row: "LogSoftmax", name: "masked vocabulary", body: head + "init mask F[16] = [-inf, 0, 0, 0, 0, 0, 0, 0, 0, -inf, 0, 0, 0, 0, 0, 0]\nz = Add(logits, mask)\ny = LogSoftmax(z)\np = Exp(y)\ng = Gemm(p, h) {transA=1}\nw.new = Sub(w, g)"},
	{row: "LogSoftmax", name: "along another axis", body: "in w F[16,8]\nin x F[3,16]\nin d F[3,8]\na = Gemm(x, d) {transA=1}\ng = LogSoftmax(a)\nw.new = Sub(w, g)"},
	{row: "Softmax", name: "of the logarithm", body: head + "y = LogSoftmax(logits)\np = Softmax(y)\ng = Gemm(p, h) {transA=1}\nw.new = Sub(w, g)"},
	{row: "Softmax", name: "beside the sum of a loss", body: head + "init x int64[1] = [-1]\ns = ReduceLogSumExp(logits, x)\np = Softmax(logits)\ng = Gemm(p, h) {transA=1}\nw.new = Sub(w, g)"},
	{row: "Softmax", name: "along another axis", body: "in w F[16,8]\nin x F[3,16]\nin d F[3,8]\na = Gemm(x, d) {transA=1}\ng = Softmax(a) {axis=1}\nw.new = Sub(w, g)"},
	{row: "ScatterElements", name: "rows of an embedding", body: scattered + "g = ScatterElements(z, at, u) {axis=0, reduction=\"add\"}\nw.new = Sub(w, g)", exact: true},
	{row: "ScatterElements", name: "spread indices", body: "in w F[16,4]\nin ids int64[5,1]\nin u F[5,4]\ninit s int64[2] = [5, 4]\nat = Expand(ids, s)\ninit z F[16,4] = zeros\ng = ScatterElements(z, at, u) {axis=-2, reduction=\"add\"}\nw.new = Sub(w, g)", exact: true},
	{row: "ScatterElements", name: "indices from the end", body: "in w F[16,4]\ninit at int32[2,4] = [-1, 3, -16, 15, -1, 0, 4, -9]\nin u F[2,4]\ninit z F[16,4] = zeros\ng = ScatterElements(z, at, u) {axis=0, reduction=\"add\"}\nw.new = Sub(w, g)", exact: true},
	{row: "ScatterElements", name: "tied weights", body: "in w F[16,4]\nin x F[3,16]\nin d F[3,4]\nin at int64[5,4]\nin u F[5,4]\na = Gemm(x, d) {transA=1}\ng = ScatterElements(a, at, u) {axis=0, reduction=\"add\"}\nw.new = Sub(w, g)", exact: true},
	{row: "ScatterElements", name: "labels", body: head + "y = LogSoftmax(logits)\np = Exp(y)\ninit m F[3,1] = [-1, -1, -1]\nq = ScatterElements(p, l, m) {axis=1, reduction=\"add\"}\ng = Gemm(q, h) {transA=1}\nw.new = Sub(w, g)"},
	{row: "ScatterElements", name: "within rows", body: "in w F[16,5]\nin x F[3,16]\nin d F[3,5]\na = Gemm(x, d) {transA=1}\nin at int64[16,2]\nin u F[16,2]\ng = ScatterElements(a, at, u) {axis=-1, reduction=\"add\"}\nw.new = Sub(w, g)", exact: true},
}

const scattered = "in w F[16,4]\nin at int64[5,4]\nin u F[5,4]\ninit z F[16,4] = zeros\n"
