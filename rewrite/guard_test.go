package rewrite_test

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime/ort"
)

// guardCases are patterns that the highest level fuses: as a whole, and with a
// part that others read too, so that it stays.
var guardCases = []struct{ name, text string }{
	{"activation", `model ir=10 opset=21
graph g {
in x float32[4,8]
in w float32[8,6]
in b float32[6]
a = Gemm(x, w, b)
h = Relu(a)
y = Softmax(h)
out y float32[4,6]
}
`},
	{"factor that is read twice", `model ir=10 opset=21
graph g {
in x float32[4,8]
in w float32[8,6]
init k float32[] = [0.3]
s = Mul(x, k)
h = MatMul(s, w)
t = Softmax(s)
u = MatMul(t, w)
z = Add(h, u)
y = Softmax(z)
out y float32[4,6]
}
`},
	{"sum of two convolutions, activated", `model ir=10 opset=21
graph g {
in x float32[2,4,6,6]
in v float32[4,4,3,3]
in w float32[4,4,1,1]
in c float32[4]
a = Conv(x, v, c) {pads=[1, 1, 1, 1]}
b = Conv(x, w, c)
s = Add(a, b)
r = Relu(s)
y = Softmax(r)
out y float32[2,4,6,6]
}
`},
	{"swap that is read twice", `model ir=10 opset=21
graph g {
in x float32[2,4,8]
in v float32[2,6,8]
r = Relu(v)
t = Transpose(r) {perm=[0, 2, 1]}
h = MatMul(x, t)
u = ReduceMax(t) {keepdims=0}
z = Add(h, u)
y = Softmax(z)
out y float32[2,4,6]
}
`},
}

// vanishing are nodes that the highest level does not leave, and which no fusion
// took: computed ahead, and replaced by what their operator is defined as.
var vanishing = []struct{ name, text string }{
	{"a shape that is known, and what is made of it", `model ir=10 opset=21
graph g {
in x float32[4,8]
in i float32[4]
a = Shape(x) {start=0, end=1}
b = Shape(i)
k = Concat(a, b) {axis=0}
m = ConstantOfShape(k) {value=tensor(float32[1] = [2.0])}
f = Mul(m, m)
h = MatMul(f, x)
y = Softmax(h)
out y float32[4,8]
}
`},
	{"constants", `model ir=10 opset=21
graph g {
in x float32[4,8]
init v float32[8] = [1, 2, 3, 4, 5, 6, 7, 8]
init e float32[] = [0.5]
s = Add(v, e)
r = Sqrt(s)
f = Reciprocal(r)
z = Mul(x, f)
y = Softmax(z)
out y float32[4,8]
}
`},
	{"definition of several nodes", `model ir=10 opset=21
graph g {
in x float32[2,4,8]
in g float32[4]
in b float32[4]
r = Softmax(x)
z = GroupNormalization(r, g, b) {num_groups=2}
y = Softmax(z)
out y float32[2,4,8]
}
`},
}

// TestGuardLeaves: where no fusion is, no guard comes.
func TestGuardLeaves(t *testing.T) {
	for _, c := range vanishing {
		t.Run(c.name, func(t *testing.T) {
			m, _ := ortest.Parse(t, c.text)
			m.Graph.NameNodes()
			d := highest(t, m)
			if len(d.Nodes) == len(m.Graph.Nodes) && slices.Equal(operators(d), operators(m.Graph)) {
				t.Fatal("nothing vanished")
			}
			if _, n, _ := rewrite.Guard(m.Graph, m.Graph.Nodes, rewrite.NewLeft(d)); n != 0 {
				t.Errorf("%d guards against nothing, in\n%s", n, m.Text())
			}
		})
	}
}

// TestGuardOnce: what a guard does not stop gets no second one. ONNX Runtime never
// reads the second input of CastLike, guarded or not.
func TestGuardOnce(t *testing.T) {
	m, _ := ortest.Parse(t, `model ir=10 opset=21
graph g {
in x float32[4,8]
in k float32[4,8]
l = Softmax(k)
s = Softmax(x)
z = CastLike(s, l)
y = Add(z, l)
out y float32[4,8]
}
`)
	m.Graph.NameNodes()
	order := m.Graph.Nodes
	for round, want := range []int{1, 0} {
		var n int
		if order, n, _ = rewrite.Guard(m.Graph, order, rewrite.NewLeft(highest(t, m))); n != want {
			t.Fatalf("round %d: %d guards, want %d, in\n%s", round, n, want, m.Text())
		}
	}
}

// highest is what ONNX Runtime's highest level leaves.
func highest(t *testing.T, m *onnx.Model) *onnx.Graph {
	t.Helper()
	d, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: 99, Threads: 1, Provider: ort.CPU})
	if err != nil {
		t.Fatal(err)
	}
	return d.Graph
}

// TestGuard: once guarded, the highest level leaves the graph alone, and the
// values are the same.
func TestGuard(t *testing.T) {
	for _, c := range guardCases {
		t.Run(c.name, func(t *testing.T) {
			original, _ := ortest.Parse(t, c.text)
			m, _ := ortest.Parse(t, c.text)
			m.Graph.NameNodes()
			if _, n, _ := rewrite.Guard(m.Graph, m.Graph.Nodes, rewrite.NewLeft(highest(t, m))); n == 0 {
				t.Fatal("nothing to guard")
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			if got, want := operators(highest(t, m)), operators(m.Graph); !slices.Equal(got, want) {
				t.Errorf("level 99 runs %v, the file has %v", got, want)
			}
			sameResults(t, original, m)
		})
	}
}

func operators(g *onnx.Graph) []string {
	var list []string
	for _, n := range g.Nodes {
		list = append(list, n.OpType())
	}
	slices.Sort(list)
	return list
}
