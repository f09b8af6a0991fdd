package tile

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// attention is a layer's attention with its gradient, q, k, v [b,n,t,d]; values
// of backward begin with b.
func attention(b, n, t, d int) string {
	r := strings.NewReplacer("SHAPE", fmt.Sprintf("F[%d,%d,%d,%d]", b, n, t, d), "MASK", fmt.Sprintf("F[%d,%d]", t, t))
	return r.Replace("in q SHAPE\nin k SHAPE\nin v SHAPE\nin mask MASK\nin dc SHAPE\ninit s F[] = 0.5\n" +
		"kt = Transpose(k) {perm=[0, 1, 3, 2]}\nz = MatMul(q, kt)\nzs = Mul(z, s)\nzm = Add(zs, mask)\np = Softmax(zm)\nc = MatMul(p, v)\nout1 = Neg(c)\n" +
		"b.vt = Transpose(v) {perm=[0, 1, 3, 2]}\nb.dp = MatMul(dc, b.vt)\nb.pd = Mul(b.dp, p)\ninit last int64[1] = [-1]\nb.sum = ReduceSum(b.pd, last)\nb.ps = Mul(p, b.sum)\nb.dz = Sub(b.pd, b.ps)\nb.ds = Mul(b.dz, s)\n" +
		"b.dq = MatMul(b.ds, k)\nb.dst = Transpose(b.ds) {perm=[0, 1, 3, 2]}\nb.dk = MatMul(b.dst, q)\nb.pt = Transpose(p) {perm=[0, 1, 3, 2]}\nb.dv = MatMul(b.pt, dc)")
}

// attentionJoined is attention whose swapped factors a Reshape keeps from their Transpose, as
// derived graphs have them: its leading axes are joined there.
func attentionJoined(b, n, t, d int) string {
	body := attention(b, n, t, d)
	r := strings.NewReplacer("$bn", fmt.Sprint(b*n), "$b", fmt.Sprint(b), "$n", fmt.Sprint(n), "$t", fmt.Sprint(t), "$d", fmt.Sprint(d))
	for _, of := range []struct{ from, to string }{
		{"b.dk = MatMul(b.dst, q)", "b.j1 = Reshape(b.dst, sq)\nb.j2 = Reshape(q, wide)\nb.j3 = MatMul(b.j1, b.j2)\nb.dk = Reshape(b.j3, apart)"},
		{"z = MatMul(q, kt)", "j1 = Reshape(q, wide)\nj2 = Reshape(kt, tall)\nj3 = MatMul(j1, j2)\nz = Reshape(j3, scores)"},
		{"b.dv = MatMul(b.pt, dc)", "b.j4 = Reshape(b.pt, sq)\nb.j5 = Reshape(dc, wide)\nb.j6 = MatMul(b.j4, b.j5)\nb.dv = Neg(b.j6)"},
	} {
		body = strings.Replace(body, of.from, r.Replace(of.to), 1)
	}
	return r.Replace("init sq int64[3] = [$bn, $t, $t]\ninit wide int64[3] = [$bn, $t, $d]\ninit tall int64[3] = [$bn, $d, $t]\ninit scores int64[4] = [$b, $n, $t, $t]\ninit apart int64[4] = [$b, $n, $t, $d]\n") + body
}

func isForward(n *onnx.Node) bool { return !strings.HasPrefix(n.Outputs[0].Name, "b.") }

