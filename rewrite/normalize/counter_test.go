package normalize

// Each pattern with one thing changed computes what it computed: see
// ortest.Variants. Bodies are templates over extents, see ortest.Extents.

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// patterns by the pass that looks for them.
var patterns = []struct {
	pass, name, body string
	// beside are graphs like it, a few changes away.
	beside []string
}{
	{"branches", "branch by a rank", `in x float32[@a,@b]
s = Shape(x)
n = Size(s)
init k int64[] = 1
c = Greater(n, k)
y = If(c) {then_branch=graph p {
u = Neg(x)
out u float32
}, else_branch=graph q {
v = Exp(x)
out v float32
}}`, nil},
	{"branches", "element of a list", "in x float32[@a,@b]\ninit i int64[] = -1\na = Relu(x)\nb = Neg(x)\ns = SequenceConstruct(x, a, b)\nc = SequenceAt(s, i)\ny = Exp(c)", nil},
	{"constants", "constant node", "in x float32[@a,@b]\nc = Constant() {value_float=2.0}\nd = Constant() {value_ints=[-1,@b]}\ne = Mul(x, c)\ny = Reshape(e, d)", []string{
		"in x float32[@a,@b]\nc = Constant() {value_floats=[2.0]}\nd = Mul(x, c)\nn = Constant() {value_int=1}\ne = Unsqueeze(d, n)\nout c float32\ny = Relu(e)",
	}},
	{"identities", "identities", "in x float32[@a,@b]\ninit r float32[] = 0.5\ninit t bool[] = false\na = Identity(x)\nb = Cast(a) {to=1}\nc, m = Dropout(b, r, t) {seed=1}\ny = Neg(c)", []string{
		"in x float32[@a,@b]\ninit r float32[] = 0\ninit t bool[] = true\nc, m = Dropout(x, r, t) {seed=1}\nd = Cast(m) {to=1}\ny = Mul(c, d)",
	}},
	{"noops", "numbers that change nothing", "in x float32[@a,@b]\ninit k float32[] = 1\ninit o float32[] = 0\ninit s int64[1] = [1]\na = Mul(x, k)\nb = Div(a, k)\nc = Add(o, b)\nd = Sub(c, o)\ne = Expand(d, s)\ny = Neg(e)", []string{
		"in x float32[@a,@b]\ninit k float32[] = 1\ninit o float32[] = 0\na = Div(k, x)\nb = Sub(o, a)\ny = Neg(b)",
	}},
	{"fold", "integers of a shape", "in x float32[@a,@b,@c]\ns = Shape(x)\ninit i int64[] = 0\ninit u int64[1] = [0]\ng = Gather(s, i)\nv = Unsqueeze(g, u)\ninit m int64[1] = [-1]\nt = Concat(v, m) {axis=0}\ny = Reshape(x, t)", nil},
	{"fold", "arithmetic of extents", "in x float32[@a,@b]\ns = Shape(x)\ninit i int64[] = 0\ninit j int64[] = 1\np = Gather(s, i)\nq = Gather(s, j)\na = Mul(p, q)\ninit k int64[] = 2\nb = Div(a, k)\nc = Sub(b, a)\nd = Mod(c, k)\ne = Add(d, c)\nf = Neg(e)\nz = Cast(f) {to=1}\ny = Mul(x, z)", nil},
	{"fold", "division of extents", "in x float32[@a,@b]\ns = Shape(x)\ninit i int64[1] = [0]\np = Gather(s, i)\ninit k int64[] = -3\nd = Div(p, k)\nm = Mod(p, k)\ne = Less(d, m)\nw = Where(e, d, m)\na = Max(w, p)\nz = Cast(a) {to=1}\ny = Mul(x, z)", nil},
	{"fold", "range of extents", "in x float32[@a,@b]\ns = Shape(x) {start=0, end=1}\nq = Squeeze(s)\ninit z int64[] = 0\ninit d int64[] = 1\nr = Range(z, q, d)\nu = Slice(r, e0, e1, e0, d1)\ninit e0 int64[1] = [0]\ninit e1 int64[1] = [9]\ninit d1 int64[1] = [1]\nc = Cast(u) {to=1}\ninit ax int64[1] = [1]\nv = Unsqueeze(c, ax)\ny = Mul(x, v)", nil},
	{"fold", "numbers", "in x float32[@a,@b]\ninit k float32[] = 16\nr = Sqrt(k)\ninit o float32[] = 3\ns = Div(o, r)\nt = Sub(s, k)\nu = Pow(t, o)\nv = Reciprocal(u)\nw = Neg(v)\ny = Mul(x, w)", []string{
		"in x float32[@a,@b]\ninit k float32[1] = [16]\ninit s int64[1] = [1]\nr = Expand(k, s)\ninit z int64[2] = [1,1]\np = Reshape(r, z)\nq = Log(p)\ny = Mul(x, q)",
		"in x float32[@a,@b]\ninit k float32[1] = [2.7]\nd = Cast(k) {to=7}\ne = Cast(d) {to=1}\ny = Mul(x, e)",
		"in x float32[@a,@b]\ninit k float32[] = 70000.1\nd = Cast(k) {to=10}\ne = Cast(d) {to=1}\ny = Mul(x, e)",
		"in x float32[@a,@b]\ninit k int64[] = 16777217\nd = Cast(k) {to=1}\ny = Mul(x, d)",
	}},
	{"fold", "vector", "in x float32[@a,3]\ninit a int64[1] = [2]\nb = Cast(a) {to=1}\ninit c float32[2] = [3, 4]\nd = Concat(b, c) {axis=0}\ny = Mul(x, d)", nil},
	{"sequences", "list", "in x float32[@abc,@b]\ninit n int64[] = @a\ninit i int64[] = 0\ninit j int64[] = -1\ns = SplitToSequence(x, n)\na = SequenceAt(s, i)\nb = SequenceAt(s, j)\ny = Mul(a, b)", []string{
		"in x float32[@b,@a]\ninit n int64[2] = [1, 1]\ninit i int64[] = 1\ninit j int64[] = 0\nz = Slice(x, e0, e2)\ninit e0 int64[1] = [0]\ninit e2 int64[1] = [2]\ns = SplitToSequence(z, n) {keepdims=0}\na = SequenceAt(s, i)\nb = SequenceAt(s, j)\ny = Mul(a, b)",
		"in x float32[@b,@b]\ninit i int64[] = 0\ninit j int64[] = 1\ns = SplitToSequence(x) {axis=-1, keepdims=0}\na = SequenceAt(s, i)\nb = SequenceAt(s, j)\ny = Mul(a, b)",
		"in x float32[@b,@b]\ninit n int64[] = 2\ninit i int64[] = 0\ns = SplitToSequence(x, n) {axis=1}\nl = SequenceLength(s)\na = SequenceAt(s, i)\nc = Cast(l) {to=1}\ny = Mul(a, c)",
	}},
	{"sequences", "unbind", "in x float32[@a,@b]\ninit i int64[] = 0\ninit j int64[] = 1\ns = SplitToSequence(x) {keepdims=0}\na = SequenceAt(s, i)\nb = SequenceAt(s, j)\ny = Mul(a, b)", nil},
	{"sequences", "stack", "in x float32[@a,@b]\na = Relu(x)\ns = SequenceConstruct(x, a)\ny = ConcatFromSequence(s) {axis=1, new_axis=1}", []string{
		"in x float32[@a,@b]\na = Relu(x)\ns = SequenceConstruct(x, a)\nt = SequenceInsert(s, a)\ny = ConcatFromSequence(t) {axis=-1, new_axis=1}",
		"in x float32[@a,@b]\na = Relu(x)\ns = SequenceConstruct(x, a)\ny = ConcatFromSequence(s) {axis=-2}",
		"in x float32[@a,@b]\na = Relu(x)\ns = SequenceConstruct(x, a)\ny = ConcatFromSequence(s) {axis=-3, new_axis=1}",
	}},
	{"layernorms", "layer norm", normBody + "e = Div(d, s)\nparam g float32[@c]\nparam b float32[@c]\nf = Mul(e, g)\ny = Add(f, b)", []string{
		// The difference that is squared is another one than the one divided.
		"in x float32[@a,@b,@c]\ninit ax int64[1] = [-1]\ninit other int64[1] = [1]\nm = ReduceMean(x, ax)\nn = ReduceMean(x, other)\nd = Sub(x, m)\nd2 = Sub(x, n)\np = Mul(d2, d2)\nv = ReduceMean(p, ax)\ninit eps float32[] = 0.00001\nw = Add(v, eps)\ns = Sqrt(w)\ny = Div(d, s)",
	}},
	{"layernorms", "layer norm, made twice", "in x float32[@a,@b,@c]\ninit ax int64[1] = [-1]\nm = ReduceMean(x, ax)\nm2 = ReduceMean(x, ax)\nd = Sub(x, m)\nd2 = Sub(x, m2)\np = Mul(d2, d2)\nv = ReduceMean(p, ax)\ninit eps float32[] = 0.00001\nw = Add(v, eps)\ns = Sqrt(w)\nr = Reciprocal(s)\ny = Mul(d, r)", nil},
	{"layernorms", "layer norm over two axes", strings.ReplaceAll(normBody, "ax int64[1] = [-1]", "ax int64[2] = [-2,2]") + "e = Div(d, s)\nparam g float32[@b,@c]\ny = Mul(e, g)", nil},
	{"gelus", "gelu", "in x float32[@a,@b]\ninit k float32[] = 1.41421354\ninit one float32[] = 1\ninit h float32[] = 0.5\na = Div(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Mul(x, c)\ny = Mul(d, h)", []string{
		// 1+erf below the bar.
		"in x float32[@a,@b]\ninit k float32[] = 1.41421354\ninit one float32[] = 1\ninit two float32[] = 2\na = Div(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Mul(c, two)\ny = Div(x, d)",
		"in x float32[@a,@b]\ninit k float32[] = 1.41421354\ninit one float32[] = 1\ninit h float32[] = 0.5\na = Div(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Div(h, x)\ny = Mul(d, c)",
		"in x float32[@a,@b]\ninit k float32[] = 1.41421354\ninit one float32[] = 1\ninit h float32[] = 0.5\na = Div(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Mul(x, h)\ne = Mul(d, c)\ny = Mul(e, c)",
	}},
	{"gelus", "gelu of a half", "in x float32[@a,@b]\ninit k float32[] = 0.70710677\ninit one float32[] = 1\ninit h float32[] = 2\na = Mul(x, k)\nb = Erf(a)\nc = Add(b, one)\nd = Div(x, h)\ny = Mul(d, c)", nil},
	{"gelus", "gelu by tanh", "in x float32[@a,@b]\ninit h float32[] = 0.5\ninit three float32[] = 3\ninit k float32[] = 0.044715\ninit r float32[] = 0.7978846\ninit one float32[] = 1\na = Mul(x, h)\np = Pow(x, three)\nq = Mul(p, k)\nb = Add(x, q)\nc = Mul(b, r)\nt = Tanh(c)\nu = Add(t, one)\ny = Mul(a, u)", nil},
	{"gelus", "gelu by products", "in x float32[@a,@b]\ninit h float32[] = 0.5\ninit k float32[] = 0.044715\ninit r float32[] = 0.7978846\ninit one float32[] = 1\na = Mul(x, h)\nxx = Mul(x, x)\nxk = Mul(x, r)\nxm = Mul(xx, k)\nxo = Add(one, xm)\nc = Mul(xk, xo)\nt = Tanh(c)\nu = Add(t, one)\ny = Mul(a, u)", nil},
	{"guards", "guard of a product", "in q float32[@a,@b]\nparam w float32[@b,@c]\ns = MatMul(q, w)\np = Softmax(s)\nc = IsNaN(p)\ninit z float32[] = 0\ny = Where(c, z, p)", nil},
	{"guards", "guard of a mask", "in q float32[@a,@b]\nin w float32[@b,@c]\nparam k float32[@a,@c]\ninit h float32[] = 0.5\ns = MatMul(q, w)\nt = Mul(s, h)\na = Add(t, k)\np = Softmax(a)\nc = IsNaN(p)\ninit z float32[] = 0\ny = Where(c, z, p)", []string{
		// A second mask, and a mask along the other axis than the softmax.
		"in q float32[@a,@b]\nin w float32[@b,@c]\nparam k float32[@a,@c]\ninit n float32[] = -inf\ns = MatMul(q, w)\nm = Add(s, n)\na = Add(m, k)\np = Softmax(a)\nc = IsNaN(p)\ninit z float32[] = 0\ny = Where(c, z, p)",
		"in q float32[2,2]\nin w float32[2,2]\ninit k float32[2,2] = [0, -inf, 0, -inf]\ns = MatMul(q, w)\na = Add(s, k)\np = Softmax(a) {axis=0}\nc = IsNaN(p)\ninit z float32[] = 0\ny = Where(c, z, p)",
	}},
	{"splits", "halves", "in x float32[@a,@b]\nr = Neg(x)\ninit z int64[1] = [0]\ninit h int64[1] = [1]\ninit e int64[1] = [9223372036854775807]\ninit ax int64[1] = [-1]\np = Slice(r, z, h, ax)\nq = Slice(r, h, e, ax)\ny = Mul(p, q)\nv = Exp(q)\nout v float32", nil},
	{"splits", "unstack", "in x float32[3,@b]\nr = Neg(x)\ninit i int64[] = 0\ninit j int64[] = 1\ninit k int64[] = -1\np = Gather(r, i)\nq = Gather(r, j)\ns = Gather(r, k)\nt = Sub(p, q)\ny = Div(t, s)", nil},
	{"linears", "linear, transposed", "in x float32[@a,@b]\nparam w float32[@c,@b]\nparam b float32[@c]\nt = Transpose(w) {perm=[1,0]}\nm = MatMul(x, t)\ny = Add(m, b)", []string{
		gathered + "m = MatMul(v, t)\ny = Neg(m)",
	}},
	{"linears", "linear", "in x float32[@a,@b,@c]\nparam w float32[@c,@d]\nparam b float32[@d]\nm = MatMul(x, w)\ny = Add(m, b)", nil},
	{"gemms", "gemm, transposed", "in x float32[@b,@a]\nparam w float32[@c,@b]\nparam b float32[@c]\ns = Transpose(x)\nt = Transpose(w) {perm=[1,0]}\ny = Gemm(s, t, b)", []string{
		gathered + "y = Gemm(t, w, b) {transB=1}",
		gathered + "y = Gemm(v, t)",
	}},
	{"reshapes", "reshapes", "in x float32[@a,@b,@c]\ninit s int64[2] = [@ab, @c]\ninit t int64[3] = [@c, @a, @b]\na = Reshape(x, s)\nb = Reshape(a, t)\ny = Neg(b)", nil},
	{"reshapes", "all in their order", "in x float32[@a,4,@c]\ninit i int64[2,2] = [0,1,2,3]\na = Gather(x, i) {axis=1}\ny = Neg(a)", nil},
	{"reshapes", "all tuples in their order", "in x float32[2,3,@c]\ninit i int64[2,1,3,2] = [0,0,0,1,0,2,1,0,1,1,1,2]\na = GatherND(x, i)\ny = Neg(a)", nil},
	{"reshapes", "all tuples, spread", "in x float32[2,600]\ninit b int64[2] = [0,1]\ninit z int64[] = 0\ninit one int64[] = 1\ninit to int64[] = 600\ninit u int64[3] = [1,2,3]\ninit l int64[1] = [-1]\ninit s int64[4] = [2,1,1,600]\n" +
		"c = Unsqueeze(b, u)\nd = Expand(c, s)\ne = Unsqueeze(d, l)\nt = Range(z, to, one)\nv = Expand(t, s)\nw = Unsqueeze(v, l)\ni = Concat(e, w) {axis=-1}\na = GatherND(x, i)\ny = Neg(a)", nil},
	{"copies", "copies of all rows", "in x float32[2,3,@c]\ninit r int64[3] = [3,2,1]\na = Tile(x, r)\ny = Neg(a)", nil},
	{"copies", "one row for all", "in x float32[1,@b,1]\ninit r int64[3] = [@a,1,@c]\na = Tile(x, r)\ny = Neg(a)", nil},
	{"reshapes", "squeezes", "in x float32[@a,1,@c]\ninit s int64[1] = [1]\na = Squeeze(x, s)\nb = Unsqueeze(a, s)\nc = Neg(b)\nd = Flatten(c)\ninit t int64[2] = [@a, @c]\ny = Reshape(d, t)", nil},
	{"scales", "scale", "in q float32[@a,@b,@c,@d]\nin k float32[@a,@b,@c,@d]\na = Transpose(q) {perm=[0, 2, 1, 3]}\nb = Transpose(k) {perm=[0, 2, 3, 1]}\ninit c float32[] = 4\nm = MatMul(a, b)\ny = Div(m, c)", nil},
	{"scales", "two scales", "in q float32[@a,@b,@c,@d]\nin k float32[@a,@b,@c,@d]\na = Transpose(q) {perm=[0, 2, 1, 3]}\nb = Transpose(k) {perm=[0, 2, 3, 1]}\ninit c float32[] = 0.5\np = Mul(a, c)\nr = Mul(c, b)\ny = MatMul(p, r)", nil},
	{"scales", "scale without a permutation", "in a float32[@a,@b,@c,@d]\nin b float32[@a,@b,@d,@c]\ninit c float32[] = 4\np = Mul(a, c)\ny = MatMul(p, b)", nil},
	{"scales", "scale of a batch", "in a float32[@a,@b,@d]\nin b float32[@a,@d,@c]\ninit c float32[] = 4\nm = MatMul(a, b)\ny = Mul(m, c)", nil},
	{"transposes", "swap", "in q float32[@a,@b,@c,@d]\nin k float32[@a,@c,@b,@d]\nb = Transpose(k) {perm=[0, 2, 1, 3]}\nt = Transpose(b) {perm=[0, 1, 3, 2]}\ny = MatMul(q, t)", nil},
	{"transposes", "swap through joined axes", "in q float32[@a,@b,@c,@d]\nin k float32[@a,@c,@b,@d]\nb = Transpose(k) {perm=[0, 2, 1, 3]}\ninit s int64[3] = [@ab, @c, @d]\ninit u int64[4] = [@a, @b, @d, @c]\nc = Reshape(b, s)\nt = Transpose(c) {perm=[0, 2, 1]}\nd = Reshape(t, u)\ny = MatMul(q, d)", nil},
	{"transposes", "swap between joined axes", "in q float32[@a,@b,@c,@d]\nin k float32[@a,@b,@c,@d]\ninit s int64[3] = [@ab, @c, @d]\ninit u int64[4] = [@a, @b, @d, @c]\nc = Reshape(k, s)\nt = Transpose(c) {perm=[0, 2, 1]}\nd = Reshape(t, u)\ny = MatMul(q, d)", nil},
	{"commons", "equal nodes", "in x float32[@a,@b]\na = Softmax(x)\nb = Softmax(x)\nc = Neg(a)\nd = Neg(b)\ny = Mul(c, d)", nil},
	{"commons", "equal splits", "in x float32[2,@b]\na, b = Split(x) {axis=0, num_outputs=2}\nc, d = Split(x) {axis=0, num_outputs=2}\ne = Sub(a, d)\nf = Sub(c, b)\ny = Div(e, f)", nil},
}

