package grad

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// embedding is a loss of rows of w read by ids, and of a product with head, which
// may be w too; the exporter's note says how the rows are read.
func embedding(t *testing.T, ids, head, note string) *onnx.Model {
	t.Helper()
	m := parseGraph(t, "in x float32[3,4]\ninit w float32[5,4] = [1,2,3,4, 5,6,7,8, 9,1,2,3, 4,5,6,7, 8,9,1,2]\n"+
		"init v float32[5,4] = [1,2,3,4, 5,6,7,8, 9,1,2,3, 4,5,6,7, 8,9,1,2]\n"+ids+"\n"+
		"e = Gather(w, i)\nq = Mul(e, e)\na = ReduceMean(q) {keepdims=0}\n"+
		"p = Gemm(x, "+head+") {transB=1}\nr = Mul(p, p)\nb = ReduceMean(r) {keepdims=0}\nloss = Add(a, b)", "loss float32")
	for _, n := range m.Graph.Nodes {
		if n.Is("Gather") {
			n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry("pkg.torch.onnx.fx_node",
				"%e : [num_users=1] = call_function[target=torch.ops.aten.embedding.default](args = (%w, %i"+note+"), kwargs = {})"))
		}
	}
	return m
}

func embeddingGradients(t *testing.T, m *onnx.Model, params ...string) map[string][]float64 {
	t.Helper()
	inputs := ortest.RandomInputs(m)
	if _, err := Differentiate(m, Options{Params: params}); err != nil {
		t.Fatal(err)
	}
	for _, v := range m.Graph.Inputs {
		if inputs[v.Name] == nil { // a parameter, whose values the file held
			inputs[v.Name] = onnx.Float32Tensor([]float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}, 5, 4)
		}
	}
	return ortest.Run(t, m, 1, inputs)
}

// TestPadding: the row that an embedding was given as its padding gets no gradient
// from there, and the one that a tied output layer gives it.
func TestPadding(t *testing.T) {
	for name, ids := range map[string]string{
		"rows": "init i int64[2,3] = [1, 0, 3, 1, 4, 1]", "int32": "init i int32[4] = [1, 1, 0, 2]", "one": "init i int64[] = 1",
		"in order": "init i int64[4] = [0, 1, 2, 3]", "not read": "init i int64[2] = [0, 4]",
	} {
		t.Run(name, func(t *testing.T) {
			plain := embeddingGradients(t, embedding(t, ids, "v", ""), "w", "v")
			padded := embeddingGradients(t, embedding(t, ids, "v", ", 1"), "w", "v")
			tied := embeddingGradients(t, embedding(t, ids, "w", ", 1, False"), "w")
			for k, x := range plain["w.grad"] {
				if row := k / 4; row == 1 {
					x = 0
				}
				if padded["w.grad"][k] != x {
					t.Fatalf("w.grad %v, without padding %v", padded["w.grad"], plain["w.grad"])
				}
				if want := x + plain["v.grad"][k]; !near(tied["w.grad"][k], want) {
					t.Fatalf("tied: w.grad %v, want %v at %d", tied["w.grad"], want, k)
				}
			}
		})
	}
}

func near(a, b float64) bool { return a-b < 1e-5 && b-a < 1e-5 }

// TestNoPadding: notes that name no row change nothing, and one that asks for
// gradients by frequency is warned of.
func TestNoPadding(t *testing.T) {
	const ids = "init i int64[2,3] = [1, 0, 3, 1, 4, 1]"
	plain := embeddingGradients(t, embedding(t, ids, "v", ""), "w")["w.grad"]
	for _, note := range []string{", -1", ", 99", ", %x", ", 18446744073709551616", ", 1.5", ", -1, True"} {
		m := embedding(t, ids, "v", note)
		var res Result
		warnLeftOut(m.Graph, &res)
		if warned := len(res.Warnings) > 0; warned != strings.Contains(note, "True") {
			t.Errorf("%s: warns: %v", note, warned)
		}
		for k, x := range embeddingGradients(t, m, "w")["w.grad"] {
			if x != plain[k] {
				t.Fatalf("%s: %g in place of %g at %d", note, x, plain[k], k)
			}
		}
	}
}
