package tile

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// sumCases are updates that take sums over the gradient: nodes whose output begins with
// s. loops is how many loops over the slices that takes, with that of w.new.
var sumCases = []struct {
	name, body string
	loops      int
}{
	{"rows and columns", "init r int64[1] = [1]\ninit c int64[1] = [0]\nq = Mul(g, g)\ns.row = ReduceSum(q, r) {keepdims=0}\ns.col = ReduceSum(q, c) {keepdims=0}\n" +
		"init rows int64[2] = [16, 1]\na = Reshape(s.row, rows)\nu = Div(g, a)\ny = Div(u, s.col)" + tail, 2},
	{"a sum of what needs sums", "init r int64[1] = [-1]\ninit c int64[1] = [0]\ns.col = ReduceSum(g, c) {keepdims=0}\nu = Mul(g, s.col)\ns.sq = ReduceSumSquare(u, r) {keepdims=0}\n" +
		"n = ReduceSum(s.sq) {keepdims=0}\ny = Div(u, n)" + tail, 3},
	{"product with a vector", "in p F[8,1]\ns.p = MatMul(g, p)\nn = ReduceSumSquare(s.p) {keepdims=0}\ny = Div(g, n)" + tail, 2},
	{"product of a vector", "in p F[1,16]\ns.p = MatMul(p, g)\nn = ReduceSumSquare(s.p) {keepdims=0}\ny = Div(g, n)" + tail, 2},
	{"columns sliced, product with a vector", "in w F[3,16]\nin x F[5,3]\nin d F[5,16]\nin p F[16,1]\ng = Gemm(x, d) {transA=1}\ns.p = MatMul(g, p)\nn = ReduceSumSquare(s.p) {keepdims=0}\ny = Div(g, n)\nw.new = Sub(w, y)", 2},
	{"columns sliced, product of a vector", "in w F[3,16]\nin x F[5,3]\nin d F[5,16]\nin p F[1,3]\ng = Gemm(x, d) {transA=1}\ns.p = MatMul(p, g)\nn = ReduceSumSquare(s.p) {keepdims=0}\ny = Div(g, n)\nw.new = Sub(w, y)", 2},
	{"columns sliced, rows summed", "in w F[3,16]\nin x F[5,3]\nin d F[5,16]\ninit r int64[1] = [1]\ng = Gemm(x, d) {transA=1}\ns.r = ReduceSum(g, r) {keepdims=0}\ninit rows int64[2] = [3, 1]\na = Reshape(s.r, rows)\ny = Div(g, a)\nw.new = Sub(w, y)", 2},
	{"a state too", "in m F[16,8]\nm.new = Add(m, g)\ns.n = ReduceSumSquare(g) {keepdims=0}\na = Add(m.new, g)\ny = Div(a, s.n)" + tail, 3},
}

// TestSums: an update is computed in slices though it needs sums over its gradient, and
// its gradient's slices once, where nothing else waits beside them.
func TestSums(t *testing.T) {
	for _, c := range sumCases {
		t.Run(c.name, func(t *testing.T) {
			of := rowsCase{body: c.body}
			was, _ := of.parse(t)
			m, types := of.parse(t)
			for _, n := range m.Graph.Nodes {
				if strings.HasPrefix(n.Outputs[0].Name, "s.") {
					n.SetOrigin(onnx.Origin{Pass: optim.Pass, Of: "w", Step: "sum"})
				}
			}
			found, applied, skipped, err := Rows(m, types, next(m), forwardSide, minSlices)
			if err != nil || applied != found || len(skipped) > 0 {
				t.Fatalf("%d of %d next values in slices, skipped %v, error %v", applied, found, skipped, err)
			}
			sameResults(t, was, m, false)
			gradients := 0
			for _, n := range m.Graph.Nodes {
				if n.Is("Gemm") {
					gradients++
				}
			}
			want := minSlices
			if found > 1 {
				want *= c.loops
			}
			if gradients != want {
				t.Errorf("%d slices of the gradient are computed, want %d", gradients, want)
			}
		})
	}
}

// TestOtherSums: a sum that no update says it takes leaves the gradient whole.
func TestOtherSums(t *testing.T) {
	for _, c := range sumCases {
		of := rowsCase{body: c.body}
		m, types := of.parse(t)
		if _, applied, _, err := Rows(m, types, next(m), forwardSide, minSlices); err != nil || applied > 0 {
			t.Errorf("%s: %d in slices, error %v", c.name, applied, err)
		}
	}
}

// TestRowsGrowWithTheGraph: where all layers have matrices of one size, each update is
// divided by itself, and that looks at what belongs to it alone.
func TestRowsGrowWithTheGraph(t *testing.T) {
	ortest.GrowsWithTheGraph(t, 24, func(layers int) func() {
		m, types := parse(t, "20", ortest.Layers(layers, "in w# F[16,8]\nin m# F[16,8]\nin x# F[3,16]\nin d# F[3,8]\n"+
			"g# = Gemm(x#, d#) {transA=1}\nm#.new = Add(m#, g#)\nw#.new = Sub(w#, m#.new)\n"))
		return func() {
			found, applied, skipped, err := Rows(m, types, next(m), forwardSide, minSlices)
			if err != nil || found != 2*layers || applied != found {
				t.Fatalf("%d layers: %d of %d updates in slices, skipped %v, error %v", layers, applied, found, skipped, err)
			}
		}
	})
}
