package grad

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// TestTie: a matrix and its transpose are one parameter where that is asked for, else a warning
// names them; numbers that all fresh parameters share tell nothing.
func TestTie(t *testing.T) {
	for name, c := range map[string]struct {
		w, v, readers string
		tied          []string // what is trained then
	}{
		"embedding and head": {"[3,2] = [1,2,3,4,5,6]", "[2,3] = [1,3,5,2,4,6]", "a = Gather(w, i)\ny = MatMul(a, v)", []string{"w"}},
		"the head first":     {"[2,3] = [1,3,5,2,4,6]", "[3,2] = [1,2,3,4,5,6]", "a = Gather(v, i)\ny = MatMul(a, w)", []string{"v"}},
		"two products":       {"[3,2] = [1,2,3,4,5,6]", "[2,3] = [1,3,5,2,4,6]", "a = MatMul(x, w)\ny = MatMul(a, v)", []string{"w"}},
		"the same way round": {"[3,2] = [1,2,3,4,5,6]", "[3,2] = [1,2,3,4,5,6]", "a = Gather(w, i)\ny = Gemm(a, v) {transB=1}", []string{"w"}},
		"copies of a layer":  {"[2,2] = [1,2,3,4]", "[2,2] = [1,2,3,4]", "k = MatMul(x2, w)\ny = MatMul(k, v)", nil},
		"other numbers":      {"[3,2] = [1,2,3,4,5,6]", "[2,3] = [1,3,5,2,4,7]", "a = Gather(w, i)\ny = MatMul(a, v)", nil},
		"fresh zeros":        {"[3,2] = [0,0,0,0,0,0]", "[2,3] = [0,0,0,0,0,0]", "a = Gather(w, i)\ny = MatMul(a, v)", nil},
		"symmetric":          {"[2,2] = [1,2,2,1]", "[2,2] = [1,2,2,1]", "a = Gather(w, i)\ny = MatMul(a, v)", []string{"w"}},
		"only added":         {"[3,2] = [1,2,3,4,5,6]", "[2,3] = [1,3,5,2,4,6]", "a = MatMul(x, w)\nb = Transpose(a)\ny = Add(b, v2)", nil},
	} {
		for _, ties := range []bool{false, true} {
			in := "in i int64[2]\n"
			switch {
			case strings.Contains(c.readers, "x2"):
				in = "in x2 float32[2,2]\n"
			case strings.Contains(c.readers, "x"):
				in = "in x float32[2,3]\n"
			}
			readers := c.readers
			if strings.Contains(readers, "v2") {
				readers = strings.Replace("s = Slice(v, zero, two, one)\n"+readers, "v2", "s", 1)
				in += "init zero int64[1] = [0]\ninit one int64[1] = [1]\ninit two int64[1] = [2]\n"
			}
			m := parseGraph(t, in+"init w float32"+c.w+"\ninit v float32"+c.v+"\n"+readers+"\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
			res, err := Differentiate(m, Options{Tie: ties})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want := []string{"v", "w"}
			if ties && c.tied != nil {
				want = c.tied
			}
			var params []string
			for _, p := range res.Params {
				params = append(params, p.Name)
			}
			if slices.Sort(params); !slices.Equal(params, want) {
				t.Errorf("%s: %v are trained, tied %v", name, params, ties)
			}
			says := ""
			switch {
			case c.tied == nil:
			case ties:
				says = "is trained as one with"
			default:
				says = "they are trained apart; --tie"
			}
			if got := strings.Join(res.Warnings, "\n"); !strings.Contains(got, says) || says == "" && got != "" {
				t.Errorf("%s: tied %v, warns %q", name, ties, got)
			}
		}
	}
}

// TestTieCalls: matrices of the same numbers are one parameter, where that is asked for, if their
// products look like calls of one layer; fresh layers are copies of each other too.
func TestTieCalls(t *testing.T) {
	const bare, biased = "k = MatMul(x, A)\ny = MatMul(k, B)", "k = Gemm(x, A, p.bias)\ny = Gemm(k, B, p.bias)"
	for name, c := range map[string]struct {
		a, b, nodes string
		first, last string // names of the products
		tied        bool
	}{
		"calls by name":               {"onnx::MatMul_1", "onnx::MatMul_2", bare, "/net/proj/MatMul", "/net/proj_1/MatMul", true},
		"calls of a tool by name":     {"/p/W", "/p_1/W", biased, "/net_1/p/out", "/net_2/p/out", true},
		"layers by name":              {"onnx::MatMul_1", "onnx::MatMul_2", bare, "/net.0/MatMul", "/net.1/MatMul", false},
		"layers whose bias is merged": {"onnx::MatMul_1", "onnx::MatMul_2", biased, "/net.0/Gemm", "/net.1/Gemm", false},
		"two of one call":             {"onnx::MatMul_1", "onnx::MatMul_2", bare, "/net/MatMul", "/net/MatMul_1", false},
		"one bias":                    {"val_1_weight", "val_3_weight", biased, "", "", true},
		"one bias added":              {"val_1", "val_3", "h = MatMul(x, A)\nk = Add(h, p.bias)\nl = MatMul(k, B)\ny = Add(p.bias, l)", "", "", true},
		"one bias, one call fused":    {"val_1", "val_3", "h = MatMul(x, A)\nk = Add(h, p.bias)\ny = Gemm(k, B, p.bias)", "", "", true},
		"the other way round":         {"val_1", "val_3", "h = MatMul(x, A)\nk = Add(h, p.bias)\ny = Gemm(k, B, p.bias) {transB=1}", "", "", false},
		"two biases":                  {"val_1", "val_3", "k = Gemm(x, A, p.bias)\ny = Gemm(k, B, q.bias)", "", "", false},
		"a bias of one":               {"val_1", "val_3", "h = MatMul(x, A)\nk = Add(h, p.bias)\ny = MatMul(k, B)", "", "", false},
		"one bias of zeros":           {"val_1", "val_3", "k = Gemm(x, A, zeros)\ny = Gemm(k, B, zeros)", "", "", false},
		"one bias that is computed":   {"val_1", "val_3", "p = Tanh(p.bias)\nk = Gemm(x, A, p)\ny = Gemm(k, B, p)", "", "", false},
		"computed by dynamo":          {"val_1", "val_3", bare, "node_linear", "node_linear_1", true},
		"named":                       {"a.weight", "b.weight", bare, "", "", false},
	} {
		for _, ties := range []bool{false, true} {
			m := parseGraph(t, strings.NewReplacer("Add", "Add", "transB", "transB", "A", strconv.Quote(c.a), "B", strconv.Quote(c.b)).Replace(
				"in x float32[2,2]\ninit A float32[2,2] = [1,2,3,4]\ninit B float32[2,2] = [1,2,3,4]\n"+
					"init p.bias float32[2] = [1,2]\ninit q.bias float32[2] = [1,2]\ninit zeros float32[2] = [0,0]\n"+
					c.nodes+"\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}"), "loss float32")
			products := slices.DeleteFunc(slices.Clone(m.Graph.Nodes), func(n *onnx.Node) bool { return !n.Is("MatMul", "Gemm") })
			products[0].SetName(c.first)
			products[1].SetName(c.last)
			res, err := Differentiate(m, Options{Tie: ties})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			matrices := 0
			for _, p := range res.Params {
				if p.Name == c.a || p.Name == c.b {
					matrices++
				}
			}
			want := 2
			if c.tied && ties {
				want = 1
			}
			if matrices != want {
				t.Errorf("%s: %d matrices are trained, tied %v", name, matrices, ties)
			}
			says := "hold the same numbers, as where a layer is called several times, and they are trained apart"
			if ties {
				says = "that hold the same numbers are trained as one"
			}
			if got := strings.Join(res.Warnings, "\n"); strings.Contains(got, says) != c.tied {
				t.Errorf("%s: tied %v, warns %q", name, ties, got)
			}
		}
	}
}

// TestTieFrozen: what is not trained is not pulled apart, and the graph says that it is not tied.
func TestTieFrozen(t *testing.T) {
	m := parseGraph(t, "in i int64[2]\ninit w float32[3,2] = [1,2,3,4,5,6]\ninit v float32[2,3] = [1,3,5,2,4,6]\na = Gather(w, i)\ny = MatMul(a, v)\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
	res, err := Differentiate(m, Options{Frozen: []string{"v"}})
	if err != nil || len(res.Warnings) > 0 {
		t.Errorf("%v, %q", err, res.Warnings)
	}
	if text, _ := m.Metadata(step.ApartKey); text != `["v"]` {
		t.Errorf("apart: %s", text)
	}
}

// TestTieAgain: weights are put back as they were trained: a head for which there are none is
// the embedding's transpose.
func TestTieAgain(t *testing.T) {
	for name, given := range map[string][]string{"tied": {"w"}, "apart": {"w", "v"}} {
		m := parseGraph(t, "in i int64[2]\ninit w float32[3,2] = [1,2,3,4,5,6]\ninit v float32[2,3] = [1,3,5,2,4,6]\na = Gather(w, i)\ny = MatMul(a, v)\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
		if err := Unmerge(m, func(name string) bool { return slices.Contains(given, name) }); err != nil {
			t.Fatal(err)
		}
		if got := len(m.Graph.Initializers); got != len(given) {
			t.Errorf("%s: %d initializers", name, got)
		}
	}
}

// TestTieRounded: the head of an embedding in float32 that the exporter rounded ahead, as under
// autocast, is told of, and tied it gives the embedding its gradient.
func TestTieRounded(t *testing.T) {
	for name, c := range map[string]struct{ head, product string }{
		"turned":        {"[2,3] = [1, 3, 5, 2, 4, 0.1]", "y = MatMul(b, v)"},
		"the same way":  {"[3,2] = [1, 2, 3, 4, 5, 0.1]", "y = Gemm(b, v) {transB=1}"},
		"other numbers": {"[2,3] = [1, 3, 5, 2, 4, 0.2]", "y = MatMul(b, v)"},
	} {
		for _, ties := range []bool{false, true} {
			m := parseGraph(t, "in i int64[2]\ninit w float32[3,2] = [1, 2, 3, 4, 5, 0.1]\ninit v float16"+c.head+
				"\na = Gather(w, i)\nb = Cast(a) {to=10}\n"+c.product+"\nz = Cast(y) {to=1}\nq = Mul(z, z)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
			res, err := Differentiate(m, Options{Tie: ties})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			says, trained := "they are trained apart; --tie", 2
			switch {
			case name == "other numbers":
				says = ""
			case ties:
				says, trained = "is trained as one with", 1
			}
			if got := strings.Join(res.Warnings, "\n"); len(res.Params) != trained || !strings.Contains(got, says) || says == "" && got != "" || strings.Contains(got, "is used in") {
				t.Errorf("%s: tied %v, %d trained, warns %q", name, ties, len(res.Params), got)
			}
			if err := m.Check(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
