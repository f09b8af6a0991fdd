package tile

// Text graphs in, graphs in parts out, both run in ONNX Runtime at its lowest
// and its highest level: equal to the last bit where only sums are reordered
// that are exact (inputs are small multiples of a quarter), else up to 1e-5 of
// the largest element. Values that nothing reads, and next values (….new), are a
// case's outputs. Each row
// of the two tables of rules has a case in which that operator is divided.

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

// parse reads the inside of a text graph, without its outputs.
func parse(t testing.TB, opset, body string) (*onnx.Model, *infer.Result) {
	t.Helper()
	m, err := read(opset, body)
	if err != nil {
		t.Fatal(err)
	}
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		t.Fatalf("%v in\n%s", err, m.Text())
	}
	return m, types
}

func read(opset, body string) (*onnx.Model, error) {
	text := "model ir=10 opset=" + opset + " opset[com.microsoft]=1\ngraph g {\n" + strings.ReplaceAll(body, " F[", " float32[") + "\n}\n"
	m, err := onnx.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, text)
	}
	for _, n := range m.Graph.Nodes {
		n.SetName(n.Outputs[0].Name)
		for _, v := range n.Outputs {
			if v != nil && (len(v.Uses()) == 0 || strings.HasSuffix(v.Name, ".new")) && !v.IsOutput() {
				m.Graph.AddOutput(v)
			}
		}
	}
	return m, nil
}

// labelBound bounds the integers among the inputs.
const labelBound = 5

// inputs draws quarters between -2 and 2, labels below labelBound and truths.
func inputs(m *onnx.Model, rng *rand.Rand) map[string]*onnx.Tensor {
	in := map[string]*onnx.Tensor{}
	for _, v := range m.Graph.Inputs {
		dims, _ := v.Type.Shape.Ints()
		n, _ := onnx.Elements(dims)
		switch v.Type.DType {
		case onnx.Int64:
			values := make([]int64, n)
			for i := range values {
				values[i] = rng.Int64N(labelBound)
			}
			in[v.Name] = onnx.Int64Tensor(values, dims...)
		case onnx.Bool:
			values := make([]byte, n)
			for i := range values {
				values[i] = byte(rng.IntN(2))
			}
			in[v.Name] = onnx.NewTensor(onnx.Bool, dims, values)
		default:
			values := make([]float64, n)
			for i := range values {
				values[i] = float64(rng.IntN(17)-8) / 4
			}
			in[v.Name] = onnx.FloatTensor(v.Type.DType, values, dims...)
		}
	}
	return in
}

// sameResults runs both models.
func sameResults(t testing.TB, was, is *onnx.Model, exact bool) {
	t.Helper()
	if err := is.Check(); err != nil {
		t.Fatalf("%v in\n%s", err, is.Text())
	}
	in := inputs(was, rand.New(rand.NewPCG(5, 11)))
	for _, level := range []int{0, 99} {
		want, got := ortest.Run(t, was, level, in), ortest.Run(t, is, level, in)
		for name, x := range want {
			if at := differs(x, got[name], exact); at >= 0 {
				t.Fatalf("level %d: output %s of %d elements differs at %d: %v, was %v, in\n%s", level, name, len(got[name]), at, at1(got[name], at), at1(x, at), is.Text())
			}
		}
	}
}

func at1(x []float64, i int) float64 {
	if i < len(x) {
		return x[i]
	}
	return math.NaN()
}

// differs returns the first place where the numbers differ, -1 if there is none.
func differs(want, got []float64, exact bool) int {
	if len(want) != len(got) {
		return min(len(want), len(got))
	}
	allowed := 0.0
	if !exact {
		for _, x := range want {
			if a := math.Abs(x); !math.IsInf(a, 0) && !math.IsNaN(a) {
				allowed = max(allowed, 1e-5*a)
			}
		}
	}
	for i, x := range want {
		y := got[i]
		if x == y || math.IsNaN(x) && math.IsNaN(y) {
			continue
		}
		if !(math.Abs(x-y) <= allowed) {
			return i
		}
	}
	return -1
}

