package grad

// Control flow that a gradient passes is written out before it is differentiated.

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

const (
	stepBody = `graph body {
in i int64[]
in on bool[]
in h F[2,3]
p = MatMul(h, w)
k = Cast(i) {to=DTYPE}
q = Add(p, k)
h2 = Tanh(q)
`
	loops = "in x F[2,3]\nin w F[3,3]\n"
)

var controlCases = []gradCase{
	{row: "Loop", name: "trips", body: loops + "init n int64[] = 3\ny, y2 = Loop(n, _, x) {body=" + stepBody + "on2 = Identity(on)\ns = Mul(h2, h)\nout on2 bool[]\nout h2 F[2,3]\nout s F[2,3]\n}}"},
	{row: "Loop", name: "condition", body: loops + "init n int64[] = 100\ninit c bool[] = true\ny = Loop(n, c, x) {body=" + stepBody + "two = Constant() {value_int=2}\non2 = Less(i, two)\nout on2 bool[]\nout h2 F[2,3]\n}}"},
	{row: "Loop", name: "no trip", body: loops + "init c bool[] = false\nz = Loop(_, c, x) {body=" + stepBody + "out on bool[]\nout h2 F[2,3]\n}}\nv = MatMul(z, w)\ny = Mul(v, v)"},
	{row: "Loop", name: "in a loop", body: loops + `init n int64[] = 2
y = Loop(n, _, x) {body=graph outer {
in j int64[]
in go bool[]
in g F[2,3]
m = Add(j, n)
r = Loop(m, _, g) {body=` + stepBody + `out on bool[]
out h2 F[2,3]
}}
t = Sin(r)
out go bool[]
out t F[2,3]
}}`},
	{row: "Scan", name: "backwards", body: `in x F[2,3]
in w F[3,3]
in e F[2,4,3]
y, y2 = Scan(x, e) {num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1], scan_output_directions=[1], body=graph body {
in h F[2,3]
in a F[2,3]
p = MatMul(h, w)
q = Add(p, a)
h2 = Tanh(q)
s = Mul(h2, h)
out h2 F[2,3]
out s F[2,3]
}}`},
	{row: "Scan", name: "an element of a list from outside", body: `in x F[2,3]
in w F[2,2]
parts = SplitToSequence(w) {axis=1}
y, y2 = Scan(x) {num_scan_inputs=1, body=graph body {
in a F[3]
k = Constant() {value_int=1}
s = Tanh(a)
e = SequenceAt(parts, k)
out s F[3]
out e F[2,1]
}}`},
	{row: "Loop", name: "over a list", body: `in x F[2,3]
parts = SplitToSequence(x) {axis=1}
n = SequenceLength(parts)
y = Loop(n, _) {body=graph body {
in k int64[]
in c bool[]
d = Identity(c)
e = SequenceAt(parts, k)
s = Tanh(e)
out d bool[]
out s F[2,1]
}}`},
	{row: "If", name: "extents of what nobody reads", body: loops + `s = ReduceSum(x) {keepdims=0}
zero = Sub(s, s)
c = Less(zero, s)
y, cache = If(c) {then_branch=graph t {
p = MatMul(x, w)
k = Tanh(p)
out p F[2,3]
out k F[2,3]
}, else_branch=graph e {
q = Sin(x)
init none F[0,3] = []
out q F[2,3]
out none F[0,3]
}}`},
	{row: "If", name: "not decided", body: `in x F[2,3]
in w F[3,3]
s = ReduceSum(x) {keepdims=0}
z = Sub(s, s)
c = Greater(s, z)
y, y2 = If(c) {then_branch=graph a {
p = MatMul(x, w)
q = Exp(x)
out p F[2,3]
out q F[2,3]
}, else_branch=graph b {
r = Sin(x)
u = Add(r, r)
out r F[2,3]
out u F[2,3]
}}`},
	{row: "Loop", name: "of an older opset", opset: 17, body: loops + "init n int64[] = 2\ny = Loop(n, _, x) {body=" + stepBody + "m = ReduceMean(h2) {axes=[1]}\nh3 = Sub(h2, m)\nout on bool[]\nout h3 F[2,3]\n}}"},
}

// bag is an EmbeddingBag of two bags as PyTorch's exporter writes it: a loop that
// fills a list, over slices whose places are in offsets; REDUCE is the rows' part.
const bag = `in w F[5,3]
init ids int64[6] = [1, 3, 1, 0, 4, 4]
init trip int64[] = 0
init go bool[] = true
init bags int64[] = 2
init one int64[] = 1
init ones int64[1] = [1]
init axis int64[1] = [0]
init flat int64[1] = [-1]
init total int64[1] = [6]
rows = Gather(w, ids)
list = SequenceEmpty() {dtype=11}
filled, last = Loop(_, go, list, trip) {body=graph body {
in n int64[]
in on bool[]
in before seq(DTYPE)
in at int64[]
place = Reshape(at, flat)
after = Add(place, ones)
start = Slice(offsets, place, after)
more = Add(after, ones)
end = Slice(offsets, after, more)
none = Equal(start, end)
result = If(none) {then_branch=graph empty {
init zero F[1,3] = [0, 0, 0]
out zero F[1,3]
}, else_branch=graph full {
REDUCE
out sum
}}
grown = SequenceInsert(before, result)
next = Add(at, one)
again = Less(next, bags)
out again bool[]
out grown seq(DTYPE)
out next int64[]
}}
joined = ConcatFromSequence(filled) {axis=0}
init shape int64[2] = [2, 3]
b = Reshape(joined, shape)
y = Mul(b, b)
`

