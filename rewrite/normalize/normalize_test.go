package normalize

// Each pass on a small graph: which operators are left, and that ONNX Runtime
// computes the same before and after.

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

var cases = []struct {
	name string
	// pass must have rewritten something; "" for a graph that stays.
	pass string
	body string
	// ops are the operators left, sorted, each once a node.
	ops string
}{
	{"constant", "constants", "in x float32[2,3]\nc = Constant() {value_float=2.0}\ny = Mul(x, c)", "Mul"},
	{"identity", "identities", "in x float32[2,3]\na = Identity(x)\nb = Cast(a) {to=1}\ny = Relu(b)", "Relu"},
	{"cast like", "casts", "in x float32[2,3]\ninit k int64[1] = [0]\nb = CastLike(x, k)\nc = Neg(b)\ny = Cast(c) {to=1}", "Cast Cast Neg"},
	{"cast like its own type", "casts", "in x float32[2,3]\ninit k float32[1] = [0]\nb = CastLike(x, k)\ny = Relu(b)", "Relu"},
	{"cast there and back", "identities", "in x float32[2,3]\na = Cast(x) {to=11}\nb = Cast(a) {to=1}\ny = Relu(b)", "Relu"},
	{"cast there and back, rounded", "", "in x float32[2,3]\na = Cast(x) {to=10}\nb = Cast(a) {to=1}\ny = Relu(b)", "Cast Cast Relu"},
	{"cast there and back, of a subgraph", "identities", "in x float32[2,3]\nin n int64[]\nin t bool[]\na = Cast(x) {to=11}\nb = Cast(a) {to=1}\ny = Loop(n, t, x) {body=graph l {\nin i int64[]\nin c bool[]\nin s float32[2,3]\nk = Identity(c)\nr = Add(s, b)\nout k bool[]\nout r float32[2,3]\n}}", "Loop"},
	{"dropout off", "identities", "in x float32[2,3]\ninit r float32[] = 0.5\na = Dropout(x, r)\ny = Relu(a)", "Relu"},
	{"dropout of nothing", "identities", "in x float32[2,3]\ninit r float32[] = 0\ninit t bool[] = true\na, m = Dropout(x, r, t)\ny = Relu(a)", "Relu"},
	{"divided by 1", "noops", "in x float32[2,3]\ninit k float32[] = 1\na = Div(x, k)\ny = Relu(a)", "Relu"},
	{"times 1 and plus 0", "noops", "in x float32[2,3]\ninit k float32[1] = [1]\ninit o float32[] = 0\na = Mul(k, x)\nb = Add(a, o)\nc = Sub(b, o)\ny = Relu(c)", "Relu"},
	{"expanded to its shape", "noops", "in x float32[2,3]\ninit s int64[2] = [1,3]\na = Expand(x, s)\ny = Relu(a)", "Relu"},
	{"one row for all", "copies", "in x float32[1,2,1]\ninit r int64[3] = [3,1,2]\na = Tile(x, r)\ny = Relu(a)", "Expand Relu"},
	{"one number as often as is said", "copies", "in x float32[1,1]\nin k float32[2,3]\nr = Shape(k)\na = Tile(x, r)\ny = Add(a, k)", "Add Expand"},
	{"repeated once", "noops", "in x float32[1,2]\ninit r int64[2] = [1,1]\na = Tile(x, r)\ny = Relu(a)", "Relu"},
	{"copies of all rows", "copies", "in x float32[1,2,3]\ninit r int64[3] = [3,2,2]\na = Tile(x, r)\ny = Relu(a)", "Expand Relu Reshape Unsqueeze"},
	{"copies as often as is said", "", "in x float32[2]\nin k float32[3]\nn = NonZero(k)\nr = Shape(n) {start=1}\na = Tile(x, r)\ny = Relu(a)", "NonZero Relu Shape Tile"},
	{"sliced whole", "noops", "in x float32[2,3]\ninit z int64[2] = [0,-3]\ninit e int64[2] = [9223372036854775807,3]\ninit ax int64[2] = [0,1]\ninit st int64[2] = [1,1]\na = Slice(x, z, e, ax, st)\ny = Relu(a)", "Relu"},
	{"sliced whole from the end", "", "in x float32[2,3]\ninit z int64[1] = [-1]\ninit e int64[1] = [-9223372036854775808]\ninit ax int64[1] = [1]\ninit st int64[1] = [-1]\na = Slice(x, z, e, ax, st)\ny = Relu(a)", "Relu Slice"},
	{"expanded to as many as the input says", "", "in x float32[1]\nin k float32[3]\nn = NonZero(k)\ninit u int64[1] = [-1]\na = Reshape(n, u)\nf = NonZero(x)\ng = Reshape(f, u)\ns = Shape(a)\nb = Expand(g, s)\ny = Cast(b) {to=1}", "Cast Expand NonZero NonZero Reshape Reshape Shape"},
	{"bias of zeros", "noops", "in x float32[1,2,7]\n" + kernels + "init o float32[] = 0\ninit s int64[1] = [3]\nb = Expand(o, s)\ny = Conv(x, w, b)", "Conv"},
	{"bias of zeros that no kernel takes", "noops", "in x float32[1,2,7]\n" + kernels + "init o float32[] = 0\ninit s int64[2] = [3,2]\nb = Expand(o, s)\ny = Conv(x, w, b)", "Conv"},
	{"bias of stored zeros", "", "in x float32[1,2,7]\n" + kernels + "init b float32[3] = [0,0,0]\ny = Conv(x, w, b)", "Conv"},
	{"bias of ones", "", "in x float32[1,2,7]\n" + kernels + "init o float32[] = 1\ninit s int64[1] = [3]\nb = Expand(o, s)\ny = Conv(x, w, b)", "Conv Expand"},
	{"1 over x, and 0 less x", "", "in x float32[2,3]\ninit k float32[] = 1\ninit o float32[] = 0\na = Div(k, x)\ny = Sub(o, a)", "Div Sub"},
	{"times 1 of more axes", "", "in x float32[2,3]\ninit k float32[1,1,1] = [1]\na = Mul(x, k)\ny = Relu(a)", "Mul Relu"},
	{"expanded", "", "in x float32[1,3]\ninit s int64[2] = [2,3]\na = Expand(x, s)\ny = Relu(a)", "Expand Relu"},
	{"dropout on", "", "in x float32[2,3]\ninit r float32[] = 0.5\ninit t bool[] = true\na, m = Dropout(x, r, t)\nz = Relu(a)\nb = Cast(m) {to=1}\nc = Mul(b, z)\nd = Sub(z, c)\ny = ReduceSum(d)", "Cast Dropout Mul ReduceSum Relu Sub"},
	{"shape chain", "fold", "in x float32[2,3]\ns = Shape(x)\ninit i int64[] = 0\ninit u int64[1] = [0]\ng = Gather(s, i)\nv = Unsqueeze(g, u)\ninit m int64[1] = [-1]\nt = Concat(v, m) {axis=0}\ny = Reshape(x, t)", ""},
	{"scalar chain", "fold", "in x float32[2,3]\ninit k float32[] = 16\nr = Sqrt(k)\ninit o float32[] = 1\ns = Div(o, r)\ny = Mul(x, s)", "Mul"},
	{"vector", "fold", "in x float32[3]\ninit a int64[1] = [2]\nb = Cast(a) {to=1}\ninit c float32[2] = [3, 4]\nd = Concat(b, c) {axis=0}\ny = Mul(x, d)", "Mul"},
	{"expanded to nothing", "fold", "in x float32[1,3]\ninit s int64[2] = [0,3]\na = Expand(x, s)\ny = Concat(x, a, x) {axis=0}", "Concat"},
	{"two biases", "fold", "in x float32[2,4]\ninit a float32[2] = [1, 2]\ninit b float32[2] = [3, 4]\ninit p float32[] = 1\ninit q float32[] = 2\nr = Add(p, q)\nc = Concat(a, b) {axis=0}\nd = Mul(c, r)\ny = Add(x, d)", "Add Concat Mul"},
	{"layer norm", "layernorms", lnBody + "e = Div(d, s)\ninit g float32[3] = [1, 2, 3]\ninit b float32[3] = [4, 5, 6]\nf = Mul(e, g)\ny = Add(f, b)", "LayerNormalization"},
	{"layer norm by a square", "layernorms", strings.ReplaceAll(lnBody, "Pow(d, two)", "Mul(d, d)") + "r = Reciprocal(s)\ny = Mul(d, r)", "LayerNormalization"},
	{"no layer norm: two axes apart", "", "in x float32[2,3,2]\ninit ax int64[1] = [1]\nm = ReduceMean(x, ax)\nd = Sub(x, m)\ninit two float32[] = 2\np = Pow(d, two)\nv = ReduceMean(p, ax)\ninit eps float32[] = 0.00001\nw = Add(v, eps)\ns = Sqrt(w)\ny = Div(d, s)", "Add Div Pow ReduceMean ReduceMean Sqrt Sub"},
	{"gelu", "gelus", "in x float32[2,3]\ninit k float32[] = 1.41421354\ninit one float32[] = 1\ninit h float32[] = 0.5\na = Div(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Mul(x, c)\ny = Mul(d, h)", "Gelu"},
	{"gelu of a half", "gelus", "in x float32[2,3]\ninit k float32[] = 0.70710677\ninit one float32[] = 1\ninit h float32[] = 0.5\na = Mul(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Mul(x, h)\ny = Mul(d, c)", "Gelu"},
	{"gelu by tanh", "gelus", "in x float32[2,3]\ninit h float32[] = 0.5\ninit three float32[] = 3\ninit k float32[] = 0.044715\ninit r float32[] = 0.7978846\ninit one float32[] = 1\na = Mul(x, h)\np = Pow(x, three)\nq = Mul(p, k)\nb = Add(x, q)\nc = Mul(b, r)\nt = Tanh(c)\nu = Add(t, one)\ny = Mul(a, u)", "Gelu"},
	{"gelu by products", "gelus", "in x float32[2,3]\ninit h float32[] = 0.5\ninit k float32[] = 0.044715\ninit r float32[] = 0.7978846\ninit one float32[] = 1\na = Mul(x, h)\nxx = Mul(x, x)\nxk = Mul(x, r)\nxm = Mul(xx, k)\nxo = Add(one, xm)\nc = Mul(xk, xo)\nt = Tanh(c)\nu = Add(t, one)\ny = Mul(a, u)", "Gelu"},
	{"no gelu: another factor", "", "in x float32[2,3]\ninit k float32[] = 1.3\ninit one float32[] = 1\ninit h float32[] = 0.5\na = Div(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Mul(x, c)\ny = Mul(d, h)", "Add Div Erf Mul Mul"},
	{"norm", "norms", "in x float32[2,3]\ninit ax int64[1] = [-1]\np = Mul(x, x)\nq = ReduceSum(p, ax) {keepdims=0}\ny = Sqrt(q)", "ReduceL2"},
	{"norm by powers", "norms", "in x float32[2,3]\ninit ax int64[1] = [0]\ninit two float32[] = 2\ninit half float32[1] = [0.49999976]\np = Pow(x, two)\nq = ReduceSum(p, ax) {noop_with_empty_axes=0}\ny = Pow(q, half)", "ReduceL2"},
	{"norm of everything", "norms", "in x float32[2,3]\nq = ReduceSumSquare(x)\ny = Sqrt(q)", "ReduceL2"},
	{"no norm: a root of a sum", "", "in x float32[2,3]\np = Abs(x)\nq = ReduceSum(p)\ny = Sqrt(q)", "Abs ReduceSum Sqrt"},
	{"log of a sigmoid", "logarithms", "in x float32[2,3]\np = Sigmoid(x)\ny = Log(p)", "Neg Neg Softplus"},
	{"log of 1 less a sigmoid", "logarithms", "in x float32[2,3]\ninit one float32[1] = [1]\np = Sigmoid(x)\nq = Sub(one, p)\ny = Log(q)", "Neg Softplus"},
	{"log1p of less a sigmoid", "logarithms", "in x float32[2,3]\ninit one float32[] = 1\np = Sigmoid(x)\nm = Neg(p)\nq = Add(m, one)\nl = Log(q)\ny = Mul(l, p)", "Mul Neg Sigmoid Softplus"},
	{"log of a sum of exponentials", "logarithms", "in x float32[2,3]\nin z float32[3]\na = Exp(x)\nb = Exp(z)\ns = Add(a, b)\ny = Log(s)", "Add Less Max Max Neg Softplus Sub Where Where"},
	{"no log of a sigmoid: 2 less it", "", "in x float32[2,3]\ninit two float32[] = 2\np = Sigmoid(x)\nq = Sub(two, p)\ny = Log(q)", "Log Sigmoid Sub"},
	{"guard of a causal mask", "guards", guardBody("0, -3e38, 0, 0"), "Add Gemm Softmax"},
	{"guard that may act", "", guardBody("-3e38, -3e38, 0, 0"), "Add Gemm IsNaN Softmax Where"},
	{"list", "sequences", "in x float32[6,2]\ninit n int64[] = 2\ninit i int64[] = 0\ninit j int64[] = -1\ns = SplitToSequence(x, n)\na = SequenceAt(s, i)\nb = SequenceAt(s, j)\ny = Mul(a, b)", "Mul Split"},
	{"unbind", "sequences", "in x float32[2,3]\ninit i int64[] = 0\ninit j int64[] = 1\ns = SplitToSequence(x) {keepdims=0}\na = SequenceAt(s, i)\nb = SequenceAt(s, j)\ny = Mul(a, b)", "Mul Split Squeeze Squeeze"},
	{"filled list", "sequences", "in x float32[2,3]\ninit i int64[] = 0\ninit j int64[] = -1\na = Relu(x)\ns = SequenceEmpty()\nt = SequenceInsert(s, x)\nu = SequenceInsert(t, a, i)\nv = SequenceInsert(u, x, j)\nw = SequenceErase(v, i)\ny = ConcatFromSequence(w) {axis=0}", "Concat"},
	{"split and joined", "sequences", "in x float32[6,2]\ninit n int64[] = 4\ninit i int64[] = 0\ns = SplitToSequence(x, n)\nt = SequenceAt(s, i)\nu = SequenceInsert(s, t)\ny = ConcatFromSequence(u) {axis=0}", "Concat Split"},
	{"mapped list", "branches", "in x float32[2,3]\ninit i int64[] = 0\ninit j int64[] = 1\ninit two float32[] = 2\na = Relu(x)\ns = SequenceConstruct(x, a)\nt, u = SequenceMap(s, two, s) {body=graph g {\nin e float32[2,3]\nin f float32[]\nin h float32[2,3]\nr = Shape(e)\nk = Size(r)\nc = LessOrEqual(k, j)\no = If(c) {then_branch=graph a {\np = Exp(e)\nout p float32[2,3]\n}, else_branch=graph b {\nq = Mul(e, f)\nout q float32[2,3]\n}}\nl = Neg(h)\nout o float32[2,3]\nout l float32[2,3]\n}}\nm = SequenceAt(t, i)\nn = SequenceAt(u, j)\ny = Add(m, n)", "Add Mul Neg Relu"},
	{"parts that data tells", "sequences", "in x float32[6,2]\nin c float32[2]\ninit none float32[2] = [0, 0]\ninit parts float32[2] = [4, 2]\ninit i int64[] = 1\nd = Mul(c, none)\ne = Add(d, parts)\nn = Cast(e) {to=7}\ns = SplitToSequence(x, n) {keepdims=0}\nl = SequenceLength(s)\nt = SequenceAt(s, i)\nm = Cast(l) {to=1}\ny = Mul(t, m)", "Add Cast Cast Mul Mul Split"},
	{"parts that data tells, in int32", "sequences", "in x float32[6,2]\nin c float32[2]\ninit none float32[2] = [0, 0]\ninit parts float32[2] = [4, 2]\ninit i int64[] = 1\nd = Mul(c, none)\ne = Add(d, parts)\nn = Cast(e) {to=6}\ns = SplitToSequence(x, n)\nt = SequenceAt(s, i)\nu = SequenceInsert(s, t)\ny = ConcatFromSequence(u) {axis=0}", ""},
	{"parts whose number data tells", "", "in x float32[6,2]\nin c float32[]\ninit none float32[] = 0\ninit part float32[] = 4\ninit i int64[] = 1\nd = Mul(c, none)\ne = Add(d, part)\nn = Cast(e) {to=7}\ns = SplitToSequence(x, n)\ny = SequenceAt(s, i)", "Add Cast Mul SequenceAt SplitToSequence"},
	{"parts mapped", "branches", "in x float32[2,3]\ninit i int64[] = 1\ns = SplitToSequence(x) {axis=1}\nc = Identity(s)\nt = SequenceMap(c) {body=graph g {\nin e float32[2,1]\no = Exp(e)\nout o float32[2,1]\n}}\ny = SequenceAt(t, i)", "Exp Split"},
	{"stack", "sequences", "in x float32[2,3]\na = Relu(x)\ns = SequenceConstruct(x, a)\ny = ConcatFromSequence(s) {axis=1, new_axis=1}", "Concat Relu Unsqueeze Unsqueeze"},
	{"element of a list", "branches", "in x float32[2,3]\ninit i int64[] = -1\na = Relu(x)\ns = SequenceConstruct(x, a)\nb = SequenceAt(s, i)\ny = Neg(b)", "Neg Relu"},
	{"element that is given, and returned", "branches", "in x float32[2,3]\ninit i int64[] = 0\na = Relu(x)\ns = SequenceConstruct(x, a)\ny = SequenceAt(s, i)", "Identity"},
	{"branch taken", "branches", branchBody("1"), "Mul Relu"},
	{"branch not taken", "branches", branchBody("3"), "Neg Relu"},
	{"scales from a list", "sequences", "in x float32[1,1,2,2]\ninit a float32[2] = [1,1]\ninit b float32[2] = [2,2]\ns = SequenceConstruct(a, b)\nc = ConcatFromSequence(s) {axis=0}\ny = Resize(x, _, c) {mode=\"nearest\"}", "Resize"},
	{"what an Optional holds", "branches", "in x float32[2,3]\na = Relu(x)\no = Optional(a)\np = Identity(o)\nh = OptionalHasElement(p)\ny = If(h) {then_branch=graph a {\ng = OptionalGetElement(p)\nr = Neg(g)\nout r float32[2,3]\n}, else_branch=graph b {\nq = Exp(a)\nout q float32[2,3]\n}}", "Neg Relu"},
	{"no Optional", "branches", "in x float32[2,3]\nh = OptionalHasElement(_)\nk = OptionalHasElement(x)\ng = OptionalGetElement(x)\na = Xor(h, k)\ny = Where(a, g, x)", "Where"},
	{"list that an Optional holds", "branches", "in x float32[2,3]\ninit i int64[] = 1\na = Relu(x)\ns = SequenceConstruct(x, a)\no = Optional(s)\ng = OptionalGetElement(o)\nb = SequenceAt(g, i)\ny = Neg(b)", "Neg Relu"},
	{"branch by an element", "branches", "in x float32[2,3]\ninit i int64[] = 0\na = Relu(x)\ns = SequenceConstruct(a, x)\nb = SequenceAt(s, i)\nh = Shape(b)\nn = Size(h)\ninit k int64[] = 2\nc = Equal(n, k)\n" +
		"y = If(c) {then_branch=graph a {\nt = Neg(b)\nout t float32[2,3]\n}, else_branch=graph b {\nu = Exp(b)\nout u float32[2,3]\n}}", "Neg Relu"},
	{"branch of a constant", "branches", "in x float32[2,3]\ninit k bool[] = true\nc = If(k) {then_branch=graph a {\ninit q float32[3] = [1,2,3]\nz = Identity(q)\nout z float32[3]\n}, else_branch=graph b {\nz = Neg(x)\nout z float32[2,3]\n}}\ny = Add(x, c)", "Add"},
	{"halves", "splits", "in x float32[2,4]\nr = Relu(x)\ninit z int64[1] = [0]\ninit h int64[1] = [2]\ninit e int64[1] = [9223372036854775807]\ninit ax int64[1] = [-1]\np = Slice(r, z, h, ax)\nq = Slice(r, h, e, ax)\ny = Mul(p, q)", "Mul Relu Split"},
	{"unstack", "splits", "in x float32[3,2]\nr = Relu(x)\ninit i int64[] = 0\ninit j int64[] = 1\ninit k int64[] = 2\np = Gather(r, i)\nq = Gather(r, j)\ns = Gather(r, k)\nt = Mul(p, q)\ny = Add(t, s)", "Add Mul Relu Split Squeeze Squeeze Squeeze"},
	{"no split: a gap", "", "in x float32[2,4]\nr = Relu(x)\ninit z int64[1] = [0]\ninit h int64[1] = [2]\ninit k int64[1] = [3]\ninit ax int64[1] = [-1]\np = Slice(r, z, h, ax)\nq = Slice(r, h, k, ax)\ny = Mul(p, q)", "Mul Relu Slice Slice"},
	{"linear", "linears", "in x float32[2,3,4]\ninit w float32[4,2] = [1,2,3,4,5,6,7,8]\ninit b float32[2] = [1, 2]\nm = MatMul(x, w)\ny = Add(b, m)", "Gemm Reshape Reshape"},
	{"linear of symbols", "linears", "in x float32[batch,seq,4]\ninit w float32[4,2] = [1,2,3,4,5,6,7,8]\ninit b float32[2] = [1, 2]\nm = MatMul(x, w)\ny = Add(m, b)", "Concat Gemm Reshape Reshape Shape"},
	{"linear, transposed", "linears", "in x float32[3,4]\ninit w float32[2,4] = [1,2,3,4,5,6,7,8]\nt = Transpose(w)\ny = MatMul(x, t)", "Gemm"},
	{"gemm, transposed", "gemms", "in x float32[4,3]\ninit w float32[4,2] = [1,2,3,4,5,6,7,8]\nt = Transpose(x)\ny = Gemm(t, w)", "Gemm"},
	{"all in their order", "reshapes", "in x float32[2,6]\ninit i int64[2,3] = [0,1,2,3,-2,-1]\na = Gather(x, i) {axis=1}\ny = Relu(a)", "Relu Reshape"},
	{"all tuples in their order", "reshapes", "in x float32[2,3]\ninit i int64[2,1,3,2] = [0,0,0,1,0,2,1,0,1,1,1,2]\na = GatherND(x, i)\ny = Relu(a)", "Relu Unsqueeze"},
	{"all rows in their order", "reshapes", "in x float32[2,3]\ninit i int64[2,1] = [0,1]\na = GatherND(x, i)\ny = Relu(a)", "Relu"},
	{"tokens of a mask, each by its place", "reshapes", placesBody("0", "600"), "Relu Unsqueeze"},
	{"tokens of a mask, by the next place", "reshapes", placesBody("-1", "599"), "Expand GatherND Relu Unsqueeze"},
	{"each row by a place of its own", "reshapes", "in x float32[2,3,2]\ninit b int64[2,1] = [0,1]\nm = ReduceSum(x, l) {keepdims=0}\ninit l int64[1] = [2]\nj = ArgMax(m) {axis=1}\ni = Concat(b, j) {axis=1}\na = GatherND(x, i)\ny = Relu(a)", "ArgMax GatherND ReduceSum Relu"},
	{"each pair by places of its own", "reshapes", "in x float32[2,3,2]\ninit b int64[2,1] = [0,1]\nm = ReduceSum(x, l) {keepdims=0}\ninit l int64[1] = [2]\nj = ArgMax(m) {axis=1}\nk = ArgMin(m) {axis=1}\ninit one int64[] = 1\nu = Min(k, one)\ni = Concat(b, j, u) {axis=1}\na = GatherND(x, i)\ny = Relu(a)", "ArgMax ArgMin Concat GatherND Min ReduceSum Relu"},
	{"each row by a place of another", "", "in x float32[2,3,2]\ninit b int64[2,1] = [1,0]\nm = ReduceSum(x, l) {keepdims=0}\ninit l int64[1] = [2]\nj = ArgMax(m) {axis=1}\ni = Concat(b, j) {axis=1}\na = GatherND(x, i)\ny = Relu(a)", "ArgMax Concat GatherND ReduceSum Relu"},
	{"no order: tuples along one axis", "", "in x float32[2,2]\ninit i int64[2,2] = [0,0,1,1]\na = GatherND(x, i)\ny = Relu(a)", "GatherND Relu"},
	{"no order: rows repeated", "", "in x float32[2,3]\ninit i int64[2,2,1] = [0,0,1,1]\na = GatherND(x, i)\ny = Relu(a)", "GatherND Relu"},
	{"no order: not all rows", "", "in x float32[3,3]\ninit i int64[2,1] = [0,1]\na = GatherND(x, i)\ny = Relu(a)", "GatherND Relu"},
	{"no order: transposed", "", "in x float32[2,2]\ninit i int64[2,2,2] = [0,0,1,0,0,1,1,1]\na = GatherND(x, i)\ny = Relu(a)", "GatherND Relu"},
	{"reshapes", "reshapes", "in x float32[2,6]\ninit s int64[2] = [3, 4]\ninit t int64[2] = [4, 3]\na = Reshape(x, s)\nb = Reshape(a, t)\ny = Relu(b)", "Relu Reshape"},
	{"scale", "scales", "in q float32[2,3,2,4]\nin k float32[2,3,2,4]\na = Transpose(q) {perm=[0, 2, 1, 3]}\nb = Transpose(k) {perm=[0, 2, 3, 1]}\ninit c float32[] = 4\nm = MatMul(a, b)\ny = Div(m, c)", "MatMul Mul Transpose Transpose"},
	{"two scales", "scales", "in q float32[2,3,2,4]\nin k float32[2,3,2,4]\na = Transpose(q) {perm=[0, 2, 1, 3]}\nb = Transpose(k) {perm=[0, 2, 3, 1]}\ninit c float32[] = 0.5\np = Mul(a, c)\nr = Mul(c, b)\ny = MatMul(p, r)", "MatMul Mul Transpose Transpose"},
	{"scale without a permutation", "scales", "in a float32[2,2,3,4]\nin b float32[2,2,4,3]\ninit c float32[] = 4\np = Mul(a, c)\ny = MatMul(p, b)", "MatMul Mul Reshape Reshape Reshape"},
	{"swap", "transposes", "in q float32[2,2,3,4]\nin k float32[2,3,2,4]\nb = Transpose(k) {perm=[0, 2, 1, 3]}\nt = Transpose(b) {perm=[0, 1, 3, 2]}\ny = MatMul(q, t)", "MatMul Transpose"},
	{"swap through joined axes", "transposes", "in q float32[2,2,3,4]\nin k float32[2,3,2,4]\nb = Transpose(k) {perm=[0, 2, 1, 3]}\ninit s int64[3] = [4, 3, 4]\ninit u int64[4] = [2, 2, 4, 3]\nc = Reshape(b, s)\nt = Transpose(c) {perm=[0, 2, 1]}\nd = Reshape(t, u)\ny = MatMul(q, d)", "MatMul Transpose"},
	{"swap between joined axes", "transposes", "in q float32[2,2,3,4]\nin k float32[2,2,3,4]\ninit s int64[3] = [4, 3, 4]\ninit u int64[4] = [2, 2, 4, 3]\nc = Reshape(k, s)\nt = Transpose(c) {perm=[0, 2, 1]}\nd = Reshape(t, u)\ny = MatMul(q, d)", "MatMul Transpose"},
	{"recurrence of a batch", "layouts", "in x float32[2,3,2]\n" + recurrence + "y, h, d = LSTM(x, w, r, _, _, h0, h0) {hidden_size=1, layout=1}", "LSTM Transpose Transpose Transpose"},
	{"dilated to the same extent", "paddings", "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w) {auto_pad=\"SAME_UPPER\", dilations=[3], kernel_shape=[2]}", "Conv"},
	{"dilated to the same extent, more before", "paddings", "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w) {auto_pad=\"SAME_LOWER\", dilations=[3]}", "Conv"},
	{"dilated, a step of 2", "paddings", "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w) {auto_pad=\"SAME_UPPER\", dilations=[3], strides=[2]}", "Conv"},
	{"transposed, cropped below the input", "paddings", "in x float32[3,1,3,5]\n" + cropping + "o = ConvTranspose(x, w) {auto_pad=\"SAME_UPPER\", strides=[2, 1], output_shape=[2, 4]}\n" + cropped, "ConvTranspose Mul Mul Mul"},
	{"transposed, cropped, more before", "paddings", "in x float32[3,1,3,5]\n" + cropping + "o = ConvTranspose(x, w) {strides=[2, 1], output_shape=[2, 4], output_padding=[1, 0]}\n" + cropped, "ConvTranspose Mul Mul Mul"},
	{"the same extent, not dilated", "", "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w) {auto_pad=\"SAME_UPPER\"}", "Conv"},
	{"choice between masks", "choices", maskBody + "m = Where(a, b, c)\n" + maskRead, "And And Less Less Less Not Or Where"},
	{"mask filled", "choices", maskBody + "init k bool[] = true\nm = Where(a, k, c)\n" + maskRead, "And And Less Less Not Or Where"},
	{"diagonal as a mask", "eyes", "in x float32[2,3]\ninit z float32[] = 5\nm = EyeLike(x) {dtype=9, k=1}\ny = Where(m, z, x)", "Cast EyeLike Where"},
	{"diagonal like a mask", "eyes", "in x float32[2,3]\ninit z float32[] = 0\nm = Less(x, z)\nd = EyeLike(m)\ny = Where(d, z, x)", "Cast Cast EyeLike Less Where"},
	{"diagonal of numbers", "", "in x float32[2,3]\nd = EyeLike(x) {dtype=7}\ne = Cast(d) {to=1}\ny = Add(x, e)", "Add Cast EyeLike"},
	{"equal nodes", "commons", "in x float32[2,3]\na = Relu(x)\nb = Relu(x)\ny = Mul(a, b)", "Mul Relu"},
}

