package grad

var reduceCases = []gradCase{
	{row: "ReduceSum", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [1]\nb = ReduceSum(a, x) {keepdims=0}\ny = Mul(b, b)"},
	{row: "ReduceSum", name: "all", body: "in a F[2,3]\nb = ReduceSum(a) {keepdims=0}\ny = Mul(b, b)"},
	{row: "ReduceSum", name: "none", body: "in a F[2,3]\nb = ReduceSum(a) {noop_with_empty_axes=1}\ny = Mul(b, b)"},
	{row: "ReduceMean", name: "keep", body: "in a F[2,3]\ninit x int64[1] = [-1]\nb = ReduceMean(a, x)\nc = Sub(a, b)\ny = Mul(c, c)"},
	{row: "ReduceMean", name: "unknown", body: "in a F[?,?]\ninit x int64[1] = [-1]\nb = ReduceMean(a, x)\nc = Sub(a, b)\ny = Mul(c, c)"},
	{row: "ReduceMean", name: "all", body: "in a F[2,3]\nb = ReduceMean(a) {keepdims=0}\ny = Mul(b, b)"},
	{row: "ReduceSumSquare", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [0]\ny = ReduceSumSquare(a, x)"},
	{row: "ReduceL1", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [0]\ny = ReduceL1(a, x)", f32: true, apart: 0.4},
	{row: "ReduceL2", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [1]\ny = ReduceL2(a, x) {keepdims=0}", f32: true, apart: 0.4},
	{row: "ReduceLogSum", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [1]\ny = ReduceLogSum(a, x) {keepdims=0}", lo: 0.5, hi: 2, f32: true},
	{row: "ReduceLogSumExp", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [1]\ny = ReduceLogSumExp(a, x) {keepdims=0}"},
	{row: "ReduceMax", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [1]\ny = ReduceMax(a, x) {keepdims=0}", apart: 0.4},
	{row: "ReduceMin", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [0]\ny = ReduceMin(a, x)", apart: 0.4},
	{row: "ReduceProd", name: "axis", body: "in a F[2,3]\ninit x int64[1] = [1]\ny = ReduceProd(a, x) {keepdims=0}", f32: true, lo: 0.5, hi: 1.5},
	{row: "ReduceProd", name: "a zero", body: "in a F[2,3]\ninit k F[3] = [1, 0, 1]\ninit x int64[1] = [1]\nb = Sub(a, a)\nc = Add(b, k)\nd = Mul(a, c)\ne = Mul(b, a)\nf = Add(d, e)\ny = ReduceProd(f, x)", f32: true, lo: 0.5, hi: 1.5},
	{row: "ReduceProd", name: "no axes", body: "in a F[2,3]\ny = ReduceProd(a) {noop_with_empty_axes=1}", f32: true, lo: 0.5, hi: 1.5},
}

var softmaxCases = []gradCase{
	{row: "Softmax", name: "last", body: "in a F[2,3]\ny = Softmax(a)"},
	{row: "Softmax", name: "unknown", body: "in a F[?,?]\nb = Softmax(a)\ny = Mul(b, a)"},
	{row: "Softmax", name: "first", body: "in a F[2,3,2]\ny = Softmax(a) {axis=1}"},
	{row: "LogSoftmax", name: "picked", body: "in a F[3,4]\ninit i int64[3,1] = [1, 3, 0]\nb = LogSoftmax(a)\ny = GatherElements(b, i) {axis=1}"},
	{row: "LogSoftmax", name: "picked twice", body: "in a F[2,4]\ninit i int64[2,2] = [1, 3, 0, 0]\nb = LogSoftmax(a)\ny = GatherElements(b, i) {axis=1}"},
	{row: "LogSoftmax", name: "picked by tuples", body: "in a F[5,2]\ninit i int64[3,2] = [0,1,2,0,1,0]\nb = LogSoftmax(a) {axis=0}\ny = GatherND(b, i)"},
	{row: "LogSoftmax", name: "picked by small tuples", body: "in a F[5,2]\ninit i int64[3,2] = [0,1,1,0,1,1]\nb = LogSoftmax(a) {axis=0}\ny = GatherND(b, i)"},
	{row: "LogSoftmax", name: "rows picked by tuples", body: "in a F[300,2]\ninit i int64[3,1] = [0,2,1]\nb = LogSoftmax(a) {axis=0}\ny = GatherND(b, i)"},
	{row: "LogSoftmax", name: "one of a list", body: "in a F[5]\ninit i int64[2,1] = [0,3]\nb = LogSoftmax(a) {axis=0}\ny = GatherND(b, i)"},
	{row: "LogSoftmax", name: "last", body: "in a F[2,3]\ny = LogSoftmax(a)"},
}

const lossHead = "in z F[3,4]\ninit t int64[3] = [1, 3, 0]\n"

var lossCases = []gradCase{
	{row: "SoftmaxCrossEntropyLoss", name: "mean", body: lossHead + "y = SoftmaxCrossEntropyLoss(z, t)"},
	{row: "SoftmaxCrossEntropyLoss", name: "sum ignore", body: lossHead + "y = SoftmaxCrossEntropyLoss(z, t) {reduction=\"sum\", ignore_index=3}"},
	{row: "SoftmaxCrossEntropyLoss", name: "mean ignore", body: lossHead + "y = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}"},
	{row: "SoftmaxCrossEntropyLoss", name: "weights", body: lossHead + "init w F[4] = [1, 2, 0.5, 3]\ny = SoftmaxCrossEntropyLoss(z, t, w) {ignore_index=0}"},
	{row: "SoftmaxCrossEntropyLoss", name: "none", body: lossHead + "init w F[4] = [1, 2, 0.5, 3]\ny = SoftmaxCrossEntropyLoss(z, t, w) {reduction=\"none\"}"},
	{row: "SoftmaxCrossEntropyLoss", name: "deep", body: "in z F[2,3,2]\ninit t int64[2,2] = [1, 2, 0, 1]\ny = SoftmaxCrossEntropyLoss(z, t)"},
	{row: "SoftmaxCrossEntropyLoss", name: "log probabilities", body: lossHead + "y, y2 = SoftmaxCrossEntropyLoss(z, t)"},
	{row: "SoftmaxCrossEntropyLoss", name: "narrow labels", body: "in z F[3,4]\ninit t int32[3] = [1, 3, 0]\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=0}"},
	{row: "NegativeLogLikelihoodLoss", name: "mean", body: lossHead + "y = NegativeLogLikelihoodLoss(z, t)"},
	{row: "NegativeLogLikelihoodLoss", name: "weights", body: lossHead + "init w F[4] = [1, 2, 0.5, 3]\ny = NegativeLogLikelihoodLoss(z, t, w) {ignore_index=0}"},
	{row: "NegativeLogLikelihoodLoss", name: "deep", body: "in z F[2,3,2]\ninit t int64[2,2] = [1, 2, 0, 1]\ny = NegativeLogLikelihoodLoss(z, t) {reduction=\"none\"}"},
}

// Products and reshapes that take the samples' weights over from a loss.
var factoredCases = []gradCase{
	{row: "Gemm", name: "of a loss", body: "in x F[3,2]\nin w F[4,2]\nin b F[4]\ninit t int64[3] = [1, 3, 0]\nz = Gemm(x, w, b) {transB=1, alpha=0.5, beta=2.0}\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}"},
	{row: "Gemm", name: "of a plain loss", body: "in x F[3,2]\nin w F[2,4]\nin b F[1,4]\ninit t int64[3] = [1, 3, 0]\nz = Gemm(x, w, b)\ny = SoftmaxCrossEntropyLoss(z, t)"},
	{row: "Gemm", name: "of a loss, both ways", body: "in x F[2,3]\nin w F[2,4]\nin b F[3,1]\ninit t int64[3] = [1, 3, 0]\nz = Gemm(x, w, b) {transA=1}\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}"},
	{row: "Gemm", name: "of a loss, column", body: "in x F[3,2]\nin w F[2,4]\nin b F[3,1]\ninit t int64[3] = [1, 3, 0]\nz = Gemm(x, w, b)\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}"},
	{row: "MatMul", name: "of a loss", body: "in x F[2,2,3]\nin w F[3,4]\ninit t int64[4] = [1, 3, 0, 1]\nh = MatMul(x, w)\ninit s int64[2] = [-1, 4]\nz = Reshape(h, s)\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}"},
	{row: "MatMul", name: "of a loss read twice", body: "in x F[2,2,3]\nin w F[3,4]\ninit t int64[4] = [1, 3, 0, 1]\nh = MatMul(x, w)\ninit s int64[2] = [-1, 4]\nz = Reshape(h, s)\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}\ny2 = Mul(z, z)"},
	{row: "MatMul", name: "of picked log probabilities", body: "in x F[3,2]\nin w F[2,4]\ninit t int64[3,1] = [1, 3, 0]\nz = MatMul(x, w)\nl = LogSoftmax(z)\ny = GatherElements(l, t) {axis=1}"},
	{row: "Reshape", name: "of a loss, joined", body: "in x F[3,2,2]\ninit s int64[2] = [3, 4]\ninit t int64[3] = [1, 3, 0]\nz = Reshape(x, s)\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}"},
	{row: "Add", name: "of a loss", body: "in x F[3,4]\nin b F[4]\ninit t int64[3] = [1, 3, 0]\nz = Add(x, b)\ny = SoftmaxCrossEntropyLoss(z, t) {ignore_index=3}"},
}

var layerNormCases = []gradCase{
	{row: "LayerNormalization", name: "last", body: "in a F[3,4]\nin s F[4]\nin b F[4]\ny = LayerNormalization(a, s, b)"},
	{row: "LayerNormalization", name: "weights for each row", body: "in a F[2,3,4]\nin s F[3,4]\nin b F[2,1,4]\ny = LayerNormalization(a, s, b)"},
	{row: "LayerNormalization", name: "two axes", body: "in a F[2,3,2]\nin s F[3,2]\ny = LayerNormalization(a, s) {axis=1}"},
}
