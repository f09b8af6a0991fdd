package rewrite_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/control"
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

// layers is a step through so many layers, with patterns that the highest level fuses in both directions. The last layer's
// gradient runs through them in reverse; each layer's update waits for another's gradient, of the layer before
// or of the one after in turns.
func layers(t *testing.T, count int, edit func(k int, line string) string) *onnx.Model {
	t.Helper()
	var b strings.Builder
	b.WriteString("model ir=10 opset=21\ngraph g {\nin x0 float32[4,8]\nin c float32[8]\ninit f float32[] = [0.3]\n")
	for k := range count {
		fmt.Fprintf(&b, "in w%d float32[8,8]\n", k)
	}
	write := func(k int, lines string) {
		lines = strings.NewReplacer("_K", fmt.Sprint(k), "_N", fmt.Sprint(k+1)).Replace(lines)
		for line := range strings.Lines(lines) {
			if edit != nil {
				line = edit(k, line)
			}
			b.WriteString(line)
		}
	}
	for k := range count {
		write(k, "a_K = Gemm(x_K, w_K, c)\nh_K = Relu(a_K)\np_K = Softmax(h_K)\nx_N = Add(x_K, p_K)\n")
	}
	fmt.Fprintf(&b, "d%d = Tanh(x%d)\n", count, count)
	for k := count - 1; k >= 0; k-- {
		write(k, "s_K = Mul(d_N, f)\nt_K = Transpose(w_K) {perm=[1, 0]}\nm_K = MatMul(s_K, t_K)\nd_K = Add(m_K, d_N)\n"+
			"r_K = Transpose(h_K) {perm=[1, 0]}\ng_K = MatMul(r_K, s_K)\nn_K = Sub(w_K, g_K)\n")
	}
	for k := range count {
		fmt.Fprintf(&b, "out n%d float32[8,8]\n", k)
	}
	b.WriteString("}\n")
	m, _ := ortest.Parse(t, b.String())
	for _, n := range m.Graph.Nodes {
		n.SetName("node/" + n.Outputs[0].Name)
	}
	g := m.Graph
	edges := build.New(g, nil, "test")
	for k := range count {
		update := g.Value(fmt.Sprint("n", k)).Producer
		update.SetInput(0, control.Wait(edges, update.Inputs[0], g.Value(fmt.Sprint("g", k^1))))
	}
	g.Nodes = append(g.Nodes, edges.Take()...)
	if err := g.SortTopologically(); err != nil {
		t.Fatal(err)
	}
	order, err := control.Lower(g, g.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	g.Nodes = order
	if err := g.SortTopologically(); err != nil {
		t.Fatal(err)
	}
	return m
}

// layersOf is so many layers of an even number of micro-batches, which nothing links but their sum.
func layersOf(t *testing.T, batches, count int) *onnx.Model {
	t.Helper()
	var b strings.Builder
	b.WriteString("model ir=10 opset=21\ngraph g {\nin c float32[8]\ninit f float32[] = [0.3]\n")
	for k := range count {
		fmt.Fprintf(&b, "in w%d float32[8,8]\n", k)
	}
	for i := range batches {
		fmt.Fprintf(&b, "in x%d_0 float32[4,8]\n", i)
	}
	for i := range batches {
		for k := range count {
			b.WriteString(strings.NewReplacer("_K", fmt.Sprint(i, "_", k), "_N", fmt.Sprint(i, "_", k+1)).Replace(
				fmt.Sprintf("a_K = Gemm(x_K, w%d, c)\nh_K = Relu(a_K)\np_K = Softmax(h_K)\nx_N = Add(x_K, p_K)\n", k)))
		}
		if i == 0 {
			fmt.Fprintf(&b, "s0 = Neg(x0_%d)\n", count)
		} else {
			fmt.Fprintf(&b, "s%d = Add(s%d, x%d_%d)\n", i, i-1, i, count)
		}
	}
	fmt.Fprintf(&b, "out s%d float32[4,8]\n}\n", batches-1)
	m, _ := ortest.Parse(t, b.String())
	for _, n := range m.Graph.Nodes {
		n.SetName("node/" + n.Outputs[0].Name)
	}
	return m
}

// TestRerollAnswersForAll: what is left of all, told from what is left of a few, is what ONNX Runtime says of
// all: the same nodes, and the same known values read. So it is of micro-batches, of layers in both directions, and
// of layers in micro-batches.
func TestRerollAnswersForAll(t *testing.T) {
	for name, m := range map[string]*onnx.Model{
		"micro-batches": microBatches(t, 14, nil),
		"layers":        layers(t, 14, nil),
		"micro-batches, and what is read of all": microBatches(t, 14, func(k int, line string) string {
			if strings.HasPrefix(line, "sum13") {
				return line + "e = Max(g0, g1, g2, g3, g4, g5, g6, g7, g8, g9, g10, g11, g12)\n"
			}
			return line
		}),
		"layers, and what is read of all": layers(t, 14, func(k int, line string) string {
			if strings.HasPrefix(line, "s0 ") {
				return line + "e = Max(h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13)\n"
			}
			return line
		}),
		"layers, and twins that only their places tell apart": layers(t, 14, func(k int, line string) string {
			if strings.HasPrefix(line, "r") {
				return line + strings.NewReplacer("_K", fmt.Sprint(k)).Replace("u_K = Exp(r_K)\nv_K = Exp(r_K)\nz_K = Sub(u_K, v_K)\nout_K = Mul(z_K, f)\n")
			}
			return line
		}),
		"layers that drop by seeds of their own": layers(t, 14, func(k int, line string) string {
			if !strings.HasPrefix(line, "r") {
				return line
			}
			if k == 0 {
				line += "init p float32[] = [0.25]\ninit on bool[] = [true]\n"
			}
			return line + strings.NewReplacer("_K", fmt.Sprint(k), "SEED", fmt.Sprint(100+7*k)).Replace("drop_K, mask_K = Dropout(r_K, p, on) {seed=SEED}\nkept_K = Where(mask_K, drop_K, r_K)\n")
		}),
		"layers of micro-batches": layersOf(t, 4, 14),
		"layers of which every tenth differs": layers(t, 200, func(k int, line string) string {
			if k%10 == 9 {
				return strings.Replace(line, "Softmax", "LogSoftmax", 1)
			}
			return line
		}),
		"layers with one that differs": layers(t, 24, func(k int, line string) string {
			if k == 9 {
				return strings.Replace(line, "Softmax", "LogSoftmax", 1)
			}
			return line
		}),
	} {
		want, before := leftOf(t, m), m.Text()
		all := len(m.Graph.Nodes)
		r := rewrite.Reroll(m.Graph, rewrite.OneBeside)
		asked := len(m.Graph.Nodes)
		got := r.Unroll(leftOf(t, m))
		if got == nil {
			t.Errorf("%s: what is left of some does not tell what is left of all", name)
			continue
		}
		most := 0.52
		switch {
		case strings.HasPrefix(name, "micro-batches"):
			most = 0.4 // where sums lead from one to the next
		case name == "layers of micro-batches":
			most = 0.55 // of one: nothing leads from its layers to the others'
		}
		if float64(asked) > most*float64(all) {
			t.Errorf("%s: asked about %d of %d nodes", name, asked, all)
		}
		if text := m.Text(); text != before {
			t.Errorf("%s: the graph is not what it was:\n%s\nwant\n%s", name, text, before)
		}
		nodes, reads := known(m, got)
		wantNodes, wantReads := known(m, want)
		if !slices.Equal(nodes, wantNodes) {
			t.Errorf("%s: left %q\nwant %q", name, nodes, wantNodes)
		}
		if !maps.EqualFunc(reads, wantReads, slices.Equal) {
			t.Errorf("%s: reads %q\nwant  %q", name, reads, wantReads)
		}
		if len(wantNodes) > all-10 {
			t.Errorf("%s: %d of %d nodes are left: nothing to tell", name, len(wantNodes), all)
		}
	}
}

// TestRerollAsksAgain: what the first of those that look alike is fused with need not be what the others are: a
// product that others read, too, is not fused with the activation behind it, and that of the first layer
// reads an input. Then the first and the last do not agree, and the second tells what is left of the others.
func TestRerollAsksAgain(t *testing.T) {
	const count = 24
	for name, line := range map[string]func(k int) string{
		"a product that others read": func(k int) string {
			if k == 9 {
				return "h9 = Relu(x9)\ne = Neg(x9)\n"
			}
			return fmt.Sprintf("h%d = Relu(x%d)\n", k, k)
		},
		"a product of an input": func(k int) string {
			if k == 0 {
				return "e = Neg(x0)\n" // h0 is x0
			}
			return fmt.Sprintf("h%d = Relu(x%d)\n", k, k)
		},
	} {
		var b strings.Builder
		b.WriteString("model ir=10 opset=21\ngraph g {\nin x0 float32[8,8]\nin c float32[8]\n")
		for k := range count {
			fmt.Fprintf(&b, "in w%d float32[8,8]\n%sv%d = Exp(w%d)\nx%d = Gemm(h%d, v%d, c)\n", k, line(k), k, k, k+1, k, k)
		}
		fmt.Fprintf(&b, "out x%d float32[8,8]\nout e float32[8,8]\n}\n", count)
		text := b.String()
		if !strings.Contains(text, "h0 =") {
			text = strings.Replace(text, "Gemm(h0,", "Gemm(x0,", 1)
		}
		m, _ := ortest.Parse(t, text)
		for _, n := range m.Graph.Nodes {
			n.SetName("node/" + n.Outputs[0].Name)
		}
		nodes, reads := known(m, leftOf(t, m))
		if r := rewrite.Reroll(m.Graph, rewrite.OneBeside); r == nil || r.Unroll(leftOf(t, m)) != nil {
			t.Errorf("%s: what differs stands for others", name)
		}
		r := rewrite.Reroll(m.Graph, rewrite.TwoBeside)
		if r == nil {
			t.Fatalf("%s: nothing is set aside", name)
		}
		got, gotReads := known(m, r.Unroll(leftOf(t, m)))
		if !slices.Equal(got, nodes) || !maps.EqualFunc(gotReads, reads, slices.Equal) || len(nodes) > 2*count+3 {
			t.Errorf("%s: left %q\nwant %q", name, got, nodes)
		}
	}
}

// known are the nodes left, and what is read to make each value. Of values that a new node reads, and of
// constants, either side has names of its own, and which token a node waits for is all the same.
func known(m *onnx.Model, l *rewrite.Left) (nodes []string, reads map[string][]string) {
	computed := func(name string) bool {
		v := m.Graph.Value(name)
		return v != nil && v.Producer != nil && !control.Tokens(v.Producer)
	}
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

// third edits every third layer or micro-batch, by what it says to replace and by what.
func third(replaced func(k int) (old, by string)) func(k int, line string) string {
	return func(k int, line string) string {
		if k%3 != 2 {
			return line
		}
		old, by := replaced(k)
		return strings.Replace(line, old, by, 1)
	}
}

// TestRerollVerifies: where one micro-batch differs, or the sums are not all that is handed on, nothing is
// taken out beyond it.
func TestRerollVerifies(t *testing.T) {
	for name, edit := range map[string]func(k int, line string) string{
		"another operator": third(func(k int) (string, string) { return "Softmax", "LogSoftmax" }),
		"another attribute": third(func(k int) (string, string) {
			return fmt.Sprintf("Softmax(s%d)", k), fmt.Sprintf("Softmax(s%d) {axis=0}", k)
		}),
		"another value": third(func(k int) (string, string) { return ", w, c)", ", k, c)" }),
		"another sum":   third(func(k int) (string, string) { return fmt.Sprint("Add(sum", k-1), fmt.Sprint("Add(sum", k-2) }),
		"what all compute alike": func(k int, line string) string {
			return strings.Replace(line, fmt.Sprintf("ReduceMax(sum%d)", k-1), "ReduceMax(w)", 1)
		},
		"slices of one value": func(k int, line string) string {
			return strings.Replace(line, fmt.Sprintf("Slice(q%d", k), "Slice(x", 1)
		},
		"a constant": third(func(k int) (string, string) { return "axis)", "other)" }),
	} {
		if r := rewrite.Reroll(microBatches(t, 14, edit).Graph, rewrite.TwoBeside); r != nil {
			t.Errorf("%s: micro-batches are taken for the same", name)
		}
	}
	if rewrite.Reroll(microBatches(t, 3, nil).Graph, rewrite.OneBeside) != nil {
		t.Error("three micro-batches are rerolled, of which all differ")
	}
	for name, edit := range map[string]func(k int, line string) string{
		"another operator": third(func(k int) (string, string) { return "Softmax", "LogSoftmax" }),
		"a weight of two layers": third(func(k int) (string, string) {
			return fmt.Sprintf("Transpose(w%d)", k), fmt.Sprintf("Transpose(w%d)", k-1)
		}),
		"a layer left out": third(func(k int) (string, string) { return fmt.Sprintf("Add(x%d", k), fmt.Sprintf("Add(x%d", k-1) }),
		"one reader more": func(k int, line string) string {
			if k%3 == 2 && strings.HasPrefix(line, "x") {
				return line + fmt.Sprintf("more%d = Neg(h%d)\n", k, k)
			}
			return line
		},
		"what is read of one": func(k int, line string) string {
			if k == 7 && strings.HasPrefix(line, "s") {
				return "e = Neg(h3)\ne1 = Neg(h5)\ne2 = Neg(h8)\ne3 = Neg(h10)\n" + line
			}
			return line
		},
	} {
		if r := rewrite.Reroll(layers(t, 14, edit).Graph, rewrite.TwoBeside); r != nil {
			t.Errorf("layers, %s: they are taken for the same", name)
		}
	}
}