// branchBody decides by the rank of x, twice.
func branchBody(rank string) string {
	return "in x float32[2,3]\nr = Relu(x)\ns = Shape(x)\nn = Size(s)\ninit k int64[] = " + rank + "\nc = Greater(n, k)\n" +
		"y = If(c) {then_branch=graph a {\ninit q float32[] = 2\nd = Identity(c)\nt = If(d) {then_branch=graph aa {\nu = Mul(r, q)\nout u float32[2,3]\n}, else_branch=graph ab {\nw = Exp(r)\nout w float32[2,3]\n}}\nout t float32[2,3]\n}, else_branch=graph b {\nv = Neg(r)\nout v float32[2,3]\n}}"
}

// placesBody looks up a mask of 2 × 600 tokens as PyTorch's masking does, by tuples too many to be a constant;
// they count from one number to another.
func placesBody(from, to string) string {
	return "in x float32[2,600]\ninit z int64[] = 0\ninit one int64[] = 1\ninit two int64[] = 2\ninit from int64[] = " + from + "\ninit to int64[] = " + to + "\n" +
		"init behind int64[3] = [1,2,3]\ninit before int64[3] = [0,1,2]\ninit last int64[1] = [-1]\ninit s int64[4] = [2,1,1,600]\n" +
		"b = Range(z, two, one)\nc = Unsqueeze(b, behind)\nd = Expand(c, s)\ne = Unsqueeze(d, last)\n" +
		"t = Range(from, to, one)\nu = Unsqueeze(t, before)\nv = Expand(u, s)\nw = Unsqueeze(v, last)\n" +
		"i = Concat(e, w) {axis=-1}\na = GatherND(x, i)\ny = Relu(a)"
}