// A regionCase is a loss whose region holds the row's operator.
type regionCase struct {
	row, name string
	// body leads from logits, a product of h [6,3] and w [3,40], to y, whose sum
	// is the loss; where it makes logits and loss itself, nothing is added.
	body  string
	parts int    // 2 where 0
	exact bool   // every sum and every operator is exact
	opset string // 20 where ""
}

func (c regionCase) text() string {
	body := c.body
	if !strings.Contains(body, "logits =") {
		body = "in h F[6,3]\nin w F[3,40]\nlogits = MatMul(h, w)\n" + body
	}
	if !strings.Contains(body, "loss =") {
		body += "\nloss = ReduceSum(y) {keepdims=0}\nother = Neg(y)"
	}
	return body
}

func (c regionCase) parse(t testing.TB) (*onnx.Model, *infer.Result) {
	t.Helper()
	opset := c.opset
	if opset == "" {
		opset = "20"
	}
	m, _ := parse(t, opset, c.text())
	if err := upgrade.Model(m, control.MinOpset); err != nil { // as it is before a graph is divided
		t.Fatal(err)
	}
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m, types
}

func TestEveryRuleHasACase(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range regionCases() {
		covered[c.row] = true
	}
	for row := range rules {
		if !covered[row] {
			t.Errorf("rule %s has no case", row)
		}
	}
	for row := range covered {
		if n := (&onnx.Node{Proto: &onnxpb.NodeProto{OpType: &row}}); rules[row] == nil && ruleOf(n) == nil {
			t.Errorf("cases of %s, for which there is no rule", row)
		}
	}
}

func TestRules(t *testing.T) {
	for _, c := range regionCases() {
		t.Run(c.row+"/"+c.name, func(t *testing.T) { c.check(t) })
	}
}

