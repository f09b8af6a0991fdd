package onnx

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const editHead = "model ir=10 opset=20 opset[com.microsoft]=1\n"

// editBase is what the edits start from: c reads a and, inside its branches, b
// and the constant k; d is dead.
const editBase = `graph g {
  in    x float32[4]
  in    cond bool[]
  init  k float32[4] = [1.0, 2.0, 3.0, 4.0]
  init  unused float32[] = 1.0
  a = Relu(x) "relu"
  b = Tanh(a) "tanh"
  c = If(cond) {then_branch=graph t {
    u = Add(b, k) "inner"
    out   u
  }, else_branch=graph e {
    v = If(cond) {then_branch=graph tt {
      w = Neg(b)
      out   w
    }, else_branch=graph ee {
      out   k
    }}
    out   v
  }} "if"
  d = Exp(b, b) "dead"
  y = Add(c, a) "sum"
  out   y float32[4]
  out   b
}
`

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(g *Graph)
		// replace lists pairs of lines: what of editBase becomes what.
		replace []string
	}{
		{"nothing", func(g *Graph) {}, nil},
		{"add input", func(g *Graph) { g.AddInput("x", TensorOf(Int64, nil)) },
			[]string{"  in    cond bool[]\n", "  in    cond bool[]\n  in    x.1 int64[]\n"}},
		{"add and remove input", func(g *Graph) { g.RemoveInput(g.AddInput("z", TensorOf(Int64, nil))) }, nil},
		{"add output", func(g *Graph) { g.AddOutput(g.Value("a")) },
			[]string{"  out   b\n", "  out   b\n  out   a\n"}},
		{"set output", func(g *Graph) { g.SetOutput(1, g.Value("x")) },
			[]string{"  out   b\n", "  out   x float32[4]\n"}},
		{"remove output", func(g *Graph) { g.RemoveOutput(0) },
			[]string{"  out   y float32[4]\n", ""}},
		{"remove initializer", func(g *Graph) { g.RemoveInitializer(g.Value("unused")) },
			[]string{"  init  unused float32[] = 1.0\n", ""}},
		{"lift initializer", func(g *Graph) { g.LiftInitializers([]*Value{g.Value("k")}) },
			[]string{"  in    cond bool[]\n  init  k float32[4] = [1.0, 2.0, 3.0, 4.0]\n", "  in    cond bool[]\n  in    k float32[4]\n"}},
		{"same constant twice", func(g *Graph) {
			t := Int64Tensor([]int64{7})
			g.AddConstant("n", t)
			g.AddConstant("n", t)
		}, []string{"  init  unused float32[] = 1.0\n", "  init  unused float32[] = 1.0\n  init  n int64[] = 7\n  init  n.1 int64[] = 7\n"}},
		{"names inside subgraphs are taken", func(g *Graph) { g.AddConstant("w", Int64Tensor([]int64{7})) },
			[]string{"  init  unused float32[] = 1.0\n", "  init  unused float32[] = 1.0\n  init  w.1 int64[] = 7\n"}},
		{"new node", func(g *Graph) {
			g.InsertBefore(g.Nodes[4], g.NewNode("com.microsoft", "Gelu", "relu", []*Value{g.Value("c"), nil}, []string{"c", ""}, IntAttr("i", 1)))
		}, []string{"  y = Add", "  c.1, _ = com.microsoft.Gelu(c) {i=1} \"relu.1\"\n  y = Add"}},
		{"set input", func(g *Graph) { g.Nodes[4].SetInput(2, g.Value("x")) },
			[]string{"Add(c, a)", "Add(c, a, x)"}},
		{"trim inputs", func(g *Graph) {
			g.Nodes[4].SetInputs(nil, g.Value("x"), nil, nil)
			g.TrimInputs()
		}, []string{"Add(c, a)", "Add(_, x)"}},
		{"set inputs", func(g *Graph) { g.Nodes[4].SetInputs(nil, g.Value("x")) },
			[]string{"Add(c, a)", "Add(_, x)"}},
		{"replace uses", func(g *Graph) { g.ReplaceUses(g.Value("b"), g.Value("a")) },
			[]string{"u = Add(b, k)", "u = Add(a, k)", "w = Neg(b)", "w = Neg(a)", "Exp(b, b)", "Exp(a, a)"}},
		{"replace uses of a captured constant", func(g *Graph) { g.ReplaceUses(g.Value("k"), g.Value("b")) },
			[]string{"u = Add(b, k)", "u = Add(b, b)", "      out   k\n", "      out   b\n"}},
		{"rename", func(g *Graph) { g.Rename(g.Value("b"), "z") },
			[]string{"b = Tanh", "z = Tanh", "u = Add(b, k)", "u = Add(z, k)", "w = Neg(b)", "w = Neg(z)", "Exp(b, b)", "Exp(z, z)", "  out   b\n", "  out   z\n"}},
		{"take over", func(g *Graph) {
			n := g.NewNode("", "Sin", "sin", []*Value{g.Value("x")}, []string{"s"})
			g.InsertBefore(g.Nodes[0], n)
			g.TakeOver(g.Value("b"), n.Out(0))
		}, []string{"  a = Relu(x) \"relu\"\n  b = Tanh", "  b = Sin(x) \"sin\"\n  a = Relu(x) \"relu\"\n  b.old = Tanh"}},
		{"remove", func(g *Graph) { g.Remove(g.Nodes[3]) },
			[]string{"  d = Exp(b, b) \"dead\"\n", ""}},
		{"remove dead", func(g *Graph) { g.RemoveDead() },
			[]string{"  d = Exp(b, b) \"dead\"\n", "", "  init  unused float32[] = 1.0\n", ""}},
		{"remove a capturing node", func(g *Graph) {
			g.ReplaceUses(g.Value("c"), g.Value("a"))
			g.Remove(g.Nodes[2])
			g.RemoveInitializer(g.Value("k"))
		}, []string{editBase[strings.Index(editBase, "  c = If"):strings.Index(editBase, "  d = Exp")], "", "Add(c, a)", "Add(a, a)", "  init  k float32[4] = [1.0, 2.0, 3.0, 4.0]\n", ""}},
		{"batch", func(g *Graph) {
			ins, x := g.Insertions(), g.Value("x")
			make := func(name string) *Node { return g.NewNode("", "Abs", name, []*Value{x}, []string{name}) }
			ins.Before(g.Nodes[3], make("p1"), make("p2"))
			ins.After(g.Nodes[3], make("p4"))
			ins.Before(g.Nodes[3], make("p3"))
			ins.Apply()
			ins.Apply()
		}, []string{"  d = Exp(b, b) \"dead\"\n", "  p1 = Abs(x) \"p1\"\n  p2 = Abs(x) \"p2\"\n  p3 = Abs(x) \"p3\"\n  d = Exp(b, b) \"dead\"\n  p4 = Abs(x) \"p4\"\n"}},
		{"sort", func(g *Graph) {
			slices.Reverse(g.Nodes)
			if err := g.SortTopologically(); err != nil {
				panic(err)
			}
		}, []string{"  d = Exp(b, b) \"dead\"\n", "", "  c = If", "  d = Exp(b, b) \"dead\"\n  c = If"}},
		{"outputs of a node", func(g *Graph) {
			g.Nodes[3].DropOutput(0)
			g.Nodes[3].AddOutput(1, "extra")
		}, []string{"  d = Exp", "  _, extra = Exp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Parse(editHead + editBase)
			if err != nil {
				t.Fatal(err)
			}
			want := editHead + editBase
			for i := 0; i+1 < len(c.replace); i += 2 {
				if strings.Count(want, c.replace[i]) == 0 {
					t.Fatalf("the base has no %q", c.replace[i])
				}
				want = strings.Replace(want, c.replace[i], c.replace[i+1], 1)
			}
			c.edit(m.Graph)
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			if got := m.Text(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			assertTextRoundTrip(t, m)
		})
	}
}

