package grad

import (
	"slices"
	"strings"
	"testing"
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

// TestTieFrozen: what is not trained is not pulled apart.
func TestTieFrozen(t *testing.T) {
	m := parseGraph(t, "in i int64[2]\ninit w float32[3,2] = [1,2,3,4,5,6]\ninit v float32[2,3] = [1,3,5,2,4,6]\na = Gather(w, i)\ny = MatMul(a, v)\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
	res, err := Differentiate(m, Options{Frozen: []string{"v"}})
	if err != nil || len(res.Warnings) > 0 {
		t.Errorf("%v, %q", err, res.Warnings)
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