// recurrence is what an LSTM of two sequences and one unit reads beside them.
const recurrence = "init w float32[1,4,2] = [1,-1,0.5,0.25,2,-0.5,1,0.5]\ninit r float32[1,4,1] = [1,0.5,-1,0.25]\ninit h0 float32[2,1,1] = [0.5,-0.5]\n"

// maskBody makes masks of three shapes, maskRead reads m, one of the largest.
const (
	maskBody = "in x float32[2,3]\nin u float32[3]\nin w float32[2,1]\ninit z float32[] = 0\na = Less(u, z)\nb = Less(x, z)\nc = Less(w, z)\n"
	maskRead = "y = Where(m, x, w)"
)

// cropping is a kernel that makes 5 or 6 × 7 of 3 × 5, and cropped reads 2 × 4 of it by what ONNX
// Runtime's inference has no room for where the rank is wrong.
const (
	cropping = "init w float32[1,1,1,3] = [1,-2,0.5]\n"
	cropped  = "a = Mul(o, o)\ninit m float32[3,1,1,4] = [1,2,3,4,5,6,7,8,9,10,11,12]\ninit l float32[1,1,2,4] = [1,2,3,4,5,6,7,8]\nb = Mul(a, m)\ny = Mul(b, l)"
)

// kernels are those of a convolution along one axis.
const kernels = "init w float32[3,2,2] = [1,-1,0.5,0.25,2,-0.5,1,0.5,-2,3,0.75,1.5]\n"

