package grad

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/adapter"
)

// adaptable is a small network in float64 with linear layers of several forms: a plain
// product, a transposed weight with a bias, a Gemm, and a head that is tied to an
// embedding.
const adaptable = `in x float64[2,3,4]
in ids int64[2,3]
init embedding.weight float64[6,4] = [0.1,-0.2,0.3,0.4,-0.5,0.6,0.7,-0.8,0.9,1.0,-1.1,1.2,0.2,-0.3,0.4,0.5,-0.6,0.7,0.8,-0.9,1.0,1.1,-1.2,1.3]
init norm.weight float64[4] = [1.1, 0.9, 1.2, 0.8]
init plain.weight float64[4,5] = [0.5,-1,0.25,2,-0.75,1,-0.5,0.125,-2,1.5,-1.25,0.75,1,-0.25,0.625,-1.5,0.375,1.75,-0.875,0.25]
init linear.weight float64[4,5] = [0.3,-0.7,0.2,1,-0.5,0.6,-0.4,0.1,-1,0.9,-0.8,0.7,0.6,-0.2,0.4,-0.9,0.3,0.8,-0.6,0.2]
init linear.bias float64[4] = [0.1,0.2,0.3,0.4]
init batched.weight float64[2,4,4] = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]
e = Gather(embedding.weight, ids)
h0 = Add(x, e)
h1 = Mul(h0, norm.weight)
h2 = MatMul(h1, plain.weight)
h3 = Tanh(h2)
lt = Transpose(linear.weight) {perm=[1,0]}
h4 = MatMul(h3, lt)
h5 = Add(h4, linear.bias)
h6 = Tanh(h5)
et = Transpose(embedding.weight) {perm=[1,0]}
y = MatMul(h6, et)
bt = MatMul(h6, batched.weight)
s1 = ReduceSumSquare(y) {keepdims=0}
s2 = ReduceSum(bt) {keepdims=0}
loss = Add(s1, s2)
`

func specs(t *testing.T, texts ...string) []adapter.Spec {
	t.Helper()
	list, err := adapter.ParseSpecs(texts)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func adaptableModel(t *testing.T) *onnx.Model {
	return parseGraph(t, adaptable, "loss float64")
}

func names(res *Result) (list []string) {
	for _, p := range res.Params {
		list = append(list, p.Name)
	}
	slices.Sort(list)
	return list
}

// TestAdapterGradients: those of A and B are what central differences of the loss are, in
// float64, and nothing else has any.
func TestAdapterGradients(t *testing.T) {
	m := adaptableModel(t)
	res, err := Differentiate(m, Options{Adapters: specs(t, "plain*:r=2,alpha=3", "linear.weight:r=3,alpha=1", "embedding.weight:r=1,alpha=2"),
		After: func(_ string, m *onnx.Model) error { return m.Check() }})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"embedding.weight.lora_A", "embedding.weight.lora_B", "linear.weight.lora_A", "linear.weight.lora_B", "plain.weight.lora_A", "plain.weight.lora_B"}
	if got := names(res); !slices.Equal(got, want) {
		t.Fatalf("trained are %v", got)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "embedding.weight is read by more than products") {
		t.Errorf("warnings %q", res.Warnings)
	}
	inputs := ortest.RandomInputs(m)
	for _, p := range res.Params { // B is zero, which hides the gradient of A
		n, _ := onnx.Elements(p.Data.Dims())
		values := make([]float64, n)
		for i := range values {
			values[i] = math.Sin(float64(7*i+len(p.Name))) / 2
		}
		inputs[p.Name] = onnx.FloatTensor(onnx.Float64, values, p.Data.Dims()...)
	}
	session := ortest.Open(t, m, 0, inputs)
	out := session.Run()
	c := gradCase{}
	for _, p := range res.Params {
		differences := c.differences(t, session, inputs[p.Name])
		largest := 0.0
		for _, x := range differences {
			largest = math.Max(largest, math.Abs(x))
		}
		for i, x := range out[p.Name+".grad"] {
			if !(math.Abs(x-differences[i]) <= 1e-6*largest) || largest == 0 {
				t.Errorf("%s[%d]: gradient %g, difference %g", p.Name, i, x, differences[i])
			}
		}
	}
}

// TestAdapterNodes: each node of a pair says which pass made it and of which node, the
// pairs are in the metadata, and no node computes a value of a frozen weight's shape.
func TestAdapterNodes(t *testing.T) {
	m := adaptableModel(t)
	res, err := Differentiate(m, Options{Adapters: specs(t, "plain*:r=2,alpha=3", "linear*:r=1,alpha=4")})
	if err != nil {
		t.Fatal(err)
	}
	products := 0
	for _, n := range m.Graph.Nodes {
		if n.Origin().Pass == adapter.Pass {
			if n.Origin().Of == "" {
				t.Errorf("%s does not say what it stems from", n.Label())
			}
			if n.Is("Gemm") {
				products++
			}
		}
		if n.Origin().Pass == "grad" && n.Is("Gemm", "MatMul") {
			if s, ok := n.Out(0).Type.Shape.Ints(); ok && len(s) == 2 && s[0]*s[1] == 20 {
				t.Errorf("%s computes the gradient of a frozen weight", n.Label())
			}
		}
	}
	if products != 4 {
		t.Errorf("%d products of pairs, want 4", products)
	}
	text, _ := m.Metadata(step.AdaptersKey)
	pairs, err := step.ParseAdapters(text)
	if err != nil || len(pairs) != 2 || pairs["plain.weight"] != (step.Adapter{Rank: 2, Alpha: 3}) || pairs["linear.weight"] != res.Adapters["linear.weight"] {
		t.Errorf("metadata %s, %v", text, err)
	}
}