// TestCloneNode clones a node that captures values; the clone's names are its
// own, what it reads is the same.
func TestCloneNode(t *testing.T) {
	m, err := Parse(editHead + editBase)
	if err != nil {
		t.Fatal(err)
	}
	g := m.Graph
	n := g.Nodes[2]
	c := g.CloneNode(n, n.Inputs, func(s string) string { return "remat/recompute/" + s })
	g.InsertBefore(g.Nodes[4], c)
	g.ReplaceUses(g.Value("b"), g.Value("a"))
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if c.Name() != "remat/recompute/if" || c.Out(0).Name != "remat/recompute/c" || len(c.Captures) != len(n.Captures) {
		t.Errorf("clone %s makes %v, captures %v", c.Name(), c.Outputs, c.Captures)
	}
	if text := m.Text(); strings.Count(text, "u = Add(a, k)") != 2 {
		t.Errorf("the clone's subgraph was not edited:\n%s", text)
	}
}

// TestCloneOf copies what computes a value: as a clone does whose outputs are that, and
// whose dead nodes and inputs are removed; the model stays as it was.
func TestCloneOf(t *testing.T) {
	for _, name := range []string{"a", "b", "c", "x", "k", "y"} {
		m, err := Parse(editHead + editBase)
		if err != nil {
			t.Fatal(err)
		}
		before := m.Text()
		part, err := m.CloneOf([]*Value{m.Graph.Value(name)})
		if err != nil {
			t.Fatal(err)
		}
		if err := part.Check(); err != nil {
			t.Fatal(err)
		}
		if m.Text() != before {
			t.Errorf("%s: the model has changed", name)
		}
		for i := len(m.Graph.Outputs) - 1; i >= 0; i-- {
			m.Graph.RemoveOutput(i)
		}
		m.Graph.AddOutput(m.Graph.Value(name))
		m.Graph.RemoveDead()
		for _, v := range slices.Clone(m.Graph.Inputs) {
			if v.Dead() {
				m.Graph.RemoveInput(v)
			}
		}
		if got, want := part.Text(), m.Text(); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

// TestMisuse expects a panic, which names the value, for edits that would leave
// the graph inconsistent.
func TestMisuse(t *testing.T) {
	for name, edit := range map[string]func(g *Graph){
		"x":       func(g *Graph) { g.RemoveInput(g.Value("x")) },
		"k":       func(g *Graph) { g.RemoveInitializer(g.Value("k")) },
		"b":       func(g *Graph) { g.Remove(g.Nodes[1]) },
		"a":       func(g *Graph) { g.Rename(g.Value("b"), "a") },
		"c":       func(g *Graph) { g.Nodes[2].DropOutput(0) },
		"sum":     func(g *Graph) { n := g.Nodes[4]; g.Nodes = g.Nodes[:4]; g.InsertBefore(n) },
		"next to": func(g *Graph) { e := g.Insertions(); e.Before(&Node{}, g.Nodes[0]); e.Apply() },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Parse(editHead + editBase)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if p, ok := recover().(string); !ok || !strings.Contains(p, name) {
					t.Errorf("panicked with %q, want one that names %s", p, name)
				}
			}()
			edit(m.Graph)
		})
	}
}

