package tile

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// skipCases lead to each reason why a region is left as it is.
var skipCases = []struct {
	name, body, want string
}{
	{"no product", "in x F[6,40]\nloss = ReduceSum(x) {keepdims=0}", "loss: no matrix product leads to the loss"},
	{"free extents", "in h F[batch,3]\nin w F[3,40]\nlogits = MatMul(h, w)\nloss = ReduceSum(logits) {keepdims=0}", "logits: its extents are not static: fix them with --dim"},
	{"free extent beside", "in l F[tokens,1]\ny = Mul(logits, l)", `y: the extents of "l" are not static: fix them with --dim`},
	{"unknown rank", "in l float32\ny = Mul(logits, l)", `y: the rank of "l" is unknown`},
	{"an output", projected + "loss = ReduceSum(logits) {keepdims=0}\nout logits float32[6,40]", "logits: logits is an output: give --drop-output logits"},
	{"no rule", "init x int64[] = 1\ny = CumSum(logits, x)", "y: no rule splits operator CumSum"},
	{"a rule of another domain", projected + "in k F[40,2]\ny = com.microsoft.FusedGemm(logits, k)\nloss = ReduceSum(logits) {keepdims=0}", "y: no rule splits operator FusedGemm"},
	{"two ways", projected6 + "t = Transpose(logits)\ny = Add(t, logits)", `y: "t" would have to be split in two ways`},
	{"two ways of an input", projected6 + "in b F[6,6]\na = Add(logits, b)\nt = Transpose(b)\ny = Mul(a, t)", `t: "t" would have to be split in two ways`},
	{"softmax over tokens", "y = Softmax(logits) {axis=0}", "y: works along the split axis"},
	{"maximum over tokens", "y = ReduceMax(logits) {keepdims=0}", "y: ReduceMax over the tokens is not a sum"},
	{"logarithm over tokens", "init x int64[1] = [-2]\ny = ReduceLogSumExp(logits, x)", "y: ReduceLogSumExp over the tokens is not a sum"},
	{"mean of integers", "a = Cast(logits) {to=6}\nb = ReduceMean(a) {keepdims=0}\ny = Cast(b) {to=1}", "b: ReduceMean over the tokens is not a sum"},
	{"axes at run time", "in x int64[1]\ny = ReduceSum(logits, x)", "y: its axes are not constant"},
	{"slice at run time", "in x int64[1]\ninit a int64[1] = [0]\ninit b int64[1] = [2]\ny = Slice(logits, a, b, x)", "y: its axes are not constant"},
	{"slice of tokens", "init x int64[1] = [0]\ninit a int64[1] = [0]\ninit b int64[1] = [3]\ny = Slice(logits, a, b, x)", "y: slices the split axis"},
	{"slice of tokens from the end", "init x int64[1] = [-2]\ninit a int64[1] = [0]\ninit b int64[1] = [3]\ny = Slice(logits, a, b, x)", "y: slices the split axis"},
	{"padded by pads at run time", "in p int64[4]\ny = Pad(logits, p)", "y: its pads are not constant"},
	{"padded along the tokens", "init p int64[4] = [0,0,1,0]\ny = Pad(logits, p)", "y: pads the split axis"},
	{"reshaped inner axis", "t = Transpose(logits)\ninit s int64[2] = [20, 12]\ny = Reshape(t, s)", "y: the split axis is not the first of those it is merged with"},
	{"reshaped at run time", "in s int64[2]\ny = Reshape(logits, s)", "y: its extents are not static"},
	{"picked tokens", "in l int64[1,40]\ny = GatherElements(logits, l) {axis=0}", "y: gathers along the split axis"},
	{"fewer labels than tokens", "in l int64[3,1]\ny = GatherElements(logits, l) {axis=1}", `y: "logits" has another extent along the split axis`},
	{"fewer updates than tokens", "in l int64[3,1]\nin u F[3,1]\ny = ScatterElements(logits, l, u) {axis=1}", `y: "l" has another extent along the split axis`},
	{"vector", projected + "in v F[40]\ny = MatMul(logits, v)\nloss = ReduceSum(logits) {keepdims=0}", "y: a product with a vector"},
	{"permuted batches", tokens + "in b F[3,2,40]\ny = com.microsoft.FusedMatMul(b, logits) {transBatchA=1, transB=1}\nloss = ReduceSum(logits) {keepdims=0}", "y: a product with permuted batches"},
	{"both factors", projected + "t = Transpose(logits)\ny = MatMul(logits, t)\nloss = ReduceSum(logits) {keepdims=0}", "y: both factors are split, but not along the contracted axis"},
	{"sum of two products", projected + "s = Gemm(h, logits) {transA=1}\ny = Gemm(h, logits, s) {transA=1}\nloss = ReduceSum(logits) {keepdims=0}", `y: reads "s" whole`},
	{"sum read inside", "s = ReduceSum(logits)\ny = Div(logits, s)", `y: reads "s" whole`},
	{"sum read behind another node", "s = ReduceSum(logits)\nt = Neg(s)\ny = Div(logits, t)", "y: needs a sum over all tokens before they are all computed"},
	{"product with a sum", projected + "s = Gemm(h, logits) {transA=1}\ny = Gemm(logits, s) {transB=1}\nloss = ReduceSum(logits) {keepdims=0}", "y: needs a sum over all tokens before they are all computed"},
	{"product with itself", projected6 + "y = com.microsoft.FusedMatMul(logits, logits)\nloss = ReduceSum(logits) {keepdims=0}", `y: "logits" would have to be split in two ways`},
	{"one update for all", "in l int64[6,1]\nin u F[]\ny = ScatterElements(logits, l, u) {axis=1}", `y: "u" has no axis 0 to split`},
}

