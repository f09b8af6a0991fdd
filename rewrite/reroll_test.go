package rewrite_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime/ort"
)

// microBatches is a step in so many micro-batches, with patterns that the highest level fuses: an
// activation, and a factor that others read too. Each adds to the sum of those before it.
func microBatches(t *testing.T, count int, edit func(k int, line string) string) *onnx.Model {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "model ir=10 opset=21\ngraph g {\nin x float32[%d,8]\nin w float32[8,8]\nin c float32[8]\ninit f float32[] = [0.3]\ninit axis int64[1] = [0]\ninit other int64[1] = [-2]\n", 4*count)
	for k := range count {
		fmt.Fprintf(&b, "init from%d int64[1] = [%d]\ninit to%d int64[1] = [%d]\n", k, 4*k, k, 4*k+4)
	}
	b.WriteString("k = Mul(w, f)\n")
	for k := range count {
		lines := `r_K = ReduceMax(sum_B)
q_K = Add(x, r_K)
x_K = Slice(q_K, from_K, to_K, axis)
a_K = Gemm(x_K, w, c)
h_K = Relu(a_K)
s_K = Mul(h_K, f)
m_K = MatMul(s_K, k)
p_K = Softmax(s_K)
t_K = Transpose(p_K) {perm=[1, 0]}
g_K = MatMul(t_K, m_K)
`
		if k > 0 {
			lines += "sum_K = Add(sum_B, g_K)\n"
		} else {
			lines = strings.Replace(lines, "sum_B", "w", 1) + "sum_K = Neg(g_K)\n"
		}
		lines = strings.NewReplacer("from_K", fmt.Sprint("from", k), "to_K", fmt.Sprint("to", k), "_K", fmt.Sprint(k), "_B", fmt.Sprint(k-1)).Replace(lines)
		for line := range strings.Lines(lines) {
			if edit != nil {
				line = edit(k, line)
			}
			b.WriteString(line)
		}
	}
	fmt.Fprintf(&b, "y = Sub(w, sum%d)\nout y float32[8,8]\n}\n", count-1)
	m, _ := ortest.Parse(t, b.String())
	for _, n := range m.Graph.Nodes {
		name := n.Outputs[0].Name
		n.SetName("node/" + name)
		if of := strings.TrimRight(name, "0123456789"); of != name {
			n.SetOrigin(onnx.Origin{Pass: "batch", Of: of})
		}
	}
	return m
}

// left is what the highest level leaves of a graph.
func leftOf(t *testing.T, m *onnx.Model) *rewrite.Left {
	t.Helper()
	d, err := ortest.Engine(t).Left(m, ort.SessionOptions{Level: 99, Threads: 1, Provider: ort.CPU, DisabledOptimizers: []string{"NchwcTransformer"}})
	if err != nil {
		t.Fatal(err)
	}
	return rewrite.NewLeft(d.Graph)
}

// TestRerollAnswersForAll: what is left of ten micro-batches, told from what is left of a few, is what
// ONNX Runtime says of all: the same nodes, and the same known values read.
func TestRerollAnswersForAll(t *testing.T) {
	m := microBatches(t, 10, nil)
	want, before := leftOf(t, m), m.Text()
	r := rewrite.Reroll(m.Graph)
	if r == nil {
		t.Fatal("ten micro-batches are not seen to repeat")
	}
	all := len(m.Graph.Nodes)
	restore := r.SetAside()
	asked := len(m.Graph.Nodes)
	got := r.Unroll(leftOf(t, m))
	restore()
	if asked > all/2 {
		t.Errorf("asked about %d of %d nodes", asked, all)
	}
	if text := m.Text(); text != before {
		t.Errorf("the graph is not what it was:\n%s\nwant\n%s", text, before)
	}
	// Of values that a new node reads, and of constants, either side has names of its own.
	computed := func(name string) bool { v := m.Graph.Value(name); return v != nil && v.Producer != nil }
	known := func(l *rewrite.Left) (nodes []string, reads map[string][]string) {
		reads = map[string][]string{}
		for _, n := range m.Graph.Nodes {
			if l.Nodes()[n.Name()] {
				nodes = append(nodes, n.Name())
			}
			if of, ok := l.Reads()[n.Outputs[0].Name]; ok {
				reads[n.Outputs[0].Name] = slices.DeleteFunc(slices.Sorted(maps.Keys(of)), func(s string) bool { return !computed(s) })
			}
		}
		return nodes, reads
	}
	nodes, reads := known(got)
	wantNodes, wantReads := known(want)
	if !slices.Equal(nodes, wantNodes) {
		t.Errorf("left %q\nwant %q", nodes, wantNodes)
	}
	if !maps.EqualFunc(reads, wantReads, slices.Equal) {
		t.Errorf("reads %q\nwant  %q", reads, wantReads)
	}
	if len(wantNodes) > all-10 {
		t.Errorf("%d of %d nodes are left: nothing to tell", len(wantNodes), all)
	}
}

// TestRerollVerifies: where one micro-batch differs, or the sums are not all that is handed on, nothing is
// taken out beyond it.
func TestRerollVerifies(t *testing.T) {
	for name, edit := range map[string]func(k int, line string) string{
		"another operator": func(k int, line string) string {
			if k%3 == 2 {
				return strings.Replace(line, "Softmax", "LogSoftmax", 1)
			}
			return line
		},
		"another attribute": func(k int, line string) string {
			if k%3 == 2 {
				return strings.Replace(line, fmt.Sprintf("Softmax(s%d)", k), fmt.Sprintf("Softmax(s%d) {axis=0}", k), 1)
			}
			return line
		},
		"another value": func(k int, line string) string {
			if k%3 == 2 {
				return strings.Replace(line, ", w, c)", ", k, c)", 1)
			}
			return line
		},
		"another sum": func(k int, line string) string {
			if k%3 == 2 {
				return strings.Replace(line, fmt.Sprint("Add(sum", k-1), fmt.Sprint("Add(sum", k-2), 1)
			}
			return line
		},
		"what the end reads of all": func(k int, line string) string {
			if strings.HasPrefix(line, "sum9") {
				return line + "e0 = Add(g0, g1)\ne1 = Add(e0, g2)\ne2 = Add(e1, g3)\ne3 = Add(e2, g4)\ne4 = Add(e3, g5)\ne5 = Add(e4, g6)\n"
			}
			return line
		},
		"what all compute alike": func(k int, line string) string {
			return strings.Replace(line, fmt.Sprintf("ReduceMax(sum%d)", k-1), "ReduceMax(w)", 1)
		},
		"slices of one value": func(k int, line string) string {
			return strings.Replace(line, fmt.Sprintf("Slice(q%d", k), "Slice(x", 1)
		},
		"a constant": func(k int, line string) string {
			if k%3 == 2 {
				return strings.Replace(line, "axis)", "other)", 1)
			}
			return line
		},
	} {
		if r := rewrite.Reroll(microBatches(t, 10, edit).Graph); r != nil {
			t.Errorf("%s: micro-batches are taken for the same", name)
		}
	}
	if rewrite.Reroll(microBatches(t, 3, nil).Graph) != nil {
		t.Error("three micro-batches are rerolled, of which all differ")
	}
}