// TestBags: where the loop makes a known number of trips its list becomes a Concat,
// be the places of its slices known or not.
func TestBags(t *testing.T) {
	const plain = "part = Slice(rows, start, end)\nsum = ReduceSum(part, axis)"
	const largest = "part = Slice(rows, start, end)\nsum = ReduceMax(part, axis)"
	const nested = `part = Slice(rows, start, end)
behind = Equal(end, total)
sum = If(behind) {then_branch=graph final {
count = Sub(total, start)
any = Greater(count, axis)
whole = ReduceSum(part, axis)
mean = If(any) {then_branch=graph some {
divisor = Cast(count) {to=11}
quotient = Div(whole, divisor)
out quotient
}, else_branch=graph nobody {
same = Identity(whole)
out same
}}
out mean
}, else_branch=graph middle {
average = ReduceMean(part, axis)
out average
}}`
	const known = "init offsets int64[3] = [0, 4, 6]\n"
	const fed = "in moved F[3]\ninit fixed F[3] = [0, 4, 6]\ninit zero F[] = 0\nidle = Mul(moved, zero)\nplaces = Add(fixed, idle)\noffsets = Cast(places) {to=7}\ny2 = Mul(moved, moved)\n"
	for name, body := range map[string]string{
		"sum": known + strings.Replace(bag, "REDUCE", plain, 1), "sum, places fed": fed + strings.Replace(bag, "REDUCE", plain, 1),
		"max": known + strings.Replace(bag, "REDUCE", largest, 1), "max, places fed": fed + strings.Replace(bag, "REDUCE", largest, 1),
		"mean": known + strings.Replace(bag, "REDUCE", nested, 1), "mean, places fed": fed + strings.Replace(bag, "REDUCE", nested, 1),
	} {
		c := gradCase{row: "Loop", name: name, whole: true, lo: -1, hi: 1}
		_, dtype := c.dtype()
		c.body = strings.NewReplacer(" F[", " "+dtype+"[", "DTYPE", dtype).Replace(body)
		t.Run(name, func(t *testing.T) { c.check(t) })
	}
}

// TestListsRefused: of a list that stays one an error names the way out.
func TestListsRefused(t *testing.T) {
	const head = "in x float32[2]\nin n int64\ninit w float32[2] = [1, 2]\na = Mul(x, w)\n"
	for _, body := range []string{
		"s = SequenceConstruct(a, x)\ny = SequenceAt(s, n)",
		"s = SequenceEmpty()\nt = Loop(n, _, s) {body=graph body {\nin i int64[]\nin on bool[]\nin h seq(float32)\ng = SequenceInsert(h, a)\nout on bool[]\nout g seq(float32)\n}}\ny = ConcatFromSequence(t) {axis=0}",
	} {
		m := parseGraph(t, head+body+"\nz = Reshape(y, flat)\ninit flat int64[1] = [-1]\nloss = ReduceSum(z) {keepdims=0}", "loss float32[]")
		_, err := Differentiate(m, Options{})
		if err == nil || !strings.Contains(err.Error(), "dynamo=False") || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want one line with the way out", err)
		}
	}
}

func TestControlFlowAgainstDifferences(t *testing.T) {
	for _, c := range controlCases {
		c.whole, c.lo, c.hi = true, -1, 1
		_, name := c.dtype()
		c.body = strings.NewReplacer(" F[", " "+name+"[", "DTYPE", "11").Replace(c.body)
		t.Run(c.row+"/"+c.name, func(t *testing.T) { c.check(t) })
	}
}

// TestWeightsOfBodies: what a body holds as constants are weights like others.
func TestWeightsOfBodies(t *testing.T) {
	m := parseGraph(t, `in x float32[2,2]
init n int64[] = 3
y = Loop(n, _, x) {body=graph body {
in i int64[]
in on bool[]
in h float32[2,2]
init w float32[2,2] = [1, 2, 3, 4]
b = Constant() {value=tensor(float32[2] = [1, 2])}
p = Gemm(h, w, b)
q = Tanh(p)
out on bool[]
out q float32[2,2]
}}
loss = ReduceSum(y) {keepdims=0}`, "loss float32[]")
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Params) != 2 || res.Params[0].Name != "w" || res.Params[1].Name != "b" {
		t.Errorf("trained: %v", res.Params)
	}
	if n := strings.Count(m.Text(), "Tanh("); n != 3 {
		t.Errorf("%d trips in\n%s", n, m.Text())
	}
}