const projected6 = "in h F[6,3]\nin w F[3,6]\nlogits = MatMul(h, w)\n"

func TestSkips(t *testing.T) {
	for _, c := range skipCases {
		t.Run(c.name, func(t *testing.T) {
			m, _ := regionCase{body: c.body}.parse(t)
			before := m.Text()
			_, err := Find(m, m.Graph.Value("loss"))
			if got := skipReason(t, err); got != c.want {
				t.Errorf("skipped for %q, want %q", got, c.want)
			}
			if m.Text() != before {
				t.Errorf("the graph has changed")
			}
		})
	}
}

const applySkip = "logits: no number of equal parts greater than one divides its extents"

// TestApplySkips: an extent that nothing divides leaves the graph as it is.
func TestApplySkips(t *testing.T) {
	m, types := regionCase{body: "in h F[1021,1]\nin w F[1,3]\nlogits = MatMul(h, w)\ny = Neg(logits)"}.parse(t)
	before := m.Text()
	r, err := Find(m, m.Graph.Value("loss"))
	if err != nil {
		t.Fatal(err)
	}
	err = r.Apply(types, r.Parts(8))
	if got := skipReason(t, err); got != applySkip {
		t.Errorf("skipped for %q, want %q", got, applySkip)
	}
	if m.Text() != before {
		t.Errorf("the graph has changed")
	}
}

// TestParts: the smallest divisor that is at least what is wished and no more
// than four times that, else the largest below.
func TestParts(t *testing.T) {
	for _, c := range []struct {
		extents []int64
		want    int
		parts   int
	}{
		{nil, 8, 1}, {[]int64{1}, 8, 1}, {[]int64{8}, 8, 8}, {[]int64{12}, 5, 6}, {[]int64{12}, 100, 12},
		{[]int64{12, 18}, 4, 6}, {[]int64{7, 12}, 4, 1}, {[]int64{1021}, 32, 1}, {[]int64{2 * 1021}, 32, 2},
		{[]int64{13}, 4, 13}, {[]int64{17}, 4, 1}, {[]int64{3 * 17}, 4, 3}, {[]int64{8192}, 20, 32},
	} {
		if got := (&Region{extents: c.extents}).Parts(c.want); got != c.parts {
			t.Errorf("extents %v: %d parts where %d are asked for, want %d", c.extents, got, c.want, c.parts)
		}
	}
}

const gradient = "in w F[16,8]\nin x F[3,16]\nin d F[3,8]\ng = Gemm(x, d) {transA=1}\n"

