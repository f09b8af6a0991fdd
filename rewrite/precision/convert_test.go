package precision

// Graphs that are something else than plain float32, forward graphs, and what
// constants do.

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
)

func parse(t *testing.T, body string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse("model ir=10 opset=20\ngraph main {\n" + body + "\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var emulated = Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU}

func apply(t *testing.T, m *onnx.Model, o Options) *Report {
	t.Helper()
	r, err := Apply(m, o)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.AnnotateTypes()
	return r
}

// operators are those of the graph, in order.
func operators(m *onnx.Model) string {
	var ops []string
	for _, n := range m.Graph.Nodes {
		ops = append(ops, n.OpType())
	}
	return strings.Join(ops, " ")
}

func TestHalfAlready(t *testing.T) {
	m := parse(t, "in x float16[2,3]\ninit w float16[3,3] = zeros\ny = MatMul(x, w)\nout y float16[2,3]")
	var refused *Error
	if _, err := Apply(m, emulated); !errors.As(err, &refused) || !strings.Contains(err.Error(), "already computes in a half type") {
		t.Errorf("a half model: %v", err)
	}
	if got := operators(m); got != "MatMul" {
		t.Errorf("the refused graph was changed: %s", got)
	}
	m = parse(t, "in x int64[2]\ny = Add(x, x)\nout y int64[2]")
	if _, err := Apply(m, emulated); !errors.As(err, &refused) {
		t.Errorf("an integer model: %v", err)
	}
	if _, err := Apply(m, Options{To: onnx.Float64}); !errors.As(err, &refused) {
		t.Errorf("float64 as half: %v", err)
	}
}

// TestMixed: casts of the file that the conversion makes idle go.
func TestMixed(t *testing.T) {
	m := parse(t, `in x float16[2,3]
init w float32[3,3] = [1, 2, 3, 4, 5, 6, 7, 8, 9]
a = Cast(x) {to=1}
b = MatMul(a, w)
y = Cast(b) {to=10}
out y float16[2,3]`)
	apply(t, m, Options{To: onnx.Float16, Provider: kernels.CUDA})
	if got := operators(m); got != "MatMul" && got != "MatMul Cast" {
		t.Errorf("operators %s, want the product alone", got)
	}
	if v := m.Graph.Outputs[0]; v.Name != "y" || v.Type.DType != onnx.Float16 {
		t.Errorf("output %s %s", v.Name, v.Type)
	}
	if missing := kernels.Check(m, kernels.CUDA); len(missing) > 0 {
		t.Errorf("no kernels: %v", missing)
	}
}

// TestOtherTypes: float64, integers and quantized parts stay as they are.
func TestOtherTypes(t *testing.T) {
	m := parse(t, `in x float32[2,3]
in k int64[2,3]
init w float32[3,3] = [1, 2, 3, 4, 5, 6, 7, 8, 9]
init s float32[] = [0.5]
init z int8[] = [0]
d = Cast(x) {to=11}
e = Exp(d)
f = Cast(e) {to=1}
g = MatMul(f, w)
q = QuantizeLinear(g, s, z)
h = DequantizeLinear(q, s, z)
i = Add(k, k)
j = Cast(i) {to=1}
y = Mul(h, j)
out y float32[2,3]
out e float64[2,3]`)
	feeds := map[string]runtime.Tensor{
		"x": runtime.FromFloat32s([]float32{0, 1, -1, 0.5, 2, -2}, 2, 3),
		"k": runtime.FromInt64s([]int64{1, 2, 3, 4, 5, 6}, 2, 3),
	}
	want := run(t, clone(t, m), feeds, 0, 0)
	r := apply(t, m, emulated)
	got := run(t, m, feeds, 1, 0)
	if !slices.Equal(got["e"], want["e"]) {
		t.Errorf("float64 part: %v, want %v", got["e"], want["e"])
	}
	if d := distance(got["y"], want["y"]); d > 0.01 {
		t.Errorf("y %v, want %v", got["y"], want["y"])
	}
	for _, n := range m.Graph.Nodes {
		if v := n.Out(0); n.Is("QuantizeLinear") && n.In(0).Type.DType != onnx.Float32 || n.Is("Exp") && v.Type.DType != onnx.Float64 {
			t.Errorf("%s reads %s and makes %s", n.OpType(), n.In(0).Type, v.Type)
		}
	}
	if !slices.ContainsFunc(r.Skipped, func(s rewrite.Skip) bool { return strings.Contains(s.Why, "float64") }) {
		t.Errorf("the report does not mention float64: %v", r.Skipped)
	}
}

// TestRemarksLast: what was left out is said before what nobody asked for, and is all that
// counts as skipped.
func TestRemarksLast(t *testing.T) {
	text := `in x float32[2,3]
init w float32[3,3] = [1, 2, 3, 4, 5, 6, 7, 8, 9]
d = Cast(x) {to=11}
e = Exp(d)
g = MatMul(x, w)
y = Relu(g)
a = Abs(x)
z = Neg(a)
out y float32[2,3]
out z float32[2,3]
out e float64[2,3]`
	r := apply(t, parse(t, text), emulated)
	if n := len(r.Skipped); r.Requested <= r.Applied || n < 2 || r.Skipped[0].What == "float64 values" || r.Skipped[n-1].What != "float64 values" {
		t.Errorf("%d requested, %d applied: %v", r.Requested, r.Applied, r.Skipped)
	}
	stash := emulated
	stash.StashOnly = true
	r = apply(t, parse(t, text), stash)
	if got := r.String(); strings.Contains(got, "skipped") != (r.Requested == 0) || !strings.Contains(got, "float64") {
		t.Error(got)
	}
}

// TestControlFlow: bodies stay, and so does what they read.
func TestControlFlow(t *testing.T) {
	m := parse(t, `in x float32[2,3]
in c bool[]
init w float32[3,3] = [1, 2, 3, 4, 5, 6, 7, 8, 9]
a = MatMul(x, w)
b = MatMul(a, w)
y = If(c) {then_branch=graph yes {
  p = Neg(b)
  out p float32[2,3]
}, else_branch=graph no {
  q = Abs(b)
  out q float32[2,3]
}}
out y float32[2,3]`)
	feeds := map[string]runtime.Tensor{
		"x": runtime.FromFloat32s([]float32{0, 1, -1, 0.5, 2, -2}, 2, 3),
		"c": {Type: onnx.Bool, Data: []byte{1}},
	}
	want := run(t, clone(t, m), feeds, 0, 0)
	r := apply(t, m, emulated)
	if !slices.ContainsFunc(r.Skipped, func(s rewrite.Skip) bool {
		return strings.Contains(s.Why, "the 2 operators in its bodies stay float32")
	}) {
		t.Errorf("the report does not say that bodies stay: %v", r.Skipped)
	}
	if b := m.Graph.Value("b"); b == nil || b.Type.DType != onnx.Float32 {
		t.Errorf("what a body reads is %v", b)
	}
	if got := run(t, m, feeds, 1, 0); distance(got["y"], want["y"]) > 0.01 {
		t.Errorf("y %v, want %v", got["y"], want["y"])
	}
}

// TestConstants: a mask, an epsilon, a large factor.
func TestConstants(t *testing.T) {
	const body = `in x float32[2,4]
in hide bool[2,4]
init w float32[4,4] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7]
init nothing float32[] = [-3.4028235e38]
init tiny float32[] = [1e-12]
init big float32[] = [100000]
init each float32[4] = [3e-9, -2e-9, 0, 1e-9]
a = MatMul(x, w)
b = Where(hide, nothing, a)
c = Softmax(b) {axis=-1}
d = Abs(c)
e = Add(d, tiny)
f = MatMul(e, w)
g = Mul(f, big)
h = Mul(g, tiny)
i = MatMul(h, w)
j = Mul(c, each)
k = Mul(j, big)
y = Add(i, k)
out y float32[2,4]`
	feeds := map[string]runtime.Tensor{
		"x":    runtime.FromFloat32s([]float32{0, 0.1, -0.1, 0.05, 0.2, -0.2, 0.1, 0}, 2, 4),
		"hide": {Type: onnx.Bool, Shape: []int64{2, 4}, Data: []byte{1, 1, 1, 1, 0, 0, 1, 1}}, // a row is hidden whole
	}
	for _, to := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
		m := parse(t, body)
		want := run(t, clone(t, m), feeds, 0, 0)
		r := apply(t, m, Options{To: to, Emulate: true, Provider: kernels.CPU})
		got := run(t, m, feeds, 1, 0)
		for i, x := range got["y"] {
			if math.IsNaN(x) || math.Abs(x-want["y"][i]) > 32*unit[to]*math.Abs(want["y"][i])+1e-7 {
				t.Errorf("%s: y %v, want %v", to, got["y"], want["y"])
				break
			}
		}
		reported := map[string]string{}
		for _, c := range r.Constants {
			reported[c.Name] = c.Done
		}
		if !strings.HasPrefix(reported["nothing"], "clamped") {
			t.Errorf("%s: the mask: %v", to, reported)
		}
		if kept := reported["tiny"] != "" && reported["big"] != "" && reported["each"] != ""; kept != (to == onnx.Float16) {
			t.Errorf("%s: %v", to, reported)
		}
	}
}

// TestForward converts a forward graph: the weights become half constants, and
// inputs and outputs keep their types.
func TestForward(t *testing.T) {
	m, err := onnx.Load(samplesDir + "/encoder_postln.ts.onnx")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	size := func() (sum int64) {
		for _, v := range m.Graph.Initializers {
			n, _ := v.Type.Bytes()
			sum += n
		}
		return sum
	}
	before := size()
	apply(t, m, Options{To: onnx.Float16, Provider: kernels.CUDA})
	if after := size(); after > before*6/10 {
		t.Errorf("constants of %d bytes after %d", after, before)
	}
	for _, v := range append(slices.Clone(m.Graph.Inputs), m.Graph.Outputs...) {
		if v.Type.DType == onnx.Float16 {
			t.Errorf("%s became %s", v.Name, v.Type)
		}
	}
	if missing := kernels.Check(m, kernels.CUDA); len(missing) > 0 {
		t.Errorf("no kernels: %v", missing)
	}
}

// TestGlobs: the caller's word counts, and what it says about float32 wins.
func TestGlobs(t *testing.T) {
	const body = `in x float32[2,4]
init w float32[4,4] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7]
a = MatMul(x, w) "/layer/0/product"
b = Exp(a) "/layer/0/exp"
c = MatMul(b, w) "/layer/1/product"
y = Relu(c)
out y float32[2,4]`
	in := func(o Options, name string) onnx.DType {
		m := parse(t, body)
		o.To, o.Provider = onnx.BFloat16, kernels.CUDA
		apply(t, m, o)
		for _, n := range m.Graph.Nodes {
			if n.Name() == name {
				return n.In(0).Type.DType
			}
		}
		t.Fatalf("no node %s", name)
		return 0
	}
	for _, c := range []struct {
		o    Options
		node string
		want onnx.DType
	}{
		{Options{}, "/layer/0/product", onnx.BFloat16},
		{Options{}, "/layer/0/exp", onnx.Float32},
		{Options{KeepFP32: []string{"/layer/0/*"}}, "/layer/0/product", onnx.Float32},
		{Options{KeepFP32: []string{"MatMul"}}, "/layer/1/product", onnx.Float32},
		{Options{KeepFP32: []string{"*"}, Half: []string{"MatMul"}}, "/layer/1/product", onnx.Float32},
		{Options{Half: []string{"E*"}}, "/layer/0/exp", onnx.BFloat16},
	} {
		if got := in(c.o, c.node); got != c.want {
			t.Errorf("%+v: %s reads %s, want %s", c.o, c.node, got, c.want)
		}
	}
}

// TestTransposeBehindCast: a half value is cast before it is transposed where a float32
// operator alone reads that, or it is returned: ONNX Runtime turns the two about, by a node at
// the end of its list, and runs another order than was planned.
func TestTransposeBehindCast(t *testing.T) {
	for name, c := range map[string]struct{ body, last string }{
		"returned": {"z = Conv(x, w)\ny = Transpose(z) {perm=[1,0,2,3]}\nout y float32[2,1,2,2]", "Cast Transpose"},
		"read by a product": {"z = Conv(x, w)\nt = Transpose(z) {perm=[0,2,3,1]}\nr = Reshape(t, flat)\ny = MatMul(r, v)\nout y float32[4,2]",
			"Transpose Reshape Cast MatMul"},
	} {
		m := parse(t, "in x float32[1,2,2,2]\ninit w float32[2,2,1,1] = [1, 2, 3, 4]\ninit v float32[2,2] = [1, 2, 3, 4]\ninit flat int64[2] = [4, 2]\n"+c.body)
		apply(t, m, Options{To: onnx.BFloat16, Emulate: true, Provider: kernels.CPU})
		got := strings.ReplaceAll(operators(m), "Cast Cast", "Cast")
		if name == "returned" && !strings.HasSuffix(got, c.last) {
			t.Errorf("%s: operators %s, want %s at the end", name, got, c.last)
		}
		for _, n := range m.Graph.Nodes {
			if half := n.Is("Transpose") && n.Out(0).Type.DType == onnx.BFloat16; half == (name == "returned") && n.Is("Transpose") {
				t.Errorf("%s: transposed as %s", name, n.Out(0).Type)
			}
		}
	}
}
