package onnx

import "testing"

// TestRangeDims: an inner dimension for which PyTorch's exporter notes a range of one size has that
// size; one with a wider range stays free, and so does one of an input.
func TestRangeDims(t *testing.T) {
	tests := []struct{ ranges, want string }{
		{"{u0: VR[9, 9]}", "bool[n,9,u1]"},
		{"{u0: VR[9, 9], u1: VR[4, 4], n: VR[2, 2]}", "bool[n,9,4]"},
		{"{u0: VR[2, 9], u1: VR[0, int_oo]}", "bool[n,u0,u1]"},
		{"{u0: VR[99999999999999999999, 99999999999999999999]}", "bool[n,u0,u1]"},
		{"", "bool[n,u0,u1]"},
	}
	for _, c := range tests {
		m, err := Parse("model ir=9 opset=20\ngraph g {\nin x int64[n]\nin s int64[3]\nvalue a bool[n,u0,u1]\na = Expand(x, s)\nb = Not(a)\nout b bool[?,?,?]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		m.SetMetadata(rangesKey, c.ranges)
		again := saved(t, m)
		if got := again.Graph.Value("a").Type.String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.ranges, got, c.want)
		}
		if got := again.Graph.Value("x").Type.String(); got != "int64[n]" {
			t.Errorf("%s: the input is %s", c.ranges, got)
		}
	}
}
