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

// TestGuard: once guarded, the highest level leaves the graph alone, and the
// values are the same.
func TestGuard(t *testing.T) {
	for _, c := range guardCases {
		t.Run(c.name, func(t *testing.T) {
			original, _ := ortest.Parse(t, c.text)
			m, _ := ortest.Parse(t, c.text)
			m.Graph.NameNodes()
			dump := func() *onnx.Graph {
				d, err := ortest.Engine(t).Dump(m, ort.SessionOptions{Level: 99, Threads: 1, Provider: ort.CPU})
				if err != nil {
					t.Fatal(err)
				}
				return d.Graph
			}
			if _, n := rewrite.Guard(m.Graph, m.Graph.Nodes, rewrite.NewLeft(dump())); n == 0 {
				t.Fatal("nothing to guard")
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			if got, want := operators(dump()), operators(m.Graph); !slices.Equal(got, want) {
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