// spelled are the cases that ONNX Runtime has no kernel for, as it can run them.
var spelled = map[string]string{
	"choice between masks":                    maskBody + "p = And(a, b)\nq = Not(a)\nr = And(q, c)\nm = Or(p, r)\n" + maskRead,
	"diagonal as a mask":                      "in x float32[2,3]\ninit m bool[2,3] = [false,true,false,false,false,true]\ninit z float32[] = 5\ny = Where(m, z, x)",
	"diagonal like a mask":                    "in x float32[2,3]\ninit d bool[2,3] = [true,false,false,false,true,false]\ninit z float32[] = 0\ny = Where(d, z, x)",
	"mask filled":                             maskBody + "m = Or(a, c)\n" + maskRead,
	"bias of zeros that no kernel takes":      "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w)",
	"dilated to the same extent":              "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w) {pads=[1,2], dilations=[3]}",
	"dilated to the same extent, more before": "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w) {pads=[2,1], dilations=[3]}",
	"dilated, a step of 2":                    "in x float32[1,2,7]\n" + kernels + "y = Conv(x, w) {pads=[1,2], dilations=[3], strides=[2]}",
	"transposed, cropped below the input":     "in x float32[3,1,3,5]\n" + cropping + "o = ConvTranspose(x, w) {strides=[2, 1], pads=[1,1,2,2]}\n" + cropped,
	"transposed, cropped, more before":        "in x float32[3,1,3,5]\n" + cropping + "o = ConvTranspose(x, w) {strides=[2, 1], pads=[2,2,2,1], output_padding=[1, 0]}\n" + cropped,
	"recurrence of a batch":                   "in x float32[2,3,2]\n" + recurrence + "a = Transpose(x) {perm=[1,0,2]}\nb = Transpose(h0) {perm=[1,0,2]}\nc = LSTM(a, w, r, _, _, b, b) {hidden_size=1}\ny = Transpose(c) {perm=[2,0,1,3]}",
}