func TestCycle(t *testing.T) {
	m, err := Parse(editHead + "graph g {\nin x float32[]\na = Add(x, b) \"first\"\nb = Relu(a) \"second\"\nc = Relu(x)\nout c\n}")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Graph.SortTopologically(); err == nil || !strings.Contains(err.Error(), `"first"`) {
		t.Errorf("got %v", err)
	}
	if len(m.Graph.Nodes) != 3 {
		t.Error("a failed sort changed the list")
	}
}

// BenchmarkManyReaders takes the readers of one value off one by one.
func BenchmarkManyReaders(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("readers=%d", n), func(b *testing.B) {
			for b.Loop() {
				g := NewModel("g", 20).Graph
				x, y := g.AddInput("x", Type{}), g.AddInput("y", Type{})
				for range n {
					g.Append(g.NewNode("", "Relu", "n", []*Value{x}, []string{"v"}))
				}
				g.ReplaceUses(x, y)
				g.Remove(g.Nodes...)
				if len(g.Nodes)+len(y.Uses()) != 0 {
					b.Fatal("something is left")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

// TestCloneIsApart: whatever is done to a clone, the original stays as it was.
func TestCloneIsApart(t *testing.T) {
	m, err := Parse(editHead + strings.Replace(editBase, "  d = ", "  p = Transpose(x) {perm=[0]}\n  q = Softmax(p) {axis=0}\n  s = Constant() {value=tensor(float32[1] = [2.0])}\n  d = ", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		n.SetMetadata("made", "by nobody")
	}
	before := m.Text()
	c, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if c.Text() != before {
		t.Errorf("the clone is\n%s, of\n%s", c.Text(), before)
	}
	g := c.Graph
	for i, n := range slices.Clone(g.Nodes) {
		n.SetMetadata("made", "by the test")
		n.SetMetadata("more", "too")
		n.SetName(fmt.Sprint("renamed", i))
		for _, a := range slices.Clone(n.Proto.Attribute) {
			if a.T != nil {
				a.T.Name = new("edited")
			}
		}
		if n.Has("axis") {
			n.SetAttr(IntAttr("axis", -1))
			n.SetAttr(IntAttr("keepdims", 0))
		}
		n.RemoveAttr("perm")
	}
	for name, v := range g.values {
		g.Rename(v, name+".of the clone")
	}
	n := g.Nodes[0]
	g.ReplaceUses(n.Outputs[0], n.Inputs[0])
	g.Remove(n)
	if c.Text() == before {
		t.Error("the clone did not change")
	}
	if after := m.Text(); after != before {
		t.Errorf("the original is\n%s\nwas\n%s", after, before)
	}
}
