package step

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
)

// waiting: the loss is computed from h, in a shape that is read off y, and waits
// for late.
const waiting = `in x float32[4]
in y float32[4]
in z float32[4]
init all int64[1] = [-1]
init zero int64[1] = [0]
h = Tanh(x)
late = Exp(z)
flat = Reshape(late, all)
none = Slice(flat, zero, zero)
no = Cast(none) {to=7}
extents = Shape(y)
to = Concat(extents, no) {axis=0}
barred = Reshape(h, to)
loss = ReduceMean(barred) {keepdims=0}
more = Neg(loss)
out loss float32[]
out more float32[]
`

// typed returns the graph with its types inferred.
func typed(t *testing.T, text string) *onnx.Graph {
	t.Helper()
	m := parse(t, text)
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	return m.Graph
}

func names(s *Slice) string {
	var list []string
	for _, n := range s.Nodes() {
		list = append(list, n.Outputs[0].Name)
	}
	return strings.Join(list, " ")
}

func TestBackward(t *testing.T) {
	g := typed(t, waiting)
	d := DependenciesOf(g)
	for along, want := range map[Dependency]string{
		Data:         "h barred loss",
		Data | Shape: "h extents to barred loss",
		Any:          "h late flat none no extents to barred loss",
	} {
		s := d.Backward(along, g.Value("loss"))
		if got := names(s); got != want || s.Len() != len(strings.Fields(want)) {
			t.Errorf("along %b: %s, want %s", along, got, want)
		}
	}
	inputs := func(along Dependency) (list []string) {
		for v := range d.Backward(along, g.Value("loss")).Reads() {
			if v.IsInput() {
				list = append(list, v.Name)
			}
		}
		slices.Sort(list)
		return list
	}
	if got := fmt.Sprint(inputs(Data), inputs(Data|Shape), inputs(Any)); got != "[x] [x y] [x y z]" {
		t.Errorf("inputs %s", got)
	}
	if s := d.Backward(Any, g.Value("x"), nil); s.Len() != 0 {
		t.Errorf("an input depends on %s", names(s))
	}
	all, some := d.Backward(Any, g.Value("more")), d.Backward(Data, g.Value("loss"))
	if got := all.Outside(some); got != all.Len()-some.Len() {
		t.Errorf("%d nodes outside", got)
	}
	var none *Slice
	if none.Has(g.Nodes[0]) || some.Outside(none) != some.Len() {
		t.Error("a nil slice is not empty")
	}
}

func TestForward(t *testing.T) {
	g := typed(t, waiting)
	d := DependenciesOf(g)
	for _, c := range []struct {
		along      Dependency
		from, want string
	}{
		{Data, "z", "late flat none"},
		{Any, "z", "late flat none no to barred loss more"},
		{Data, "y", ""},
		{Data | Shape, "y", "extents to barred loss more"},
		{Data, "x", "h barred loss more"},
		{Any, "more", ""},
	} {
		if got := names(d.Forward(c.along, g.Value(c.from))); got != c.want {
			t.Errorf("after %s along %b: %s, want %s", c.from, c.along, got, c.want)
		}
	}
}

// TestCaptured: what a subgraph reads from outside, its node depends on.
func TestCaptured(t *testing.T) {
	g := typed(t, `in x float32[4]
in c bool[]
h = Tanh(x)
y = If(c) {then_branch=graph a {
a = Neg(h)
out a float32[4]
}, else_branch=graph b {
b = Exp(h)
out b float32[4]
}}
out y float32[4]
`)
	d := DependenciesOf(g)
	if got := names(d.Backward(Data, g.Value("y"))); got != "h y" {
		t.Errorf("backward: %s", got)
	}
	if got := names(d.Forward(Data, g.Value("x"))); got != "h y" {
		t.Errorf("forward: %s", got)
	}
}

// TestSlicesAgree: on random graphs forward and backward slices and Needs say the
// same, and that is what a search of each pair's paths finds.
func TestSlicesAgree(t *testing.T) {
	for seed := range uint64(20) {
		g := random(seed)
		d := DependenciesOf(g)
		for _, a := range g.Nodes {
			for _, along := range []Dependency{Data, Shape, Data | Shape, Any} {
				back := d.Backward(along, a.Outputs...)
				for _, b := range g.Nodes {
					want := a == b || reaches(a, b, along)
					if got := back.Has(b); got != want {
						t.Fatalf("seed %d: %s depends on %s along %b: %v", seed, a.Label(), b.Label(), along, got)
					}
					if got := d.Needs(along, a, b); got != want {
						t.Fatalf("seed %d: %s needs %s along %b: %v", seed, a.Label(), b.Label(), along, got)
					}
					if got := d.Forward(along, b.Outputs...).Has(a); got != (want && a != b) {
						t.Fatalf("seed %d: %s follows %s along %b: %v", seed, a.Label(), b.Label(), along, got)
					}
				}
			}
		}
	}
}

// reaches is the definition, by recursion.
func reaches(a, b *onnx.Node, along Dependency) bool {
	for i, v := range a.Inputs {
		if v == nil || v.Producer == nil || DependencyOf(v, onnx.Use{Node: a, Index: i})&along == 0 {
			continue
		}
		if v.Producer == b || reaches(v.Producer, b, along) {
			return true
		}
	}
	return false
}

// random is a graph of 14 nodes, some of which wait or read shapes.
func random(seed uint64) *onnx.Graph {
	r := rand.New(rand.NewPCG(seed, 1))
	m := onnx.NewModel("random", 20)
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		panic(err)
	}
	b := build.New(m.Graph, types, "")
	four := onnx.TensorOf(onnx.Float32, onnx.StaticShape(4))
	floats := []*onnx.Value{m.Graph.AddInput("x", four), m.Graph.AddInput("y", four)}
	for len(b.Nodes) < 14 {
		v, w := floats[r.IntN(len(floats))], floats[r.IntN(len(floats))]
		switch r.IntN(4) {
		case 0:
			v = b.Op("Add", build.In(v, w))
		case 1:
			v = b.Op("Reshape", build.In(v, b.Op("Shape", build.In(w))))
		case 2:
			none := b.Op("Cast", build.In(b.Op("Slice", build.In(w, b.Ints(0), b.Ints(0)))), onnx.IntAttr("to", int64(onnx.Int64)))
			v = b.Op("Reshape", build.In(v, b.Op("Concat", build.In(b.Ints(4), none), onnx.IntAttr("axis", 0))))
		default:
			v = b.Op("Tanh", build.In(v))
		}
		floats = append(floats, v)
	}
	if b.Err() != nil {
		panic(b.Err())
	}
	b.Flush()
	return m.Graph
}