const lnBody = "in x float32[2,3]\ninit ax int64[1] = [-1]\nm = ReduceMean(x, ax)\nd = Sub(x, m)\ninit two float32[] = 2\np = Pow(d, two)\nv = ReduceMean(p, ax)\ninit eps float32[] = 0.00001\nw = Add(v, eps)\ns = Sqrt(w)\n"

func guardBody(mask string) string {
	return "in x float32[2,2]\ninit k float32[2,2] = [" + mask + "]\ns = MatMul(x, x)\na = Add(s, k)\np = Softmax(a)\nc = IsNaN(p)\ninit z float32[] = 0\ny = Where(c, z, p)"
}

func TestPasses(t *testing.T) {
	hit := map[string]bool{}
	for _, c := range cases {
		hit[c.pass] = true
		t.Run(c.name, func(t *testing.T) {
			before, after := parse(t, c.body), parse(t, c.body)
			check := func(pass string, m *onnx.Model) error {
				if err := m.Check(); err != nil {
					return fmt.Errorf("%s: %w in\n%s", pass, err, m.Text())
				}
				return nil
			}
			res, err := Model(after, Options{After: check})
			if err != nil {
				t.Fatal(err)
			}
			if c.pass != "" && res.Applied[c.pass] == 0 {
				t.Errorf("pass %s changed nothing: %v", c.pass, res.Applied)
			}
			if got := operators(after); c.ops != "" && got != c.ops {
				t.Errorf("left are %q, want %q in\n%s", got, c.ops, after.Text())
			}
			if after.Graph.Outputs[0].Name != "y" {
				t.Errorf("the output is named %s", after.Graph.Outputs[0].Name)
			}
			if body := spelled[c.name]; body != "" {
				before = parse(t, body)
			}
			a, b := execute(t, before), execute(t, after)
			for i := range a {
				if !(math.Abs(a[i]-b[i]) <= 2e-6*(1+math.Abs(a[i]))) {
					t.Fatalf("y[%d] = %g, was %g", i, b[i], a[i])
				}
			}
		})
	}
	for _, p := range passes {
		if p.doc == "" || !hit[p.name] {
			t.Errorf("pass %s has no doc string or no case", p.name)
		}
	}
}