func TestAdaptersBesideParams(t *testing.T) {
	for _, c := range []struct {
		opts Options
		want []string
	}{
		{Options{Adapters: specs(t, "*")}, []string{"linear.weight.lora_A", "linear.weight.lora_B", "plain.weight.lora_A", "plain.weight.lora_B"}},
		{Options{Adapters: specs(t, "*"), Frozen: []string{"plain*"}}, []string{"linear.weight.lora_A", "linear.weight.lora_B"}},
		{Options{Adapters: specs(t, "plain*"), Params: []string{"norm*"}}, []string{"norm.weight", "plain.weight.lora_A", "plain.weight.lora_B"}},
	} {
		res, err := Differentiate(adaptableModel(t), c.opts)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(res); !slices.Equal(got, c.want) {
			t.Errorf("%+v: trained are %v, want %v", c.opts, got, c.want)
		}
	}
	// A pattern says what it leaves out.
	res, err := Differentiate(adaptableModel(t), Options{Adapters: specs(t, "*")})
	if err != nil || len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "leaves out what is read by more than products (embedding.weight)") {
		t.Errorf("%v, %v", res, err)
	}
	// Of several that match, the last one counts.
	res, err = Differentiate(adaptableModel(t), Options{Adapters: specs(t, "*:r=3,alpha=3", "plain*:r=1,alpha=5")})
	if err != nil || res.Adapters["plain.weight"].Rank != 1 || res.Adapters["linear.weight"].Rank != 3 {
		t.Errorf("%v, %v", res.Adapters, err)
	}
}

func TestAdapterErrors(t *testing.T) {
	for spec, want := range map[string]string{
		"q_proj":             `--lora "q_proj": matches no initializer and no input of the model; linear layers are embedding.weight, plain.weight, linear.weight`,
		"q*":                 "matches no initializer",
		"norm*":              "is no linear layer's weight: Mul reads it",
		"norm.weight":        "is no linear layer's weight: Mul reads it",
		"batched.weight":     "is no linear layer's weight: MatMul reads it, and nothing multiplies by it as the right-hand matrix",
		"*.bias,plain*":      "is no linear layer's weight: Gemm reads it",
		"[bn]*":              "matches no linear layer's weight, only norm.weight, batched.weight",
		"emb*":               "read by more than products (embedding.weight): give its full name",
		"plain.weight:r=65":  "r=65 is far above what plain.weight of 4 x 5 has: want at most 64",
		"h6":                 "matches no initializer",
		"loss":               "matches no initializer",
		"*/../*":             "matches no initializer",
		"plain.weight\nx":    "matches no initializer",
		"plain.weight.lora*": "matches no initializer",
	} {
		_, err := Differentiate(adaptableModel(t), Options{Adapters: specs(t, spec)})
		var bad *adapter.Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %q", spec, err, want)
		}
	}
	_, err := Differentiate(adaptableModel(t), Options{Adapters: specs(t, "plain*"), Frozen: []string{"plain*"}})
	if err == nil || !strings.Contains(err.Error(), "frozen") {
		t.Errorf("frozen: %v", err)
	}
	taken := parseGraph(t, strings.Replace(adaptable, "norm.weight", "plain.weight.lora_A", -1), "loss float64")
	var clash *ClashError
	if _, err := Differentiate(taken, Options{Adapters: specs(t, "plain.weight:r=2")}); !errors.As(err, &clash) {
		t.Errorf("a name that is taken: %v", err)
	}
}

// TestAdaptersInHalf: pairs of a model that computes in a half type are float32.
func TestAdaptersInHalf(t *testing.T) {
	m := parseGraph(t, "in x float16[2,3]\ninit fc.weight float16[3,2] = [1,2,3,4,5,6]\ny = MatMul(x, fc.weight)\nz = Cast(y) {to=1}\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
	res, err := Differentiate(m, Options{Adapters: specs(t, "fc*:r=2")})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.Params {
		if p.Input.Type.DType != onnx.Float32 || p.Grad.Type.DType != onnx.Float32 {
			t.Errorf("%s is %s, its gradient %s", p.Name, p.Input.Type, p.Grad.Type)
		}
	}
}

// TestLayerNames: a weight that bears no module's name is called after the module that
// multiplies by it, unless two would be.
func TestLayerNames(t *testing.T) {
	m := parseGraph(t, `in x float32[2,2]
init onnx_1 float32[2,2] = [1,2,3,4]
init onnx_2 float32[2,2] = [5,6,7,8]
init onnx_3 float32[2,2] = [9,8,7,6]
init mlp.fc.weight float32[2,2] = [5,4,3,2]
a = MatMul(x, onnx_1)
b = MatMul(a, onnx_2)
c = MatMul(b, onnx_3)
d = MatMul(c, mlp.fc.weight)
loss = ReduceSum(d) {keepdims=0}`, "loss float32")
	for i, module := range []string{"attn.q", "both", "both", "elsewhere"} {
		m.Graph.Nodes[i].SetModule(module)
	}
	var got []string
	for _, l := range ReadSignature(m).Layers(m.Graph, map[string]string{"onnx_3": "mine"}) {
		got = append(got, l.Name)
	}
	if want := []string{"attn.q.weight", "onnx_2", "mine", "mlp.fc.weight"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
