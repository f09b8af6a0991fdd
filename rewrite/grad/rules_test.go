package grad

// Every row of the rule table against central differences. A case is the body
// of a text graph with the element type written F; its float inputs (in F…) are
// the variables. The loss is the sum of the outputs y, y2, …, each weighted with
// fixed random numbers, so that no error cancels.
//
// In float64 the difference quotient at step 1e-5 is good to about 1e-9, and
// 1e-5 relative to the largest gradient is asked for. Where ONNX Runtime has no
// float64 kernel the case says so (f32): the loss then carries an error of some
// 1e-6, a fourth-order quotient at step 3e-2 of it some 1e-4, its own
// truncation about as much, so that 4e-3 is asked for.

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
)

type gradCase struct {
	// row is the operator, with @SINCE where the table has several rows of it,
	// and DOMAIN: in front where that is not the standard one.
	row  string
	name string
	// body is the inside of a text graph, without its outputs.
	body string
	// lo and hi bound the random inputs; both 0 means -2 and 2.
	lo, hi float64
	// f32 says that a kernel exists for float32 alone.
	f32 bool
	// opset is the model's, 20 where 0.
	opset int
	// apart keeps the inputs' elements at least that far from each other and
	// from zero, for operators with kinks.
	apart float64
	// tol replaces the tolerance; why is said beside it.
	tol float64
	// ort opens the model in the ort dialect.
	ort bool
	// whole upgrades and normalizes the model too.
	whole bool
	// spelled is a body of the same meaning that ONNX Runtime can run, where it has no
	// kernel for the other.
	spelled string
}

// allCases are the cases of all rule tables; every file of rules has its own list.
func allCases() []gradCase {
	var all []gradCase
	for _, list := range [][]gradCase{
		elementwiseCases, activationCases, productCases, shapeCases, gatherCases,
		reduceCases, softmaxCases, lossCases, factoredCases, layerNormCases,
		convCases, poolCases, normCases, recurrentCases, attentionCases, imageCases, signalCases, tailCases, contribCases, fusedCases,
	} {
		all = append(all, list...)
	}
	return all
}

func TestEveryRowHasACase(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range allCases() {
		covered[c.row] = true
	}
	rules := slices.Concat(tables()...)
	rows := map[string]int{}
	for _, r := range rules {
		rows[r.Domain+":"+r.Op]++
	}
	for _, r := range rules {
		name := r.Op
		if r.Domain != "" {
			name = r.Domain + ":" + name
		}
		if r.Doc == "" {
			t.Errorf("row %s has no doc string", name)
		}
		if r.Grad == nil {
			if r.None == "" || zeroCases[name] == "" {
				t.Errorf("row %s passes no gradient and does not say why, or has no case", name)
			}
			continue
		}
		if rows[r.Domain+":"+r.Op] > 1 {
			name += fmt.Sprintf("@%d", r.Since)
		}
		if !covered[name] && !strings.Contains(name, "QuantizeLinear") && name != "DequantizeLinear" { // TestStraightThrough
			t.Errorf("row %s has no case", name)
		}
	}
}

func TestRulesAgainstDifferences(t *testing.T) {
	for _, c := range allCases() {
		t.Run(strings.ReplaceAll(c.row+"/"+c.name, ":", "."), func(t *testing.T) { c.check(t) })
	}
}

func (c gradCase) dtype() (onnx.DType, string) {
	if c.f32 {
		return onnx.Float32, "float32"
	}
	return onnx.Float64, "float64"
}