// TestSameAgain: a graph is normalized the same way every time, names and order
// of the nodes included.
func TestSameAgain(t *testing.T) {
	bodies := []string{
		"in x float32[4,4]\nr = Relu(x)\ninit z int64[1] = [0]\ninit h int64[1] = [2]\ninit e int64[1] = [4]\ninit a int64[1] = [0]\ninit b int64[1] = [1]\n" +
			"p = Slice(r, z, h, a)\nq = Slice(r, h, e, a)\nu = Slice(r, z, h, b)\nv = Slice(r, h, e, b)\nl = Mul(p, q)\nm = Mul(u, v)\nn = MatMul(l, m)\ny = Relu(n)",
		listBody,
	}
	for _, c := range cases {
		bodies = append(bodies, c.body)
	}
	for _, body := range bodies {
		first := ""
		for range 8 {
			m := parse(t, body)
			if _, err := Model(m, Options{}); err != nil {
				t.Fatal(err)
			}
			if text := m.Text(); first == "" {
				first = text
			} else if text != first {
				t.Fatalf("once\n%s\nand once\n%s", first, text)
			}
		}
	}
}

// listBody takes one element of a list for three graph outputs.
const listBody = "in x float32[6,2]\ninit n int64[] = 2\ninit i int64[] = 0\ninit j int64[] = -1\ns = SplitToSequence(x, n)\n" +
	"a = SequenceAt(s, i)\nb = SequenceAt(s, i)\nc = SequenceAt(s, j)\nd = SequenceAt(s, j)\ny = Mul(b, d)\nout a float32[2,2]\nout b float32[2,2]\nout c float32[2,2]"

