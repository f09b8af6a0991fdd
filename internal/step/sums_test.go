package step

import (
	"strings"
	"testing"
)

// summedUp sums s up over two outputs, of which the first is read under another name.
const summedUp = `in a float32[2,4]
in b float32[2,3]
in c float32[3,3]
in i int64[2,3]
init zero int64[1] = [0]
init axis int64[] = [0]
s.0 = Gemm(a, b) {transA=1}
all = Size(s.0)
count = Unsqueeze(all, zero)
none = Slice(count, zero, zero)
past = Unsqueeze(s.0, none)
beside = Unsqueeze(s.0, none)
besides = Size(beside)
s.1 = Gemm(a, b, past) {transA=1}
s = ScatterElements(s.1, i, b) {reduction="add"}
far = Relu(s)
out s float32[4,3]
out s.0 float32[4,3]
out s.1 float32[4,3]
out far float32[4,3]
`

// TestSumsOf: outputs lie in one memory where each is made by a kernel that may write over
// the one before, and nothing else reads that but for its shape.
func TestSumsOf(t *testing.T) {
	const last = "s = ScatterElements(s.1, i, b) {reduction=\"add\"}"
	for _, c := range []struct{ name, old, new, want string }{
		{"as it is", "", "", "s.0 s.1 s"},
		{"in another order of outputs", "out s float32[4,3]\nout s.0 float32[4,3]\n", "out s.0 float32[4,3]\nout s float32[4,3]\n", "s.0 s.1 s"},
		{"pointwise", last, "s = Mul(s.1, s.1)", ""},
		{"pointwise, read once", last, "s = Neg(s.1)", "s.0 s.1 s"},
		{"another reader", "far = Relu(s)", "far = Relu(s.1)", ""},
		{"another reader past what renames", "far = Relu(s)", "far = Relu(past)", ""},
		{"a factor", last, "s = Gemm(s.1, c)", ""},
		{"the third of a sum", last, "other = Gemm(a, b) {transA=1}\ns = Sum(other, other, s.1)", ""},
		{"no kernel that writes over", last, "s = CumSum(s.1, axis)", ""},
		{"no output", "out s.1 float32[4,3]\n", "", ""},
	} {
		g := rowsGraph(t, strings.Replace(summedUp, c.old, c.new, 1))
		got := ""
		for _, chain := range SumsOf(g, Roles{Sums: map[string][]string{"s": {"s.0", "s.1"}}}) {
			got = joined(chain)
		}
		if got != c.want {
			t.Errorf("%s: in one memory %q, want %q", c.name, got, c.want)
		}
	}
}

// TestSumsAreRoles: sums are read, checked against the outputs, and forgotten with them.
func TestSumsAreRoles(t *testing.T) {
	g := rowsGraph(t, summedUp)
	r, err := ParseRoles([]byte(`{"loss": "", "grad": {}, "new": {}, "sums": {"s": ["s.0", "s.1"]}}`))
	if err != nil || r.Check(g) != nil || len(r.Within(g).Sums["s"]) != 2 {
		t.Fatalf("%v: %v, within the graph %v", err, r.Check(g), r.Within(g))
	}
	r.Sums["s"][1] = "past"
	if r.Check(g) == nil || r.Within(g).Sums["s"] != nil {
		t.Error("a sum that is no output is no error, or stays")
	}
}
