package grad

import "testing"

// What an operator is made of takes its place everywhere: also where its value is
// itself the gradient of another, as in Σ y·w.
func TestDecomposedNodeIsGone(t *testing.T) {
	m := parseGraph(t, "in q float32[1,3,4]\ninit w float32[1,3,4] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]\ninit k float32[1,3,4] = [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]\n"+
		"y = com.microsoft.MultiHeadAttention(q, k, q) {num_heads=2}\np = Mul(y, w)\nloss = ReduceSum(p) {keepdims=0}", "loss")
	m.SetOpset("com.microsoft", 1)
	if _, err := Differentiate(m, Options{Params: []string{"w", "k"}, Loss: "loss"}); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		if n.OpType() == "MultiHeadAttention" {
			t.Errorf("%s is left in\n%s", n.OpType(), m.Text())
		}
	}
}