// TestCodesOfBranches: packed weights that the branches of an undecided If read become
// standard operators where the branches are written out.
func TestCodesOfBranches(t *testing.T) {
	m := parseGraph(t, `in x float32[2,16]
in c bool[]
init b float32[2] = [1, 2]
init w uint8[2,1,8] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
init s float32[2] = [1, 2]
y = If(c) {then_branch=graph t {
p = com.microsoft.MatMulNBits(x, w, s) {K=16, N=2, bits=4, block_size=16}
out p float32[2,2]
}, else_branch=graph e {
n = Neg(x)
q = com.microsoft.MatMulNBits(n, w, s) {K=16, N=2, bits=4, block_size=16}
out q float32[2,2]
}}
z = Mul(y, b)
loss = ReduceSum(z) {keepdims=0}`, "loss float32")
	if _, err := Differentiate(m, Options{Params: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(m.Text(), " Gemm("); n != 2 || strings.Contains(m.Text(), "MatMulNBits(") {
		t.Errorf("%d products in\n%s", n, m.Text())
	}
}

func TestControlFlowRefused(t *testing.T) {
	const head = "in x float32[2]\nin n int64[]\nin c bool[]\ninit w float32[2] = [1, 2]\na = Mul(x, w)\n"
	const body = "{body=graph body {\nin i int64[]\nin on bool[]\nin h float32[2]\ng = Tanh(h)\n"
	for _, c := range []struct{ name, body, want string }{
		{"trips", "y = Loop(n, _, a) " + body + "out on bool[]\nout g float32[2]\n}}", "its number of trips is not known"},
		{"start", "init m int64[] = 3\ny = Loop(m, c, a) " + body + "out on bool[]\nout g float32[2]\n}}", "whether it makes a trip"},
		{"condition", "init m int64[] = 3\ny = Loop(m, _, a) " + body + "s = ReduceSum(g) {keepdims=0}\nz = Sub(s, s)\non2 = Less(s, z)\nout on2 bool[]\nout g float32[2]\n}}", "its condition is not known before it runs"},
		{"many", "init m int64[] = 10000000\ny = Loop(m, _, a) " + body + "out on bool[]\nout g float32[2]\n}}", "more than 16384 nodes"},
		{"branches", "y = If(c) {then_branch=graph t {\np = Neg(a)\nout p float32[2]\n}, else_branch=graph e {\nq = Concat(a, a) {axis=0}\nout q float32[4]\n}}", "needs equal shapes"},
		{"statistics", "init k float32[1,2] = [1, 2]\nxx = Mul(x, k)\ny = If(c) {then_branch=graph t {\np = Neg(xx)\nout p float32[1,2]\n}, else_branch=graph e {\nq = BatchNormalization(xx, w, w, w, w) {training_mode=1}\nout q float32[1,2]\n}}", "its else_branch has a BatchNormalization in training, whose running statistics would move where it is not taken"},
	} {
		m := parseGraph(t, head+c.body+"\nloss = ReduceSum(y) {keepdims=0}", "loss float32[]")
		_, err := Differentiate(m, Options{})
		var refused *UnsupportedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line with %q", c.name, err, c.want)
		}
	}
}

// TestBranchNotTaken: nothing leaves a branch that is not taken, whose slope may not be finite:
// an If keeps a division by zero or a root of what is negative from happening.
func TestBranchNotTaken(t *testing.T) {
	const body = `init w float32[3] = [-1, 1, 4]
init s float32[] = 2
init zero float32[] = 0
in k float32[]
c = Equal(k, zero)
v = Mul(w, s)
y = If(c) {then_branch=graph a {
p = Mul(v, s)
out p float32[3]
}, else_branch=graph b {
q = Sqrt(v)
r = Div(q, k)
u = Mul(r, s)
out u float32[3]
}}
loss = ReduceSum(y) {keepdims=0}`
	m := parseGraph(t, body, "loss float32")
	if _, err := Differentiate(m, Options{Params: []string{"w", "s"}}); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		if strings.Contains(n.Label(), "remat/guard/") && n.Is("Identity") {
			t.Errorf("node %q is left", n.Label())
		}
	}
	got := ortest.Run(t, m, 0, map[string]*onnx.Tensor{
		"w": onnx.FloatTensor(onnx.Float32, []float64{-1, 1, 4}, 3), "s": onnx.FloatTensor(onnx.Float32, []float64{2}),
		"k": onnx.FloatTensor(onnx.Float32, []float64{0}),
	})
	if w, s := got["w.grad"], got["s.grad"]; !slices.Equal(w, []float64{4, 4, 4}) || !slices.Equal(s, []float64{16}) {
		t.Errorf("gradients %v and %v, want 4 each and 16", w, s)
	}
}