// TestListOutputs: elements of a list that are outputs keep their names, also
// where two are the same element.
func TestListOutputs(t *testing.T) {
	m := parse(t, listBody)
	if _, err := Model(m, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range m.Graph.Outputs {
		names = append(names, o.Name)
	}
	if got := strings.Join(names, " "); got != "a b c y" {
		t.Errorf("the outputs are %s in\n%s", got, m.Text())
	}
	if got := operators(m); got != "Identity Mul Split" {
		t.Errorf("left are %s", got)
	}
	a, b := execute(t, parse(t, listBody)), execute(t, m)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("y[%d] = %g, was %g", i, b[i], a[i])
		}
	}
}

func parse(t *testing.T, body string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\n" + body + "\nout y float32\n}\n")
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	return m
}

func operators(m *onnx.Model) string {
	var ops []string
	for _, n := range m.Graph.Nodes {
		ops = append(ops, n.OpType())
	}
	sort.Strings(ops)
	return strings.Join(ops, " ")
}

// execute runs the model as it stands on random inputs and returns its output y.
func execute(t *testing.T, m *onnx.Model) []float64 {
	t.Helper()
	return ortest.Run(t, m, 0, ortest.RandomInputs(m))["y"]
}

// TestUnfuse: after it no level changes what runs, and the value is the same.
func TestUnfuse(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"swap", "in a float32[2,4,6,8]\nin b float32[2,4,6,8]\np = Relu(a)\nq = Relu(b)\nt = Transpose(q) {perm=[0, 1, 3, 2]}\nm = MatMul(p, t)\ny = Softmax(m)"},
		{"first axis", "in a float32[6,8,8]\nin b float32[6,8,8]\np = Relu(a)\nq = Relu(b)\ns = Transpose(p) {perm=[1, 0, 2]}\nt = Transpose(q) {perm=[1, 2, 0]}\nm = MatMul(s, t)\ny = Softmax(m)"},
		{"behind a Reshape", "in a float32[6,8,8]\nin b float32[6,8,8]\np = Relu(a)\nq = Relu(b)\ninit u int64[4] = [2, 4, 6, 8]\ninit v int64[4] = [2, 4, 8, 6]\ns0 = Transpose(p) {perm=[1, 0, 2]}\nt0 = Transpose(q) {perm=[1, 2, 0]}\ns = Reshape(s0, u)\nt = Reshape(t0, v)\nm = MatMul(s, t)\ny = Softmax(m)"},
		{"factor of an operand", "in a float32[2,4,6,8]\nin b float32[2,4,8,6]\ninit k float32[] = 0.3\np = Relu(a)\nq = Mul(p, k)\nr = Relu(b)\nm = MatMul(q, r)\nn = Softmax(q)\no = MatMul(n, r)\ns = Add(m, o)\ny = Softmax(s)"},
		{"factor of the result", "in a float32[6,8]\nin b float32[8,6]\ninit k float32[1] = [0.3]\nm = MatMul(a, b)\nn = Div(m, k)\ny = Softmax(n)"},
		{"factor of a vector", "in a float32[8]\nin b float32[8,6]\ninit k float32[] = 0.3\nn = Mul(k, a)\nm = MatMul(n, b)\ny = Softmax(m)"},
		{"of a table, one axis more behind it", "in a float32[3,6,8]\nin b float32[3,8,6]\nin t float32[36,3]\ninit u int64[3] = [6, 6, 3]\ninit v int64[1] = [0]\nr = Reshape(t, u)\nc = Transpose(r) {perm=[2, 0, 1]}\nw = Unsqueeze(c, v)\nm = MatMul(a, b)\nn = Add(m, w)\ny = Softmax(n)"},
		{"of axes of one", "in a float32[2,4,1]\nin b float32[2,1,4]\ninit u int64[4] = [1, 2, 1, 4]\np = Relu(a)\nt = Transpose(p) {perm=[0, 2, 1]}\nr = Reshape(t, u)\ns = Relu(b)\nm = Add(r, s)\ny = Softmax(m)"},
		{"there and back", "in a float32[2,6,4]\np = Relu(a)\ns = Transpose(p) {perm=[0, 2, 1]}\nt = Transpose(s) {perm=[0, 2, 1]}\nm = Softmax(t)\nn = Softmax(s)\no = ReduceMean(n) {keepdims=0}\ny = Mul(m, o)"},
		{"read twice", "in a float32[2,4,6,8]\nin b float32[2,4,6,8]\np = Relu(a)\nq = Relu(b)\nt = Transpose(q) {perm=[0, 1, 3, 2]}\nm = MatMul(p, t)\nn = ReduceMean(t) {keepdims=0}\no = Mul(m, n)\ny = Softmax(o)"},
	} {
		t.Run(c.name, func(t *testing.T) { settles(t, c.body, Unfuse) })
	}
}

