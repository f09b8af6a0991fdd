package loss

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

func parse(t *testing.T, opset int, body string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse(fmt.Sprintf("model ir=8 opset=%d opset[com.microsoft]=1 opset[ai.onnx.ml]=1\ngraph g {\n%s\n}\n", opset, body))
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	return m
}

// tensors are numbers as the inputs of m take them.
func tensors(m *onnx.Model, numbers map[string][]float64) map[string]*onnx.Tensor {
	out := map[string]*onnx.Tensor{}
	for _, v := range m.Graph.Inputs {
		dims, _ := v.Type.Shape.Ints()
		if v.Type.DType.IsFloat() {
			out[v.Name] = onnx.FloatTensor(v.Type.DType, numbers[v.Name], dims...)
			continue
		}
		var whole []int64
		for _, x := range numbers[v.Name] {
			whole = append(whole, int64(x))
		}
		out[v.Name] = onnx.Int64Tensor(whole, dims...)
	}
	return out
}

// logSoftmax of n numbers.
func logSoftmax(x []float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(v)
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v - math.Log(sum)
	}
	return out
}

// Each loss is the mean that its name says, of what the model computes, whatever made it
// and wherever its classes lie.
func TestAdd(t *testing.T) {
	axis := func(i int) *int { return &i }
	three := int64(3)
	x := []float64{0.5, -1, 2, 0.25, 1.5, -0.75, 1, 3, -2, 0.125, 0.5, 1}
	// entropy of x seen as rows of classes at places, by labels; -100 left out.
	entropy := func(place func(row, class int) int, classes int, labels ...int) float64 {
		sum, n := 0.0, 0
		for r, l := range labels {
			if l == Ignored {
				continue
			}
			var row []float64
			for c := range classes {
				row = append(row, x[place(r, c)])
			}
			sum, n = sum-logSoftmax(row)[l], n+1
		}
		return sum / float64(n)
	}
	last := func(r, c int) int { return 3*r + c }
	inner := func(r, c int) int { return 6*(r/2) + 2*c + r%2 } // [2,3,2]
	first := func(r, c int) int { return 4*c + r }             // [3,4]
	target := []float64{1, 0, 0.5, 1, 0, 0, 1, 0.25, 1, 0, 1, 0}
	mean := func(f func(x, y float64) float64) float64 {
		sum := 0.0
		for i := range x {
			sum += f(x[i], target[i])
		}
		return sum / float64(len(x))
	}
	binary := mean(func(x, y float64) float64 { return math.Log1p(math.Exp(x)) - x*y })
	// Of two classes scikit-learn's probabilities are those of the second, and what they leave of 1.
	pair := func(order string) string {
		return "in x float32[4,3]\ninit one float32[] = 1\ninit column int64[2] = [-1,1]\nr = Reshape(x, column)\np = Sigmoid(r)\nq = Sub(one, p)\ny = Concat(" + order + ") {axis=1}\nout y float32[12,2]"
	}
	second := []float64{1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 0}
	two := mean(func(x, y float64) float64 { return math.Log1p(math.Exp(x)) - x*math.Ceil(y-0.3) })
	for _, c := range []struct {
		name, body string
		opset      int
		o          Options
		labels     []float64
		want       float64
		through    string
	}{
		{"rows of classes", "in x float32[4,3]\ny = Identity(x)\nout y float32[4,3]", 17, Options{Kind: CrossEntropy}, []float64{0, 2, -100, 1}, entropy(last, 3, 0, 2, -100, 1), ""},
		{"probabilities, opset 11", "in x float32[4,3]\np = Softmax(x)\ny = Identity(p)\nout y float32[4,3]", 11, Options{Kind: CrossEntropy}, []float64{0, 2, 1, 1}, entropy(last, 3, 0, 2, 1, 1), "Softmax"},
		{"their logarithms", "in x float32[2,2,3]\ny = LogSoftmax(x) {axis=2}\nout y float32[2,2,3]", 17, Options{Kind: CrossEntropy}, []float64{0, 2, 1, 1}, entropy(last, 3, 0, 2, 1, 1), "LogSoftmax"},
		{"probabilities of a rank not told, opset 11", "in x float32[4,3]\nw = Neg(x)\nv = Neg(w)\np = Softmax(v)\nshape = Constant() {value_ints=[-1,3]}\ny = Reshape(p, shape)\nout y float32[4,3]", 12, Options{Kind: CrossEntropy}, []float64{0, 2, 1, 1}, entropy(last, 3, 0, 2, 1, 1), "Softmax"},
		{"probabilities of pixels, opset 11", "in x float32[4,3,1,1]\nv = Neg(x)\nw = Neg(v)\np = Softmax(w)\ny = Flatten(p)\nout y float32[4,3]", 11, Options{Kind: CrossEntropy}, []float64{0, 2, 1, 1}, entropy(last, 3, 0, 2, 1, 1), "Softmax"},
		{"probabilities in another order", "in x float32[4,1,3]\np = Softmax(x) {axis=2}\nq = Cast(p) {to=11}\nr = Transpose(q) {perm=[1, 2, 0]}\naxis = Constant() {value_ints=[0]}\ny = Squeeze(r, axis)\nout y float64[3,4]", 17, Options{Kind: CrossEntropy}, []float64{0, 2, 1, 1}, entropy(last, 3, 0, 2, 1, 1), "Softmax"},
		{"probabilities written out", "in x float32[4,3]\ninit axes int64[1] = [1]\ne = Exp(x)\ns = ReduceSum(e, axes)\ny = Div(e, s)\nout y float32[4,3]", 17, Options{Kind: CrossEntropy}, []float64{0, 2, 1, 1}, entropy(last, 3, 0, 2, 1, 1), "Softmax"},
		{"probabilities of two classes", pair("q, p"), 17, Options{Kind: CrossEntropy}, second, two, "Sigmoid"},
		{"probabilities of two classes, the other first", pair("p, q"), 17, Options{Kind: CrossEntropy}, []float64{0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 1}, two, "Sigmoid"},
		{"classes second", "in x float32[2,3,2]\ny = Identity(x)\nout y float32[2,3,2]", 17, Options{Kind: CrossEntropy, ClassAxis: axis(1)}, []float64{0, 2, 1, 1}, entropy(inner, 3, 0, 2, 1, 1), ""},
		{"classes first", "in x float32[3,4]\ny = Identity(x)\nout y float32[3,4]", 17, Options{Kind: CrossEntropy, ClassAxis: axis(-2)}, []float64{0, 2, 1, 1}, entropy(first, 3, 0, 2, 1, 1), ""},
		{"another label left out", "in x float32[4,3]\ny = Identity(x)\nout y float32[4,3]", 17, Options{Kind: CrossEntropy, Ignore: &three}, []float64{0, 2, 3, 1}, entropy(last, 3, 0, 2, -100, 1), ""},
		{"the next token", "in x float32[2,2,3]\ny = Identity(x)\nout y float32[2,2,3]", 17, Options{Kind: NextToken}, []float64{0, 2, 1, 1}, entropy(last, 3, 2, -100, 1, -100), ""},
		{"half", "in x float32[4,3]\ny = Cast(x) {to=10}\nout y float16[4,3]", 17, Options{Kind: CrossEntropy}, []float64{0, 2, -100, 1}, entropy(last, 3, 0, 2, -100, 1), ""},
		{"binary", "in x float32[4,3]\ny = Identity(x)\nout y float32[4,3]", 17, Options{Kind: Binary}, target, binary, ""},
		{"binary, of probabilities", "in x float32[4,3]\ny = Sigmoid(x)\nout y float32[4,3]", 17, Options{Kind: Binary}, target, binary, "Sigmoid"},
		{"binary, float64", "in x float32[4,3]\ny = Cast(x) {to=11}\nout y float64[4,3]", 17, Options{Kind: Binary}, target, binary, ""},
		{"binary, of probabilities arranged", "in x float32[4,3]\np = Sigmoid(x)\nshape = Constant() {value_ints=[12]}\ny = Reshape(p, shape)\nout y float32[12]", 17, Options{Kind: Binary}, target, binary, "Sigmoid"},
		{"squares", "in x float32[4,3]\ny = Identity(x)\nout y float32[4,3]", 17, Options{Kind: Squares}, target, mean(func(x, y float64) float64 { return (x - y) * (x - y) }), ""},
		{"squares of probabilities", "in x float32[4,3]\ny = Sigmoid(x)\nout y float32[4,3]", 17, Options{Kind: Squares}, target,
			mean(func(x, y float64) float64 { p := 1 / (1 + math.Exp(-x)); return (p - y) * (p - y) }), ""},
		{"distances, float64", "in x float32[4,3]\ny = Cast(x) {to=11}\nout y float64[4,3]", 17, Options{Kind: Distances}, target, mean(func(x, y float64) float64 { return math.Abs(x - y) }), ""},
	} {
		m := parse(t, c.opset, c.body)
		r, err := Add(m, c.o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err := m.Check(); err != nil || r.Loss != "loss" || r.Prediction != "y" || r.Through != c.through || len(m.Graph.Outputs) != 1 || r.Labels.Name != "labels" {
			t.Errorf("%s: %v, %+v in\n%s", c.name, err, r, m.Text())
			continue
		}
		got := ortest.Run(t, m, 0, tensors(m, map[string][]float64{"x": x, "labels": c.labels}))["loss"]
		if len(got) != 1 || math.Abs(got[0]-c.want) > 1e-6*math.Max(1, math.Abs(c.want)) {
			t.Errorf("%s: %v, want %g, of\n%s", c.name, got, c.want, m.Text())
		}
	}
}

// A Softmax may be the end of a function of the file.
func TestFunction(t *testing.T) {
	body := parse(t, 17, "in x float32[4,3]\nh = Neg(x)\ny = Softmax(h)\nout y float32[4,3]")
	f := &pb.FunctionProto{
		Name: proto.String("Head"), Domain: proto.String("own"), Input: []string{"x"}, Output: []string{"y"},
		OpsetImport: []*pb.OperatorSetIdProto{{Version: proto.Int64(17)}},
	}
	for _, n := range body.Graph.Nodes {
		f.Node = append(f.Node, n.Proto)
	}
	m, err := onnx.Parse("model ir=8 opset=17 opset[own]=1\ngraph g {\nin x float32[4,3]\ny = own.Head(x)\nout y float32[4,3]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	m.Proto.Functions = []*pb.FunctionProto{f}
	if r, err := Add(m, Options{Kind: CrossEntropy}); err != nil || r.Through != "Softmax" {
		t.Errorf("%v, %+v in\n%s", err, r, m.Text())
	}
}

// Outputs go, but for those that are kept, and the loss comes first.
func TestKeep(t *testing.T) {
	const body = "in x float32[4,3]\ny = Exp(x)\nz = Neg(x)\na = Abs(x)\nout a float32[4,3]\nout z float32[4,3]\nout logits float32[4,3]\nlogits = Identity(y)"
	for _, c := range []struct {
		keep, outputs, dropped []string
	}{
		{nil, []string{"loss"}, []string{"a", "z"}},
		{[]string{"z", "log*"}, []string{"loss", "z", "logits"}, []string{"a"}},
	} {
		m := parse(t, 17, body)
		r, err := Add(m, Options{Kind: CrossEntropy, Keep: c.keep})
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, v := range m.Graph.Outputs {
			have = append(have, v.Name)
		}
		if !slices.Equal(have, c.outputs) || !slices.Equal(r.Dropped, c.dropped) || r.Prediction != "logits" {
			t.Errorf("outputs %v, %+v", have, r)
		}
		if again, err := onnx.Parse(m.Text()); err != nil || again.Check() != nil {
			t.Errorf("%v", err)
		}
	}
}

// The past of a decoder is empty: a model without it computes what the model computes
// whose past has no tokens.
func TestEmptyPast(t *testing.T) {
	const body = `in x float32[b,s,4]
in past_key_values.0.key float32[b,past_len,width]
in mask float32[b,past_len+s]
all = Concat(past_key_values.0.key, x) {axis=1}
axes = Constant() {value_ints=[2]}
wide = Unsqueeze(mask, axes)
seen = Mul(all, wide)
perm = Transpose(seen) {perm=[0, 2, 1]}
scores = MatMul(x, perm)
shape = Shape(past_key_values.0.key)
one = Constant() {value_int=1}
length = Gather(shape, one)
shift = Cast(length) {to=1}
moved = Add(scores, shift)
logits = MatMul(moved, seen)
present.0.key = Identity(all)
out logits float32[b,s,4]
out present.0.key float32[b,total,4]`
	m := parse(t, 17, body)
	r, err := Add(m, Options{Kind: NextToken})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Empty, []string{"past_key_values.0.key"}) || !slices.Equal(r.Dropped, []string{"present.0.key"}) || strings.Contains(m.Text(), "all = ") || len(m.Graph.Inputs) != 3 {
		t.Fatalf("%+v\n%s", r, m.Text())
	}
	if got := m.Graph.Value("mask").Type.Shape.String(); got != "[b,s]" {
		t.Errorf("the mask is %s", got)
	}
	plain := strings.NewReplacer("in past_key_values.0.key float32[b,past_len,width]\n", "", "past_len+", "", "all = Concat(past_key_values.0.key, x) {axis=1}", "all = Identity(x)",
		"shape = Shape(past_key_values.0.key)\n", "init shape int64[2] = [0, 0]\n", "present.0.key = Identity(all)\n", "", "\nout present.0.key float32[b,total,4]", "").Replace(body)
	want := parse(t, 17, plain)
	if _, err := Add(want, Options{Kind: NextToken}); err != nil {
		t.Fatal(err)
	}
	feeds := map[string][]float64{}
	for i := range 24 {
		feeds["x"] = append(feeds["x"], math.Sin(float64(i)))
		if i < 6 {
			feeds["mask"], feeds["labels"] = append(feeds["mask"], float64(i%2)), append(feeds["labels"], float64(i%4))
		}
	}
	fix := func(m *onnx.Model) *onnx.Model {
		for _, v := range m.Graph.Inputs {
			for i, d := range v.Type.Shape {
				v.Type.Shape[i] = d.Subst(map[string]int64{"b": 2, "s": 3})
			}
		}
		return m
	}
	a, b := ortest.Run(t, fix(m), 0, tensors(m, feeds))["loss"], ortest.Run(t, fix(want), 0, tensors(want, feeds))["loss"]
	if len(a) != 1 || a[0] != b[0] {
		t.Errorf("%v, want %v", a, b)
	}
}

// Keys of an encoder, to which nothing is added, are data, also where a subgraph reads
// them; those of a decoder in a subgraph are not.
func TestPastOfEncoder(t *testing.T) {
	const body = `in x float32[b,s,4]
in past.decoder.key float32[b,past_len,4]
in past.encoder.key float32[b,past_encoder_len,4]
in far float32[b,t,4]
in mask float32[b,past_len+s]
in c bool[]
%s
perm = Transpose(past.encoder.key) {perm=[0, 2, 1]}
seen = MatMul(near, perm)
both = MatMul(seen, past.encoder.key)
axes = Constant() {value_ints=[1]}
sum = ReduceSum(mask, axes)
axis = Constant() {value_ints=[2]}
sums = Unsqueeze(sum, axis)
logits = Add(both, sums)
present.decoder.key = Identity(all)
present.encoder.key = Neg(far)
present.encoder.value = Identity(past.encoder.key)
out logits float32[b,s,4]
out present.decoder.key float32[b,total,4]
out present.encoder.key float32[b,t,4]
out present.encoder.value float32[b,past_encoder_len,4]`
	for name, grown := range map[string]string{
		"plain":    "all = Concat(past.decoder.key, x) {axis=1}\nnear = Add(x, x)",
		"subgraph": "all, near = If(c) {then_branch=graph then {\na = Concat(past.decoder.key, x) {axis=1}\np = Transpose(past.encoder.key) {perm=[0, 2, 1]}\nm = MatMul(x, p)\nn = MatMul(m, past.encoder.key)\nout a float32\nout n float32\n}, else_branch=graph else {\na1 = Identity(x)\nn1 = Add(x, x)\nout a1 float32\nout n1 float32\n}}",
	} {
		m := parse(t, 17, fmt.Sprintf(body, grown))
		r, err := Add(m, Options{Kind: NextToken})
		if err != nil || !slices.Equal(r.Empty, []string{"past.decoder.key"}) || m.Graph.Value("past.encoder.key") == nil {
			t.Errorf("%s: %v, %+v in\n%s", name, err, r, m.Text())
			continue
		}
		for name, want := range map[string]string{"past.encoder.key": "[b,past_encoder_len,4]", "far": "[b,t,4]", "mask": "[b,s]"} {
			if got := m.Graph.Value(name).Type.Shape.String(); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
	}
}

// The output of an extent that is called "1" has as many tokens as the graph gives it.
func TestExtentNamedByANumber(t *testing.T) {
	m := parse(t, 17, "in x float32[b,s,4]\ny = Exp(x)\nout y float32[b,\"1\",4]")
	r, err := Add(m, Options{Kind: NextToken})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Labels.Type.String(); got != "int64[b,s]" {
		t.Errorf("labels are %s", got)
	}
}

// What is called past is data where the model returns no cache.
func TestPastIsData(t *testing.T) {
	m := parse(t, 17, "in past_values float32[b,past_length]\ny = Exp(past_values)\nout y float32[b,past_length]")
	r, err := Add(m, Options{Kind: Squares})
	if err != nil || len(r.Empty) > 0 || m.Graph.Value("past_values") == nil {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestRefused(t *testing.T) {
	axis := func(i int) *int { return &i }
	for _, c := range []struct {
		name, body string
		o          Options
		want       string
	}{
		{"several", "in x float32[4,3]\ny = Exp(x)\nz = Neg(x)\nout y float32\nout z float32", Options{Kind: CrossEntropy}, "several outputs could be the prediction: y, z"},
		{"none", "in x int64[4,3]\ny = Neg(x)\nout y int64", Options{Kind: CrossEntropy}, "no output is a prediction"},
		{"no such", "in x float32[4,3]\ny = Exp(x)\nout y float32", Options{Kind: CrossEntropy, Output: "z"}, `output "z": the model has no output of that name; it has y`},
		{"whole numbers", "in x float32[4,3]\ny = ArgMax(x)\nz = Exp(x)\nout y int64\nout z float32", Options{Kind: CrossEntropy, Output: "y"}, `output "y": it is int64[1,3], want floats`},
		{"one class", "in x float32[4,1]\ny = Exp(x)\nout y float32", Options{Kind: CrossEntropy}, "of one class, whose entropy is 0 whatever it is: bce is for one logit of two classes"},
		{"which axis", "in x float32[4,3,2]\ny = Exp(x)\nout y float32", Options{Kind: CrossEntropy}, "say with --class-axis"},
		{"another axis", "in x float32[4,3,2]\ny = Softmax(x) {axis=1}\nout y float32", Options{Kind: CrossEntropy, ClassAxis: axis(2)}, "a Softmax over axis 1 made it, the classes cannot lie along axis 2"},
		{"no axis", "in x float32[4,3]\ny = Exp(x)\nout y float32", Options{Kind: CrossEntropy, ClassAxis: axis(2)}, "without an axis 2"},
		{"probabilities cut off", "in x float32[4,3]\np = Softmax(x)\ny = Clip(p)\nout y float32", Options{Kind: CrossEntropy}, "a Clip behind a Softmax made it, and cross-entropy is of what the Softmax reads: export the model without them"},
		{"probabilities of a branch", "in x float32[4,3]\nin c bool[]\ny = If(c) {then_branch=graph then {\np = Softmax(x)\nout p float32\n}, else_branch=graph else {\nq = Neg(x)\nout q float32\n}}\nout y float32[4,3]", Options{Kind: CrossEntropy}, "a Softmax inside its If made it"},
		{"axes joined", "in x float32[4,3,2]\np = Softmax(x) {axis=1}\ny = Flatten(p)\nout y float32", Options{Kind: CrossEntropy}, "a Flatten behind a Softmax made it"},
		{"the other's probabilities", "in x float32[4,3]\ny = Softmax(x)\nout y float32", Options{Kind: Binary}, "a Softmax made it, and bce is not of what that reads: choose another loss, or export the model without the Softmax"},
		{"binary, of two classes' probabilities", "in x float32[4,1]\ninit one float32[] = 1\np = Sigmoid(x)\nq = Sub(one, p)\ny = Concat(q, p) {axis=1}\nout y float32", Options{Kind: Binary}, "a Sigmoid made it, and bce is not of what that reads"},
		{"no sequence", "in x float32[4,3]\ny = Exp(x)\nout y float32", Options{Kind: NextToken}, "want [batch, sequence, classes]"},
		{"scikit-learn's probabilities", "in x float32[4,3]\nlabel, p = ai.onnx.ml.LinearClassifier(x) {coefficients=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], intercepts=[0.0, 0.0], classlabels_ints=[0, 1], post_transform=\"SOFTMAX\"}\ny = ai.onnx.ml.Normalizer(p) {norm=\"L1\"}\nout y float32[4,2]", Options{Kind: CrossEntropy}, "a Normalizer made it, and cross-entropy is not of what that reads"},
		{"probabilities of trees", "in x float32[4,3]\nlabel, p = ai.onnx.ml.TreeEnsembleClassifier(x) {classlabels_int64s=[0, 1]}\ny = Identity(p)\nout y float32[4,2]", Options{Kind: CrossEntropy}, "a TreeEnsembleClassifier made it"},
		{"tokens of a Softmax over others", "in x float32[4,3,2]\ny = Softmax(x) {axis=1}\nout y float32", Options{Kind: NextToken}, "cannot lie along axis 2"},
		{"a scalar", "in x float32[4,3]\ny = ReduceSum(x) {keepdims=0}\nout y float32", Options{Kind: Squares}, "of a rank that cannot have a loss"},
		{"classes alone", "in x float32[4]\ny = Softmax(x) {axis=0}\nout y float32", Options{Kind: CrossEntropy}, "want rows of classes"},
		{"labels there", "in labels float32[4,3]\ny = Exp(labels)\nout y float32", Options{Kind: Squares}, `the model has a value "labels" already: name the new input with --labels`},
		{"nothing kept", "in x float32[4,3]\ny = Exp(x)\nout y float32", Options{Kind: Squares, Keep: []string{"z"}}, `no output matches "z"`},
		{"no size of the past", "in x float32[b,4]\nin past_key float32[n,past_len,w]\ny = Exp(x)\naxis = Constant() {value_ints=[1]}\nnew = Unsqueeze(y, axis)\np = Concat(past_key, new) {axis=1}\nz = ReduceSum(p) {keepdims=0}\nlogits = Add(y, z)\npresent = Identity(p)\nout logits float32\nout present float32", Options{Kind: Squares},
			`input "past_key" holds the past, which is empty in training, and no other input has its extent n: give --dim n=N`},
	} {
		m := parse(t, 17, c.body)
		_, err := Add(m, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		var e *OutputError
		if about := strings.Contains(c.want, "output"); about && !strings.Contains(c.want, "matches") && !errors.As(err, &e) {
			t.Errorf("%s: %T", c.name, err)
		}
	}
	if _, err := ParseKind("hinge"); err == nil || err.Error() != `no loss "hinge": want cross-entropy, next-token, bce, mse, l1` {
		t.Errorf("%v", err)
	}
}