// normBody is a decomposed LayerNorm up to the root of the variance.
const normBody = "in x float32[@a,@b,@c]\ninit ax int64[1] = [-1]\nm = ReduceMean(x, ax)\nd = Sub(x, m)\ninit two float32[] = 2\np = Pow(d, two)\nv = ReduceMean(p, ax)\ninit eps float32[] = 0.00001\nw = Add(v, eps)\ns = Sqrt(w)\n"

// gathered is x[idx] as the dynamo exporter writes it: between Transposes that
// leave a matrix as it is.
const gathered = "in x float32[@a,@b]\ninit i int64[@a,1] = zeros\nparam w float32[@c,@b]\nparam v float32[@c,@a]\nparam b float32[@c]\ns = Transpose(x) {perm=[0,1]}\ng = GatherND(s, i)\nt = Transpose(g) {perm=[0,1]}\n"

// except are changes that a pass does not stand: guards takes a product for finite.
var except = map[string][]string{"guards": {
	"s = MatMul, Add [] before q", "s = MatMul, Add [] before w", // of -Inf
	"constant w, change 7", // its first row is -Inf
}}

func TestPatterns(t *testing.T) {
	for _, p := range patterns {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			pattern := ortest.Pattern{Name: p.name, Body: p.body + "\nout y float32", Except: except[p.pass]}
			for _, body := range p.beside {
				pattern.Beside = append(pattern.Beside, body+"\nout y float32")
			}
			pattern.Counter(t, 4e-6, func(m *onnx.Model) (int, error) {
				res, err := Model(m, Options{})
				if err != nil {
					return 0, err
				}
				return res.Applied[p.pass], nil
			})
		})
	}
}