// TestQuotients: the same of products with a reciprocal.
func TestQuotients(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"a row's", "in x float32[4,1]\nin z float32[4,8]\ninit one float32[] = 1\ne = Exp(x)\nr = Div(one, e)\ns = Sin(z)\ny = Mul(r, s)"},
		{"of a constant", "in x float32[4,8]\ninit one float32[1] = [1]\ninit k float32[8] = [1, 2, 3, 4, 5, 6, 7, 8]\ne = Exp(x)\nr = Div(one, e)\nm = Mul(k, r)\ny = Sin(m)"},
	} {
		t.Run(c.name, func(t *testing.T) { settles(t, c.body, Quotients) })
	}
}

func TestNoQuotients(t *testing.T) {
	const start = "in x float32[4,8]\ninit one float32[] = 1\ninit two float32[] = 2\ninit ones float32[1,1,1] = [1]\ne = Exp(x)\n"
	for _, body := range []string{
		start + "r = Div(two, e)\ny = Mul(r, x)",
		start + "r = Div(one, e)\ny = Mul(r, r)",
		start + "r = Div(one, e)\nm = Mul(r, x)\ny = Add(m, r)",
		start + "r = Div(one, e)\ny = Mul(r, x)\nout r float32",
		start + "r = Div(ones, e)\ny = Mul(r, x)", // of another rank
	} {
		m := parse(t, body)
		types, err := infer.Model(m, infer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := Quotients(m, types); n != 0 || err != nil {
			t.Errorf("%d rewritten, %v in\n%s", n, err, body)
		}
	}
}

// settles checks that a pass rewrites the body into one that no level changes, of the same value.
func settles(t *testing.T, body string, pass func(*onnx.Model, *infer.Result) (int, error)) {
	t.Helper()
	before, after := parse(t, body), parse(t, body)
	types, err := infer.Model(after, infer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := pass(after, types); n == 0 || err != nil {
		t.Fatalf("%d rewritten, %v", n, err)
	}
	if err := after.Check(); err != nil {
		t.Fatalf("%v in\n%s", err, after.Text())
	}
	a, b := execute(t, before), execute(t, after)
	for i := range a {
		if !(math.Abs(a[i]-b[i]) <= 1e-6) {
			t.Fatalf("y[%d] = %g, was %g", i, b[i], a[i])
		}
	}
	for _, level := range []int{1, 99} {
		dump, err := ortest.Engine(t).Dump(after, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := operators(dump), operators(after); got != want {
			t.Errorf("level %d runs %s, the file has %s", level, got, want)
		}
	}
}

// TestScalesInHalf: the scales of a Resize in a model that was converted to half are known
// before the run, though they are cast.
func TestScalesInHalf(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float16[1,2,4,4]
  init ones float16[2] = [1, 1]
  init twice float16[2] = [2, 2]
  both = Concat(ones, twice) {axis=0}
  scales = Cast(both) {to=1}
  y = Resize(x, _, scales) {mode="nearest"}
  out y float16[1,2,8,8]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Model(m, Options{}); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("Resize") && !n.In(2).IsConstant() {
			t.Errorf("scales %s are no constant", n.In(2).Name)
		}
	}
}

// TestSizes: of a graph whose extents are numbers only now, shapes are constants, and a mask that
// had extents of its own is seen to be looked up in its order.
func TestSizes(t *testing.T) {
	body := strings.NewReplacer("float32[2,600]", "float32[b,s]", "init to int64[] = 600", "in other float32[rows,tokens]\nsizes = Shape(other)\nto = Gather(sizes, one)").Replace(placesBody("0", "600"))
	m := parse(t, body)
	if _, err := Model(m, Options{}); err != nil {
		t.Fatal(err)
	}
	if got := operators(m); !strings.Contains(got, "Shape") || !strings.Contains(got, "GatherND") {
		t.Fatalf("left are %q before the extents are known", got)
	}
	if err := Sizes(m, map[string]int64{"b": 2, "s": 600, "rows": 2, "tokens": 600}); err != nil {
		t.Fatal(err)
	}
	if got := operators(m); got != "Relu Unsqueeze" {
		t.Errorf("left are %q in\n%s", got, m.Text())
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