func TestWide(t *testing.T) {
	for _, c := range []struct {
		name, body           string
		want, found, applied int
		parts                int // how many softmaxes there are then
		softmaxes            string
		skipped              string
	}{
		{"batches", attention(4, 2, 8, 2), 16, 2, 2, 4, "Softmax", ""},
		{"two parts", attention(4, 2, 8, 2), 2, 2, 2, 2, "Softmax", ""},
		{"heads", attention(1, 6, 8, 2), 4, 2, 2, 3, "Softmax", ""},
		{"few batches of many heads", attention(2, 9, 8, 2), 16, 2, 2, 9, "Softmax", ""},
		{"batches whose parts are small", attention(4, 9, 8, 2), 16, 2, 2, 4, "Softmax", ""},
		{"heads that a reshape joins", attentionJoined(2, 9, 8, 2), 16, 2, 2, 9, "Softmax", ""},
		{"batches, as a product reads heads across", attention(2, 6, 8, 2) + "\nb.perm = Transpose(b.dp) {perm=[0, 2, 1, 3]}\ninit rows int64[3] = [2, 48, 8]\nb.r = Reshape(b.perm, rows)\nb.out = Neg(b.r)", 6, 2, 2, 2, "Softmax", ""},
		{"narrow", attention(4, 2, 2, 2), 4, 0, 0, 1, "Softmax", ""},
		{"one head", attention(1, 1, 8, 2), 4, 0, 0, 1, "Softmax", ""},
		{"forward alone", "in q F[4,8,2]\nin k F[4,2,8]\nin v F[8,2]\nz = MatMul(q, k)\np = Softmax(z)\nc = MatMul(p, v)", 4, 1, 1, 4, "Softmax", ""},
		{"across batches", "in q F[4,8,2]\nin k F[4,2,8]\nz = MatMul(q, k)\np = Softmax(z) {axis=0}\nc = ReduceSum(p) {keepdims=0}", 4, 1, 0, 1, "Softmax", "p: works along the split axis"},
		{"what another one joined", "in q F[2,8,2]\nin k F[2,2,8]\nin v F[2,8,2]\nz = MatMul(q, k)\np = Softmax(z)\nc = MatMul(p, v)\nout1 = Neg(c)\n" +
			"z2 = MatMul(c, k)\np2 = Softmax(z2)\nq2 = Mul(p2, p2)\ninit last int64[1] = [-1]\nr = ReduceSum(q2, last)\nm = Mul(r, c)\ny = MatMul(m, k)\nw = Mul(p2, y)\no = MatMul(w, v)", 2, 2, 2, 4, "Softmax", ""},
		{"prime", "in q F[37,4,1]\nin k F[37,1,4]\nz = MatMul(q, k)\np = Softmax(z)\nc = ReduceSum(p) {keepdims=0}", 2, 1, 0, 1, "Softmax", "z: no number of equal parts greater than one divides its extents"},
	} {
		t.Run(c.name, func(t *testing.T) {
			was, _ := parse(t, "20", c.body)
			m, types := parse(t, "20", c.body)
			found, applied, skipped, err := Wide(m, types, isForward, c.want)
			if err != nil || found != c.found || applied != c.applied {
				t.Fatalf("%d of %d products in parts, want %d of %d: skipped %v, error %v", applied, found, c.applied, c.found, skipped, err)
			}
			why := ""
			if len(skipped) > 0 {
				why = skipReason(t, skipped[0])
			}
			if why != c.skipped {
				t.Errorf("skipped for %q, want %q", why, c.skipped)
			}
			n := 0
			for _, node := range m.Graph.Nodes {
				if node.Is(c.softmaxes) {
					n++
				}
			}
			if n != c.parts {
				t.Errorf("%d parts, want %d", n, c.parts)
			}
			sameResults(t, was, m, false)
		})
	}
}