func (c regionCase) check(t *testing.T) {
	was, _ := c.parse(t)
	m, types := c.parse(t)
	r, err := Find(m, m.Graph.Value("loss"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(r.Nodes, func(n *onnx.Node) bool { return ruleKey(n) == c.row }) {
		t.Fatalf("no %s in the region", c.row)
	}
	want := max(c.parts, 2)
	if parts := r.Parts(want); parts != want {
		t.Fatalf("%d parts where %d are asked for", parts, want)
	}
	if err := r.Apply(types, want); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("MatMul") && n.Outputs[0].Name == "logits" {
			t.Errorf("the whole logits are still there")
		}
	}
	sameResults(t, was, m, c.exact)
}

// A rowsCase is the update of parameters w, whose next values end in .new; the
// row's operator is computed in slices.
type rowsCase struct {
	row, name string
	// body makes w.new; where it lacks them, w [16,8] and a gradient g of its
	// shape come first.
	body  string
	exact bool
	axis  int // along which it is sliced
}

func (c rowsCase) text() string {
	body := c.body
	if !strings.Contains(body, "in w ") {
		body = "in w F[16,8]\nin x F[3,16]\nin d F[3,8]\ng = Gemm(x, d) {transA=1}\n" + body
	}
	return body
}

func (c rowsCase) parse(t testing.TB) (*onnx.Model, *infer.Result) {
	t.Helper()
	return parse(t, "20", c.text())
}

// next are the outputs that a case takes for next values.
func next(m *onnx.Model) []*onnx.Value {
	var list []*onnx.Value
	for _, v := range m.Graph.Outputs {
		if strings.HasSuffix(v.Name, ".new") {
			list = append(list, v)
		}
	}
	return list
}

// forwardSide: a case's nodes whose output begins with f. are forward's.
func forwardSide(n *onnx.Node) bool { return strings.HasPrefix(n.Outputs[0].Name, "f.") }

func TestEverySliceRuleHasACase(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range rowsCases {
		covered[c.row] = true
	}
	for row := range sliceRules {
		if !covered[row] {
			t.Errorf("slice rule %s has no case", row)
		}
	}
	for row := range covered {
		if sliceRules[row] == nil {
			t.Errorf("cases of %s, for which there is no slice rule", row)
		}
	}
}

// TestElementwiseAreElementwise: the operators that the backward slice takes for elementwise are
// those of the traits.
func TestElementwiseAreElementwise(t *testing.T) {
	for row, rule := range sliceRules {
		if reflect.ValueOf(rule).Pointer() != reflect.ValueOf(sliceElementwise).Pointer() {
			continue
		}
		n := &onnx.Node{Proto: &onnxpb.NodeProto{OpType: &row}}
		if tr, ok := traits.Of(n); !ok || !tr.Elementwise {
			t.Errorf("%s is not elementwise by its traits", row)
		}
	}
}

func TestSliceRules(t *testing.T) {
	for _, c := range rowsCases {
		t.Run(c.row+"/"+c.name, func(t *testing.T) { c.check(t, Rows) })
		t.Run(c.row+"/"+c.name+"/bound", func(t *testing.T) {
			m := c.check(t, BoundRows)
			for _, v := range next(m) {
				if parts := step.RowsOf(v); (parts != nil) != (c.axis == 0) {
					t.Errorf("%s, in slices along axis %d, has %d parts among the outputs", v.Name, c.axis, len(parts))
				}
			}
		})
	}
}

func (c rowsCase) check(t *testing.T, divide func(*onnx.Model, build.Typer, []*onnx.Value, func(*onnx.Node) bool, int) (int, int, []*SkipError, error)) *onnx.Model {
	t.Helper()
	was, _ := c.parse(t)
	m, types := c.parse(t)
	var labels []string
	for _, n := range m.Graph.Nodes {
		if ruleKey(n) == c.row {
			labels = append(labels, n.Label())
		}
	}
	for _, v := range next(m) {
		v.Producer.SetOrigin(onnx.Origin{Pass: optim.Pass, Step: "next"})
	}
	found, applied, skipped, err := divide(m, types, next(m), forwardSide, minSlices)
	if err != nil || applied != found || len(skipped) > 0 || applied == 0 {
		t.Fatalf("%d of %d next values in slices, skipped %v, error %v", applied, found, skipped, err)
	}
	for _, v := range next(m) {
		if v.Producer.Origin().Step != "next" {
			t.Errorf("the node of %s does not say any more what it makes", v.Name)
		}
	}
	divided := false
	for _, n := range m.Graph.Nodes {
		for _, label := range labels { // slices of an operator bear its name, what cuts a value out another
			at := strings.Index(n.Name()+"/", "/"+label+"/")
			divided = divided || n.MadeBy(rowsPass) && at >= 0 && !n.Is("Slice")
		}
		if axis := n.Int("axis", -1); n.Is("Concat") && n.MadeBy(rowsPass) && axis != int64(c.axis) {
			t.Errorf("slices along axis %d, want %d", axis, c.axis)
		}
	}
	if !divided {
		t.Errorf("no slice of %s is computed in\n%s", c.row, m.Text())
	}
	sameResults(t, was, m, c.exact)
	return m
}

// skipReason returns the message of a skip and fails on another error.
func skipReason(t *testing.T, err error) string {
	t.Helper()
	var skip *SkipError
	if err != nil && !errors.As(err, &skip) {
		t.Fatal(err)
	}
	if skip == nil {
		return ""
	}
	return skip.What + ": " + skip.Why
}

// Find finds the region around the loss's output projection.
func Find(m *onnx.Model, loss *onnx.Value) (*Region, error) {
	list, err := Projections(m.Graph, loss)
	if err != nil {
		return nil, err
	}
	return Around(m, list[0])
}
