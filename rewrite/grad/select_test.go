package grad

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

const smallModel = `in x float32[4,3]
in t int64[4]
init w float32[3,5] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]
init b float32[5] = [1,2,3,4,5]
init ids int64[2] = [0, 1]
init unused float32[2] = [1, 2]
z = Gemm(x, w, b)
loss = SoftmaxCrossEntropyLoss(z, t)
`

func parseGraph(t *testing.T, body string, outs ...string) *onnx.Model {
	t.Helper()
	for _, o := range outs {
		body += "\nout " + o
	}
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\n" + body + "\n}\n")
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	return m
}

// parseTorch is parseGraph of a graph that PyTorch exported.
func parseTorch(t *testing.T, body string, outs ...string) *onnx.Model {
	t.Helper()
	m, producer := parseGraph(t, body, outs...), "pytorch"
	m.Proto.ProducerName = &producer
	return m
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		body string
		outs []string
		opts Options
		as   any
		want string
	}{
		{"no scalar", smallModel, []string{"z float32"}, Options{}, new(*LossError), "no output is a scalar float"},
		{"two scalars", smallModel + "l2 = Neg(loss)", []string{"loss float32", "l2 float32"}, Options{}, new(*LossError), "several scalar float outputs (loss, l2): choose one with --loss"},
		{"loss of no such name", smallModel, []string{"loss float32"}, Options{Loss: "cost"}, new(*LossError), `loss "cost": the model has no output of that name`},
		{"loss of a shape", smallModel, []string{"loss float32", "z float32"}, Options{Loss: "z"}, new(*LossError), "want a scalar"},
		{"integer loss", smallModel + "k = Size(z)", []string{"k int64"}, Options{Loss: "k"}, new(*LossError), "want a float"},
		{"no parameter", "in x float32[3]\nloss = ReduceSum(x) {keepdims=0}", []string{"loss float32"}, Options{}, new(*LossError), "depends on no float initializer"},
		{"one element", "in x float32[3]\ninit w float32[1] = [2]\na = Mul(x, w)\nloss = ReduceSum(a) {keepdims=0}", []string{"loss float32"}, Options{}, new(*LossError), "of more than one element; --params with the whole name trains one: w"},
		{"codes", "in x float32[2,3]\ninit q int8[3,4] = [1,2,3,4,5,6,7,8,9,10,11,12]\ninit s float32[] = 0.5\nw = DequantizeLinear(q, s)\na = MatMul(x, w)\nloss = ReduceSum(a) {keepdims=0}", []string{"loss float32"}, Options{}, new(*LossError), "no step can move: --lora GLOB trains pairs beside them: q"},
		{"no rule of another producer", "in x float32[3]\ninit w float32[3] = [1,2,3]\na = Mul(x, w)\nb = Erfc(a)\nloss = ReduceSum(b) {keepdims=0}", []string{"loss float32[]"}, Options{}, new(*MissingRuleError), "write it with other operators"},
		{"behind no gradient", "in x float32[3]\ninit w float32[3] = [1,2,3]\na = Mul(x, w)\nb = Greater(a, x)\nc = Cast(b) {to=1}\nloss = ReduceSum(c) {keepdims=0}", []string{"loss float32"}, Options{}, new(*LossError), "depends on no float initializer"},
		{"all frozen", smallModel, []string{"loss float32"}, Options{Frozen: []string{"*"}}, new(*LossError), "every parameter that it depends on is frozen"},
		{"integer parameter", smallModel, []string{"loss float32"}, Options{Params: []string{"ids"}}, new(*ParameterError), `parameter "ids": it is int64[2], and only floats can be trained`},
		{"unreached parameter", smallModel, []string{"loss float32"}, Options{Params: []string{"unused"}}, new(*ParameterError), "the loss does not depend on it"},
		{"no such parameter", smallModel, []string{"loss float32"}, Options{Params: []string{"v*"}}, new(*ParameterError), "matches no initializer"},
		{"bad pattern", smallModel, []string{"loss float32"}, Options{Frozen: []string{"[a"}}, new(*ParameterError), "not a valid pattern"},
		{"clash", "in w.grad int64[2]\n" + smallModel, []string{"loss float32"}, Options{}, new(*ClashError), `"w.grad"`},
		{"no rule", "in x float32[3]\ninit w float32[3] = [1,2,3]\na = Mul(x, w)\nb = my.domain.Swirl(a)\nloss = ReduceSum(b) {keepdims=0}", []string{"loss float32[]"}, Options{}, new(*MissingRuleError), "no gradient rule for operator Swirl of domain my.domain, opset 0"},
		{"through a list", "in x float32[3]\ninit w float32[3] = [1,2,3]\ninit v float32[3] = [1,2,3]\nin i int64[]\na = Mul(x, w)\ns = SequenceConstruct(a, a)\nr = SequenceMap(s) {body=graph body {\nin e float32[3]\nf = Neg(e)\nout f float32[3]\n}}\nb = SequenceAt(r, i)\nc = Mul(b, v)\nloss = ReduceSum(c) {keepdims=0}", []string{"loss float32[]"}, Options{}, new(*MissingRuleError), `node "b": no gradient rule for operator SequenceAt`},
		{"a place in a list of parts", "in x float32[3]\ninit w float32[3] = [1,2,3]\nin i int64[]\na = Mul(x, w)\ns = SplitToSequence(a)\nb = SequenceAt(s, i)\nloss = ReduceSum(b) {keepdims=0}", []string{"loss float32[]"}, Options{}, new(*MissingRuleError), `node "b": no gradient rule for operator SequenceAt of domain ai.onnx, opset 20: the length of a list, or a place in it`},
		{"control flow", "in x float32[3]\ninit w float32[3] = [1,2,3]\nin n int64[]\na = Mul(x, w)\nr = Loop(n, _, a) {body=graph body {\nin i int64[]\nin c bool[]\nin v float32[3]\nd = Identity(c)\ne = Mul(v, v)\nout d bool[]\nout e float32[3]\n}}\nloss = ReduceSum(r) {keepdims=0}", []string{"loss float32[]"}, Options{}, new(*UnsupportedError), "trips is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Differentiate(parseGraph(t, c.body, c.outs...), c.opts)
			if err == nil || !errors.As(err, c.as) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %T with %q", err, c.as, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

// TestOldOpset: an operator without a rule is named with the opset of the file, not with the one that the
// file is brought to.
func TestOldOpset(t *testing.T) {
	m, err := onnx.Parse("model ir=8 opset=17\ngraph g {\nin x float32[3]\ninit w float32[3] = [1,2,3]\na = Mul(x, w)\nb = Erfc(a)\nloss = ReduceSum(b) {keepdims=0}\nout loss float32[]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Differentiate(m, Options{}); err == nil || !strings.Contains(err.Error(), "operator Erfc of domain ai.onnx, opset 17:") {
		t.Errorf("got %v", err)
	}
}

// TestLossBesideMetrics: of several scalar outputs the only one that training changes is
// the loss, which is said; an accuracy is none, also one that constants weigh. Where
// several could be it, or none, the question stays open.
func TestLossBesideMetrics(t *testing.T) {
	const accuracy = `
guess = ArgMax(z) {axis=1, keepdims=0}
right = Equal(guess, t)
rightf = Cast(right) {to=1}
init weights float32[4] = [0, -1e9, 0, -1e9]
weighed = Add(rightf, weights)
acc = ReduceMean(weighed) {keepdims=0}
count = Size(t)
countf = Cast(count) {to=1}
`
	three := []string{"acc float32", "loss float32", "countf float32"}
	for _, c := range []struct {
		name, more string
		outs       []string
		loss       string
	}{
		{"accuracy", "", three, "loss"},
		{"a second loss", "l2 = Neg(loss)", append(slices.Clone(three), "l2 float32"), ""},
		{"metrics alone", "", []string{"acc float32", "countf float32"}, ""},
	} {
		res, err := Differentiate(parseGraph(t, smallModel+accuracy+c.more, c.outs...), Options{})
		var unclear *LossError
		switch {
		case c.loss == "":
			if !errors.As(err, &unclear) || len(unclear.Candidates) != len(c.outs) {
				t.Errorf("%s: got %v, want a question", c.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case res.Loss.Name != c.loss || len(res.Params) != 2:
			t.Errorf("%s: loss %s of %d parameters, want %s of 2", c.name, res.Loss.Name, len(res.Params), c.loss)
		case !slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.Contains(w, "no gradient leads from acc, countf to a parameter") }):
			t.Errorf("%s: nothing says which output was taken: %q", c.name, res.Warnings)
		}
	}
}

// TestMissingRuleOffThePath: an operator without a rule matters only where a
// gradient must pass it.
func TestMissingRuleOffThePath(t *testing.T) {
	m := parseGraph(t, smallModel+"other = my.domain.Swirl(x)", "loss float32", "other float32")
	if _, err := Differentiate(m, Options{}); err != nil {
		t.Error(err)
	}
}

func TestDecisions(t *testing.T) {
	body := `in x float32[2,4]
init w float32[4,4] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]
init mask float32[1,4] = [0, -1e9, 0, -1e9]
init table float32[2,4] = [1, 1, 1, 1, 0.5, 0.9, 0.99, 0.999]
init scale float32[4] = [1, 1, 1, 1]
init one float32[1] = [3]
init frozen.w float32[4] = [1, 2, 3, 4]
init inv_freq float32[4] = [1, 0.5, 0.25, 0.125]
init positions float32[2,1] = [1, 2]
angles = Mul(positions, inv_freq)
sines = Sin(angles)
cosines = Cos(angles)
q = MatMul(x, w)
q1 = Mul(q, sines)
q2 = Mul(q, cosines)
a = Add(q1, q2)
b = Add(a, mask)
c = Mul(b, table)
d = Mul(c, scale)
e = Mul(d, one)
f = Add(e, frozen.w)
loss = ReduceMean(f) {keepdims=0}
`
	res, err := Differentiate(parseGraph(t, body, "loss float32"), Options{Frozen: []string{"frozen.*"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Decision{}
	for _, d := range res.Decisions {
		got[d.Name] = d
	}
	for _, want := range []Decision{
		{Name: "w", Trained: true, Reason: "a gradient reaches it", Source: FromUse},
		{Name: "mask", Reason: "a mask", Source: FromContent},
		{Name: "table", Reason: "a table of sines or cosines", Source: FromContent},
		{Name: "scale", Trained: true, Reason: "only used elementwise", Source: FromContent, Open: true},
		{Name: "frozen.w", Reason: "named in --frozen", Source: FromOptions},
		{Name: "inv_freq", Reason: "a table of frequencies", Source: FromContent},
		{Name: "positions", Reason: "a table of frequencies", Source: FromContent},
	} {
		d, ok := got[want.Name]
		if !ok || d.Trained != want.Trained || d.Open != want.Open || d.Source != want.Source || !strings.HasPrefix(d.Reason, want.Reason) {
			t.Errorf("%s: got %+v, want %+v", want.Name, d, want)
		}
	}
	if len(got) != 7 {
		t.Errorf("decided about %v", got)
	}
	if len(res.Params) != 2 || res.Params[0].Name != "w" || res.Params[1].Name != "scale" {
		t.Errorf("parameters %v", res.Params)
	}
}

// TestMasks: two numbers, one of them zero, are no weights of a matrix that is only multiplied or
// added, whatever the other is, and neither is a number so large; a fresh bias may be both.
func TestMasks(t *testing.T) {
	for w, trained := range map[string]bool{
		"[2,2] = [0.5,0,0.5,0.5]": false,
		"[1,2] = [0,1e9]":         false,
		"[1,2] = [0,2]":           true,
		"[2,2] = [0.5,0,0.5,0.7]": true,
		"[2,2] = [0,0,0,0]":       true,
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit v float32[2,2] = [1,2,3,5]\ninit w float32"+w+"\na = MatMul(x, v)\ny = Mul(a, w)\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
		if got, _ := trainedOf(t, m); slices.Contains(got, "w") != trained {
			t.Errorf("%s: trained %v", w, got)
		}
	}
}

// TestFrequencies: what only ends in sines is a table where it multiplies
// positions and holds frequencies, and a weight where it meets an activation.
func TestFrequencies(t *testing.T) {
	const (
		head  = "in ids int64[1,3]\nin x float32[3,2]\nin time float32[3,1]\ninit q float32[3,4] = [1,2,3,4,5,6,7,8,9,10,11,12]\n"
		tail  = "a = Sin(z)\nb = Cos(z)\nc = Mul(a, q)\nd = Mul(b, c)\nloss = ReduceSum(d) {keepdims=0}"
		freq  = "init w float32[1,4] = [1, 0.1, 0.01, 0.001]\n"
		rough = "init w float32[2,4] = [0.3, -0.2, 0.1, 0.7, -0.4, 0.2, 0.9, -0.1]\n"
	)
	for name, c := range map[string]struct {
		body    string
		trained bool
	}{
		"positions from ids": {"init w float32[1,4,1] = [1, 0.1, 0.01, 0.001]\np = Cast(ids) {to=1}\ninit s int64[3] = [1, 1, 3]\np1 = Reshape(p, s)\nm = MatMul(w, p1)\nz = Transpose(m) {perm=[0,2,1]}\n", false},
		"positions counted":  {freq + "init o float32[] = 0\ninit n float32[] = 3\ninit k float32[] = 1\nr = Range(o, n, k)\ninit s int64[2] = [3, 1]\np = Reshape(r, s)\nz = Mul(p, w)\n", false},
		"positions constant": {freq + "init p float32[3,1] = [0, 1, 2]\nz = Mul(p, w)\n", false},
		"both halves":        {"init w float32[1,4] = [1, 0.5, 1, 0.5]\ninit p float32[3,1] = [0, 1, 2]\nz = Mul(p, w)\n", false},
		"angles gathered":    {"init w float32[4,4] = [0,0,0,0, 1,0.5,0.25,0.125, 2,1,0.5,0.25, 3,1.5,0.75,0.375]\ng = Gather(w, ids)\ninit s int64[2] = [3, 4]\nz = Reshape(g, s)\n", false},
		"time of diffusion":  {freq + "z = Mul(time, w)\n", false},
		"uneven, of a time":  {"init w float32[1,4] = [0.9, 0.8, 0.1, 0.05]\nz = Mul(time, w)\n", true},
		"sine layer":         {rough + "z = MatMul(x, w)\n", true},
		"sine layer, scaled": {rough + "init f float32[] = 30\ny = MatMul(x, w)\nz = Mul(y, f)\n", true},
		"sine layer, bias":   {rough + "init b0 float32[4] = [0.4, 0.3, 0.2, 0.1]\nz = Gemm(x, w, b0)\n", true},
		"of an embedding":    {freq + "init e float32[9,1] = [0.3, 0.2, -0.5, 1, 2, 3, 4, 5, 6]\ng = Gather(e, ids)\ninit s int64[2] = [3, 1]\ny = Reshape(g, s)\nz = Mul(y, w)\n", true},
		"learned, on a grid": {rough + "init p float32[3,2] = [0, 1, 2, 3, 4, 5]\nz = MatMul(p, w)\n", true},
	} {
		res, err := Differentiate(parseGraph(t, head+c.body+tail, "loss float32"), Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, d := range res.Decisions {
			if (d.Name == "w" || d.Name == "b0") && d.Trained != c.trained {
				t.Errorf("%s: %s trained %v: %s", name, d.Name, d.Trained, d.Reason)
			}
			if d.Name == "p" && d.Trained && !c.trained {
				t.Errorf("%s: the positions are trained: %s", name, d.Reason)
			}
		}
	}
}

func TestSharedParameterWarns(t *testing.T) {
	body := `in x float32[2,4]
init s float32[4] = [1, 1, 1, 1]
init e float32[6,4] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24]
init i int64[2] = [0, 5]
g = Gather(e, i)
h = Add(g, x)
a = LayerNormalization(h, s)
b = LayerNormalization(a, s)
z = Gemm(b, e) {transB=1}
loss = ReduceMean(z) {keepdims=0}
`
	res, err := Differentiate(parseGraph(t, body, "loss float32"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], `"s" is used in 2 places`) {
		t.Errorf("warnings %q: the shared scale is meant, not the tied embedding", res.Warnings)
	}
}

func TestResultInTheGraph(t *testing.T) {
	m := parseGraph(t, smallModel, "loss float32", "z float32")
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var outs, ins []string
	for _, o := range m.Graph.Outputs {
		outs = append(outs, o.Name)
	}
	for _, in := range m.Graph.Inputs {
		ins = append(ins, in.Name)
	}
	if strings.Join(outs, " ") != "loss z w.grad b.grad" || strings.Join(ins, " ") != "x t w b" {
		t.Errorf("inputs %v, outputs %v", ins, outs)
	}
	for _, p := range res.Params {
		if p.Input.Init != nil || p.Data == nil || !p.Grad.Type.Shape.Equal(p.Input.Type.Shape) {
			t.Errorf("%s: input %v, data %v, gradient %s", p.Name, p.Input.Init, p.Data, p.Grad.Type)
		}
	}
	text, _ := m.Metadata(step.RolesKey)
	var roles step.Roles
	if err := json.Unmarshal([]byte(text), &roles); err != nil || roles.Loss != "loss" || roles.Grad["w"] != "w.grad" || len(roles.Grad) != 2 {
		t.Errorf("roles %q: %v", text, err)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") {
			t.Errorf("%s is left", n.OpType())
		}
	}
}

// TestTables: constants that an exporter computed ahead are told from weights
// by what they hold and by where they go.
func TestTables(t *testing.T) {
	rows := func(n, width int, f func(i, k float64) float64) string {
		var list []string
		for i := range n {
			for k := range width {
				list = append(list, fmt.Sprintf("%.8g", float32(f(float64(i), float64(k)))))
			}
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	wave := func(i, k float64) float64 { return 1.14 * math.Cos(i*math.Pow(10, -k)) }
	const score = "z = Add(q, c)\nz1 = Softmax(z)\nloss = ReduceMax(z1) {keepdims=0}"
	const value = "z = Mul(q, c)\nloss = ReduceSum(z) {keepdims=0}"
	for name, c := range map[string]struct {
		constant, tail string
		trained        bool
	}{
		"scaled cosines": {rows(8, 4, wave), value, false},
		"sines beside cosines": {rows(8, 4, func(i, k float64) float64 {
			return math.Sin(i*math.Pow(10, -math.Floor(k/2)) + math.Pi/2*math.Mod(k, 2))
		}), value, false},
		"nearly cosines":         {rows(8, 4, func(i, k float64) float64 { return wave(i, k) + 0.01*math.Sin(7*i*i+k) }), value, true},
		"equal rows":             {rows(8, 4, func(i, k float64) float64 { return k + 0.3 }), value, true},
		"a mask of nothing":      {rows(8, 4, func(i, k float64) float64 { return 0 }), score, false},
		"a window":               {rows(8, 4, func(i, k float64) float64 { return -100 * math.Mod(i+k, 2) }), score, false},
		"zeros that are no mask": {rows(8, 4, func(i, k float64) float64 { return 0 }), value, true},
		"distances":              {rows(8, 4, func(i, k float64) float64 { return k * math.Pow(2, -i) }), score, false},
		"a learned bias":         {rows(8, 4, func(i, k float64) float64 { return math.Sin(3*i*i + k*k) }), score, true},
	} {
		body := "in x float32[2,8,4]\ninit w float32[4,4] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]\nq = MatMul(x, w)\ninit c float32[1,8,4] = " + c.constant + "\n" + c.tail
		res, err := Differentiate(parseGraph(t, body, "loss float32"), Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, d := range res.Decisions {
			if d.Name == "c" && d.Trained != c.trained {
				t.Errorf("%s: trained %v: %s", name, d.Trained, d.Reason)
			}
		}
	}
}

// TestFirstOfItsDomain: an operator that is written out with products of the
// ort dialect is differentiated through them, though the model imports no such
// domain.
func TestFirstOfItsDomain(t *testing.T) {
	body := "in q float32[2,3,4,5]\ninit w float32[5,5] = [" + strings.TrimSuffix(strings.Repeat("0.1,0.2,0.3,0.4,0.5,", 5), ",") + "]\n" +
		"k = MatMul(q, w)\na = Attention(q, k, k)\nloss = ReduceMean(a) {keepdims=0}\nout loss float32"
	m, err := onnx.Parse("model ir=9 opset=23\ngraph g {\n" + body + "\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Differentiate(m, Options{Dialect: DialectORT}); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// TestOutputsKeepTheirNames: a gradient that normalizing writes anew is still
// the output that roles and results speak of.
func TestOutputsKeepTheirNames(t *testing.T) {
	body := "in x float32[2,4,3,3]\ninit s float32[4] = [1, 2, 3, 4]\ninit b float32[4] = [4, 3, 2, 1]\n" +
		"a = GroupNormalization(x, s, b) {num_groups=2}\nc = Mul(a, a)\nloss = ReduceMean(c) {keepdims=0}\nout loss float32"
	m, err := onnx.Parse("model ir=10 opset=21\ngraph g {\n" + body + "\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.Params {
		if p.Grad == nil || !p.Grad.IsOutput() || p.Grad.Name != p.Name+".grad" {
			t.Errorf("%s: gradient %v", p.Name, p.Grad)
		}
	}
	text, _ := m.Metadata(step.RolesKey)
	if res.Loss == nil || res.Loss.Name != "loss" || strings.Contains(text, ".old") {
		t.Errorf("loss %v, roles %s", res.Loss, text)
	}
}

// TestOtherLossIsLowered: a loss that is not differentiated has no kernel
// either.
func TestOtherLossIsLowered(t *testing.T) {
	m := parseGraph(t, smallModel+"q = LogSoftmax(z)\nnll = NegativeLogLikelihoodLoss(q, t)\nother, p = SoftmaxCrossEntropyLoss(z, t) {ignore_index=1}", "loss float32", "nll float32", "other float32", "p float32")
	if _, err := Differentiate(m, Options{Loss: "loss"}); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") {
			t.Errorf("%s is left", n.Label())
		}
	}
	x := onnx.FloatTensor(onnx.Float32, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 3, 2}, 4, 3)
	w := onnx.FloatTensor(onnx.Float32, []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, .1, .2, .3, .4, .5, .6}, 3, 5)
	b := onnx.FloatTensor(onnx.Float32, []float64{1, 2, 3, 4, 5}, 5)
	out := ortest.Run(t, m, 99, map[string]*onnx.Tensor{"x": x, "w": w, "b": b, "t": onnx.Int64Tensor([]int64{1, 0, 4, 2}, 4)})
	if a, b := out["loss"][0], out["nll"][0]; math.Abs(a-b) > 1e-5 || a < 0.5 {
		t.Errorf("the same loss is %g and %g", a, b)
	}
}

// TestUnneededGradients: what is not trained costs nothing.
func TestUnneededGradients(t *testing.T) {
	m := parseGraph(t, smallModel, "loss float32")
	if _, err := Differentiate(m, Options{Params: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	gemms := 0
	for _, n := range m.Graph.Nodes {
		if n.Is("Gemm") {
			gemms++
		}
	}
	if gemms != 1 {
		t.Errorf("%d Gemms where only the bias is trained", gemms)
	}
}

// TestTablesWithoutWaves: tables of zeros, of equal rows, whose steps are zeros, and of
// no numbers are no sines.
func TestTablesWithoutWaves(t *testing.T) {
	for name, at := range map[string]func(i int) float64{
		"zeros":      func(int) float64 { return 0 },
		"equal rows": func(i int) float64 { return float64(i%4) + 0.5 },
		"no numbers": func(int) float64 { return math.NaN() },
	} {
		m, err := onnx.Parse("model ir=10 opset=18\ngraph g {\n  in x float32[8,4]\n  init table float32[8,4] = zeros\n  y = Add(x, table)\n  out y float32[8,4]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		values := make([]float64, 32)
		for i := range values {
			values[i] = at(i)
		}
		table := m.Graph.Value("table")
		table.Init = onnx.FloatTensor(onnx.Float32, values, 8, 4)
		if sineTable(table) {
			t.Errorf("%s are taken for sines", name)
		}
	}
}

// TestSchedule: noise levels that are gathered by the time are a table, and so is what is gathered
// beside one; another vector in no order, or one that is read whole, may be a weight.
func TestSchedule(t *testing.T) {
	for name, c := range map[string]struct {
		levels, use string
		trained     bool
	}{
		"falling":   {"[0.99, 0.98, 0.95, 0.9, 0.8, 0.6, 0.3, 0.1]", "g = Gather(levels, t)", false},
		"rising":    {"[1, 2, 3, 4, 5, 6, 7, 8]", "i = Identity(levels)\ng = Gather(i, t)", false},
		"no order":  {"[0.99, 0.98, 0.95, 0.96, 0.8, 0.6, 0.3, 0.1]", "g = Gather(levels, t)", true},
		"beside":    {"[0.2, 0.6, 0.8, 0.66, 0.5, 0.3, 0.2, 0.1]", "n = GatherElements(noise, t)\nl = GatherElements(levels, t)\ng = Mul(n, l)", false},
		"elsewhere": {"[0.2, 0.6, 0.8, 0.66, 0.5, 0.3, 0.2, 0.1]", "n = Gather(noise, t)\nl = Gather(levels, item)\ng = Mul(n, l)", true},
		"whole":     {"[0.99, 0.98, 0.95, 0.9, 0.8, 0.6, 0.3, 0.1]", "h = Gather(levels, t)\nm = MatMul(levels, w)\ng = Mul(h, m)", true},
	} {
		m := parseGraph(t, "in t int64[4]\nin item int64[4]\ninit noise float32[8] = [9,8,7,6,5,4,3,2]\ninit w float32[8,4] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32]\n"+
			"init v float32[4] = [1,3,2,4]\ninit levels float32[8] = "+c.levels+"\n"+c.use+"\ny = Mul(g, v)\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		trained := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == "levels" })
		told := slices.ContainsFunc(res.Decisions, func(d Decision) bool {
			return d.Name == "levels" && !d.Trained && strings.Contains(d.Reason, "a schedule: ")
		})
		if trained != c.trained || told == c.trained {
			t.Errorf("%s: trained %v, told %v", name, trained, told)
		}
	}
}

// TestRotaryTables: what only cosines or sines of a RotaryEmbedding are made of is a table, unless
// it is named.
func TestRotaryTables(t *testing.T) {
	for name, c := range map[string]struct {
		shape, use, params string
		trained            bool
	}{
		"cosines":     {"[1,2,2]", "r = RotaryEmbedding(h, t, t)", "", false},
		"of places":   {"[2,2]", "i = Gather(t, p)\nr = RotaryEmbedding(h, i, i)", "", false},
		"frequencies": {"[1,2,2]", "i = Cos(t)\nj = Sin(t)\nr = RotaryEmbedding(h, i, j)", "", false},
		"named":       {"[1,2,2]", "r = RotaryEmbedding(h, t, t)", "t", true},
		"elsewhere":   {"[1,2,2]", "m = ReduceSum(t) {keepdims=0}\nk = Mul(h, m)\nr = RotaryEmbedding(k, t, t)", "", true},
	} {
		m, err := onnx.Parse("model ir=11 opset=23\ngraph g {\nin x float32[1,2,2,4]\ninit w float32[4,4] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,17]\ninit p int64[1,2] = [1, 0]\ninit t float32" +
			c.shape + " = [0.3, 0.9, 0.8, 0.1]\nh = MatMul(x, w)\n" + c.use + "\nq = Mul(r, r)\nloss = ReduceMean(q) {keepdims=0}\nout loss float32\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		o := Options{}
		if c.params != "" {
			o.Params = []string{c.params}
		}
		res, err := Differentiate(m, o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == "t" }); got != c.trained {
			t.Errorf("%s: trained %v", name, got)
		}
	}
}

// TestEvenlySpaced: a vector of PyTorch's that is evenly spaced and only used elementwise may be
// a buffer, as the support of a distribution, and is asked about; another is a weight.
func TestEvenlySpaced(t *testing.T) {
	for name, c := range map[string]struct {
		values string
		open   bool
	}{
		"rising":  {"[-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]", true},
		"falling": {"[0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0]", true},
		"uneven":  {"[-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.6]", false},
		"equal":   {"[1, 1, 1, 1, 1, 1, 1, 1]", false},
	} {
		m := parseTorch(t, "in x float32[2,8]\ninit support float32[8] = "+c.values+"\ny = Mul(x, support)\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		m.Graph.Nodes[0].SetName("/Mul")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(res.Decisions) != 1 || res.Decisions[0].Open != c.open || !res.Decisions[0].Trained {
			t.Errorf("%s: %+v", name, res.Decisions)
		}
	}
}

// TestCoordinates: a grid whose every number depends on one axis is none that is trained, in any
// order of axes; a matrix, or a grid with one number that is off, may be a weight.
func TestCoordinates(t *testing.T) {
	for name, c := range map[string]struct {
		shape, values string
		trained       bool
	}{
		"rows first":    {"1,3,4,2", "-1,-2, -1,-0.5, -1,0.5, -1,2, 0,-2, 0,-0.5, 0,0.5, 0,2, 1,-2, 1,-0.5, 1,0.5, 1,2", false},
		"columns first": {"3,4,2", "3,0, 2,0, 1,0, 0,0, 3,1, 2,1, 1,1, 0,1, 3,5, 2,5, 1,5, 0,5", false},
		"off":           {"1,3,4,2", "-1,-2, -1,-0.5, -1,0.5, -1,2, 0,-2, 0,-0.5, 0,0.5, 0,2, 1,-2, 1,-0.5, 1,0.5, 1.25,2", true},
		"not monotone":  {"1,3,4,2", "-1,-2, -1,-0.5, -1,-1, -1,2, 0,-2, 0,-0.5, 0,-1, 0,2, 1,-2, 1,-0.5, 1,-1, 1,2", true},
		"one axis":      {"3,4,2", "0,0, 0,0, 0,0, 0,0, 1,1, 1,1, 1,1, 1,1, 2,2, 2,2, 2,2, 2,2", true},
		"matrix":        {"12,2", "1,2, 2,3, 3,4, 4,5, 5,6, 6,7, 7,8, 8,9, 9,10, 10,11, 11,12, 12,13", true},
	} {
		m := parseGraph(t, "init w float32[2,4] = [1,2,3,4,5,6,7,8]\ninit grid float32["+c.shape+"] = ["+c.values+"]\ny = MatMul(grid, w)\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if trained := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == "grid" }); trained != c.trained {
			t.Errorf("%s: trained %v: %+v", name, trained, res.Decisions)
		}
	}
}

// TestFilling: equal numbers at full size, between which and another value a Where selects, are a
// constant; other numbers, a vector as a mask's token is, and what something else reads, are not.
func TestFilling(t *testing.T) {
	for name, c := range map[string]struct {
		w, use  string
		trained bool
	}{
		"zeros":        {"[2,3] = [0,0,0,0,0,0]", "y = Where(m, h, w)", false},
		"first":        {"[2,3] = [0.5,0.5,0.5,0.5,0.5,0.5]", "y = Where(m, w, h)", false},
		"no numbers":   {"[3] = [nan,nan,nan]", "v = ReduceMean(h) {axes=[0], keepdims=0}\np = Greater(v, none)\ny = Where(p, v, w)", false},
		"vector":       {"[3] = [0,0,0]", "v = ReduceMean(h) {axes=[0], keepdims=0}\np = Greater(v, none)\ny = Where(p, v, w)", true},
		"learnt":       {"[2,3] = [1,2,3,5,4,6]", "y = Where(m, h, w)", true},
		"token":        {"[1,3] = [0,0,0]", "y = Where(m, w, h)", true},
		"read as well": {"[2,3] = [0,0,0,0,0,0]", "z = Where(m, h, w)\ny = Add(z, w)", true},
	} {
		m := parseGraph(t, "in x float32[2,3]\ninit k float32[3,3] = [1,2,3,4,5,6,7,8,9]\ninit none float32[] = [0]\ninit w float32"+c.w+
			"\nh = MatMul(x, k)\nm = Greater(h, none)\n"+c.use+"\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if trained := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == "w" }); trained != c.trained {
			t.Errorf("%s: trained %v: %+v", name, trained, res.Decisions)
		}
	}
}

// TestGroupNorm: TorchScript computes the axes of a group normalization's scale and shift
// ahead, so that they have no name, and of a fresh model all elements are equal.
func TestGroupNorm(t *testing.T) {
	const norm = "in x float32[2,4,2,2]\ninit k float32[4,1,1] = [2,3,4,5]\ninit one float32[2] = [1,1]\ninit zero float32[2] = [0,0]\ninit groups int64[3] = [0,2,-1]\ninit whole int64[4] = [2,4,2,2]\n" +
		"x0 = Mul(x, k)\nr = Reshape(x0, groups)\nn = InstanceNormalization(r, one, zero)\nz = Reshape(n, whole)\n"
	for name, c := range map[string]struct {
		w, use  string
		trained bool
	}{
		"fresh scale":   {"[4,1,1] = [1,1,1,1]", "y = Mul(z, onnx::w)", true},
		"fresh shift":   {"[4,1,1] = [0,0,0,0]", "s = Mul(k, z)\ny = Add(s, onnx::w)", true},
		"trained scale": {"[4,1,1] = [1,2,1,3]", "y = Mul(onnx::w, z)", true},
		"of pixels":     {"[1,2,2] = [1,1,1,1]", "y = Mul(z, onnx::w)", false},
		"elsewhere":     {"[4,1,1] = [1,1,1,1]", "y = Mul(x0, onnx::w)", false},
		"and elsewhere": {"[4,1,1] = [1,1,1,1]", "a = Mul(x0, onnx::w)\nb = Mul(z, onnx::w)\ny = Add(a, b)", false},
	} {
		m := parseTorch(t, norm+"init onnx::w float32"+c.w+"\n"+c.use+"\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		i := slices.IndexFunc(res.Decisions, func(d Decision) bool { return d.Name == "onnx::w" })
		if i < 0 || res.Decisions[i].Trained != c.trained || res.Decisions[i].Open {
			t.Errorf("%s: %+v", name, res.Decisions)
		}
	}
}

// TestComputedAhead: what TorchScript or tf2onnx computed of a parameter is trained in its
// place, with a warning; what no parameter can be told from is none of it.
func TestComputedAhead(t *testing.T) {
	for _, c := range []struct {
		producer, name, op string
		warned             bool
	}{
		{"pytorch", "onnx::Add_7", "Add", true},
		{"pytorch", "net.table", "Add", false},
		{"pytorch", "onnx::MatMul_7", "MatMul", false},
		{"pytorch", "onnx::Gemm_7", "Gemm", true},          // Linear's matrix stays where it is not computed
		{"pytorch", "/a/wpe/Gather_output_0", "Add", true}, // by a tool behind it
		{"pytorch", "/a/Constant_2_output_0", "Add", false},
		{"pytorch", "/a/Transpose_output_0", "Add", false},
		{"tf2onnx", "const_fold_opt__7", "Add", true},
		{"tf2onnx", "const_fold_opt__7", "MatMul", false},
		{"tf2onnx", "net/norm/batchnorm/mul:0", "Mul", true},
		{"tf2onnx", "net/norm/Reshape_1:0", "Mul", false},
		{"tf2onnx", "net/dense/Add/ReadVariableOp:0", "Add", false},
		{"tf2onnx", "net/dense/MatMul/merged_input:0", "MatMul", true}, // by TensorFlow, with a scale
		{"tf2onnx", "net/dense/Reshape:0", "MatMul", false},
		{"tf2onnx", "net/while/input_8:0", "MatMul", false},
		{"tf2onnx", "net/conv_weights_fused_bn", "MatMul", true},
		{"pytorch", "ConvBnFusion_W_net.weight", "MatMul", true}, // by ONNX Runtime
		{"", "ConvMulFusion_W_net.weight", "MatMul", true},
		{"pytorch", "/net/Add_output_0_weight_fused", "Gemm", true}, // by onnxslim, with a scale
		{"pytorch", "/net/MatMul_output_0_weight", "Gemm", false},
	} {
		m := parseGraph(t, fmt.Sprintf("in x float32[2,2]\ninit %s float32[2,2] = [1,2,3,1]\n/a/y = %s(x, %s)%s\nq = Mul(/a/y, /a/y)\nloss = ReduceMean(q) {keepdims=0}", c.name, c.op, c.name, map[bool]string{true: " {transB=1}"}[c.op == "Gemm"]), "loss float32")
		m.Proto.ProducerName = &c.producer
		m.Graph.Nodes[0].SetName("/a/first")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, " "), "computed values ahead"); got != c.warned {
			t.Errorf("%+v: %q", c, res.Warnings)
		}
	}
}

// TestHeldByConstants: what a tool computed ahead and holds in Constant nodes is chosen as an
// initializer is, and a state's value of it finds its place.
func TestHeldByConstants(t *testing.T) {
	for _, c := range []struct {
		producer, name string
		held           bool
	}{
		{"pytorch", "/a/wpe/Gather_output_0", true},
		{"pytorch", "/a/Constant_2_output_0", false},
		{"pytorch", "onnx::Add_7", false},
		{"other", "/a/wpe/Gather:0", false},
	} {
		graph := func() *onnx.Model {
			m := parseGraph(t, "in x float32[2,2]\ninit net.bias float32[2] = [1,2]\n"+c.name+" = Constant() {value=tensor(float32[2,2] = [1,2,3,1])}\n/a/y = Add(x, "+c.name+")\nz = Add(/a/y, net.bias)\nq = Mul(z, z)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
			m.Proto.ProducerName = &c.producer
			m.Graph.Nodes[1].SetName("/a/first")
			return m
		}
		m := graph()
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		held := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == c.name })
		if warned := strings.Contains(strings.Join(res.Warnings, " "), "computed values ahead"); held != c.held || warned != c.held {
			t.Errorf("%+v: trained %v, %q", c, held, res.Warnings)
		}
		if err := m.Check(); err != nil {
			t.Error(err)
		}
		forward := graph()
		if err := Unmerge(forward, func(name string) bool { return name == c.name }); err != nil {
			t.Fatal(err)
		}
		if v := forward.Graph.Value(c.name); (v.Init != nil) != c.held {
			t.Errorf("%+v: the forward model's is an initializer: %v", c, v.Init != nil)
		}
		if err := forward.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestNegatedAhead: a parameter whose negation TorchScript computed ahead is named.
func TestNegatedAhead(t *testing.T) {
	for value, warned := range map[string]bool{"-0": true, "0": false, "1": false} {
		m := parseTorch(t, "in x float32[2]\ninit log_var float32[] = 0\ninit onnx::Exp_4 float32[] = "+value+"\ne = Exp(onnx::Exp_4)\na = Mul(x, e)\nb = Add(a, log_var)\nloss = ReduceMean(b) {keepdims=0}", "loss float32")
		m.Graph.Nodes[0].SetName("/Exp")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, " "), "do_constant_folding=False: log_var"); got != warned {
			t.Errorf("%s: %q", value, res.Warnings)
		}
	}
}

// TestSpectralNorm: the vectors of PyTorch's spectral norms, which its steps change without a
// gradient, are no parameters, by the names that they have beside their weight's.
func TestSpectralNorm(t *testing.T) {
	for _, c := range []struct {
		weight, vector string
		trained        bool
	}{
		{"l.weight_orig", "l.weight_u", false},
		{"l.parametrizations.weight.original", "l.parametrizations.weight.0._v", false},
		{"l.weight", "l.weight_u", true},
	} {
		m := parseTorch(t, fmt.Sprintf("in x float32[2,2]\ninit %s float32[2,2] = [1,2,3,1]\ninit %s float32[2,1] = [1,2]\nwv = MatMul(%s, %s)\ny = MatMul(x, wv)\nloss = ReduceMean(y) {keepdims=0}",
			c.weight, c.vector, c.weight, c.vector), "loss float32")
		m.Graph.Nodes[0].SetName("/l/MatMul")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == c.vector }); got != c.trained {
			t.Errorf("%s beside %s: trained %v", c.vector, c.weight, got)
		}
	}
}

// TestUnknownShape: a shape that nothing in the graph has names the sizes that settle it.
func TestUnknownShape(t *testing.T) {
	m := parseGraph(t, "in x float32[b,n,2]\ninit w float32[2,2] = [1,2,3,4]\ninit from int64[1] = [0]\ninit to int64[1] = [99]\ninit axis int64[1] = [1]\ninit step int64[1] = [2]\n"+
		"k = Slice(x, from, to, axis, step)\nk1 = MatMul(k, w)\n"+
		"kt = Transpose(k1) {perm=[0,2,1]}\nz = MatMul(x, kt)\nv = MatMul(z, k1)\nloss = ReduceMean(v) {keepdims=0}", "loss float32")
	_, err := Differentiate(m, Options{})
	if err == nil || !strings.Contains(err.Error(), "fix sizes with --dim b=N,") || !strings.Contains(err.Error(), "n=N") {
		t.Error(err)
	}
}

// TestUnknownShapeOfADivision: what a stride leaves of a length is settled by the length, not by the batch beside it.
func TestUnknownShapeOfADivision(t *testing.T) {
	m := parseGraph(t, "in x float32[b,1,n]\ninit w float32[2,1,2] = [1,2,3,4]\nk = Conv(x, w) {strides=[2]}\nv = AveragePool(k) {kernel_shape=[2], strides=[2]}\nloss = ReduceMean(v) {keepdims=0}", "loss float32")
	if _, err := Differentiate(m, Options{}); err == nil || !strings.HasSuffix(err.Error(), "fix sizes with --dim n=N") {
		t.Error(err)
	}
}

// TestUnknownShapeOfData: a size that data decides, as the exporter names one u0, is none that --dim takes.
func TestUnknownShapeOfData(t *testing.T) {
	m := parseGraph(t, "in x float32[b,2]\nloss = ReduceMean(x) {keepdims=0}", "loss float32")
	e := &engine{m: m}
	err := e.unknownShape(onnx.Shape{onnx.Symbol("b"), onnx.Symbol("(u0//128)")})
	if !strings.HasSuffix(err.Error(), "--dim b=N") {
		t.Error(err)
	}
	if err := e.unknownShape(onnx.Shape{onnx.Symbol("(u0//128)")}); strings.Contains(err.Error(), "--dim") {
		t.Error(err)
	}
}

// TestBeginnings: zeros with which a recurrence begins are no parameter; what a loop only
// hands on, what is named as a variable, and other numbers are.
func TestBeginnings(t *testing.T) {
	const (
		gru  = "init W float32[1,3,2] = [1,2,3,4,5,6]\ninit R float32[1,3,1] = [1,2,3]\ny, h = GRU(x, W, R, _, _, s) {hidden_size=1}\nq = Mul(h, h)"
		cell = "init w float32[2,2] = [1,2,3,4]\ninit u float32[3,2] = [1,2,3,4,5,6]\na = MatMul(s, w)\nb = MatMul(x1, u)\nc = Add(a, b)\nd = Tanh(c)\nq = Mul(d, d)"
		scan = `init w float32[2] = [1,2]
f, o = Scan(s, x) {num_scan_inputs=1, body=graph body {
  in c float32[3,2]
  in r float32[3,2]
  d = Add(c, r)
  e = Tanh(d)
  k = Identity(c)
  g = Identity(e)
  out %s float32[3,2]
  out e float32[3,2]
}}
p = Mul(o, w)
q = Mul(p, p)`
	)
	for name, c := range map[string]struct {
		state, name, body string
		producer          string
		trained           bool
	}{
		"a GRU's zeros":                 {"float32[1,3,1] = [0,0,0]", "s", gru, "", false},
		"reshaped":                      {"float32[3,1] = [0,0,0]", "z", "init to int64[3] = [1,3,1]\ns = Reshape(z, to)\n" + gru, "", false},
		"a GRU's numbers":               {"float32[1,3,1] = [0,1,0]", "s", gru, "", true},
		"a variable of TF":              {"float32[1,3,1] = [0,0,0]", "h/ReadVariableOp:0", "s = Identity(h/ReadVariableOp:0)\n" + gru, "tf2onnx", true},
		"of a module":                   {"float32[1,3,1] = [0,0,0]", "rnn.h0", "s = Identity(rnn.h0)\n" + gru, "pytorch", true},
		"what a Scan carries":           {"float32[3,2] = [0,0,0,0,0,0]", "s", fmt.Sprintf(scan, "g"), "", false},
		"what a Scan hands on":          {"float32[3,2] = [0,0,0,0,0,0]", "s", fmt.Sprintf(scan, "k"), "", true},
		"a row a sample, times weights": {"float32[2,2] = [0,0,0,0]", "s", cell, "", false},
		"beside one that is":            {"float32[2,2] = [0,0,0,0]", "s", "init h float32[2,2] = [0,0,0,0]\n" + strings.NewReplacer("MatMul(s, w)", "MatMul(h, w)", "q = Mul(d, d)", "e = Mul(d, s)\nq = Add(e, d)").Replace(cell), "", false},
		"a row a sample, of a module":   {"float32[2,2] = [0,0,0,0]", "rnn.h0", "s = Identity(rnn.h0)\n" + cell, "pytorch", true},
		"as many rows as no sample":     {"float32[3,2] = [0,0,0,0,0,0]", "s", "init w float32[2,2] = [1,2,3,4]\na = MatMul(s, w)\nb = MatMul(x1, a)\nq = Exp(b)", "", true},
		"a right factor":                {"float32[2,2] = [0,0,0,0]", "s", "init w float32[3,2] = [1,2,3,4,5,6]\na = MatMul(x1, w)\nb = MatMul(a, s)\nq = Exp(b)", "", true},
		"read by others too":            {"float32[1,3,1] = [0,0,0]", "s", "init one float32[1] = [1]\nx = Add(x0, s)\n" + gru, "", true},
	} {
		in := "in x float32[2,3,2]\n"
		if strings.Contains(c.body, "x1") {
			in = "in x1 float32[2,3]\n"
		}
		if strings.Contains(c.body, "x0") {
			in = "in x0 float32[2,3,2]\n"
		}
		m := parseGraph(t, in+"init "+c.name+" "+c.state+"\n"+c.body+"\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		m.Proto.ProducerName = &c.producer
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if i := slices.IndexFunc(res.Decisions, func(d Decision) bool { return d.Name == c.name }); i < 0 || res.Decisions[i].Trained != c.trained {
			t.Errorf("%s: %+v", name, res.Decisions)
		}
	}
}

// TestAddedBias: a number a channel that is added behind a convolution or a product with weights is its bias;
// where that has one of its own, or the numbers are of another axis, nothing tells.
func TestAddedBias(t *testing.T) {
	const conv = "init w float32[2,1,1,1] = [1,2]\nc = Conv(x, w)\n"
	for name, c := range map[string]struct {
		in, bias, body string
		sure           bool
	}{
		"a convolution's":     {"1,1,2,2", "1,2,1,1", conv, true},
		"behind an Identity":  {"1,1,2,2", "2,1,1", strings.Replace(conv, "c =", "i =", 1) + "c = Identity(i)\n", true},
		"of another axis":     {"1,1,2,2", "1,1,2,1", conv, false},
		"beside one":          {"1,1,2,2", "1,2,1,1", "init w float32[2,1,1,1] = [1,2]\ninit b float32[2] = [3,4]\nc = Conv(x, w, b)\n", false},
		"turned around":       {"1,2,2,2", "1,2,1,1", "init w float32[2,1,1,1] = [1,2]\nc = ConvTranspose(x, w) {group=2}\n", true},
		"a product's":         {"1,1,3", "2", "init w float32[3,2] = [1,2,3,4,5,6]\nc = MatMul(x, w)\n", true},
		"of weights turned":   {"1,1,3", "2", "init w float32[2,3] = [1,2,3,4,5,6]\nu = Transpose(w) {perm=[1,0]}\nc = MatMul(x, u)\n", true},
		"of what is computed": {"1,2,2", "2", "c = MatMul(x, x)\n", false},
	} {
		m := parseGraph(t, "in x float32["+c.in+"]\ninit s float32["+c.bias+"] = [0.5,-0.25]\n"+c.body+"d = Add(c, s)\nq = Mul(d, d)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if i := slices.IndexFunc(res.Decisions, func(d Decision) bool { return d.Name == "s" }); i < 0 || !res.Decisions[i].Trained || res.Decisions[i].Open == c.sure {
			t.Errorf("%s: %+v", name, res.Decisions)
		}
	}
}

// TestLoneBias: a recurrence whose second bias is zeros had one, and both are trained.
func TestLoneBias(t *testing.T) {
	for bias, warned := range map[string]bool{
		"[1,2,3,0,0,0]": true,
		"[1,2,3,0,1,0]": false,
		"[0,0,0,0,0,0]": false, // fresh ones tell nothing
	} {
		m := parseGraph(t, "in x float32[2,3,2]\ninit W float32[1,3,2] = [1,2,3,4,5,6]\ninit R float32[1,3,1] = [1,2,3]\ninit B float32[1,6] = "+bias+
			"\ny, h = GRU(x, W, R, B) {hidden_size=1}\nq = Mul(h, h)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, " "), `parameter "B" holds two biases`); got != warned {
			t.Errorf("%s: warned %v: %q", bias, got, res.Warnings)
		}
	}
}

// TestNumbersAhead: a number that TorchScript computed ahead, as of a parameter of one element times
// two, is named, unless it is frozen, or others are to be trained.
func TestNumbersAhead(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      Options
		warned bool
	}{
		{"onnx::Mul_12", Options{}, true},
		{"onnx::Mul_12", Options{Params: []string{"*"}}, true},
		{"onnx::Mul_12", Options{Params: []string{"fc.*"}}, false},
		{"onnx::Mul_12", Options{Params: []string{"*", "onnx::Mul_12"}}, false},
		{"onnx::Mul_12", Options{Frozen: []string{"onnx::*"}}, false},
		{"/Constant_output_0", Options{}, false},
		{"scale", Options{}, false}, // which is trained
	} {
		m := parseTorch(t, fmt.Sprintf("in x float32[2,2]\ninit fc.weight float32[2,2] = [1,2,3,4]\ninit %[1]s float32[] = 2\n/fc/y = MatMul(x, fc.weight)\n/y = Mul(/fc/y, %[1]s)\nloss = ReduceMean(/y) {keepdims=0}", c.name), "loss float32")
		m.Graph.Nodes[0].SetName("/fc/MatMul")
		res, err := Differentiate(m, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, " "), "computed numbers ahead"); got != c.warned {
			t.Errorf("%s %+v: warned %v: %q", c.name, c.o, got, res.Warnings)
		}
	}
}

// TestFoldedConvolution: weights of a convolution that TorchScript computed are named, as it
// folds a normalization so.
func TestFoldedConvolution(t *testing.T) {
	for name, warned := range map[string]bool{"onnx::Conv_12": true, "net.conv.weight": false,
		"_v_27": true, "/n/BatchNormalization_output_0_weight": true, "/a/Reshape_output_0": false, "net": true} { // the last stands before net_bias
		for _, op := range []string{"Conv", "com.microsoft.FusedConv"} {
			m := parseTorch(t, fmt.Sprintf("in x float32[1,1,2,2]\ninit %s float32[2,1,1,1] = [2,3]\ninit net_bias float32[2] = [1,2]\n/a/y = %s(x, %s, net_bias)\nq = Mul(/a/y, /a/y)\nloss = ReduceMean(q) {keepdims=0}", name, op, name), "loss float32")
			m.Graph.Nodes[0].SetName("/a/Conv")
			res, err := Differentiate(m, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(strings.Join(res.Warnings, " "), "computed weights of convolutions ahead"); got != warned {
				t.Errorf("%s of %s: warned %v: %q", name, op, got, res.Warnings)
			}
		}
	}
}

// TestFoldedByNote: a convolution keeps the names of its weights where onnxscript folds a normalization
// into it, and the node a note.
func TestFoldedByNote(t *testing.T) {
	for rule, warned := range map[string]bool{"FuseBatchNormIntoConv": true, "AddAdd": false} {
		m := parseTorch(t, "in x float32[1,1,2,2]\ninit net.weight float32[2,1,1,1] = [2,3]\ninit net.bias float32[2] = [1,2]\n/a/y = Conv(x, net.weight, net.bias)\nq = Mul(/a/y, /a/y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		m.Graph.Nodes[0].SetName("/net/Conv")
		m.Graph.Nodes[0].SetMetadata("pkg.onnxscript.rewriter.rule_name", rule)
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, " "), "computed weights of convolutions ahead"); got != warned {
			t.Errorf("%s: warned %v: %q", rule, got, res.Warnings)
		}
	}
}

// TestOneElement: without names that tell, an initializer of one element is trained where an
// operator takes weights, as the slope of a PRelu that TorchScript reshaped ahead and the bias
// of a layer with one output, and is a constant elsewhere. Equal slopes are no constant either.
func TestOneElement(t *testing.T) {
	const image = "init to int64[4] = [2,2,1,1]\nr = Reshape(x, to)\na = Mul(r, r)\n"
	tests := []struct {
		text, producer string
		trained        bool
	}{
		{"init onnx::PRelu_9 float32[1,1] = [0.25]\na = MatMul(x, net.w)\ny = PRelu(a, onnx::PRelu_9)", "pytorch", true},
		{"init onnx::PRelu_9 float32[1,2] = [0.25, 0.25]\na = MatMul(x, net.w)\ny = PRelu(a, onnx::PRelu_9)", "pytorch", true},
		{"init slope float32[1] = [0.25]\na = MatMul(x, net.w)\ns = Unsqueeze(slope, one)\ny = PRelu(a, s)", "", true},
		{"init v float32[2,1] = [3, 4]\ninit b float32[1] = [0.5]\na = MatMul(x, net.w)\ny = Gemm(a, v, b)", "", true},
		{"init v float32[2,1] = [3, 4]\ninit b float32[1,1] = [0.5]\na = MatMul(x, net.w)\nc = MatMul(a, v)\ny = Add(c, b)", "", true},
		{"init v float32[2,1] = [3, 4]\ninit b float32[1,1] = [0.5]\na = MatMul(x, net.w)\nc = MatMul(a, v)\ny = Add(c, b)", "pytorch", false},
		{"init b float32[1] = [0.5]\na = MatMul(x, net.w)\ny = Add(a, b)", "", false},
		{"init b float32[] = 0\na = MatMul(x, net.w)\ny = Gemm(a, net.w, b)", "", false},
		{"init b float32[1] = [0.5]\na = MatMul(x, net.w)\ny = Mul(a, b)", "", false},
		{image + "init v float32[1,2,1,1] = [3, 4]\ninit b float32[1] = [0.5]\nc = Conv(a, v)\ny = Add(c, b)", "", true},
		{image + "init v float32[1,1,2,1] = [3, 4]\nt = Transpose(v) {perm=[3,2,0,1]}\ninit b float32[1] = [0.5]\nc = Conv(a, t)\nd = Transpose(c) {perm=[0,2,3,1]}\ny = Add(d, b)", "", true},
		{image + "init v float32[2,2,1,1] = [3, 4, 5, 6]\ninit b float32[1] = [0.5]\nc = Conv(a, v)\ny = Add(c, b)", "", false},
		{image + "init v float32[2,2,1,1] = [3, 4, 5, 6]\ninit two int64[1] = [2]\ninit b float32[] = 0\nf = Expand(b, two)\ny = Conv(a, v, f)", "", false},
	}
	for _, c := range tests {
		m := parseGraph(t, "in x float32[2,2]\ninit one int64[1] = [0]\ninit net.w float32[2,2] = [1,2,3,4]\n"+c.text+"\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		m.Proto.ProducerName = &c.producer
		name := m.Graph.Initializers[len(m.Graph.Initializers)-1].Name
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == name }); got != c.trained {
			t.Errorf("%s\nby %q: %s trained: %v", c.text, c.producer, name, got)
		}
	}
}

// TestNamelessScript: in a file by TorchScript that has lost all names, as behind Keras, equal
// numbers may be a fresh bias: it is trained.
func TestNamelessScript(t *testing.T) {
	for weight, nameless := range map[string]bool{"onnx::MatMul_4": true, "net.weight": false} {
		m := parseTorch(t, fmt.Sprintf("in x float32[2,2]\ninit %s float32[2,2] = [1,2,3,4]\ninit onnx::Add_7 float32[2] = [0,0]\na = MatMul(x, %s)\ny = Add(a, onnx::Add_7)\nloss = ReduceMean(y) {keepdims=0}", weight, weight), "loss float32")
		m.Graph.Nodes[0].SetName("/net/MatMul")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d := res.Decisions[1]; d.Name != "onnx::Add_7" || d.Trained != nameless {
			t.Errorf("beside %s: %+v", weight, d)
		}
	}
}

// TestInlinedConstant: a constant of one element that ONNX Runtime wrote out of a function is
// no parameter, though TorchScript's own parameters may have such a name.
func TestInlinedConstant(t *testing.T) {
	for name, trained := range map[string]bool{"_inlfunc_Loss_const_one_float": false, "logit_scale": true} {
		m := parseTorch(t, fmt.Sprintf("in x float32[2,2]\ninit %s float32[1] = [1]\ninit net.w float32[2,2] = [1,2,3,4]\na = MatMul(x, net.w)\n/a/y = Mul(a, %s)\nq = Mul(/a/y, /a/y)\nloss = ReduceMean(q) {keepdims=0}", name, name), "loss float32")
		m.Graph.Nodes[1].SetName("/a/Mul")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == name }); got != trained {
			t.Errorf("%s: trained %v", name, got)
		}
	}
}

// TestSums: where names tell nothing, a matrix or filter of equal numbers is a sum or a mean
// that was written as a product; zeros are how some layers begin.
func TestSums(t *testing.T) {
	for name, c := range map[string]struct {
		filter, values, producer string
		trained                  bool
	}{
		"ones":          {"kernel", "[1,1,1,1]", "", false},
		"quarters":      {"kernel", "[0.25,0.25,0.25,0.25]", "", false},
		"zeros":         {"kernel", "[0,0,0,0]", "", true},
		"weights":       {"kernel", "[1,1,1,2]", "", true},
		"by their name": {"net/conv/ReadVariableOp:0", "[1,1,1,1]", "tf2onnx", true},
	} {
		m := parseGraph(t, "in x float32[1,1,3,3]\ninit w float32[1,1,3,3] = [1,2,3,4,5,6,7,8,9]\ninit "+c.filter+" float32[1,1,2,2] = "+c.values+
			"\na = Mul(x, w)\ny = Conv(a, "+c.filter+")\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		m.Proto.ProducerName = &c.producer
		if got, _ := trainedOf(t, m); slices.Contains(got, c.filter) != c.trained {
			t.Errorf("%s: trained %v", name, got)
		}
	}
}

// TestFreshBias: TorchScript cuts the bias of an attention's projections into parts ahead, and fresh ones
// are zero; other zeros are constants.
func TestFreshBias(t *testing.T) {
	for name, c := range map[string]struct {
		matrix, value, read string
		trained             bool
	}{
		"a part":           {"onnx::MatMul_7", "[0,0,0]", "z = Add(onnx::Add_154, y)", true},
		"beside a name":    {"l.weight", "[0,0,0]", "z = Add(onnx::Add_154, y)", false},
		"ones":             {"onnx::MatMul_7", "[1,1,1]", "z = Add(onnx::Add_154, y)", false},
		"of no product":    {"onnx::MatMul_7", "[0,0,0]", "r = Relu(y)\nz = Add(r, onnx::Add_154)", false},
		"a factor of them": {"onnx::MatMul_7", "[0,0,0]", "z = Mul(y, onnx::Add_154)", false},
	} {
		m := parseTorch(t, "in x float32[2,2]\ninit "+c.matrix+" float32[2,3] = [1,2,3,4,5,6]\ninit onnx::Add_154 float32[3] = "+c.value+
			"\ny = MatMul(x, "+c.matrix+")\n"+c.read+"\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == "onnx::Add_154" }); got != c.trained {
			t.Errorf("%s: trained %v, %v", name, got, res.Decisions)
		}
	}
}

// TestInitializersAsInputs: an initializer that the file lists among the inputs too, axes as
// well as weights, is what the file holds.
func TestInitializersAsInputs(t *testing.T) {
	m := parseGraph(t, "in x float32[2,2]\nin w float32[2,2]\nin axes int64[1]\ninit w float32[2,2] = [1,2,3,4]\ninit axes int64[1] = [1]\n"+
		"y = MatMul(x, w)\nz = ReduceMean(y, axes) {keepdims=0}\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var inputs []string
	for _, v := range m.Graph.Inputs {
		inputs = append(inputs, v.Name)
	}
	if len(res.Params) != 1 || res.Params[0].Name != "w" || res.Params[0].Data == nil || !slices.Equal(inputs, []string{"x", "w"}) {
		t.Errorf("trains %v, inputs %q", res.Params, inputs)
	}
}

// TestAngles: angles of places on a scale of frequencies that only a Sin and a Cos read are a table,
// whether they count from 0 or, as an XLNet's distances, fall through 0; other numbers there are weights.
func TestAngles(t *testing.T) {
	for angles, trained := range map[string]bool{
		"[4,2] = [0,0,1,0.1,2,0.2,3,0.3]":                 false,
		"[4,2] = [2,0.2,1,0.1,0,0,-1,-0.1]":               false,
		"[4,2] = [-1,-0.1,0,0,1,0.1,2,0.2]":               false,
		"[4,2] = [2,0.2,1,0.1,0,0,-1,-0.2]":               true,
		"[4,2] = [2.5,0.25,1.5,0.15,0.5,0.05,-0.5,-0.05]": true,
		"[4,2] = [0.2,0.2,0.2,0.2,0.2,0.2,0.2,0.2]":       true,
	} {
		m := parseGraph(t, "in x float32[2,4]\ninit v float32[4,4] = [1,2,3,5,1,2,3,4,1,0,0,1,2,3,1,1]\ninit w float32"+angles+`
s = Sin(w)
c = Cos(w)
h = MatMul(x, v)
a = MatMul(h, s)
b = MatMul(h, c)
y = Mul(a, b)
loss = ReduceMean(y) {keepdims=0}`, "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == "w" }); got != trained {
			t.Errorf("%s: trained %v", angles, got)
		}
	}
}