// TestRandom computes graphs of random extents in random numbers of parts.
func TestRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 4))
	some := func(lo, hi int) int { return lo + rng.IntN(hi-lo+1) }
	for range 12 {
		tokens, hidden, vocab, want := some(2, 24), some(1, 4), some(6, 50), some(2, 12)
		body := strings.NewReplacer("[6,3]", fmt.Sprintf("[%d,%d]", tokens, hidden), "[6,", fmt.Sprintf("[%d,", tokens), "[3,40]", fmt.Sprintf("[%d,%d]", hidden, vocab)).Replace(projected + crossEntropy("sq = Mul(picked, picked)\neach = Neg(sq)"))
		t.Run(fmt.Sprintf("loss of %d tokens, %d of %d in %d", tokens, hidden, vocab, want), func(t *testing.T) {
			was, _ := parse(t, "20", body)
			m, types := parse(t, "20", body)
			r, err := Find(m, m.Graph.Value("loss"))
			if err != nil {
				t.Fatal(err)
			}
			parts := r.Parts(want)
			err = r.Apply(types, parts)
			if why := skipReason(t, err); (why == "") != (parts > 1) {
				t.Fatalf("%d parts, skipped for %q", parts, why)
			}
			sameResults(t, was, m, false)
		})
		b, n, tt, d := some(1, 4), some(1, 6), some(2, 9), some(1, 3)
		t.Run(fmt.Sprintf("attention %d×%d×%d×%d in %d", b, n, tt, d, want), func(t *testing.T) {
			was, _ := parse(t, "20", attention(b, n, tt, d))
			m, types := parse(t, "20", attention(b, n, tt, d))
			if _, _, _, err := Wide(m, types, isForward, want); err != nil {
				t.Fatal(err)
			}
			sameResults(t, was, m, false)
		})
		rows, columns, count := some(2, 40), some(1, 9), some(1, 6)
		update := fmt.Sprintf("in w F[%d,%d]\nin x F[%d,%d]\nin d F[%d,%d]\nin at int64[2,%d]\nin u F[2,%d]\ninit lr F[] = 0.5\na = Gemm(x, d) {transA=1}\ng = ScatterElements(a, at, u) {axis=0, reduction=\"add\"}\nin m F[%d,%d]\nmm = Mul(m, lr)\nm.new = Add(mm, g)\ns = Mul(m.new, lr)\nw.new = Sub(w, s)",
			max(rows, labelBound), columns, count, max(rows, labelBound), count, columns, columns, columns, max(rows, labelBound), columns)
		t.Run(fmt.Sprintf("update of %d rows of %d in %d", rows, columns, want), func(t *testing.T) {
			was, _ := parse(t, "20", update)
			m, types := parse(t, "20", update)
			if _, _, _, err := Rows(m, types, next(m), forwardSide, want); err != nil {
				t.Fatal(err)
			}
			sameResults(t, was, m, true)
		})
	}
}

// TestRowsThatNeedEachOther: the ratio of a layer-wise update needs a next value
// whole, and what its slices are made of before that.
func TestRowsThatNeedEachOther(t *testing.T) {
	body := "in w F[256,64]\nin m F[256,64]\nin x F[3,256]\nin d F[3,64]\ninit b F[] = 0.5\nxt = Neg(x)\ng = Gemm(xt, d) {transA=1}\nmb = Mul(m, b)\nm.new = Add(mb, g)\nnorm = ReduceL2(m.new) {keepdims=0}\nwn = ReduceL2(w) {keepdims=0}\nratio = Div(wn, norm)\ny = Mul(m.new, ratio)\nw.new = Sub(w, y)"
	was, _ := parse(t, "20", body)
	m, types := parse(t, "20", body)
	_, applied, skipped, err := Rows(m, types, next(m), forwardSide, 4)
	if err != nil || applied != 2 {
		t.Fatalf("%d in slices, skipped %v, error %v", applied, skipped, err)
	}
	sameResults(t, was, m, false)
}

// TestWideGrowsWithTheGraph: every layer has products of its own, and finding out what
// belongs to them looks at their neighbours alone.
func TestWideGrowsWithTheGraph(t *testing.T) {
	asked := func(layers int) int {
		m, types := parse(t, "20", ortest.Layers(layers, "in q# F[4,8,2]\nin k# F[4,2,8]\nin v# F[4,8,2]\n"+
			"z# = MatMul(q#, k#)\np# = Softmax(z#)\nc# = MatMul(p#, v#)\nr# = Neg(c#)\n"))
		count := 0
		found, applied, _, err := Wide(m, types, func(*onnx.Node) bool { count++; return true }, 4)
		if err != nil || found != layers || applied != layers {
			t.Fatalf("%d layers: %d of %d products in parts, error %v", layers, applied, found, err)
		}
		return count
	}
	few, many := asked(12), asked(96)
	if t.Logf("12 layers: %d nodes looked at, 96: %d", few, many); many > 8*few {
		t.Errorf("12 layers: %d nodes looked at, 96 layers: %d, more than eight times as many", few, many)
	}
}
