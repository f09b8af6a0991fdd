package upgrade

// Every row of the table on a node of the opset before it: the upgraded model
// must be of one opset and compute the same.

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

var cases = []struct {
	op, opset string
	body      string
}{
	{"TopK@10", "9", "in x float32[2,5]\ny, i = TopK(x) {axis=1, k=2}"},
	{"Slice@10", "9", "in x float32[3,5]\ny = Slice(x) {axes=[1, 0], starts=[1, 0], ends=[-1, 2]}"},
	{"Slice@10", "9", "in x float32[3,5]\ny = Slice(x) {starts=[1], ends=[9]}"},
	{"Upsample@10", "9", "in x float32[1,2,2,3]\ninit s float32[4] = [1, 1, 2, 1.5]\ny = Upsample(x, s)"},
	{"Upsample@10", "9", "in x float32[1,2,2,3]\ninit s float32[4] = [1, 1, 2, 3]\ny = Upsample(x, s) {mode=\"linear\"}"},
	{"Upsample@10", "8", "in x float32[1,2,2,3]\ny = Upsample(x) {scales=[1.0, 1.0, 2.0, 3.0]}"},
	{"Scatter@11", "9", "in x float32[2,3]\nin u float32[2,1]\ninit i int64[2,1] = [2, 0]\ny = Scatter(x, i, u) {axis=1}"},
	{"Resize@11", "10", "in x float32[1,1,3,4]\ninit s float32[4] = [1, 1, 1.7, 2]\ny = Resize(x, s)"},
	{"Resize@11", "10", "in x float32[1,1,5,7]\ninit s float32[4] = [1, 1, 0.6, 0.4]\ny = Resize(x, s)"},
	{"Resize@11", "10", "in x float32[1,1,5,7]\ninit a float32[2] = [1, 1]\nb = Constant() {value=tensor(float32[2] = [0.6, 0.4])}\ns = Concat(a, b) {axis=0}\ny = Resize(x, s)"},
	{"Resize@11", "10", "in x float32[1,1,5,7]\ninit s float32[4] = [1, 1, 0.6, 1.4]\ny = Resize(x, s) {mode=\"linear\"}"},
	{"Dropout@12", "11", "in x float32[2,3]\ny = Dropout(x) {ratio=0.3}"},
	{"Clip@11", "10", "in x float32[2,3]\ny = Clip(x) {min=-0.5, max=1.0}"},
	{"Pad@11", "10", "in x float32[2,3]\ny = Pad(x) {pads=[0, 1, 1, 0], value=3.0}"},
	{"Squeeze@13", "12", "in x float32[2,1,3]\ny = Squeeze(x) {axes=[1]}"},
	{"Unsqueeze@13", "12", "in x float32[2,3]\ny = Unsqueeze(x) {axes=[0, -1]}"},
	{"ReduceSum@13", "12", "in x float32[2,3]\ny = ReduceSum(x) {axes=[1], keepdims=0}"},
	{"Split@13", "12", "in x float32[2,5]\na, b = Split(x) {axis=1, split=[2, 3]}\ny = Relu(b)"},
	{"Split@18", "17", "in x float32[2,6]\na, b = Split(x) {axis=1}\ny = Mul(a, b)"},
	{"Softmax@13", "12", "in x float32[2,3,4]\nr = Softmax(x) {axis=1}\ny = Mul(r, r)"},
	{"Softmax@13", "12", "in x float32[2,3,4]\ny = Softmax(x) {axis=2}"},
	{"Softmax@13", "12", "in x float32[2,3,1,1]\ny = Softmax(x)"},
	{"LogSoftmax@13", "12", "in x float32[2,3,4]\ny = LogSoftmax(x)"},
	{"LogSoftmax@13", "12", "in x float32[2,3,4]\ny = LogSoftmax(x) {axis=-2}"},
	{"Hardmax@13", "12", "in x float32[2,3,4]\ny = Hardmax(x)"},
	{"BatchNormalization@14", "7", "in x float32[2,2,3]\ninit s float32[2] = [1, 2]\ny = BatchNormalization(x, s, s, s, s) {spatial=1}"},
	{"BatchNormalization@14", "13", "in x float32[2,2,3]\ninit s float32[2] = [1, 2]\ninit b float32[2] = [3, 4]\ninit m float32[2] = [0, 1]\ninit v float32[2] = [1, 2]\ny = BatchNormalization(x, s, b, m, v)"},
	{"RoiAlign@16", "15", "in x float32[1,1,6,6]\ninit r float32[1,4] = [0, 0, 4, 4]\ninit i int64[1] = [0]\ny = RoiAlign(x, r, i) {output_height=2, output_width=2}"},
	{"ReduceL1@18", "17", "in x float32[2,3]\ny = ReduceL1(x) {axes=[1]}"},
	{"ReduceL2@18", "17", "in x float32[2,3]\ny = ReduceL2(x) {axes=[1]}"},
	{"ReduceLogSum@18", "17", "in x float32[2,3]\na = Abs(x)\ny = ReduceLogSum(a) {axes=[1]}"},
	{"ReduceLogSumExp@18", "17", "in x float32[2,3]\ny = ReduceLogSumExp(x) {axes=[1]}"},
	{"ReduceMax@18", "17", "in x float32[2,3]\ny = ReduceMax(x) {axes=[-1]}"},
	{"ReduceMean@18", "17", "in x float32[2,3]\ny = ReduceMean(x) {axes=[0], keepdims=0}"},
	{"ReduceMin@18", "17", "in x float32[2,3]\ny = ReduceMin(x) {axes=[1]}"},
	{"ReduceProd@18", "17", "in x float32[2,3]\ny = ReduceProd(x) {axes=[1]}"},
	{"ReduceSumSquare@18", "17", "in x float32[2,3]\ny = ReduceSumSquare(x) {axes=[1]}"},
	{"DFT@20", "17", "in x float32[2,3,4,1]\ny = DFT(x)"},
	{"DFT@20", "17", "in x float32[2,4,1]\ny = DFT(x) {axis=1, onesided=1}"},
	{"GridSample@20", "16", "in x float32[1,1,3,3]\ninit g float32[1,1,2,2] = [0.1, 0.2, -0.3, 0.4]\ny = GridSample(x, g) {mode=\"bilinear\"}"},
	{"GroupNormalization@21", "20", "in x float32[2,6,3]\ninit s float32[2] = [1, 2]\ninit b float32[2] = [3, 4]\ny = GroupNormalization(x, s, b) {num_groups=2}"},
}

