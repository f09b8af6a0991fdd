package step

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
)

// translated adds a whole graph: inputs, nodes, outputs.
func translated(g *onnx.Graph, o Options) *Translation {
	t := Translate(g, o)
	for _, v := range g.Inputs {
		t.Add(v)
	}
	for _, n := range g.Nodes {
		t.AddNode(n)
	}
	for _, v := range g.Outputs {
		t.Add(v)
	}
	return t
}

// value is what a translation has of a value.
func (t *Translation) value(g *onnx.Graph, name string) ortmodel.Value {
	return t.Graph.Values[t.Index[g.Value(name)]]
}

const mixed = `in x float32[b,4]
in y float32[2,4]
in i uint8[2,4]
init w float32[4] = [1, 2, 3, 4]
c = Constant() {value_float=2.0}
h = Mul(x, c)
p = Add(h, w)
q = Softmax(y) {axis=0}
r = Tanh(q)
s = Reshape(y, to)
init to int64[1] = [8]
t = Cast(i) {to=9}
u = ReduceSum(y) {keepdims=0}
out p float32[b,4]
out r float32[2,4]
out s float32[8]
out t bool[2,4]
out u float32[]
`

func TestTranslate(t *testing.T) {
	g := typed(t, mixed)
	tr := translated(g, Options{Bound: map[string]bool{"r": true}})
	for name, want := range map[string]ortmodel.Kind{
		"x": ortmodel.Feed, "w": ortmodel.Constant, "c": ortmodel.Constant, "h": ortmodel.Inner, "r": ortmodel.Bound, "s": ortmodel.Output,
	} {
		if got := tr.value(g, name).Kind; got != want {
			t.Errorf("%s is of kind %d, want %d", name, got, want)
		}
	}
	if v := tr.value(g, "q"); v.Bytes != 32 || v.Scalar || v.Class == ortmodel.None {
		t.Errorf("q: %+v", v)
	}
	if v := tr.value(g, "u"); v.Bytes != 4 || !v.Scalar {
		t.Errorf("u: %+v", v)
	}
	if tr.value(g, "i").Class != tr.value(g, "t").Class || tr.value(g, "q").Class == tr.value(g, "t").Class || tr.value(g, "s").Class == tr.value(g, "y").Class {
		t.Error("classes are not equal shapes with equal element sizes")
	}
	var unsized []string
	for _, v := range tr.Unsized {
		unsized = append(unsized, v.Name)
	}
	if got := strings.Join(unsized, " "); got != "x h p" {
		t.Errorf("unsized: %s", got)
	}
	node := func(tr *Translation, name string) ortmodel.Node {
		return tr.Graph.Nodes[slices.Index(tr.Nodes, g.Value(name).Producer)]
	}
	if n := node(tr, "c"); n.Outputs[0] != ortmodel.None {
		t.Error("a Constant is made in the step")
	}
	if n := node(tr, "s"); len(n.Alias) != 1 {
		t.Errorf("Reshape: %+v", n)
	}
	if n := node(tr, "q"); len(n.Scratch) != 2 || len(n.Script) != 3 || len(n.InPlace) != 1 {
		t.Errorf("Softmax off the last axis: %+v", n)
	}
	gpu := translated(g, Options{On: CUDA})
	if a, b := node(tr, "t"), node(gpu, "t"); len(a.InPlace) != 1 || len(b.InPlace) != 0 {
		t.Errorf("Cast: in place %v on the CPU, %v on CUDA", a.InPlace, b.InPlace)
	}
	if f := Translate(g, Options{On: CUDA}).AddNode(g.Value("u").Producer); !f.Known || !f.Sized {
		t.Errorf("a sum over all on CUDA: %+v", f)
	}
}

// TestClassesByName: free extents of one name are equal, and of no number; what
// ONNX Runtime does not know when it plans has no class.
func TestClassesByName(t *testing.T) {
	g := typed(t, "in x float32[b,4]\nin y float32[b,4]\nin z float32[2,4]\nh = Tanh(x)\nout h float32[b,4]\n")
	two := func(v *onnx.Value) onnx.Type { return onnx.TensorOf(v.Type.DType, onnx.StaticShape(2, 4)) }
	tr := translated(g, Options{Type: two})
	if v := tr.value(g, "h"); v.Bytes != 32 || v.Class != tr.value(g, "z").Class {
		t.Errorf("h: %+v", v)
	}
	planned := map[*onnx.Value]onnx.Type{}
	for _, name := range []string{"x", "y"} {
		planned[g.Value(name)] = g.Value(name).Type
	}
	planned[g.Value("h")] = onnx.Type{DType: onnx.Float32}
	tr = translated(g, Options{Type: two, Planned: planned})
	if x, y, z, h := tr.value(g, "x"), tr.value(g, "y"), tr.value(g, "z"), tr.value(g, "h"); x.Class != y.Class || x.Class == z.Class || h.Class != ortmodel.None || h.Bytes != 32 {
		t.Errorf("x %+v, y %+v, z %+v, h %+v", x, y, z, h)
	}
}

// TestStructure: orders need edges alone, those of Constant nodes too, which stand
// in the file.
func TestStructure(t *testing.T) {
	m := parse(t, "in x float32[4]\nc = Constant() {value_float=2.0}\nh = Mul(x, c)\ny = Add(h, _)\nout y float32[4]\n")
	g := Structure(m.Graph)
	var edges []string
	for _, n := range g.Nodes {
		edges = append(edges, fmt.Sprint(n.Inputs, n.Outputs))
	}
	if got, want := strings.Join(edges, " "), "[] [0] [1 0] [2] [2 -1] [3]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if order := ortmodel.Order(g); !slices.Equal(order, []int{0, 1, 2}) {
		t.Errorf("order %v", order)
	}
}

// TestWidened: what a node without a kernel in float16 reads is held in float32 on the CPU;
// a device has its kernels, and a graph that was saved has the casts.
func TestWidened(t *testing.T) {
	g := typed(t, "in x float16[8]\nh = Mul(x, x)\nk = Exp(h)\nv = Reshape(k, to)\ninit to int64[2] = [2, 4]\nw = Transpose(v)\nout w float16[4,2]\n")
	tr := translated(g, Options{Opset: 21})
	for name, want := range map[string]int64{"x": 16, "h": 32, "k": 16, "v": 16, "w": 16} {
		if got := tr.value(g, name).Bytes; got != want {
			t.Errorf("%s takes %d bytes, want %d", name, got, want)
		}
	}
	for _, o := range []Options{{}, {Opset: 21, On: CUDA}} {
		if got := translated(g, o).value(g, "h").Bytes; got != 16 {
			t.Errorf("%+v: h takes %d bytes, want 16", o, got)
		}
	}
}
