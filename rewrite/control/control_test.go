package control_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/runtime/ort"
)

// wait leads input k of the node that makes a value past triggers, and lowers.
func wait(t *testing.T, m *onnx.Model, reader string, k int, triggers ...string) {
	t.Helper()
	b := build.New(m.Graph, nil, "test")
	n := m.Graph.Value(reader).Producer
	var values []*onnx.Value
	for _, name := range triggers {
		values = append(values, m.Graph.Value(name))
	}
	n.SetInput(k, control.Wait(b, n.Inputs[k], values...))
	i := slices.Index(m.Graph.Nodes, n)
	var err error
	if m.Graph.Nodes, err = control.Lower(m.Graph, slices.Insert(m.Graph.Nodes, i, b.Take()...)); err != nil {
		t.Fatal(err)
	}
	m.Graph.NameNodes()
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

// An edge is a graph in which the reader is to wait.
type edge struct{ name, text, reader, triggers string }

// edges are claims of lower.go.
var edges = []edge{
	{"float", "in x float32[2,3]\nin t float32[4]\nu = Exp(t)\nr = Neg(x)\nout u float32[4]", "r", "u"},
	{"constant", "init x float32[2,3] = [1,2,3,4,5,6]\nin t float32[4]\nu = Exp(t)\nr = Neg(x)\nout u float32[4]", "r", "u"},
	{"several", "in x float32[2,3]\nin t float32[4]\nu = Exp(t)\nv = Abs(t)\nr = Neg(x)\nout u float32[4]\nout v float32[4]", "r", "u v"},
	{"scalar trigger", "in x float32[2,3]\nin t float32[]\nu = Exp(t)\nr = Neg(x)\nout u float32[]", "r", "u"},
	{"half trigger", "in x float32[2,3]\nin t float32[4]\nu = Cast(t) {to=10}\nr = Neg(x)\nout u float16[4]", "r", "u"},
	{"bfloat16 trigger", "in x float32[2,3]\nin t float32[4]\nu = Cast(t) {to=16}\nr = Neg(x)\nout u bfloat16[4]", "r", "u"},
	{"half scalar", "in x float32[2,3]\nin t float32[]\nu = Cast(t) {to=10}\nr = Neg(x)\nout u float16[]", "r", "u"},
	{"boolean trigger", "in x float32[2,3]\nin t float32[4]\nu = IsNaN(t)\nr = Neg(x)\nout u bool[4]", "r", "u"},
	{"after a view", "in x0 float32[6]\ninit s int64[2] = [2,3]\nin t float32[4]\nu = Exp(t)\nx = Reshape(x0, s)\nr = Neg(x)\nout u float32[4]", "r", "u"},
	{"between views", "in x0 float32[6]\ninit s int64[2] = [2,3]\ninit q int64[1] = [-1]\nin t float32[4]\nu = Exp(t)\nx = Reshape(x0, s)\nr = Reshape(x, q)\nout u float32[4]", "r", "u"},
	{"before a view", "in x float32[2,3]\ninit q int64[1] = [-1]\nin t float32[4]\nu = Exp(t)\nr = Reshape(x, q)\nout u float32[4]", "r", "u"},
	{"trigger of a view", "in x float32[2,3]\ninit q int64[1] = [-1]\nin t float32[2,2]\ne = Exp(t)\nu = Reshape(e, q)\nr = Neg(x)\nout u float32[4]", "r", "u"},
	{"counter", "in x int64[]\nin t float32[4]\nu = Exp(t)\nr = Neg(x)\nout u float32[4]", "r", "u"},
	{"counter before a view", "in x int64[]\ninit q int64[1] = [0]\nin t float32[4]\nu = Exp(t)\nr = Unsqueeze(x, q)\nout u float32[4]", "r", "u"},
	{"extent of a range", "in y float32[5,3]\ninit z int64[] = 0\ninit o int64[] = 1\ns = Shape(y)\nx = Gather(s, z)\nin t float32[4]\nu = Exp(t)\nr = Range(x, z, o)\nout u float32[4]", "r", "u"},
	{"transposed", "in x0 float32[3,2]\nin t float32[4]\nu = Exp(t)\nx = Transpose(x0) {perm=[1,0]}\nr = Transpose(x) {perm=[1,0]}\nout u float32[4]", "r", "u"},
}

// TestEdgesHold: at no level does an edge vanish: what makes the triggers still runs
// before the reader, by data, and results do not change; in the device's stream neither,
// nor along axes.
func TestEdgesHold(t *testing.T) {
	for _, e := range edges {
		t.Run(e.name, func(t *testing.T) { holds(t, e) })
		t.Run(e.name+" in the stream", func(t *testing.T) { holds(t, e, stream) })
		t.Run(e.name+" along axes", func(t *testing.T) { holds(t, e, giveAxes) })
		t.Run(e.name+" along axes of the stream", func(t *testing.T) { holds(t, e, stream, giveAxes) })
	}
}

func holds(t *testing.T, e edge, forms ...func(*testing.T, *onnx.Model)) {
	text := "model ir=10 opset=17\ngraph g {\n" + e.text + "\n}\n"
	was, _ := ortest.Parse(t, text)
	m, _ := ortest.Parse(t, text)
	for _, g := range []*onnx.Graph{was.Graph, m.Graph} {
		g.AddOutput(g.Value(e.reader))
	}
	triggers := strings.Fields(e.triggers)
	wait(t, m, e.reader, 0, triggers...)
	for _, form := range forms {
		form(t, m)
	}
	waitsFor(t, m, e.reader, triggers)
	in := ortest.RandomInputs(was)
	if want, got := ortest.Run(t, was, 1, in), ortest.Run(t, m, 1, in); !reflect.DeepEqual(want, got) {
		t.Errorf("gives %v, want %v", got, want)
	}
}

// waitsFor checks that at every level what makes a value runs after what makes the triggers, by data.
func waitsFor(t *testing.T, m *onnx.Model, reader string, triggers []string) {
	t.Helper()
	for _, level := range []int{0, 1, 99} {
		d, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		deps := step.DependenciesOf(d.Graph)
		for _, u := range triggers {
			if v := d.Graph.Value(u); v == nil || !deps.Needs(step.Any, d.Graph.Value(reader).Producer, v.Producer) {
				t.Errorf("level %d: %s does not wait for %s, in\n%s", level, reader, u, d.Text())
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// stream brings the edges of a graph into the stream, and checks that no Size is left
// but that of the input.
func stream(t *testing.T, m *onnx.Model) {
	t.Helper()
	if streamed, err := control.Stream(m, m.Graph.Inputs[0]); err != nil || !streamed {
		t.Fatalf("streamed %t, %v", streamed, err)
	}
	m.Graph.NameNodes()
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("Size") && n.Inputs[0] != m.Graph.Inputs[0] && control.Is(n) {
			t.Errorf("left the Size of %s", n.Inputs[0].Name)
		}
	}
}

// giveAxes gives the views of a graph axes, and checks that none is left without.
func giveAxes(t *testing.T, m *onnx.Model) {
	t.Helper()
	had := slices.Clone(operators(m))
	given, err := control.GiveAxes(m.Graph)
	if err != nil || given != slices.Contains(had, "Unsqueeze") && len(operators(m)) > len(had) {
		t.Fatalf("given %t, %v, of %q", given, err, had)
	}
	m.Graph.NameNodes()
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	g := m.Graph
	for _, n := range g.Nodes {
		if !n.Is("Unsqueeze", "Squeeze") || n.Inputs[1].IsConstant() {
			continue
		}
		c := n.Inputs[1].Producer
		if !c.Is("Concat") || !c.Inputs[0].IsConstant() {
			t.Errorf("%s is along no axis, in\n%s", n.Label(), m.Text())
		}
	}
}

// TestEdgesBindNoOrder: where a trigger is made right before the reader and long after
// what the reader reads, places in the file can say so. (If an edge asked for what is
// read before it asked for the trigger, they could not, and each such edge would take
// another one.)
func TestEdgesBindNoOrder(t *testing.T) {
	for _, x := range []string{"Exp(x0)", "Reshape(x0, q)", "Transpose(x0) {perm=[1,0]}"} {
		m, _ := ortest.Parse(t, "model ir=10 opset=17\ngraph g {\nin x0 float32[2,3]\nin t float32[4]\ninit q int64[1] = [-1]\n"+
			"x = "+x+"\ne = Exp(t)\nu = Abs(e)\nr = Neg(x)\nout u float32[4]\n}\n")
		m.Graph.AddOutput(m.Graph.Value("r"))
		wait(t, m, "r", 0, "u")
		g := step.Structure(m.Graph)
		order := make([]int, len(g.Nodes))
		for i := range order {
			order[i] = i
		}
		if early := ortmodel.EarlyNodes(g, order); len(early) > 0 {
			t.Errorf("x = %s: %d early nodes, in\n%s", x, len(early), m.Text())
		}
	}
}

// graph is the claim's, which returns the reader's value.
func (e *edge) graph(t *testing.T) *onnx.Model {
	t.Helper()
	m, _ := ortest.Parse(t, "model ir=10 opset=17\ngraph g {\n"+e.text+"\n}\n")
	m.Graph.AddOutput(m.Graph.Value(e.reader))
	m.Graph.NameNodes()
	return m
}

// TestLift: a graph whose edges are taken out is the one without them, but for edges
// of passes that are to stay.
func TestLift(t *testing.T) {
	for _, e := range edges {
		was, m := e.graph(t), e.graph(t)
		x := was.Graph.Value(e.reader).Producer.Inputs[0].Name
		wait(t, m, e.reader, 0, strings.Fields(e.triggers)...)
		if n := control.Lift(m.Graph, "test"); n != 0 {
			t.Errorf("%s: %d edges lifted that were to stay", e.name, n)
		}
		plain := operators(m)
		giveAxes(t, m)
		if n := control.Lift(m.Graph, "test"); n != 0 {
			t.Errorf("%s: %d edges lifted from their axes that were to stay", e.name, n)
		}
		if got := operators(m); !slices.Equal(got, plain) {
			t.Errorf("%s: left its axes as %q, was %q", e.name, got, plain)
		}
		views := 1
		if control.Reshaped(was.Graph.Value(x)) {
			views = 2
		}
		bySize := operators(m)
		stream(t, m)
		giveAxes(t, m)
		if n := control.Lift(m.Graph, "test"); n != 0 {
			t.Errorf("%s: %d edges lifted from the stream that were to stay", e.name, n)
		}
		if got := operators(m); !slices.Equal(got, bySize) {
			t.Errorf("%s: left the stream as %q, was %q", e.name, got, bySize)
		}
		if n := control.Lift(m.Graph); n != views {
			t.Errorf("%s: %d views lifted, want %d", e.name, n, views)
		}
		if got, want := operators(m), operators(was); !slices.Equal(got, want) {
			t.Errorf("%s: left %q, want %q", e.name, got, want)
		}
	}
}

// TestLiftOfAgain: an edge's view that a plan runs again is of that plan's making by then, and is taken out all the same,
// unless edges of some passes are to stay: it does not say which one asked for it.
func TestLiftOfAgain(t *testing.T) {
	for _, e := range edges {
		was, m := e.graph(t), e.graph(t)
		wait(t, m, e.reader, 0, strings.Fields(e.triggers)...)
		view := m.Graph.Value(e.reader).Producer.Inputs[0].Producer
		view.SetOrigin(onnx.Origin{Pass: onnx.RecomputePass, Of: view.Label()})
		if control.Lift(m.Graph, "test"); view.Outputs[0].Dead() {
			t.Errorf("%s: lifted, and was to stay", e.name)
		}
		control.Lift(m.Graph)
		if got, want := operators(m), operators(was); !slices.Equal(got, want) {
			t.Errorf("%s: left %q, want %q", e.name, got, want)
		}
	}
}

// TestLiftOfFolded: an edge whose token another tool computed ahead, as the size of a value of known extents, holds
// nothing any more, and is taken out too.
func TestLiftOfFolded(t *testing.T) {
	for _, e := range edges {
		was, m := e.graph(t), e.graph(t)
		wait(t, m, e.reader, 0, strings.Fields(e.triggers)...)
		for _, n := range slices.Clone(m.Graph.Nodes) {
			if v := n.Out(0); control.Is(n) && n.Is("Slice") && v.Type.Empty() {
				m.Graph.ReplaceUses(v, m.Graph.AddConstant(v.Name+".folded", onnx.NewTensor(onnx.Int64, []int64{0}, nil)))
			}
		}
		m.Graph.RemoveDead()
		control.Lift(m.Graph)
		if got, want := operators(m), operators(was); !slices.Equal(got, want) {
			t.Errorf("%s: left %q, want %q", e.name, got, want)
		}
	}
}

// TestLiftDoubts: what a file says of its nodes' origin is not believed of operators
// that no edge consists of.
func TestLiftDoubts(t *testing.T) {
	m, _ := ortest.Parse(t, `model ir=10 opset=17
graph g {
  in x float32[2,3]
  init two float32[] = 2.0
  init axes int64[1] = [0]
  y = Mul(x, two)
  z = Unsqueeze(y, axes)
  out z float32[1,2,3]
}
`)
	for _, n := range m.Graph.Nodes {
		n.SetOrigin(onnx.Origin{Pass: control.Pass, Step: "recompute"})
	}
	if n := control.Lift(m.Graph); n != 0 || len(m.Graph.Nodes) != 2 {
		t.Errorf("%d nodes lifted that compute something", n)
	}
}

// TestAxesDoubts: what is along an axis and not back computes the same once edges are lifted.
func TestAxesDoubts(t *testing.T) {
	for name, text := range map[string]string{
		"an axis that stays":   "v = Unsqueeze(x, axis)\ny = Abs(v)\nout y float32[1,1,3]",
		"its extents are read": "v = Unsqueeze(x, axis)\ny = Shape(v)\nout y int64[3]",
		"another goes":         "v = Unsqueeze(x, axis)\ny = Squeeze(v, first)\nout y float32[1,3]",
		"another comes":        "v = Unsqueeze(x, first)\ny = Squeeze(v, axis)\nout y float32[1,3]",
		"an axis that goes":    "y = Squeeze(x, axis)\nout y float32[3]",
	} {
		text = "model ir=10 opset=17\ngraph g {\nin x float32[1,3]\nin t float32[4]\ninit first int64[1] = [0]\n" +
			"size = Size(t)\nrow = Unsqueeze(size, first)\nnone = Slice(row, first, first, first)\naxis = Concat(first, none) {axis=0}\n" + text + "\n}\n"
		was, _ := ortest.Parse(t, text)
		m, _ := ortest.Parse(t, text)
		for _, n := range m.Graph.Nodes {
			n.SetOrigin(onnx.Origin{Pass: control.Pass, Step: "none"})
		}
		control.Lift(m.Graph)
		in := ortest.RandomInputs(was)
		if want, got := ortest.Run(t, was, 1, in), ortest.Run(t, m, 1, in); !reflect.DeepEqual(want, got) {
			t.Errorf("%s: gives %v, want %v, of\n%s", name, got, want, m.Text())
		}
	}
}

func operators(m *onnx.Model) []string {
	var list []string
	for _, n := range m.Graph.Nodes {
		list = append(list, n.OpType())
	}
	return list
}