// model parses the body and appends the loss.
func (c gradCase) model(t testing.TB) *onnx.Model {
	t.Helper()
	d, name := c.dtype()
	opset := c.opset
	if opset == 0 {
		opset = 20
	}
	var body strings.Builder
	for _, line := range strings.Split(c.body, "\n") {
		fields := strings.Fields(line)
		if len(fields) > 2 && (fields[0] == "in" || fields[0] == "init") && strings.HasPrefix(fields[2], "F") {
			line = strings.Replace(line, " F", " "+name, 1)
		}
		body.WriteString(line + "\n")
	}
	text := fmt.Sprintf("model ir=9 opset=%d opset[com.microsoft]=1\ngraph g {\n%s}\n", opset, body.String())
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := build.New(m.Graph, types, "test")
	rng := rand.New(rand.NewPCG(3, 7))
	var loss *onnx.Value
	for i := 0; ; i++ {
		y := m.Graph.Value(fmt.Sprintf("y%d", i+1))
		if i == 0 {
			y = m.Graph.Value("y")
		}
		if y == nil {
			break
		}
		weight := y // of a free shape: squared
		if dims, ok := y.Type.Shape.Ints(); ok {
			n, _ := onnx.Elements(dims)
			w := make([]float64, n)
			for k := range w {
				w[k] = rng.Float64()*2 - 0.7
			}
			weight = b.Const(onnx.FloatTensor(d, w, dims...))
		}
		if y.Type.DType != d {
			y = b.Op("Cast", build.In(y), onnx.IntAttr("to", int64(d)))
			if weight.Producer != nil {
				weight = y
			}
		}
		part := b.Op("ReduceSum", build.In(b.Op("Mul", build.In(y, weight))), onnx.IntAttr("keepdims", 0))
		if loss != nil {
			part = b.Op("Add", build.In(loss, part))
		}
		loss = part
	}
	if b.Err() != nil || loss == nil {
		t.Fatalf("no output y: %v", b.Err())
	}
	b.Flush()
	m.Graph.Rename(loss, "loss")
	m.Graph.AddOutput(loss)
	return m
}

// inputs draws values for every graph input.
func (c gradCase) inputs(t *testing.T, m *onnx.Model) map[string]*onnx.Tensor {
	t.Helper()
	lo, hi := c.lo, c.hi
	if lo == 0 && hi == 0 {
		lo, hi = -2, 2
	}
	rng := rand.New(rand.NewPCG(1, 2))
	in := map[string]*onnx.Tensor{}
	for _, v := range m.Graph.Inputs {
		dims, ok := v.Type.Shape.Ints()
		if !ok {
			dims = make([]int64, len(v.Type.Shape))
			for i, d := range v.Type.Shape {
				if dims[i], ok = d.Int(); !ok {
					dims[i] = freeExtent[d.String()]
				}
			}
		}
		n, _ := onnx.Elements(dims)
		values := make([]float64, n)
		for i := range values {
			values[i] = lo + (hi-lo)*rng.Float64()
		}
		if c.apart > 0 {
			perm := rng.Perm(int(n))
			for i := range values {
				values[i] = c.apart * (float64(perm[i]) - float64(n)/2 + 0.5)
			}
		}
		if !v.Type.DType.IsFloat() {
			t.Fatalf("input %s is %s: use init", v.Name, v.Type)
		}
		in[v.Name] = onnx.FloatTensor(v.Type.DType, values, dims...)
	}
	return in
}

// freeExtent is the number that stands for a symbol in the cases.
var freeExtent = map[string]int64{"batch": 2, "seq": 3, "one": 1, "n": 4, "?": 3}

func (c gradCase) check(t *testing.T) {
	m := c.model(t)
	if c.opset > 0 {
		ortest.Opens(t, int64(c.opset))
	}
	inputs := c.inputs(t, m)
	dialect := DialectONNX
	if c.ort {
		dialect = DialectORT
	}
	var names []string
	for _, v := range m.Graph.Inputs {
		names = append(names, v.Name)
	}
	runs := m
	if c.spelled != "" {
		other := c
		other.body = c.spelled
		runs = other.model(t)
	}
	forward := c.forward(t, runs, inputs)
	res, err := Differentiate(m, Options{Params: names, Loss: "loss", NoPrepare: !c.whole, Dialect: dialect})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatalf("%v in\n%s", err, m.Text())
	}
	for _, n := range m.Graph.Nodes {
		if shape := n.In(1); n.Is("Reshape") && shape != nil && shape.Producer != nil && shape.Producer.Is("Reshape") {
			t.Errorf("ONNX Runtime makes one of Reshape %s and the Reshape of its shape\n%s", n.Name(), m.Text())
		}
	}
	for name, x := range res.Values() {
		inputs[name] = x
	}
	session := ortest.Open(t, m, 0, inputs)
	out := session.Run()
	if diff := math.Abs(out["loss"][0] - forward); !(diff <= 1e-5*math.Max(math.Abs(forward), 1)) {
		t.Errorf("loss %g in the training graph, %g before\n%s", out["loss"][0], forward, m.Text())
	}
	numeric := map[string][]float64{}
	largest := 0.0
	for _, p := range res.Params {
		numeric[p.Name] = c.differences(t, session, inputs[p.Name])
		for _, x := range numeric[p.Name] {
			largest = math.Max(largest, math.Abs(x))
		}
	}
	tol := 1e-5
	if c.f32 {
		tol = 4e-3
	}
	if c.tol > 0 {
		tol = c.tol
	}
	for _, p := range res.Params {
		got, want := out[p.Name+".grad"], numeric[p.Name]
		if len(got) != len(want) {
			t.Errorf("%s has %d elements, its gradient %d", p.Name, len(want), len(got))
			continue
		}
		for i := range got {
			if !(math.Abs(got[i]-want[i]) <= tol*math.Max(largest, 1e-3)) {
				t.Errorf("d loss / d %s[%d] = %g, by differences %g\n%s", p.Name, i, got[i], want[i], m.Text())
				return
			}
		}
	}
}