func TestChanges(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range cases {
		covered[c.op] = true
		t.Run(c.op, func(t *testing.T) {
			before, after := parse(t, c.opset, c.body), parse(t, c.opset, c.body)
			if _, err := infer.Model(after, infer.Options{}); err != nil {
				t.Log(err)
			}
			if err := Model(after, 21); err != nil {
				t.Fatal(err)
			}
			if err := after.Check(); err != nil {
				t.Fatalf("%v in\n%s", err, after.Text())
			}
			if _, err := infer.Model(after, infer.Options{Strict: true}); err != nil {
				t.Fatalf("%v in\n%s", err, after.Text())
			}
			if after.Opset("") != 21 || len(after.Proto.OpsetImport) != 1 {
				t.Errorf("imports %v", after.Proto.OpsetImport)
			}
			a, b := execute(t, before), execute(t, after)
			if len(a) != len(b) {
				t.Fatalf("%d elements, were %d", len(b), len(a))
			}
			for i := range a {
				if !(math.Abs(a[i]-b[i]) <= 1e-6*(1+math.Abs(a[i]))) {
					t.Errorf("y[%d] = %g, was %g", i, b[i], a[i])
				}
			}
		})
	}
	for _, c := range table {
		name := fmt.Sprintf("%s@%d", c.op, c.at)
		if c.doc == "" || !covered[name] {
			t.Errorf("change %s has no doc string or no case", name)
		}
	}
}

// TestVariants: each case with one thing changed.
func TestVariants(t *testing.T) {
	for _, c := range cases {
		t.Run(c.op, func(t *testing.T) {
			t.Parallel()
			for _, v := range ortest.Variants(t, parse(t, c.opset, c.body)) {
				ortest.Compare(t, c.op+", "+v.What, v.Model, 1e-6, func(m *onnx.Model) (int, error) {
					if _, err := infer.Model(m, infer.Options{}); err != nil {
						return 0, err
					}
					var refused *OpsetError
					err := Model(m, 21)
					if errors.As(err, &refused) {
						t.Log(err)
						return 0, nil
					}
					return 1, err
				})
			}
		})
	}
}