// rowsSkipCases lead to each reason why an update is not computed in slices.
var rowsSkipCases = []struct{ name, body, want string }{
	{"no divisors", "in w F[67,3]\nin g F[67,3]\nw.new = Sub(w, g)", "w.new: its extents have no common divisor"},
	{"norm of the gradient", gradient + "n = ReduceL2(g) {keepdims=0}\ny = Div(g, n)\nw.new = Sub(w, y)", `w.new: its inputs are also read by "n"`},
	{"an operator without a rule", gradient + "y = Sin(g)\nw.new = Sub(w, y)", `w.new: needs "y" whole`},
	{"next by an operator without a rule", gradient + "y = Sub(w, g)\nw.new = Tanh(y)", `w.new: no slicing rule for operator Tanh at "w.new"`},
	{"scattered on top of each other", "in w F[16,8]\nin at int64[5,7]\nin u F[5,7]\nin z F[16,8]\nv = Neg(z)\ng = ScatterElements(v, at, u) {axis=0, reduction=\"max\"}\nw.new = Sub(w, g)", `w.new: needs "g" whole`},
	{"two outputs", gradient + "a, b = Split(g) {axis=0, num_outputs=2}\ny = Concat(b, a) {axis=0}\nw.new = Sub(w, y)", `w.new: needs "y" whole`},
}

func TestRowsSkips(t *testing.T) {
	for _, c := range rowsSkipCases {
		t.Run(c.name, func(t *testing.T) {
			m, types := parse(t, "20", c.body)
			before := m.Text()
			_, applied, skipped, err := Rows(m, types, next(m), forwardSide, minSlices)
			if err != nil || applied > 0 || len(skipped) != 1 {
				t.Fatalf("%d applied, skipped %v, error %v", applied, skipped, err)
			}
			if got := skipReason(t, skipped[0]); got != c.want {
				t.Errorf("skipped for %q, want %q", got, c.want)
			}
			if m.Text() != before {
				t.Errorf("the graph has changed:\n%s", m.Text())
			}
		})
	}
}

// unreached are the reasons that no case leads to.
var unreached = map[string]string{
	"has %d pads for %d axes":                           "inference refuses the graph",
	"is made anew in each part, and needed beside them": "only what is multiplied by zero is made so, and zeros are read where they wait",
	"unclear how its output is split":                   "every rule derives a cut from that of the input for which its node was taken in",
}

// TestEveryReasonHasACase reads the package's own sources: each message of a
// skip is one that some case expects.
func TestEveryReasonHasACase(t *testing.T) {
	var wants []string
	for _, c := range skipCases {
		wants = append(wants, c.want)
	}
	for _, c := range rowsSkipCases {
		wants = append(wants, c.want)
	}
	wants = append(wants, applySkip)
	for _, reason := range reasons(t) {
		verbs := regexp.MustCompile("%[a-z]").ReplaceAllString(regexp.QuoteMeta(reason), ".*")
		expected := slices.ContainsFunc(wants, regexp.MustCompile(": "+verbs+"$").MatchString)
		if expected == (unreached[reason] != "") {
			t.Errorf("%q: expected by a case: %v, listed as unreached: %q", reason, expected, unreached[reason])
		}
	}
}

// reasons are the texts of skips: what SkipErrors say, and the errors of rules,
// which become such.
func reasons(t *testing.T) []string {
	var list []string
	text := func(e ast.Expr) {
		if call, ok := e.(*ast.CallExpr); ok && len(call.Args) > 0 {
			e = call.Args[0] // of Sprintf
		}
		lit, ok := e.(*ast.BasicLit)
		if !ok {
			return // made elsewhere
		}
		s, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	for _, name := range []string{"tile.go", "apply.go", "rules.go", "rulesproduct.go", "wide.go", "rows.go", "sums.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if kind, ok := n.Type.(*ast.Ident); ok && kind.Name == "SkipError" {
					text(n.Elts[1])
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Errorf" && (strings.HasPrefix(name, "rules") || name == "tile.go") {
					text(n.Args[0])
				}
			}
			return true
		})
	}
	if len(list) < 20 {
		t.Fatalf("only %d reasons were found", len(list))
	}
	return list
}

// Below opset 13 a softmax sums along all axes from its own on, which is the second
// where none is given.
func TestSkipsJoinedAxes(t *testing.T) {
	for opset, want := range map[string]string{"12": "y: works along the split axis", "13": ""} {
		m, _ := parse(t, opset, "in h F[2,4,3]\nin w F[3,6]\nlogits = MatMul(h, w)\nr = Transpose(logits) {perm=[2, 0, 1]}\ny = Softmax(r)\nother = Neg(y)\nloss = ReduceMean(y) {keepdims=0}")
		_, err := Find(m, m.Graph.Value("loss"))
		if got := skipReason(t, err); got != want {
			t.Errorf("opset %s: skipped for %q, want %q", opset, got, want)
		}
	}
}
