package upgrade

// Functions written out compute what ONNX Runtime computes by calling them.

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/onnxpb"
)

// function makes a function of the text of a graph; an attribute whose name holds
// a comma, "alpha,slope", refers to the function's attribute after it.
func function(t *testing.T, opset int64, head, body string) *onnxpb.FunctionProto {
	t.Helper()
	name, rest, _ := strings.Cut(head, "(")
	in, out, _ := strings.Cut(strings.TrimSuffix(rest, ")"), " -> ")
	m, err := onnx.Parse("model ir=8 opset=20 opset[my]=1\ngraph g {\nin " + strings.ReplaceAll(in, ", ", " float32\nin ") + " float32\n" + body + "\n}\n")
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	f := &onnxpb.FunctionProto{Domain: proto.String("my"), Name: &name, Input: strings.Split(in, ", "), Output: strings.Split(out, ", ")}
	f.OpsetImport = []*onnxpb.OperatorSetIdProto{{Domain: proto.String(""), Version: &opset}, {Domain: proto.String("my"), Version: proto.Int64(1)}}
	for _, n := range m.ToProto().Graph.Node {
		for _, a := range n.Attribute {
			if own, ref, ok := strings.Cut(a.GetName(), ","); ok {
				*a = onnxpb.AttributeProto{Name: &own, RefAttrName: &ref, Type: a.Type}
				f.Attribute = append(f.Attribute, ref)
			}
		}
		f.Node = append(f.Node, n)
	}
	return f
}

func calling(t *testing.T, body string, functions ...*onnxpb.FunctionProto) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse("model ir=8 opset=20 opset[my]=1\ngraph g {\n" + body + "\n}\n")
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	m.Proto.Functions = functions
	return m
}

func TestFunctions(t *testing.T) {
	scale := function(t, 20, "Scale(x -> y)", `c = Constant() {value=tensor(float32[2,3] = [1, 2, 3, 4, 5, 6])}
y = Mul(x, c)`)
	linear := function(t, 20, "Linear(x, b -> y)", `s = my.Scale(x)
r = LeakyRelu(s) {"alpha,slope"=0.5}
y = Sum(r, b)`)
	both := function(t, 20, "Both(x, low, high -> a, b, c)", `a = Exp(x)
b = Neg(a)
c = Clip(b, low, high)`)
	choose := function(t, 20, "Choose(x -> y)", `d = Constant() {value_int=0}
s = ReduceSum(x) {keepdims=0}
z = Sub(s, s)
c = GreaterOrEqual(s, z)
y = If(c) {then_branch=graph a {
p = Sinh(x)
q = my.Scale(p)
out q float32
}, else_branch=graph b {
p = Tanh(x)
out p float32
}}`)
	for _, c := range []struct {
		name, body string
		functions  []*onnxpb.FunctionProto
		calls      int
	}{
		{"nested, attributes", "in x float32[2,3]\nh = my.Linear(x, x) {slope=0.25} \"l\"\ny = my.Linear(h, x) {slope=0.75}\nout y float32",
			[]*onnxpb.FunctionProto{linear, scale}, 4},
		{"inputs and outputs that are left out", "in x float32[2,3]\ninit l float32[] = -2\np, _, q = my.Both(x, l)\na, b, _ = my.Both(p, _, l)\nc = Add(a, q)\ny = Add(c, b)\nout y float32",
			[]*onnxpb.FunctionProto{both}, 2},
		{"inside branches, twice", "in x float32[2,3]\nh = my.Choose(x)\nn = Neg(h)\nk = my.Choose(n)\np = Add(h, k)\ny = my.Scale(p)\nout y float32",
			[]*onnxpb.FunctionProto{choose, scale}, 5},
	} {
		before, after := calling(t, c.body, c.functions...), calling(t, c.body, c.functions...)
		n, err := Functions(after)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err := after.Check(); err != nil || n != c.calls || strings.Contains(after.Text(), "my.") {
			t.Errorf("%s: %v, %d calls, want %d, in\n%s", c.name, err, n, c.calls, after.Text())
			continue
		}
		if got := strings.Count(after.Text(), "init "); strings.Contains(c.body, "Linear") && got != 1 {
			t.Errorf("%s: %d initializers, want one that the calls share, in\n%s", c.name, got, after.Text())
		}
		a, b := execute(t, before), execute(t, after)
		for i := range a {
			if len(a) != len(b) || math.Abs(a[i]-b[i]) > 1e-6*(1+math.Abs(a[i])) {
				t.Errorf("%s: %g, was %g, in\n%s", c.name, b, a, after.Text())
				break
			}
		}
	}
}

// What a function returns as it came in, or twice, needs a node of its own.
func TestFunctionReturnsInput(t *testing.T) {
	f := function(t, 20, "Same(x -> x, a, a)", "a = Exp(x)")
	m := calling(t, "in x float32[2]\np, q, r = my.Same(x)\nout p float32\nout q float32\nout r float32", f)
	if _, err := Functions(m); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil || strings.Count(m.Text(), "Identity") != 2 || strings.Count(m.Text(), "Exp") != 1 {
		t.Errorf("%v in\n%s", err, m.Text())
	}
}

func TestFunctionsRefused(t *testing.T) {
	again := function(t, 20, "Again(x -> y)", "y = my.Again(x)")
	old := function(t, 17, "Old(x -> y)", "y = ReduceMean(x)")
	for _, c := range []struct {
		name, body, want string
		f                *onnxpb.FunctionProto
	}{
		{"itself", "in x float32[2]\ny = my.Again(x)\nout y float32", `function my.Again calls itself`, again},
		{"inputs", "in x float32[2]\ny = my.Again(x, x)\nout y float32", `has 1 inputs and 1 outputs, the call 2 and 1`, again},
		{"versions", "in x float32[2]\ny = my.Old(x)\nout y float32", `function Old is of opset 17, the model of 20, and ReduceMean changed at 18`, old},
	} {
		m := calling(t, c.body, c.f)
		text := m.Text()
		if _, err := Functions(m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		if m.Text() != text {
			t.Errorf("%s: the model was changed", c.name)
		}
	}
}

// ONNX Runtime takes its own operator before a function of that name.
func TestFunctionNamedAsAnOperator(t *testing.T) {
	for _, c := range []struct {
		domain, op, call string
		calls            int
	}{
		{"", "Gelu", "Gelu", 0},
		{"ai.onnx", "Relu", "Relu", 0},
		{"com.microsoft", "QuickGelu", "com.microsoft.QuickGelu", 0},
		{"com.microsoft", "Mine", "com.microsoft.Mine", 1},
		{"my", "Relu", "my.Relu", 1},
	} {
		f := function(t, 20, c.op+"(x -> y)", "y = Sinh(x)")
		f.Domain = &c.domain
		body := "in x float32[2]\nh = " + c.call + "(x)\ny = Neg(h)\nout y float32"
		before, after := calling(t, body, f), calling(t, body, f)
		for _, m := range []*onnx.Model{before, after} {
			m.SetOpset("com.microsoft", 1)
		}
		n, err := Functions(after)
		if err != nil || n != c.calls {
			t.Errorf("%s.%s: %v, %d calls, want %d", c.domain, c.op, err, n, c.calls)
			continue
		}
		a, b := execute(t, before), execute(t, after)
		for i := range a {
			if math.Abs(a[i]-b[i]) > 1e-6 {
				t.Errorf("%s.%s: %g, was %g, in\n%s", c.domain, c.op, b, a, after.Text())
				break
			}
		}
	}
}
