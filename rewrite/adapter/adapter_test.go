package adapter_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/adapter"
)

func TestParseSpec(t *testing.T) {
	for _, c := range []struct {
		text string
		want adapter.Spec
	}{
		{"*proj*:r=4,alpha=16", adapter.Spec{Globs: []string{"*proj*"}, Rank: 4, Alpha: 16}},
		{"a, b*:alpha=0.5", adapter.Spec{Globs: []string{"a", "b*"}, Rank: 8, Alpha: 0.5}},
		{"*", adapter.Spec{Globs: []string{"*"}, Rank: 8, Alpha: 8}},
		{"onnx::MatMul_12", adapter.Spec{Globs: []string{"onnx::MatMul_12"}, Rank: 8, Alpha: 8}},
		{"onnx::MatMul_12:r=2", adapter.Spec{Globs: []string{"onnx::MatMul_12"}, Rank: 2, Alpha: 8}},
	} {
		got, err := adapter.ParseSpec(c.text)
		if err != nil || !slices.Equal(got.Globs, c.want.Globs) || got.Rank != c.want.Rank || got.Alpha != c.want.Alpha {
			t.Errorf("%q: got %+v, %v, want %+v", c.text, got, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"":                        "names no parameter",
		":r=8":                    "names no parameter",
		"a,,b":                    "names no parameter",
		"[a:r=8":                  "not a valid pattern",
		"*:r=0":                   "whole number from 1 on",
		"*:r=-3":                  "whole number from 1 on",
		"*:r=1.5":                 "whole number from 1 on",
		"*:r=99999999999":         "whole number from 1 on",
		"*:r=":                    "whole number from 1 on",
		"*:alpha=0":               "number above 0",
		"*:alpha=nan":             "number above 0",
		"*:alpha=inf":             "number above 0",
		"*:alpha=1e999":           "number above 0",
		"*:r=4,r=8":               "given twice",
		"*:r=4,dropout=0.1":       `no setting "dropout"`,
		"*:r=4,alpha":             "number above 0",
		"*:\x00=1":                "no setting",
		"*:use_dora=true,alpha=1": "no setting",
	} {
		if _, err := adapter.ParseSpec(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// forms are linear layers with a weight w as graphs, x W = y.
var forms = []struct {
	name, body string
	want       adapter.Linear // without nodes
}{
	{"matmul", "in x float64[2,3,4]\ninit w float64[4,5] = W\ny = MatMul(x, w)", adapter.Linear{In: 4, Out: 5}},
	{"matmul of a matrix", "in x float64[3,4]\ninit w float64[4,5] = W\ny = MatMul(x, w)", adapter.Linear{In: 4, Out: 5}},
	{"matmul of a vector", "in x float64[4]\ninit w float64[4,5] = W\ny = MatMul(x, w)", adapter.Linear{In: 4, Out: 5}},
	{"transposed", "in x float64[2,3,4]\ninit w float64[5,4] = W\nv = Transpose(w) {perm=[1,0]}\ny = MatMul(x, v)", adapter.Linear{In: 4, Out: 5, Transposed: true}},
	{"transposed twice", "in x float64[2,3,4]\ninit w float64[4,5] = W\nu = Transpose(w)\nv = Transpose(u)\ny = MatMul(x, v)", adapter.Linear{In: 4, Out: 5}},
	{"gemm", "in x float64[3,4]\ninit w float64[4,5] = W\ninit c float64[5] = [1,2,3,4,5]\ny = Gemm(x, w, c)", adapter.Linear{In: 4, Out: 5}},
	{"gemm, all attributes", "in x float64[4,3]\ninit w float64[5,4] = W\ninit c float64[5] = [1,2,3,4,5]\ny = Gemm(x, w, c) {transA=1, transB=1, alpha=0.5, beta=2.0}", adapter.Linear{In: 4, Out: 5, Transposed: true}},
	{"gemm of a transposed weight", "in x float64[3,4]\ninit w float64[4,5] = W\nv = Transpose(w) {perm=[1,0]}\ny = Gemm(x, v) {transB=1}", adapter.Linear{In: 4, Out: 5}},
	{"reshaped", "in x float64[2,3,4]\ninit w float64[4,5,1] = W\ninit s int64[2] = [4,5]\nv = Reshape(w, s)\ny = MatMul(x, v)", adapter.Linear{In: 4, Out: 5}},
	{"turned, reshaped as it is", "in x float64[2,3,4]\ninit w float64[5,4] = W\ninit s int64[2] = [4,5]\nu = Transpose(w)\nv = Reshape(u, s)\ny = MatMul(x, v)", adapter.Linear{In: 4, Out: 5, Transposed: true}},
	{"turned, with an axis between", "in x float64[2,3,4]\ninit w float64[5,4] = W\ninit s int64[3] = [1,4,5]\ninit r int64[2] = [4,5]\nu = Transpose(w)\nt = Reshape(u, s)\nv = Reshape(t, r)\ny = MatMul(x, v)", adapter.Linear{In: 4, Out: 5, Transposed: true}},
	{"free rows", "in x float64[batch,seq,4]\ninit w float64[4,5] = W\ny = MatMul(x, w)", adapter.Linear{In: 4, Out: 5}},
	{"two products", "in x float64[2,4]\ninit w float64[4,4] = W\nh = MatMul(x, w)\ny = MatMul(h, w)", adapter.Linear{In: 4, Out: 4}},
	{"tied", "in x float64[2,4]\ninit ids int64[2] = [1, 0]\ninit w float64[5,4] = W\ne = Gather(w, ids)\nh = Add(x, e)\nv = Transpose(w)\ny = MatMul(h, v)", adapter.Linear{In: 4, Out: 5, Transposed: true}},
}

// graph parses a form; W stands for 20 or 16 numbers.
func graph(t *testing.T, body string) (*onnx.Model, *infer.Result, *onnx.Value) {
	t.Helper()
	numbers := "[0.5,-1,0.25,2,-0.75,1,-0.5,0.125,-2,1.5,-1.25,0.75,1,-0.25,0.625,-1.5,0.375,1.75,-0.875,0.25]"
	if strings.Contains(body, "[4,4] = W") {
		numbers = "[0.5,-1,0.25,2,-0.75,1,-0.5,0.125,-2,1.5,-1.25,0.75,1,-0.25,0.625,-1.5]"
	}
	m, types := ortest.Parse(t, "model ir=9 opset=20\ngraph g {\n"+strings.Replace(body, "= W", "= "+numbers, 1)+"\nout y float64\n}\n")
	return m, types, m.Graph.Value("w")
}

func TestFind(t *testing.T) {
	for _, f := range forms {
		_, _, w := graph(t, f.body)
		l := found(t, w)
		if l.In != f.want.In || l.Out != f.want.Out || l.Transposed != f.want.Transposed || l.Tied() != (f.name == "tied") {
			t.Errorf("%s: got %+v", f.name, l)
		}
	}
	m, _ := ortest.Parse(t, `model ir=10 opset=21
graph g {
in x float32[2,4]
init w int8[4,5] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]
init s float32[] = 0.5
v = DequantizeLinear(w, s)
y = MatMul(x, v)
out y float32
}
`)
	if l, why := adapter.Find(m.Graph.Value("w")); l == nil || !l.Quantized || l.In != 4 {
		t.Errorf("quantized: %+v, %s", l, why)
	}
}

func TestFindSaysWhyNot(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"embedding":        {"in x int64[2]\ninit w float64[5,4] = W\ny = Gather(w, x)", "Gather reads it"},
		"from the left":    {"in x float64[4,3]\ninit w float64[5,4] = W\ny = MatMul(w, x)", "MatMul reads it"},
		"a batch of":       {"in x float64[2,3,2]\ninit w float64[2,2,5] = W\ny = MatMul(x, w)", "MatMul reads it"},
		"a bias":           {"in x float64[5,5]\ninit w float64[5,4] = W\ninit b float64[5,4] = W\ny = Gemm(x, b, w)", "Gemm reads it"},
		"both ways":        {"in x float64[3,4]\ninit w float64[4,5] = W\nh = MatMul(x, w)\nv = Transpose(w)\ny = MatMul(h, v)", "both ways"},
		"times itself":     {"in x float64[4,4]\ninit w float64[4,4] = W\nv = MatMul(w, w)\ny = Add(v, x)", "MatMul reads it"},
		"turned, reshaped": {"in x float64[2,10]\ninit w float64[4,5] = W\ninit s int64[2] = [10,2]\nu = Transpose(w)\nv = Reshape(u, s)\ny = MatMul(x, v)", "Reshape reads it"},
		"unread":           {"in x float64[2]\ninit w float64[4,5] = W\ny = Neg(x)", "nothing reads it"},
	} {
		body := strings.ReplaceAll(c.body, "= W", "= [0.5,-1,0.25,2,-0.75,1,-0.5,0.125,-2,1.5,-1.25,0.75,1,-0.25,0.625,-1.5,0.375,1.75,-0.875,0.25]")
		if strings.Contains(body, "w float64[4,4]") {
			body = strings.Replace(body, ",0.375,1.75,-0.875,0.25]", "]", 1)
		}
		m, _ := ortest.Parse(t, "model ir=9 opset=20\ngraph g {\n"+body+"\nout y float64\n}\n")
		if l, why := adapter.Find(m.Graph.Value("w")); l != nil || !strings.Contains(why, c.want) {
			t.Errorf("%s: got %+v, %q, want %q", name, l, why, c.want)
		}
	}
}

// TestPairAndMerge: the graph with a pair of random numbers, and the one that these are
// merged into, give the same as the formula, in float64.
func TestPairAndMerge(t *testing.T) {
	const rank, alpha = 2, 3
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			plain, _, w := graph(t, f.body)
			inputs := ortest.RandomInputs(plain)
			pair := pairOf(found(t, w), rank, alpha)
			before := ortest.Run(t, plain, 0, inputs)["y"]

			m, types, v := graph(t, f.body)
			p, err := adapter.Insert(m.Graph, types, found(t, v), "w", rank, alpha)
			if err != nil {
				t.Fatal(err)
			}
			if at := ortest.Run(t, m, 0, inputs)["y"]; apart(at, before) != 0 {
				t.Errorf("a pair whose B is zero changes the result by %g\n%s", apart(at, before), m.Text())
			}
			p.A.Init = onnx.FloatTensor(onnx.Float64, pair.A, p.A.Init.Dims()...)
			p.B.Init = onnx.FloatTensor(onnx.Float64, pair.B, p.B.Init.Dims()...)
			for _, v := range []*onnx.Value{p.A, p.B} {
				v.Init.Proto.Name = &v.Name
			}
			if err := m.Check(); err != nil {
				t.Fatalf("%v in\n%s", err, m.Text())
			}
			unmerged := ortest.Run(t, m, 0, inputs)["y"]

			l := found(t, w)
			tied := l.Tied()
			merged, err := adapter.Merge(plain.Graph, l, pair)
			if err != nil {
				t.Fatal(err)
			}
			if (merged == w) == tied {
				t.Errorf("tied %v, merged into %s", tied, merged)
			}
			if err := plain.Check(); err != nil {
				t.Fatalf("%v in\n%s", err, plain.Text())
			}
			after := ortest.Run(t, plain, 0, inputs)["y"]
			if apart(after, unmerged) > 1e-12 || apart(after, before) < 0.05 {
				t.Errorf("merged and unmerged are %g apart, the pair moves the result by %g", apart(after, unmerged), apart(after, before))
			}
			if d := apart(after, formula(t, f.body, l, pair, inputs)); d > 1e-12 {
				t.Errorf("%g from the formula", d)
			}
		})
	}
}

func found(t *testing.T, w *onnx.Value) *adapter.Linear {
	t.Helper()
	l, why := adapter.Find(w)
	if l == nil {
		t.Fatal(why)
	}
	return l
}

// pairOf are numbers for a pair.
func pairOf(l *adapter.Linear, rank int64, alpha float64) adapter.Trained {
	t := adapter.Trained{Rank: rank, Scale: alpha / float64(rank), A: make([]float64, l.In*rank), B: make([]float64, rank*l.Out)}
	for i := range t.A {
		t.A[i] = math.Sin(float64(3*i + 1))
	}
	for i := range t.B {
		t.B[i] = math.Cos(float64(5*i + 2))
	}
	return t
}

// formula runs the form with a weight that was computed here, element by element.
func formula(t *testing.T, body string, l *adapter.Linear, p adapter.Trained, inputs map[string]*onnx.Tensor) []float64 {
	t.Helper()
	m, _, w := graph(t, body)
	values, err := w.Init.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	old := slices.Clone(values)
	for i := range l.In {
		for j := range l.Out {
			sum := 0.0
			for k := range p.Rank {
				sum += p.A[i*p.Rank+k] * p.B[k*l.Out+j]
			}
			at := i*l.Out + j
			if l.Transposed {
				at = j*l.In + i
			}
			values[at] += p.Scale * sum
		}
	}
	if l.Tied() { // what else reads it goes on reading the old one
		kept := m.Graph.AddConstant("kept", onnx.FloatTensor(onnx.Float64, old, w.Init.Dims()...))
		for _, n := range m.Graph.Nodes {
			if n.Is("Gather") {
				n.SetInput(0, kept)
			}
		}
	}
	w.Init = onnx.FloatTensor(onnx.Float64, values, w.Init.Dims()...)
	w.Init.Proto.Name = &w.Name
	return ortest.Run(t, m, 0, inputs)["y"]
}

func apart(a, b []float64) float64 {
	most := 0.0
	for i := range a {
		most = math.Max(most, math.Abs(a[i]-b[i]))
	}
	if len(a) != len(b) {
		return math.Inf(1)
	}
	return most
}

// TestFirstValues: A is uniform in ±1/√in and a function of its name, as PEFT draws it;
// B is zero.
func TestFirstValues(t *testing.T) {
	first := func(name string) (a, b []float64) {
		m, types := ortest.Parse(t, "model ir=9 opset=20\ngraph g {\nin x float32[2,4]\ninit w float32[4,5] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]\ny = MatMul(x, w)\nout y float32\n}\n")
		l := found(t, m.Graph.Value("w"))
		p, err := adapter.Insert(m.Graph, types, l, name, 3, 3)
		if err != nil {
			t.Fatal(err)
		}
		if a, err = p.A.Init.Float64s(); err == nil {
			b, err = p.B.Init.Float64s()
		}
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	a, b := first("w")
	again, _ := first("w")
	other, _ := first("v")
	if !slices.Equal(a, again) || slices.Equal(a, other) {
		t.Error("the values are no function of the name")
	}
	if slices.Max(a) > 0.5 || slices.Min(a) < -0.5 || slices.Max(a) < 0.2 || slices.Min(a) > -0.2 {
		t.Errorf("A %v", a)
	}
	if slices.Max(b) != 0 || slices.Min(b) != 0 {
		t.Errorf("B %v", b)
	}
}