// unfused are products that ONNX Runtime would fuse with what stands before or
// behind them.
var unfused = []struct{ name, body string }{
	{"swap", "in a float32[@a,@b,@c,@d]\nin b float32[@a,@b,@c,@d]\nq = Neg(b)\nt = Transpose(q) {perm=[0, 1, 3, 2]}\nm = MatMul(a, t)\ny = Softmax(m)"},
	{"first axis", "in a float32[@b,@c,@d]\nin b float32[@b,@c,@d]\np = Neg(a)\nq = Neg(b)\ns = Transpose(p) {perm=[1, 0, 2]}\nt = Transpose(q) {perm=[1, 2, 0]}\nm = MatMul(s, t)\ny = Softmax(m)"},
	{"behind a Reshape", "in a float32[@c,@ab,@d]\nin b float32[@c,@ab,@d]\ninit u int64[4] = [@a, @b, @c, @d]\ninit v int64[4] = [@a, @b, @d, @c]\np = Transpose(a) {perm=[1, 0, 2]}\nq = Transpose(b) {perm=[1, 2, 0]}\ns = Reshape(p, u)\nt = Reshape(q, v)\nm = MatMul(s, t)\ny = Softmax(m)"},
	{"factors", "in a float32[@b,@c,@d]\nin b float32[@d,@a]\ninit k float32[] = 0.3\np = Mul(a, k)\nm = MatMul(p, b)\nn = Div(m, k)\ny = Softmax(n)"},
}