// forward is the loss of the model as it was given, which a rule that rewrites
// its forward node must not change.
func (c gradCase) forward(t *testing.T, m *onnx.Model, inputs map[string]*onnx.Tensor) float64 {
	t.Helper()
	return ortest.Run(t, m, 0, inputs)["loss"][0]
}

// differences is the gradient with respect to one input, whose memory is x, by
// central differences of fourth order.
func (c gradCase) differences(t *testing.T, session *ortest.Session, x *onnx.Tensor) []float64 {
	t.Helper()
	values, err := x.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	data, _ := x.Bytes()
	size := int(x.DType().Size())
	h := 1e-4
	if c.f32 {
		h = 3e-2
	}
	at := func(i int, v float64) float64 {
		b, _ := onnx.FloatTensor(x.DType(), []float64{v}).Bytes()
		copy(data[i*size:], b)
		return session.Run()["loss"][0]
	}
	grad := make([]float64, len(values))
	for i, v := range values {
		grad[i] = (8*(at(i, v+h)-at(i, v-h)) - (at(i, v+2*h) - at(i, v-2*h))) / (12 * h)
		at(i, v)
	}
	return grad
}

// TestZeroRows: where the only way from a parameter to the loss leads through
// such a row there is nothing to train; beside another way it does not disturb.
func TestZeroRows(t *testing.T) {
	for op, body := range zeroCases {
		graph := "in x float32[2,2]\ninit p float32[2,2] = [1, 2, 3, 4]\ninit m1 int64[1] = [-1]\n" + body + "\nz = Cast(y) {to=1}\na = ReduceSum(z) {keepdims=0}\n"
		_, err := Differentiate(parseGraph(t, graph+"loss = Neg(a)", "loss float32[]"), Options{})
		var e *LossError
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want that nothing can be trained", op, err)
		}
		m := parseGraph(t, graph+"b = ReduceSum(p) {keepdims=0}\nloss = Add(a, b)", "loss float32[]")
		if _, err := Differentiate(m, Options{}); err != nil {
			t.Errorf("%s: %v", op, err)
		} else if g := m.Graph.Value("p.grad"); g == nil || g.Producer != nil && len(m.Graph.Nodes) > 12 {
			t.Errorf("%s: gradient %v of %d nodes", op, g, len(m.Graph.Nodes))
		}
	}
}

// TestStridesOnTheDevice: the gradient of a convolution with a stride is a node that CUDA
// has a kernel for, wherever the last window ends.
func TestStridesOnTheDevice(t *testing.T) {
	for _, extent := range []int{7, 8, 9, 10} {
		m, err := onnx.Parse(fmt.Sprintf("model ir=9 opset=20\ngraph g {\nin x float32[1,2,%d,%d]\ninit v float32[2] = [1,2]\nin w float32[3,2,3,3]\n"+
			"v4 = Reshape(v, s)\nz = Mul(x, v4)\ny = Conv(z, w) {strides=[2, 3], pads=[1, 1, 1, 1]}\nloss = ReduceMean(y) {keepdims=0}\ninit s int64[4] = [1,2,1,1]\nout loss float32\n}\n", extent, extent+1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Differentiate(m, Options{Params: []string{"v", "w"}, Loss: "loss"}); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, n := range m.Graph.Nodes {
			found = found || n.Is("ConvTranspose")
			if traits.RefusedByCUDA(n) {
				t.Errorf("extent %d: %s %v", extent, n.Label(), n.Ints("pads"))
			}
		}
		if !found {
			t.Error("no gradient of the convolution's input")
		}
	}
}
