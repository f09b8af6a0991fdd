package optim

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestGuardAgain adds a reader of P after the update was built, as
// recomputation does: Guard leads exactly that one, and then nothing more.
func TestGuardAgain(t *testing.T) {
	m, params := toyModel(t)
	res, err := Apply(m, params, Defaults(AdamW))
	if err != nil {
		t.Fatal(err)
	}
	if n, _, err := Guard(m, res.Next); n != 0 || err != nil {
		t.Fatalf("guarded graph: %d readers led, %v", n, err)
	}
	g := m.Graph
	clone := g.NewNode("", "Tanh", "clone", []*onnx.Value{params[0].Value}, []string{"clone"})
	clone.Out(0).Type = params[0].Value.Type
	g.Append(clone)
	g.AddOutput(clone.Out(0))
	if n, _, err := Guard(m, res.Next); n != 1 || err != nil {
		t.Fatalf("one new reader: %d led, %v", n, err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	writer := res.Next[params[0].Value].Producer
	if !step.DependenciesOf(g).Needs(step.Any, writer, clone) {
		t.Error("the update does not wait for the new reader")
	}
}

// TestGuardKeepsPlaces: a led update runs right after the reader it waits for, not
// at the end, where its gradient would live until then.
func TestGuardKeepsPlaces(t *testing.T) {
	m, params := toyModel(t)
	res, err := Apply(m, params, Defaults(SGD))
	if err != nil {
		t.Fatal(err)
	}
	g, p := m.Graph, params[0].Value
	x := p
	for _, name := range []string{"reader", "later"} {
		n := g.NewNode("", "Tanh", name, []*onnx.Value{x}, []string{name})
		x = n.Out(0)
		x.Type = p.Type
		g.Append(n)
		g.AddOutput(x)
	}
	if n, _, err := Guard(m, res.Next); n != 1 || err != nil {
		t.Fatalf("%d led, %v", n, err)
	}
	at := map[string]int{}
	for i, n := range g.Nodes {
		at[n.Label()] = i
	}
	if w := at[res.Next[p].Producer.Label()]; w < at["reader"] || w > at["later"] {
		t.Errorf("the update stands at %d, its last reader at %d, what follows that at %d", w, at["reader"], at["later"])
	}
}

// TestGuardRefuses: a reader that needs the next value can never come first.
func TestGuardRefuses(t *testing.T) {
	m, params := toyModel(t)
	res, err := Apply(m, params, Defaults(SGD))
	if err != nil {
		t.Fatal(err)
	}
	p := params[0].Value
	n := m.Graph.NewNode("", "Sub", "change", []*onnx.Value{res.Next[p], p}, []string{"change"})
	n.Out(0).Type = p.Type
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Out(0))
	if _, refused, err := Guard(m, res.Next); err != nil || !slices.Equal(refused, []Refusal{{"P", "change"}}) {
		t.Errorf("got %v, %v", refused, err)
	}
}

// TestGuardCrossed: a reader of each of two parameters needs the other's next value.
// One of the updates waits for its reader, the other cannot, and the graph has no cycle.
func TestGuardCrossed(t *testing.T) {
	m, params := toyModel(t)
	res, err := Apply(m, params, Defaults(SGD))
	if err != nil {
		t.Fatal(err)
	}
	p, bias := params[0].Value, params[1].Value
	for _, r := range [][]*onnx.Value{{p, res.Next[bias]}, {res.Next[p], bias}} { // [3,4] and [4]
		name := "reads " + r[0].Name
		n := m.Graph.NewNode("", "Mul", name, r, []string{name})
		n.Out(0).Type = p.Type
		m.Graph.Append(n)
		m.Graph.AddOutput(n.Out(0))
	}
	n, refused, err := Guard(m, res.Next)
	if err != nil || !slices.Equal(refused, []Refusal{{"P", "reads P"}}) {
		t.Errorf("got %v, %v, want P refused for its reader", refused, err)
	}
	deps := step.DependenciesOf(m.Graph)
	for _, u := range bias.Uses() {
		if u.Node != res.Next[bias].Producer && !deps.Needs(step.Any, res.Next[bias].Producer, u.Node) {
			t.Errorf("the update of b may run before %s", u.Node.Label())
		}
	}
	if again, refused, err := Guard(m, res.Next); n == 0 || again != 0 || len(refused) != 1 || err != nil {
		t.Errorf("%d led, then %d, %v, %v", n, again, refused, err)
	}
}

// TestGuardTransposed: what a Transpose of P is read by may come to read P
// itself, so it is led too; what reads a function of P is not.
func TestGuardTransposed(t *testing.T) {
	m, params := toyModel(t)
	res, err := Apply(m, params, Defaults(SGD))
	if err != nil {
		t.Fatal(err)
	}
	g, p := m.Graph, params[0].Value
	x := p
	var made []*onnx.Node
	for _, op := range []string{"Transpose", "Tanh", "Exp"} {
		n := g.NewNode("", op, op, []*onnx.Value{x}, []string{op})
		x = n.Out(0)
		x.Type = p.Type
		if op == "Transpose" && len(p.Type.Shape) == 2 {
			x.Type.Shape = onnx.Shape{p.Type.Shape[1], p.Type.Shape[0]}
		}
		g.Append(n)
		g.AddOutput(x)
		made = append(made, n)
	}
	if n, _, err := Guard(m, res.Next); n != 2 || err != nil {
		t.Fatalf("%d led, %v, want the Transpose and the Tanh", n, err)
	}
	writer := res.Next[p].Producer
	for i, want := range []bool{true, true, false} {
		if got := step.DependenciesOf(g).Needs(step.Any, writer, made[i]); got != want {
			t.Errorf("the update waits for the %s: %v", made[i].OpType(), got)
		}
	}
}

// TestGuardBehindView: the gradient comes out of a view, and then, when another
// reader is there, from behind the first barrier. ONNX Runtime would make one
// Reshape of two that follow one another, and the update would not wait.
func TestGuardBehindView(t *testing.T) {
	for _, opset := range []int64{13, 17} {
		m, err := onnx.Parse(fmt.Sprintf(`model ir=7 opset=%d
graph g {
  in  P float32[2,2]
  in  x float32[4]
  in  y float32[2,2]
  init two int64[2] = [2, 2]
  h = Tanh(x)
  g = Reshape(h, two)
  late = MatMul(y, P)
  later = MatMul(late, P)
  new = Sub(P, g)
  out late float32[2,2]
  out new float32[2,2]
}
`, opset))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		m.Graph.NameNodes()
		next := map[*onnx.Value]*onnx.Value{m.Graph.Value("P"): m.Graph.Value("new")}
		if n, _, err := Guard(m, next); n == 0 || err != nil {
			t.Fatalf("%d led, %v", n, err)
		}
		n := m.Graph.NewNode("", "MatMul", "last", []*onnx.Value{m.Graph.Value("P"), m.Graph.Value("y")}, []string{"last"})
		n.Out(0).Type = m.Graph.Value("P").Type
		m.Graph.Append(n)
		for _, name := range []string{"later", "last"} {
			m.Graph.Value(name).Type = m.Graph.Value("P").Type
			m.Graph.AddOutput(m.Graph.Value(name))
		}
		if n, _, err := Guard(m, next); n != 1 || err != nil {
			t.Fatalf("one more: %d led, %v", n, err)
		}
		m.Graph.AnnotateTypes() // only what has known extents is made one
		for _, level := range []int{0, 1, 99} {
			run, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
			if err != nil {
				t.Fatal(err)
			}
			writer, k := run.Graph.Value("new").Producer, step.DependenciesOf(run.Graph)
			for _, name := range []string{"late", "later", "last"} {
				if !k.Needs(step.Any, writer, run.Graph.Value(name).Producer) {
					t.Errorf("opset %d, level %d: the update does not wait for %q", opset, level, name)
				}
			}
			run.Close()
		}
	}
}

// TestGuardHandedOn: a next value that is the old one needs no order.
func TestGuardHandedOn(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph step {
  in  p float32[4]
  same = Identity(p)
  y = Tanh(p)
  out y float32[4]
  out same float32[4]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	g := m.Graph
	if n, _, err := Guard(m, map[*onnx.Value]*onnx.Value{g.Value("p"): g.Value("same")}); n != 0 || err != nil {
		t.Fatalf("%d led, %v", n, err)
	}
}