// An old Softmax along one axis stays the only node, whatever the file tells of ranks.
func TestSoftmaxAlongOneAxis(t *testing.T) {
	for body, want := range map[string]string{
		"in x float32[n,3]\nv = Neg(x)\ny = Softmax(v)":               "axis=-1",
		"in x float32[n,3,1,1]\nv = Neg(x)\ny = Softmax(v)":           "axis=1",
		"in x float32[n,2,3]\nv = Neg(x)\ny = LogSoftmax(v) {axis=2}": "axis=-1",
	} {
		m, err := onnx.Parse("model ir=6 opset=11\ngraph g {\n" + body + "\nout y float32\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if err := Model(m, 13); err != nil || len(m.Graph.Nodes) != 2 || !strings.Contains(m.Text(), "{"+want+"}") {
			t.Errorf("%v, want %s in\n%s", err, want, m.Text())
		}
	}
}

// Subgraphs are upgraded too, and what that adds hides no name of the graph.
func TestSubgraphs(t *testing.T) {
	const body = `in x float32[2,3]
remat/upgrade/const = Neg(x)
z = ReduceSum(remat/upgrade/const) {axes=[0, 1], keepdims=0}
w = Sub(z, z)
c = Less(z, w)
y = If(c) {then_branch=graph a {
p = ReduceMax(remat/upgrade/const) {axes=[1]}
q = If(c) {then_branch=graph b {
r = ReduceMean(x) {axes=[0]}
s = Add(r, p)
out s float32
}, else_branch=graph d {
u = Unsqueeze(p) {axes=[0]}
out u float32
}}
out q float32
}, else_branch=graph e {
v, g = Split(x) {axis=0, split=[1, 1]}
out g float32
}}`
	before, after := parse(t, "12", body), parse(t, "12", body)
	if err := Model(after, 20); err != nil {
		t.Fatal(err)
	}
	if err := after.Check(); err != nil {
		t.Fatalf("%v in\n%s", err, after.Text())
	}
	a, b := execute(t, before), execute(t, after)
	if len(a) != len(b) || len(a) == 0 {
		t.Fatalf("%v, was %v", b, a)
	}
	for i := range a {
		if math.Abs(a[i]-b[i]) > 1e-6 {
			t.Errorf("y[%d] = %g, was %g", i, b[i], a[i])
		}
	}
}

func TestRefused(t *testing.T) {
	const elements = "in x float32[2,2,3]\ninit s float32[2,3] = [1, 2, 3, 4, 5, 6]\ny = BatchNormalization(x, s, s, s, s) {spatial=0}"
	for _, c := range []struct{ name, opset, body, want string }{
		{"too old", "6", "in x float32[2]\ny = Relu(x)", "the oldest supported is 7"},
		{"statistics for each element, opset 7", "7", elements, "statistics for each element (spatial=0)"},
		{"statistics for each element, opset 8", "8", elements, "export the model again"},
		{"saved statistics", "8", "in x float32[2,2]\ninit s float32[2] = [1, 2]\na, _, _, d = BatchNormalization(x, s, s, s, s)\ny = Neg(d)", "saved statistics \"d\" are read"},
	} {
		m := parse(t, c.opset, c.body)
		var e *OpsetError
		if err := Model(m, 20); !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	m := parse(t, "21", "in x float32[2]\ny = Relu(x)")
	if err := Model(m, 20); err != nil || m.Opset("") != 21 {
		t.Errorf("a newer model: %v, opset %d", err, m.Opset(""))
	}
}

func parse(t *testing.T, opset, body string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse("model ir=7 opset=" + opset + " opset[unused.domain]=3\ngraph g {\n" + body + "\nout y float32\n}\n")
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	return m
}

// execute runs the model as it stands on random inputs and returns its output y.
func execute(t *testing.T, m *onnx.Model) []float64 {
	t.Helper()
	return ortest.Run(t, m, 0, ortest.RandomInputs(m))["y"]
}
