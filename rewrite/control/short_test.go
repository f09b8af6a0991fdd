package control_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/runtime/ort"
)

// shortened parses a graph, erases its shapes, leads the first input of what makes r past the
// triggers, and shortens the edge.
func shortened(t *testing.T, text string, triggers ...string) *onnx.Model {
	t.Helper()
	m, _ := ortest.Parse(t, text)
	var err error
	if m.Graph.Nodes, err = control.Erase(m.Graph, m.Graph.Nodes, 0); err != nil {
		t.Fatal(err)
	}
	wait(t, m, "r", 0, triggers...)
	shorten(t, m)
	return m
}

// shorten shortens a graph's edges; what is not in the order that comes back runs before a node that is.
func shorten(t *testing.T, m *onnx.Model) {
	t.Helper()
	was := slices.Clone(m.Graph.Nodes)
	order, before := control.Shorten(m, was)
	if !slices.Equal(order, m.Graph.Nodes) {
		t.Errorf("the order is not the graph's")
	}
	var all []*onnx.Node
	for _, n := range order {
		all = append(append(all, before[n]...), n)
	}
	if all = slices.DeleteFunc(all, func(n *onnx.Node) bool { return !slices.Contains(was, n) }); !slices.Equal(all, was) {
		t.Errorf("%d nodes were not in their order any more, of %d", len(all), len(was))
	}
	m.Graph.NameNodes()
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

const large = "in x float32[40,30]\nin t float32[40,30]\nin w float32[30,30]\n"

// TestShortEdgesHold: where shapes are erased a trigger is told by its Shape, and at no level
// does the edge vanish, and lifted the graph is as it was; what a Transpose may move on to, an integer and a
// small value keep their Size.
func TestShortEdgesHold(t *testing.T) {
	for name, c := range map[string]struct {
		text, triggers string
		sizes          int
	}{
		"boolean":                        {"u = IsNaN(t)", "u", 0},
		"of a lone cast":                 {"k = Cast(t) {to=11}\nu = Exp(t)", "k", 1},
		"float":                          {"u = Exp(t)", "u", 0},
		"two of one":                     {"u = Exp(t)\nv = Neg(u)", "u v", 0},
		"half":                           {"u = Cast(t) {to=10}", "u", 0},
		"bfloat16":                       {"u = Cast(t) {to=16}", "u", 0},
		"of known rank":                  {"u = Gemm(t, w)", "u", 0},
		"product of what is turned":      {"e = Transpose(t) {perm=[1,0]}\nu = MatMul(t, e)", "u", 0},
		"sum with what is turned":        {"e = Transpose(w) {perm=[1,0]}\nf = MatMul(t, w)\ng = MatMul(t, e)\nu = Add(f, g)", "u", 0},
		"turned":                         {"u = Transpose(t) {perm=[1,0]}", "u", 1},
		"of what is turned":              {"e = Transpose(t) {perm=[1,0]}\nf = Exp(e)\nu = Abs(f)", "u", 1},
		"joined of what is turned":       {"e = Transpose(t) {perm=[1,0]}\nf = Transpose(t) {perm=[1,0]}\nu = Concat(e, f) {axis=0}", "u", 1},
		"integer":                        {"u = Cast(t) {to=7}", "u", 1},
		"small":                          {"one = Unsqueeze(t, a)\nu = ReduceSum(one) {keepdims=0}", "u", 1},
		"one that has a Size, and a new": {"e = Transpose(t) {perm=[1,0]}\nu = MatMul(t, e)", "e u", 1},
	} {
		t.Run(name, func(t *testing.T) {
			text := "model ir=10 opset=17\ngraph g {\n" + large + "init a int64[1] = [0]\n" + c.text + "\nr = Neg(x)\no = Cast(u) {to=11}\no2 = Neg(o)\nout r float32[40,30]\nout o2 float64\n}\n"
			was, _ := ortest.Parse(t, text)
			m := shortened(t, text, strings.Fields(c.triggers)...)
			sizes := 0
			for _, n := range m.Graph.Nodes {
				if n.Is("Size") && n.Inputs[0].Producer != nil { // one is of the input: what erases shapes begins there
					sizes++
				}
			}
			if sizes != c.sizes {
				t.Errorf("%d triggers have a Size, want %d, in\n%s", sizes, c.sizes, m.Text())
			}
			waitsFor(t, m, "r", strings.Fields(c.triggers))
			in := ortest.RandomInputs(was)
			if want, got := ortest.Run(t, was, 1, in), ortest.Run(t, m, 1, in); !reflect.DeepEqual(want, got) {
				t.Error("other numbers")
			}
			control.Lift(m.Graph)
			was.Graph.RemoveDead() // what is only waited for
			if got, want := operators(m), operators(was); !slices.Equal(got, want) {
				t.Errorf("lifted: %q, want %q", got, want)
			}
		})
	}
}

// TestShapesMove: the claims for which a trigger keeps its Size. ONNX Runtime takes the Shape of what a
// Transpose made, or of what was made of that, from what the Transpose reads, folds one of known extents, and
// removes a Cast before one.
func TestShapesMove(t *testing.T) {
	for name, text := range map[string]string{
		"turned":            "h = Unsqueeze(t, empty)\nu = Transpose(h) {perm=[1,0]}",
		"of what is turned": "h = Unsqueeze(t, empty)\ne = Transpose(h) {perm=[1,0]}\nu = Exp(e)\nback = Transpose(u) {perm=[1,0]}\ny = Abs(back)\nout y float32[40,30]",
		"known":             "u = Exp(t)",
		"of a lone cast":    "h = Unsqueeze(t, empty)\nu = Cast(h) {to=11}",
	} {
		m, _ := ortest.Parse(t, "model ir=10 opset=17\ngraph g {\n"+large+"init a int64[1] = [0]\ns = Size(x)\nrow = Unsqueeze(s, a)\nnone = Slice(row, a, a, a)\n"+
			"nz = NonZero(none)\nempty = Squeeze(nz, a)\n"+text+"\nshape = Shape(u) {start=0,end=0}\nr = Unsqueeze(x, shape)\nout r float32[40,30]\n}\n")
		m.Graph.Proto.ValueInfo = nil
		for _, n := range m.Graph.Nodes {
			for _, v := range n.Outputs {
				if !v.IsOutput() && name != "known" {
					v.Type = onnx.Type{DType: v.Type.DType}
				}
			}
		}
		d, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		if v := d.Graph.Value("u"); v != nil && v.Producer != nil && step.DependenciesOf(d.Graph).Needs(step.Any, d.Graph.Value("r").Producer, v.Producer) {
			t.Errorf("%s: r waits for u, in\n%s", name, d.Text())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestShortEdgesBesideOthers: an edge that waits for a part of another one keeps it.
func TestShortEdgesBesideOthers(t *testing.T) {
	m, _ := ortest.Parse(t, "model ir=10 opset=17\ngraph g {\n"+large+"u = Exp(t)\nr = Neg(x)\ns = Abs(x)\nout r float32[40,30]\nout s float32[40,30]\n}\n")
	var err error
	if m.Graph.Nodes, err = control.Erase(m.Graph, m.Graph.Nodes, 0); err != nil {
		t.Fatal(err)
	}
	wait(t, m, "r", 0, "u")
	for _, n := range m.Graph.Nodes {
		if n.Is("Size") && n.Inputs[0].Name == "u" {
			wait(t, m, "s", 0, n.Outputs[0].Name)
			break
		}
	}
	want := operators(m)
	shorten(t, m)
	if got := operators(m); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