func TestUnfusePatterns(t *testing.T) {
	for _, p := range unfused {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			ortest.Pattern{Name: p.name, Body: p.body + "\nout y float32"}.Counter(t, 1e-6, func(m *onnx.Model) (int, error) {
				types, err := infer.Model(m, infer.Options{})
				if err != nil {
					return 0, err
				}
				return Unfuse(m, types)
			})
		})
	}
}

// opened are nodes with subgraphs that become ordinary ones.
var opened = []struct{ name, body string }{
	{"both branches", `in x float32[@a,@b]
in c bool[]
y, z = If(c) {then_branch=graph p {
u = Neg(x)
v = ReduceSum(x) {keepdims=0}
out u float32[@a,@b]
out v float32[]
}, else_branch=graph q {
u2 = Exp(x)
v2 = ReduceMax(u2) {keepdims=0}
out u2 float32[@a,@b]
out v2 float32[]
}}
out z float32`},
	{"a loop", `in x float32[@a,@b]
init n int64[] = 3
init t bool[] = true
y, z = Loop(n, t, x) {body=graph p {
in i int64[]
in c bool[]
in s float32[@a,@b]
d = Identity(c)
k = Cast(i) {to=1}
u = Mul(s, k)
v = Add(u, x)
w = ReduceSum(v) {keepdims=0}
out d bool[]
out v float32[@a,@b]
out w float32[]
}}
out z float32`},
	{"a scan", `in s float32[@a]
in x float32[@b,@a]
in z float32[@a,@b]
y, w, q = Scan(s, x, z) {num_scan_inputs=2, scan_input_axes=[0,1], scan_input_directions=[0,1], scan_output_axes=[0,-1], scan_output_directions=[1,0], body=graph p {
in c float32[@a]
in r float32[@a]
in l float32[@a]
u = Mul(c, r)
v = Add(u, l)
p0 = Neg(v)
p1 = Exp(l)
out v float32[@a]
out p0 float32[@a]
out p1 float32[@a]
}}
out w float32
out q float32`},
}

func TestOpenPatterns(t *testing.T) {
	for _, p := range opened {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			ortest.Pattern{Name: p.name, Body: p.body + "\nout y float32"}.Counter(t, 1e-6, func(m *onnx.Model) (int, error) {
				n, _, err := Open(m, Options{}, func(*onnx.Node) bool { return true })
				return n, err
			})
		})
	}
}
